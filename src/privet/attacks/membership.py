"""Membership attacks on a classifier: by a threshold, with shadow models, LiRA and RMIA.

A record that the model fits well was probably trained on. A threshold attack (Yeom et al. 2018) needs one query per record
and no shadow models. None of these attacks gives an upper bound: an AUC of one half means that this attack learned nothing,
not that no attack can.

The attacker of Salem et al. 2018 trains a shadow model like the target on its own records, learns from the shadow's answers
what members look like, and applies that to the target's answers.

LiRA (Carlini et al. 2022) and RMIA (Zarifzadeh et al. 2024) compare the target's fit of a record with the fits of shadow
models, of which each record is in about half. LiRA describes the fits of the models with the record and of those without it
by two Gaussians, which takes many models. RMIA compares the record's likelihood with its mean over the models, and that
ratio with the ratios of other records, which works with few models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor, nn
from torch.nn import functional as F

from privet.attacks.classifiers import (
    Classifier,
    Inputs,
    Outputs,
    Records,
    Signal,
    Train,
    as_inputs,
    as_labels,
    class_scores,
    evaluating,
    halves,
    log_odds,
    membership_scores,
    shadow_outputs,
    train_each,
)
from privet.attacks.result import AttackResult, Roc
from privet.attacks.target import AttackByShadows, Sample, Target, halved, register, require, why_no_model
from privet.data import Progress, Split
from privet.errors import InputError, PrivetError

AttackKey = Literal["loss", "confidence", "shadow", "lira", "rmia"]
_TITLES = {"loss": "Loss threshold", "confidence": "Confidence threshold (the attacker has no labels)"}
_POWER = {
    "loss": "The attacker queries the model with each record and knows its label",
    "confidence": "The attacker queries the model with each record and does not know its label",
}


@dataclass(frozen=True)
class LossThreshold:
    """Score each record by how well the model fits it, and separate members from others by a threshold.

    Attributes:
        signal: "loss" ranks by the cross-entropy of the true label, which is the same as by the confidence in it;
            "confidence" ranks by the largest class probability, for an attacker who does not know the labels. Both scores
            are log-odds, log p - log(1 - p): the same order, without rounding if p is almost one. For a regression, "loss" ranks
            by the size of the error.
        outputs: whether the model's class scores are logits or probabilities.
        batch_size: records per query.
    """

    signal: Signal = "loss"
    outputs: Outputs = "logits"
    batch_size: int = 1000

    @property
    def key(self) -> str:
        """The signal."""
        return self.signal

    @property
    def title(self) -> str:
        """The name for readers."""
        return _TITLES[self.signal]

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target; empty if it can."""
        if target.members.is_regression and self.signal == "loss":
            return "it attacks a model, and there is none" if target.model is None else ""
        return why_no_model(target, 1, 1)

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Score all members and all others."""
        require(self, target)
        sides = [self._all(target.model, side) for side in (target.members, target.others)]
        is_class = not target.members.is_regression
        return AttackResult.of(self.title, Roc.of(*sides), attack=self, power=_POWER[self.signal], log_odds=is_class)

    def __call__(self, model: Classifier, members: Records, non_members: Records) -> Roc:
        """The ROC of the attack on any classifier; each side is a pair of inputs and integer labels."""
        return Roc.of(self.scores(model, *members), self.scores(model, *non_members))

    def scores(self, model: Classifier, inputs: Inputs, labels: Inputs) -> NDArray[np.float64]:
        """One score per record, higher for a better fit."""
        return membership_scores(
            model, inputs, labels, signal=self.signal, outputs=self.outputs, batch_size=self.batch_size
        )

    def _all(self, model: Classifier, records: Split) -> NDArray[np.float64]:
        """The scores of a split, a batch at a time: stored records may be larger as floats than the memory."""
        batches = torch.arange(len(records)).split(self.batch_size)
        if records.is_regression:
            assert isinstance(model, nn.Module)
            with torch.no_grad(), evaluating(model):
                errors = [(model(x).flatten() - y).abs() for x, y in map(records.batch, batches)]
            return -torch.cat(errors).double().numpy()
        return np.concatenate([self.scores(model, *records.batch(rows)) for rows in batches])


register(LossThreshold("loss"))
register(LossThreshold("confidence"))


@dataclass(frozen=True, eq=False)
class MembershipModel:
    """A network that predicts from a classifier's answer whether the record was trained on."""

    network: nn.Module

    def scores(self, model: Classifier, inputs: Inputs, outputs: Outputs = "logits") -> NDArray[np.float64]:
        """The log-odds of membership of each record; labels are not used."""
        with torch.no_grad():
            two: Tensor = self.network(features(model, inputs, outputs)).double()
        result: NDArray[np.float64] = (two[:, 1] - two[:, 0]).numpy()
        return result


