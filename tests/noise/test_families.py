"""The families of optimised noise: their costs, the bound that none passes, and that what is drawn is what is promised."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from privet.clipping import BoundedSum, floored
from privet.errors import InputError
from privet.noise import (
    ComparedGaussianNoise,
    GroupedL2Noise,
    IsotropicL2Noise,
    ProductLaplaceNoise,
    StaircaseNoise,
    lower_bound,
)
from privet.noise.additive import LEAST, isotropic_constant
from privet.privacy import GroupedL2, IsotropicL2, PureEpsilon, accountant_named
from privet.randomness import SecureSource
from privet.randomness.sources import gamma

FAMILIES = (ProductLaplaceNoise, IsotropicL2Noise, GroupedL2Noise)


def weights(count: int, spread: float = 1.5) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(count)).mul(spread).exp()


# --- costs and the bound --------------------------------------------------------------------------------------------


def test_the_constant_of_the_bound_is_that_of_the_airy_function() -> None:
    zero = float(special.ai_zeros(1)[1][0])
    assert pytest.approx(4 / (3 * math.sqrt(3)) * abs(zero) ** 1.5, rel=1e-9) == LEAST
    assert pytest.approx(0.7916022494, abs=1e-9) == LEAST


def test_the_ground_state_of_the_bound_attains_it() -> None:
    """psi = Ai(|z| - |a|): E|z| sqrt(J) by numerical integration."""
    shift = abs(float(special.ai_zeros(1)[1][0]))
    square = integrate.quad(lambda z: special.airy(z - shift)[0] ** 2, 0, 30)[0]
    mean = integrate.quad(lambda z: z * special.airy(z - shift)[0] ** 2, 0, 30)[0] / square
    fisher = 4 * integrate.quad(lambda z: special.airy(z - shift)[1] ** 2, 0, 30)[0] / square
    assert mean * math.sqrt(fisher) == pytest.approx(LEAST, rel=1e-8)


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 100])
def test_the_isotropic_constant_is_an_integral(dimension: int) -> None:
    """E|z_1| = E r E|u_1|, with the density of one coordinate u of a uniform direction."""
    if dimension == 1:
        direction = 1.0
    else:
        # u = sin(t) tames the end points.
        def density(t: float) -> float:
            return math.cos(t) ** (dimension - 2)

        direction = integrate.quad(lambda t: math.sin(t) * density(t), 0, math.pi / 2)[0]
        direction /= integrate.quad(density, 0, math.pi / 2)[0]
    assert float(isotropic_constant(dimension)) == pytest.approx(dimension * direction, rel=1e-8)


def test_the_two_forms_of_the_isotropic_constant_meet() -> None:
    one, other = isotropic_constant(1000), isotropic_constant(1001)
    assert float(other / one) == pytest.approx(math.sqrt(1001 / 1000), rel=1e-6)
    d = 1000.0
    assert float(one) == pytest.approx(math.sqrt(2 * d / math.pi) * (1 + 1 / (4 * d) + 1 / (32 * d * d)), rel=1e-9)


def test_costs_at_ten_thousand_coordinates_and_their_gaps() -> None:
    """The table of the theory at d = 1e7 is reached to a few per cent already here; the benchmark has the whole of it."""
    w, epsilon = weights(10_000), 1e-3
    gaps = {family: family.solve(w, epsilon).gap / math.exp(epsilon) for family in FAMILIES}
    assert gaps[ProductLaplaceNoise] == pytest.approx(1.2633, abs=1e-4)
    assert 1.0 < gaps[GroupedL2Noise] < 1.0146
    assert gaps[IsotropicL2Noise] > 1.4
    for family in FAMILIES:
        solved = family.solve(w, epsilon, 0.5)
        assert solved.cost(w) / lower_bound(w, epsilon, 0.5) == pytest.approx(solved.gap, rel=1e-5)


def test_equal_weights_approach_the_gaussian_s_shape() -> None:
    gap = GroupedL2Noise.solve(torch.ones(100_000), 1e-4).gap / math.exp(1e-4)
    assert gap == pytest.approx(math.sqrt(2 / math.pi) / LEAST, abs=1e-4)
    assert len(GroupedL2Noise.solve(torch.ones(2000), 1.0).rates) == 1


def test_the_staircase_is_the_best_for_one_number() -> None:
    one = torch.ones(1)
    for epsilon in (0.1, 1.0, 4.0):
        stairs = StaircaseNoise.solve(one, epsilon, 2.0)
        assert stairs.cost(one) == pytest.approx(2 / (2 * math.sinh(epsilon / 2)))
        assert stairs.cost(one) <= ProductLaplaceNoise.solve(one, epsilon, 2.0).cost(one)
        assert stairs.gap > 1


def test_the_gaussian_for_comparison_gives_up_pure_epsilon() -> None:
    w = torch.ones(1000)
    gaussian = ComparedGaussianNoise.solve(w, 1.0)
    assert accountant_named("pld").epsilon(gaussian.event(), 1e-5) == pytest.approx(1.0, rel=2e-3)
    assert gaussian.gap < 1 < GroupedL2Noise.solve(w, 1.0).gap


# --- properties -----------------------------------------------------------------------------------------------------

lists = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60)
epsilons = st.floats(0.01, 5.0)


@settings(max_examples=60, deadline=None)
@given(lists, epsilons)
def test_grouped_is_never_worse_than_the_others_and_never_below_the_bound(given_: list[float], epsilon: float) -> None:
    w = torch.tensor(given_, dtype=torch.float64)
    grouped = GroupedL2Noise.solve(w, epsilon)
    cost = grouped.cost(w)
    assert cost <= ProductLaplaceNoise.solve(w, epsilon).cost(w) * (1 + 1e-9)
    assert cost <= IsotropicL2Noise.solve(w, epsilon).cost(w) * (1 + 1e-9)
    assert cost >= lower_bound(w, epsilon)
    assert cost == pytest.approx(grouped.gap * lower_bound(w, epsilon), rel=1e-9)
    assert math.hypot(*grouped.rates) == pytest.approx(epsilon, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(1100, 4000), st.floats(0.0, 4.0))
def test_the_same_beyond_the_exact_search(count: int, spread: float) -> None:
    w = weights(count, spread).double()
    cost = GroupedL2Noise.solve(w, 1.0).cost(w)
    assert lower_bound(w, 1.0) <= cost <= ProductLaplaceNoise.solve(w, 1.0).cost(w)
    assert cost <= IsotropicL2Noise.solve(w, 1.0).cost(w) * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(lists, st.randoms(use_true_random=False), st.floats(1e-3, 1e3))
def test_order_and_scale_of_the_weights_do_not_matter(given_: list[float], random, factor: float) -> None:
    w = torch.tensor(given_, dtype=torch.float64)
    cost = GroupedL2Noise.solve(w, 1.0).cost(w)
    order = list(range(len(w)))
    random.shuffle(order)
    shuffled = GroupedL2Noise.solve(w[order], 1.0)
    assert shuffled.cost(w[order]) == pytest.approx(cost, rel=1e-9)
    assert GroupedL2Noise.solve(factor * w, 1.0).cost(w) == pytest.approx(cost, rel=1e-9)
    assert GroupedL2Noise.solve(w, 1.0, alpha=factor).cost(w) == pytest.approx(factor * cost, rel=1e-9)


# --- what is drawn --------------------------------------------------------------------------------------------------


def test_gamma_numbers() -> None:
    """Kolmogorov-Smirnov for each of four shapes and both sources; false-alarm rate 1e-6 each."""
    for source, draws in ((torch.Generator().manual_seed(0), 20_000), (SecureSource(), 5000)):
        for shape in (1.0, 1.5, 10.0, 5e5):
            found = gamma(torch.full((draws,), shape, dtype=torch.float64), source)
            assert stats.kstest(found.numpy(), stats.gamma(shape).cdf).pvalue > 1e-6


def drawn(noise, source, draws: int) -> torch.Tensor:
    return torch.stack([noise.sample(source, torch.float64) for _ in range(draws)])


@pytest.mark.parametrize("family", [*FAMILIES, ComparedGaussianNoise])
def test_the_cost_of_what_is_drawn(family) -> None:
    """The mean of |w o z|_1 over 3,000 draws against `cost`, and the variances; within 5.5 standard errors (4e-8 each)."""
    w, draws = weights(6), 3000
    noise = family.solve(w, 0.7, 1.3)
    z = drawn(noise, torch.Generator().manual_seed(1), draws)
    costs = (w * z).abs().sum(1)
    assert abs(float(costs.mean()) - noise.cost(w)) < 5.5 * float(costs.std()) / math.sqrt(draws)
    expected = torch.as_tensor(noise.variances()).expand(6).double()
    for coordinate, variance in zip(z.T, expected, strict=True):
        squares = coordinate.square()
        assert abs(float(squares.mean() - variance)) < 5.5 * float(squares.std()) / math.sqrt(draws)
        assert abs(float(coordinate.mean())) < 5.5 * float(coordinate.std()) / math.sqrt(draws)


def test_the_cost_of_what_a_large_sampler_draws() -> None:
    """One draw of 200,000 coordinates, chunk borders included: every group's mean is within 5.5 standard errors and 2 %."""
    w = weights(200_000)
    for family in FAMILIES:
        noise = family.solve(w, 1.0)
        z = noise.sample(torch.Generator().manual_seed(2))
        assert float((w * z).abs().sum()) == pytest.approx(noise.cost(w), rel=0.02)


