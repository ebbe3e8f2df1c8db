"""The result of a membership attack: its ROC with confidence intervals, and the plain form that a run record keeps."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from privet.attacks.target import Attack

Array = NDArray[np.float64]
CURVE_POINTS = 400
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval and the method that computed it."""

    low: float
    high: float
    level: float
    method: str

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Operating:
    """Precision and recall at one threshold. The precision depends on the number of members; it is None if nobody is accused."""

    threshold: float
    precision: float | None
    recall: float


@dataclass(frozen=True, eq=False)
class Roc:
    """The receiver operating characteristic of the scores of members and non-members.

    Point i of the curve calls every record with a score of at least `thresholds[i]` a member. The first point has an
    infinite threshold and calls nobody a member. Tied scores enter together: the curve does not pretend to separate them.
    """

    members: Array
    non_members: Array
    thresholds: Array
    false_positive_rate: Array
    true_positive_rate: Array

    @classmethod
    def of(cls, members: ArrayLike, non_members: ArrayLike) -> Roc:
        """The curve from the scores of records in the training data and of records that were not in it."""
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
        """The standard error of the AUC (DeLong et al. 1988), which does not assume a distribution of the scores."""
        return math.sqrt(_mann_whitney(self.members, self.non_members)[1])

    def auc_interval(self, level: float = 0.95) -> Interval:
        """A confidence interval of the AUC: DeLong's variance on the logit scale.

        That variance is zero, and useless, if the sample separates perfectly or every score is tied. The interval is then
        Newcombe's (2006, method 5), which stays wide in these cases.
        """
        if not 0 < level < 1:
            raise InputError(f"A confidence level must lie between 0 and 1, and this one is {level}.")
        auc, variance = _mann_whitney(self.members, self.non_members)
        z = float(stats.norm.ppf((1 + level) / 2))
        if variance == 0:
            low, high = _newcombe(auc, self.members.size, self.non_members.size, z)
            return Interval(low, high, level, "Newcombe")
        half = z * math.sqrt(variance) / (auc * (1 - auc))
        center = special.logit(auc)
        return Interval(
            float(special.expit(center - half)),
            float(special.expit(center + half)),
            level,
            "DeLong, logit scale",
        )

    def tpr_at(self, fpr: float) -> float:
        """The best true positive rate at a false positive rate of at most `fpr`, without interpolation."""
        return float(self.true_positive_rate[self._point_at(fpr)])

    def tpr_interval(self, fpr: float, level: float = 0.95) -> Interval:
        """The Clopper-Pearson interval of `tpr_at(fpr)`, taking the threshold as given."""
        n = self.members.size
        caught = round(self.tpr_at(fpr) * n)
        tail = (1 - level) / 2
        low = stats.beta.ppf(tail, caught, n - caught + 1) if caught else 0.0
        high = stats.beta.ppf(1 - tail, caught + 1, n - caught) if caught < n else 1.0
        return Interval(float(low), float(high), level, "Clopper-Pearson")

    def at(self, threshold: float) -> Operating:
        """Precision and recall if every record with a score of at least `threshold` is called a member."""
        caught, accused = int((self.members >= threshold).sum()), int((self.non_members >= threshold).sum())
        precision = caught / (caught + accused) if caught + accused else None
        return Operating(threshold, precision, caught / self.members.size)

    def resolves(self, fpr: float) -> bool:
        """Whether there are enough non-members for a false positive rate of `fpr` to allow one false positive."""
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
            raise InputError(f"A false positive rate must lie between 0 and 1, and this one is {fpr}.")
        return int(np.searchsorted(self.false_positive_rate, fpr, side="right")) - 1


@dataclass(frozen=True)
class Rate:
    """The true positive rate at one false positive rate, with its confidence interval."""

    fpr: float
    tpr: float
    low: float
    high: float


