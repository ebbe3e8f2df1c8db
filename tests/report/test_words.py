"""Every event that a ledger can hold has words, and the three standings differ by more than colour."""

import pytest

from privet.privacy import events as vocabulary
from privet.privacy.guarantees import Assumed, Claimed, Proved
from privet.report import words

STEP = vocabulary.Gaussian(1.1)
EXAMPLES = {
    "Gaussian": (STEP, "Gaussian noise of 1.1 C"),
    "Laplace": (vocabulary.Laplace(2.0), "Laplace noise of scale 2 C"),
    "IsotropicL2": (vocabulary.IsotropicL2(0.5, 1000), "isotropic L2 noise of scale 0.5 C in 1,000 dimensions"),
    "GroupedL2": (vocabulary.GroupedL2((1.0, 2.0)), "L2 noise in 2 groups of coordinates"),
    "NoisyVotes": (vocabulary.NoisyVotes(40.0), "teachers' votes, plus Gaussian noise of 40 votes"),
    "NoisyTopCount": (
        vocabulary.NoisyTopCount(150.0),
        "the largest count of teachers' votes, plus Gaussian noise of 150",
    ),
    "PublicRecords": (
        vocabulary.PublicRecords(5000, "test records"),
        "5,000 records without labels, stated to be public",
    ),
    "CovarianceRelease": (vocabulary.CovarianceRelease(7.0), "second moments"),
    "PoissonSampled": (vocabulary.PoissonSampled(0.01, STEP), "each record with probability 1\N{NO-BREAK SPACE}%"),
    "PaddedPoisson": (vocabulary.PaddedPoisson(0.01, 60_000, 700, STEP), "filled up with dummies to 700 rows"),
    "FixedSizeSampled": (vocabulary.FixedSizeSampled(600, 60_000, STEP), "from 600 of 60,000 records"),
    "ShuffledEpoch": (vocabulary.ShuffledEpoch(100, STEP), "each of 100 disjoint shuffled batches"),
    "PureEpsilon": (vocabulary.PureEpsilon(0.5), "a mechanism of pure epsilon 0.5"),
    "ApproximateDP": (vocabulary.ApproximateDP(1.0, 1e-6), "(1, 1e-06)-differentially private"),
    "PublishedClaim": (vocabulary.PublishedClaim(3.45, 1e-5, "a paper", "it leaks"), "a paper claims (3.45, 1e-05)"),
    "RandomizedResponse": (vocabulary.RandomizedResponse(0.25, 10), "a random one of 10 with probability 25"),
    "RepeatAndSelect": (
        vocabulary.RepeatAndSelect((STEP, vocabulary.Laplace(1.0)), 6.0),
        "the best of a secret, random number of trials (poisson with mean 6), each of which does this: a sum",
    ),
    "NotPrivate": (vocabulary.NotPrivate(), "without any protection"),
    "Repeated": (vocabulary.Repeated(STEP, 2), "twice: a sum"),
    "Composed": (vocabulary.Composed((STEP, vocabulary.Laplace(1.0))), "noise of 1.1 C; and a sum"),
    "Adaptive": (vocabulary.Adaptive(STEP, 8.0, 1.0), "1.1 C, chosen after earlier releases were seen"),
    "Under": (vocabulary.Under(STEP, Assumed("it holds")), "Gaussian noise of 1.1 C"),
    "Nothing": (vocabulary.Nothing(), "no use of the data"),
}


OWN = sorted(name for name, kind in vocabulary.Event._kinds.items() if kind.__module__.startswith("privet."))


@pytest.mark.parametrize("kind", OWN)
def test_every_event_of_the_vocabulary_has_words(kind):
    event, said = EXAMPLES[kind]
    assert type(event).__name__ == kind
    assert said in words.describe(event)


def test_the_three_standings_differ_in_kind_title_and_mark():
    shown = [words.standing(g) for g in (Proved(), Assumed("labels are public"), Claimed("a paper", "it leaks"))]
    for quality in ("kind", "title", "mark"):
        assert len({getattr(standing, quality) for standing in shown}) == 3
    assert "labels are public" in shown[1].explanation
    assert shown[2].explanation == "Claimed by a paper, but it leaks."


@pytest.mark.parametrize("guarantee", [Proved(), Assumed("labels are public"), Claimed("a paper", "it leaks")])
def test_a_vacuous_standing_keeps_its_kind_and_protects_nothing(guarantee):
    plain, vacuous = words.standing(guarantee), words.standing(guarantee, vacuous=True)
    assert vacuous.kind == plain.kind
    assert vacuous.title.startswith(plain.title) and vacuous.title.endswith("vacuous")
    assert vacuous.explanation.startswith(plain.explanation)
    assert not vacuous.protects
    assert plain.protects == (plain.kind != "claimed")
    assert vacuous.look == ("claimed" if plain.kind == "claimed" else "vacuous")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (words.times(1), "once"),
        (words.times(2500), "2,500 times"),
        (words.share(0.00123), "0.123\N{NO-BREAK SPACE}%"),
        (words.share_at_most(0.20046), "20.1\N{NO-BREAK SPACE}%"),
        (words.share_at_most(1.0), "100\N{NO-BREAK SPACE}%"),
        (words.number(1.10000), "1.1"),
        (words.odds(1e-5), "1 in 100,000"),
        (words.odds(3.3e-7), "3.3e-07"),
        (words.odds(0), "0"),
        (words.duration(42.4), "42 s"),
        (words.duration(125), "2 min 05 s"),
        (words.duration(7300), "2 h 01 min"),
    ],
)
def test_numbers_in_words(said, expected):
    assert said == expected
