"""The best of a secret, random number of trials: how many there are, and what the best of them costs.

Choosing the best of several private runs costs more than one run: the choice depends on the records. If the number of runs is
fixed, all of them have to be paid for. If it is drawn at random and stays secret, much less has to be paid (Liu and
Talwar 2019; Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from privet.errors import InputError

Array = npt.NDArray[np.float64]

NAMES: dict[str, float | None] = {"poisson": None, "geometric": 1.0, "logarithmic": 0.0}
"""The distributions with a name of their own, each with its shape."""
MOST_TRIALS = 500.0
"""The largest mean: more trials would never end, and e^-mean must not underflow."""
_NEGLIGIBLE = 1e-20
"""Numbers of trials above the mean that are less likely than this are never drawn."""


@dataclass(frozen=True)
class Trials:
    """The distribution of the number of trials: Poisson, or truncated negative binomial.

    The truncated negative binomial of shape eta >= 0 has P(k) proportional to (1 - gamma)^k times the product of
    (l + eta) / (l + 1) over l < k, for k = 1, 2, ...: geometric for eta = 1, logarithmic for eta = 0. A smaller shape costs less
    and has a longer tail.

    Attributes:
        mean: the mean number of trials, at least 1.
        shape: eta; None for the Poisson distribution, which can draw no trial at all.
    """

    mean: float
    shape: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("mean", self.mean), ("shape", 0.0 if self.shape is None else self.shape)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise InputError(f"The {name} of the number of trials must be a number, and is {value!r}.")
        if not 1 <= self.mean <= MOST_TRIALS:
            raise InputError(f"The mean number of trials must be between 1 and {MOST_TRIALS:g}, and is {self.mean!r}.")
        if self.shape is not None and not 0 <= self.shape <= 100:
            raise InputError(f"The shape of a negative binomial must be between 0 and 100, and is {self.shape!r}.")

    @classmethod
    def named(cls, text: str, mean: float) -> Trials:
        """From the name of a distribution: poisson, geometric, logarithmic, or negative-binomial:SHAPE."""
        name, colon, number = text.partition(":")
        if name in NAMES and not colon:
            return cls(mean, NAMES[name])
        if name == "negative-binomial" and colon:
            try:
                return cls(mean, float(number))
            except ValueError:
                pass
        raise InputError(
            f"There is no distribution {text!r} of the number of trials: there are {', '.join(NAMES)} and "
            f"negative-binomial:SHAPE, with a shape of at least 0."
        )

    @property
    def name(self) -> str:
        for name, shape in NAMES.items():
            if shape == self.shape:
                return name
        return f"negative-binomial:{self.shape:g}"

    def __str__(self) -> str:
        return f"{self.name} with mean {self.mean:g}"

    @cached_property
    def gamma(self) -> float:
        """The parameter of the truncated negative binomial with this mean, which falls with gamma; rounded down."""
        shape = self._eta
        if shape == 1:
            return 1 / self.mean
        low, high = 0.0, 1.0
        while high - low > 1e-15 * high:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (low, middle) if _mean(middle, shape) < self.mean else (middle, high)
        return low if self.mean > 1 else 1.0

    def probabilities(self) -> Iterator[tuple[int, float]]:
        """Each number of trials with its probability, in order, without end."""
        if self.shape is None:
            probability, count = math.exp(-self.mean), 0
            while True:
                yield count, probability
                count += 1
                probability *= self.mean / count
        gamma, shape = self.gamma, self._eta
        probability, count = (1 - gamma) / _grown(gamma, shape) if gamma < 1 else 1.0, 1
        while True:
            yield count, probability
            probability *= (1 - gamma) * (count + shape) / (count + 1)
            count += 1

    def never(self, chance: float) -> float:
        """The probability that something never happens which each trial has the `chance` of."""
        if not 0 <= chance <= 1:
            raise InputError(f"A chance is a probability, and this is {chance!r}.")
        if self.shape is None:
            return math.exp(-self.mean * chance)
        gamma, shape = self.gamma, self._eta
        left = gamma + (1 - gamma) * chance  # 1 - (1 - gamma)(1 - chance), which is at least gamma
        if gamma == 1:
            return 1 - chance
        return _grown(left, shape) / _grown(gamma, shape)

    @property
    def nothing(self) -> float:
        """The probability that there is no trial at all."""
        return math.exp(-self.mean) if self.shape is None else 0.0

    def quantile(self, level: float) -> int:
        """The least number of trials that is not passed with probability `level`.

        At a uniform random level this draws the number of trials, up to chances that floating point cannot tell from 0.
        """
        if not 0 <= level < 1:
            raise InputError(f"The level of a quantile must be at least 0 and below 1, and is {level!r}.")
        below = 0.0
        for count, probability in self.probabilities():
            below += probability
            if below > level or (probability < _NEGLIGIBLE and count > self.mean):
                return count
        raise AssertionError("the numbers have no end")

    @property
    def _eta(self) -> float:
        assert self.shape is not None
        return self.shape

    # --- what the best of the trials costs --------------------------------------------------------------------------

    def best(self, orders: npt.ArrayLike, single: npt.ArrayLike, deltas: npt.ArrayLike = ()) -> Array:
        """The Renyi divergences of the best of the trials, from those of one trial.

        Args:
            orders: ascending, above 1.
            single: a bound of the divergence of one trial at each order.
            deltas: for the Poisson distribution: a bound of the delta of one trial at each of `epsilons(orders)`.

        Formal guarantees: Papernot and Steinke 2022. Theorem 2, for the truncated negative binomial: with divergences e at the
        order a and f at any order b, e' = e + (1 + eta) ((1 - 1/b) f + ln(1/gamma) / b) + ln(mean) / (a - 1). Theorem 6, for
        the Poisson distribution: if one trial is also (ln(1 + 1/(a - 1)), d)-differentially private, e' = e + mean d +
        ln(mean) / (a - 1). Divergences grow with the order, so a bound at one order holds at all lower ones.
        """
        order, cost = np.asarray(orders, dtype=np.float64), np.asarray(single, dtype=np.float64)
        if not (order > 1).all() or (np.diff(order) <= 0).any():
            raise InputError("The orders must be above 1 and ascend.")
        many = math.log(self.mean) / (order - 1)
        if self.shape is None:
            total = cost + self.mean * np.asarray(deltas, dtype=np.float64) + many
        else:
            chosen = np.min((1 - 1 / order) * cost - math.log(self.gamma) / order)
            total = cost + (1 + self._eta) * chosen + many
        return np.asarray(np.minimum.accumulate(total[::-1])[::-1])

    @staticmethod
    def epsilons(orders: npt.ArrayLike) -> Array:
        """The epsilon of each order at which `best` needs the delta of one trial."""
        return np.log1p(1 / (np.asarray(orders, dtype=np.float64) - 1))


def _grown(gamma: float, shape: float) -> float:
    """(gamma^-shape - 1) / shape, and its limit ln(1/gamma) for shape 0."""
    exponent = -shape * math.log(gamma)
    return -math.log(gamma) if shape == 0 else math.expm1(exponent) / shape


def _mean(gamma: float, shape: float) -> float:
    """The mean of the truncated negative binomial: (1/gamma - 1) / ((1 - gamma^shape) / shape)."""
    # 1 - gamma^shape = gamma^shape (gamma^-shape - 1); near gamma = 1 both differences are exact through expm1 and log1p.
    shrunk = -math.expm1(shape * math.log(gamma)) / shape if shape else -math.log(gamma)
    return (1 / gamma - 1) / shrunk if shrunk else 1.0
