"""The bounds against closed forms, against brute force, and on scores that hold nothing."""

import math

import numpy as np
import pytest
from scipy import stats

from privet.audit import Claim, ClaimedForm, ClopperPearson, Counts, GaussianTradeOff, OneRun, SampledStep, ceiling
from privet.audit.result import audit_scores, choose_threshold
from privet.errors import InputError, PrivetError
from privet.privacy import Gaussian, PoissonSampled, PureEpsilon, accountant_named
from privet.privacy.events import composed


def test_the_ceilings_are_the_known_ones():
    one_run = OneRun(1e-5, 0.95)
    assert one_run.ceiling(1000, 1000) == pytest.approx(5.78, abs=0.005)
    assert one_run.ceiling(100, 1000) == pytest.approx(3.47, abs=0.005)
    assert one_run.ceiling(20, 1000) == pytest.approx(1.79, abs=0.005)
    assert ceiling(ClopperPearson(1e-5, 0.95), 1000, 1000) == pytest.approx(5.60, abs=0.005)


def test_clopper_pearson_is_its_formula_in_both_directions():
    counts = Counts(caught=90, members=200, accused=3, others=300)
    fnr = stats.beta.ppf(0.975, 111, 90)
    fpr = stats.beta.ppf(0.975, 4, 297)
    assert ClopperPearson(0.01, 0.95)(counts) == pytest.approx(math.log((1 - fnr - 0.01) / fpr))
    mirrored = Counts(caught=297, members=300, accused=110, others=200)
    assert ClopperPearson(0.01, 0.95)(mirrored) == pytest.approx(ClopperPearson(0.01, 0.95)(counts))


def test_without_delta_the_one_run_bound_is_a_binomial_tail():
    # With q the probability of a right guess, P[Bin(g, q) >= c] = level; the Clopper-Pearson lower bound of q.
    q = stats.beta.ppf(0.05, 80, 21)
    assert OneRun(0.0, 0.95)(80, 100, 500) == pytest.approx(math.log(q / (1 - q)))
    assert OneRun(0.0, 0.95)(100, 100, 100) == pytest.approx(math.log(0.05**0.01 / (1 - 0.05**0.01)))


def test_the_p_value_of_one_run_is_the_written_out_formula():
    epsilon, correct, guesses, canaries, delta = 0.7, 30, 40, 90, 1e-3
    q = 1 / (1 + math.exp(-epsilon))

    def tail(v: int) -> float:
        return sum(math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(max(v, 0), guesses + 1))

    beta = tail(correct)
    gain = max((tail(correct - i) - beta) / i for i in range(1, correct + 1))
    truth = beta + 2 * canaries * delta * gain
    assert OneRun(delta, 0.95).p_value(epsilon, correct, guesses, canaries) == pytest.approx(truth)


def test_the_gaussian_bound_inverts_the_trade_off():
    many = 10**12  # so many draws that the rates are exact
    fpr, mu = 0.2, 1.3
    for rate in (1.0, 0.25):
        tpr = (1 - rate) * fpr + rate * stats.norm.cdf(stats.norm.ppf(fpr) + mu)
        counts = Counts(round(tpr * many), many, round(fpr * many), many)
        event = PoissonSampled(rate, Gaussian(1 / mu)) if rate < 1 else Gaussian(1 / mu)
        truth = accountant_named("pld").epsilon(event, 1e-5)
        found = GaussianTradeOff(1e-5, 0.99, rate)(counts)
        assert 0.999 * truth < found <= truth


MANY = 10**12
"""With so many draws the rates are exact."""


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_the_rate_and_the_step_apart_give_the_sampled_epsilon(rate):
    mu, cut = 1.3, 0.4
    counts = Counts(round(stats.norm.sf(cut - mu) * MANY), MANY, round(stats.norm.sf(cut) * MANY), MANY)
    truth = accountant_named("pld").epsilon(PoissonSampled(rate, Gaussian(1 / mu)), 1e-5)
    found = SampledStep.drawn(round(rate * MANY), MANY, 1e-5, 0.99, gaussian=True)(counts)
    assert 0.99 * truth < found <= truth
    # Pure epsilon by counting: ln(1 - q + q e^epsilon).
    keep = math.e / (1 + math.e)
    counts = Counts(round(keep * MANY), MANY, round((1 - keep) * MANY), MANY)
    found = SampledStep.drawn(round(rate * MANY), MANY, 0.0, 0.99, gaussian=False)(counts)
    assert found == pytest.approx(math.log(1 - rate + rate * math.e), rel=1e-3)


def test_a_record_that_is_never_drawn_shows_nothing():
    counts = Counts(100, 100, 0, 100)
    for gaussian in (True, False):
        assert SampledStep.drawn(0, 100, 1e-5, 0.99, gaussian)(counts) == 0


def test_the_claimed_form_inverts_the_profile():
    mu, cut = 1.5, 0.7
    counts = Counts(round(stats.norm.sf(cut - mu) * MANY), MANY, round(stats.norm.sf(cut) * MANY), MANY)
    truth = accountant_named("pld").epsilon(Gaussian(1 / mu), 1e-5)
    for sigma in (0.5, 1.0, 3.0):  # whatever is claimed, the noise that was seen is the same: mu = sqrt(4) / sigma_seen
        found = ClaimedForm(Gaussian(sigma) * 4, 1e-5)(counts)
        assert 0.97 * truth < found <= truth
    assert ClaimedForm(Gaussian(1.0), 1e-5)(Counts(50, 100, 50, 100)) == 0


