"""What happened to the data, as plain values: composition and serialisation of events."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from privet.errors import InputError
from privet.privacy.guarantees import Guarantee, Proved, guarantee_from_dict, guarantee_to_dict, weakest
from privet.privacy.relations import Relation

Leaf = tuple["Event", int]


@dataclass(frozen=True)
class Event:
    """One use of the data. `a + b` is both, `a * n` is n times; an accountant says what it costs.

    Formal guarantees: an event means exactly what its class's docstring says and nothing else; that meaning never
    changes, so that a ledger written today has the same cost tomorrow.
    """

    _kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Event._kinds[cls.__name__] = cls

    def __add__(self, other: Event) -> Event:
        if not isinstance(other, Event):
            return NotImplemented
        return composed(self, other)

    def __mul__(self, count: int) -> Event:
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            return NotImplemented
        return repeated(self, count.__index__())

    __rmul__ = __mul__

    @property
    def guarantee(self) -> Guarantee:
        """What stands behind the cost of this event."""
        return weakest(inner.guarantee for inner in self.inner) if self.inner else Proved()

    @property
    def sampling(self) -> str:
        """How records were chosen, in two or three words; empty if every record was used."""
        return ""

    @property
    def inner(self) -> tuple[Event, ...]:
        """The events inside this one."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(value for value in values if isinstance(value, Event))

    def under(self, guarantee: Guarantee) -> Event:
        """The same event with a weaker guarantee, where the run does not do what the theorem asks."""
        return Under(self, guarantee)

    def leaves(self) -> Iterator[Leaf]:
        """The events of which this one is the composition, each with how often it happened."""
        yield self, 1

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON types, read back by `Event.from_dict`."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"kind": type(self).__name__, **fields}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Event:
        if not isinstance(data, dict) or data.get("kind") not in Event._kinds:
            raise InputError(f"This version of Privet knows no event like {data!r}.")
        kind = Event._kinds[data["kind"]]
        values = {key: _revive(value) for key, value in data.items() if key != "kind"}
        if set(values) != {field.name for field in dataclasses.fields(kind)}:
            raise InputError(f"{kind.__name__} does not have the fields {sorted(values)}.")
        return kind(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return guarantee_to_dict(value)  # type: ignore[arg-type]
    return value


def _revive(value: Any) -> Any:
    if isinstance(value, dict):
        return Event.from_dict(value) if "kind" in value else guarantee_from_dict(value)
    if isinstance(value, list):
        return tuple(_revive(item) for item in value)
    return value


@dataclass(frozen=True)
class Nothing(Event):
    """The data was not used: epsilon 0."""

    def leaves(self) -> Iterator[Leaf]:
        return iter(())


NOTHING = Nothing()
"""The data was not used."""


@dataclass(frozen=True)
class Repeated(Event):
    """The same event `count` times, each with fresh randomness, adaptively chosen."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        require_event(self, "event", self.event)
        require_whole(self, "count", self.count)

    @property
    def sampling(self) -> str:
        return self.event.sampling

    def leaves(self) -> Iterator[Leaf]:
        for leaf, count in self.event.leaves():
            yield leaf, count * self.count


@dataclass(frozen=True)
class Composed(Event):
    """All of these events on the same data, adaptively chosen."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        for event in self.events:
            require_event(self, "events", event)

    @property
    def inner(self) -> tuple[Event, ...]:
        return self.events

    @property
    def sampling(self) -> str:
        return " and ".join(dict.fromkeys(event.sampling for event in self.events if event.sampling))

    def leaves(self) -> Iterator[Leaf]:
        for event in self.events:
            yield from event.leaves()


@dataclass(frozen=True)
class Under(Event):
    """An event whose cost is only as good as `basis`: the run differs from what the theorem asks."""

    event: Event
    basis: Guarantee

    def __post_init__(self) -> None:
        require_event(self, "event", self.event)
        if not isinstance(self.basis, Guarantee):
            raise InputError(f"A guarantee is Proved, Assumed or Claimed, and this is {self.basis!r}.")

    @property
    def guarantee(self) -> Guarantee:
        return weakest((self.event.guarantee, self.basis))

    @property
    def sampling(self) -> str:
        return self.event.sampling

    def leaves(self) -> Iterator[Leaf]:
        return self.event.leaves()


@dataclass(frozen=True)
class Adaptive(Event):
    """`event`, whose parameters (or whether it happened at all) depended on earlier releases, within a filter's limit.

    `order` and `limit` are the filter's, fixed before any release: the order and the largest total divergence of a Renyi
    filter; or no order, and the largest total mu of Gaussian releases. `relation` names the neighbors for which the limit
    was kept.

    Formal guarantees: every accountant passes a run that holds such an event on to that filter (`privet.privacy.Filter`), which
    states what the limit allows and not what was used of it: when to stop was chosen too.
    """

    event: Event
    order: float | None
    limit: float
    relation: str = "add-remove"

    def __post_init__(self) -> None:
        require_event(self, "event", self.event)
        require_number(self, "limit", self.limit)
        object.__setattr__(self, "relation", Relation.of(self.relation).value)
        if self.order is not None:
            require_number(self, "order", self.order, low=1.0)
            if self.order == 1:
                raise InputError("order of Adaptive must be above 1: at 1 no delta follows from a divergence.")

    @property
    def sampling(self) -> str:
        return self.event.sampling

    def leaves(self) -> Iterator[Leaf]:
        for leaf, count in self.event.leaves():
            yield (leaf if isinstance(leaf, Adaptive) else replace(self, event=leaf)), count


def composed(*events: Event) -> Event:
    """Every event, in order, with runs of equal events counted instead of listed."""
    runs: list[list[Any]] = []
    for event in events:
        for part in event.events if isinstance(event, Composed) else (event,):
            if isinstance(part, Nothing):
                continue
            base, count = (part.event, part.count) if isinstance(part, Repeated) else (part, 1)
            if runs and runs[-1][0] == base:
                runs[-1][1] += count
            else:
                runs.append([base, count])
    parts = tuple(repeated(base, count) for base, count in runs)
    if len(parts) == 1:
        return parts[0]
    return Composed(parts) if parts else Nothing()


def repeated(event: Event, count: int) -> Event:
    if count < 0:
        raise InputError(f"An event cannot happen {count} times.")
    if count == 0 or isinstance(event, Nothing):
        return Nothing()
    if isinstance(event, Repeated):
        return Repeated(event.event, event.count * count)
    return event if count == 1 else Repeated(event, count)


def tally(event: Event) -> tuple[Leaf, ...]:
    """The leaves with their counts added up, in an order that does not depend on the order of composition."""
    counts: dict[Event, int] = {}
    for leaf, count in event.leaves():
        counts[leaf] = counts.get(leaf, 0) + count
    return tuple(sorted(counts.items(), key=lambda item: repr(item[0])))


def require_event(owner: object, name: str, value: Event) -> None:
    """Raise unless `value` is an event: what an accountant does not see, it does not count."""
    if not isinstance(value, Event):
        raise InputError(f"{name} of {type(owner).__name__} must be an event, and is {value!r}.")


def require_number(owner: object, name: str, value: float, *, low: float = 0.0, high: float = math.inf) -> None:
    """Raise unless `value` is a real number in [low, high]."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not good or math.isinf(value):
        bound = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise InputError(f"{name} of {type(owner).__name__} must be a number {bound}, and is {value!r}.")


def require_whole(owner: object, name: str, value: int, *, low: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(
            f"{name} of {type(owner).__name__} must be a whole number of at least {low}, and is {value!r}."
        )
