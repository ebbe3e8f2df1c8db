"""One private step, on one page: sample, clipped sum, noise, ledger, divide by a public constant.

indices = step.sample(len(dataset))            # who takes part: nobody knows
step.add(engine.gradients(), clipping)         # once for each physical batch: clip, and add up
gradients = step.release(record).gradients     # what the optimizer may use
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from privet.clipping import BoundedSum, Clipping, MetricClipping, MovingClipping
from privet.errors import PrivetError
from privet.gradients import PerExampleGradients
from privet.noise import MovingNoise, NoisePlan
from privet.privacy import Event
from privet.randomness import Randomness
from privet.training.plan import Plan

Record = Callable[[Event, Mapping[str, Tensor]], None]
"""Writes down an event and what it released; returns when that is on the disk."""


@dataclass(frozen=True, eq=False)
class Released:
    """What a step gives out: all of it is post-processing of the noisy sum."""

    gradients: dict[str, Tensor]
    clipping: Clipping
    """How the next step clips."""
    noise: NoisePlan
    """The noise of the steps to come."""
    deviations: Callable[[], dict[str, Tensor | float]]
    """The standard deviation of the noise in each gradient; public."""


@dataclass(eq=False)
class Step:
    """Step `number` (0, 1, 2, ...) of a plan.

    Formal guarantees: what `release` returns is the plan's mechanism on the records that were added, and `record` has
    returned before anything of it can be used: the ledger never shows less than was used.
    """

    plan: Plan
    number: int
    randomness: Randomness
    clipping: Clipping | None = field(default=None, init=False)
    bounded: BoundedSum | None = field(default=None, init=False)

    def sample(self, records: int) -> Tensor:
        """The indices of the records that take part."""
        return self.plan.sampling.draw(records, self.randomness.sampling)

    def add(self, gradients: PerExampleGradients, clipping: Clipping) -> None:
        """Clip the gradients of a physical batch and add them to the sum; sums that were clipped differently do not add."""
        clipped, self.clipping = clipping.clip(gradients), clipping
        self.bounded = clipped if self.bounded is None else self.bounded + clipped

    def release(self, record: Record, moved: NoisePlan | None = None) -> Released:
        """Noise the sum, write the step down, divide by the expected batch size, and round to the parameters' dtype.

        `moved` is the plan's noise as earlier releases have moved it; its event has to be the plan's.
        """
        clipping, bounded = self.clipping, self.bounded
        if bounded is None or clipping is None:
            raise PrivetError("A step has no gradients yet: add those of its batch, which may be empty.")
        expected, event = self.plan.expected_batch_size, self.plan.step_event(self.number)
        planned = moved if moved is not None else self.plan.noise
        noise = planned.at(self.number)
        if noise.event() != self.plan.noise.at(self.number).event():
            raise PrivetError("The noise has moved to one that costs something else than the plan says.")
        noisy = noise.add(bounded, self.randomness.noise)
        record(event, noisy)
        metric = (clipping.metric if isinstance(clipping, MetricClipping) else None) or {}
        if isinstance(clipping, MovingClipping):
            clipping = clipping.after(noisy, expected, lambda: noise.deviations(bounded))
        if isinstance(planned, MovingNoise):
            planned = planned.after(noisy, expected)
        return Released(
            gradients={
                name: _times(tensor.div_(expected), metric.get(name)).to(bounded.dtype_of(name))
                for name, tensor in noisy.items()
            },
            clipping=clipping,
            noise=planned,
            deviations=lambda: {
                name: each / expected * metric.get(name, 1.0) for name, each in noise.deviations(bounded).items()
            },
        )


def _times(tensor: Tensor, factor: Tensor | None) -> Tensor:
    return tensor if factor is None else tensor.mul_(factor)
