"""Attacks on synthetic data: is it closer to the records it was made from than to others like them?

Each figure is compared with the same figure for held-out records of the same distribution: closeness alone is not a leak.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from privet.attacks.classifiers import Inputs, sample
from privet.attacks.result import AttackResult, Interval, Roc
from privet.attacks.target import Target, register, require, too_few
from privet.data import Progress
from privet.errors import InputError, PrivetError
from privet.io.moved import moved_arguments

Array = NDArray[np.float64]
CHUNK = 2048
DIVISIONS = 2000
"""How many random divisions of the records the permutation test makes."""
ASKED = 2000
"""How many records of each side are compared, at most."""
ROWS = 4000
"""How many synthetic rows membership attacks look at, at most."""


@dataclass(frozen=True)
class ClosestRecords:
    """The share of synthetic rows whose closest real record is a training record and not a held-out record.

    Without memorization the expected share is one half, because both sides have the same number of records. It varies far
    more than the number of rows suggests, because many rows can have the same closest record.

    Attributes:
        share: of the synthetic rows; a tie counts one half.
        by_chance: the interval of the share if the same records are divided into two sides at random. Above it, rows are
            closer to the training records than chance explains, if both kinds of records have the same distribution.
        to_training, to_holdout: the median distances.
        rows, records: the number of synthetic rows, and of records on each side.
        closest: the effective number of closest records, 1 / sum of squared shares of the rows.
    """

    share: float
    by_chance: Interval
    to_training: float
    to_holdout: float
    rows: int
    records: int
    closest: float

    @property
    def leaks(self) -> bool:
        """Whether the share is larger than chance explains."""
        return self.share > self.by_chance.high

    def __str__(self) -> str:
        low, high = 100 * self.by_chance.low, 100 * self.by_chance.high
        verdict = "more than chance explains" if self.leaks else "no more than chance explains"
        return (
            f"{100 * self.share:.1f} % of {self.rows:,} synthetic rows are closer to a training record than to a held-out "
            f"record, {verdict}: dividing the same {2 * self.records:,} records at random gives {low:.1f} to {high:.1f} % in "
            f"{100 * self.by_chance.level:g} % of cases, because the rows are close to about {self.closest:.0f} of them; "
            f"median distance {self.to_training:.4g} against {self.to_holdout:.4g}"
        )


@dataclass(frozen=True)
class Copies:
    """How many synthetic rows are copies of records, exactly or within a tolerance.

    Attributes:
        of_training, of_holdout: the number of rows that are copies of training records, and of held-out records.
        rows, training, holdout: the number of rows and records that were compared.
        tolerance: the largest Euclidean distance of a copy.
    """

    of_training: int
    of_holdout: int
    rows: int
    training: int
    holdout: int
    tolerance: float

    def __str__(self) -> str:
        how = "exact copies" if self.tolerance == 0 else f"copies within {self.tolerance:g}"
        return (
            f"{self.of_training:,} of {self.rows:,} synthetic rows are {how} of one of {self.training:,} training records, "
            f"{self.of_holdout:,} of one of {self.holdout:,} held-out records"
        )


def closest_records(
    synthetic: Inputs, training: Inputs, holdout: Inputs, generator: torch.Generator, level: float = 0.95
) -> ClosestRecords:
    """Compare the distance to the closest training record with that to the closest held-out record.

    Both sides have the same size: the larger one is sampled.

    Formal guarantees: this is a permutation test. If training and held-out records are exchangeable, and the rows do not
    depend on which is which, the share is outside `by_chance` with probability 1 - `level` (up to the number of random
    divisions), however the rows depend on each other.
    """
    rows, inside, outside = (_rows(part) for part in (synthetic, training, holdout))
    size = min(len(inside), len(outside))
    inside, outside = (side[torch.randperm(len(side), generator=generator)[:size]] for side in (inside, outside))
    (near, inner), (far, outer) = _closest(rows, inside), _closest(rows, outside)
    won = (near < far).double() + 0.5 * (near == far).double()
    # The share of the rows whose closest record is this one, for the records of both sides.
    weights = torch.cat([torch.bincount(place, part, size) for place, part in ((inner, won), (outer, 1 - won))]) / len(
        rows
    )
    divided = [weights[torch.randperm(2 * size, generator=generator)[:size]].sum() for _ in range(DIVISIONS)]
    tail = (1 - level) / 2
    low, high = torch.stack(divided).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    medians = float(near.median()), float(far.median())
    by_chance = Interval(low, high, level, "random divisions")
    return ClosestRecords(float(won.mean()), by_chance, *medians, len(rows), size, 1 / float(weights.square().sum()))


def distance_attack(synthetic: Inputs, members: Inputs, non_members: Inputs) -> Roc:
    """Membership by the distance to the closest synthetic row, which is small for a memorized record."""
    rows = _rows(synthetic)
    inside, outside = ((-nearest(_rows(side), rows)).numpy() for side in (members, non_members))
    return Roc.of(inside, outside)


def density_ratio(
    synthetic: Inputs, reference: Inputs, members: Inputs, non_members: Inputs, *, components: int = 8
) -> Roc:
    """Membership by log p(x | synthetic) - log p(x | reference), after DOMIAS (van Breugel et al. 2023).

    The score is high where the synthetic data is denser than the population, as an overfitted generator makes it. The
    densities are Gaussian kernels on the leading principal components of both sets. `reference` holds records of the
    population that are neither members nor the non-members in question.
    """
    parts = [_rows(part).numpy() for part in (synthetic, reference, members, non_members)]
    made, known = parts[:2]
    center = known.mean(axis=0)
    _, values, axes = np.linalg.svd(np.concatenate([made, known]) - center, full_matrices=False)
    kept = min(components, int((values > 1e-9 * values[0]).sum()), min(len(made), len(known)) - 2)
    if kept < 1:
        raise InputError(
            "The densities need more distinct rows: give more synthetic rows and more rows of the reference."
        )
    projected = [(part - center) @ axes[:kept].T for part in parts]
    densities = [stats.gaussian_kde(part.T) for part in projected[:2]]
    scores: list[Array] = [densities[0].logpdf(part.T) - densities[1].logpdf(part.T) for part in projected[2:]]
    return Roc.of(*(np.nan_to_num(score, nan=0.0) for score in scores))


def exact_copies(synthetic: Inputs, training: Inputs, holdout: Inputs, tolerance: float = 0.0) -> Copies:
    """Count the synthetic rows within `tolerance` (Euclidean distance) of a record; 0 means equality, and is quick."""
    if tolerance > 0:
        rows, inside, outside = (_rows(part) for part in (synthetic, training, holdout))
        copied, alike = (int((nearest(rows, side) <= tolerance).sum()) for side in (inside, outside))
    else:
        made, known, other = (list(_digests(part)) for part in (synthetic, training, holdout))
        copied, alike = (sum(digest in side for digest in made) for side in (set(known), set(other)))
    return Copies(copied, alike, len(synthetic), len(training), len(holdout), tolerance)


def _digests(inputs: Inputs) -> Iterator[bytes]:
    """One digest per row, equal for equal rows. Rows are converted in chunks, because float64 takes memory."""
    tensor = torch.as_tensor(inputs)
    for start in range(0, max(len(tensor), 1), CHUNK):
        for row in _plain(_rows(tensor[start : start + CHUNK])):
            yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def nearest(rows: Tensor, others: Tensor) -> Tensor:
    """The Euclidean distance from each row to the closest of the others."""
    return _closest(rows, others)[0]


def _closest(rows: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The Euclidean distance from each row to the closest of the others, and its index: the first of several."""
    distances, places = [], []
    for chunk in rows.split(CHUNK):
        best = torch.full((len(chunk),), float("inf"), dtype=rows.dtype)
        where = torch.zeros(len(chunk), dtype=torch.int64)
        for start in range(0, len(others), CHUNK):
            some = others[start : start + CHUNK]
            # Exact differences: with squares and products the distance of a copy would round to something above zero.
            found, place = torch.cdist(chunk, some, compute_mode="donot_use_mm_for_euclid_dist").min(1)
            where = torch.where(found < best, place + start, where)
            best = torch.minimum(best, found)
        distances.append(best)
        places.append(where)
    return torch.cat(distances), torch.cat(places)


