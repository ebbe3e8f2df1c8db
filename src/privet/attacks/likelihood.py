"""Likelihood-ratio attacks: LiRA (Carlini et al. 2022) and RMIA (Zarifzadeh et al. 2024).

Both compare the target's fit of a record with the fits of shadow models, of which each record is in about half.
LiRA describes the fits of the models with the record and of those without it by two Gaussians, which takes many models.
RMIA compares the record's likelihood with its mean over the models, and that ratio with the ratios of other records,
which works with few models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from privet.attacks.classifiers import (
    Classifier,
    Outputs,
    Records,
    Train,
    as_inputs,
    as_labels,
    class_scores,
    halves,
    log_odds,
    membership_scores,
    sample,
    train_each,
)
from privet.attacks.result import AttackResult, Roc
from privet.attacks.target import Target, register, require, why_no_model
from privet.data import Progress
from privet.errors import InputError, PrivetError

OWN_SPREAD = 64
"""From this many shadow models on, each record's Gaussians have their own variance; below, all records share one."""
LOWEST = -1e6
"""Log-probabilities and log-odds are clamped at this value, so that a probability of zero stays finite."""


@dataclass(frozen=True, eq=False)
class ShadowRoc:
    """The ROC of an attack, and how its shadow models were trained, in words."""

    roc: Roc
    how: str


# --- LiRA ----------------------------------------------------------------------------------------------------------------


def lira(
    model: Classifier,
    members: Records,
    non_members: Records,
    train: Train,
    generator: torch.Generator,
    *,
    shadows: int = 16,
    population: Records | None = None,
    outputs: Outputs = "logits",
) -> ShadowRoc:
    """Attack a classifier with `shadows` models trained by `train` (a `Fitting` trains them in one pass).

    Each pair of shadow models divides all records (members, non-members and the population) in two halves, so that every
    record is in exactly half of the models. If the number of records is odd, each pair leaves one out.
    """
    if shadows < 4 or shadows % 2:
        raise InputError(f"LiRA needs an even number of shadow models, 4 or more, and {shadows} were requested.")
    inputs, labels = _joined(members, non_members, *([population] if population is not None else []))
    rows = halves(len(inputs), shadows, generator)
    ensemble = train_each(train, inputs, labels, rows, generator, outputs)
    asked = len(members[0]) + len(non_members[0])
    scores = ensemble.class_scores(inputs[:asked])
    fits = log_odds(scores, as_labels(labels[:asked], scores.shape[-1], asked))
    inside = torch.zeros(shadows, len(inputs), dtype=torch.bool).scatter_(1, rows, True)[:, :asked]
    target = membership_scores(model, inputs[:asked], labels[:asked], outputs=outputs)
    ratio = log_likelihood_ratio(torch.from_numpy(target), fits, inside)
    return ShadowRoc(Roc.of(ratio[: len(members[0])], ratio[len(members[0]) :]), ensemble.how)


def log_likelihood_ratio(target: Tensor, fits: Tensor, inside: Tensor) -> NDArray[np.float64]:
    """log N(fit; in) - log N(fit; out) for each record; `fits` and `inside` are models x records."""
    finite = fits.clamp(LOWEST, -LOWEST)
    ratio = torch.zeros_like(target)
    for chosen, sign in ((inside, 1.0), (~inside, -1.0)):
        count = chosen.sum(0)
        mean = (finite * chosen).sum(0) / count.clamp(min=1)
        squares = ((finite - mean).square() * chosen).sum(0)
        if len(fits) >= OWN_SPREAD:
            variance = squares / (count - 1).clamp(min=1)
        else:
            variance = (squares.sum() / (count.sum() - len(count)).clamp(min=1)).expand_as(target)
        spread = variance.sqrt().clamp(min=1e-6)
        distance = (target.clamp(LOWEST, -LOWEST) - mean) / spread
        ratio = ratio + sign * (-distance.square() / 2 - spread.log() - math.log(2 * math.pi) / 2)
    result: NDArray[np.float64] = ratio.numpy()
    return result


