"""What may stand inside a sample: every kind of event is listed or refused, and small cases are counted out."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import laplace, norm

from privet.privacy import (
    Adaptive,
    ApproximateDP,
    Assumed,
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
    PublicRecords,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
    Relation,
    RepeatAndSelect,
    ShuffledEpoch,
    UnsupportedEventError,
    accountant_named,
    accountant_names,
)
from privet.privacy.events import Composed, Repeated, Under

PLD = accountant_named("pld")
ONE_OF_EACH = {
    "Gaussian": Gaussian(1.0),
    "Laplace": Laplace(1.0),
    "IsotropicL2": IsotropicL2(1.0, 3),
    "GroupedL2": GroupedL2((0.5, 0.3)),
    "CovarianceRelease": CovarianceRelease(2.0),
    "NoisyVotes": NoisyVotes(3.0),
    "NoisyTopCount": NoisyTopCount(3.0),
    "PureEpsilon": PureEpsilon(0.5),
    "ApproximateDP": ApproximateDP(0.5, 1e-7),
    "PublishedClaim": PublishedClaim(0.5, 1e-7, "a paper", "it does not hold"),
    "RandomizedResponse": RandomizedResponse(0.5, 2),
    "PoissonSampled": PoissonSampled(0.2, Gaussian(1.0)),
    "PaddedPoisson": PaddedPoisson(0.2, 100, 90, Gaussian(1.0)),
    "FixedSizeSampled": FixedSizeSampled(2, 10, Gaussian(1.0)),
    "ShuffledEpoch": ShuffledEpoch(10, Gaussian(1.0)),
    "RepeatAndSelect": RepeatAndSelect((Gaussian(3.0),), 4.0, 1.0),
    "NotPrivate": NotPrivate(),
    "PublicRecords": PublicRecords(10, "test records"),
    "Nothing": Nothing(),
    "Repeated": Repeated(RandomizedResponse(0.5, 2), 2),
    "Composed": Composed((Gaussian(1.0), RandomizedResponse(0.5, 2))),
    "Adaptive": Adaptive(Gaussian(1.0), 4.0, 1.0),
    "Under": Under(RandomizedResponse(0.5, 2), Assumed("something")),
}
LISTED = {
    "Gaussian",
    "Laplace",
    "IsotropicL2",
    "GroupedL2",
    "CovarianceRelease",
    "NoisyVotes",
    "NoisyTopCount",
    "PureEpsilon",
    "ApproximateDP",
    "PublishedClaim",
    "Nothing",
}
ANSWERS = {"RandomizedResponse", "Repeated", "Under"}
"""These are answers of each record here; with a Gaussian beside them, `Composed` has no bound for another reason."""
SAMPLES = {
    PoissonSampled: (lambda inner: PoissonSampled(0.1, inner), LISTED),
    PaddedPoisson: (lambda inner: PaddedPoisson(0.1, 100, 90, inner), LISTED),
    FixedSizeSampled: (lambda inner: FixedSizeSampled(10, 100, inner), LISTED | ANSWERS),
    ShuffledEpoch: (lambda inner: ShuffledEpoch(10, inner), LISTED | ANSWERS),
}


def test_every_kind_of_event_is_decided():
    """A new event has to be added here, with what it may stand in."""
    own = {name for name, kind in Event._kinds.items() if kind.__module__.startswith("privet.")}
    assert own == set(ONE_OF_EACH)


@pytest.mark.parametrize("name", accountant_names())
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda kind: kind.__name__)
def test_only_what_is_listed_is_bounded_inside_a_sample(sample, name):
    make, listed = SAMPLES[sample]
    accountant = accountant_named(name)
    for kind, relation in itertools.product(ONE_OF_EACH, Relation):
        event = make(ONE_OF_EACH[kind])
        if kind not in listed:
            assert not accountant.supports(event, relation), (kind, relation)
            with pytest.raises(UnsupportedEventError, match=sample.__name__):
                accountant.epsilon(event, 1e-5, relation)
        elif name == "pld":
            covered = relation is Relation.REPLACE_ONE or sample in (PoissonSampled, PaddedPoisson)
            assert accountant.supports(event, relation) == covered, (kind, relation)


def test_an_event_of_somebody_else_is_refused_inside_a_sample():
    class Telepathy(Event):
        pass

    try:
        for make, _ in SAMPLES.values():
            with pytest.raises(UnsupportedEventError, match="no theorem is listed"):
                PLD.epsilon(make(Telepathy()), 1e-5, "replace-one")
    finally:
        del Event._kinds["Telepathy"]


def hockey_stick(p, q, epsilon):
    return sum(max(0.0, p[x] - math.exp(epsilon) * q.get(x, 0.0)) for x in p)


def answers(records, noise):
    """The distribution of one randomized answer of each record, one of two values."""
    out = {(): 1.0}
    for record in records:
        right = 1 - noise / 2
        out = {
            (*before, value): chance * (right if value == record else 1 - right)
            for before, chance in out.items()
            for value in (0, 1)
        }
    return out


def mixed(samples, noise):
    out: dict = {}
    for chance, records in samples:
        for answer, share in answers(records, noise).items():
            # The order tells nothing: what is published is how often each value was answered.
            key = (answer.count(0), answer.count(1))
            out[key] = out.get(key, 0.0) + chance * share
    return out


def poisson(records, rate):
    for drawn in itertools.product((False, True), repeat=len(records)):
        chance = math.prod(rate if one else 1 - rate for one in drawn)
        yield chance, [record for record, one in zip(records, drawn, strict=True) if one]


def fixed(records, size):
    subsets = list(itertools.combinations(records, size))
    return [(1 / len(subsets), list(subset)) for subset in subsets]


def test_answers_of_a_poisson_sample_lose_more_than_amplification_says():
    """The record alone: whoever sees an answer knows that it was drawn."""
    rate, noise = 0.01, 0.5
    one, other = mixed(poisson([1], rate), noise), mixed(poisson([0], rate), noise)
    truth = max(math.log(one[key] / other[key]) for key in one)
    assert truth == pytest.approx(math.log(3))
    assert math.log1p(rate * math.expm1(math.log(3))) < 0.02
    with pytest.raises(UnsupportedEventError, match="the number of answers shows how many records were drawn"):
        PLD.epsilon(PoissonSampled(rate, RandomizedResponse(noise, 2)) * 100, 1e-5, "replace-one")


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_answers_of_a_sample_of_fixed_size_by_counting(epsilon):
    noise, worst = 0.5, 0.0
    for rest in itertools.product((0, 1), repeat=4):
        one, other = (mixed(fixed([record, *rest], 2), noise) for record in (0, 1))
        worst = max(worst, hockey_stick(one, other, epsilon), hockey_stick(other, one, epsilon))
    stated = PLD.delta(FixedSizeSampled(2, 5, RandomizedResponse(noise, 2)), epsilon, "replace-one")
    assert worst <= stated * (1 + 1e-9)
    assert stated <= 0.4 * PLD.delta(RandomizedResponse(noise, 2), 0.0, "replace-one") * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.7])
@pytest.mark.parametrize(("event", "density"), [(Gaussian(0.8), norm(scale=0.8)), (Laplace(0.8), laplace(scale=0.8))])
def test_sums_of_a_poisson_sample_by_integration(event, density, epsilon):
    """Contributions of a removed and of a replaced record, among others that were drawn or not."""
    rate = 0.3
    rest = list(poisson([0.5, -1.0], rate))

    def pdf(x, contribution):
        return sum(
            chance
            * ((1 - rate) * density.pdf(x - sum(drawn)) + rate * density.pdf(x - sum(drawn) - (contribution or 0.0)))
            for chance, drawn in rest
        )

    places = np.linspace(-14, 14, 28 * 400 + 1)

    def divergence(one, other):
        return float(np.maximum(0.0, pdf(places, one) - math.exp(epsilon) * pdf(places, other)).sum() / 400)

    sampled = PoissonSampled(rate, event)
    removed, added = PLD.directions(sampled, [epsilon])
    assert divergence(1.0, None) <= removed[0] + 1e-5
    assert divergence(None, 1.0) <= added[0] + 1e-5
    replaced = PLD.delta(sampled, epsilon, "replace-one")
    assert max(divergence(1.0, -1.0), divergence(1.0, 0.0), divergence(0.0, 1.0)) <= replaced + 1e-5
