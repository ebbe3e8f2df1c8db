"""White-box audits with the training code: of one private step, and of all steps of a plan, on parts rebuilt from a run.

Audits use clipping, noise and sampling only through `Course`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privet.audit.bounds import ClaimedForm, ClopperPearson, GaussianTradeOff, SampledStep, TwoSampleBound
from privet.audit.result import Audit, Claim, audit_scores, contradicted, resumable
from privet.clipping import (
    BoundedSum,
    Clipping,
    FlatClipping,
)
from privet.data import Progress
from privet.errors import InputError
from privet.gradients import Engine
from privet.io.moved import moved_arguments
from privet.noise import GaussianNoise, GroupedL2Noise, IsotropicL2Noise, Noise, ProductLaplaceNoise
from privet.privacy import Event, Gaussian, Ledger, PaddedPoisson, PoissonSampled, Relation, accountant_named
from privet.privacy.events import Under
from privet.randomness import Randomness
from privet.sampling import FixedSizeSampling, PoissonSampling
from privet.training import Plan
from privet.training.plan import PlanState
from privet.training.releases import kept_here
from privet.training.step import Step, StepResult

RecordLoss = Callable[[Tensor, Tensor], Tensor]
"""From the outputs for a batch and its labels to a loss for each record."""
Shapes = Mapping[str, torch.Size]
"""The shape of each parameter by its name."""

OTHERS = 3
"""Records beside the canary."""
SHORT, LONG = 0.4, 1e4
"""The gradient norms of an ordinary record and of a canary on the stand-in model, in clipping norms."""
FAR = 1e3
"""The gradient norm of a canary on a run's own model, in clipping norms, at least."""
CANARIES = 24
"""Canaries that are tried for one step: one with gradients everywhere, and others mostly in a single parameter each."""
BATCH = 64
"""Records in each step of a warm-up, and the expected batch size of the rebuilt plan."""
WARM_UP = 12
"""Steps before the audited one, where clipping or noise changes from step to step."""


# --- the steps --------------------------------------------------------------------------------------------------------