def test_the_claimed_form_refutes_what_its_profile_does_not_allow():
    event = PoissonSampled(0.2, Gaussian(1.0)) * 10
    claim = accountant_named("pld").epsilon(event, 1e-5)
    delta = float(accountant_named("pld").deltas(event, [0.0])[0])  # the largest TPR - FPR that is allowed
    fpr = 0.3
    allowed, refuted = (
        Counts(round((fpr + share * delta) * MANY), MANY, round(fpr * MANY), MANY) for share in (0.7, 1.2)
    )
    assert ClaimedForm(event, 1e-5)(allowed) <= claim < ClaimedForm(event, 1e-5)(refuted)
    with pytest.raises(InputError, match="Gaussian events"):
        ClaimedForm(PureEpsilon(1.0), 1e-5)(allowed)


def test_a_long_schedule_is_bounded_from_below_too():
    schedule = [PoissonSampled(0.1, Gaussian(1 + 0.02 * n)) for n in range(30)]
    event = composed(*schedule)
    claim, deltas = (getattr(accountant_named("pld"), name) for name in ("epsilon", "deltas"))
    fpr = 0.3
    counts = Counts(round((fpr + float(deltas(event, [0.0])[0])) * MANY), MANY, round(fpr * MANY), MANY)
    assert ClaimedForm(event, 1e-5)(counts) <= claim(event, 1e-5)


def test_randomised_response_is_found_to_be_what_it_is():
    # Truth kept with probability e/(1+e): epsilon 1, by both kinds of bound, in nearly all of what the draws allow.
    generator = np.random.default_rng(0)
    keep, n = math.e / (1 + math.e), 200_000
    inside, outside = (generator.random(n) < p for p in (keep, 1 - keep))
    bound = ClopperPearson(0.0, 0.99)(Counts(int(inside.sum()), n, int(outside.sum()), n))
    assert 0.95 < bound < 1
    assert 0.95 < OneRun(0.0, 0.99)(int(inside.sum()), n, n) < 1.0


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_no_bound_on_scores_without_signal_beyond_the_stated_rate(confidence):
    # 1,000 audits: at most 1 - confidence of them, and four standard errors of that.
    generator, audits = np.random.default_rng(1), 1000
    claim = Claim.of(0.0, 1e-5)
    above = {"two samples": 0, "Gaussian": 0, "one run": 0}
    one_run = OneRun(1e-5, confidence)
    for _ in range(audits):
        scores = generator.normal(size=(2, 400))
        for name, bound in (
            ("two samples", ClopperPearson(1e-5, confidence)),
            ("Gaussian", GaussianTradeOff(1e-5, confidence)),
        ):
            above[name] += audit_scores(*scores, claim=claim, bound=bound, name="null").refuted
        above["one run"] += one_run(generator.binomial(200, 0.5), 200, 400) > 0
    level = 1 - confidence
    allowed = audits * level + 4 * math.sqrt(audits * level * confidence)
    assert all(count <= allowed for count in above.values()), above


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_the_bound_stays_below_the_truth_at_the_stated_rate(sigma):
    # A Gaussian release at its own epsilon: 200 audits, of which 1 % may exceed it, and four standard errors.
    generator = np.random.default_rng(2)
    refuted = {"counted": 0, "Gaussian": 0}
    for _ in range(200):
        members, others = generator.normal(1, sigma, 2000), generator.normal(0, sigma, 2000)
        for name, bound in (("counted", ClopperPearson(0.05)), ("Gaussian", GaussianTradeOff(0.05))):
            claim = Claim.of(Gaussian(sigma), 0.05)
            refuted[name] += audit_scores(members, others, claim=claim, bound=bound, name="").refuted
    assert max(refuted.values()) <= 2 + 4 * math.sqrt(2), refuted


def test_the_threshold_is_chosen_on_other_draws_than_are_counted():
    members, others = np.r_[np.ones(25), np.zeros(75)], np.zeros(100)
    found = audit_scores(members, others, claim=Claim.of(1.0, 0.0), bound=ClopperPearson(0.0), name="")
    assert found.lower_bound == 0  # what separates the first quarter says nothing about the rest
    assert "75 draws" in found.evidence
    assert choose_threshold(np.arange(5.0) + 10, np.arange(5.0), ClopperPearson(0.0)) == 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Counts(3, 2, 0, 1), "not the counts"),
        (lambda: ClopperPearson(1.5), "delta"),
        (lambda: ClopperPearson(0.1, 95), "confidence"),
        (lambda: GaussianTradeOff(0.1, 0.9, 0.0), "sampling rate"),
        (lambda: OneRun(0.0)(5, 4, 10), "no counts"),
        (lambda: audit_scores([[1.0]], [1.0], claim=Claim.of(1, 0.0), bound=ClopperPearson(0.0), name=""), "one row"),
        (
            lambda: audit_scores([1.0], [1.0], claim=Claim.of(1, 0.0), bound=ClopperPearson(0.0), name=""),
            "more draws",
        ),
    ],
)
def test_what_cannot_be_bounded_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_scores_that_are_not_a_number_are_an_error():
    scores = np.r_[np.zeros(50), math.nan]
    with pytest.raises(PrivetError, match="1 scores are not a number"):
        audit_scores(scores, scores, claim=Claim.of(1, 0.0), bound=ClopperPearson(0.0), name="")
