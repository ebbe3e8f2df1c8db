"""One private step, on one page: sample, clipped sum, noise, ledger, divide by a public constant.

indices = step.sample(len(dataset))            # who takes part: nobody knows
step.add(engine.gradients(), clipping)         # once for each physical batch: clip, and add up
gradients = step.release(record).gradients     # what the optimizer may use
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from privet.clipping import BoundedSum, Clipping, MovingClipping
from privet.errors import PrivetError
from privet.gradients import PerExampleGradients
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
    deviations: dict[str, Tensor | float]
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

    def release(self, record: Record) -> Released:
        """Noise the sum, write the step down, and divide by the expected batch size."""
        clipping = self.clipping
        if self.bounded is None or clipping is None:
            raise PrivetError("A step has no gradients yet: add those of its batch, which may be empty.")
        expected, noise = self.plan.expected_batch_size, self.plan.noise.at(self.number)
        noisy = noise.add(self.bounded, self.randomness.noise)
        record(self.plan.step_event(self.number), noisy)
        if isinstance(clipping, MovingClipping):
            clipping = clipping.after(noisy, expected)
        return Released(
            gradients={name: tensor.div_(expected) for name, tensor in noisy.items()},
            clipping=clipping,
            deviations={name: each / expected for name, each in noise.deviations(self.bounded).items()},
        )
