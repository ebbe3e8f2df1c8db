"""PATE: teachers of disjoint records label public records by noisy voting, and a student learns these labels alone.

Papernot et al. 2017 and 2018, with Gaussian noisy-max aggregation. Everything after the votes is post-processing.
`VotedLabels` uses the same teachers to label artificial examples that another method made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from privet.audit import Audit
from privet.data import Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError, PrivetError
from privet.io.moved import joined_arguments, moved_names
from privet.methods.class_moments import scatters
from privet.methods.method import Context, Method, Outcome, Power, Ran, Task, TrainedModel, option, register
from privet.methods.preparation import arguments, build_model, reserve_accuracy
from privet.methods.recipe import chosen
from privet.methods.synthetic import Order, Synthesizer, Synthetic, kept
from privet.methods.voting import (
    OLD_CONTEXT,
    Answers,
    Confidence,
    KernelTeacher,
    OnStep,
    PublicView,
    Teach,
    Voting,
    check_teachers,
    kernel,
    label_by_votes,
    voting_audits,
)
from privet.models import scattering_linear
from privet.models.features import OnFeatures
from privet.privacy import Budget, Event, Gaussian, Ledger, NoisyVotes, PublicRecords, Relation
from privet.randomness import Randomness


@dataclass(frozen=True)
class StudentTraining:
    """The training of the student: the answers are smoothed over similar public records, and the student learns the result.

    Attributes:
        ridge: of the smoothing.
        steps, learning_rate, decay, batch_size: of Adam on the public records with their smoothed labels.
    """

    ridge: float = 0.1
    steps: int = 1000
    learning_rate: float = 1e-3
    decay: float = 1e-3
    batch_size: int = 100


@dataclass(frozen=True, eq=False)
class TrainedByVotes:
    """The student, and what was done to the records."""

    model: nn.Module
    ledger: Ledger
    answers: Answers
    never: tuple[int, ...] = field(default=())
    """Classes that are in no answer, so that the student never predicts them. Computed from the answers only."""


def usual_teachers(records: int, epsilon: float) -> int:
    """The default number of teachers: that of the paper, or more for a small budget; each has at least fifty records."""
    return max(2, min(250 if epsilon >= 2 else 1000, records // 50))


def usual_queries(teachers: int, budget: Budget, public: int) -> int:
    """The default number of queries: as many as can be answered with noise of a fifth of the number of teachers."""
    one = budget.least(NoisyVotes, what="noise of the votes")
    return max(1, min(public, math.floor((teachers / 5 / one) ** 2)))


def _with_queries(voting: Voting | None, queries: int | None) -> Voting:
    return replace(voting or Voting(0), queries=queries)


@joined_arguments({**OLD_CONTEXT, "queries": ("voting", _with_queries)})
def train(
    model: nn.Module,
    records: Split,
    public: Tensor,
    classes: int,
    *,
    epsilon: float,
    delta: float,
    named: str,
    voting: Voting | None = None,
    student: StudentTraining | None = None,
    teach: Teach | None = None,
    seed: int | None = None,
    context: Context | None = None,
) -> TrainedByVotes:
    """Train `model` on public records and the labels that teachers of the private ones vote for.

    Args:
        model: the student, which maps inputs of `public` to a score for each class.
        records: the private records.
            public: records without labels that the caller states to be public; the same fixed transform must have made both.
        classes: the public number of classes.
        epsilon, delta: the budget, including what the ledger of `context` already holds.
        named: a description of the public records, for the ledger.
        voting, teach: as in `privet.methods.voting.label_by_votes`; 0 teachers stand for `usual_teachers`. They are asked about
            the first public records, as many as `voting` says, or `usual_queries`.
        student: how the student learns.
        seed: makes the run repeatable, and unfit for release.
        context: where the run is recorded and kept; in memory by default. The ledger may have either relation. Called after
            each teacher, and after each step of the student.

    Formal guarantees: (epsilon, delta) for adding, removing or replacing one private record, whatever the teachers are:
    one record changes one teacher. The student sees the public records and the released labels, and nothing else.
    """
    if len(public) == 0:
        raise InputError("PATE needs public records without labels, and there are none.")
    context, student = context or Context(Ledger(unit=records.unit)), student or StudentTraining()
    voting = voting or Voting(0)
    context.releases.get("public-records", lambda ledger: ledger.record(PublicRecords(len(public), named)))
    answers, labels = label_all(
        records,
        public,
        classes,
        budget=Budget(epsilon, delta, context.ledger.relation),
        context=context,
        randomness=Randomness.of(seed),
        voting=voting if voting.teachers else replace(voting, teachers=usual_teachers(records.units, epsilon)),
        teach=teach,
        ridge=student.ridge,
    )

    def learned() -> dict[str, Tensor]:
        _fit(model, public, labels, student, seed, context.on_step)
        return model.state_dict()

    model.load_state_dict(context.releases.keep("student", learned))
    model.eval()
    never = tuple(sorted(set(range(classes)) - set(answers.labels.tolist())))
    return TrainedByVotes(model, context.ledger, answers, never)


def label_all(
    records: Split,
    inputs: Tensor,
    classes: int,
    *,
    budget: Budget,
    context: Context,
    randomness: Randomness,
    voting: Voting,
    teach: Teach | None = None,
    ridge: float = StudentTraining.ridge,
) -> tuple[Answers, Tensor]:
    """The answers of the teachers for the first of `inputs`, and a label for each input, computed from the answers.

    `inputs` are public, or artificial examples that were released before. The other arguments and the guarantees are those of
    `label_by_votes`: all labels are post-processing of the answers.
    """
    # Fixed before the votes are in the ledger: a resumed run must not compute this number again.

    def affordable() -> int:
        return usual_queries(voting.teachers, budget.after(context.ledger, fixed_beforehand=True), len(inputs))

    count = voting.queries if voting.queries is not None else context.releases.keep("queries", affordable)
    check_queries(count, len(inputs))
    view = PublicView.of(inputs)
    seen = view(inputs)
    answers = label_by_votes(
        records,
        (seen if teach is None else inputs)[:count],
        classes,
        budget=budget,
        context=context,
        randomness=randomness,
        voting=voting,
        teach=teach or KernelTeacher(view),
    )
    if len(answers.labels.unique()) < 2:
        raise PrivetError("All answers name the same class, so a student cannot learn from them: ask more queries.")
    return answers, _smoothed(seen, answers, classes, ridge)


def check_queries(queries: int, public: int) -> None:
    """Raise unless there are that many public records to ask about."""
    if not 1 <= queries <= public:
        raise InputError(f"{queries:,} queries cannot be asked of {public:,} public records.")


def _smoothed(seen: Tensor, answers: Answers, classes: int, ridge: float) -> Tensor:
    """The class of every public record according to the answers near it, by kernel least squares.

    An answered record is judged by the other answers (leave-one-out, in closed form),
    so that the student does not learn its noise.
    """
    known = seen[answers.queries]
    targets = one_hot(answers.labels, classes).to(known.dtype)
    mean = targets.mean(0)
    inverse = torch.linalg.inv(kernel(known, known) + ridge * torch.eye(len(known)))
    weights = inverse @ (targets - mean)
    scores = torch.cat([kernel(rows, known) @ weights + mean for rows in seen.split(1000)])
    scores[answers.queries] = targets - weights / inverse.diagonal()[:, None]
    return scores.argmax(1)


def _fit(
    model: nn.Module, inputs: Tensor, labels: Tensor, student: StudentTraining, seed: int | None, on_step: OnStep | None
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=student.learning_rate, weight_decay=student.decay)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, student.steps)
    # The order reveals nothing private, so it needs no secret randomness.
    generator = torch.Generator().manual_seed(seed or 0)
    order = inputs.new_empty(0, dtype=torch.int64)
    model.train()
    for step in range(1, student.steps + 1):
        if len(order) < student.batch_size:
            order = torch.cat([order, torch.randperm(len(inputs), generator=generator)])
        rows, order = order[: student.batch_size], order[student.batch_size :]
        optimizer.zero_grad()
        cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
        falling.step()
        if on_step is not None:
            on_step({"what": "Student", "step": step, "steps": student.steps})
    model.eval()


@register
@dataclass(frozen=True, kw_only=True)
class Pate(Method):
    """PATE: the model of a recipe learns public records with labels for which teachers of the private records vote.

    Only the model and the fixed features of the recipe are used, not its settings.

    Attributes:
        teachers: number of teachers; 0 for the usual number for these records and this budget.
        queries: number of public records that the teachers label; 0 for as many as their noise allows.
        threshold, threshold_noise: answer only if a class has this many votes, counted with this noise; 0 answers all queries.
    """

    noise_path = "votes"
    source = "Papernot et al. 2018"
    noise_is = "votes of teachers on public records"
    proof = "for the noisy counts: proved; the data-dependent cost is not for release"
    protects_users = True
    needs_public = True

    key: str = "pate"
    title: str = "PATE, Gaussian noisy-max votes (Papernot et al. 2018)"
    recipe: str = option("", "the recipe whose model is the student; without it, the one that fits the records")
    model: str = option("", "another model for the student: a name of privet.models, or py:package.module:Net")
    teachers: int = 0
    queries: int = 0
    threshold: float = 0.0
    threshold_noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teachers == 1:
            raise InputError("A vote needs at least two teachers: give more, or 0 for the usual number.")
        if (self.threshold > 0) != (self.threshold_noise > 0):
            raise InputError("Confident voting takes both a threshold and a threshold_noise above 0, in votes.")

    def release_audits(
        self, ran: Ran, power: Power, progress: Progress | None = None
    ) -> tuple[tuple[Audit, ...], Event]:
        """All answers of the run."""
        return voting_audits(ran.ledger, **power.asked(ran.delta, progress))

    def example(self, noise: float, rate: float, steps: int, delta: float) -> Ran:
        if rate != 1:
            raise InputError(
                "Every record has a teacher, so the votes have no sampling rate: leave it out (--rate, rate)."
            )
        ledger = Ledger()
        ledger.record(NoisyVotes(noise), steps)
        return Ran(ledger, delta)

    def fit(self, task: Task, context: Context) -> Outcome:
        assert task.public is not None
        recipe, _ = chosen(self.recipe, task.dataset, self.model)
        public, dataset = task.public, task.dataset
        model = build_model(recipe, dataset, task.seed)
        part, seen, unlabeled = model, dataset, public.other
        if isinstance(model, OnFeatures):
            seen = compute_features(dataset, model.features, model.key, progress=context.progress)
            part = nn.Sequential(model.standardise, model.head)
            if unlabeled is not None:
                unlabeled = compute_features(unlabeled, model.features, model.key, progress=context.progress)
        seen = set_aside(seen, public.aside)
        inputs = (seen["public"] if unlabeled is None else unlabeled.train).tensors[0]
        if isinstance(model, OnFeatures):
            model.standardise.mean.copy_(inputs.mean(0).view_as(model.standardise.mean))
        confidence = Confidence(self.threshold, self.threshold_noise) if self.threshold_noise else None
        teachers = self.teachers or usual_teachers(dataset.size, task.epsilon)
        voting = Voting(teachers, confidence, self.queries or None)
        check_teachers(voting.teachers, dataset.size, len(dataset.classes))
        if self.queries:
            check_queries(self.queries, len(inputs))
        accuracy = reserve_accuracy(task, context)
        done = train(
            part,
            seen.train,
            inputs,
            len(dataset.classes),
            epsilon=task.epsilon,
            delta=task.delta,
            named=public.named,
            voting=voting,
            seed=task.seed,
            context=context,
        )
        named = f"{public.named[0].upper()}{public.named[1:]}"
        return Outcome(
            TrainedModel(model, part, seen.train, seen.test, recipe.model.name, arguments(recipe, dataset)),
            settings=_told(recipe.name, voting, done, len(inputs), dataset.classes),
            internal={"Data-dependent cost": str(done.answers.internal)},
            accuracy=accuracy,
            set_aside=public.aside,
            note=f"{named} were taken as public, without their labels: they are not protected",
        )


def _told(recipe: str, voting: Voting, done: TrainedByVotes, public: int, classes: tuple[str, ...]) -> dict[str, str]:
    """The settings as page and card show them: public ones, and what was released."""
    answers, confidence, student = done.answers, voting.confidence, StudentTraining()
    answered = "all answered"
    if confidence is not None:
        answered = (
            f"{len(answers.labels):,} answered: those with {confidence.threshold:g} votes for a class, counted with noise of "
            f"{confidence.noise:g} votes"
        )
    shown = {
        "Recipe": f"{recipe}: its model for the student, and its fixed features",
        "Teachers": f"{voting.teachers:,}, each on its own part of the records, which are dealt out at random",
        "Queries": f"{answers.asked:,} of {public:,} public records, {answered}",
        "Noise": f"Gaussian, {answers.noise:.4g} votes on each count; the class that wins is released",
        "Student": f"Adam, {student.steps:,} steps on all public records; answers smoothed over records that are alike",
    }
    if done.never:
        shown["Never answered"] = ", ".join(classes[number] for number in done.never)
    return shown


if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)


_AT_ONCE = 128


@dataclass(frozen=True)
class VotedLabels:
    """The examples of another method, with labels that teachers vote for; each teacher has a part of the records.

    Formal guarantees: those of `method`, and of `privet.methods.voting.label_by_votes` with the examples as queries, which
    were released before: all is in one ledger, and the votes spend what `method` left of the order's budget. A record is
    protected with its label.

    Attributes:
        method: makes the examples; the labels that it gives them are not used.
        votes_share: the share of the budget for the votes (in mu^2 of the Gaussian trade-off, where releases add up).
        teachers: number of teachers, each with its own part of the records.
        queries: number of examples that the teachers label; 0 means as many as their noise allows. Every example, answered or
            not, gets the label of similar ones.
        threshold, threshold_noise: confident voting answers only if the largest noisy count reaches the threshold; a noise of 0
            means that every query is answered.
    """

    method: Synthesizer
    votes_share: float = 0.5
    teachers: int = 250
    queries: int = 0
    threshold: float = 0.0
    threshold_noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.votes_share < 1:
            raise InputError(f"votes_share is a part of the budget, between 0 and 1, and is {self.votes_share:g}.")
        if (self.threshold > 0) != (self.threshold_noise > 0):
            raise InputError("Confident voting takes both a threshold and a threshold_noise above 0, in votes.")

    @property
    def title(self) -> str:
        return f"{self.method.title}, labeled by noisy votes"

    @property
    def relation(self) -> Relation:
        return self.method.relation

    def synthesize(self, records: Split, order: Order, context: Context) -> Synthetic:
        check_teachers(self.teachers, order.number_of(records), order.classes)
        if self.queries > order.size:
            raise InputError(f"{self.queries:,} queries cannot be asked of {order.size:,} examples.")
        inner = self._for_inputs(order)
        made = kept("examples", context, lambda: self.method.synthesize(records, inner, context))
        known, asked = _seen(records, made.inputs, order)
        sure = Confidence(self.threshold, self.threshold_noise) if self.threshold_noise else None
        answers, labels = label_all(
            known,
            asked,
            order.classes,
            budget=Budget(order.epsilon, order.delta, context.ledger.relation),
            context=context,
            randomness=Randomness.apart("votes", order.seed),
            voting=Voting(self.teachers, sure, self.queries or None),
        )
        settings = made.settings | {
            "Votes": f"with {100 * self.votes_share:g} % of the budget",
            "Labels": self._told(answers, order),
        }
        return replace(made, labels=labels, soft=None, settings=settings, place="voted labels")

    def _for_inputs(self, order: Order) -> Order:
        """The order for the method, with the budget without the share of the votes."""
        budget = Budget(order.epsilon, order.delta, self.relation, "gdp")
        noise = budget.least(Gaussian) / math.sqrt(1 - self.votes_share)
        return replace(order, epsilon=budget.spent(Gaussian(noise)).epsilon, labels="protected")

    def _told(self, answers: Answers, order: Order) -> str:
        answered = "all answered"
        if self.threshold_noise:
            answered = (
                f"{len(answers.labels):,} answered, with {self.threshold:g} votes and noise of {self.threshold_noise:g}"
            )
        return (
            f"by vote of {self.teachers:,} teachers, each of its own part of the records; {answers.asked:,} of {order.size:,} "
            f"examples asked, {answered}; noise of {answers.noise:.4g} votes on each count; the others by those that are alike"
        )


def _seen(records: Split, examples: Tensor, order: Order) -> tuple[Split, Tensor]:
    """The features that the teachers see: fixed scattering coefficients for images that have them."""
    shape = tuple(examples.shape[1:])
    if not scatters(shape):
        return records, examples
    channels, height, width = shape
    model = scattering_linear(channels, height, width, order.classes)
    dataset = Dataset(order.source, tuple(map(str, range(order.classes))), {"train": records})
    with torch.no_grad():
        asked = torch.cat([model.features(some) for some in examples.split(_AT_ONCE)])
    return compute_features(dataset, model.features, model.key).train, asked
