"""What holds for every setting: monotone in each parameter, and no matter how a run is cut or ordered."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privet.privacy import Gaussian, Laplace, Nothing, PoissonSampled, PureEpsilon, accountant_named

PLD = accountant_named("pld")
SLACK = 1 + 6e-4
"""Both values are bounds from above by at most about 5e-4."""

rates = st.floats(-4, 0).map(lambda x: 10**x)
sigmas = st.floats(-0.3, 1.5).map(lambda x: 10**x)
counts = st.floats(0, 4).map(lambda x: int(10**x))
deltas = st.floats(-10, -2).map(lambda x: 10**x)
factors = st.floats(1.001, 3.0)
some = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def epsilon(rate, sigma, steps, delta):
    return PLD.epsilon(PoissonSampled(rate, Gaussian(sigma)) * steps, delta)


@some
@given(rates, sigmas, counts, deltas, factors)
def test_more_noise_costs_no_more(rate, sigma, steps, delta, factor):
    assert epsilon(rate, sigma * factor, steps, delta) <= epsilon(rate, sigma, steps, delta) * SLACK


@some
@given(rates, sigmas, counts, deltas, factors)
def test_more_steps_cost_no_less(rate, sigma, steps, delta, factor):
    more = max(steps + 1, int(steps * factor))
    assert epsilon(rate, sigma, steps, delta) <= epsilon(rate, sigma, more, delta) * SLACK


@some
@given(rates, sigmas, counts, deltas, factors)
def test_a_higher_rate_costs_no_less(rate, sigma, steps, delta, factor):
    assert epsilon(rate, sigma, steps, delta) <= epsilon(min(1.0, rate * factor), sigma, steps, delta) * SLACK


@some
@given(rates, sigmas, counts, deltas, factors)
def test_a_larger_delta_costs_no_more(rate, sigma, steps, delta, factor):
    assert epsilon(rate, sigma, steps, min(0.5, delta * factor)) <= epsilon(rate, sigma, steps, delta) * SLACK


@some
@given(rates, sigmas, counts, deltas)
def test_replacing_a_record_costs_no_less_than_removing_it(rate, sigma, steps, delta):
    event = PoissonSampled(rate, Gaussian(sigma)) * steps
    assert PLD.epsilon(event, delta) <= PLD.epsilon(event, delta, "replace-one") * SLACK


events = st.one_of(
    st.builds(PoissonSampled, rates, st.builds(Gaussian, sigmas)),
    st.builds(Gaussian, st.floats(2.0, 50.0)),
    st.builds(PureEpsilon, st.floats(0.001, 0.5)),
    st.builds(Laplace, st.floats(2.0, 50.0)),
)
runs = st.lists(st.tuples(events, st.integers(1, 200)), min_size=1, max_size=4)


@some
@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_composition_is_nothing(run, random):
    one = sum((event * count for event, count in run), start=Nothing())
    pieces = [event for event, count in run for event in (event * (count // 2), event * (count - count // 2))]
    random.shuffle(pieces)
    other = sum(pieces, start=Nothing())
    assert PLD.epsilon(one, 1e-6) == PLD.epsilon(other, 1e-6)


@some
@given(runs)
def test_a_whole_costs_at_least_its_parts_and_at_most_their_sum(run):
    parts = [PLD.epsilon(event * count, 1e-6) for event, count in run]
    whole = PLD.epsilon(sum((event * count for event, count in run), start=Nothing()), 1e-6 * len(run))
    assert whole <= sum(parts) * SLACK + 1e-9
    assert PLD.epsilon(sum((event * count for event, count in run), start=Nothing()), 1e-6) >= max(parts) / SLACK