class Course:
    """The steps of a plan, one after another, made by the training code.

    Attributes:
        plan: the run's own sampling, clipping and noise. Its public number of records is adapted to the records of the audit:
            it only scales the release.
        number: of the next step: 0, 1, 2, ...
    """

    def __init__(self, plan: Plan, randomness: Randomness, records: int | None = None) -> None:
        if isinstance(plan.sampling, FixedSizeSampling):
            records = plan.records  # it is for one number of records
        records = records or max(1, round(BATCH / plan.sampling.rate))
        self.plan, self._population = dataclasses.replace(plan, records=records), plan.records
        self.randomness, self.number = randomness, 0
        self._state: PlanState | None = None

    @property
    def event(self) -> Event:
        """The event of the next step."""
        return self.plan.step_event(self.number)

    @property
    def relation(self) -> Relation:
        """Add or remove a record; or replace one, if the event is bounded only for that."""
        return Relation.ADD_REMOVE if accountant_named("pld").supports(self.event) else Relation.REPLACE_ONE

    @property
    def independent(self) -> bool:
        """Whether each record is sampled by itself: by Poisson sampling, or always."""
        bare = _bare(self.event)
        return isinstance(bare, PoissonSampled | PaddedPoisson) or not bare.sampling

    @property
    def rate(self) -> float:
        """The stated rate at which each record is drawn, where it is sampled by itself."""
        bare = _bare(self.event)
        return bare.rate if isinstance(bare, PoissonSampled | PaddedPoisson) else 1.0

    @property
    def noise_multiplier(self) -> float:
        """The stated Gaussian noise of the next step over its clipping norm; 0 where the noise is not Gaussian."""
        event = _bare(self.plan.noise.event(self.number))
        return event.noise_multiplier if isinstance(event, Gaussian) else 0.0

    @property
    def moves(self) -> bool:
        """Whether clipping or noise is updated after each step."""
        plan = self.plan
        return type(plan.clipping).update is not Clipping.update or type(plan.noise).update is not Noise.update

    @property
    def copies(self) -> bool:
        """Whether the noise of many releases can be drawn in one call, on copies of the sum.

        Updates need a single release, and another noise may depend on the number of coordinates.
        """
        state = self._state.noise if self._state is not None else None
        return not self.moves and type(self.plan.noise.at(self.number, state)) is GaussianNoise

    def sample(self, records: int) -> list[int]:
        """The indices of the records that the next step draws; places that hold no record are left out."""
        return [place for place in self._step().sample(records).tolist() if place >= 0]

    def data_size(self, records: int) -> int:
        """The size of a data set with these records from which the plan can sample: fixed-size sampling knows only its own."""
        try:
            self.sample(records)
        except InputError:
            return self._population
        return records

    def scale(self, model: nn.Module) -> float:
        """The clipping norm of the next step: the stated influence of one record on the sum; 1 if that is not a usable number."""
        step = self._step()
        with Engine(model) as engine:
            step.add(engine.empty(), self._state_for(model))
        assert step.bounded is not None
        stated = float(step.bounded.sensitivity)
        return stated if 0 < stated < math.inf else 1.0

    def sum(self, subject: Subject, rows: Sequence[int], weights: Tensor | None = None) -> BoundedSum:
        """The clipped sum of these rows of the subject; a row may occur several times."""
        step = self._step()
        with Engine(subject.model, loss_reduction="sum") as engine:
            if len(rows):
                subject.total(rows, weights).backward()
            gradients = engine.gradients() if len(rows) else engine.empty()
            step.add(gradients, self._state_for(subject.model))
        assert step.bounded is not None
        return step.bounded

    def release(self, bounded: BoundedSum, ledger: Ledger, copies: int = 1) -> StepResult:
        """Release a sum with noise, and record the event. With `copies`, each has noise of its own."""
        # Copies also protect the sum from a noise that writes into it.
        first = () if copies == 1 else (copies,)
        tensors = {name: tensor.expand((*first, *tensor.shape)).clone() for name, tensor in bounded.tensors.items()}
        step = self._step()
        step.state, step.bounded = self._state, dataclasses.replace(bounded, tensors=tensors)
        return step.release(lambda event, _: ledger.record(event))

    def advance(self, bounded: BoundedSum, ledger: Ledger) -> StepResult:
        """Release a sum, and go on to the next step."""
        released = self.release(bounded, ledger)
        self._state = released.state
        self.number += 1
        return released

    def warm_up(self, subject: Subject) -> None:
        """Take a few steps without gradients, so that a later step is audited: after them an adaptive norm has fallen."""
        if self.moves:
            for _ in range(min(WARM_UP, self.plan.steps - 1)):
                self.advance(self.sum(subject, [0] * BATCH, torch.zeros(BATCH)), Ledger())

    def state(self) -> dict[str, Any]:
        """The state of the course, as plain data with tensors."""
        moved = None if self._state is None else {"clipping": self._state.clipping, "noise": self._state.noise}
        return {"number": self.number, "state": moved, "streams": self.randomness.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a course of the same plan."""
        self.number = state["number"]
        self._state = None if state["state"] is None else PlanState(**state["state"])
        self.randomness.restore(state["streams"])

    def _step(self) -> Step:
        return Step(self.plan, self.number, self.randomness)

    def _state_for(self, model: nn.Module) -> PlanState:
        """The state of clipping and noise before the next step; the first time, for the parameters of the model."""
        if self._state is None:
            self._state = self.plan.init({name: p for name, p in model.named_parameters() if p.requires_grad})
        return self._state


def _bare(event: Event) -> Event:
    return event.event if isinstance(event, Under) else event


# --- the records and the model ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and a few made-up records: the first `OTHERS` are ordinary ones, and the others are canaries.

    Attributes:
        model: the stand-in, or a copy of the run's own.
        inputs, labels: of the records.
        weights: the factor of each record's loss, and so of its gradient.
        loss: from outputs and labels to a loss for each record.
        words: what the model and its records are.
    """

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    weights: Tensor
    loss: RecordLoss
    words: str

    def total(self, rows: Sequence[int], weights: Tensor | None = None) -> Tensor:
        """The weighted sum of the losses of these rows."""
        places = torch.tensor(rows)
        losses = self.loss(self.model(self.inputs[places]), self.labels[places])
        if losses.ndim == 0 or len(losses) != len(rows):
            raise InputError(
                "The loss of an audit gives one number for each record: take reduction='none', not a mean or a sum."
            )
        each = losses.flatten(1).sum(1) if losses.ndim > 1 else losses
        return (each * (self.weights[places] if weights is None else weights).to(each.dtype)).sum()

    @property
    def canaries(self) -> range:
        return range(OTHERS, len(self.inputs))

    @property
    def numel(self) -> int:
        """The number of coordinates of a gradient."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def with_opposites(self) -> Subject:
        """The same subject with one more record for each canary: its replacement, with the opposite gradient."""
        return dataclasses.replace(
            self,
            inputs=torch.cat([self.inputs, self.inputs[OTHERS:]]),
            labels=torch.cat([self.labels, self.labels[OTHERS:]]),
            weights=torch.cat([self.weights, -self.weights[OTHERS:]]),
        )


def output_is_loss(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each record."""
    return F.cross_entropy(outputs, labels, reduction="none")


class StandIn(nn.Module):
    """A stand-in model whose gradient is the record itself: a record chooses its gradient in every parameter."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        for name, shape in shapes.items():
            *path, last = name.split(".")
            holder: nn.Module = self
            for part in path:
                if part not in holder._modules:
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.register_parameter(last, nn.Parameter(torch.zeros(shape)))
        self.sizes = [p.numel() for p in self.parameters()]

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(x.split(self.sizes, 1), self.parameters(), strict=True)
        return torch.stack([F.linear(part, p.reshape(1, -1)).squeeze(1) for part, p in parts]).sum(0)

    def directions(self, count: int) -> Tensor:
        """This many orthogonal unit gradients: the n-th has only coordinate n of the parameters.

        Half of them are in all parameters that have the coordinate, and the others in a single one each: a clipping that forgets
        a parameter shows.
        """
        rows = torch.zeros(count, sum(self.sizes))
        starts = [sum(self.sizes[:number]) for number in range(len(self.sizes))]
        for row in range(count):
            places = [start + row for start, size in zip(starts, self.sizes, strict=True) if row < size]
            alone = row // 2 % max(len(places), 1)
            rows[row, places if row % 2 == 0 else places[alone : alone + 1]] = 1.0
        return _unit(rows)

    def canaries(self) -> Tensor:
        """Unit gradients in the first coordinate of all parameters, and of each parameter alone."""
        starts = torch.tensor([0, *self.sizes[:-1]]).cumsum(0)
        rows = torch.zeros(min(CANARIES, 1 + len(starts)), sum(self.sizes))
        rows[0, starts] = 1.0
        for row, start in enumerate(starts[: len(rows) - 1], 1):
            rows[row, start] = 1.0
        return _unit(rows)


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return unit


def two_layers(width: int) -> Shapes:
    """The parameters of the audit's own model: two layers, one of them with a bias."""
    row = torch.Size([1, width])
    return {"first.weight": row, "second.weight": row, "second.bias": torch.Size([width])}


def shapes_of(model: nn.Module) -> Shapes:
    """The parameters of a run's model that are trained."""
    return {name: p.shape for name, p in model.named_parameters() if p.requires_grad}


def stand_in(shapes: Shapes, scale: float) -> Subject:
    """Short records, and canaries far above the clipping norm, which is `scale`, in coordinates of their own."""
    model = StandIn(shapes)
    ordinary = torch.zeros(OTHERS, sum(model.sizes))
    largest = max(range(len(model.sizes)), key=model.sizes.__getitem__)
    first = sum(model.sizes[:largest]) + 1
    width = min(OTHERS, model.sizes[largest] - 1)
    ordinary[:width, first : first + width] = torch.eye(width)
    canaries = model.canaries()
    weights = scale * torch.tensor([*[SHORT] * OTHERS, *[LONG] * len(canaries)])
    inputs = torch.cat([ordinary, canaries])
    said = f"a stand-in model with {words(model)}"
    return Subject(model, inputs, torch.zeros(len(inputs)), weights, output_is_loss, said)


def words(stand_in: StandIn) -> str:
    """The parameters of a stand-in model, in words."""
    names = {name for name, _ in stand_in.named_parameters()}
    return "two layers" if names == set(two_layers(1)) else "the run's parameters"


def own_model(model: nn.Module, records: tuple[Tensor, Tensor], loss: RecordLoss, scale: float, seed: int) -> Subject:
    """A copy of a run's model with a few of the records, and canaries that were searched for.

    Canaries are chosen from many random and extreme inputs, with their own and with wrong labels: the one with the largest
    gradient, and for each parameter the one with the largest part of its gradient there. If a gradient is not far above the
    clipping norm, which is `scale`, the loss of its record is weighted: clipping has to bound every gradient.

    Raises:
        InputError: no gradient was found, or the model gives two gradients for the same records.
        PrivetError: the engine cannot compute gradients record by record.
    """
    twin = copy.deepcopy(model).cpu().eval()  # without dropout, the same records have the same gradients
    inputs, labels = (tensor.detach().cpu() for tensor in records)
    if len(inputs) < OTHERS or len(inputs) != len(labels):
        raise InputError(f"An audit of a model needs at least {OTHERS} made-up inputs, and a label for each.")
    tried = _candidates(twin, inputs, labels, torch.Generator().manual_seed(seed))
    searched = Subject(twin, *tried, torch.ones(len(tried[0])), loss, "")
    squares, again = _squared_norms(searched), _squared_norms(searched)
    if not torch.allclose(squares, again, rtol=1e-3):
        raise InputError("the model draws random numbers in evaluation mode, so that a record has no single gradient")
    norms = squares.sum(0).sqrt()
    if not norms.max() > 0:
        raise InputError("no made-up record has a gradient that is finite and not zero")
    shares = torch.where(norms > 1e-6 * norms.max(), squares / norms.square(), 0.0)
    best = torch.cat([norms.argmax()[None], shares.argmax(1)])
    best = torch.tensor(list(dict.fromkeys(best.tolist()))[:CANARIES])
    weights = (FAR * scale / norms[best]).clamp(min=1.0).float()
    return Subject(
        twin,
        torch.cat([inputs[:OTHERS], tried[0][best]]),
        torch.cat([labels[:OTHERS], tried[1][best]]),
        torch.cat([torch.ones(OTHERS), weights]),
        loss,
        f"the run's own model and weights; made-up records, and the best of {len(best)} canaries, whose gradient is at least "
        f"{FAR:g} times the clipping norm",
    )


def _squared_norms(subject: Subject) -> Tensor:
    """For each parameter, the squared norm of every record's gradient; 0 where it is not finite."""
    found = []
    for rows in torch.arange(len(subject.inputs)).split(32):
        with Engine(subject.model, loss_reduction="sum") as engine:
            subject.total(rows.tolist()).backward()
            found.append(torch.stack(list(engine.gradients().squared_norms().values())))
    return torch.cat(found, dim=1)


def _candidates(model: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Records among which one may have a large gradient: ordinary, random and extreme ones, with right and wrong labels."""
    few, shape = inputs[:8], inputs.shape[1:]
    own = labels[: len(few)]
    low, high = inputs.min(), inputs.max()
    if inputs.is_floating_point():
        random = torch.rand(8, *shape, generator=generator).to(inputs.dtype) * (high - low) + low
        corners = torch.where(torch.rand(8, *shape, generator=generator) < 0.5, low, high)
        rows = torch.cat([few, random, corners])
        rows = torch.cat([torch.zeros_like(few[:1]), *(rows * times for times in (1, 30, 1000))])
    else:
        random = torch.randint(int(low), int(high) + 1, (16, *shape), generator=generator).to(inputs.dtype)
        rows = torch.cat([few, random])
    right = own[torch.arange(len(rows)) % len(own)]
    with torch.no_grad():
        outputs = model(rows)
    wrong = 30 * right.roll(1, 0) if labels.is_floating_point() else right.roll(1, 0)
    if not labels.is_floating_point() and isinstance(outputs, Tensor) and outputs.ndim == labels.ndim + 1:
        unlikely = outputs.argmin(1).to(labels.dtype)  # the class that the model believes least
        wrong = unlikely if unlikely.shape == right.shape else wrong
    return torch.cat([rows, rows]), torch.cat([right, wrong])


def fits(plan: Plan, shapes: Shapes) -> str:
    """Why the plan's clipping or noise cannot be used on a stand-in model with these parameters; empty if it can."""
    try:
        course = Course(plan, Randomness.of(0))
        course.release(course.sum(stand_in(shapes, 1.0), range(OTHERS)), Ledger())
    except Exception as error:  # a clipping of somebody else's may raise anything
        return str(error) or type(error).__name__
    return ""


def find_shapes(plan: Plan, width: int, model: nn.Module | None) -> Shapes:
    """The parameters of a stand-in model for a plan: two layers, or those of the run's model where the plan needs them."""
    shapes = two_layers(width)
    why_not = fits(plan, shapes)
    if why_not and model is not None:
        shapes = shapes_of(model)
        why_not = fits(plan, shapes)
    if why_not:
        hint = "" if model is not None else " Give the run's model, if the plan was made for it."
        raise InputError(f"The plan's clipping or noise cannot be used on the audit's stand-in model: {why_not}{hint}")
    return shapes


WIDTH = 4
"""Coordinates of each parameter of the stand-in model."""
AT_ONCE = 2**20
"""Numbers to which noise is added in one call."""
SAMPLES = 4
"""Samples that count how often the record is drawn, for each draw of a step."""
CHECKED = 100
"""Samples in which no record may be twice, where they are not counted."""

On = Callable[[Course], Subject]
"""Makes the model and the records on which a plan's steps are taken."""


def noises(epsilon: float) -> dict[str, Noise]:
    """Every optimized noise of a pure epsilon, with the weights that give the least noise to the canary's coordinates."""
    weights = torch.tensor([1.0, *[1e-3] * (WIDTH - 1)] * len(two_layers(WIDTH)))
    return {
        "product Laplace": ProductLaplaceNoise.solve(weights, epsilon),
        "isotropic L2": IsotropicL2Noise.solve(weights, epsilon),
        "grouped L2": GroupedL2Noise.solve(weights, epsilon),
    }


@moved_arguments(renamed={"clipping": "plan"})
@resumable
def step(
    plan: Plan | Clipping,
    noise_multiplier: float = 1.0,
    *,
    noise: Noise | None = None,
    rate: float = 1.0,
    on: On | None = None,
    delta: float = 1e-5,
    draws: int = 20_000,
    confidence: float = 0.99,
    bound: TwoSampleBound | None = None,
    name: str = "One step of DP-SGD",
    seed: int | None = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit one step: sampling, per-example gradients, clipping, noise and release, as training runs them.

    The attacker sees the released gradient, knows all records but one and chose that one: its gradient is far above the
    clipping norm. The score is the projection of the release on the exact difference of the two clipped sums, each coordinate
    weighted by its noise: under Gaussian noise that is the exact log-likelihood ratio. If clipping or noise changes from step
    to step, a later step is audited, after a warm-up on other records.

    Formal guarantees: the claim is the event that the step itself wrote to its ledger. Under Gaussian noise the bound is that
    of a Gaussian trade-off, because that is what the event claims, and Clopper-Pearson under any other noise. On Poisson
    samples, the draws count how often the record is drawn, and separately audit steps in which it takes part (`SampledStep`).
    A record that is twice in a sample is a contradiction, however records are drawn. On other samples, and for a given `bound`,
    each draw samples anew. Without a seed the streams have secret keys, as in a release.

    Args:
        plan: of a run; or a clipping, which makes a plan with the three arguments that follow.
        noise_multiplier, noise, rate: Gaussian noise, or another one, and the sampling rate.
        on: the model and the records; by default a stand-in model whose gradients are chosen by the records.
        delta: of the audit.
        draws: releases with the record, and as many without it.
        confidence: of the bound.
        bound: another bound for the scores.
        name: of the step, in words.
        seed: of sampling and noise.
        progress: called with a description, the draws so far and all draws.
    """
    if draws < 40:
        raise InputError(f"An audit needs at least 40 draws, not {draws}.")
    if not isinstance(plan, Plan):
        plan = Plan(PoissonSampling(rate), plan, noise or GaussianNoise(noise_multiplier), 1, 1000)
    course = Course(plan, Randomness.of(seed))
    relation = course.relation
    subject = (on or stand_in_for)(course)
    course.warm_up(subject)
    releases = _Releases(course, subject, relation)
    claim = Claim.of(course.event, delta, relation)
    setting = f"the released gradient of one step, with and without a record whose gradient is clipped; {subject.words}"
    apart = bound is None and course.independent and relation is Relation.ADD_REMOVE
    if bound is None:
        gaussian, counted = course.noise_multiplier > 0, apart and course.rate < 1
        samples = SAMPLES * draws if counted else CHECKED
        drawn, twice = releases.times_drawn(samples)
        if twice:
            said = f"a record was twice in {twice:,} of {samples:,} samples"
            return contradicted(name, claim, confidence, said, setting=setting)
        if counted:
            bound = SampledStep.drawn(drawn, samples, delta, confidence, gaussian)
        else:
            bound = (GaussianTradeOff if gaussian and apart else ClopperPearson)(delta, confidence)

    def tell(before: int, done: int) -> None:
        if progress is not None:
            progress(f"Auditing: {name}", before + done, 2 * draws)

    ledger = Ledger(relation=relation)
    anew = not apart and not (course.independent and course.rate == 1)
    members, others = (releases.scores(side == 0, draws, anew, ledger, partial(tell, side * draws)) for side in (0, 1))
    ((event, _),) = ledger  # every draw recorded the same event
    claim = Claim.of(event, delta, relation)
    return audit_scores(members, others, claim=claim, bound=bound, name=name, setting=setting)


def stand_in_for(course: Course, model: nn.Module | None = None) -> Subject:
    """The stand-in model for a plan, with records in proportion to its clipping norm.

    `model` is the run's: the stand-in has its parameters where the plan's clipping or noise was made for them.
    """
    shapes = find_shapes(course.plan, WIDTH, model)
    scale = course.scale(StandIn(shapes))
    return stand_in(shapes, scale)


class _Releases:
    """Releases of one step on a few records: the sum of each batch is computed once, its noise for every draw."""

    def __init__(self, course: Course, subject: Subject, relation: Relation) -> None:
        self.course, self.relation = course, relation
        self.subject = subject.with_opposites() if relation is Relation.REPLACE_ONE else subject
        self._tried = len(subject.canaries)
        self._sums: dict[tuple[int, ...], BoundedSum] = {}
        changes = [self._change(canary) for canary in subject.canaries]
        lengths = [sum(float(part.square().sum()) for part in change.values()) for change in changes]
        best = int(np.argmax(np.nan_to_num(lengths, nan=-1.0)))
        self._canary = subject.canaries[best]
        """The record that changes the clipped sum most, relative to its noise."""
        deviations = course.release(self._sum(self._rows(True)), Ledger()).deviations()
        self._direction = {name: part / deviations[name] for name, part in changes[best].items()}

    def _change(self, canary: int) -> dict[str, Tensor]:
        """The change of the clipped sum by a canary, in units of the noise for one record."""
        self._canary = canary
        present, absent = (self._sum(self._rows(side)) for side in (True, False))
        return {
            name: (tensor - absent.tensors[name]).double() / present.scales[name]
            for name, tensor in present.tensors.items()
        }

    def times_drawn(self, samples: int) -> tuple[int, int]:
        """In how many samples the record is, and in how many any record is twice."""
        records = OTHERS + 1 if self.course.independent else self.course.data_size(OTHERS + 1)
        times = twice = 0
        for _ in range(samples):
            drawn = self.course.sample(records)
            times += OTHERS in drawn
            twice += len(set(drawn)) < len(drawn)
        return times, twice

    def scores(
        self, present: bool, draws: int, sampled: bool, ledger: Ledger, tell: Callable[[int], None]
    ) -> NDArray[np.float64]:
        """The log-likelihood ratio of each release, up to a constant and a rising function."""
        most = max(1, AT_ONCE // self.subject.numel) if self.course.copies else 1
        found: list[Tensor] = []
        done = 0
        for batch, count in self._batches(present, draws, sampled).items():
            for start in range(0, count, most):
                found.append(self._released(batch, min(most, count - start), ledger))
                done += len(found[-1])
                tell(done)
        # The draws came batch by batch; in random order, every part of them is a sample.
        return np.random.default_rng(draws).permutation(torch.cat(found).numpy())

    def _batches(self, present: bool, draws: int, sampled: bool) -> Counter[tuple[int, ...]]:
        rows = self._rows(present)
        if not sampled:
            return Counter({rows: draws})
        size = self.course.data_size(len(rows))
        return Counter(
            tuple(rows[place] for place in sorted(self.course.sample(size)) if place < len(rows)) for _ in range(draws)
        )

    def _rows(self, present: bool) -> tuple[int, ...]:
        """The records of the data with the canary, or without it: removed, or replaced by the opposite record."""
        others = tuple(range(OTHERS))
        if present:
            return (*others, self._canary)
        return others if self.relation is Relation.ADD_REMOVE else (*others, self._canary + self._tried)

    def _released(self, batch: tuple[int, ...], copies: int, ledger: Ledger) -> Tensor:
        """Scores of independent releases of one sum."""
        released = self.course.release(self._sum(batch), ledger, copies).gradients
        scores = torch.zeros(copies, dtype=torch.float64)
        for name, direction in self._direction.items():
            scores += (released[name].double() * direction).reshape(copies, -1).sum(1)
        return scores

    def _sum(self, batch: tuple[int, ...]) -> BoundedSum:
        if batch not in self._sums:
            self._sums[batch] = self.course.sum(self.subject, batch)
        return self._sums[batch]


FILLERS, MOST_FILLERS = 6, 6000
"""Records without a gradient for each canary, and at most, where clipping changes: an adaptive norm falls by them."""
MOST_NUMBERS = 2**26
"""The canaries of a stand-in model with a run's own parameters take no more numbers than this."""


@moved_arguments(gone={"guesses": "every canary counts, and the bound chooses its own threshold; leave it out"})
@resumable
def training(
    plan: Plan | None = None,
    *,
    rate: float = 1.0,
    noise_multiplier: float = 1.0,
    steps: int | None = None,
    model: nn.Module | None = None,
    delta: float = 1e-5,
    canaries: int = 1000,
    confidence: float = 0.99,
    name: str = "DP-SGD, a whole training",
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit sampling, clipping, noise and accounting of a whole training in one run.

    Each canary is in the data with probability one half. Canaries have gradients far above the clipping norm, and no two of
    them share a coordinate: the attacker sees every release and scores each canary by its exact log-likelihood ratio. The
    claim is the event in the run's ledger.

    Formal guarantees: each canary is one draw, with the record if it is in the data and without it otherwise. These draws are
    independent if records are sampled independently, if the noise of the coordinates is independent, and if the clipped
    gradient of a canary, relative to its noise, does not depend on other records. A plan with Poisson sampling and Gaussian
    noise claims all of it, so that a refutation of such a plan is right with the stated confidence; see `ClaimedForm`. A record
    that is twice in a sample is a contradiction.

    Args:
        plan: of a run; without it, flat clipping with the three arguments that follow.
        rate, noise_multiplier: the sampling rate and the Gaussian noise.
        steps: of the training; at most those of the plan, and by default all of them.
        model: of the run. It is needed where clipping was made for its parameters; its weights take no part.
        delta: of the audit.
        canaries: how many there are, half of them in the data on average.
        confidence: of the bound.
        name: of the training, in words.
        seed: of the coins, sampling and noise.
        progress: called with a description, the steps so far and all steps.
    """
    if canaries < 40:
        raise InputError(f"An audit of a whole training needs at least 40 canaries, not {canaries}.")
    if plan is None:
        plan = Plan(PoissonSampling(rate), FlatClipping(1.0), GaussianNoise(noise_multiplier), steps or 1, canaries)
    steps = min(steps or plan.steps, plan.steps)
    subject, course = _rebuilt(plan, model, canaries, seed)
    canaries = len(subject.inputs) - 1
    coins = torch.rand(canaries, generator=torch.Generator().manual_seed(seed)) < 0.5
    data = [*coins.nonzero().flatten().tolist(), *[canaries] * _fillers(course, canaries)]
    setting = f"{steps:,} steps, all seen; {canaries:,} canaries with orthogonal gradients above the clipping norm; "
    setting += subject.words
    ledger = Ledger()
    scores = torch.zeros(canaries, dtype=torch.float64)
    shifts: dict[str, Tensor] = {}
    kept = kept_here()
    if (saved := kept.saved("steps")) is not None:
        scores = saved["scores"]
        course.restore(saved["course"])
        for event, count in saved["ledger"]:
            for _ in range(count):
                ledger.record(Event.from_dict(event))
    for number in range(course.number, steps):
        if course.moves or not shifts:
            shifts = _shifts(course, subject, canaries)
        sigma, stated = course.noise_multiplier, course.rate
        places = course.sample(len(data))
        if len(set(places)) < len(places):
            said = f"a record was twice in the sample of step {number + 1:,}"
            return contradicted(name, Claim.of(course.event, delta), confidence, said, setting=setting)
        batch = [data[place] for place in places]
        released = course.advance(course.sum(subject, batch), ledger)
        scores += _log_likelihood_ratios(released, shifts, sigma, stated, canaries)
        kept.save("steps", number + 1, partial(_saved, scores, course, ledger))
        if progress is not None:
            progress(f"Auditing: {name}", number + 1, steps)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(canaries))
    scores, coins = scores[order], coins[order]
    return audit_scores(
        scores[coins].numpy(),
        scores[~coins].numpy(),
        claim=Claim.of(ledger, delta),
        bound=ClaimedForm(ledger.event, delta, confidence),
        name=name,
        setting=setting,
    )


def _rebuilt(plan: Plan, model: nn.Module | None, canaries: int, seed: int) -> tuple[Subject, Course]:
    """The stand-in model with its canaries, and a record without a gradient after them; and the steps."""
    course = Course(plan, Randomness.of(seed))
    if course.noise_multiplier == 0:
        raise InputError("A whole training is audited where its noise is Gaussian: audit one step of another noise.")
    if not course.independent:
        raise InputError("A whole training is audited where each record is sampled by itself: audit one step.")
    stand_in = StandIn(find_shapes(plan, canaries, model))
    canaries = min(canaries, max(stand_in.sizes), max(40, MOST_NUMBERS // sum(stand_in.sizes)))
    inputs = torch.cat([stand_in.directions(canaries), torch.zeros(1, sum(stand_in.sizes))])
    weights = torch.full((len(inputs),), LONG * course.scale(stand_in))
    labels = torch.zeros(len(inputs))
    subject = Subject(stand_in, inputs, labels, weights, output_is_loss, f"a stand-in model with {words(stand_in)}")
    return subject, Course(plan, Randomness.of(seed), canaries // 2 + _fillers(course, canaries))


def _saved(scores: Tensor, course: Course, ledger: Ledger) -> dict[str, Any]:
    """Where an audit stands after a step."""
    events = [(event.to_dict(), count) for event, count in ledger]
    return {"scores": scores, "course": course.state(), "ledger": events}


def _fillers(course: Course, canaries: int) -> int:
    return min(FILLERS * canaries, MOST_FILLERS) if course.moves else 0


def _shifts(course: Course, subject: Subject, canaries: int) -> dict[str, Tensor]:
    """The clipped gradient of each canary in units of the clipping norm: canary n has coordinate n of the parameters.

    No gradient is taken to be longer than clipping promises: an attacker who relies on more would miss what varies.
    """
    bounded = course.sum(subject, range(canaries))
    found, squares = {}, torch.zeros(canaries, dtype=torch.float64)
    for name, _ in subject.model.named_parameters():
        scaled = bounded.tensors[name].double() / bounded.scales[name]
        found[name] = scaled.flatten()[:canaries]
        squares[: len(found[name])] += found[name].square()
    lengths = squares.sqrt().clamp(min=1.0)
    return {name: part / lengths[: len(part)] for name, part in found.items()}


def _log_likelihood_ratios(
    released: StepResult, shifts: dict[str, Tensor], noise_multiplier: float, rate: float, canaries: int
) -> Tensor:
    """For each canary, how much more likely this release is with it in the data."""
    ratios = torch.zeros(canaries, dtype=torch.float64)
    deviations = released.deviations()
    for name, shift in shifts.items():
        seen = (released.gradients[name].double() / deviations[name]).flatten()[: len(shift)]
        moved = shift / noise_multiplier
        ratios[: len(shift)] += seen * moved - moved.square() / 2
    # ln(1 - rate + rate e^ratio), safe where the ratio is large.
    return torch.logaddexp(torch.tensor(1 - rate).double().log(), ratios + math.log(rate))