@dataclass(frozen=True)
class AttackResult:
    """The plain form of a membership attack: its figures, and its ROC thinned for drawing.

    Attributes:
        name: the attack in words, with what distinguishes this use of it.
        members, non_members: how many records of each side were attacked.
        auc, low, high, level, method: the area under the ROC and its confidence interval.
        rates: true positive rates at low false positive rates.
        false_positive_rate, true_positive_rate: the curve, thinned for drawing.
        points: precision and recall if records with a score of at least 0.5, 0.6, ... (as a probability) are called members;
            empty if the scores are no log-odds.
        key: the attack's key in the table of attacks; empty in records of version 0.1.0, like the fields that follow.
        date: when the attack ran, in UTC and ISO format.
        command: the command that ran it; empty if it ran from Python.
        power: what the attacker knows and trains, in words. It names no number of records, so that it can be published
            even if the number of records is private.
        settings: the attack's fields.
    """

    name: str
    members: int
    non_members: int
    auc: float
    low: float
    high: float
    level: float
    method: str
    rates: tuple[Rate, ...]
    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]
    points: tuple[Operating, ...] = ()
    key: str = ""
    date: str = ""
    command: tuple[str, ...] = ()
    power: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def resolves(self, rate: Rate) -> bool:
        """Whether there are enough non-members for that false positive rate to allow one false positive."""
        return self.non_members * rate.fpr >= 1

    @classmethod
    def of(
        cls,
        name: str,
        roc: Roc,
        fprs: tuple[float, ...] = (0.001, 0.01),
        level: float = 0.95,
        *,
        attack: Attack | None = None,
        power: str = "",
        log_odds: bool = True,
    ) -> AttackResult:
        """The plain form of a ROC, dated now. Key and settings are those of `attack`; `log_odds` says what the scores are."""
        interval = roc.auc_interval(level)
        rates = []
        for fpr in fprs:
            bounds = roc.tpr_interval(fpr, level)
            rates.append(Rate(fpr, roc.tpr_at(fpr), bounds.low, bounds.high))
        fpr_curve, tpr_curve = roc.thinned(CURVE_POINTS)
        return cls(
            name=name,
            members=roc.members.size,
            non_members=roc.non_members.size,
            auc=roc.auc,
            low=interval.low,
            high=interval.high,
            level=level,
            method=interval.method,
            rates=tuple(rates),
            false_positive_rate=tuple(fpr_curve.tolist()),
            true_positive_rate=tuple(tpr_curve.tolist()),
            # The record of a run gives the threshold as a probability.
            points=tuple(
                dataclasses.replace(roc.at(math.log(p / (1 - p))), threshold=p) for p in THRESHOLDS if log_odds
            ),
            key=attack.key if attack is not None else "",
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            power=power,
            settings=settings_in(attack),
        )


def settings_in(attack: Any) -> dict[str, Any]:
    """The fields of an attack as JSON takes them, if it is a dataclass; anything but numbers and text becomes text."""
    if not dataclasses.is_dataclass(attack):
        return {}
    held = {item.name: getattr(attack, item.name) for item in dataclasses.fields(attack)}
    return {name: value if _is_plain(value) else str(value) for name, value in held.items()}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _checked(scores: ArrayLike, whose: str) -> Array:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InputError(
            f"The scores of the {whose} must be one non-empty row of numbers, and have the shape {array.shape}."
        )
    if np.isnan(array).any():
        raise PrivetError(
            f"{int(np.isnan(array).sum())} scores of the {whose} are not a number: check the model's outputs."
        )
    return array


def _share_at_least(scores: Array, values: Array) -> Array:
    """The share of scores at or above each of the descending values, after a zero for the infinite threshold."""
    counts = scores.size - np.searchsorted(np.sort(scores), values, side="left")
    return np.concatenate([[0.0], counts / scores.size])


def _mann_whitney(members: Array, non_members: Array) -> tuple[float, float]:
    """The AUC and its variance by DeLong, from midranks: O(n log n), and exact with ties."""
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
    """The interval of t with |t - auc| <= z sqrt(V(t)); V is Hanley and McNeil's variance with m and n averaged."""
    mean_size = (m + n) / 2 - 1

    def excess(t: float) -> float:
        variance = t * (1 - t) * (1 + mean_size * ((1 - t) / (2 - t) + t / (1 + t))) / (m * n)
        return (t - auc) ** 2 - z**2 * variance

    # The excess is zero at 0 and at 1 by construction; the root we want lies strictly between them.
    inside = 1e-12
    low = 0.0 if auc == 0 else float(optimize.brentq(excess, 0.0, min(auc, 1 - inside)))
    high = 1.0 if auc == 1 else float(optimize.brentq(excess, max(auc, inside), 1.0))
    return low, high
