"""Private variance reduction after SVRG (Johnson and Zhang 2013), with every use of the data accounted.

From time to time, the gradient over all records is released at a snapshot of the model. In between, a step releases only the
difference between the gradients of its batch and those at the snapshot. The differences are small near the snapshot, so they
can be clipped to a small norm and need little noise.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.audit import Audit, RunPlan, audit_plan
from privet.audit.plans import unrecorded
from privet.clipping import FlatClipping
from privet.data import Progress, Split
from privet.errors import InputError
from privet.gradients import Engine, PerExampleGradients
from privet.gradients.numerics import scaled_squared_norms, squared_norms, weigh
from privet.gradients.operation import trusted_rules
from privet.methods.dpsgd import Loss, Trained
from privet.methods.method import Context, Method, Outcome, Power, Ran, Task, TrainedModel, option, register
from privet.methods.preparation import arguments, build_model
from privet.methods.recipe import chosen
from privet.noise import GaussianNoise
from privet.privacy import Budget, Event, Ledger
from privet.privacy.events import NOTHING, composed
from privet.randomness import Randomness
from privet.sampling import PoissonSampling
from privet.training import Plan, RunFolder
from privet.training.blocks import Blocks
from privet.training.folder import open_for
from privet.training.identity import data_fingerprint, plain
from privet.training.private import step_name
from privet.training.step import Step

UNCHECKED = (
    "the model and its loss treat each record on its own, and use records in no other way, which was not checked"
)


@dataclass(frozen=True)
class SnapshotPlan:
    """Steps on differences, and a snapshot before every `every` of them.

    Formal guarantees: a step's release is the Gaussian mechanism on a Poisson sample, because one record contributes
    ``clip(g(w) - g(snapshot))``, of norm at most the clipping norm; a snapshot's release is the Gaussian mechanism on all
    records, one of which contributes ``clip(g(snapshot))``. Their sum, and everything that an optimizer makes of it, is
    post-processing. `event` is all of them.
    """

    differences: Plan
    snapshots: Plan
    every: int

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"There is at least one step for each snapshot, not {self.every}.")
        if self.snapshots.sampling.rate != 1 or self.snapshots.records != self.differences.records:
            raise InputError("A snapshot's gradient is over all records of the plan: its sampling rate is 1.")
        if self.snapshots.steps != -(-self.differences.steps // self.every):
            raise InputError(
                "The number of snapshots must be the number of steps divided by the steps of a snapshot, rounded up."
            )

    @property
    def event(self) -> Event:
        """The event of the whole plan, in the order of its releases."""
        blocks = (self.block(number * self.every) for number in range(self.snapshots.steps))
        parts = (
            self.snapshots.step_event(number) + self.differences.events(block.start, block.stop)
            for number, block in enumerate(blocks)
        )
        return composed(*parts)

    @cached_property
    def counted(self) -> Counter[Event]:
        """The number of releases of each kind in the plan."""
        steps, whole = self.differences, self.snapshots
        return Counter(map(steps.step_event, range(steps.steps))) + Counter(map(whole.step_event, range(whole.steps)))

    def assuming(self, *assumptions: str) -> SnapshotPlan:
        """The same plan with further assumptions in its statement."""
        differences, snapshots = (
            replace(each, assumptions=tuple(dict.fromkeys((*each.assumptions, *assumptions))))
            for each in (self.differences, self.snapshots)
        )
        return SnapshotPlan(differences, snapshots, self.every)

    def block(self, first: int) -> range:
        """The steps on the snapshot that is taken before step `first`; none after the last."""
        return range(first, min(first + self.every, self.differences.steps))

    def names(self, block: range) -> dict[str, Event]:
        """The releases of a block by name: a snapshot and its steps."""
        if not block:
            return {}
        snapshot = {f"snapshot {block[0]}": self.snapshots.step_event(block[0] // self.every)}
        return snapshot | {step_name(number): self.differences.step_event(number) for number in block}


def snapshot_plan(
    records: int,
    *,
    batch_size: int,
    steps: int,
    every: int,
    delta: float,
    max_grad_norm: float,
    difference_norm: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    snapshot_noise: float | None = None,
    before: Event | None = None,
) -> SnapshotPlan:
    """The plan of a run, its noise given or calibrated to a budget.

    Args:
        records: the public size of the data set.
        batch_size, steps: of the steps on differences.
        every: steps for each snapshot.
        delta, epsilon: the budget, for all releases together.
        max_grad_norm: the clipping norm of gradients at a snapshot.
        difference_norm: the clipping norm of differences.
        noise_multiplier: the noise of a step; calibrated by default.
        snapshot_noise: the noise multiplier of a snapshot divided by that of a step; by default both gradients get the same
            noise, so that a snapshot costs about as much as a step.
        before: earlier spending.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise InputError("Give either epsilon, to calibrate the noise, or noise_multiplier.")
    if steps < 1 or every < 1:
        raise InputError(
            f"There is at least one step, and one for each snapshot: steps is {steps} and every is {every}."
        )
    rate = batch_size / records
    ratio = difference_norm / (rate * max_grad_norm) if snapshot_noise is None else snapshot_noise

    def plan(sigma: float) -> SnapshotPlan:
        differences = Plan(PoissonSampling(rate), FlatClipping(difference_norm), GaussianNoise(sigma), steps, records)
        whole = Plan(
            PoissonSampling(1.0), FlatClipping(max_grad_norm), GaussianNoise(sigma * ratio), -(-steps // every), records
        )
        return SnapshotPlan(differences, whole, every)

    if noise_multiplier is None:
        assert epsilon is not None
        budget = Budget(epsilon, delta)
        budget = budget if before is None else budget.after(before)
        guess = budget.noise_multiplier(rate, steps)
        noise_multiplier = budget.least(lambda sigma: plan(sigma).event, guess, "noise multiplier")
    return plan(noise_multiplier)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    records: Split,
    plan: SnapshotPlan,
    *,
    loss: Loss = nn.functional.cross_entropy,
    ledger: Ledger | None = None,
    seed: int | None = None,
    physical_batch_size: int = 256,
    on_step: Callable[[int], None] | None = None,
    folder: RunFolder | str | Path | None = None,
    resume: bool = False,
) -> Trained:
    """Train a classifier with variance-reduced private gradients; see `snapshot_plan`.

    The gradients of `physical_batch_size` single records are held in memory, for the model and for its snapshot: this is for
    small models. `on_step` gets the number of finished steps.

    With a `folder` the run is saved after the steps of each snapshot, and `resume` goes on from there, as in
    `privet.make_private`. A release charges repeated steps again, and ends as many snapshots earlier.
    """
    records.require_records("Variance reduction")
    if len(records) != plan.differences.records:
        raise InputError(
            f"The plan is for {plan.differences.records} records, and the data set has another number of them."
        )
    plan = plan.assuming(*_unchecked(model, loss))
    randomness = Randomness.of(seed)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    state, snapshot_state = plan.differences.init(parameters), plan.snapshots.init(parameters)

    def gradients(network: nn.Module, indices: Tensor) -> PerExampleGradients:
        with Engine(network) as engine:
            if not len(indices):
                return engine.empty()
            inputs, labels = records.batch(indices)
            engine.hand_out([(inputs, 0), (labels, 0)], len(indices), strangers=True)
            loss(network(inputs), labels).backward()
            return engine.gradients()

    with open_for(folder, resume=resume, ledger=ledger) as run:
        where = run if run is not None else ledger if ledger is not None else Ledger()
        kept = Blocks(where, {"model": model, "optimizer": optimizer}, randomness, planned=plan.event)
        kept.begin({"plan": plain(plan), "seed": seed, "data": data_fingerprint(records)})
        while kept.allows(plan.names(plan.block(kept.step))):
            snapshot = copy.deepcopy(model)
            snapshot_state, state = plan.snapshots.init(parameters), plan.differences.init(parameters)
            whole = Step(plan.snapshots, kept.step // plan.every, randomness)
            for part in _parts(whole.sample(len(records)), physical_batch_size):
                whole.add(gradients(snapshot, part), snapshot_state)
            level = whole.release(kept.recorder(f"snapshot {kept.step}")).gradients
            for number in plan.block(kept.step):
                step = Step(plan.differences, number, randomness)
                for part in _parts(step.sample(len(records)), physical_batch_size):
                    step.add(Difference(gradients(model, part), gradients(snapshot, part)), state)
                released = step.release(kept.recorder(step_name(number))).gradients
                for name, parameter in parameters.items():
                    parameter.grad = released[name] + level[name]
                optimizer.step()
                if on_step is not None:
                    on_step(number + 1)
            kept.save(number + 1)
    optimizer.zero_grad()
    return Trained(model, kept.ledger, plan.differences, [], kept.step)


def _unchecked(model: nn.Module, loss: Loss) -> tuple[str, ...]:
    """What is assumed of a model and a loss: every operation is followed, but no self-check looks at their Python code."""
    parts = [*map(type, model.modules()), loss]
    own = all(str(getattr(part, "__module__", "")).startswith(("privet.", "torch.")) for part in parts)
    return (*(() if own else (UNCHECKED,)), *trusted_rules(model))


class Difference(PerExampleGradients):
    """The difference of the gradients of the same records in two models; a record that is bad in either is bad."""

    def __init__(self, one: PerExampleGradients, other: PerExampleGradients) -> None:
        if one.names != other.names or one.records != other.records:
            raise InputError("Only gradients of the same records for the same parameters can be subtracted.")
        self.records, self.names = one.records, one.names
        minuend, subtrahend = one.instantiate(), other.instantiate()
        self._instances = {name: minuend[name] - subtrahend[name] for name in self.names}
        norms = {name: squared_norms(rows) for name, rows in self._instances.items()}
        total = torch.stack(list(norms.values())).sum(0)
        bad = self._bad = one.bad | other.bad | ~total.isfinite()
        for rows in self._instances.values():
            rows[bad] = 0.0
        self._norms = {name: norm.masked_fill(bad, 0.0) for name, norm in norms.items()}, total.masked_fill(bad, 0.0)

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], *, last: bool = False) -> dict[str, Tensor]:
        def weight(name: str) -> Tensor:
            return weights if isinstance(weights, Tensor) else weights[name]

        return {name: weigh(rows, weight(name)) for name, rows in self._instances.items()}

    def scaled_squared_norms(self, scales: Mapping[str, Tensor]) -> Tensor:
        found = [scaled_squared_norms(rows, scales[name]) for name, rows in self._instances.items()]
        return torch.stack(found).sum(0)

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: rows.dtype for name, rows in self._instances.items()}

    def instantiate(self) -> dict[str, Tensor]:
        return self._instances