@register
@dataclass(frozen=True)
class Lira:
    """Compare the target's fit of each record with the fits of shadow models trained with it and without it.

    Attributes:
        shadows: how many shadow models; an even number, 4 or more.
        records: at most this many of each side are attacked.
        epochs: of the shadow models, unless the target says how it was trained.
        seed: of the sample and the shadow models.
    """

    shadows: int = 16
    records: int = 2000
    epochs: int = 20
    seed: int = 0

    key: ClassVar[str] = "lira"
    title: ClassVar[str] = "LiRA"

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target; empty if it can."""
        return why_no_model(target, 2, 2)

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Attack a sample of the members and a sample of the others."""
        require(self, target)
        generator = torch.Generator().manual_seed(self.seed)
        members, others = (sample(side, self.records, generator) for side in (target.members, target.others))
        train = target.trainer(self.epochs, progress)
        found = lira(target.model, members, others, train, generator, shadows=self.shadows)
        power = _power(self.shadows, target, "random halves of these records")
        return AttackResult.of(_name(self.title, self.shadows, found, target), found.roc, attack=self, power=power)


# --- RMIA ----------------------------------------------------------------------------------------------------------------


def rmia(
    model: Classifier,
    members: Records,
    non_members: Records,
    population: Records,
    train: Train,
    generator: torch.Generator,
    *,
    shadows: int = 4,
    gamma: float = 1.0,
    offline: bool = False,
    a: float = 0.3,
    outputs: Outputs = "logits",
) -> ShadowRoc:
    """Robust membership inference (Zarifzadeh, Liu and Shokri 2024, "Low-Cost High-Power Membership Inference Attacks").

    The score of a record x is the share of population records z that it beats by a factor of gamma:

        score(x) = share of z with LR(x, z) >= gamma,    LR(x, z) = (p(x | target) / p(x)) / (p(z | target) / p(z))

    p(x | model) is the model's softmax probability of the true label of x, and p(x) is its mean over the shadow models
    (the paper calls them reference models). The ROC ranks records by the log-odds of that share, with half a record added
    on both sides so that they stay finite.

    Online, each pair of shadow models divides all records in two halves, as in LiRA: p(x) is the mean over as many models
    with x as without it. Offline, shadow models are trained on halves of the population only and never see the records in
    question. The mean over models without x, p_out(x), then stands for both:

        p(x) = ((1 + a) p_out(x) + (1 - a)) / 2,    that is, p_in(x) is approximated by a p_out(x) + (1 - a)

    Everything is computed with logarithms.

    Differences from the paper: its experiments on images take a softmax variant (Taylor expansion with a soft margin,
    temperature 2) in place of the plain softmax, gamma 2, and several augmented copies of each record. The authors' tool
    Privacy Meter takes the plain softmax and gamma 1, and so does this function.

    Args:
        model: the target, any classifier.
        members, non_members: the records in question, inputs and integer labels.
        population: records z of the same distribution, that the target was not trained on.
        train: trains the shadow models (a `Fitting` trains them in one pass).
        generator: of the halves and the shadow models.
        shadows: how many shadow models; online an even number. 1, 2 or 4 are enough to be useful.
        gamma: how much larger the ratio of x must be than that of z.
        offline: train no shadow model on the records in question.
        a: between 0 and 1; the authors tune it per data set (about 0.3 for CIFAR-10). 0.3 is a convention, not a measurement.
        outputs: whether the model's class scores are logits or probabilities.
    """
    _check(shadows, gamma, offline, a, len(population[0]))
    asked = len(members[0]) + len(non_members[0])
    inputs, labels = _joined(members, non_members, population)
    # The records that shadow models are trained on start at this index: offline they are those of the population.
    start = asked if offline else 0
    rows = halves(len(inputs) - start, shadows, generator) + start
    ensemble = train_each(train, inputs, labels, rows, generator, outputs)
    reference = log_confidence(ensemble.class_scores(inputs), labels)
    chosen = torch.ones_like(reference, dtype=torch.bool)
    if offline:
        chosen.scatter_(1, rows, False)
    target = log_confidence(class_scores(model, inputs, outputs=outputs), labels)
    ratios = target - log_mean_confidence(reference, chosen, a if offline else None)
    # With a single offline model, the population records that it was trained on have no model without them.
    usable = chosen[:, asked:].any(0)
    shares = shares_beaten(ratios[:asked], ratios[asked:][usable], gamma)
    count = int(usable.sum())
    scores = special.logit((shares.numpy() * count + 0.5) / (count + 1))
    return ShadowRoc(Roc.of(scores[: len(members[0])], scores[len(members[0]) :]), ensemble.how)


def log_confidence(scores: Tensor, labels: Tensor) -> Tensor:
    """The log-probability of each record's label by the softmax; leading dimensions are models."""
    index = as_labels(labels, scores.shape[-1], scores.shape[-2]).expand(scores.shape[:-1])[..., None]
    return scores.log_softmax(dim=-1).gather(-1, index).squeeze(-1).clamp(min=LOWEST)


