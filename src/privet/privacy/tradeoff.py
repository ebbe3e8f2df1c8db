"""The trade-off curve: what the best test for one record's presence can reach, and the rule for what promises nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privet.errors import InputError

Array = npt.NDArray[np.float64]

VACUOUS_FALSE_POSITIVES = 1e-5
VACUOUS_TRUE_POSITIVES = 0.5
"""A statement that allows a test this good is vacuous: it finds half of those who are in, and is practically never wrong
about those who are not (docs/decisions/0009)."""


@dataclass(frozen=True)
class TradeOff:
    """(epsilon, delta) statements that all hold of one mechanism, and what they leave to an attacker.

    One statement gives the curve of (epsilon, delta)-differential privacy. The statements at all epsilons, the privacy
    profile, give the mechanism's own curve.

    Formal guarantees: no test for one record's presence, nor for its absence, has a smaller false negative rate than
    `false_negative_rate`. Each statement bounds every test (Kairouz, Oh and Viswanath 2015, theorem 2.1), so a finite
    part of a profile never understates the attacker; the whole profile is exact (Dong, Roth and Su 2022,
    proposition 2.13) for the worse of the two directions. The curve is convex, falling, at most 1 - a, and symmetric.

    Attributes:
        epsilons: finite numbers of at least 0, ascending.
        deltas: the delta of each.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __init__(self, statements: Iterable[tuple[float, float]]) -> None:
        """Take (epsilon, delta) statements in any order; one with an infinite epsilon says nothing and is left out."""
        best: dict[float, float] = {}
        for epsilon, delta in statements:
            if not epsilon >= 0 or not 0 <= delta <= 1:
                raise InputError(
                    f"A statement needs an epsilon of at least 0 and a delta in [0, 1], not {epsilon}, {delta}."
                )
            if epsilon < math.inf:
                best[float(epsilon)] = min(float(delta), best.get(float(epsilon), 1.0))
        if not best:
            best = {0.0: 1.0}
        epsilons = sorted(best)
        # What holds at an epsilon holds at every larger one.
        deltas = np.minimum.accumulate([best[epsilon] for epsilon in epsilons])
        object.__setattr__(self, "epsilons", tuple(epsilons))
        object.__setattr__(self, "deltas", tuple(deltas.tolist()))

    def merged(self, other: TradeOff) -> TradeOff:
        """The curve of everything that both state."""
        pairs = [*zip(self.epsilons, self.deltas, strict=True), *zip(other.epsilons, other.deltas, strict=True)]
        return TradeOff(pairs)

    def false_negative_rates(self, false_positive_rates: npt.ArrayLike) -> Array:
        """The trade-off function at each rate: the smallest false negative rate that a test can have."""
        alpha = np.atleast_1d(np.asarray(false_positive_rates, dtype=np.float64))
        if not ((alpha >= 0) & (alpha <= 1)).all():
            raise InputError("A false positive rate is a number from 0 to 1.")
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        with np.errstate(divide="ignore", over="ignore"):
            grown = np.exp(
                np.minimum(epsilon + np.log(alpha)[:, None], 1.0)
            )  # e^epsilon alpha; above 1 it says nothing
        steep = 1 - delta - grown
        flat = np.exp(-epsilon) * (1 - delta - alpha[:, None])
        return np.asarray(np.maximum(0.0, np.maximum(steep, flat).max(axis=1)))

    def false_negative_rate(self, false_positive_rate: float) -> float:
        return float(self.false_negative_rates(false_positive_rate)[0])

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest share of those who are in that a test can find, at that false positive rate."""
        return 1 - self.false_negative_rate(false_positive_rate)

    @property
    def least_error(self) -> float:
        """The smallest sum of both error rates that a test can have."""
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        return float((2 * (1 - delta) * np.exp(-epsilon) / (1 + np.exp(-epsilon))).max())

    @property
    def advantage(self) -> float:
        """The largest true positive rate minus false positive rate: delta at epsilon 0."""
        return 1 - self.least_error

    def odds_factor(self, failure: float) -> float:
        """The factor by which a result can raise the odds that a record was used, except with probability `failure`.

        Formal guarantees: with L the privacy loss, delta(e) >= P[L >= t] (1 - e^(e - t)), so that P[L >= t] is at most
        `failure` for t = e - ln(1 - delta/failure). Infinite where no statement has a delta below `failure`.
        """
        if not 0 < failure < 1:
            raise InputError(f"The probability of failure must be above 0 and below 1, and is {failure!r}.")
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        useful = delta < failure
        if not useful.any():
            return math.inf
        loss = float((epsilon[useful] - np.log1p(-delta[useful] / failure)).min())
        return math.exp(loss) if loss < 700 else math.inf

    def posterior(self, prior: float, failure: float) -> float:
        """The most that somebody believes who believed `prior` before, except with probability `failure`."""
        if not 0 <= prior <= 1:
            raise InputError(f"A prior is a probability, and this is {prior!r}.")
        if prior in (0.0, 1.0):
            return prior
        factor = self.odds_factor(failure)
        return 1.0 if factor == math.inf else factor * prior / (factor * prior + 1 - prior)

    def epsilon(self, delta: float) -> float:
        """The least epsilon at `delta` that follows; infinite where none does."""
        at = next((i for i, found in enumerate(self.deltas) if found <= delta), None)
        if at is None:
            return math.inf
        high, least = self.epsilons[at], self.deltas[at]
        if at == 0:
            return high
        low, most = self.epsilons[at - 1], self.deltas[at - 1]
        # Between two statements delta is linear in e^epsilon: their weighted mean holds too.
        share = (delta - least) / (most - least)
        return high + math.log1p(share * math.expm1(low - high))

    def group(self, size: int) -> TradeOff:
        """The curve for `size` records at once, whatever the mechanism.

        Formal guarantees: with T the largest true positive rate, a chain of `size` neighbors applies T as often (Dong,
        Roth and Su 2022, theorem 2.14); (k epsilon, delta (1 + e^epsilon + ...)) is the case of one statement. Each
        statement here is a tangent of that curve: the product of the slopes of the lines that bound T on the way.
        """
        if size < 1:
            raise InputError(f"A group has at least one record, not {size!r}.")
        found = list(self._multiplied(size))
        alpha = np.concatenate(([0.0], np.geomspace(1e-15, 1.0, 600)))
        rate, slope = alpha.copy(), np.zeros_like(alpha)
        for _ in range(size):
            rate, step = self._steepness(rate)
            slope += step
        steep = (slope >= 0) & (slope < 700)
        delta = np.clip(rate[steep] - np.exp(slope[steep]) * alpha[steep], 0.0, 1.0)
        # Rounding: two numbers near 1 were subtracted.
        found += zip(slope[steep].tolist(), np.minimum(1.0, delta + 1e-15 * size).tolist(), strict=True)
        return TradeOff(found)

    def _multiplied(self, size: int) -> Iterable[tuple[float, float]]:
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            grown = delta * sum(math.exp(i * epsilon) for i in range(size)) if (size - 1) * epsilon < 600 else 1.0
            yield size * epsilon, 1.0 if delta and not grown < 1 else min(1.0, grown if delta else 0.0)

    def _steepness(self, rate: Array) -> tuple[Array, Array]:
        """The largest true positive rate at each rate, and ln of the slope of the line that bounds it there."""
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        with np.errstate(divide="ignore", over="ignore"):
            steep = np.exp(np.minimum(epsilon + np.log(rate)[:, None], 1.0)) + delta
        flat = 1 - np.exp(-epsilon) * (1 - delta - rate[:, None])
        lines, slopes = np.concatenate((steep, flat), axis=1), np.concatenate((epsilon, -epsilon))
        best = lines.argmin(axis=1)
        reached = lines[np.arange(len(rate)), best]
        return np.minimum(reached, 1.0), np.where(reached >= 1, -math.inf, slopes[best])

    @property
    def vacuous(self) -> bool:
        """Whether the statements promise nothing that anybody could rely on (docs/decisions/0009)."""
        return self.true_positive_rate(VACUOUS_FALSE_POSITIVES) >= VACUOUS_TRUE_POSITIVES
