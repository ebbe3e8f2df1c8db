"""Accountants interpret events: from what was done to what it cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from privet.errors import InputError
from privet.privacy.accountants._sampling import why_not_inside
from privet.privacy.events import Adaptive, Event, NotPrivate, composed, tally
from privet.privacy.events._base import Leaf
from privet.privacy.guarantees import Guarantee, Proved, weakest
from privet.privacy.relations import Relation
from privet.privacy.spent import Spent

Tally = tuple[Leaf, ...]
Array = npt.NDArray[np.float64]


class UnsupportedEventError(InputError):
    """An accountant has no theorem for an event."""


class Accountant(ABC):
    """An interpreter of events.

    Formal guarantees: `epsilon` and `delta` are upper bounds under the accountant's theorem. An event that the
    theorem does not cover raises `UnsupportedEventError`, naming both; nothing is skipped.
    """

    key: ClassVar[str]
    """The short name: "pld"."""
    name: ClassVar[str]
    """The name in a sentence: "PLD"."""

    @property
    def basis(self) -> Guarantee:
        """What stands behind this accountant's theorem: proved, unless it is kept only to compare with a paper."""
        return Proved()

    @abstractmethod
    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        """Why this accountant cannot bound `leaf` under `relation`; None if it can."""

    @abstractmethod
    def _epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        """An upper bound of epsilon for supported, noisy events."""

    @abstractmethod
    def _delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        """An upper bound of delta for supported, noisy events."""

    def supports(self, event: Event, relation: Relation | str = Relation.ADD_REMOVE) -> bool:
        """Whether every part of `event` has a bound here."""
        kind = Relation.of(relation)
        chosen = _by_filter(event)
        if chosen is not None:
            return chosen[0].supports(chosen[1], kind)
        return all(self.reason_against(leaf, kind) is None for leaf, _ in tally(event))

    def epsilon(self, event: Event, delta: float, relation: Relation | str = Relation.ADD_REMOVE) -> float:
        """The least epsilon that this accountant can state at `delta`: 0 for nothing, infinite for no privacy.

        At delta = 1 nothing is promised, so epsilon is 0 whatever was done.
        """
        if not 0 <= delta <= 1:
            raise InputError(f"delta must be between 0 and 1, and is {delta!r}.")
        kind = Relation.of(relation)
        chosen = _by_filter(event)
        if chosen is not None:
            return chosen[0].epsilon(chosen[1], delta, kind)
        events = self._checked(event, kind)
        if not events or delta == 1:
            return 0.0
        if any(isinstance(leaf, NotPrivate) for leaf, _ in events):
            return math.inf
        return _sane(self._epsilon(events, delta, kind))

    def delta(self, event: Event, epsilon: float, relation: Relation | str = Relation.ADD_REMOVE) -> float:
        """The least delta that this accountant can state at `epsilon`."""
        if not epsilon >= 0:
            raise InputError(f"epsilon must be at least 0, and is {epsilon!r}.")
        kind = Relation.of(relation)
        chosen = _by_filter(event)
        if chosen is not None:
            return chosen[0].delta(chosen[1], epsilon, kind)
        events = self._checked(event, kind)
        if not events:
            return 0.0
        if any(isinstance(leaf, NotPrivate) for leaf, _ in events):
            return 1.0
        return min(1.0, _sane(self._delta(events, epsilon, kind)))

    def deltas(self, event: Event, epsilons: npt.ArrayLike, relation: Relation | str = Relation.ADD_REMOVE) -> Array:
        """The privacy profile: `delta` at each of `epsilons`, the larger of both directions, in one go.

        Args:
            event: what was done.
            epsilons: numbers of at least 0, in any order and shape; infinity is allowed.
            relation: which data sets are neighbors.

        Formal guarantees: as `delta` at each point. The values never rise with epsilon.
        """
        removed, added = self.directions(event, epsilons, relation)
        return np.maximum(removed, added)

    def directions(
        self, event: Event, epsilons: npt.ArrayLike, relation: Relation | str = Relation.ADD_REMOVE
    ) -> tuple[Array, Array]:
        """The privacy profiles of both directions: (with the record against without it, without it against with it).

        Each is the hockey-stick divergence sup_S P(S) - e^epsilon Q(S), from above: first for P on the data set with the
        record and Q without it ("remove"), then the other way round ("add"). The two for epsilon >= 0 determine the
        trade-off function. They are equal where the relation is symmetric, and where the accountant knows only the larger one.

        Args:
            event, epsilons, relation: as in `deltas`.

        Formal guarantees: upper bounds; neither rises with epsilon.
        """
        points = np.asarray(epsilons, dtype=np.float64)
        if not (points >= 0).all():
            raise InputError("Every epsilon must be at least 0.")
        kind = Relation.of(relation)
        chosen = _by_filter(event)
        if chosen is not None:
            return chosen[0].directions(chosen[1], points, kind)
        events = self._checked(event, kind)
        if not events or points.size == 0:
            return np.zeros_like(points), np.zeros_like(points)
        if any(isinstance(leaf, NotPrivate) for leaf, _ in events):
            return np.ones_like(points), np.ones_like(points)
        order = np.argsort(points, axis=None)
        sides = []
        for found in self._directions(events, points.ravel()[order], kind):
            falling = np.empty(points.size)
            # What bounds delta at an epsilon bounds it at every larger one.
            falling[order] = np.minimum.accumulate(np.where(np.isnan(found), 1.0, np.clip(found, 0.0, 1.0)))
            sides.append(falling.reshape(points.shape))
        return sides[0], sides[1]

    def _directions(self, events: Tally, epsilons: Array, relation: Relation) -> tuple[Array, Array]:
        """Upper bounds of delta at ascending epsilons, for each direction; here the same for both."""
        found = np.array([self._delta(events, float(epsilon), relation) for epsilon in epsilons])
        return found, found

    def spent(
        self, event: Event, delta: float, relation: Relation | str = Relation.ADD_REMOVE, *, unit: str = "record"
    ) -> Spent:
        """The full statement for `event` at `delta`."""
        chosen = _by_filter(event)
        if chosen is not None:
            # With the mark: what the statement means is a matter of the filter too, not of what was used of it.
            return replace(chosen[0].spent(chosen[1], delta, relation, unit=unit), event=event)
        return Spent(
            epsilon=self.epsilon(event, delta, relation),
            delta=delta,
            relation=Relation.of(relation),
            unit=unit,
            sampling=event.sampling,
            accountant=self.name,
            guarantee=weakest((event.guarantee, self.basis)),
            event=event,
        )

    def _checked(self, event: Event, relation: Relation) -> Tally:
        events = tally(event)
        for leaf, _ in events:
            reason = self.reason_against(leaf, relation)
            if reason is not None:
                name = self.name[0].upper() + self.name[1:]
                raise UnsupportedEventError(f"{name} cannot bound {type(leaf).__name__}: {reason}.")
        return events

    def reason_against(self, leaf: Event, relation: Relation) -> str | None:
        """Why `leaf` has no bound here; None if it has one. Where nothing is protected, infinity is one."""
        if isinstance(leaf, NotPrivate):
            return None
        return why_not_inside(leaf) or self.why_not(leaf, relation)


def _by_filter(event: Event) -> tuple[Accountant, Event] | None:
    """The filter for a run of which parts were chosen after others were seen, and the run without that mark; else None."""
    leaves = tuple(event.leaves())
    filters = {(leaf.order, leaf.limit, leaf.relation) for leaf, _ in leaves if isinstance(leaf, Adaptive)}
    if not filters:
        return None
    if len(filters) > 1:
        raise UnsupportedEventError(
            "Parts of this run were chosen by different filters, and a filter has to be fixed before the first release: no "
            "theorem adds them up."
        )
    from privet.privacy.accountants.filters import Filter

    plain = composed(*((leaf.event if isinstance(leaf, Adaptive) else leaf) * count for leaf, count in leaves))
    # The leaves have lost what only lowers a guarantee.
    return Filter(*filters.pop()), plain if plain.guarantee == event.guarantee else plain.under(event.guarantee)


def _sane(value: float) -> float:
    """Never negative, never NaN: a bound that could not be computed is no bound."""
    return math.inf if math.isnan(value) else max(0.0, value)
