"""Gaussian differential privacy (Dong, Roth and Su 2022), where it is exact."""

from __future__ import annotations

import math
from typing import ClassVar

from scipy.special import log_ndtr

from privet.privacy.accountants.base import Accountant, Tally
from privet.privacy.accountants.forms import gaussian_multiplier
from privet.privacy.events import Event
from privet.privacy.guarantees import Relation


class GDP(Accountant):
    """Gaussian releases compose to one Gaussian release with mu = sqrt(sum 1/sigma^2).

    Formal guarantees: exact for Gaussian releases without sampling. The central-limit approximation for sampled releases
    under-reports, so it is not offered.
    """

    key: ClassVar[str] = "gdp"
    name: ClassVar[str] = "GDP"

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if gaussian_multiplier(leaf, relation) is None:
            return "only Gaussian releases without sampling are exactly GDP"
        return None

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        return gdp_epsilon(total_mu(events, relation), delta)

    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        mu = total_mu(events, relation)
        return 1.0 if mu == math.inf else gdp_delta(mu, epsilon)


def gdp_epsilon(mu: float, delta: float) -> float:
    """An upper bound of the epsilon of a Gaussian trade-off at `delta`, by bisection."""
    if delta == 0 or mu == math.inf:
        return math.inf
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu) <= e^(-(epsilon/mu - mu/2)^2 / 2) gives the upper end.
    low, high = 0.0, mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if gdp_delta(mu, middle) <= delta else (middle, high)
    return high


def gdp_delta(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), plus an allowance for rounding."""
    if epsilon == math.inf:
        return 0.0
    log_first = float(log_ndtr(mu / 2 - epsilon / mu))
    log_second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # The logarithms are exact to a unit of the last place, but their difference may be tiny.
    rounding = 2.0**-52 * (4 + abs(log_first) + abs(epsilon) + abs(log_second))
    share = -math.expm1(min(0.0, log_second - log_first))
    return min(1.0, math.exp(log_first) * (share + rounding))


def total_mu(events: Tally, relation: Relation) -> float:
    """The mu of all releases together, the root of the sum of 1/sigma^2, computed without overflow or underflow."""
    rates = []
    for leaf, count in events:
        sigma = gaussian_multiplier(leaf, relation)
        assert sigma is not None
        if sigma < 1e-300:
            return math.inf
        rates.append((1 / sigma, count))
    largest = max(rate for rate, _ in rates)
    return largest * math.sqrt(math.fsum(count * (rate / largest) ** 2 for rate, count in rates))
