"""PATE: teachers of disjoint records label public records by noisy voting, and a student learns these labels alone.

Papernot et al. 2017 and 2018, with Gaussian noisy-max aggregation. Everything after the votes is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from privet.audit import Audit
from privet.data import Progress, Split, compute_features, set_aside
from privet.errors import InputError, PrivetError
from privet.methods.method import Context, Method, Outcome, Power, Ran, Task, TrainedModel, option, register
from privet.methods.preparation import arguments, build_model, reserve_accuracy
from privet.methods.recipe import chosen
from privet.methods.voting import (
    Answers,
    Confidence,
    KernelTeacher,
    OnStep,
    PublicView,
    Teach,
    Voting,
    kernel,
    label_by_votes,
    votes_in,
)
from privet.models.features import OnFeatures
from privet.privacy import Budget, Ledger, NoisyVotes, PublicRecords
from privet.randomness import Randomness


@dataclass(frozen=True)
class Student:
    """How the student learns. The answers are smoothed over the public records that resemble each other, then learnt.

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
class Trained:
    """The student, and what was done to the records."""

    model: nn.Module
    ledger: Ledger
    answers: Answers
    never: tuple[int, ...] = field(default=())
    """Classes that no answer named: the student never says them. It follows from the answers alone."""


def usual_teachers(records: int, epsilon: float) -> int:
    """As many as in the paper, or more for a small budget; at least fifty records for each."""
    return max(2, min(250 if epsilon >= 2 else 1000, records // 50))


def usual_queries(teachers: int, budget: Budget, public: int) -> int:
    """As many as can be answered with noise of a fifth of the teachers: more labels, or better ones, do worse."""
    one = budget.least(NoisyVotes, what="noise of the votes")
    return max(1, min(public, math.floor((teachers / 5 / one) ** 2)))


def train(
    model: nn.Module,
    records: Split,
    public: Tensor,
    classes: int,
    *,
    epsilon: float,
    delta: float,
    named: str,
    queries: int | None = None,
    voting: Voting | None = None,
    student: Student | None = None,
    teach: Teach | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
    on_step: OnStep | None = None,
) -> Trained:
    """Train `model` on public records and the labels that teachers of the private ones vote for.

    Args:
        model: the student: from what `public` holds to a score for each class.
        records: the private records. `public`: those without labels that whoever calls states to be public; the same
            fixed transform must have made both.
        classes: how many; public.
        epsilon, delta: the budget, together with what `ledger` holds already.
        named: what the public records are, in words, for the ledger.
        queries: how many of the public records the teachers are asked about, the first ones; `usual_queries` without it.
        voting, teach: as in `privet.methods.voting.label_by_votes`.
        student: how the student learns.
        ledger: where it is recorded; its relation may be either.
        seed: makes the run repeatable, and unfit for release.
        on_step: called after each teacher, and after each step of the student.

    Formal guarantees: (epsilon, delta) for adding, removing or replacing one private record, whatever the teachers are:
    one record changes one teacher. The student sees the public records and the released labels, and nothing else.
    """
    if len(public) == 0:
        raise InputError("PATE needs public records without labels, and there are none.")
    ledger, student = ledger if ledger is not None else Ledger(unit=records.unit), student or Student()
    ledger.record(PublicRecords(len(public), named))
    answers, labels = label_all(
        records,
        public,
        classes,
        budget=Budget(epsilon, delta, ledger.relation),
        ledger=ledger,
        randomness=Randomness.of(seed),
        voting=voting or Voting(usual_teachers(records.units, epsilon)),
        queries=queries,
        teach=teach,
        ridge=student.ridge,
        on_step=on_step,
    )
    _fit(model, public, labels, student, seed, on_step)
    return Trained(model, ledger, answers, tuple(sorted(set(range(classes)) - set(answers.labels.tolist()))))


def label_all(
    records: Split,
    inputs: Tensor,
    classes: int,
    *,
    budget: Budget,
    ledger: Ledger,
    randomness: Randomness,
    voting: Voting,
    queries: int | None = None,
    teach: Teach | None = None,
    ridge: float = Student.ridge,
    on_step: OnStep | None = None,
) -> tuple[Answers, Tensor]:
    """What the teachers answered about the first `queries` of `inputs`, and from that a label for every one of them.

    `inputs` are public, or were released before: artificial examples. The other arguments are those of `label_by_votes`, whose
    guarantees these are: the labels of all are post-processing of the answers.
    """
    count = (
        usual_queries(voting.teachers, budget.after(ledger, fixed_beforehand=True), len(inputs))
        if queries is None
        else queries
    )
    if not 1 <= count <= len(inputs):
        raise InputError(f"{count:,} queries cannot be asked of {len(inputs):,} public records.")
    view = PublicView.of(inputs)
    seen = view(inputs)
    answers = label_by_votes(
        records,
        (seen if teach is None else inputs)[:count],
        classes,
        budget=budget,
        ledger=ledger,
        randomness=randomness,
        voting=voting,
        teach=teach or KernelTeacher(view),
        on_step=on_step,
    )
    if len(answers.labels.unique()) < 2:
        raise PrivetError("Every answer names the same class, and a student cannot learn from that: ask more queries.")
    return answers, _smoothed(seen, answers, classes, ridge)


def _smoothed(seen: Tensor, answers: Answers, classes: int, ridge: float) -> Tensor:
    """For every public record the class that the answers around it say, by kernel least squares.

    An answered record is judged by the other answers (leave-one-out, in closed form): its own noise would else be learnt.
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
    model: nn.Module, inputs: Tensor, labels: Tensor, student: Student, seed: int | None, on_step: OnStep | None
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=student.learning_rate, weight_decay=student.decay)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, student.steps)
    # Nothing private depends on the order, so that it needs no secret.
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
    """PATE: the model of a recipe learns public records with the labels that teachers of the private ones vote for.

    Of the recipe, the model and its fixed features are used; its settings are not.

    Attributes:
        teachers: how many teachers; 0 for the usual number for these records and this budget.
        queries: how many public records the teachers are asked about; 0 for as many as their noise allows.
        threshold, threshold_noise: answer only where a class has this many votes, counted with this noise; 0 for all queries.
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

    def audits(self, ran: Ran, power: Power, progress: Progress | None = None) -> tuple[Audit, ...]:
        """All answers of the run together."""
        found = votes_in(
            ran.ledger,
            delta=ran.delta,
            draws=power.draws,
            confidence=power.confidence,
            seed=power.seed,
            progress=progress,
        )
        said = "the noise of the votes and the number of answers in the ledger"
        return tuple(replace(one, audited=said, not_audited="the teachers") for one in found)

    def example(self, noise: float, rate: float, steps: int, delta: float) -> Ran:
        ledger = Ledger()
        ledger.record(NoisyVotes(noise), steps)
        return Ran(ledger, delta)

    def fit(self, task: Task, context: Context) -> Outcome:
        assert task.public is not None
        recipe, _ = chosen(self.recipe, task.dataset)
        recipe = recipe.with_model(self.model) if self.model else recipe
        public, dataset, ledger = task.public, task.dataset, context.ledger
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
        voting = Voting(self.teachers or usual_teachers(dataset.size, task.epsilon), confidence)
        accuracy = reserve_accuracy(task, context)
        done = train(
            part,
            seen.train,
            inputs,
            len(dataset.classes),
            epsilon=task.epsilon,
            delta=task.delta,
            named=public.named,
            queries=self.queries or None,
            voting=voting,
            ledger=ledger,
            seed=task.seed,
            on_step=context.on_step,
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


def _told(recipe: str, voting: Voting, done: Trained, public: int, classes: tuple[str, ...]) -> dict[str, str]:
    """The settings as page and card show them: public ones, and what was released."""
    answers, confidence, student = done.answers, voting.confidence, Student()
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