def _rows(inputs: Inputs) -> Tensor:
    tensor = torch.as_tensor(inputs).to(torch.float64)
    if tensor.ndim < 2 or len(tensor) == 0:
        raise InputError(
            f"An attack on synthetic data needs rows of numbers, and was given the shape {tuple(tensor.shape)}."
        )
    if not bool(tensor.isfinite().all()):
        raise InputError("Some rows hold values that are not finite: replace them before the attack.")
    return tensor.flatten(1)


def _plain(rows: Tensor) -> Array:
    # Adding zero turns -0 into 0, whose bytes differ.
    plain: Array = np.ascontiguousarray(rows.numpy() + 0.0)
    return plain


# --- the registered attacks, and how close synthetic data is to records --------------------------------------------------


@register
@dataclass(frozen=True)
class Distance:
    """Membership by the distance to the closest synthetic row.

    Attributes:
        records: at most this many of each side are attacked.
        rows: at most this many synthetic rows are used.
        seed: of the samples.
    """

    records: int = ASKED
    rows: int = ROWS
    seed: int = 0

    key: ClassVar[str] = "distance"
    title: ClassVar[str] = "Distance to the closest synthetic example"

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target; empty if it can."""
        return _why_no_rows(target, 1, 1)

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Attack a sample of the members and a sample of the others."""
        require(self, target)
        rows, members, others, _ = _samples(target, self.records, self.rows, self.seed)
        power = "The attacker has the synthetic data and the records in question"
        roc = distance_attack(rows, members, others)
        return AttackResult.of(self.title, roc, attack=self, power=power, log_odds=False)


