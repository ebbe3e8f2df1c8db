"""The plan: sampling, clipping, noise and steps in one value, from which the privacy event follows."""

from __future__ import annotations

from dataclasses import dataclass

from privet.clipping import Clipping
from privet.errors import InputError
from privet.noise import GaussianNoise
from privet.privacy import Event
from privet.sampling import PoissonSampling


@dataclass(frozen=True)
class Plan:
    """How a model is trained, as far as privacy is concerned.

    Formal guarantees: a run that follows the plan does `event` to the data, and nothing else does.

    Attributes:
        sampling: which records are in a step's batch.
        clipping: how each record's gradient is bounded.
        noise: what is added to the bounded sum.
        steps: how many steps there are.
        records: the public size of the data set. Together with the sampling rate it gives the constant by which every
            noisy sum is divided; the size of the batch that was drawn is private.
    """

    sampling: PoissonSampling
    clipping: Clipping
    noise: GaussianNoise
    steps: int
    records: int

    def __post_init__(self) -> None:
        if self.steps < 1 or self.records < 1:
            raise InputError(f"A plan needs at least one step and one record, not {self.steps} and {self.records}.")

    @property
    def expected_batch_size(self) -> float:
        """The public constant that replaces the batch size."""
        return self.sampling.rate * self.records

    @property
    def step_event(self) -> Event:
        """What one step does to the data."""
        return self.sampling.event(self.noise.event())

    @property
    def event(self) -> Event:
        """What the whole plan does to the data."""
        return self.step_event * self.steps
