"""The parts of the library's own path: a sound library trains here, and is not refuted."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from privet.audit.laboratory import Station
from privet.audit.stations.models import Padded, Twins, WithBuffer, linear
from privet.audit.stations.records import one, short
from privet.audit.stations.releases import ClassCounts, HeldOut, Teachers
from privet.audit.stations.training import LOUD, Training, plain_loss
from privet.clipping import AdaptiveClipping
from privet.privacy import Schedule
from privet.training import Performance


def _momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=1.0, momentum=0.9)


def _turning(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The gradient of a record turns round in each step, as that of a record that was fitted does."""
    return plain_loss(model, x, step) * (-1.0) ** step


def _viewed(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return plain_loss(model, x.repeat_interleave(4, 0), step)


def path_stations() -> tuple[Station, ...]:
    """The parts of the library's own path: a sound library trains here, and is not refuted."""
    root2 = math.sqrt(0.5)
    return (
        Training("one step", "too little noise, or a record that counts more than once", linear, short(), one()),
        Training(
            "biases",
            "parameters that the norm leaves out",
            lambda: linear(bias=True),
            short(),
            torch.zeros(4),
            loss=lambda model, x, step: LOUD * model(x).sum(),
        ),
        Training(
            "two steps",
            "noise that is drawn again in the next step",
            linear,
            short(),
            one(),
            _turning,
            root2,
            steps=2,
        ),
        Training("layers of one shape", "noise that two layers share", Twins, short(), one()),
        Training(
            "views",
            "views of a record that are clipped one by one",
            linear,
            short(),
            one(),
            _viewed,
            settings={"views": 4},
        ),
        Training(
            "a user's examples",
            "examples of a user that are clipped one by one",
            linear,
            short(),
            one().expand(6, 4),
            users=True,
        ),
        Training(
            "a sampled user",
            "a user who is drawn once for each of their examples",
            linear,
            short(),
            one(1.0).expand(6, 4),
            users=True,
            rate=0.5,
        ),
        Training(
            "physical batches",
            "noise or clipping that depends on how a step is divided",
            linear,
            short(),
            one(),
            settings={"performance": Performance(physical_batch_size=1)},
        ),
        Training(
            "moved clipping norm",
            "noise for another clipping norm than the one that clipped",
            linear,
            short(),
            one(),
            noise=root2,
            steps=2,
            settings={"clipping": AdaptiveClipping(1.0, quantile=0.1, rate=2.0, share=0.05)},
        ),
        Training(
            "scheduled clipping norm",
            "a clipping norm of another step",
            linear,
            short(),
            one(),
            noise=root2,
            steps=2,
            settings={"max_grad_norm": Schedule.of([1.0, 0.25])},
        ),
        Training(
            "size of the data",
            "a rate or a divisor that follows the number of records",
            linear,
            one().expand(4, 4),
            one(-LOUD),
            noise=1.4,
            rate=0.5,
            steps=5,
        ),
        Training("sampled step", "a sampling rate that is not the stated one", linear, short(), one(), rate=0.5),
        Training(
            "padding row",
            "rows of an embedding that the norm leaves out",
            Padded,
            torch.tensor([[1.0, 0.2]]),
            torch.tensor([0.0, LOUD]),
        ),
        Training(
            "embedding",
            "rows of an embedding that are added after their norms",
            Padded,
            torch.tensor([[2.0, 2.0, 0.2]]),
            torch.tensor([1.0, 1.0, LOUD]),
        ),
        Training("buffers", "running statistics of the records", lambda: WithBuffer(counting=False), short(), one()),
        Training(
            "optimizer state",
            "momentum or moments of gradients without noise",
            linear,
            short(),
            one(),
            noise=root2,
            steps=2,
            optimizer=_momentum,
        ),
        Training(
            "empty batches",
            "an empty batch that releases nothing",
            linear,
            torch.zeros(0, 4),
            one(),
            noise=2.0,
            rate=0.5,
            steps=4,
        ),
        Training("ledger", "steps that are not recorded", linear, short(), one(), noise=1.0, steps=4),
        Training(
            "a record that is not finite",
            "a run that raises because of one record",
            linear,
            torch.zeros(0, 4),
            one(float("nan")),
            effort=0.25,
        ),
        Teachers(),
        ClassCounts(),
        HeldOut(),
    )
