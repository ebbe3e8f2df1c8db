"""Drawing: which records come in which step, divided into physical batches and loaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privet.errors import InputError
from privet.randomness import Randomness
from privet.sampling import load_batches
from privet.training.plan import Plan
from privet.training.step import Step


@dataclass(frozen=True, eq=False)
class Part:
    """A physical batch that was drawn: all of a step, or a part of it."""

    step: Step
    indices: Tensor
    first: bool
    last: bool
    stream: Tensor | None
    """The state of a seeded sampling stream after this step was drawn."""


@dataclass(frozen=True, eq=False)
class Records:
    """A data set and how it is loaded.

    Attributes:
        dataset: anything that `load_batches` takes.
        size_is_public: the data set has as many records as the plan says; otherwise it has about so many.
        physical: at most so many records in a physical batch.
        workers, collate: of the loading.
    """

    dataset: Any
    size_is_public: bool = True
    physical: int | None = None
    workers: int = 0
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        if self.physical is not None and self.physical < 1:
            raise InputError(f"physical_batch_size must be at least 1, not {self.physical}.")

    def check(self, plan: Plan) -> None:
        """Raise unless these are the records of the plan."""
        if self.size_is_public and len(self.dataset) != plan.records:
            raise InputError(
                f"The plan is for {plan.records} records, and the data set has {len(self.dataset)}: make a new plan, or "
                f"state the public size of the data with public_size=..."
            )

    def batches(self, plan: Plan, randomness: Randomness, steps: range) -> Iterator[tuple[Part, Any]]:
        """The physical batches of the steps, drawn and loaded; workers may draw ahead of what was yielded."""
        parts: deque[Part] = deque()

        def draw() -> Iterator[Tensor]:
            for number in steps:
                step = Step(plan, number, randomness)
                indices = step.sample(len(self.dataset))
                source = randomness.sampling
                stream = source.get_state() if isinstance(source, torch.Generator) else None
                pieces = indices.split(self.physical) if self.physical and len(indices) else (indices,)
                for place, piece in enumerate(pieces):
                    parts.append(Part(step, piece, place == 0, place == len(pieces) - 1, stream))
                    yield piece

        for batch in load_batches(self.dataset, draw(), workers=self.workers, collate=self.collate):
            yield parts.popleft(), batch
