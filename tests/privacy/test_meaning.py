"""What a statement means: its curve by the event, against integrals and dp-accounting; its words; its JSON."""

import json
import math

import numpy as np
import pytest
from scipy import integrate, stats

from privet.privacy import (
    ApproximateDP,
    Assumed,
    Claimed,
    CovarianceRelease,
    FixedSizeSampled,
    Gaussian,
    GroupedL2,
    Laplace,
    Nothing,
    NotPrivate,
    PaddedPoisson,
    PoissonSampled,
    Proved,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
    Relation,
    ShuffledEpoch,
    Spent,
    accountant_named,
)
from privet.privacy.meaning import GENERAL, STATEMENT_ALONE
from privet.privacy.pld.engine import deltas_of, epsilon_of
from privet.privacy.pld.pairs import SampledGroupPair, group_pairs

PLD = accountant_named("pld")
STEP = PoissonSampled(0.01, Gaussian(1.1))


def spent(event, delta=1e-5, relation="add-remove", accountant="pld"):
    return accountant_named(accountant).spent(event, delta, relation)


def test_gaussians_have_their_closed_form_mu_and_rho():
    found = spent(Gaussian(2.0) * 3 + CovarianceRelease(1.0)).meaning
    mu = math.sqrt(3 / 4 + 1)
    assert found.mu == pytest.approx(mu)
    assert found.rho == pytest.approx(mu**2 / 2)
    for rate in (1e-4, 0.01, 0.3):
        assert found.true_positive_rate(rate) == pytest.approx(stats.norm.sf(stats.norm.isf(rate) - mu), rel=2e-3)
        assert found.true_positive_rate(rate) >= stats.norm.sf(stats.norm.isf(rate) - mu) - 1e-12


@pytest.mark.parametrize(
    ("event", "rho"),
    [
        (STEP, None),
        (PureEpsilon(1.0) * 2 + Gaussian(1.0), 1.5),
        (GroupedL2((0.3, 0.4)), 0.08),
        (ApproximateDP(1.0, 1e-6), None),
        (Gaussian(0.0), None),
        (NotPrivate(), None),
        (Nothing(), 0.0),
    ],
)
def test_mu_and_rho_exist_only_where_they_are_proved(event, rho):
    found = spent(event).meaning
    assert found.rho == (None if rho is None else pytest.approx(rho))
    assert found.mu == (0.0 if event == Nothing() else None)


def test_the_sampled_gaussian_by_numerical_integration():
    """One step: the mixture (1-q) N(0,1) + q N(1/sigma,1) against N(0,1), in both directions."""
    rate, mu = 0.2, 1 / 0.8
    found = spent(PoissonSampled(rate, Gaussian(0.8))).meaning

    def mixture(x):
        return (1 - rate) * stats.norm.pdf(x) + rate * stats.norm.pdf(x, mu)

    # The most powerful tests are thresholds: for presence from above, for absence from below. None may be understated.
    for threshold in (-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0):
        above = integrate.quad(mixture, threshold, 14)[0]
        assert found.true_positive_rate(stats.norm.sf(threshold)) >= above - 1e-9
        assert found.true_positive_rate(1 - above) >= stats.norm.cdf(threshold) - 1e-9
    # Nor overstated: against the same construction with both hockey-stick divergences by quadrature.
    grid = np.linspace(0, 6, 121)
    deltas = np.array(
        [max(_divergence(mixture, stats.norm.pdf, e), _divergence(stats.norm.pdf, mixture, e)) for e in grid]
    )
    for fpr in (0.001, 0.01, 0.1, 0.5):
        exact = np.min(np.minimum(np.exp(grid) * fpr + deltas, 1 - np.exp(-grid) * (1 - deltas - fpr)))
        assert exact - 1e-3 <= found.true_positive_rate(fpr) <= exact + 1e-3
    assert deltas[0] - 1e-7 <= found.advantage <= deltas[0] * 1.002


def _divergence(p, q, epsilon):
    return integrate.quad(lambda x: max(0.0, p(x) - math.exp(epsilon) * q(x)), -9, 12, limit=200)[0]


def test_laplace_by_its_closed_form():
    epsilon = 1.3
    found = spent(Laplace(1 / epsilon)).meaning
    assert found.advantage == pytest.approx(1 - math.exp(-epsilon / 2), rel=2e-3)
    for threshold in (-0.5, 0.2, 0.7, 1.5):
        fpr, tpr = stats.laplace.sf(threshold), stats.laplace.sf(threshold, epsilon)
        assert tpr - 1e-9 <= found.true_positive_rate(fpr) <= tpr + 2e-3


