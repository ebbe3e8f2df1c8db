"""One private step, on one page: sample, clipped sum, noise, ledger, division by a public constant.

indices = step.sample(len(dataset))            # the records that take part; this is private
step.add(engine.gradients(), state)            # once for each physical batch: clip, and add up
result = step.release(record)                  # result.gradients is for the optimizer, result.state for the next step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from privet.clipping import BoundedSum, Deviations, Released
from privet.distributed import Team
from privet.errors import PrivetError
from privet.gradients import PerExampleGradients
from privet.noise import Mechanism
from privet.privacy import Event
from privet.randomness import Randomness
from privet.training.checkpoint import digest
from privet.training.plan import Plan, PlanState

Record = Callable[[Event, Mapping[str, Tensor]], None]
"""Writes down an event and its release; returns when both are on the disk."""


@dataclass(frozen=True, eq=False)
class StepResult:
    """The outcome of a step: all of it is post-processing of the noisy sum.

    Attributes:
        gradients: the private gradient of each parameter.
        state: the state of the plan before the next step.
        deviations: computes the standard deviation of the noise in each gradient, which is public.
    """

    gradients: dict[str, Tensor]
    state: PlanState
    deviations: Deviations


@dataclass(eq=False)
class Step:
    """Step `number` (0, 1, 2, ...) of a plan.

    Formal guarantees: the result of `release` is the plan's mechanism on the records that were added, and `record` has
    returned before any of it can be used: the ledger never shows less than was used.
    """

    plan: Plan
    number: int
    randomness: Randomness
    team: Team = field(default_factory=Team)
    """The processes that take part in the step."""
    drawn: Tensor | None = field(default=None, init=False)
    """The records of the whole batch. They are private."""
    state: PlanState | None = field(default=None, init=False)
    bounded: BoundedSum | None = field(default=None, init=False)

    def sample(self, records: int) -> Tensor:
        """The indices of the records that take part."""
        self.drawn = self.plan.sampling.draw(records, self.randomness.sampling)
        return self.drawn

    def add(self, gradients: PerExampleGradients, state: PlanState) -> None:
        """Clip the gradients of a physical batch and add them to the sum; all parts of a step have the same state."""
        if self.state is not None and state is not self.state:
            raise PrivetError("The state of a step changed between two of its physical batches.")
        clipped, self.state = self.plan.clipping.clip(gradients, state.clipping), state
        self.bounded = clipped if self.bounded is None else self.bounded + clipped

    def release(self, record: Record, replicas: Iterable[Tensor] = ()) -> StepResult:
        """Add noise to the sum, record the step, divide by the expected batch size, and round to the parameters' dtype.

        With several processes, the sum is that over all of them, process 0 adds the noise and records the step, and the
        others get the noisy sum after that. `replicas` are tensors that must be the same in all processes.
        """
        plan, state, bounded = self.plan, self.state, self.bounded
        if bounded is None or state is None:
            raise PrivetError("A step has no gradients yet: add those of its batch, which may be empty.")
        expected, mechanism = plan.expected_batch_size, plan.noise.at(self.number, state.noise)
        if mechanism.event() != plan.noise.event(self.number):
            raise PrivetError(
                f"In step {self.number + 1} the noise has another cost than its plan says: the event of a step must follow from "
                f"the settings of the noise and the number of the step, not from its state."
            )
        noisy, bounded = self._noisy(mechanism, bounded, record, replicas)
        released = Released(noisy, expected, lambda: mechanism.deviations(bounded))
        metric = plan.clipping.metric(state.clipping)

        def deviations() -> dict[str, Tensor | float]:
            return {name: each / expected * metric.get(name, 1.0) for name, each in released.deviations().items()}

        gradients = {
            name: _times(tensor / expected, metric.get(name)).to(bounded.dtype_of(name))
            for name, tensor in noisy.items()
        }
        after = PlanState(plan.clipping.update(state.clipping, released), plan.noise.update(state.noise, released))
        return StepResult(gradients, after, deviations)

    def _noisy(
        self, mechanism: Mechanism, bounded: BoundedSum, record: Record, replicas: Iterable[Tensor]
    ) -> tuple[dict[str, Tensor], BoundedSum]:
        """The noisy sum, or this process's pieces of it, once the event is recorded; and the bounded sum, divided alike."""
        team, event, place = self.team, self.plan.step_event(self.number), f"step {self.number + 1}"
        if not team.pieces:
            whole = replace(bounded, tensors=team.summed(bounded.tensors, place, replicas))

            def make() -> dict[str, Tensor]:
                made = mechanism.add(whole, self.randomness.noise)
                record(event, made)
                return made

            return team.released(make, bounded.tensors), bounded
        pieces = team.own_pieces(bounded.tensors)
        own = bounded.divided(team.scattered(bounded.tensors, place, replicas), pieces)
        with team.telling():
            made = mechanism.add(own, self.randomness.noise)
            sign = bytes.fromhex(digest(made))
        return team.acknowledged(made, sign, lambda signs: record(event, signs), bounded.tensors), own


def _times(tensor: Tensor, factor: Tensor | None) -> Tensor:
    return tensor if factor is None else tensor.mul_(factor)