@dataclass(frozen=True)
class ShadowAttack:
    """How the attack network learns: one hidden layer of 64 units and a softmax, on all of the shadow's answers.

    The paper names no optimizer; this one is Adam for `epochs` passes.
    """

    hidden: int = 64
    epochs: int = 60
    batch_size: int = 128
    learning_rate: float = 3e-3

    def learn(
        self,
        shadow: Classifier,
        inside: Inputs,
        outside: Inputs,
        generator: torch.Generator,
        outputs: Outputs = "logits",
    ) -> MembershipModel:
        """Train the attack network on the answers of a shadow model for its training records and for others."""
        seen = [features(shadow, side, outputs) for side in (inside, outside)]
        x = torch.cat(seen)
        y = torch.cat([torch.ones(len(seen[0])), torch.zeros(len(seen[1]))]).long()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            network = nn.Sequential(nn.Linear(x.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, 2))
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        for _ in range(self.epochs):
            for chosen in torch.randperm(len(x), generator=generator).split(self.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(network(x[chosen]), y[chosen]).backward()
                optimizer.step()
        return MembershipModel(network)


def features(model: Classifier, inputs: Inputs, outputs: Outputs = "logits") -> Tensor:
    """The three largest class probabilities of each record, sorted; two if there are two classes."""
    probabilities = class_scores(model, inputs, outputs=outputs).softmax(dim=1)
    return probabilities.topk(min(3, probabilities.shape[1]), dim=1).values.float()


def shadow_roc(
    model: Classifier,
    members: Records,
    non_members: Records,
    train: Train,
    generator: torch.Generator,
    *,
    population: Records,
    outputs: Outputs = "logits",
) -> Roc:
    """Train a shadow model on half of the population, learn from its answers, and apply that to the target's answers."""
    x, y = as_inputs(population[0]), torch.as_tensor(population[1])
    inside, outside = torch.randperm(len(x), generator=generator).tensor_split(2)
    shadow = train((x[inside], y[inside]), generator)
    learned = ShadowAttack().learn(shadow, x[inside], x[outside], generator, shadow_outputs(train, outputs))
    return Roc.of(*(learned.scores(model, side[0], outputs) for side in (members, non_members)))


@register
@dataclass(frozen=True, kw_only=True)
class Shadow(AttackByShadows):
    """Learn from one shadow model what members look like. Half of the others train it, and are then not attacked."""

    key = "shadow"
    title = "Shadow model"
    fewest = (1, 8)

    def attacked(
        self, target: Target, members: Sample, others: Sample, train: Train, generator: torch.Generator
    ) -> AttackResult:
        """The attack on samples of both sides."""
        attacked, population = halved(others)
        generator = torch.Generator().manual_seed(self.seed)
        roc = shadow_roc(target.model, members, attacked, train, generator, population=population)
        power = (
            f"The attacker queries the model with each record, does not know its label, and has a shadow model of the same "
            f"architecture, {target.shadows} on other records"
        )
        return AttackResult.of(f"{self.title} ({target.shadows})", roc, attack=self, power=power)


@dataclass(frozen=True, eq=False)
class Quarters:
    """The result of `quarters`: the ROC, the two models, and the indices of the target's records."""

    roc: Roc
    target: Classifier
    shadow: Classifier
    target_in: Tensor
    target_out: Tensor


def quarters(
    train: Train,
    inputs: Inputs,
    labels: Inputs,
    generator: torch.Generator,
    attack: ShadowAttack | None = None,
) -> Quarters:
    """The whole protocol: a training set is divided into quarters (shadow in and out, target in and out).

    Both models are trained by `train`. The attack network learns from all of the shadow's answers and is tested on all of the
    target's.
    """
    x, y = as_inputs(inputs), torch.as_tensor(labels)
    if len(x) < 4 or len(x) != len(y):
        raise InputError(f"{len(x)} inputs and {len(y)} labels cannot be quartered: give at least four of each.")
    shadow_in, shadow_out, target_in, target_out = torch.randperm(len(x), generator=generator).tensor_split(4)
    attack = attack or ShadowAttack()
    shadow, target = (train((x[part], y[part]), generator) for part in (shadow_in, target_in))
    learned = attack.learn(shadow, x[shadow_in], x[shadow_out], generator)
    roc = Roc.of(learned.scores(target, x[target_in]), learned.scores(target, x[target_out]))
    return Quarters(roc, target, shadow, target_in, target_out)


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
@dataclass(frozen=True, kw_only=True)
class Lira(AttackByShadows):
    """Compare the target's fit of each record with the fits of shadow models trained with it and without it.

    Attributes:
        shadows: how many shadow models; an even number, 4 or more.
    """

    key = "lira"
    title = "LiRA"

    shadows: int = 16

    def attacked(
        self, target: Target, members: Sample, others: Sample, train: Train, generator: torch.Generator
    ) -> AttackResult:
        """The attack on samples of both sides."""
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
@dataclass(frozen=True, kw_only=True)
class Rmia(AttackByShadows):
    """Compare each record's likelihood ratio with those of other records, using few shadow models.

    Half of the others are the population that records are compared with, and are then not attacked.

    Attributes:
        shadows: how many shadow models; online an even number.
        gamma: how much larger the ratio of a record must be than that of a population record.
        offline: train no shadow model on the records in question, only on the population.
        a: offline, the correction for the missing models; a convention.
    """

    key = "rmia"
    title = "RMIA"
    fewest = (2, 8)

    shadows: int = 4
    gamma: float = 1.0
    offline: bool = False
    a: float = 0.3

    def attacked(
        self, target: Target, members: Sample, others: Sample, train: Train, generator: torch.Generator
    ) -> AttackResult:
        """The attack on samples of both sides."""
        found = rmia(
            target.model,
            members,
            *halved(others),
            train,
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
    models = "1 shadow model" if shadows == 1 else f"{shadows} shadow models"
    return f"{title} ({models}, {found.how.split(':')[0]}, {target.shadows})"


def _power(shadows: int, target: Target, records: str) -> str:
    models = "1 shadow model" if shadows == 1 else f"{shadows} shadow models"
    return (
        f"The attacker queries the model with each record, knows its label, and has {models} of the same architecture, "
        f"{target.shadows} on {records}"
    )


def membership(
    model: Classifier,
    members: Records,
    non_members: Records,
    *,
    attack: AttackKey = "loss",
    train: Train | None = None,
    population: Records | None = None,
    shadows: int | None = None,
    outputs: Outputs = "logits",
    seed: int = 0,
) -> Roc:
    """Can records that a classifier was trained on be told from records that it was not trained on?

        privet.attacks.membership(model, (x_train, y_train), (x_test, y_test)).auc

    Args:
        model: a torch module, a scikit-learn estimator, or a function from a batch to class scores.
        members, non_members: inputs and integer labels, as arrays or tensors; both from the same distribution.
        attack: "loss" and "confidence" threshold the fit, with and without the label; "shadow" learns from one shadow
            model; "lira" and "rmia" compare each record with what shadow models make of it. "rmia" needs few of them.
        train: for the last three: from inputs and labels, and a generator, to a classifier like the target.
            `privet.attacks.Fitting` does this for torch modules, and trains many at once.
        population: other records of the distribution that the target was not trained on. "shadow" trains on half of them;
            "rmia" compares each record with them; "lira" can train on them too.
        shadows: how many shadow models "lira" (default 16) or "rmia" (default 4) trains.
        outputs: whether the model's class scores are logits or probabilities.
        seed: of the shadow models.
    """
    if attack not in ("loss", "confidence", "shadow", "lira", "rmia"):
        raise InputError(f"There is no attack {attack!r}: there are loss, confidence, shadow, lira and rmia.")
    unused = {"train": train, "population": population, "shadows": shadows} if attack in ("loss", "confidence") else {}
    unused |= {"shadows": shadows} if attack == "shadow" else {}
    for name, value in unused.items():
        if value is not None:
            raise InputError(f"The {attack} attack does not use {name}: leave it out, or choose the attack 'lira'.")
    if attack in ("loss", "confidence"):
        return LossThreshold("loss" if attack == "loss" else "confidence", outputs)(model, members, non_members)
    if train is None:
        raise InputError(f"The {attack} attack trains its own models: give train, for example privet.attacks.Fitting.")
    generator = torch.Generator().manual_seed(seed)
    if attack == "lira":
        shadows = 16 if shadows is None else shadows
        return lira(
            model, members, non_members, train, generator, shadows=shadows, population=population, outputs=outputs
        ).roc
    if population is None:
        use = "trains on" if attack == "shadow" else "compares with"
        raise InputError(f"The {attack} attack {use} other records: give population, inputs and labels.")
    if attack == "shadow":
        return shadow_roc(model, members, non_members, train, generator, population=population, outputs=outputs)
    shadows = 4 if shadows is None else shadows
    return rmia(model, members, non_members, population, train, generator, shadows=shadows, outputs=outputs).roc
