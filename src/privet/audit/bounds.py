"""Lower bounds on epsilon from the success of an attack, each with the highest value that a perfect attack could reach.

A bound holds with its stated confidence: if the mechanism is (epsilon, delta)-DP, the bound exceeds epsilon in at most
`1 - confidence` of all audits, whatever the attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from privet.errors import InputError
from privet.privacy import Event, Gaussian, PaddedPoisson, PoissonSampled, accountant_named
from privet.privacy.accountants.rdp import gdp_epsilon
from privet.privacy.events import Under, composed, tally

Array = NDArray[np.float64]
FACTORS = 1 / 64, 64.0
"""Between these factors `ClaimedForm` looks for the least reduction of the noise."""
FEW_EVENTS = 10
"""More different events than this are rounded to fewer."""
LEAST_NOISE = 0.15
"""It does not look below this noise multiplier: there the record is always seen, and computing the profile takes long."""


@dataclass(frozen=True)
class Counts:
    """The outcome of a test: it caught `caught` of `members` draws with the record, and accused `accused` of `others` without."""

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
        """The quantity by which a threshold is chosen, for many thresholds at once; it rises with the bound."""
        ...


def ceiling(bound: TwoSampleBound, members: int, others: int) -> float:
    """The bound of a perfect attack: it catches all draws with the record, and accuses none without it."""
    return bound(Counts(members, members, 0, others))


@dataclass(frozen=True)
class Bound:
    """What every bound has.

    Attributes:
        delta: of the audit.
        confidence: with which the bound holds.
    """

    delta: float
    confidence: float = 0.99

    def __post_init__(self) -> None:
        _check(self.delta, self.confidence)


@dataclass(frozen=True)
class ClopperPearson(Bound):
    """``ln((TPR - delta) / FPR)`` and its mirror image, with exact binomial bounds of the two rates.

    Formal guarantees: no assumption on the mechanism. Half of the error probability goes to each rate. Both directions
    follow from the same two bounds, so taking the larger costs nothing. The test must not have been chosen on the draws
    that are counted.
    """

    @property
    def method(self) -> str:
        return "Clopper-Pearson"

    def __call__(self, counts: Counts) -> float:
        return max(0.0, float(self.merit(counts.caught, counts.members, counts.accused, counts.others)))

    def merit(self, caught: ArrayLike, members: int, accused: ArrayLike, others: int) -> Array:
        fnr, fpr = _error_rates(caught, members, accused, others, 1 - self.confidence)
        return np.maximum(_log_ratio(1 - fnr - self.delta, fpr), _log_ratio(1 - fpr - self.delta, fnr))


@dataclass(frozen=True)
class GaussianTradeOff(Bound):
    """The bound for a mechanism with the privacy of a Gaussian release, from a Poisson sample if `rate` is below 1.

    The two rates give the least shift mu between two unit Gaussians that allows them, and mu gives epsilon at any delta, also
    at a delta far below one over the number of draws, where counting alone sees nothing.

    Formal guarantees: only for mechanisms with that trade-off. Against a claim of that form, a refutation is right with the
    stated confidence. For a mechanism of another form the number says nothing.
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate <= 1:
            raise InputError(f"The sampling rate must lie in (0, 1], not {self.rate}.")

    @property
    def method(self) -> str:
        return "Gaussian trade-off" if self.rate == 1 else "sampled Gaussian trade-off"

    def __call__(self, counts: Counts) -> float:
        mu = float(self.merit(counts.caught, counts.members, counts.accused, counts.others))
        if not mu > 0:
            return 0.0
        return sampled_gaussian_epsilon(self.rate, mu, self.delta)

    def merit(self, caught: ArrayLike, members: int, accused: ArrayLike, others: int) -> Array:
        """The least mu: TPR <= (1 - rate) FPR + rate Phi(Phi^-1(FPR) + mu)."""
        fnr, fpr = _error_rates(caught, members, accused, others, 1 - self.confidence)
        hit = (1 - fnr - (1 - self.rate) * fpr) / self.rate
        # No shift allows a hit rate above 1 at this sampling rate; the largest float below 1 stands for it.
        hit = np.clip(hit, 0.0, 1 - 1e-16)
        with np.errstate(invalid="ignore"):
            mu = special.ndtri(hit) - special.ndtri(fpr)
        return np.asarray(np.nan_to_num(mu, nan=-np.inf, posinf=np.inf, neginf=-np.inf))