def log_mean_confidence(reference: Tensor, chosen: Tensor, a: float | None = None) -> Tensor:
    """log p(x) of each record: of the mean probability over the chosen models, corrected by `a` if these all lack x.

    `reference` (log-probabilities) and `chosen` are models x records.
    """
    mean = reference.masked_fill(~chosen, -math.inf).logsumexp(0) - chosen.sum(0).double().log()
    if a is None:
        return mean
    rest = math.log((1 - a) / 2) if a < 1 else -math.inf
    return torch.logaddexp(mean + math.log((1 + a) / 2), torch.full_like(mean, rest))


def shares_beaten(ratios: Tensor, population: Tensor, gamma: float) -> Tensor:
    """Of each log-ratio, the share of the population's log-ratios that lie below it by log(gamma) or more."""
    if bool(ratios.isnan().any()) or bool(population.isnan().any()):
        raise PrivetError(
            "Some probabilities are not a number: check the outputs of the model and of the shadow models."
        )
    ordered = population.sort().values
    return torch.searchsorted(ordered, ratios - math.log(gamma), right=True).double() / len(ordered)


@register
@dataclass(frozen=True)
class Rmia:
    """Compare each record's likelihood ratio with those of other records, using few shadow models.

    Half of the others are the population that records are compared with, and are then not attacked.

    Attributes:
        shadows: how many shadow models; online an even number.
        gamma: how much larger the ratio of a record must be than that of a population record.
        offline: train no shadow model on the records in question, only on the population.
        a: offline, the correction for the missing models; a convention.
        records: at most this many of each side are used.
        epochs: of the shadow models, unless the target says how it was trained.
        seed: of the sample and the shadow models.
    """

    shadows: int = 4
    gamma: float = 1.0
    offline: bool = False
    a: float = 0.3
    records: int = 2000
    epochs: int = 20
    seed: int = 0

    key: ClassVar[str] = "rmia"
    title: ClassVar[str] = "RMIA"

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target; empty if it can."""
        return why_no_model(target, 2, 8)

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Attack a sample of the members and half of a sample of the others."""
        require(self, target)
        generator = torch.Generator().manual_seed(self.seed)
        members, (x, y) = (sample(side, self.records, generator) for side in (target.members, target.others))
        half = len(x) // 2
        found = rmia(
            target.model,
            members,
            (x[:half], y[:half]),
            (x[half:], y[half:]),
            target.trainer(self.epochs, progress),
            generator,
            shadows=self.shadows,
            gamma=self.gamma,
            offline=self.offline,
            a=self.a,
        )
        name = _name("RMIA offline" if self.offline else self.title, self.shadows, found, target)
        halves_of = "random halves of other records" if self.offline else "random halves of these and other records"
        return AttackResult.of(name, found.roc, attack=self, power=_power(self.shadows, target, halves_of))


# --- both ----------------------------------------------------------------------------------------------------------------


def _joined(*sides: Records) -> tuple[Tensor, Tensor]:
    return torch.cat([as_inputs(side[0]) for side in sides]), torch.cat([torch.as_tensor(side[1]) for side in sides])


def _check(shadows: int, gamma: float, offline: bool, a: float, population: int) -> None:
    if shadows < 1 or (shadows % 2 and not offline):
        even = "at least one shadow model" if offline else "an even number of shadow models, 2 or more"
        raise InputError(f"RMIA needs {even}, and {shadows} were requested.")
    if not (gamma > 0 and math.isfinite(gamma)):
        raise InputError(f"gamma must be above 0, and is {gamma:g}.")
    if not 0 <= a <= 1:
        raise InputError(f"a must lie between 0 and 1, and is {a:g}.")
    if population < 2:
        raise InputError("RMIA compares records with a population of at least 2 records: give more.")


def _name(title: str, shadows: int, found: ShadowRoc, target: Target) -> str:
    noise = "without noise" if target.train is None else "trained as the target was"
    models = "1 shadow model" if shadows == 1 else f"{shadows} shadow models"
    return f"{title} ({models}, {found.how.split(':')[0]}, {noise})"


def _power(shadows: int, target: Target, records: str) -> str:
    models = "1 shadow model" if shadows == 1 else f"{shadows} shadow models"
    return (
        f"The attacker queries the model with each record, knows its label, and has {models} of the same architecture, "
        f"{target.shadows} on {records}"
    )
