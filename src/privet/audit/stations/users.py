"""What a user's model, loss or loop may do: a sound library does it right or refuses it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from privet.audit.laboratory import Station
from privet.audit.stations.mixing import mixed_inside, mixed_outside
from privet.audit.stations.models import Growing, Late, Normalized, Positions, Sequences, WithBuffer, linear
from privet.audit.stations.records import cancelling, one, short
from privet.audit.stations.training import LOUD, PUBLIC_SIZE, Training
from privet.clipping import EllipticalClipping
from privet.training import Performance


def _masked(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The mean over the positions that count, of which each record has as many as it likes."""
    each = model(x[..., :4]).squeeze(-1)
    mean: Tensor = each[x[..., 4] > 0].mean()
    return mean


def _ignoring(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """Cross entropy over the positions that have a label."""
    labels = torch.where(x[..., 4] > 0, 0, -100)
    return F.cross_entropy(model(x[..., :4]).flatten(0, 1), labels.flatten(), ignore_index=-100)


def _append(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    layers = model.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    if len(layers) == 1:
        layers.append(linear())
        optimizer.add_param_group({"params": list(layers[1].parameters())})


def _unfreeze(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    late = model.get_submodule("late").requires_grad_(True)
    if len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": list(late.parameters())})


def _second_optimizer(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Another optimizer steps on what the last backward pass left."""
    layer = model.get_submodule("late").requires_grad_(True)
    if not hasattr(optimizer, "companion"):
        optimizer.companion = SGD(layer.parameters(), lr=1.0)  # type: ignore[attr-defined]
        optimizer.register_step_post_hook(lambda *_: optimizer.companion.step())  # type: ignore[attr-defined]


def _train_mode(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    model.train()


def model_stations() -> tuple[Station, ...]:
    """What a user's model, loss or loop may do: a sound library does it right or refuses it."""
    cancels = cancelling()
    width = cancels.shape[1] // 2
    counted = torch.zeros(1, 8, 5)
    counted[:, 0] = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])
    every = torch.zeros(8, 5)
    every[:] = torch.tensor([LOUD, 0.0, 0.0, 0.0, 1.0])
    return (
        Training(
            "norms that cancel",
            "clipping that fails for near-constant inputs whose gradients cancel",
            lambda: Sequences(width, width),
            torch.zeros(1, *cancels.shape),
            cancels,
            lambda model, x, step: (model(x[..., :width]) * x[..., width:]).sum(),
            effort=0.5,
        ),
        Training(
            "tiny inputs, huge gradients",
            "norms whose squares leave the range of floats",
            linear,
            torch.zeros(1, 5),
            torch.tensor([1e-25, 0.0, 0.0, 0.0, 1e26]),
            lambda model, x, step: (model(x[:, :4]) * x[:, 4:]).sum(),
        ),
        Training(
            "elliptical clipping, a huge gradient",
            "weights that are not finite after one record",
            linear,
            torch.zeros(1, 5),
            torch.tensor([1.0, 0.0, 0.0, 0.0, 1e19]),
            lambda model, x, step: (model(x[:, :4]) * x[:, 4:]).sum(),
            settings={"clipping": EllipticalClipping({"weight": torch.full((1, 4), 3.0)})},
            effort=0.5,
        ),
        Training(
            "a layer unfrozen in the loop",
            "a parameter that is trained on raw gradients",
            Late,
            short(),
            one(),
            in_loop=_unfreeze,
            effort=0.5,
        ),
        Training(
            "a layer appended in the loop",
            "a parameter that is trained on raw gradients",
            Growing,
            short(),
            one(),
            in_loop=_append,
            effort=0.5,
        ),
        Training(
            "a second optimizer",
            "a parameter that is trained on raw gradients",
            Late,
            short(),
            one(),
            in_loop=_second_optimizer,
            effort=0.5,
        ),
        Training(
            "public loss",
            "a loss without records that joins once for each physical batch, and tells how many there are",
            linear,
            torch.zeros(0, 4),
            one(),
            noise=1.0,
            rate=0.5,
            settings={"performance": Performance(physical_batch_size=1)},
            public_loss=lambda model: 10 * model(torch.eye(4)[1:2]).sum(),
        ),
        Training(
            "batch statistics in a buffer",
            "a buffer into which the model writes what it sees",
            lambda: WithBuffer(counting=True),
            short(),
            one(),
            effort=0.5,
        ),
        Training(
            "batch normalization turned on in the loop",
            "running statistics of the records",
            Normalized,
            short(),
            one(),
            in_loop=_train_mode,
            effort=0.5,
        ),
        *mixed_inside(),
        *mixed_outside(),
        Training(
            "a mean over what counts",
            "a divisor of the loss that depends on records",
            linear,
            counted.repeat(6, 1, 1),
            every,
            _masked,
            settings={"loss_reduction": "auto"},
            effort=0.5,
        ),
        Training(
            "labels that are ignored",
            "a divisor of the loss that depends on records",
            lambda: Sequences(4, 2),
            counted.repeat(6, 1, 1),
            every,
            _ignoring,
            settings={"loss_reduction": "mean"},
            effort=0.5,
        ),
        Training(
            "a coincidence of sizes",
            "a table with as many rows as the batch has records",
            Positions,
            torch.zeros(PUBLIC_SIZE - 1, PUBLIC_SIZE),
            LOUD * torch.ones(PUBLIC_SIZE),
            lambda model, x, step: model(x, torch.arange(PUBLIC_SIZE)).sum(),
            effort=0.5,
        ),
    )