def test_a_training_run_against_dp_accounting():
    from dp_accounting.pld import privacy_loss_distribution as oracle

    composed = oracle.from_gaussian_mechanism(1.1, sampling_prob=0.01, value_discretization_interval=1e-3)
    composed = composed.self_compose(1500)
    found = spent(STEP * 1500).meaning
    grid = np.linspace(0, 6, 601)
    deltas = np.array([composed.get_delta_for_epsilon(float(e)) for e in grid])
    assert found.advantage == pytest.approx(deltas[0], rel=5e-3)
    for fpr in (1e-4, 1e-3, 0.01, 0.1):
        theirs = min(
            1.0, float(np.min(np.minimum(np.exp(grid) * fpr + deltas, 1 - np.exp(-grid) * (1 - deltas - fpr))))
        )
        assert found.true_positive_rate(fpr) == pytest.approx(theirs, rel=5e-3)


def test_a_statement_without_an_event_has_the_curve_of_its_two_numbers():
    alone = Spent(1.0, 1e-5, Relation.ADD_REMOVE, "record", "", "PLD", Proved())
    found = alone.meaning
    assert found.source == STATEMENT_ALONE
    assert found.advantage == pytest.approx((math.e - 1 + 2e-5) / (math.e + 1))
    assert (found.mu, found.rho) == (None, None)
    assert found.group(2).source == GENERAL


def test_a_claim_gives_no_more_than_its_two_numbers():
    claim = STEP.under(Claimed("a paper", "it leaks")) * 100
    found = spent(claim).meaning
    assert found.source == STATEMENT_ALONE
    assert (found.mu, found.rho) == (None, None)
    assert found.to_dict()["guarantee"] == "claimed"
    assumed = spent(STEP.under(Assumed("labels are public")) * 100).meaning
    assert assumed.source != STATEMENT_ALONE
    assert assumed.to_dict()["assumptions"] == ["labels are public"]


def test_the_curve_is_never_above_that_of_the_statement_of_another_accountant():
    statement = spent(STEP * 100, accountant="rdp")
    found = statement.meaning
    alone = Spent(statement.epsilon, 1e-5, Relation.ADD_REMOVE, "record", "", "RDP", Proved()).meaning
    assert found.true_positive_rate(0.01) < alone.true_positive_rate(0.01)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_sampled_group_against_dp_accounting(size):
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    weights = stats.binom.pmf(range(size + 1), size, 0.01)
    oracle = PLDAccountant(value_discretization_interval=1e-3)
    oracle.compose(dp_event.MixtureOfGaussiansDpEvent(1.1, list(range(size + 1)), list(weights)), 1500)
    theirs = oracle.get_epsilon(1e-5)
    ours = epsilon_of(tuple(group_pairs(STEP * 1500, size, Relation.ADD_REMOVE)), 1e-5)
    assert theirs * (1 - 1e-3) <= ours <= theirs * (1 + 1e-3)


@pytest.mark.parametrize(("mu", "rate", "size"), [(0.9, 0.01, 4), (3.0, 0.3, 3), (0.05, 1e-4, 10), (5.0, 0.5, 6)])
def test_the_cells_of_a_sampled_group_hold_the_masses_of_their_losses(mu, rate, size):
    pair = SampledGroupPair(mu, rate, size)
    span = pair.span(1e-12)
    edges = np.linspace(span.low - 0.01, span.high, 200)  # a grid starts below the span
    p, q = pair.cells(edges)
    assert p.sum() == pytest.approx(1)
    assert q.sum() == pytest.approx(1)
    assert p[-1] <= 1.001e-12 and q[0] <= 1.001e-12
    inside = (q[1:-1] > 1e-280) & (p[1:-1] > 1e-280)
    losses = np.log(p[1:-1][inside] / q[1:-1][inside])
    assert (losses >= edges[:-1][inside] - 1e-6).all()
    assert (losses <= edges[1:][inside] + 1e-6).all()


@pytest.mark.parametrize(
    ("event", "relation", "exact"),
    [
        (Gaussian(3.0) * 2, "add-remove", Gaussian(1.0) * 2),
        (Gaussian(3.0) * 2, "replace-one", Gaussian(1.0) * 2),
        (Laplace(6.0), "add-remove", Laplace(2.0)),
        (PureEpsilon(0.2), "add-remove", PureEpsilon(0.6)),
        (GroupedL2((0.1, 0.2)), "add-remove", GroupedL2((0.3, 0.6))),
        (PoissonSampled(1.0, Gaussian(3.0) + Gaussian(6.0)), "add-remove", Gaussian(1.0) + Gaussian(2.0)),
    ],
)
def test_a_group_without_sampling_has_the_sum_of_its_sensitivities(event, relation, exact):
    found = spent(event, relation=relation).meaning.group(3)
    assert found.source == "the run itself, for 3 records at once"
    assert found.epsilon == pytest.approx(PLD.epsilon(exact, 1e-5, relation), rel=2e-3)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (FixedSizeSampled(10, 1000, Gaussian(2.0)) * 50, "replace-one"),
        (ShuffledEpoch(10, Gaussian(4.0)), "replace-one"),
        (PoissonSampled(0.01, Gaussian(2.0)) * 50, "replace-one"),
        (PoissonSampled(0.1, PureEpsilon(0.5)), "add-remove"),
        (ApproximateDP(0.5, 1e-7), "add-remove"),
        (PublishedClaim(0.5, 1e-7, "a paper", "it leaks"), "add-remove"),
    ],
)
def test_where_no_pair_is_known_the_general_theorem_bounds_a_group(event, relation):
    statement = spent(event, relation=relation)
    found = statement.meaning.group(2)
    assert found.source == GENERAL
    assert found.epsilon >= statement.epsilon
    assert found.delta >= statement.delta
    assert found.curve.advantage >= statement.meaning.advantage


