"""The receiver operating characteristic of a membership attack, with its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from privet.errors import InputError, PrivetError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval and the name of the method that made it."""

    low: float
    high: float
    level: float
    method: str

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Operating:
    """What one threshold achieves; the precision depends on how many members there are, and is none if nobody is accused."""

    threshold: float
    precision: float | None
    recall: float


@dataclass(frozen=True, eq=False)
class Roc:
    """What a threshold on the scores of members and of non-members achieves.

    Point i of the curve says "member" of every score of at least `thresholds[i]`; the first point, with an
    infinite threshold, says it of none. Tied scores enter together: the curve never pretends to separate them.
    """

    members: Array
    non_members: Array
    thresholds: Array
    false_positive_rate: Array
    true_positive_rate: Array

    @classmethod
    def of(cls, members: ArrayLike, non_members: ArrayLike) -> Roc:
        """The curve of the scores of records that were in the training data and of records that were not."""
        inside, outside = _checked(members, "members"), _checked(non_members, "non-members")
        values = np.unique(np.concatenate([inside, outside]))[::-1]
        return cls(
            members=inside,
            non_members=outside,
            thresholds=np.concatenate([[np.inf], values]),
            false_positive_rate=_share_at_least(outside, values),
            true_positive_rate=_share_at_least(inside, values),
        )

    @property
    def auc(self) -> float:
        """The probability that a member scores higher than a non-member; a tie counts one half."""
        return _mann_whitney(self.members, self.non_members)[0]

    @property
    def auc_standard_error(self) -> float:
        """The standard error of the AUC (DeLong et al. 1988), which assumes no shape of the scores."""
        return math.sqrt(_mann_whitney(self.members, self.non_members)[1])

    def auc_interval(self, level: float = 0.95) -> Interval:
        """A confidence interval of the AUC: DeLong's variance on the logit scale.

        Where the sample separates perfectly, or every score is tied, that variance is zero and says nothing;
        the interval is then Newcombe's (2006, method 5), which stays wide there.
        """
        if not 0 < level < 1:
            raise InputError(f"A confidence level lies between 0 and 1, and this one is {level}.")
        auc, variance = _mann_whitney(self.members, self.non_members)
        z = float(stats.norm.ppf((1 + level) / 2))
        if variance == 0:
            low, high = _newcombe(auc, self.members.size, self.non_members.size, z)
            return Interval(low, high, level, "Newcombe")
        half = z * math.sqrt(variance) / (auc * (1 - auc))
        centre = special.logit(auc)
        return Interval(
            float(special.expit(centre - half)),
            float(special.expit(centre + half)),
            level,
            "DeLong, logit scale",
        )

    def tpr_at(self, fpr: float) -> float:
        """The best true positive rate whose false positive rate is at most `fpr`, without interpolation."""
        return float(self.true_positive_rate[self._point_at(fpr)])

    def tpr_interval(self, fpr: float, level: float = 0.95) -> Interval:
        """The Clopper-Pearson interval of `tpr_at(fpr)`, the threshold taken as given."""
        n = self.members.size
        caught = round(self.tpr_at(fpr) * n)
        tail = (1 - level) / 2
        low = stats.beta.ppf(tail, caught, n - caught + 1) if caught else 0.0
        high = stats.beta.ppf(1 - tail, caught + 1, n - caught) if caught < n else 1.0
        return Interval(float(low), float(high), level, "Clopper-Pearson")

    def at(self, threshold: float) -> Operating:
        """Precision and recall where every score of at least `threshold` is called a member."""
        caught, accused = int((self.members >= threshold).sum()), int((self.non_members >= threshold).sum())
        precision = caught / (caught + accused) if caught + accused else None
        return Operating(threshold, precision, caught / self.members.size)

    def resolves(self, fpr: float) -> bool:
        """Whether there are enough non-members for a false positive rate of `fpr` to mean more than zero."""
        return self.non_members.size * fpr >= 1

    def thinned(self, points: int) -> tuple[Array, Array]:
        """At most `points` of the curve, for drawing: half evenly spaced, half spaced by the logarithm of the rate."""
        half = points // 2 - 1
        spaced = np.geomspace(1 / self.non_members.size, 1, half)
        wanted = np.searchsorted(
            self.false_positive_rate, np.concatenate([np.linspace(0, 1, half), spaced]), side="right"
        )
        kept = np.unique(np.concatenate([[0], wanted - 1, [self.thresholds.size - 1]]))
        return self.false_positive_rate[kept], self.true_positive_rate[kept]

    def _point_at(self, fpr: float) -> int:
        if not 0 <= fpr <= 1:
            raise InputError(f"A false positive rate lies between 0 and 1, and this one is {fpr}.")
        return int(np.searchsorted(self.false_positive_rate, fpr, side="right")) - 1


def _checked(scores: ArrayLike, whose: str) -> Array:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"The scores of the {whose} must be one non-empty row of numbers, not of shape {array.shape}.")
    if np.isnan(array).any():
        raise PrivetError(
            f"{int(np.isnan(array).sum())} scores of the {whose} are not a number: the model's output is bad."
        )
    return array


def _share_at_least(scores: Array, values: Array) -> Array:
    """The share of scores at or above each of the falling values, led by the infinite threshold's zero."""
    counts = scores.size - np.searchsorted(np.sort(scores), values, side="left")
    return np.concatenate([[0.0], counts / scores.size])


def _mann_whitney(members: Array, non_members: Array) -> tuple[float, float]:
    """The AUC and DeLong's variance of it, from midranks: O(n log n) and exact with ties."""
    m, n = members.size, non_members.size
    pooled = stats.rankdata(np.concatenate([members, non_members]))
    # The share of non-members that each member beats, and of members that beat each non-member.
    member_wins = (pooled[:m] - stats.rankdata(members)) / n
    non_member_losses = 1 - (pooled[m:] - stats.rankdata(non_members)) / m
    auc = float(member_wins.mean())
    variance = 0.0
    if m > 1 and n > 1:
        variance = float(member_wins.var(ddof=1) / m + non_member_losses.var(ddof=1) / n)
    return auc, variance


def _newcombe(auc: float, m: int, n: int, z: float) -> tuple[float, float]:
    """The t with |t - auc| <= z sqrt(V(t)); V is Hanley and McNeil's variance with m and n averaged."""
    mean_size = (m + n) / 2 - 1

    def excess(t: float) -> float:
        variance = t * (1 - t) * (1 + mean_size * ((1 - t) / (2 - t) + t / (1 + t))) / (m * n)
        return (t - auc) ** 2 - z**2 * variance

    # At 0 and at 1 the excess is zero by construction; the root that is wanted lies strictly inside.
    inside = 1e-12
    low = 0.0 if auc == 0 else float(optimize.brentq(excess, 0.0, min(auc, 1 - inside)))
    high = 1.0 if auc == 1 else float(optimize.brentq(excess, max(auc, inside), 1.0))
    return low, high
