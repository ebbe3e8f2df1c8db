"""The (epsilon, delta) of each step, for the composition theorems that know nothing else of a mechanism."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from scipy.optimize import minimize_scalar

from privet.privacy.accountants._base import Tally
from privet.privacy.accountants._forms import amplified, bare, gaussian_multiplier, pure_epsilon, stated_privacy
from privet.privacy.accountants.gdp import gdp_epsilon
from privet.privacy.events import Event, FixedSizeSampled, PaddedPoisson, PoissonSampled
from privet.privacy.relations import Relation


@dataclass(frozen=True)
class Piece:
    """One kind of step: `count` uses, on samples of `rate`, of a Gaussian of `sigma`, or of an (epsilon, delta) mechanism."""

    count: int
    rate: float
    sigma: float | None
    epsilon: float
    delta: float
    extra: float
    """Delta that each use adds whatever the split: what is stated, and overflow."""

    def epsilon_at(self, delta: float, linear: bool, classic: bool) -> float:
        """The epsilon of one use that is given `delta` (of the sampled mechanism)."""
        if self.sigma is None:
            epsilon = self.epsilon
        elif self.sigma == 0 or delta <= 0:
            return math.inf
        else:
            share = delta / self.rate
            if share >= 1:
                return 0.0
            epsilon = (
                math.sqrt(2 * math.log(1.25 / share)) / self.sigma if classic else exact_gaussian(self.sigma, share)
            )
        return self.rate * epsilon if linear else amplified(epsilon, self.rate)


def piece_of(leaf: Event, count: int, relation: Relation) -> Piece | None:
    """One leaf as a piece; None if it has no (epsilon, delta) here."""
    event, rate, extra = bare(leaf), 1.0, 0.0
    if isinstance(event, PoissonSampled | PaddedPoisson):
        extra = event.overflow if isinstance(event, PaddedPoisson) else 0.0
        rate, event = event.rate, event.event
    elif isinstance(event, FixedSizeSampled):
        if relation is Relation.ADD_REMOVE:
            return None
        rate, event = event.rate, event.event
    if rate == 0:
        return Piece(count, 1.0, None, 0.0, 0.0, 0.0)
    # Amplification by sampling holds for either relation, with the mechanism's own parameters under it.
    sigma = gaussian_multiplier(event, relation)
    if sigma is not None:
        return Piece(count, rate, sigma, 0.0, 0.0, extra)
    epsilon = pure_epsilon(event, relation)
    if epsilon is not None:
        return Piece(count, rate, None, epsilon, 0.0, extra)
    stated = stated_privacy(event, relation)
    if stated is not None:
        return Piece(count, rate, None, stated[0], rate * stated[1], extra + rate * stated[1])
    return None


def pieces_of(events: Tally, relation: Relation) -> list[Piece]:
    pieces = [piece_of(leaf, count, relation) for leaf, count in events]
    return [piece for piece in pieces if piece is not None]


@lru_cache(maxsize=65536)
def exact_gaussian(sigma: float, delta: float) -> float:
    """The exact epsilon of one Gaussian release (Balle and Wang 2018)."""
    return gdp_epsilon(1 / sigma, delta)


Cost = Callable[[float, float], float]


def best_split(pieces: list[Piece], delta: float, cost: Cost, rough: Cost | None = None) -> float:
    """The least cost(delta for each Gaussian step, delta for the theorem) over how delta is divided between the two.

    Every division is a bound, so the best one may be looked for with a `rough` cost that is quicker.
    """
    extra = math.fsum(piece.count * piece.extra for piece in pieces)
    steps = sum(piece.count for piece in pieces if piece.sigma is not None)
    left = delta - extra
    if left < 0 or (left == 0 and steps):
        return math.inf
    if not steps:
        return cost(0.0, left)

    def divided(logit: float) -> tuple[float, float]:
        share = 1 / (1 + math.exp(-logit))
        return share * left / steps, (1 - share) * left

    def searched(logit: float) -> float:
        value = (rough or cost)(*divided(logit))
        return value if math.isfinite(value) else 1e300

    found = minimize_scalar(searched, bounds=(-20.0, 20.0), method="bounded", options={"xatol": 5e-3})
    return cost(*divided(float(found.x)))