def test_the_general_theorem_is_never_below_the_run_s_own_group():
    """The chain of neighbors holds for every mechanism, so the exact pair must lie within it."""
    event = PoissonSampled(0.05, Gaussian(1.5)) * 40
    general = spent(event).meaning.curve.group(3)
    pairs = tuple(group_pairs(event, 3, Relation.ADD_REMOVE))
    for epsilon in (0.5, 1.0, 2.0):
        bound = max(general.true_positive_rate(a) - math.exp(epsilon) * a for a in np.geomspace(1e-9, 1, 400))
        assert np.maximum(*deltas_of(pairs, np.array([epsilon])))[0] <= bound * 1.01 + 1e-9


def test_padding_is_counted_for_a_group_too():
    padded = PaddedPoisson(0.01, 60_000, 640, Gaussian(1.1))
    found = epsilon_of(tuple(group_pairs(padded * 10, 2, Relation.ADD_REMOVE)), 0.9)
    assert found >= 0
    assert epsilon_of(tuple(group_pairs(padded * 10, 2, Relation.ADD_REMOVE)), 1e-5) == math.inf


def test_responses_of_a_group_are_so_many_responses():
    event = RandomizedResponse(0.5, 2)
    found = spent(event, relation="replace-one").meaning.group(3)
    assert found.epsilon <= 3 * math.log(3) + 1e-6


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (Gaussian(0.0129), "PLD; proved, but vacuous: it promises nothing in practice)"),
        (
            Gaussian(0.0129).under(Assumed("labels are public")),
            "assuming labels are public, but vacuous: even then it promises nothing in practice)",
        ),
        (
            PublishedClaim(3000.0, 1e-6, "a paper", "it leaks"),
            "only claimed by a paper: it leaks; and vacuous: even if the claim held, it would promise nothing in practice)",
        ),
    ],
)
def test_a_vacuous_statement_says_so_beside_what_stands_behind_it(event, said):
    statement = spent(event)
    assert statement.vacuous
    assert str(statement).endswith(said)
    assert statement.to_dict()["vacuous"] is True


@pytest.mark.parametrize("event", [STEP * 1500, PureEpsilon(10.0), Gaussian(0.25), ApproximateDP(8.0, 1e-6), Nothing()])
def test_what_is_used_in_practice_is_not_vacuous(event):
    statement = spent(event)
    assert not statement.vacuous
    assert "vacuous" not in str(statement)
    assert statement.to_dict()["vacuous"] is False


@pytest.mark.parametrize("event", [NotPrivate(), Gaussian(0.0)])
def test_no_protection_is_vacuous_and_keeps_its_own_words(event):
    statement = spent(event)
    assert statement.vacuous
    assert "nothing is protected" in str(statement)
    assert statement.meaning.advantage == 1
    assert statement.meaning.posterior(0.01) == 1


@pytest.mark.parametrize("event", [STEP * 9, NotPrivate(), Nothing(), Gaussian(0.01), PureEpsilon(3.0)])
@pytest.mark.parametrize("delta", [1e-5, 0.6])
def test_every_meaning_is_json(event, delta):
    plain = json.loads(json.dumps(spent(event, delta).meaning.to_dict(), allow_nan=False))
    assert plain["guarantee"] == "proved"
    assert 0 <= plain["advantage"] <= 1
    assert list(plain["true_positive_rates"]) == ["0.001", "0.01", "0.1"]
    assert set(plain["posteriors"]["from_prior"]) == {"0.01", "0.1", "0.5", "0.9"}


def test_statements_are_compared_by_what_they_say():
    assert spent(Gaussian(2.0)) == Spent(**{**spent(Gaussian(2.0)).__dict__, "event": None})


@pytest.mark.parametrize("count", [1, 2])
def test_a_delta_below_the_chance_of_an_infinite_loss_has_no_finite_epsilon(count):
    event = ApproximateDP(1.0, 1e-3) * count
    assert PLD.epsilon(event, 1e-5) == math.inf
    assert PLD.epsilon(event, 0.01) <= count + 1e-9
