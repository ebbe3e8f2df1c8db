"""A private teacher: a linear classifier of scattering features, trained by DP-SGD on what a budget has left."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet.data import Dataset, Progress, Split, compute_features
from privet.errors import InputError
from privet.methods import dpsgd
from privet.methods.statistics import private_mean
from privet.methods.synthetic import OnStep, Order
from privet.models import scattering_linear
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.training import Performance

_AT_ONCE = 2**22
"""So many numbers stay in the processor's cache."""


@dataclass(frozen=True)
class ScatteringTeacher:
    """Scattering coefficients are fixed before any record is seen; their private mean is subtracted; the head is trained.

    Attributes:
        steps, learning_rate: of DP-SGD with lots of a tenth of the records, momentum 0.9, clipping at 0.1 and a moving
            average of the parameters with a decay of 0.9.
        mean_noise: the noise multiplier of the release of the features' mean.
    """

    steps: int
    learning_rate: float
    mean_noise: float

    def train(
        self, records: Split, order: Order, ledger: Ledger, randomness: Randomness, on_step: OnStep | None
    ) -> nn.Module:
        """A classifier of images, trained with what the ledger has left of the order's budget."""
        number = order.number_of(records)
        lot = round(0.1 * number)
        if lot < 1:
            raise InputError("There are too few records for a teacher: make the data without one.")
        channels, height, width = records[0][0].shape
        model = scattering_linear(channels, height, width, order.classes)
        dataset = Dataset(order.source, tuple(map(str, range(order.classes))), {"train": records})
        features = compute_features(dataset, model.features, model.key, progress=_progress(on_step)).train
        mean = private_mean(
            features,
            bound=math.sqrt(features[0][0].numel()),
            noise_multiplier=self.mean_noise,
            public_size=number,
            ledger=ledger,
            randomness=randomness,
        )
        model.standardise.mean.copy_(mean.view_as(model.standardise.mean))
        rows = torch.empty(len(features), mean.numel())
        for where in torch.arange(len(features)).split(2000):
            rows[where[0] : where[-1] + 1] = model.standardise(features.batch(where)[0])
        fits = max(1, _AT_ONCE // mean.numel())
        dpsgd.train(
            model.head,
            torch.optim.SGD(model.head.parameters(), lr=self.learning_rate, momentum=0.9),
            features.with_inputs(rows),
            batch_size=lot,
            public_size=number,
            performance=Performance(physical_batch_size=fits if fits < lot else None),
            steps=self.steps,
            epsilon=order.epsilon,
            delta=order.delta,
            max_grad_norm=0.1,
            loss_reduction="mean",
            average=0.9,
            seed=order.seed,
            ledger=ledger,
            on_step=on_step,
        )
        return model.eval()


def scatters(shape: tuple[int, ...]) -> bool:
    """Whether records of a shape are images with scattering coefficients."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 8


def probabilities(teacher: nn.Module, inputs: Tensor, temperature: float) -> Tensor:
    """What the teacher says of artificial inputs, softened."""
    with torch.no_grad():
        scores = torch.cat([teacher(some) for some in inputs.split(128)])
    return (scores / temperature).softmax(1)


def _progress(on_step: OnStep | None) -> Progress | None:
    if on_step is None:
        return None
    return lambda what, done, total: on_step({"what": what, "step": done, "steps": total})