@dataclass(frozen=True)
class SampledStep:
    """The bound for a step on a Poisson sample, from two experiments: how often the record is drawn, and steps in which it
    always takes part (or never).

    Where a record is rarely drawn, nearly all releases of sampled steps tell nothing about it. Taking the two apart
    spends every draw on the step.

    Formal guarantees: half of the error probability goes to `rate`, half to the step. The sampled mechanism is the mixture of
    the step without the record and, with probability `rate`, the step with it; that is all that is assumed, and with
    `gaussian` that the step has a Gaussian trade-off, as the claim says.

    Attributes:
        delta: of the audit.
        confidence: of the rate and the step together.
        rate: a lower bound of the probability that the record is drawn; see `drawn`.
        gaussian: bound the step by a Gaussian trade-off, and otherwise by Clopper-Pearson.
    """

    delta: float
    confidence: float
    rate: float
    gaussian: bool = True

    @classmethod
    def drawn(cls, times: int, samples: int, delta: float, confidence: float, gaussian: bool) -> SampledStep:
        """The bound where the record was drawn `times` in `samples` samples."""
        _check(delta, confidence)
        rate = 1 - float(_upper(np.asarray(samples - times), samples, (1 - confidence) / 2))
        return cls(delta, confidence, rate, gaussian)

    @property
    def method(self) -> str:
        inner = "Gaussian trade-off" if self.gaussian else "Clopper-Pearson"
        return f"{inner} of the step, and Clopper-Pearson of the sampling rate"

    def __call__(self, counts: Counts) -> float:
        merit = float(self.merit(counts.caught, counts.members, counts.accused, counts.others))
        if not merit > 0 or not self.rate > 0:
            return 0.0
        return sampled_gaussian_epsilon(self.rate, merit, self.delta) if self.gaussian else merit

    def merit(self, caught: ArrayLike, members: int, accused: ArrayLike, others: int) -> Array:
        inner = 1 - (1 - self.confidence) / 2
        if self.gaussian:
            return GaussianTradeOff(self.delta, inner).merit(caught, members, accused, others)
        fnr, fpr = _error_rates(caught, members, accused, others, 1 - inner)
        return _log_ratio((1 - self.rate) * fpr + self.rate * (1 - fnr) - self.delta, fpr)


