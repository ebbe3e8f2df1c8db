"""The one unknown of a run from the others."""

from __future__ import annotations

from privet.privacy.accountants import Accountant, accountant_named
from privet.privacy.events import Event, Gaussian, Nothing, PoissonSampled
from privet.privacy.relations import Relation


def calibrate_noise(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
    accountant: str | Accountant = "pld",
    before: Event | None = None,
) -> float:
    """The least noise multiplier with which `steps` Poisson-sampled steps stay within (epsilon, delta)."""
    interpreter = accountant_named(accountant)
    spent = before or Nothing()

    def cost(sigma: float) -> float:
        return interpreter.epsilon(spent + PoissonSampled(rate, Gaussian(sigma)) * steps, delta, relation)

    low, high = 0.0, 1.0
    while cost(high) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return high
