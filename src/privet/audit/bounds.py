"""Lower bounds on epsilon from the successes of an attack, each with the highest value that a perfect attack could reach.

A bound holds with its stated confidence: if the mechanism is (epsilon, delta)-DP, the bound exceeds epsilon in at most
`1 - confidence` of all audits, whatever the attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from privet.errors import InputError
from privet.privacy import Gaussian, PoissonSampled, accountant_named
from privet.privacy.accountants.gdp import gdp_epsilon

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """How a test fared: of `members` draws with the record it caught `caught`, of `others` it accused `accused`."""

    caught: int
    members: int
    accused: int
    others: int

    def __post_init__(self) -> None:
        if not (0 <= self.caught <= self.members and 0 <= self.accused <= self.others and self.members and self.others):
            raise InputError(f"These are not the counts of a test: {self}.")


class TwoSampleBound(Protocol):
    """A bound from draws with the record and draws without it."""

    @property
    def delta(self) -> float: ...

    @property
    def confidence(self) -> float: ...

    @property
    def method(self) -> str: ...

    def __call__(self, counts: Counts) -> float: ...

    def merit(self, caught: ArrayLike, members: int, accused: ArrayLike, others: int) -> Array:
        """What a threshold is chosen by, for many thresholds at once: rises with the bound."""
        ...


def ceiling(bound: TwoSampleBound, members: int, others: int) -> float:
    """The bound of a perfect attack: every draw with the record caught, none without it accused."""
    return bound(Counts(members, members, 0, others))


@dataclass(frozen=True)
class ClopperPearson:
    """``ln((TPR - delta) / FPR)`` and its mirror image, with exact binomial bounds of the two rates.

    Formal guarantees: no assumption on the mechanism. Half of the error probability goes to each rate; both directions
    follow from the same two bounds, so nothing is paid for taking the larger. The test must not have been chosen
    on the draws that are counted.
    """

    delta: float
    confidence: float = 0.99

    def __post_init__(self) -> None:
        _check(self.delta, self.confidence)

    @property
    def method(self) -> str:
        return "Clopper-Pearson"

    def __call__(self, counts: Counts) -> float:
        return max(0.0, float(self.merit(counts.caught, counts.members, counts.accused, counts.others)))

    def merit(self, caught: ArrayLike, members: int, accused: ArrayLike, others: int) -> Array:
        fnr, fpr = _error_rates(caught, members, accused, others, 1 - self.confidence)
        return np.maximum(_log_ratio(1 - fnr - self.delta, fpr), _log_ratio(1 - fpr - self.delta, fnr))


@dataclass(frozen=True)
class GaussianTradeOff:
    """The bound for a mechanism whose privacy is that of a Gaussian release, of a Poisson sample where `rate` is below 1.

    From the rates follows the least shift mu of two unit Gaussians that allows them, and from mu epsilon at any delta:
    far below one over the number of draws, where counting alone sees nothing.

    Formal guarantees: only for mechanisms with that trade-off. Used against a claim of that form, a refutation is right
    with the stated confidence; what the number says about a mechanism of another form is unknown.
    """

    delta: float
    confidence: float = 0.99
    rate: float = 1.0

    def __post_init__(self) -> None:
        _check(self.delta, self.confidence)
        if not 0 < self.rate <= 1:
            raise InputError(f"The sampling rate must lie in (0, 1], not {self.rate}.")

    @property
    def method(self) -> str:
        return "Gaussian trade-off" if self.rate == 1 else "sampled Gaussian trade-off"

    def __call__(self, counts: Counts) -> float:
        mu = float(self.merit(counts.caught, counts.members, counts.accused, counts.others))
        if not mu > 0:
            return 0.0
        if self.rate == 1:
            return gdp_epsilon(mu, self.delta)
        # The accountant bounds from above, to one part in ten thousand: that much is taken off again.
        return accountant_named("pld").epsilon(PoissonSampled(self.rate, Gaussian(1 / mu)), self.delta) * (1 - 3e-4)

    def merit(self, caught: ArrayLike, members: int, accused: ArrayLike, others: int) -> Array:
        """The least mu: TPR <= (1 - rate) FPR + rate Phi(Phi^-1(FPR) + mu)."""
        fnr, fpr = _error_rates(caught, members, accused, others, 1 - self.confidence)
        hit = (1 - fnr - (1 - self.rate) * fpr) / self.rate
        # A hit rate above 1 is beyond what any shift allows at this rate; the largest float below 1 stands for it.
        hit = np.clip(hit, 0.0, 1 - 1e-16)
        with np.errstate(invalid="ignore"):
            mu = special.ndtri(hit) - special.ndtri(fpr)
        return np.asarray(np.nan_to_num(mu, nan=-np.inf, posinf=np.inf, neginf=-np.inf))


@dataclass(frozen=True)
class OneRun:
    """The bound from one training with many canaries, each in with probability one half (Steinke, Nasr and Jagielski 2023).

    Formal guarantees: for any mechanism and any guesser, against a claim for adding or removing one record. The coins must be
    independent and fair; the number of guesses must not depend on the outcomes of the canaries that are guessed.
    """

    delta: float
    confidence: float = 0.99

    def __post_init__(self) -> None:
        _check(self.delta, self.confidence)

    @property
    def method(self) -> str:
        return "one run"

    def __call__(self, correct: int, guesses: int, canaries: int) -> float:
        """The largest epsilon at which so many right guesses would be too lucky."""
        if not (0 <= correct <= guesses <= canaries and guesses > 0):
            raise InputError(
                f"Of {canaries} canaries, {guesses} guessed and {correct} right: these are no counts of one run."
            )
        level = 1 - self.confidence

        def excess(epsilon: float) -> float:
            return self.p_value(epsilon, correct, guesses, canaries) - level

        if excess(0.0) >= 0:
            return 0.0
        high = 1.0
        while excess(high) < 0:
            high *= 2
        return float(optimize.brentq(excess, 0.0, high, xtol=1e-9))

    def p_value(self, epsilon: float, correct: int, guesses: int, canaries: int) -> float:
        """How likely so many right guesses or more are under (epsilon, delta)-DP."""
        q = special.expit(epsilon)
        beta = float(_at_least(np.array(correct), guesses, q))
        if correct == 0 or self.delta == 0:
            return beta
        steps = np.arange(1, correct + 1)
        gain = float(np.max((_at_least(correct - steps, guesses, q) - beta) / steps))
        return min(1.0, beta + 2 * canaries * self.delta * gain)

    def ceiling(self, guesses: int, canaries: int) -> float:
        """The bound if every guess were right."""
        return self(guesses, guesses, canaries)


def _error_rates(caught: ArrayLike, members: int, accused: ArrayLike, others: int, level: float) -> tuple[Array, Array]:
    """Upper bounds of the false negative and the false positive rate, both right with probability 1 - level."""
    missed = members - np.asarray(caught)
    return _upper(missed, members, level / 2), _upper(np.asarray(accused), others, level / 2)


def _upper(events: NDArray[np.integer], trials: int, level: float) -> Array:
    """The Clopper-Pearson upper bound of a probability."""
    with np.errstate(invalid="ignore"):
        bound = special.betaincinv(events + 1.0, np.maximum(trials - events, 1e-300), 1 - level)
    result: Array = np.where(events >= trials, 1.0, bound)
    return result


def _at_least(successes: NDArray[np.integer], trials: int, probability: float) -> Array:
    """The chance of at least so many successes."""
    tail = special.betainc(np.maximum(successes, 1), trials - np.maximum(successes, 1) + 1, probability)
    result: Array = np.where(successes <= 0, 1.0, tail)
    return result


def _log_ratio(above: Array, below: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Array = np.where(above > 0, np.log(np.maximum(above, 0.0)) - np.log(below), -np.inf)
    return ratio


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise InputError(f"delta must be at least 0 and below 1, and is {delta}.")
    if not 0.5 <= confidence < 1 or math.isnan(confidence):
        raise InputError(f"The confidence must be at least one half and below 1, and is {confidence}.")
