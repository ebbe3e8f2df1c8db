"""The plan: sampling, clipping, noise and steps in one value, from which the privacy event follows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from privet.clipping import Clipping, ScheduledClipping
from privet.errors import InputError
from privet.noise import NoisePlan, ScheduledNoise
from privet.privacy import Assumed, Event, Schedule
from privet.privacy.events import composed
from privet.sampling import PoissonSampling


@dataclass(frozen=True)
class Plan:
    """How a model is trained, as far as privacy is concerned.

    Formal guarantees: a run that follows the plan does `event` to the data, and nothing else does.

    Attributes:
        sampling: which records are in a step's batch.
        clipping: how each record's gradient is bounded, in the first step; a moving one moves by what is released.
        noise: what is added to the bounded sum in each step.
        steps: how many steps there are.
        records: the public size of the data set. Together with the sampling rate it gives the constant by which every
            noisy sum is divided; the size of the batch that was drawn is private.
    """

    sampling: PoissonSampling
    clipping: Clipping
    noise: NoisePlan
    steps: int
    records: int
    assumptions: tuple[str, ...] = ()
    """What the statement assumes of the loop, beyond what the engine proves."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.records < 1:
            raise InputError(f"A plan needs at least one step and one record, not {self.steps} and {self.records}.")
        if isinstance(self.noise, ScheduledNoise):
            self._check("noise", self.noise.multipliers)
        if isinstance(self.clipping, ScheduledClipping):
            self._check("clipping norms", self.clipping.norms)

    @property
    def expected_batch_size(self) -> float:
        """The public constant that replaces the batch size."""
        return self.sampling.rate * self.records

    def step_event(self, step: int) -> Event:
        """What step 0, 1, 2, ... does to the data."""
        event = self.sampling.event(self.noise.at(step).event())
        return event.under(Assumed(*self.assumptions)) if self.assumptions else event

    def events(self, first: int, end: int) -> Event:
        """What the steps from `first` up to `end`, without it, do to the data."""
        return composed(*map(self.step_event, range(first, end)))

    @cached_property
    def event(self) -> Event:
        """What the whole plan does to the data."""
        return self.events(0, self.steps)

    def _check(self, what: str, schedule: Schedule) -> None:
        if schedule.steps != self.steps:
            raise InputError(f"The schedule of the {what} has {schedule.steps} steps, and the plan has {self.steps}.")
