"""Filters: what holds when parameters depend on earlier releases, against the worst adversary that can be computed."""

import math
from functools import cache

import numpy as np
import pytest

from privet.errors import InputError
from privet.privacy import (
    Adaptive,
    Assumed,
    Budget,
    Filter,
    Gaussian,
    Ledger,
    NoisyTopCount,
    NoisyVotes,
    Nothing,
    PaddedPoisson,
    PoissonSampled,
    PureEpsilon,
    UnsupportedEventError,
    accountant_named,
)
from privet.privacy.accountants.rdp import divergences, gdp_delta
from privet.privacy.guarantees import Relation

PLD = accountant_named("pld")


def responses(order, choices):
    return {epsilon: divergences(PureEpsilon(epsilon), Relation.ADD_REMOVE, (order,))[0] for epsilon in choices}


def worst_adversary(epsilon, allowed):
    """The largest delta over all ways to choose the next randomized response, or to stop, by what was answered.

    `allowed` says which responses may follow those so far.
    """

    @cache
    def value(loss, used):
        best = max(0.0, -math.expm1(min(0.0, epsilon - loss)))
        for choice in allowed(used):
            right = 1 / (1 + math.exp(-choice))
            more = tuple(sorted((*used, choice)))
            up, down = value(round(loss + choice, 9), more), value(round(loss - choice, 9), more)
            best = max(best, right * up + (1 - right) * down)
        return best

    return value(0.0, ())


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_the_worst_adversary_stays_within_the_renyi_filter(epsilon):
    order, limit = 4.0, 0.9
    costs = responses(order, (0.2, 0.4, 0.8))

    def allowed(used):
        total = sum(costs[one] for one in used)
        return [choice for choice in costs if total + costs[choice] <= limit]

    truth = worst_adversary(epsilon, allowed)
    event = Adaptive(PureEpsilon(0.4), order, limit)
    assert 0 < truth <= PLD.delta(event, epsilon)
    assert PLD.spent(event, 1e-5).accountant == "Renyi filter of order 4"


def test_composing_what_happened_to_be_run_is_no_bound_for_an_adversary():
    """Every run that may happen costs at most delta by the PLD, and the adversary who chooses among them gets more."""
    epsilon, choices = 0.1, (0.5, 1.0)

    @cache
    def cost(used):
        return PLD.delta(sum((PureEpsilon(one) for one in used), start=Nothing()), epsilon)

    limit = cost((0.5, 0.5, 1.0))

    def allowed(used):
        return [one for one in choices if len(used) < 6 and cost(tuple(sorted((*used, one)))) <= limit * (1 + 1e-9)]

    assert worst_adversary(epsilon, allowed) > 1.05 * limit


def test_an_adaptive_gaussian_adversary_stays_within_the_gaussian_filter():
    """Two releases; the second one's noise, or none at all, is chosen by the first: by integration."""
    limit, epsilon = 1.5, 0.8
    first = np.linspace(-9, 10, 20_001)
    density = np.exp(-((first - 0.7) ** 2) / 2) / math.sqrt(2 * math.pi)
    loss = 0.7 * first - 0.7**2 / 2
    rest = math.sqrt(limit**2 - 0.7**2)

    def then(mu, left):
        """delta of a Gaussian of that mu at any epsilon, negative ones too."""
        if mu == 0:
            return max(0.0, -math.expm1(min(0.0, left)))
        return gdp_delta(mu, left) if left >= 0 else -math.expm1(left) + math.exp(left) * gdp_delta(mu, -left)

    worst = np.array([max(then(mu, epsilon - one) for mu in (0.0, rest / 2, rest)) for one in loss[::20]])
    truth = float((worst * density[::20]).sum() * (first[20] - first[0]))
    assert 0 < truth <= PLD.delta(Adaptive(Gaussian(2.0), None, limit), epsilon) * (1 + 1e-6)
    assert truth > 0.99 * gdp_delta(limit, epsilon)


def test_after_a_ledger_the_rest_goes_through_a_filter():
    ledger = Ledger()
    ledger.record(PoissonSampled(0.02, Gaussian(2.0)), 1500)
    whole = Budget(3.0, 1e-5)
    rest, planned = whole.after(ledger), whole.after(ledger, fixed_beforehand=True)
    assert rest.adaptive
    assert not planned.adaptive
    sigma = rest.noise_multiplier(0.01, 1000)
    assert sigma > planned.noise_multiplier(0.01, 1000)
    step = rest.chosen(PoissonSampled(0.01, Gaussian(sigma)))
    assert planned.chosen(Gaussian(1.0)) == Gaussian(1.0)
    ledger.record(step, 1000)
    spent = ledger.spent(1e-5)
    assert spent.epsilon == pytest.approx(3.0, rel=1e-9)
    assert spent.accountant.startswith("Renyi filter of order")
    assert ledger.spent(1e-6).epsilon > 3.0
    # When to stop was chosen too: what is stated is the limit, however little was used.
    early = Ledger()
    early.record(step)
    assert early.spent(1e-5).epsilon == pytest.approx(3.0, rel=1e-9)
    ledger.record(step, 1000)
    with pytest.raises(UnsupportedEventError, match="did not keep to the filter"):
        ledger.spent(1e-5)


