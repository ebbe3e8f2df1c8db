"""The parts of a run, rebuilt for an audit: the steps of its plan, and the model and records on which they are taken.

Everything that an audit asks of clipping, noise and sampling goes through `Course`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.clipping import BoundedSum, Clipping
from privet.errors import InputError
from privet.gradients import Engine
from privet.noise import GaussianNoise, Noise
from privet.privacy import Event, Gaussian, Ledger, PaddedPoisson, PoissonSampled, Relation, accountant_named
from privet.privacy.events import Under
from privet.randomness import Randomness
from privet.sampling import FixedSizeSampling
from privet.training import Plan
from privet.training.plan import PlanState
from privet.training.step import Step, StepResult

Loss = Callable[[Tensor, Tensor], Tensor]
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
    """The steps of a plan, one after another, by the code that trains.

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
        """Add or remove a record; replace one, where the event is bounded for that alone."""
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
        """The clipping norm of the next step: the stated influence of one record on the sum; 1 where that is nonsense."""
        step = self._step()
        with Engine(model) as engine:
            step.add(engine.empty(), self._state_for(model))
        assert step.bounded is not None
        stated = float(step.bounded.sensitivity)
        return stated if 0 < stated < math.inf else 1.0

    def sum(self, subject: Subject, rows: Sequence[int], weights: Tensor | None = None) -> BoundedSum:
        """The clipped sum of these rows of the subject, of which a row may come several times."""
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
    loss: Loss
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
        """The same, and after it a record with the opposite gradient of each canary, to replace it."""
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


class Directions(nn.Module):
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
        """As many unit gradients, orthogonal to each other: the n-th has coordinate n of the parameters and no other one.

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
    model = Directions(shapes)
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


def words(stand_in: Directions) -> str:
    """The parameters of a stand-in model, in words."""
    names = {name for name, _ in stand_in.named_parameters()}
    return "two layers" if names == set(two_layers(1)) else "the run's parameters"


def own_model(model: nn.Module, records: tuple[Tensor, Tensor], loss: Loss, scale: float, seed: int) -> Subject:
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
        f"the run's own model and weights, on made-up records, of which the best of {len(best)} canaries has a gradient of at "
        f"least {FAR:g} times the clipping norm",
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
    if not labels.is_floating_point() and outputs.ndim == labels.ndim + 1:
        wrong = outputs.argmin(1).to(labels.dtype)  # the class that the model believes least
    else:
        wrong = 30 * right.roll(1, 0) if labels.is_floating_point() else right.roll(1, 0)
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
