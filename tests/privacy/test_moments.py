"""The moments accountant: the paper's numbers, two ways of computing them, and RDP at the same orders."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.special import logsumexp

from privet.privacy import Gaussian, PoissonSampled, PureEpsilon, UnsupportedEventError, accountant_named
from privet.privacy.accountants.rdp import log_moment_closed, log_moments

MOMENTS = accountant_named("moments")


def log_moment_integral(rate: float, sigma: float, order: int, points: int = 20_001) -> float:
    """alpha(order) = ln max(E1, E2) by numerical integration, as the paper computes it.

    E1 = E_mu0 (mu0/mu)^l and E2 = E_mu (mu/mu0)^l, with mu0 = N(0, s^2) and mu = (1-q) mu0 + q N(1, s^2). The trapezoidal rule
    on an analytic, decaying integrand converges faster than any power of the step.
    """
    x = np.linspace(-14 * sigma - 1, order + 1 + 14 * sigma, points)
    step = x[1] - x[0]
    log_base = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    loss = np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    first = logsumexp(log_base - order * loss) + math.log(step)
    second = logsumexp(log_base + (order + 1) * loss) + math.log(step)
    return float(max(first, second))


@pytest.mark.parametrize(("order", "alpha"), [(1, 6.449425e-6), (8, 2.3324519e-4), (32, 3.4760438e-3)])
def test_log_moments_of_the_paper_s_setting(order, alpha):
    assert log_moment_closed(0.01, 4.0, order) == pytest.approx(alpha, rel=2e-7)
    assert log_moment_integral(0.01, 4.0, order) == pytest.approx(alpha, rel=2e-7)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 4.0), (0.01, 1.0), (0.1, 2.0), (0.5, 1.1), (1.0, 7.0), (1e-3, 0.8)])
def test_integral_and_closed_form_agree_at_every_order(rate, sigma):
    closed = [log_moment_closed(rate, sigma, order) for order in range(1, 33)]
    integral = [log_moment_integral(rate, sigma, order) for order in range(1, 33)]
    np.testing.assert_allclose(integral, closed, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 4.0), (0.01, 1.0), (0.2, 1.5), (1.0, 3.0)])
def test_moments_are_rdp_at_equal_orders(rate, sigma):
    """alpha(l) = l * RDP(l + 1)."""
    orders = list(range(2, 34))
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
    rdp = RdpAccountant(orders).compose(event).rdp
    np.testing.assert_allclose(log_moments(rate, sigma), (np.array(orders) - 1) * rdp, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("sigma", "steps", "epsilon"),
    [(4.0, 10_000, 1.2586), (4.0, 40_000, 2.5759), (4.0, 100, 0.3706), (1.0, 1000, 2.5383)],
)
def test_epsilons_of_the_paper_s_settings(sigma, steps, epsilon):
    event = PoissonSampled(0.01, Gaussian(sigma)) * steps
    assert MOMENTS.epsilon(event, 1e-5) == pytest.approx(epsilon, abs=6e-5)
    assert MOMENTS.delta(event, MOMENTS.epsilon(event, 1e-5)) == pytest.approx(1e-5)


def test_groups_of_one_lot_share_its_sample():
    """Accounting k groups as k independent samplings, as the original code did, under-counts."""
    claimed = PoissonSampled(0.01, Gaussian(1.1)) * 2000
    true = PoissonSampled(0.01, Gaussian(1.1) + Gaussian(1.1)) * 1000
    assert MOMENTS.epsilon(claimed, 1e-5) == pytest.approx(2.80, abs=5e-3)
    assert MOMENTS.epsilon(true, 1e-5) == pytest.approx(4.87, abs=5e-3)


def test_what_it_cannot_bound_it_names():
    with pytest.raises(UnsupportedEventError, match="Moments accountant cannot bound PureEpsilon"):
        MOMENTS.epsilon(PureEpsilon(1.0), 1e-5)
    with pytest.raises(UnsupportedEventError, match="replace-one"):
        MOMENTS.epsilon(PoissonSampled(0.1, Gaussian(1.0)), 1e-5, "replace-one")
    assert not MOMENTS.supports(Gaussian(1.0) + PureEpsilon(1.0))
    assert MOMENTS.supports(Gaussian(1.0) * 3)
