"""Privacy for an ordinary training loop: `make_private` and the object it returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from privet.clipping import BoundedSum, Clipping, FlatClipping
from privet.errors import InputError, PrivetError
from privet.gradients import Engine
from privet.noise import GaussianNoise
from privet.privacy import Ledger, Spent, calibrate_noise
from privet.sampling import PoissonSampling, load_batches
from privet.training.physical import free_memory, records_within
from privet.training.plan import Plan
from privet.training.progress import step_progress
from privet.training.randomness import Randomness
from privet.training.step import release


class BudgetExhausted(PrivetError):  # noqa: N818 - a name that reads as what happened
    """One more step would pass the budget; nothing was touched."""


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Any,
    *,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float,
    noise_multiplier: float | None = None,
    max_grad_norm: float | None = None,
    clipping: Clipping | None = None,
    physical_batch_size: int | Literal["auto"] | None = None,
    views: int = 1,
    loss_reduction: Literal["auto", "mean", "sum"] = "auto",
    memory_budget: int | None = None,
    workers: int = 0,
    seed: int | None = None,
    ledger: Ledger | None = None,
) -> Private:
    """Give an existing training loop differential privacy:

        private = privet.make_private(model, optimizer, dataset, batch_size=600, epochs=15,
                                      epsilon=3.0, delta=1e-5, max_grad_norm=1.0)
        for x, y in private.batches():
            optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); optimizer.step()
        print(private.spent())

    Args:
        model: trained as it is; it is neither wrapped nor changed.
        optimizer: any torch optimizer over the model's parameters.
        dataset: a `privet.data.Split`, a ``TensorDataset``, or any map-style data set.
        batch_size: the expected size of a Poisson-sampled batch.
        epochs, steps: how long to train; give one. An epoch is ``len(dataset) / batch_size`` steps.
        epsilon, noise_multiplier: the budget, from which the noise is calibrated, or the noise; give one.
        delta: the delta of the statement.
        max_grad_norm, clipping: the norm of flat clipping, or another way of clipping; give one.
        physical_batch_size: at most so many records go through the model at once; the step stays the same. "auto"
            chooses as many as fit into `memory_budget`, or into a quarter of the free memory without one.
        views: augmentation multiplicity: the loop turns each record into so many consecutive rows
            (``x.repeat_interleave(views, 0)``, then augments them); they are averaged before clipping, as one record.
        loss_reduction: how the loss joins its records; "auto" reads it off the loss.
        memory_budget: bytes that may be used to keep per-example gradients, and by a physical batch under "auto".
        workers: processes that load records of a map-style data set.
        seed: makes the run repeatable, for experiments; a run that is released has none.
        ledger: where the steps are recorded; without it, in memory.
    """
    records = len(dataset)
    if not 1 <= batch_size <= records:
        raise InputError(
            f"batch_size is {batch_size}, and the data set has {records} records: give a number from 1 to {records}."
        )
    if (epochs is None) == (steps is None):
        raise InputError("Give either epochs or steps.")
    if (epsilon is None) == (noise_multiplier is None):
        raise InputError("Give either epsilon, from which the noise is calibrated, or noise_multiplier.")
    if (max_grad_norm is None) == (clipping is None):
        raise InputError("Give either max_grad_norm or clipping.")
    if clipping is None:
        assert max_grad_norm is not None
        clipping = FlatClipping(max_grad_norm)
    sampling = PoissonSampling(batch_size / records)
    if steps is None:
        assert epochs is not None
        # In whole records, so that no step is lost to rounding: 3 epochs of 1000 in batches of 300 are 10 steps.
        steps = max(round(epochs * records / batch_size), 1)
    ledger = ledger if ledger is not None else Ledger()
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = calibrate_noise(
            epsilon, delta, sampling.rate, steps, relation=ledger.relation, before=ledger.event
        )
    if physical_batch_size == "auto":
        first = dataset[0][0] if isinstance(dataset[0], (tuple, list)) else dataset[0]
        physical_batch_size = records_within(model, first, memory_budget or free_memory() // 4) // views or 1
    plan = Plan(sampling, clipping, GaussianNoise(noise_multiplier), steps, records)
    engine = Engine(model, loss_reduction=loss_reduction, memory_budget=memory_budget, views=views)
    return Private(plan, engine, optimizer, dataset, ledger, delta, Randomness.of(seed), physical_batch_size, workers)


class Private:
    """A training loop with its plan, its ledger and its randomness; made by `make_private`."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        optimizer: Optimizer,
        dataset: Any,
        ledger: Ledger,
        delta: float,
        randomness: Randomness,
        physical_batch_size: int | None,
        workers: int,
    ) -> None:
        if physical_batch_size is not None and physical_batch_size < 1:
            raise InputError(f"physical_batch_size must be at least 1, not {physical_batch_size}.")
        self.plan, self.engine, self.optimizer, self.ledger, self.delta = plan, engine, optimizer, ledger, delta
        self.randomness = randomness
        self.steps_done = 0
        self.bad_records = 0
        """Records whose gradient was not finite and contributed nothing; not to be published."""
        self._dataset, self._physical, self._workers = dataset, physical_batch_size, workers
        self._sum: BoundedSum | None = None
        self._awaiting = "nothing"
        """Which batch of a step was handed out and waits for its optimizer.step()."""
        self._empty = False
        self._parameters = {name: p for name, p in engine.model.named_parameters() if p.requires_grad}
        self._check_optimizer()

    def spent(self) -> Spent:
        """What the recorded steps cost, with everything that must travel with epsilon."""
        return self.ledger.spent(self.delta)

    def batches(self, *, progress: bool = False) -> Iterator[Any]:
        """The physical batches of all remaining steps. For each one: zero_grad, loss, backward, optimizer.step."""
        if self.steps_done >= self.plan.steps:
            raise BudgetExhausted(
                f"The plan's {self.plan.steps} steps are done: {self.spent()}. Make a new plan with a larger budget to go on."
            )
        with ExitStack() as stack:
            stack.enter_context(self.engine)
            stack.callback(self.optimizer.register_step_pre_hook(self._before_step).remove)
            tick = stack.enter_context(step_progress(self.plan.steps, self.steps_done)) if progress else None
            index_batches, marks = self._drawn()
            for batch in load_batches(self._dataset, index_batches, workers=self._workers):
                self._empty, last = marks.pop(0)
                self._awaiting = "last" if last else "middle"
                if self._empty:
                    # An empty batch is a step like any other: noise, and nothing else. No model need digest it.
                    self.optimizer.step()
                else:
                    yield batch
                    if self._awaiting != "nothing":
                        raise PrivetError(
                            "A batch was not used: call loss.backward() and optimizer.step() once for each batch. "
                            "To stop early, leave the loop with break."
                        )
                if tick is not None and last:
                    tick(self.spent().epsilon)

    def _drawn(self) -> tuple[Iterator[Tensor], list[tuple[bool, bool]]]:
        """The indices of the physical batches as they are drawn, and whether each is empty and the last of its step."""
        marks: list[tuple[bool, bool]] = []

        def draw() -> Iterator[Tensor]:
            for _ in range(self.plan.steps - self.steps_done):
                indices = self.plan.sampling.draw(self.plan.records, self.randomness.sampling)
                parts = indices.split(self._physical) if self._physical and len(indices) else (indices,)
                for number, part in enumerate(parts):
                    marks.append((len(part) == 0, number == len(parts) - 1))
                    yield part

        return draw(), marks

    def _before_step(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(callable(a) for a in args) or kwargs.get("closure") is not None:
            raise PrivetError(
                "optimizer.step(closure) runs several backward passes for one batch; call it without a closure."
            )
        if self._awaiting == "nothing":
            raise PrivetError(
                "optimizer.step() was called without a batch: one step for each batch of private.batches()."
            )
        self._take_gradients()
        for parameter in self._parameters.values():
            parameter.grad = None  # an optimizer leaves a parameter without gradient as it is
        if self._awaiting == "last":
            assert self._sum is not None
            gradients = release(self._sum, self.plan, self.ledger, self.randomness.noise)
            for name, parameter in self._parameters.items():
                parameter.grad = gradients[name]
            self._sum = None
            self.steps_done += 1
        self._awaiting = "nothing"

    def _take_gradients(self) -> None:
        gradients = self.engine.empty() if self._empty else self.engine.gradients()
        bounded = self.plan.clipping.clip(gradients)
        self.bad_records += bounded.bad
        self._sum = bounded if self._sum is None else self._sum + bounded

    def _check_optimizer(self) -> None:
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        missing = [name for name, p in self._parameters.items() if id(p) not in held]
        if missing:
            raise InputError(
                f"The optimizer does not hold the trainable parameter '{missing[0]}': give it all of them, or freeze "
                f"the others with requires_grad_(False)."
            )
        own = {id(p) for p in self._parameters.values()}
        if held - own:
            raise InputError(
                "The optimizer holds trainable parameters of another model: give each model its own optimizer."
            )
