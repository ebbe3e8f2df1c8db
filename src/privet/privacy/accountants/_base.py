"""Accountants interpret events: from what was done to what it cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from privet.errors import InputError
from privet.privacy.events import Event, NotPrivate, tally
from privet.privacy.events._base import Leaf
from privet.privacy.guarantees import Guarantee, Proved, weakest
from privet.privacy.relations import Relation
from privet.privacy.spent import Spent

Tally = tuple[Leaf, ...]


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
        return all(isinstance(leaf, NotPrivate) or self.why_not(leaf, kind) is None for leaf, _ in tally(event))

    def epsilon(self, event: Event, delta: float, relation: Relation | str = Relation.ADD_REMOVE) -> float:
        """The least epsilon that this accountant can state at `delta`: 0 for nothing, infinite for no privacy."""
        if not 0 <= delta < 1 or math.isnan(delta):
            raise InputError(f"delta must be at least 0 and below 1, and is {delta!r}.")
        kind = Relation.of(relation)
        events = self._checked(event, kind)
        if not events:
            return 0.0
        if any(isinstance(leaf, NotPrivate) for leaf, _ in events):
            return math.inf
        return _sane(self._epsilon(events, delta, kind))

    def delta(self, event: Event, epsilon: float, relation: Relation | str = Relation.ADD_REMOVE) -> float:
        """The least delta that this accountant can state at `epsilon`."""
        if not epsilon >= 0:
            raise InputError(f"epsilon must be at least 0, and is {epsilon!r}.")
        kind = Relation.of(relation)
        events = self._checked(event, kind)
        if not events:
            return 0.0
        if any(isinstance(leaf, NotPrivate) for leaf, _ in events):
            return 1.0
        return min(1.0, _sane(self._delta(events, epsilon, kind)))

    def spent(
        self, event: Event, delta: float, relation: Relation | str = Relation.ADD_REMOVE, *, unit: str = "record"
    ) -> Spent:
        """The full statement for `event` at `delta`."""
        return Spent(
            epsilon=self.epsilon(event, delta, relation),
            delta=delta,
            relation=Relation.of(relation),
            unit=unit,
            sampling=event.sampling,
            accountant=self.name,
            guarantee=weakest((event.guarantee, self.basis)),
        )

    def _checked(self, event: Event, relation: Relation) -> Tally:
        events = tally(event)
        for leaf, _ in events:
            reason = None if isinstance(leaf, NotPrivate) else self.why_not(leaf, relation)
            if reason is not None:
                name = self.name[0].upper() + self.name[1:]
                raise UnsupportedEventError(f"{name} cannot bound {type(leaf).__name__}: {reason}.")
        return events


def _sane(value: float) -> float:
    """Never negative, never NaN: a bound that could not be computed is no bound."""
    return math.inf if math.isnan(value) else max(0.0, value)