def test_a_ledger_without_releases_leaves_the_plan_as_it_was():
    assert not Budget(3.0, 1e-5).after(Ledger()).adaptive
    assert not Budget(3.0, 1e-5).after(Gaussian(3.0)).adaptive


def test_gaussian_releases_chosen_one_after_another_cost_what_they_cost_together():
    """The votes of PATE: how many queries are answered depends on a release."""
    ledger = Ledger()
    ledger.record(NoisyTopCount(100.0), 50)
    rest = Budget(3.0, 1e-5, accountant="gdp").after(ledger)
    sigma = rest.least(lambda noise: NoisyVotes(noise) * 30)
    ledger.record(rest.chosen(NoisyVotes(sigma)), 30)
    plain = NoisyTopCount(100.0) * 50 + NoisyVotes(sigma) * 30
    assert ledger.spent(1e-5).epsilon == pytest.approx(PLD.epsilon(plain, 1e-5), rel=2e-3)
    assert ledger.spent(1e-5).accountant == "Gaussian filter"


def test_what_a_filter_does_not_cover_is_refused():
    step = Adaptive(PoissonSampled(0.1, Gaussian(1.0)), 4.0, 1.0)
    with pytest.raises(UnsupportedEventError, match="different filters"):
        PLD.epsilon(step + Adaptive(Gaussian(2.0), 5.0, 1.0), 1e-5)
    with pytest.raises(UnsupportedEventError, match="Gaussian filter is for Gaussian releases"):
        PLD.epsilon(Adaptive(PoissonSampled(0.1, Gaussian(1.0)), None, 1.0), 1e-5)
    with pytest.raises(UnsupportedEventError, match="abort"):
        PLD.epsilon(Adaptive(PaddedPoisson(0.1, 100, 50, Gaussian(3.0)), 4.0, 1.0), 1e-5)
    with pytest.raises(UnsupportedEventError, match="was kept for add-remove"):
        PLD.epsilon(step, 1e-5, "replace-one")
    with pytest.raises(InputError, match="order of Adaptive"):
        Adaptive(Gaussian(1.0), 0.5, 1.0)
    assumed = Adaptive(Gaussian(4.0), 4.0, 1.0) + Gaussian(5.0).under(Assumed("labels are public"))
    assert PLD.spent(assumed, 1e-5).guarantee == Assumed("labels are public")


def test_the_filter_of_a_budget_depends_on_the_budget_alone():
    one = Filter.for_budget(2.0, 1e-6)
    assert (one.order, one.limit) == (Filter.for_budget(2.0, 1e-6).order, Filter.for_budget(2.0, 1e-6).limit)
    event = Adaptive(Gaussian(100.0), one.order, one.limit)
    assert PLD.epsilon(event, 1e-6) == pytest.approx(2.0, rel=1e-9)
    assert PLD.delta(event, 2.0) == pytest.approx(1e-6, rel=1e-6)


def test_what_a_filtered_run_means_follows_from_the_limit_and_not_from_what_was_used():
    """It was computed by GDP from what was used: an advantage of 0.16 where the filter's limit allows 0.6 and more."""
    ledger = Ledger()
    ledger.record(Gaussian(10.0))
    budget = Budget(3.0, 1e-5, accountant="gdp").after(ledger)
    event = budget.chosen(Gaussian(2.5))
    ledger.record(event)
    meaning = ledger.spent(1e-5).meaning
    assert "Gaussian filter" in meaning.source
    assert meaning.advantage >= gdp_delta(event.limit, 0.0)
    assert meaning.advantage == pytest.approx(gdp_delta(event.limit, 0.0), rel=1e-3)
    assert meaning.mu is None
    assert meaning.rho is None
    assert "general theorem" in meaning.group(2).source
    assert meaning.group(2).epsilon >= accountant_named("gdp").epsilon(Gaussian(0.5 / event.limit), 1e-5)
    planning = Budget(3.0, 1e-5, adaptive=True)
    assert "statement alone" in planning.spent(Gaussian(2.5)).meaning.source


def test_an_order_of_one_is_no_filter():
    """It divided by zero when epsilon was asked for."""
    with pytest.raises(InputError, match="above 1"):
        Adaptive(Gaussian(3.0), 1.0, 1.0)


def test_a_budget_after_a_ledger_speaks_of_its_unit_and_its_conditions():
    """It said one record, of a ledger that counts users."""
    ledger = Ledger(unit="user")
    ledger.record(Gaussian(4.0))
    ledger.size_is_public()
    budget = Budget(3.0, 1e-5).after(ledger)
    assert "one user" in str(budget.spent())
    assert "the number of users is public" in str(budget.spent())
    other = Ledger()
    other.record(Gaussian(4.0))
    with pytest.raises(InputError, match="protect a user"):
        budget.after(other)
