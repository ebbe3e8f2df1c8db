"""The interface of accountants, which compute the privacy cost of events."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from privet.errors import InputError, PrivetError
from privet.io import Registry
from privet.privacy.events import Adaptive, Event, Leaf, NotPrivate, composed, tally, why_not_inside
from privet.privacy.guarantees import Assumed, Guarantee, Proved, Relation, weakest
from privet.privacy.pld.pairs import Array
from privet.privacy.spent import Spent

T = TypeVar("T")
Tally = tuple[Leaf, ...]
"""The single events of a run, each with its count."""


class UnsupportedEventError(InputError):
    """An accountant has no theorem for an event."""


class Accountant(ABC):
    """Computes epsilon and delta of events. A new accountant defines `why_not`, `bound_epsilon` and `bound_delta`.

    Formal guarantees: `epsilon` and `delta` are upper bounds under the accountant's theorem. An event that the theorem does
    not cover raises `UnsupportedEventError`, which names both; no event is skipped.
    """

    key: ClassVar[str]
    """The short name, such as "pld"."""
    name: ClassVar[str]
    """The name in a sentence, such as "PLD"."""

    @property
    def basis(self) -> Guarantee:
        """How well this accountant's theorem is founded.

        Privet's own accountants are proved, unless they exist only to compare with a paper. Privet cannot check those of
        other packages, so by default their statements assume that they are right.
        """
        if type(self).__module__.partition(".")[0] == "privet":
            return Proved()
        return Assumed(f"the accountant {self.name}, which is not part of Privet, is right")

    @abstractmethod
    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        """Why this accountant cannot bound `leaf` under `relation`; None if it can."""

    @abstractmethod
    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        """An upper bound of epsilon for events that `why_not` accepts."""

    @abstractmethod
    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        """An upper bound of delta for events that `why_not` accepts."""

    def supports(self, event: Event, relation: Relation | str = Relation.ADD_REMOVE) -> bool:
        """Whether every part of `event` has a bound here."""
        kind = Relation.of(relation)
        chosen = _by_filter(event)
        if chosen is not None:
            return chosen[0].supports(chosen[1], kind)
        return all(self.reason_against(leaf, kind) is None for leaf, _ in tally(event))

    def epsilon(self, event: Event, delta: float, relation: Relation | str = Relation.ADD_REMOVE) -> float:
        """The least epsilon that this accountant can state at `delta`: 0 for no event, infinity for no privacy.

        At delta = 1 nothing is promised, so epsilon is 0 for every event.
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
        return _sane(self._computed(lambda: self.bound_epsilon(events, delta, kind)))

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
        return min(1.0, _sane(self._computed(lambda: self.bound_delta(events, epsilon, kind))))

    def deltas(self, event: Event, epsilons: npt.ArrayLike, relation: Relation | str = Relation.ADD_REMOVE) -> Array:
        """The privacy profile: `delta` at each of `epsilons`, the larger of the two directions.

        Args:
            event: what was done.
            epsilons: numbers of at least 0, in any order and shape; infinity is allowed.
            relation: which data sets are neighbors.

        Formal guarantees: those of `delta` at each point. The values never rise with epsilon.
        """
        removed, added = self.directions(event, epsilons, relation)
        return np.maximum(removed, added)

    def directions(
        self, event: Event, epsilons: npt.ArrayLike, relation: Relation | str = Relation.ADD_REMOVE
    ) -> tuple[Array, Array]:
        """The privacy profiles of both directions: (with the record against without it, without it against with it).

        Each is an upper bound of the hockey-stick divergence sup_S P(S) - e^epsilon Q(S): first for P on the data set with
        the record and Q without it ("remove"), then the other way round ("add"). The two together determine the trade-off
        function. They are equal if the relation is symmetric, or if the accountant knows only the larger one.

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
        for found in self._computed(lambda: self._directions(events, points.ravel()[order], kind)):
            falling = np.empty(points.size)
            # A bound of delta at one epsilon is a bound at every larger epsilon.
            falling[order] = np.minimum.accumulate(np.where(np.isnan(found), 1.0, np.clip(found, 0.0, 1.0)))
            sides.append(falling.reshape(points.shape))
        return sides[0], sides[1]

    def _directions(self, events: Tally, epsilons: Array, relation: Relation) -> tuple[Array, Array]:
        """Upper bounds of delta at ascending epsilons, for each direction; here the same for both."""
        found = np.array([self.bound_delta(events, float(epsilon), relation) for epsilon in epsilons])
        return found, found

    def spent(
        self, event: Event, delta: float, relation: Relation | str = Relation.ADD_REMOVE, *, unit: str = "record"
    ) -> Spent:
        """The full statement for `event` at `delta`."""
        chosen = _by_filter(event)
        if chosen is not None:
            # Keep the event marked as adaptive, so that its meaning is also computed by the filter.
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

    def _computed(self, compute: Callable[[], T]) -> T:
        """The result; an event with numbers beyond what floating point can hold is refused."""
        try:
            return compute()
        except PrivetError:
            raise
        except (ArithmeticError, ValueError, MemoryError):
            if not type(self).__module__.startswith("privet."):
                raise
            name = self.name[0].upper() + self.name[1:]
            raise UnsupportedEventError(
                f"{name} cannot bound this run: its noise, rate or number of steps is too large or too small to compute with."
            ) from None

    def _checked(self, event: Event, relation: Relation) -> Tally:
        events = tally(event)
        for leaf, _ in events:
            reason = self.reason_against(leaf, relation)
            if reason is not None:
                name = self.name[0].upper() + self.name[1:]
                raise UnsupportedEventError(f"{name} cannot bound {type(leaf).__name__}: {reason}.")
        return events

    def reason_against(self, leaf: Event, relation: Relation) -> str | None:
        """Why `leaf` has no bound here; None if it has one. An event without privacy has the bound infinity."""
        if isinstance(leaf, NotPrivate):
            return None
        return why_not_inside(leaf) or self.why_not(leaf, relation)


def _by_filter(event: Event) -> tuple[Accountant, Event] | None:
    """For a run with adaptive parts, its filter and the run without the marks; otherwise None."""
    leaves = tuple(event.leaves())
    filters = {(leaf.order, leaf.limit, leaf.relation) for leaf, _ in leaves if isinstance(leaf, Adaptive)}
    if not filters:
        return None
    if len(filters) > 1:
        raise UnsupportedEventError(
            "Parts of this run were chosen under different filters, but a filter has to be fixed before the first release: no "
            "theorem composes them."
        )
    from privet.privacy.accountants.rdp import Filter

    plain = composed(*((leaf.event if isinstance(leaf, Adaptive) else leaf) * count for leaf, count in leaves))
    # The leaves have lost the wrappers that weaken the guarantee.
    return Filter(*filters.pop()), plain if plain.guarantee == event.guarantee else plain.under(event.guarantee)


def _sane(value: float) -> float:
    """Make a bound non-negative, and infinite if it could not be computed (NaN)."""
    return math.inf if math.isnan(value) else max(0.0, value)


def _checked(value: object) -> Accountant:
    """Accept an accountant, or a class of accountants that needs no arguments."""
    try:
        made = value() if isinstance(value, type) else value
    except TypeError as error:
        raise InputError(f"The accountant {value!r} cannot be created: {error}.") from None
    if not isinstance(made, Accountant):
        raise InputError(f"{value!r} is not an accountant: derive it from privet.privacy.Accountant.")
    return made


ACCOUNTANTS: Registry[Accountant] = Registry("accountant", "privet.accountants", _checked)
"""All accountants by their short names; `ACCOUNTANTS.register` adds one."""