def _parts(indices: Tensor, size: int) -> Iterator[Tensor]:
    yield from indices.split(size) if len(indices) else (indices,)


@register
@dataclass(frozen=True, kw_only=True)
class Svrg(Method):
    """DP-SGD with variance reduction: the model of a recipe, noisy gradients of differences from a snapshot.

    It holds the gradients of single records in memory, so it is for small models.

    Attributes:
        sampling_rate: the probability that a record is in a step's batch.
        steps: steps on differences.
        every: steps for each snapshot.
        clip: the norm to which gradients at a snapshot are clipped.
        difference_clip: the norm to which differences are clipped.
        learning_rate, momentum: settings of SGD.
    """

    noise_path = "gradient"
    source = "after Johnson and Zhang 2013"
    limits: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("steps", "every"), "[1, inf)"),
        **dict.fromkeys(("clip", "difference_clip", "learning_rate"), "(0, inf)"),
        "sampling_rate": "(0, 1]",
        "momentum": "[0, 1)",
    }
    noise_is = "the clipped gradient at snapshots, and clipped differences"
    proof = "(epsilon, delta) for snapshots and steps together: proved; assumed for a model of your own"

    key: str = "svrg"
    title: str = "DP-SGD with variance reduction (SVRG)"
    by_default: bool = False
    recipe: str = option("", "the recipe whose model is trained; without it, the one that fits the records")
    model: str = option("", "another model: a name of privet.models, or py:package.module:Net")
    sampling_rate: float = 0.1
    steps: int = 100
    every: int = 10
    clip: float = 1.0
    difference_clip: float = 0.3
    learning_rate: float = 0.5
    momentum: float = 0.0

    def audits(self, ran: Ran, power: Power, progress: Progress | None = None) -> tuple[Audit, ...]:
        """Steps on differences and snapshots, each by its plan."""
        missing = {**ran.missing, "differences": "gradients of one model take their place in an audit"}
        return super().audits(replace(ran, missing=missing), power, progress)

    def release_audits(
        self, ran: Ran, power: Power, progress: Progress | None = None
    ) -> tuple[tuple[Audit, ...], Event]:
        """The snapshots, whose plan follows from that of the steps and the settings."""
        steps = ran.plan
        if steps is None or not (isinstance(steps.noise, GaussianNoise) and isinstance(steps.clipping, FlatClipping)):
            return (), NOTHING
        whole = snapshot_plan(
            steps.records,
            batch_size=round(steps.expected_batch_size),
            steps=steps.steps,
            every=self.every,
            delta=ran.delta,
            max_grad_norm=self.clip,
            difference_norm=steps.clipping.max_grad_norm,
            noise_multiplier=steps.noise.multiplier,
        )
        plan = whole.assuming(*steps.assumptions).snapshots
        taken = min(-(-ran.steps // self.every), plan.steps)
        run = RunPlan(plan, {part: why for part, why in ran.missing.items() if part == "model"}, taken)
        refuted = unrecorded(run, ran.ledger, ran.delta, power.confidence)
        if refuted is not None:
            return (refuted,), NOTHING
        own: dict[str, Any] = {}
        if ran.release is not None:
            own = {"model": ran.release.part, "records": ran.release.train.tensors}
        asked = {**power.asked(ran.delta, progress), "canaries": power.canaries, "name": "SVRG's snapshots"}
        return audit_plan(run, **own, **asked), run.event

    def fit(self, task: Task, context: Context) -> Outcome:
        dataset = task.dataset
        recipe, _ = chosen(self.recipe, dataset, self.model)
        if len(dataset.train) != dataset.size:
            raise InputError(
                "Variance reduction takes the number of training records as public: leave out the public size."
            )
        model = build_model(recipe, dataset, task.seed)
        plan = snapshot_plan(
            dataset.size,
            batch_size=max(1, round(self.sampling_rate * dataset.size)),
            steps=self.steps,
            every=self.every,
            delta=task.delta,
            max_grad_norm=self.clip,
            difference_norm=self.difference_clip,
            epsilon=task.epsilon,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=self.momentum)

        def on_step(step: int) -> None:
            if context.on_step is not None:
                context.on_step({"what": "Training", "step": step, "steps": self.steps})

        done = train(model, optimizer, dataset.train, plan, seed=task.seed, on_step=on_step, **context.where)
        settings = {
            "Recipe": f"{recipe.name}: its model; its settings are not used",
            "Steps": f"{done.steps:,} on differences, and a snapshot before every {self.every} of them",
            "Batch": f"{plan.differences.expected_batch_size:,.0f} records expected; all records for a snapshot",
            "Clipping": f"C = {self.clip:g} at a snapshot, {self.difference_clip:g} for differences",
            "Noise": f"{plan.differences.noise.describe()} for differences, {plan.snapshots.noise.describe()} for snapshots",
            "Optimizer": f"SGD, learning rate {self.learning_rate:g}, momentum {self.momentum:g}",
        }
        release = TrainedModel(model, model, dataset.train, dataset.test, recipe.model.name, arguments(recipe, dataset))
        return Outcome(release, plan=done.plan, steps=done.steps, settings=settings)