@register
@dataclass(frozen=True)
class Density:
    """Membership by the density of the synthetic rows compared with that of other records.

    Half of the others are the reference, and are then not attacked.

    Attributes:
        records: at most this many of each side, and of the synthetic rows, are used.
        components: principal components on which densities are estimated.
        seed: of the samples.
    """

    records: int = ASKED
    components: int = 8
    seed: int = 0

    key: ClassVar[str] = "density"
    title: ClassVar[str] = "Density of the synthetic examples"

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target; empty if it can."""
        return _why_no_rows(target, 1, 8, rows=3)

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Attack a sample of the members and half of a sample of the others."""
        require(self, target)
        rows, members, others, generator = _samples(target, self.records, ROWS, self.seed)
        reference, others = others.tensor_split(2)
        made = rows[torch.randperm(len(rows), generator=generator)[: self.records]]
        roc = density_ratio(made, reference, members, others, components=self.components)
        power = (
            "The attacker has the synthetic data, the records in question, and other records of the same distribution"
        )
        return AttackResult.of(self.title, roc, attack=self, power=power, log_odds=False)


def closeness(target: Target, *, records: int = ASKED, seed: int = 0) -> tuple[ClosestRecords, Copies]:
    """How close synthetic rows are to training records compared with held-out records, and how many are copies.

    Distances are those of at most `records` rows and records of each side; copies are counted among all of them.
    """
    if why := _why_no_rows(target, 1, 1):
        raise InputError(f"The distances to synthetic data cannot be compared: {why}.")
    generator = torch.Generator().manual_seed(seed)
    members, others = (sample(side, records, generator)[0] for side in (target.members, target.others))
    rows = some(target, records, generator)
    copies = exact_copies(_synthetic(target), target.members.tensors[0], target.others.tensors[0])
    return closest_records(rows, members, others, generator), copies


def _why_no_rows(target: Target, members: int, others: int, rows: int = 1) -> str:
    """Why an attack on synthetic data does not fit; empty if it does."""
    if target.synthetic is None:
        only = ", and only a model was released" if target.model is not None else ", and there is none"
        return f"it attacks synthetic data{only}"
    record, made = target.members.batch([0])[0].shape[1:], target.synthetic.shape[1:]
    if record != made:
        return f"synthetic rows have the shape {tuple(made)} and the records {tuple(record)}"
    if len(target.synthetic) < rows:
        return f"it needs at least {rows} synthetic rows, and there are {len(target.synthetic)}"
    return too_few(target, members, others)


