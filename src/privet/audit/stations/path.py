"""The parts of the library's own path: a sound library trains here, and is not refuted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from privet.audit.bounds import ClopperPearson, TwoSampleBound
from privet.audit.laboratory import Seen, Station
from privet.audit.result import Claimed
from privet.audit.stations.training import LOUD, Padded, Training, Twins, WithBuffer, linear, one, plain_loss, short
from privet.clipping import AdaptiveClipping
from privet.data import Dataset, Split, with_test_records
from privet.privacy import Schedule
from privet.training import Performance


def _momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=1.0, momentum=0.9)


def _turning(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The gradient of a record changes its sign in each step, as that of a fitted record may."""
    return plain_loss(model, x, step) * (-1.0) ** step


def _viewed(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return plain_loss(model, x.repeat_interleave(4, 0), step)


def own_stations() -> tuple[Station, ...]:
    """The library's own stations of that kind; see `privet.audit.stations.path_stations` for all."""
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
        HeldOut(),
    )


@dataclass(frozen=True)
class HeldOut:
    """The split of a private file: another record must not move any record into or out of the training part."""

    name: str = "the split of a file"
    looks_for: str = "a split that another record changes"
    effort: float = 0.05

    def claimed(self) -> Claimed:
        return 0.0

    def bound(self, confidence: float) -> TwoSampleBound:
        return ClopperPearson(0.0, confidence)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        generator = torch.Generator().manual_seed(seed // 2)
        inputs = torch.rand(60, 2, generator=generator)
        labels = torch.randint(2, (60,), generator=generator)
        file = Split(inputs, labels)
        more = Split(
            torch.cat([torch.full((1, 2), 2.0), inputs]), torch.cat([torch.zeros(1, dtype=torch.int64), labels])
        )
        parts = [_training_part(one) for one in (file, more)]
        moved = len((parts[0] ^ parts[1]) - {(2.0, 2.0)})
        return Seen(faults=(f"another record moved {moved} of 60 records",) if moved else ())


def _training_part(file: Split) -> set[tuple[float, ...]]:
    divided = with_test_records(Dataset("file", ("a", "b"), {"train": file}), "file")
    return {tuple(row) for row in divided.train.inputs.tolist()}
