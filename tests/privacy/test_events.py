"""Events: they compose, they serialise, they refuse nonsense."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.errors import InputError
from privet.privacy import (
    Adaptive,
    ApproximateDP,
    Assumed,
    Claimed,
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
    NotPrivate,
    PaddedPoisson,
    PoissonSampled,
    Proved,
    PublicRecords,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
    ShuffledEpoch,
)
from privet.privacy.events import Composed, Repeated, tally

EVERY_EVENT = [
    Gaussian(1.1),
    Laplace(2.0),
    IsotropicL2(1.5, 10),
    GroupedL2((0.5, 0.25)),
    PureEpsilon(0.3),
    ApproximateDP(0.3, 1e-6),
    RandomizedResponse(0.4, 3),
    PoissonSampled(0.01, Gaussian(1.1)),
    PaddedPoisson(0.01, 1000, 25, Gaussian(1.1)),
    FixedSizeSampled(10, 1000, Gaussian(1.1)),
    ShuffledEpoch(100, Gaussian(1.1)),
    NoisyVotes(20.0),
    NoisyVotes(20.0, "laplace"),
    NoisyTopCount(150.0),
    CovarianceRelease(7.0),
    PublicRecords(5000, "test records"),
    PublishedClaim(3.45, 1e-5, "a paper", "theorem 2 fails"),
    NotPrivate(),
    Adaptive(Gaussian(1.1), 8.0, 0.5),
    Adaptive(Gaussian(1.1), None, 0.5),
    Nothing(),
]


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_every_event_survives_json(event):
    compound = (event + Gaussian(2.0)) * 3 + event.under(Assumed("public labels"))
    for one in (event, compound):
        assert Event.from_dict(json.loads(json.dumps(one.to_dict()))) == one
        assert hash(one) == hash(Event.from_dict(one.to_dict()))


def test_composition_counts_runs_of_equal_events():
    step, other = PoissonSampled(0.01, Gaussian(1.0)), Gaussian(3.0)
    assert step * 3 + step * 4 == Repeated(step, 7)
    assert 5 * step == step * 5
    assert step + other + other == Composed((step, Repeated(other, 2)))
    assert (step * 2) * 3 == step * 6
    assert step * 0 == Nothing() == Nothing() + Nothing() == Nothing() * 9
    assert dict(tally((step + other) * 10 + step)) == {step: 11, other: 10}


@given(st.lists(st.sampled_from(EVERY_EVENT[:8]), max_size=12), st.randoms(use_true_random=False))
def test_a_tally_does_not_depend_on_the_order(events, random):
    shuffled = random.sample(events, len(events))
    one = sum(events, start=Nothing())
    other = sum(shuffled, start=Nothing())
    assert tally(one) == tally(other)


def test_the_guarantee_travels_with_the_event():
    claim = PublishedClaim(3.45, 1e-5, "a paper", "theorem 2 fails")
    assert (Gaussian(1.0) * 10).guarantee == Proved()
    assert (Gaussian(1.0) + claim * 3).guarantee == Claimed("a paper", "theorem 2 fails")
    assumed = PoissonSampled(0.1, Gaussian(1.0).under(Assumed("labels are public")))
    assert (assumed * 2 + Gaussian(1.0)).guarantee == Assumed("labels are public")


def test_sampling_is_described():
    event = PoissonSampled(0.1, Gaussian(1.0)) * 3 + CovarianceRelease(2.0) + ShuffledEpoch(3, Gaussian(2.0))
    assert event.sampling == "Poisson sampling and shuffled epochs"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(-1.0), "noise_multiplier of Gaussian"),
        (lambda: Gaussian(float("nan")), "noise_multiplier of Gaussian"),
        (lambda: Gaussian("1"), "noise_multiplier of Gaussian"),
        (lambda: PoissonSampled(1.5, Gaussian(1.0)), "rate of PoissonSampled"),
        (lambda: FixedSizeSampled(10, 5, Gaussian(1.0)), "without replacement"),
        (lambda: NoisyVotes(1.0, "uniform"), "gaussian"),
        (lambda: IsotropicL2(1.0, 0), "dimension"),
        (lambda: GroupedL2(()), "rates"),
        (lambda: Gaussian(1.0) * -1, "cannot happen -1 times"),
        (lambda: PublishedClaim(1.0, 0.0, "", "x"), "who made it"),
        (lambda: Event.from_dict({"kind": "Telepathy"}), "knows no event"),
        (lambda: Event.from_dict({"kind": "Gaussian"}), "fields"),
        (lambda: Event.from_dict({"kind": "Gaussian", "noise_multiplier": 1.0, "x": 1}), "fields"),
    ],
)
def test_nonsense_is_refused_by_name(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_multiplying_by_a_fraction_is_no_event():
    with pytest.raises(TypeError):
        Gaussian(1.0) * 1.5
    with pytest.raises(TypeError):
        Gaussian(1.0) + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Repeated(Gaussian(1.0), -3), "count of Repeated must be a whole number of at least 1"),
        (lambda: Repeated(Gaussian(1.0), 0.5), "count of Repeated"),
        (lambda: PoissonSampled(0.1, 3), "event of PoissonSampled must be an event, and is 3"),
        (lambda: ShuffledEpoch(3, "a step"), "event of ShuffledEpoch must be an event"),
        (lambda: Composed((Gaussian(1.0), "a step")), "events of Composed must be an event"),
        (lambda: Gaussian(1.0).under("fine"), "A guarantee is Proved, Assumed or Claimed, and this is 'fine'"),
    ],
)
def test_nothing_can_be_put_into_an_event_that_would_not_be_counted(make, message):
    """A negative count took what had been spent off again, and an unknown guarantee was read as proved."""
    with pytest.raises(InputError, match=message):
        make()


def test_public_records_stand_in_the_ledger_and_cost_nothing():
    event = PublicRecords(5000, "test records") + Gaussian(2.0)
    assert tally(event) == ((Gaussian(2.0), 1),)
    with pytest.raises(InputError, match="need a name"):
        PublicRecords(3, "")
