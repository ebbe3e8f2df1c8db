"""Which events a theorem covers inside a sample: a list, so that a new event is refused until somebody adds it."""

from __future__ import annotations

from privet.privacy.accountants._forms import bare
from privet.privacy.events import (
    ApproximateDP,
    Composed,
    CovarianceRelease,
    Event,
    FixedSizeSampled,
    Gaussian,
    GroupedL2,
    IsotropicL2,
    Laplace,
    NoisyTopCount,
    NoisyVotes,
    Nothing,
    PaddedPoisson,
    PoissonSampled,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
    Repeated,
    ShuffledEpoch,
)

BOTH_RELATIONS: tuple[type[Event], ...] = (
    Gaussian,
    Laplace,
    IsotropicL2,
    GroupedL2,
    CovarianceRelease,
    NoisyVotes,
    NoisyTopCount,
    PureEpsilon,
    ApproximateDP,
    PublishedClaim,
    Nothing,
)
"""Events with a bound for adding, removing and replacing a record, of which the last one is the largest."""

INSIDE: dict[type[Event], tuple[type[Event], ...]] = {
    # Add/remove: Zhu, Dong and Wang 2022, theorem 11, for any mechanism with a dominating pair. Replace one: advanced joint
    # convexity (Balle, Barthe and Gaboardi 2018, theorem 2) compares the sample with the record to that with the other record
    # and to that with neither, so the mechanism must be bounded for removing a record too.
    PoissonSampled: BOTH_RELATIONS,
    PaddedPoisson: BOTH_RELATIONS,
    # Replace one: all samples have the same size, so a bound for replacing a record is enough (the same paper, theorem 9).
    FixedSizeSampled: (*BOTH_RELATIONS, RandomizedResponse),
    # Parallel composition of a replaced record: nothing is amplified, and all batches have known sizes.
    ShuffledEpoch: (*BOTH_RELATIONS, RandomizedResponse),
}
"""The events that may stand inside each kind of sampling, alone or composed, and by which theorem."""

_REASONS: dict[type[Event], str] = {
    RandomizedResponse: "the number of answers shows how many records were drawn, so that sampling does not amplify it",
    ShuffledEpoch: "it is bounded for replacing a record only, and a sample without the record has one record less",
}


def why_not_inside(event: Event) -> str | None:
    """Why no theorem is known for what stands inside a sampling event; None if one is, or if nothing is sampled."""
    outer = bare(event)
    listed = INSIDE.get(type(outer))
    if listed is None or (isinstance(outer, PoissonSampled) and outer.rate in (0, 1)):
        return None
    for part in (part for inner in outer.inner for part in _parts(inner)):
        if type(part) not in listed:
            inside = f"{type(part).__name__} inside {type(outer).__name__}"
            return f"{inside}: {_REASONS.get(type(part), 'no theorem is listed for this combination')}"
    return None


def _parts(event: Event) -> tuple[Event, ...]:
    """The single releases of which `event` is composed."""
    event = bare(event)
    if isinstance(event, Repeated | Composed):
        return tuple(part for inner in event.inner for part in _parts(inner))
    if isinstance(event, PoissonSampled) and event.rate == 1:
        return _parts(event.event)
    return (event,)
