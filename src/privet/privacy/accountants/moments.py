"""The moments accountant of "Deep Learning with Differential Privacy" (Abadi et al. 2016), kept for comparison."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.special import gammaln, logsumexp

from privet.privacy.accountants._base import Accountant, Tally
from privet.privacy.accountants._forms import bare, gaussian_multiplier
from privet.privacy.events import Event, PoissonSampled
from privet.privacy.relations import Relation

ORDERS = 32
"""The paper's highest order of a moment."""


def log_moment_closed(rate: float, sigma: float, order: int) -> float:
    """alpha(order) = ln E2 = ln sum_k C(l+1, k) (1-q)^(l+1-k) q^k e^(k(k-1)/(2 sigma^2)), with l = order.

    E2 is the larger of the two (Mironov, Talwar and Zhang 2019), so it is alpha.
    """
    if rate == 0:
        return 0.0
    if rate == 1:
        return order * (order + 1) / (2 * sigma**2)
    k = np.arange(order + 2)
    choose = gammaln(order + 2) - gammaln(k + 1) - gammaln(order + 2 - k)
    weights = np.exp(choose + k * math.log(rate) + (order + 1 - k) * math.log1p(-rate))
    exponents = k * (k - 1) / (2 * sigma**2)
    if exponents[-1] < 600:
        # The weights add up to 1: what exceeds 1 is kept to full precision.
        return float(np.log1p(weights @ np.expm1(exponents)))
    with np.errstate(divide="ignore"):
        return float(logsumexp(np.log(weights) + exponents))


def log_moment_integral(rate: float, sigma: float, order: int, points: int = 20_001) -> float:
    """alpha(order) = ln max(E1, E2) by numerical integration, as the paper computes it.

    E1 = E_mu0 (mu0/mu)^l and E2 = E_mu (mu/mu0)^l, with mu0 = N(0, s^2) and mu = (1-q) mu0 + q N(1, s^2). The trapezium rule on
    an analytic, decaying integrand converges faster than any power of the step.
    """
    x = np.linspace(-14 * sigma - 1, order + 1 + 14 * sigma, points)
    step = x[1] - x[0]
    log_base = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    loss = np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    first = logsumexp(log_base - order * loss) + math.log(step)
    second = logsumexp(log_base + (order + 1) * loss) + math.log(step)
    return float(max(first, second))


@lru_cache(maxsize=1024)
def log_moments(rate: float, sigma: float) -> tuple[float, ...]:
    """alpha(1), ..., alpha(32) of one step."""
    return tuple(log_moment_closed(rate, sigma, order) for order in range(1, ORDERS + 1))


class Moments(Accountant):
    """Log moments of orders 1 to 32, added over steps, and the tail bound delta = min_l e^(alpha(l) - l epsilon).

    Formal guarantees: an upper bound for Poisson-sampled and unsampled Gaussian releases under add/remove (theorem 2 of the
    paper). Looser than RDP, which has more orders and a better conversion.
    """

    key: ClassVar[str] = "moments"
    name: ClassVar[str] = "moments accountant"

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if _step(leaf, relation) is None:
            return f"the paper has moments for Gaussian noise with Poisson sampling only, not for {relation.value} here"
        return None

    def _epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        if delta == 0:
            return math.inf
        moments = _total(events, relation)
        if not any(moments):
            return 0.0
        return min((alpha - math.log(delta)) / order for order, alpha in enumerate(moments, start=1))

    def _delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        moments = _total(events, relation)
        return math.exp(min(0.0, *(alpha - order * epsilon for order, alpha in enumerate(moments, start=1))))


def _step(leaf: Event, relation: Relation) -> tuple[float, float] | None:
    """The sampling rate and noise multiplier of one step."""
    event = bare(leaf)
    if isinstance(event, PoissonSampled):
        sigma = gaussian_multiplier(event.event, relation)
        allowed = relation is Relation.ADD_REMOVE or event.rate == 1
        return (event.rate, sigma) if sigma is not None and allowed else None
    sigma = gaussian_multiplier(event, relation)
    return None if sigma is None else (1.0, sigma)


def _total(events: Tally, relation: Relation) -> list[float]:
    total = [0.0] * ORDERS
    for leaf, count in events:
        step = _step(leaf, relation)
        assert step is not None
        rate, sigma = step
        if sigma == 0 and rate > 0:
            return [math.inf] * ORDERS
        single = log_moments(rate, sigma) if rate > 0 else (0.0,) * ORDERS
        total = [before + count * one for before, one in zip(total, single, strict=True)]
    return total