def test_the_staircase_that_is_drawn() -> None:
    """Mean and variance of 100,000 numbers within 5.5 standard errors, and the density's steps by chi-square at 1e-6."""
    noise, draws = StaircaseNoise(1.2, 2.0), 100_000
    z = noise.sample(torch.Generator().manual_seed(3), torch.float64, draws=draws)
    error = 5.5 / math.sqrt(draws)
    assert abs(float(z.abs().mean()) - noise.cost(torch.ones(1))) < error * float(z.abs().std())
    assert abs(float(z.square().mean()) - noise.variances()) < error * float(z.square().std())
    tread, fall = 1 / (1 + math.exp(0.6)), math.exp(-1.2)
    height = (1 - fall) / (2 * 2.0 * (tread + fall * (1 - tread)))
    edges, masses = [0.0], []
    for step in range(5):
        edges += [2 * (step + tread), 2 * (step + 1.0)]
        masses += [2 * tread * height * fall**step, 2 * (1 - tread) * height * fall ** (step + 1)]
    masses = [2 * mass for mass in masses]
    counts = torch.histogram(z.abs().float(), torch.tensor(edges)).hist.tolist()
    rest = draws - sum(counts)
    assert stats.chisquare([*counts, rest], [draws * m for m in masses] + [draws * (1 - sum(masses))]).pvalue > 1e-6


