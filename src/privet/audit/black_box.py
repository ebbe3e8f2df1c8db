"""Audit any mechanism, called on two neighboring data sets, and any trainer, with canaries among its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from privet.audit.bounds import ClopperPearson, GaussianTradeOff, OneRun, TwoSampleBound
from privet.audit.result import Audit, Claim, Claimable, audit_guesses, audit_scores, resumable
from privet.data import Progress
from privet.errors import InputError, PrivetError
from privet.io.farm import farm_in_use
from privet.privacy import Relation
from privet.training.releases import spread

Randomized = Callable[[Any, torch.Generator], Any]
Score = Callable[[Any], float]
LabeledRecords = tuple[Tensor, Tensor]
Trainer = Callable[[LabeledRecords, torch.Generator], Any]
CanaryScore = Callable[[Any, Tensor, Tensor], ArrayLike]
Array = NDArray[np.float64]

# --- a mechanism ------------------------------------------------------------------------------------------------------


@resumable
def mechanism(
    fn: Randomized,
    data: Any,
    neighbour: Any,
    *,
    claimed: Claimable,
    delta: float = 0.0,
    score: Score | None = None,
    draws: int = 4000,
    confidence: float = 0.99,
    bound: TwoSampleBound | type[ClopperPearson | GaussianTradeOff] | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    seed: int = 0,
    progress: Progress | None = None,
    **words: str,
) -> Audit:
    """Bound the epsilon of a mechanism from below by calling it on two neighboring data sets.

        privet.audit.mechanism(noisy_sum, data=[1.0, 0.3], neighbour=[0.3], claimed=1.0)

    Formal guarantees: those of `bound`, by default Clopper-Pearson, which assumes nothing about `fn`. The score and its
    threshold are chosen on other draws than those that are counted. The draws are independent if `fn` takes all its
    randomness from the generator that it is given.

    Args:
        fn: from records and a generator to a release: numbers, arrays or tensors, also in lists or dictionaries.
        data: the records.
        neighbour: the same records without one of them, or with one of them replaced.
        claimed: an event, a ledger or a statement, or an epsilon at `delta`.
        delta: the delta of the claim. A claim by events holds at every delta, and a large delta needs fewer draws.
        score: a number for each release, higher for releases that look like those of `data`, such as a log-likelihood ratio.
            Without it, a quadratic logistic regression is learned on the first half of the draws.
        draws: how often `fn` is called on each of the two data sets.
        confidence: of the bound.
        bound: another bound than Clopper-Pearson, or its class, which gets `delta` and `confidence`.
        relation: how the two data sets differ, for a claim by events.
        seed: of the generators.
        progress: called with a description, the draws so far and all draws.
        words: `name` and other fields of the audit that are words, such as `setting`.
    """
    if draws < 40:
        raise InputError(f"An audit needs at least 40 draws, not {draws}.")
    made = bound or ClopperPearson
    chosen = made(delta, confidence) if isinstance(made, type) else made
    claim = Claim.of(claimed, delta, relation)
    name = words.pop("name", "") or getattr(fn, "__name__", type(fn).__name__).replace("_", " ")

    def tell(before: int, done: int) -> None:
        if progress is not None:
            progress(f"Auditing: {name}", before + done, 2 * draws)

    releases = [
        _drawn(fn, records, draws, seed + side, partial(tell, side * draws))
        for side, records in enumerate((data, neighbour))
    ]
    if score is not None:
        members, others = (np.array([float(score(release)) for release in side]) for side in releases)
        chosen_on = 0.25
    else:
        members, others = learned_scores(*(_matrix(side) for side in releases))
        chosen_on = 0.5
    return replace(
        audit_scores(members, others, claim=claim, bound=chosen, name=name, chosen_on=chosen_on),
        **words,  # type: ignore[arg-type]
    )


def learned_scores(members: Array, others: Array) -> tuple[Array, Array]:
    """Log-odds of "with the record" by a logistic regression on the values and their squares, learned on the first halves."""
    from sklearn.linear_model import LogisticRegression

    halves = members[: len(members) // 2], others[: len(others) // 2]
    seen = np.concatenate(halves)
    center, spread = seen.mean(axis=0), seen.std(axis=0)
    spread[spread == 0] = 1.0

    def features(rows: Array) -> Array:
        # Extreme values are cut: otherwise a single one could decide the regression.
        scaled = np.clip((rows - center) / spread, -30, 30)
        return np.concatenate([scaled, scaled**2], axis=1)

    labels = np.repeat([1, 0], [len(half) for half in halves])
    model = LogisticRegression(C=10.0, max_iter=2000).fit(features(seen), labels)
    return model.decision_function(features(members)), model.decision_function(features(others))


def _drawn(fn: Randomized, records: Any, draws: int, seed: int, tell: Callable[[int], None]) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for done in range(1, draws + 1):
        drawn.append(fn(records, generator))
        tell(done)
    return drawn


def _matrix(releases: Sequence[Any]) -> Array:
    rows = [np.concatenate(_parts(release)) for release in releases]
    if len({len(row) for row in rows}) > 1:
        raise InputError(
            "The releases differ in size, which reveals something by itself: give a score of how much each looks like the data."
        )
    matrix = np.stack(rows)
    if not np.isfinite(matrix).all():
        raise PrivetError("Some releases hold values that are not finite: give a score that can handle them.")
    return matrix


def _parts(release: Any) -> list[Array]:
    """Everything in a release, as flat rows of numbers."""
    if isinstance(release, Tensor):
        return [release.detach().to(torch.float64).numpy().reshape(-1)]
    if isinstance(release, Mapping):
        return [part for key in sorted(release) for part in _parts(release[key])]
    if isinstance(release, tuple | list):
        return [part for value in release for part in _parts(value)]
    return [np.asarray(release, dtype=np.float64).reshape(-1)]


# --- a trainer --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Canaries:
    """Records that are put into the data on purpose, chosen so that a model that memorizes anything memorizes them.

    `kind` says in words what they are.
    """

    inputs: Tensor
    labels: Tensor
    kind: str

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels) or not len(self.inputs):
            raise InputError(
                f"{len(self.inputs)} inputs and {len(self.labels)} labels are no canaries: give one label for each input."
            )

    def __len__(self) -> int:
        return len(self.labels)


def mislabelled(inputs: Tensor, labels: Tensor, count: int, classes: int, generator: torch.Generator) -> Canaries:
    """Ordinary records, each with a wrong label: a model fits them only by memorizing them.

    The records must not also be in the training data with their own labels.
    """
    if count > len(inputs):
        raise InputError(f"{count} canaries cannot be made of {len(inputs)} records: give more records.")
    if classes < 2:
        raise InputError("A wrong label needs at least two classes.")
    chosen = torch.randperm(len(inputs), generator=generator)[:count]
    shift = torch.randint(1, classes, (count,), generator=generator)
    return Canaries(inputs[chosen], (labels[chosen] + shift) % classes, "mislabelled records")


def out_of_distribution(shape: tuple[int, ...], count: int, classes: int, generator: torch.Generator) -> Canaries:
    """Uniform noise in [0, 1] with random labels: unlike all other records, so that none of them hides a canary."""
    inputs = torch.rand(count, *shape, generator=generator)
    return Canaries(inputs, torch.randint(classes, (count,), generator=generator), "records of uniform noise")


@resumable
def trainer(
    train: Trainer,
    data: LabeledRecords,
    canaries: Canaries,
    *,
    claimed: Claimable,
    delta: float,
    score: CanaryScore | None = None,
    runs: int = 1,
    guesses: int | None = None,
    confidence: float = 0.99,
    relation: Relation | str = Relation.ADD_REMOVE,
    name: str | None = None,
    seed: int = 0,
) -> Audit:
    """Bound the epsilon of a training from below, end to end.

    With one run, each canary is in the data with probability one half, the trainer runs once, and the attacker guesses. With
    more runs, the first canary is in the data of `runs` trainings and not in the data of as many others.

    Formal guarantees: those of the one-run bound or of Clopper-Pearson, which assume nothing about the trainer. The bound is
    for an attacker who sees only what `train` returns; a white-box attacker may see more.

    Args:
        train: from inputs and labels, and a generator, to a trained model.
        data: the other inputs and labels of the training data.
        canaries: see `mislabelled` and `out_of_distribution`; a thousand of them allow a bound of about 5.
        claimed: an event, a ledger, a statement, or an epsilon at `delta`.
        delta: of the claim.
        score: from the trained model and canaries to a score for each canary, higher if it seems to have been in the data.
            By default, the model is a classifier and the score is the log-odds of the canary's label.
        runs: 1, or the number of trainings on each side.
        guesses: the number of canaries that one run guesses; by default, it is chosen on a quarter of them.
        confidence: of the bound.
        relation: how neighboring data sets differ, for a claim by events.
        name: of the trainer, in words.
        seed: of the coins and of the generator.
    """
    claim = Claim.of(claimed, delta, relation)
    called = name or getattr(train, "__name__", type(train).__name__).replace("_", " ")
    generator = torch.Generator().manual_seed(seed)
    attempt = _Attempt(train, data, canaries, score or _label_log_odds)
    if runs == 1:
        coins = torch.rand(len(canaries), generator=generator) < 0.5
        return audit_guesses(
            attempt.scores(coins, generator),
            coins.numpy(),
            claim=claim,
            bound=OneRun(delta, confidence),
            name=called,
            setting=f"one training, {canaries.kind} each in with probability 1/2",
            guesses=guesses,
            seed=seed,
        )
    if runs < 40:
        raise InputError(f"{runs} trainings are too few to count: give runs=1, or at least 40.")
    # Each training has a seed of its own, so that its result does not depend on where it runs.
    seeds = torch.randint(2**62, (2 * runs,), generator=generator).tolist()
    work = [(attempt, place < runs, own) for place, own in enumerate(seeds)]
    if (farm := farm_in_use()) is not None:
        found = spread(farm, "run", _Attempt.score_of_first, work, lambda done, total: None)
    else:
        found = [attempt.score_of_first(present, own) for _, present, own in work]
    members, others = found[:runs], found[runs:]
    return audit_scores(
        members,
        others,
        claim=claim,
        bound=ClopperPearson(delta, confidence),
        name=called,
        setting=f"{runs} trainings with and {runs} without one of {canaries.kind}",
    )


@dataclass(frozen=True, eq=False)
class _Attempt:
    """One training with some of the canaries, and what its model says of all of them."""

    train: Trainer
    data: LabeledRecords
    canaries: Canaries
    rate: CanaryScore

    def scores(self, included: Tensor, generator: torch.Generator) -> Array:
        """The score of each canary, after a training with those that are included."""
        (inputs, labels), canaries = self.data, self.canaries
        records = torch.cat([inputs, canaries.inputs[included]]), torch.cat([labels, canaries.labels[included]])
        model = self.train(records, generator)
        found = np.asarray(self.rate(model, canaries.inputs, canaries.labels), dtype=np.float64)
        if found.shape != (len(canaries),):
            raise InputError(f"The score must give one number for each of {len(canaries)} canaries, not {found.shape}.")
        return found

    def score_of_first(self, present: bool, seed: int) -> float:
        """The score of the first canary, after a training with it or without it."""
        included = torch.zeros(len(self.canaries), dtype=torch.bool)
        included[0] = present
        return float(self.scores(included, torch.Generator().manual_seed(seed))[0])


def _label_log_odds(model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """log p - log(1 - p) of each label, by a module that returns logits or by an estimator of scikit-learn."""
    if hasattr(model, "predict_proba"):
        found = torch.as_tensor(model.predict_proba(inputs.flatten(1).numpy())).log()
    else:
        training = isinstance(model, nn.Module) and model.training
        if training:
            model.eval()
        with torch.no_grad():
            found = torch.cat([torch.as_tensor(model(part)) for part in inputs.split(1000)])
        if training:
            model.train()
    index, logits = labels.long()[:, None], found.double()
    rest = logits.scatter(1, index, -torch.inf).logsumexp(1)
    odds: Tensor = logits.gather(1, index).squeeze(1) - rest
    return odds
