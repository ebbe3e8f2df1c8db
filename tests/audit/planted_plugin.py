"""A plug-in with DP-SGD whose parts are broken: audits of its runs must refute them, or say that they were not audited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from privet.clipping import BoundedSum, FlatClipping
from privet.gradients import PerExampleGradients
from privet.methods import Context, Outcome, Task, register
from privet.methods.dpsgd import DPSGD, Trained, train
from privet.noise import GaussianNoise
from privet.privacy import Event, Gaussian, Ledger
from privet.sampling import PoissonSampling


def unclipped(norm: float, gradients: PerExampleGradients) -> BoundedSum:
    """The plain sum, which states that it was clipped."""
    tensors = gradients.weighted_sum(torch.ones(gradients.records, dtype=torch.float64))
    return replace(FlatClipping(norm).clip(gradients), tensors=tensors)


@dataclass(frozen=True)
class ClipsNothing(FlatClipping):
    def clip(self, gradients: PerExampleGradients, state: Any = None) -> BoundedSum:
        return unclipped(self.max_grad_norm, gradients)


class Odd:
    """Clips nothing either, and is no dataclass, so that a record of its settings says nothing."""

    def __init__(self, norm: float) -> None:
        self.norm = norm

    def init(self, parameters: Mapping[str, Tensor]) -> None:
        return None

    def clip(self, gradients: PerExampleGradients, state: Any = None) -> BoundedSum:
        return unclipped(self.norm, gradients)

    def update(self, state: Any, released: Any) -> None:
        return None

    def metric(self, state: Any) -> Mapping[str, Tensor]:
        return {}


@dataclass(frozen=True)
class HalfNoise(GaussianNoise):
    def add(self, bounded: BoundedSum, source: Any) -> dict[str, Tensor]:
        return GaussianNoise(self.multiplier / 2).add(bounded, source)


@dataclass(frozen=True)
class DrawsTwice(PoissonSampling):
    def draw(self, records: int, source: Any) -> Tensor:
        drawn = super().draw(records, source)
        return torch.cat([drawn, drawn[:1]])


@dataclass(frozen=True)
class DrawsMore(PoissonSampling):
    """Twice the stated rate."""

    def draw(self, records: int, source: Any) -> Tensor:
        return PoissonSampling(2 * self.rate).draw(records, source)


def registered(key: str, clipping: Callable[[float], Any]) -> None:
    register(replace(DPSGD(), key=key, title=f"DP-SGD, {key}", clipping=clipping))


registered("clips-nothing", ClipsNothing)
registered("clips-oddly", Odd)


@register
@dataclass(frozen=True, kw_only=True)
class LessNoise(DPSGD):
    key: str = "half-noise"
    title: str = "DP-SGD, half-noise"

    def trained(self, task: Task, part: torch.nn.Module, settings: dict[str, Any]) -> Trained:
        return train(part, noise=HalfNoise, **settings)


@register
@dataclass(frozen=True, kw_only=True)
class Twice(DPSGD):
    sampling: ClassVar[type[PoissonSampling]] = DrawsTwice
    key: str = "draws-twice"
    title: str = "DP-SGD, draws-twice"

    def trained(self, task: Task, part: torch.nn.Module, settings: dict[str, Any]) -> Trained:
        rate = settings.pop("batch_size") / task.dataset.size
        return train(part, sampling=self.sampling(rate), **settings)


@register
@dataclass(frozen=True, kw_only=True)
class More(Twice):
    sampling = DrawsMore
    key: str = "draws-more"
    title: str = "DP-SGD, draws-more"


class Forgetful(Ledger):
    """Writes down a tenth of what it is told."""

    def __init__(self, inner: Ledger) -> None:
        super().__init__()
        self.inner = inner

    def record(self, event: Event, count: int = 1) -> None:
        super().record(event, count)
        self.inner.record(Gaussian(100.0), count)


@register
@dataclass(frozen=True, kw_only=True)
class Unrecorded(DPSGD):
    """The ledger of the run holds other events than the steps that were made."""

    key: str = "unrecorded"
    title: str = "DP-SGD, unrecorded"

    def fit(self, task: Task, context: Context) -> Outcome:
        return super().fit(task, replace(context, ledger=Forgetful(context.ledger), folder=None))


@register
@dataclass(frozen=True, kw_only=True)
class OffPlan(DPSGD):
    """Trains once more on the records, without any protection, after it has followed its plan."""

    key: str = "off-plan"
    title: str = "DP-SGD, off-plan"

    def trained(self, task: Task, part: torch.nn.Module, settings: dict[str, Any]) -> Trained:
        found = super().trained(task, part, settings)
        inputs, labels = task.dataset.train.tensors
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
        torch.nn.functional.cross_entropy(part(inputs), labels).backward()
        optimizer.step()
        return found
