"""Audits of a run's own plan: broken parts are refuted in one step and in the whole training, and sound parts are not.

Everything is audited at 99 %. The seeds are fixed, so that these tests never alternate.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from privet.audit import Audit, audit_plan
from privet.clipping import (
    AdaptiveClipping,
    BoundedSum,
    FlatClipping,
)
from privet.clipping.spherical import COUNT
from privet.clipping.bounded import clipping_factors
from privet.noise import GaussianNoise
from privet.sampling import PoissonSampling
from privet.training import Plan

STEPS = 20


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))


def made_up() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def plan(**parts) -> Plan:
    sound = {"sampling": PoissonSampling(0.2), "clipping": FlatClipping(0.7), "noise": GaussianNoise(1.5)}
    return Plan(**{**sound, "steps": STEPS, "records": 1000, **parts})


def audited(one: Plan, **settings) -> tuple[Audit, ...]:
    return audit_plan(one, **{"model": network(), "records": made_up(), "draws": 8000, **settings})


# --- broken parts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClipsNothing(FlatClipping):
    def clip(self, gradients) -> BoundedSum:
        tensors = gradients.weighted_sum(torch.ones(gradients.records, dtype=torch.float64))
        return dataclasses.replace(super().clip(gradients), tensors=tensors)


@dataclass(frozen=True)
class ClipsSomeLayers(FlatClipping):
    """The norm is that of the first parameter alone, and only that one is clipped."""

    def clip(self, gradients) -> BoundedSum:
        first = gradients.names[0]
        weights = dict.fromkeys(gradients.names, torch.ones(gradients.records, dtype=torch.float64))
        weights[first] = clipping_factors(gradients.squared_norms()[first].sqrt(), self.max_grad_norm)
        tensors = gradients.weighted_sum(weights)
        return dataclasses.replace(super().clip(gradients), tensors=tensors)


@dataclass(frozen=True)
class LeavesOutBiases(FlatClipping):
    def clip(self, gradients) -> BoundedSum:
        squares = [each for name, each in gradients.squared_norms().items() if not name.endswith("bias")]
        factors = clipping_factors(torch.stack(squares).sum(0).sqrt(), self.max_grad_norm)
        tensors = gradients.weighted_sum(factors)
        return dataclasses.replace(super().clip(gradients), tensors=tensors)


@dataclass(frozen=True)
class ClipsTheMean(FlatClipping):
    """The sum of the batch is clipped to its size, and not each record."""

    def clip(self, gradients) -> BoundedSum:
        tensors = gradients.weighted_sum(torch.ones(gradients.records, dtype=torch.float64))
        norm = torch.stack([tensor.square().sum() for tensor in tensors.values()]).sum().sqrt()
        most = self.max_grad_norm * max(gradients.records, 1)
        factor = min(1.0, most / max(float(norm), 1e-12))
        return dataclasses.replace(super().clip(gradients), tensors={n: t * factor for n, t in tensors.items()})


@dataclass(frozen=True)
class StaleNorm(AdaptiveClipping):
    """The records are clipped to the norm of the step before, and the noise is that of the new norm."""

    before: float = 1.0

    def clip(self, gradients) -> BoundedSum:
        old = AdaptiveClipping(self.before, share=self.share).clip(gradients)
        times = self.max_grad_norm / self.before
        scales = {name: scale if name == COUNT else scale * times for name, scale in old.scales.items()}
        return dataclasses.replace(old, scales=scales)

    def after(self, noisy, expected_records, deviations) -> StaleNorm:
        moved = super().after(noisy, expected_records, deviations)
        return dataclasses.replace(moved, before=self.max_grad_norm)


@dataclass(frozen=True)
class HalfNoise(GaussianNoise):
    def add(self, bounded, source):
        return GaussianNoise(self.multiplier / 2).add(bounded, source)

    def at(self, step: int) -> HalfNoise:
        return self


@dataclass(frozen=True)
class EagerSampling(PoissonSampling):
    """Records are drawn at twice the stated rate."""

    def draw(self, records, source):
        return PoissonSampling(2 * self.rate).draw(records, source)


BROKEN = {
    "clips nothing": {"clipping": ClipsNothing(0.7)},
    "clips some layers": {"clipping": ClipsSomeLayers(0.7)},
    "leaves out biases": {"clipping": LeavesOutBiases(0.7)},
    "clips the mean": {"clipping": ClipsTheMean(0.7)},
    "stale norm": {"clipping": StaleNorm(1.0, rate=1.0)},
    "half the noise": {"noise": HalfNoise(1.5)},
    "twice the rate": {"sampling": EagerSampling(0.2)},
}


@pytest.mark.parametrize("parts", BROKEN.values(), ids=BROKEN)
def test_a_broken_part_is_refuted_in_every_audit(parts):
    found = audited(plan(**parts))
    assert [one.name for one in found] == [
        "One step of DP-SGD",
        "One step of DP-SGD, on the run's model",
        f"DP-SGD, {STEPS} steps",
    ]
    for one in found:
        print(one.name, one.claimed_epsilon, one.lower_bound, one.ceiling)
    for one in found:
        assert one.refuted, str(one)
        assert one.verdict == "refuted at 99 %"