def _samples(target: Target, records: int, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
    """Synthetic rows, members and others, and the generator that drew them."""
    generator = torch.Generator().manual_seed(seed)
    members, others = (sample(side, records, generator)[0] for side in (target.members, target.others))
    return some(target, rows, generator), members, others, generator


def some(target: Target, at_most: int, generator: torch.Generator) -> Tensor:
    """At most this many synthetic rows, in random order."""
    rows = _synthetic(target)
    return rows[torch.randperm(len(rows), generator=generator)[:at_most]]


def _synthetic(target: Target) -> Tensor:
    if target.synthetic is None:
        raise InputError("The target has no synthetic data: give synthetic.")
    return target.synthetic


# --- tables, by Anonymeter -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableRisk:
    """How much better an attacker with the synthetic table does on training records than on held-out records.

    Attributes:
        name: the attack.
        risk: the excess success, from 0 (no better than on held-out records) to 1.
        interval: the confidence interval of the risk.
        attack_rate, control_rate, guess_rate: how often the attack succeeded on training records, on held-out records, and
            by guessing.
    """

    name: str
    risk: float
    interval: Interval
    attack_rate: float
    control_rate: float
    guess_rate: float

    def __str__(self) -> str:
        return (
            f"{self.name}: risk {self.risk:.3f} ({100 * self.interval.level:g} % interval {self.interval.low:.3f} to "
            f"{self.interval.high:.3f}); succeeds on {100 * self.attack_rate:.1f} % of the records, "
            f"{100 * self.control_rate:.1f} % of held-out records, {100 * self.guess_rate:.1f} % by guessing"
        )


def singling_out(
    training: Any,
    synthetic: Any,
    holdout: Any,
    *,
    attacks: int = 500,
    columns: int = 3,
    level: float = 0.95,
    seed: int = 0,
) -> TableRisk:
    """Can an attacker use the synthetic table to make a statement that is true of exactly one real record?

    By Anonymeter (Giomi et al. 2023), an extra. The tables are pandas data frames with the same columns. `columns` is the
    number of columns that a statement combines.
    """
    evaluator = _evaluators().SinglingOutEvaluator(
        ori=training, syn=synthetic, control=holdout, n_attacks=attacks, n_cols=columns, seed=seed
    )
    return _evaluated(evaluator, "Singling out", level, mode="univariate" if columns == 1 else "multivariate")


@moved_arguments(renamed={"neighbours": "neighbors"})
def linkability(
    training: Any,
    synthetic: Any,
    holdout: Any,
    known: tuple[list[str], list[str]],
    *,
    attacks: int = 500,
    neighbors: int = 1,
    level: float = 0.95,
) -> TableRisk:
    """Can an attacker who knows the columns `known` use the synthetic table to join two parts of a record?

    By Anonymeter (Giomi et al. 2023), an extra.
    """
    evaluator = _evaluators().LinkabilityEvaluator(
        ori=training, syn=synthetic, control=holdout, aux_cols=known, n_attacks=attacks, n_neighbors=neighbors
    )
    return _evaluated(evaluator, "Linkability", level, n_jobs=1)


def _evaluated(evaluator: Any, name: str, level: float, **settings: Any) -> TableRisk:
    with warnings.catch_warnings():
        # Anonymeter warns if an attack does no better than guessing; the result says that too.
        warnings.simplefilter("ignore")
        evaluator.evaluate(**settings)
        results = evaluator.results(confidence_level=level)
        risk = results.risk()
    interval = Interval(float(risk.ci[0]), float(risk.ci[1]), level, "Anonymeter")
    rates = (float(rate.value) for rate in (results.attack_rate, results.control_rate, results.baseline_rate))
    return TableRisk(name, float(risk.value), interval, *rates)


def _evaluators() -> Any:
    try:
        return import_module("anonymeter.evaluators")
    except ImportError as error:
        raise PrivetError(
            f"Attacks on tables need Anonymeter, which is not installed ({error}): pip install 'privet[anonymeter]'. It "
            f"needs NumPy below 1.27, so use a separate environment."
        ) from None