@dataclass(frozen=True)
class ClaimedForm:
    """The bound for a mechanism of the claimed form with less noise: the least reduction of the noise that allows the rates.

    It is the bound for compositions of (sampled) Gaussian steps, at any delta, as `GaussianTradeOff` is for one step.

    Formal guarantees: if the rates exceed what the privacy profile of `event` allows at any epsilon, the claim is refuted, with
    no further assumption on the mechanism. The number itself is the epsilon of the claimed events with less noise.
    """

    event: Event
    delta: float
    confidence: float = 0.99

    def __post_init__(self) -> None:
        _check(self.delta, self.confidence)

    @property
    def method(self) -> str:
        return "privacy profile of the claim"

    def __call__(self, counts: Counts) -> float:
        rates = _error_rates(counts.caught, counts.members, counts.accused, counts.others, 1 - self.confidence)
        fnr, fpr = (float(rate) for rate in rates)
        if fnr + fpr >= 1:
            return 0.0
        low, high = FACTORS[0], 1.0
        most = min(FACTORS[1], max(1.0, _least_noise(self.event) / LEAST_NOISE))
        while high < most and not self._allows(high, fnr, fpr):
            low, high = high, min(2 * high, most)
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._allows(middle, fnr, fpr) else (middle, high)
        if low == FACTORS[0]:
            return 0.0
        # The accountant bounds from above, to one part in ten thousand: subtract that again.
        return accountant_named("pld").epsilon(_with_less_noise(self.event, low), self.delta) * (1 - 3e-4)

    def merit(self, caught: ArrayLike, members: int, accused: ArrayLike, others: int) -> Array:
        return GaussianTradeOff(self.delta, self.confidence).merit(caught, members, accused, others)

    def _allows(self, times: float, fnr: float, fpr: float) -> bool:
        """Whether the claimed events, with noise that is `times` smaller, allow error rates as low as these."""
        epsilons = np.linspace(0.0, -math.log(min(fnr, fpr)), 60)
        deltas = accountant_named("pld").deltas(_with_less_noise(self.event, times, FEW_EVENTS), epsilons)
        seen = np.maximum(1 - fnr - np.exp(epsilons) * fpr, 1 - fpr - np.exp(epsilons) * fnr)
        return bool((seen <= deltas).all())


@dataclass(frozen=True)
class OneRun(Bound):
    """The bound from one training with many canaries, each in with probability one half (Steinke, Nasr and Jagielski 2023).

    Formal guarantees: for any mechanism and any guesser, against a claim for adding or removing one record. The coins must be
    independent and fair; the number of guesses must not depend on the outcomes of the canaries that are guessed.
    """

    @property
    def method(self) -> str:
        return "one run"

    def __call__(self, correct: int, guesses: int, canaries: int) -> float:
        """The largest epsilon at which this many right guesses are too unlikely."""
        if not (0 <= correct <= guesses <= canaries and guesses > 0):
            raise InputError(
                f"{canaries} canaries, {guesses} guessed and {correct} right: these are no counts of one run."
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
        """The probability of at least this many right guesses under (epsilon, delta)-DP."""
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


def sampled_gaussian_epsilon(rate: float, mu: float, delta: float) -> float:
    """The epsilon of a Gaussian release of shift mu from a Poisson sample; never too large."""
    if rate == 1:
        return gdp_epsilon(mu, delta)
    # The accountant bounds from above, to one part in ten thousand: subtract that again.
    return accountant_named("pld").epsilon(PoissonSampled(rate, Gaussian(1 / mu)), delta) * (1 - 3e-4)


def _with_less_noise(event: Event, times: float, most: float = math.inf) -> Event:
    """The same (sampled) Gaussian events with noise that is `times` smaller.

    If there are more than `most` different ones, their noise is rounded down to powers of 1.05: the profile is a little too high,
    and much faster to compute.
    """
    leaves = tally(event)
    base = 1.05 if len(leaves) > most else None
    return composed(*(_less_noise(leaf, times, base) * count for leaf, count in leaves))


def _less_noise(event: Event, times: float, base: float | None) -> Event:
    if isinstance(event, Gaussian):
        sigma = event.noise_multiplier
        rounded = sigma if base is None else base ** math.floor(math.log(sigma, base))
        return Gaussian(rounded / times)
    if isinstance(event, Under):
        return _less_noise(event.event, times, base)
    if isinstance(event, PoissonSampled | PaddedPoisson):
        return replace(event, event=_less_noise(event.event, times, base))
    raise InputError(f"A bound by the claimed form is for (sampled) Gaussian events, not for {type(event).__name__}.")


def _least_noise(event: Event) -> float:
    """The least noise multiplier of (sampled) Gaussian events."""
    found = math.inf
    for inner, _ in tally(event):
        while isinstance(inner, Under | PoissonSampled | PaddedPoisson):
            inner = inner.event
        if isinstance(inner, Gaussian):
            found = min(found, inner.noise_multiplier)
    return found


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
    """The probability of at least this many successes."""
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