def log_density(noise, z: torch.Tensor) -> torch.Tensor:
    """Written down again, from the formulas, up to a constant."""
    if isinstance(noise, ProductLaplaceNoise):
        return -(noise.rates.double() * z.abs()).sum(1)
    if isinstance(noise, IsotropicL2Noise):
        return -z.norm(dim=1) * noise.epsilon / noise.alpha
    return -sum(rate * z[:, noise.groups == group].norm(dim=1) for group, rate in enumerate(noise.rates))


def worst_direction(noise) -> torch.Tensor:
    """The shift along which the loss reaches epsilon: each group's share is its rate."""
    if isinstance(noise, ProductLaplaceNoise):
        return noise.rates.double()
    if isinstance(noise, IsotropicL2Noise):
        return torch.eye(noise.dimension, dtype=torch.float64)[0]
    direction = torch.zeros(noise.dimension, dtype=torch.float64)
    for group, rate in enumerate(noise.rates):
        direction[(noise.groups == group).nonzero()[0, 0]] = rate
    return direction


@pytest.mark.parametrize("family", FAMILIES)
def test_the_privacy_constraint_along_random_and_worst_directions(family) -> None:
    """P[z + D in O] <= e^epsilon P[z in O] for the likeliest sets O, from draws: an interval at 1e-7 for each of 8 tests.

    And along the worst direction the ratio comes near e^epsilon, so that a noise that is a tenth too small would be seen.
    """
    w, epsilon, alpha, draws = torch.tensor([1.0, 0.9, 0.02, 0.018]), 1.5, 2.0, 4000
    noise = family.solve(w, epsilon, alpha)
    generator = torch.Generator().manual_seed(4)
    z = drawn(noise, generator, draws)
    likely = 0.7 if family is IsotropicL2Noise else 0.9
    directions = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    for direction in (*directions, worst_direction(noise)):
        shift = alpha * direction / direction.norm()
        exact = log_density(noise, z) - log_density(noise, z + shift)
        assert float(exact.abs().max()) <= epsilon * (1 + 1e-6)

        def often(rows: torch.Tensor, shift: torch.Tensor = shift) -> int:
            loss = log_density(noise, rows - shift) - log_density(noise, rows)
            return int((loss > likely * epsilon).sum())

        moved, still = often(z + shift), often(z)
        least = stats.beta.ppf(1e-7, max(moved, 1e-9), len(z) - moved + 1) if moved else 0.0
        most = stats.beta.ppf(1 - 1e-7, still + 1, len(z) - still)
        assert least <= math.exp(epsilon) * most
    ratio = moved / still
    assert math.exp(0.75 * epsilon) < ratio < math.exp(1.15 * epsilon)


# --- as noise on a bounded sum --------------------------------------------------------------------------------------


