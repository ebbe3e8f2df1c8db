"""The total of an account: what its filters promise, against the worst adversary that can be computed."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import InputError
from privet.privacy import (
    Adaptive,
    ApproximateDP,
    Assumed,
    Claimed,
    FixedSizeSampled,
    Gaussian,
    GroupedL2,
    Laplace,
    Nothing,
    NotPrivate,
    PaddedPoisson,
    PoissonSampled,
    PublicRecords,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
    Relation,
    ShuffledEpoch,
    UnsupportedEventError,
    accountant_named,
)
from privet.privacy.accountants.rdp import divergences, renyi_limit
from privet.privacy.price import Price, Total

PLD = accountant_named("pld")
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
STEP = PoissonSampled(0.01, Gaussian(1.1))


def worst_adversary(total, choices, fits, rounds=7):
    """The largest delta at the total's epsilon, over all ways to choose the next release, or to stop, by what was answered.

    A choice (epsilon, delta) is a randomized response that reveals everything with probability delta.
    """
    prices = {choice: total.stated_price(*choice) for choice in choices}

    @cache
    def value(loss, used):
        best = max(0.0, -math.expm1(min(0.0, total.epsilon - loss)))
        if len(used) == rounds:
            return best
        for choice in choices:
            more = tuple(sorted((*used, choice)))
            if fits(sum((prices[one] for one in more), start=total.free)):
                epsilon, leak = choice
                right = 1 / (1 + math.exp(-epsilon))
                up, down = value(round(loss + epsilon, 9), more), value(round(loss - epsilon, 9), more)
                best = max(best, leak + (1 - leak) * (right * up + (1 - right) * down))
        return best

    return value(0.0, ())


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.05), (2.0, 0.02), (0.6, 0.2)])
def test_the_worst_adversary_stays_within_the_total(epsilon, delta):
    total = Total.of(epsilon, delta, stated_share=0.3)
    choices = ((0.15, 0.0), (0.3, 0.0), (0.6, 0.0), (0.3, delta / 10))
    truth = worst_adversary(total, choices, total.fits)
    assert 0 < truth <= delta


def test_an_adversary_who_gets_more_than_the_limits_breaks_the_total():
    """The check above can fail: with limits twice as large the same adversary passes delta."""
    total = Total.of(1.0, 0.05, stated_share=0.3)

    def fits(price):
        return total.share(price) <= 2.2

    assert worst_adversary(total, ((0.3, 0.0), (0.6, 0.0), (0.3, 0.005)), fits) > total.delta


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0, 30.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_every_limit_gives_its_epsilon_at_its_share_of_delta(epsilon, delta):
    total = Total.of(epsilon, delta)
    assert total.stated == pytest.approx(0.1 * delta)
    for order, limit in zip(total.orders, total.limits, strict=True):
        # Canonne, Kamath and Steinke 2020, proposition 12, written out.
        each = (delta - total.stated) / len(total.orders)
        naive = limit + math.log((order - 1) / order) - (math.log(each) + math.log(order)) / (order - 1)
        assert naive == pytest.approx(epsilon, rel=1e-9)


def test_filters_that_allow_more_than_the_total_are_refused():
    total = Total.of(3.0, 1e-5)
    for forged in (
        {"limits": (total.limits[0] * 1.01, total.limits[1])},
        {"epsilon": 2.9},
        {"stated": 5e-6},
        {"orders": total.orders[:1]},
        {"orders": (1.0, total.orders[1])},
        {"stated": 2e-5},
    ):
        with pytest.raises(InputError):
            replace(total, **forged)


@pytest.mark.parametrize(
    "given", [(0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1, 0), (1, 1), (1e-9, 1e-5), (1, 1e-5, "x")]
)
def test_totals_that_make_no_sense_are_refused(given):
    with pytest.raises(InputError):
        Total.of(*given)


def test_a_price_is_the_divergences_of_the_events():
    total = Total.of(3.0, 1e-5)
    price = total.price(STEP * 700 + Gaussian(5.0) + PublicRecords(5, "other people"))
    for order, found in zip(total.orders, price.divergences, strict=True):
        step = divergences(STEP, ADD, (order,))[0]
        assert found == pytest.approx(700 * step + order / 50, rel=1e-9)
    assert price.delta == 0
    assert total.price(Nothing()).is_free
    # What was chosen along the way costs the same here: the account's filters are its own.
    assert total.price(Adaptive(Gaussian(5.0), 4.0, 9.0)) == total.price(Gaussian(5.0))
    assert total.price(Gaussian(5.0).under(Assumed("it rains"))) == total.price(Gaussian(5.0))


def test_stated_costs_and_aborted_steps_take_delta():
    total = Total.of(3.0, 1e-5)
    stated = total.price(ApproximateDP(0.5, 1e-7) * 3)
    assert stated.delta == pytest.approx(3e-7)
    assert stated.divergences == pytest.approx([3 * one for one in total.price(PureEpsilon(0.5)).divergences])
    assert stated == total.stated_price(0.5, 1e-7).scaled(3)
    padded = PaddedPoisson(0.01, 1000, 40, Gaussian(2.0))
    assert total.price(padded) == Price(total.price(PoissonSampled(0.01, Gaussian(2.0))).divergences, padded.overflow)
    sampled = total.price(PoissonSampled(0.1, ApproximateDP(0.5, 1e-6)))
    assert sampled.delta == pytest.approx(1e-7)
    assert sampled.divergences == total.price(PureEpsilon(math.log1p(0.1 * math.expm1(0.5)))).divergences
    assert not total.fits(total.stated_price(0.0, 1.1e-6)) and total.fits(total.stated_price(0.0, 1e-6))
    assert math.isinf(Total.of(3.0, 1e-5, stated_share=0).share(stated))


def renyi(order, p, q, step):
    return math.log(float((p**order * q ** (1 - order)).sum()) * step) / (order - 1)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.2, 2.0), (0.5, 4.0), (1.0, 5.0)])
def test_replacing_a_record_is_bounded_for_sampled_steps(rate, sigma):
    """By integration: one record moves the sum up, its replacement moves it down."""
    total = Total.of(8.0, 1e-5, REPLACE)
    price = total.price(PoissonSampled(rate, Gaussian(sigma)))
    x, step = np.linspace(-12 * sigma, 12 * sigma, 200_001, retstep=True)

    def density(mean):
        return np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    one = (1 - rate) * density(0.0) + rate * density(1.0)
    other = (1 - rate) * density(0.0) + rate * density(-1.0)
    for order, bound in zip(total.orders, price.divergences, strict=True):
        truth = renyi(order, one, other, step)
        assert truth * (1 - 1e-9) <= bound <= 5 * truth


def test_replacing_costs_more_than_adding_and_some_events_only_have_one_of_them():
    add, replace_one = Total.of(3.0, 1e-5), Total.of(3.0, 1e-5, REPLACE)
    for event in (STEP, Gaussian(3.0), Laplace(4.0), GroupedL2((0.1, 0.2)), ApproximateDP(0.2, 1e-8)):
        assert replace_one.price(event).covers(add.price(event))
    assert replace_one.price(ApproximateDP(0.2, 1e-8)).delta == pytest.approx((1 + math.exp(0.2)) * 1e-8)
    for event in (
        FixedSizeSampled(10, 1000, Gaussian(1.0)),
        ShuffledEpoch(5, Gaussian(2.0)),
        RandomizedResponse(0.5, 2),
    ):
        assert not replace_one.price(event).is_free
        with pytest.raises(UnsupportedEventError, match="add/remove one record"):
            add.price(event)
    assert add.stated_price(1.0) == replace_one.stated_price(1.0)
    assert replace_one.stated_price(1.0, 1e-7, ADD) == replace_one.price(ApproximateDP(1.0, 1e-7))
    with pytest.raises(UnsupportedEventError, match="replacing a record bounds nothing"):
        add.stated_price(1.0, 0.0, REPLACE)


def test_what_is_only_claimed_or_not_private_has_no_price_that_fits():
    total = Total.of(8.0, 1e-5)
    for event in (PublishedClaim(1.0, 1e-6, "a paper", "no clipping"), STEP.under(Claimed("a paper", "no clipping"))):
        with pytest.raises(UnsupportedEventError, match="only claimed by a paper"):
            total.price(event)
    assert math.isinf(total.share(total.price(NotPrivate())))
    assert math.isinf(total.share(total.price(Gaussian(0.0))))
    assert not total.fits(total.stated_price(math.inf))
    with pytest.raises(UnsupportedEventError, match="RandomizedResponse inside PoissonSampled"):
        Total.of(8.0, 1e-5, REPLACE).price(PoissonSampled(0.1, RandomizedResponse(0.5, 2)))


EVENTS = st.one_of(
    st.builds(Gaussian, st.floats(0.4, 50)),
    st.builds(lambda q, s: PoissonSampled(q, Gaussian(s)), st.floats(0.001, 0.9), st.floats(0.5, 20)),
    st.builds(Laplace, st.floats(0.5, 50)),
)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(1, 200), st.sampled_from([(1.0, 1e-6), (8.0, 1e-5)]))
def test_the_price_is_never_below_what_the_epsilon_of_an_event_implies(event, count, budget):
    """`at_least` refuses a run before it is planned, so it must never refuse one that fits."""
    total = Total.of(*budget)
    epsilon = PLD.epsilon(event * count, 1e-5)
    assert total.price(event * count).covers(total.at_least(0.99 * epsilon, 1e-5))


NUMBERS = st.one_of(st.floats(0, 1e3), st.just(math.inf))
PRICES = st.builds(lambda a, b, d: Price((a, b), d), NUMBERS, NUMBERS, st.floats(0, 1))


@given(PRICES, PRICES, PRICES)
def test_prices_add_up_and_never_fall_below_zero(one, other, third):
    assert (one + other).covers(one | other)
    assert one + other == other + one
    assert (one - other + other).covers(one.scaled(1 - 1e-12)) or math.isinf(max(other.divergences))
    assert (one - one).divergences == tuple(math.inf if math.isinf(x) else 0.0 for x in one.divergences)
    assert Price.from_list(one.to_list(), 2) == one
    assert ((one | third) + other).covers(third)


@pytest.mark.parametrize(
    "given", [[1.0], [1.0, 2.0, 3.0, 4.0], ["1", 0.0, 0.0], [True, 0.0, 0.0], [-1.0, 0.0, 0.0], {}, None]
)
def test_what_is_no_price_is_refused(given):
    with pytest.raises(InputError):
        Price.from_list(given, 2)


def test_the_room_shrinks_and_is_that_of_a_gaussian_release():
    total = Total.of(8.0, 1e-5)
    rooms = [total.room(total.price(Gaussian(2.0) * count)) for count in range(0, 12, 3)]
    assert rooms == sorted(rooms, reverse=True) and 7 < rooms[0] < 8
    assert total.room(total.price(Gaussian(0.1))) == 0
    used = total.price(STEP * 500)
    sigma = next(s / 100 for s in range(30, 1000) if total.fits(used + total.price(Gaussian(s / 100))))
    assert PLD.epsilon(Gaussian(sigma), 1e-5) == pytest.approx(total.room(used), rel=0.05)


def test_many_runs_fit_where_basic_composition_allows_few():
    """Basic composition allows 8 runs of epsilon 1, and at the account's own delta only one."""
    total = Total.of(8.0, 1e-5)
    price = total.price(PoissonSampled(0.01, Gaussian(1.42)) * 1000)
    assert PLD.epsilon(PoissonSampled(0.01, Gaussian(1.42)) * 1000, 1e-5) == pytest.approx(1.0, abs=0.03)
    assert 30 < 1 / total.share(price) < 40


def test_a_limit_of_one_order_is_enough():
    """Steps from small samples have exploding divergences at the high order; the low one carries them."""
    total = Total.of(3.0, 1e-5)
    price = total.price(PoissonSampled(0.001, Gaussian(0.74)) * 10_000)
    assert price.divergences[0] > total.limits[0] and total.fits(price)
    assert renyi_limit(total.orders[1], 3.0, 4.5e-6) == pytest.approx(total.limits[1])
