"""Models, losses and loops that a user may write: a sound library handles them correctly or refuses them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from privet.audit.laboratory import Station
from privet.audit.stations.training import (
    LOUD,
    PUBLIC_SIZE,
    Growing,
    Late,
    Loss,
    Mixing,
    Normalized,
    Positions,
    Sequences,
    Training,
    WithBuffer,
    cancelling,
    linear,
    one,
    plain_loss,
    short,
)
from privet.clipping import EllipticalClipping
from privet.training import Performance

# --- records that are mixed, in a model or around it ------------------------------------------------------------------

_NEAR, _ALIKE = 0.2 * torch.ones(6, 4), LOUD * F.one_hot(torch.zeros(6, dtype=torch.int64), 4).float()
"""Records that are below the clipping norm after mixing, and records far above it."""
_AGAINST, _ALL, _ABOVE = [-LOUD, 0.0, 0.0, 0.0, -1.0], [-LOUD] * 4 + [1.0], [LOUD] * 4 + [1.0]
"""The canary: against the others in one direction, against them in all directions, and above them."""

Mix = Callable[[Tensor], Tensor]
_MIXES: tuple[tuple[str, Mix, Tensor, list[float]], ...] = (
    ("h - h.mean(0)", lambda h: h - h.mean(0), _NEAR, _AGAINST),
    ("h - h.mean()", lambda h: h - h.mean(), _NEAR, _AGAINST),
    ("h - h.mean().item()", lambda h: h - h.mean().item(), _NEAR, _AGAINST),
    ("h - h.data.mean(0)", lambda h: h - h.data.mean(0), _NEAR, _AGAINST),
    ("h / h.norm()", lambda h: h / h.norm(), _NEAR, _ALL),
    ("h / h.std(0).mean()", lambda h: h / h.std(0).mean(), _ALIKE, _AGAINST),
    ("sparse.mm", lambda h: torch.sparse.mm(torch.full((len(h), len(h)), 1 / len(h)).to_sparse(), h), _NEAR, _ALL),
    ("batch_norm", lambda h: F.batch_norm(h, None, None, training=True), _NEAR, _AGAINST),
    ("layer_norm(h.T)", lambda h: F.layer_norm(h.mT, (len(h),)).mT, _NEAR, _AGAINST),
    ("avg_pool1d(h.T)", lambda h: F.avg_pool1d(h.mT[None], 3, 1, 1)[0].mT, _NEAR, _ALL),
    ("index_add", lambda h: h.index_add(0, torch.zeros(len(h), dtype=torch.int64), h), _NEAR, _ALL),
    ("scatter_add", lambda h: h.scatter_add(0, torch.zeros_like(h, dtype=torch.int64), h), _NEAR, _ALL),
    ("index_put", lambda h: h.index_put((torch.arange(len(h)),), h[-1:]), _NEAR, _AGAINST),
    ("cdist", lambda h: h * torch.cdist(h, h).sum(1, keepdim=True), _ALIKE, _AGAINST),
    ("cov", lambda h: h @ torch.cov(h.mT), _NEAR, _AGAINST),
    ("cummax", lambda h: h - torch.cummax(h, 0).values[-1:], _NEAR, _ABOVE),
    ("fft(dim=0)", lambda h: torch.fft.fft(h, dim=0).real, _ALIKE, _AGAINST),
    ("roll", lambda h: torch.roll(h, 1, 0), _ALIKE, _AGAINST),
    ("flip", lambda h: h.flip(1, 0), _ALIKE, _AGAINST),
)
"""Operations that mix the records of a batch inside a model, and records on which this shows."""


def mixed_inside() -> tuple[Station, ...]:
    return tuple(
        Training(
            f"records mixed by {words}",
            "records that change the gradients of others",
            partial(Mixing, mix),
            torch.cat([others, torch.ones(len(others), 1)], dim=1),
            torch.tensor(canary),
            effort=0.5,
        )
        for words, mix, others, canary in _MIXES
    )


def _centered_outputs(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = (out - out.mean(0)).square().sum()
    return total


def _variance(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = len(x) * out.var(0, correction=0).sum()
    return total


def _over_the_largest(model: nn.Module, x: Tensor, step: int) -> Tensor:
    each = (model(x[:, :4]) + x[:, 4:]).square()
    total: Tensor = (each / each.detach().max()).sum()
    return total


def _ranking(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = (out - out.mT).relu().sum()
    return total


def _centered_inputs(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return plain_loss(model, x[:, :4] - x[:, :4].mean(0), step)


def _mixup(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return plain_loss(model, 0.5 * x[:, :4] + 0.5 * x[:, :4].roll(1, 0), step)


def mixed_outside() -> tuple[Station, ...]:
    """In these losses and loops the model keeps records apart, and the user's code does not."""
    targets = torch.cat([_NEAR, torch.ones(6, 1)], dim=1)
    far, against = torch.tensor([0.0, 0.0, 0.0, 0.0, LOUD]), torch.tensor(_AGAINST)
    losses: tuple[tuple[str, Loss, Tensor, Tensor], ...] = (
        ("(o - o.mean(0))**2", _centered_outputs, targets, far),
        ("o.var(0)", _variance, targets, far),
        ("l / l.detach().max()", _over_the_largest, targets, far),
        ("a pairwise ranking", _ranking, targets, far),
        ("x - x.mean(0)", _centered_inputs, _NEAR, against[:4]),
        ("mixup", _mixup, -_ALIKE, 3 * _ALIKE[0]),
    )
    return tuple(
        Training(
            f"records mixed by {words}",
            "records that change the gradients of others",
            linear,
            others,
            canary,
            loss,
            effort=0.5,
        )
        for words, loss, others, canary in losses
    )


# --- all stations -----------------------------------------------------------------------------------------------------


def _masked(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The mean over the positions that count; each record decides how many of its positions count."""
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
    """Another optimizer steps on the gradients that the last backward pass left."""
    layer = model.get_submodule("late").requires_grad_(True)
    if not hasattr(optimizer, "companion"):
        optimizer.companion = SGD(layer.parameters(), lr=1.0)  # type: ignore[attr-defined]
        optimizer.register_step_post_hook(lambda *_: optimizer.companion.step())  # type: ignore[attr-defined]


def _train_mode(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    model.train()


def model_stations() -> tuple[Station, ...]:
    """Models, losses and loops that a user may write: a sound library handles them correctly or refuses them."""
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
            "a loss without records that is added once for each physical batch, and reveals how many there are",
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
            "a buffer into which the model writes batch statistics",
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