def bounded(count: int = 6, scale: float = 0.5) -> BoundedSum:
    tensors = {"a": torch.full((2, count // 2 - 1), 3.0), "b": torch.zeros(2)}
    return BoundedSum(tensors, scale, dict.fromkeys(tensors, scale), 10)


@pytest.mark.parametrize("source", [torch.Generator().manual_seed(0), SecureSource()])
@pytest.mark.parametrize("family", [*FAMILIES, ComparedGaussianNoise])
def test_noise_on_a_sum_has_the_sum_s_scale(family, source) -> None:
    """The standard deviation over 1,000 releases against `deviations`, within 25 %, for a noise solved for another alpha."""
    noise = family.solve(torch.ones(6), 2.0, 7.0)
    rows = [noise.add(bounded(), source) for _ in range(1000)]
    for name, expected in noise.deviations(bounded()).items():
        found = torch.stack([row[name] for row in rows]) - bounded().tensors[name]
        assert found.dtype == torch.float32
        wanted = torch.as_tensor(expected).expand(found.shape[1:])
        torch.testing.assert_close(found.std(0), wanted, rtol=0.25, atol=0.0)


def test_noise_takes_a_bounded_sum_of_its_own_length_and_nothing_else() -> None:
    noise = GroupedL2Noise.solve(torch.ones(6), 1.0)
    generator = torch.Generator()
    with pytest.raises(TypeError, match="BoundedSum"):
        noise.add({"a": torch.zeros(6)}, generator)
    with pytest.raises(InputError, match="solved for 6 coordinates, and the sum has 8"):
        noise.add(bounded(8), generator)
    one, two = (noise.add(bounded(), generator)["a"] for _ in range(2))
    assert not torch.equal(one, two)


def test_events_say_the_epsilon_for_whatever_sensitivity() -> None:
    w = torch.tensor([1.0, 0.5, 0.1])
    for alpha in (0.1, 3.0):
        assert IsotropicL2Noise.solve(w, 0.5, alpha).event() == IsotropicL2(2.0, 3)
        assert StaircaseNoise.solve(w[:1], 0.5, alpha).event() == PureEpsilon(0.5)
        for family in (ProductLaplaceNoise, GroupedL2Noise):
            event = family.solve(w, 0.5, alpha).event()
            assert isinstance(event, GroupedL2)
            assert event.epsilon == pytest.approx(0.5, rel=2e-6)
            assert event.epsilon <= 0.5 + 1e-12
    assert ProductLaplaceNoise.solve(torch.ones(2000), 0.5).event() == PureEpsilon(0.5)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*FAMILIES, StaircaseNoise, ComparedGaussianNoise])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_weights_are_refused(family, bad: float) -> None:
    with pytest.raises(InputError, match="positive and finite"):
        family.solve(torch.tensor([bad]), 1.0)
    with pytest.raises(InputError, match="positive and finite"):
        family.solve(torch.tensor([1.0, bad, 2.0]), 1.0)


@pytest.mark.parametrize("family", [*FAMILIES, ComparedGaussianNoise])
def test_weights_of_another_length_are_refused(family) -> None:
    with pytest.raises(InputError, match="There are 2 weights w and 3 coordinates"):
        family.solve(torch.ones(3), 1.0).cost(torch.ones(2))
    for nothing in (torch.ones(0), torch.ones(2, 2), [1.0], torch.ones(3, dtype=torch.long)):
        with pytest.raises(InputError, match="must be a vector"):
            family.solve(nothing, 1.0)


@pytest.mark.parametrize(("epsilon", "alpha"), [(0.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (1.0, math.inf)])
def test_impossible_budgets_are_refused(epsilon: float, alpha: float) -> None:
    for family in (*FAMILIES, StaircaseNoise, ComparedGaussianNoise):
        with pytest.raises(InputError, match="positive number"):
            family.solve(torch.ones(1), epsilon, alpha)


def test_the_staircase_is_for_one_coordinate() -> None:
    with pytest.raises(InputError, match="one coordinate, and there are 2"):
        StaircaseNoise.solve(torch.ones(2), 1.0)


def test_small_weights_are_lifted() -> None:
    w = torch.tensor([0.0, -1.0, 2.0, 1e-9, 1.0])
    assert floored(w).tolist() == pytest.approx([1e-3, 1.0, 2.0, 1e-3, 1.0])
    assert torch.equal(floored(torch.zeros(4)), torch.ones(4))
    with pytest.raises(InputError, match="not finite"):
        floored(torch.tensor([1.0, math.nan]))
