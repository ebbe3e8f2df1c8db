"""A private training loop: the object that `make_private` returns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from privet.distributed import Unwrapped, as_shard, own_class, own_part, whole
from privet.errors import InputError, PrivetError
from privet.gradients import Engine, PerExampleGradients
from privet.gradients.marks import FREE, mark_of, set_mark
from privet.io import write_whole
from privet.io.names import LOOP
from privet.privacy import AccountedRun, Event, Spent
from privet.randomness import Randomness
from privet.training.checkpoint import Stateful, restore, state_of, write_weights
from privet.training.drawing import PhysicalBatch, Records, other_parts
from privet.training.folder import RunFolder, Saving
from privet.training.identity import RunDescription, class_path, plain
from privet.training.logs import OnStep, StepReport, step_progress
from privet.training.optimizers import (
    Average,
    CorrectedAdam,
    check_last_hook,
    check_optimizers,
    guard,
    is_known_to_step,
    release,
    unguard,
)
from privet.training.plan import BudgetLimit, check_ledger
from privet.training.rehearsal import (
    FEWEST,
    MOST,
    AloneRehearsal,
    Checks,
    Rehearsal,
    Streams,
    Surroundings,
    held_still,
    is_rehearsed,
    selected,
)


class Private:
    """A training loop with its plan, its ledger and its randomness; made by `make_private`.

    While it exists, the optimizers refuse to step on anything but the batches of `batches`; see `paused` and `close`.
    """

    def __init__(
        self,
        limit: BudgetLimit,
        engine: Engine,
        optimizers: Sequence[Optimizer],
        records: Records,
        randomness: Randomness,
        *,
        average: Average | None = None,
        scheduler: Any = None,
        saving: Saving | None = None,
        checks: Checks | None = None,
        settings: Mapping[str, Any] | None = None,
        wrapped: Unwrapped | None = None,
    ) -> None:
        """
        Args:
            limit: the plan, with its ledger, its delta and its budget.
            engine, optimizers, records, randomness: as `make_private` makes them.
            average, scheduler: updated after every step.
            saving: the folder in which the run is saved.
            checks: how records are kept apart.
            settings: further settings that `description` names.
            wrapped: the model without the wrappers that would join gradients of several processes.
        """
        self.limit, self.plan, self.ledger, self.delta = limit, limit.plan, limit.ledger, limit.delta
        self.engine, self.optimizers, self.randomness = engine, tuple(optimizers), randomness
        self.average, self.scheduler = average, scheduler
        if average is not None:
            average.writing = engine.without_numbers
        self.steps_done = 0
        self.bad_records = 0
        """The number of records, in the batches of this process, whose gradient was not finite and contributed nothing. Do not
        publish it."""
        self._records, self._checks = records, checks or Checks()
        self._team, self._wrapped = records.team, wrapped or Unwrapped((), ())
        self._settings = dict(settings or {})
        self._parameters = {name: p for name, p in engine.model.named_parameters() if p.requires_grad}
        self._trained = self._parameters
        """The parameters in the passes of a step: whole ones where `_parameters` are shards."""
        self.state = self.plan.init(self._parameters)
        """The state of clipping and noise before the next step."""
        self._part: PhysicalBatch | None = None
        self._batch: Any = None
        self._given: dict[str, Tensor | None] = {}
        """The gradients that the first optimizer of a step was given."""
        self._values: dict[str, tuple[int, Tensor]] = {}
        """Versions and copies of these gradients, where there are several optimizers."""
        self._waiting: set[Optimizer] = set()
        """The optimizers that have not stepped on the batch that was handed out."""
        self._public: list[Callable[[], Tensor | None]] = []
        self._rehearsal: Rehearsal | None = None
        self._rehearsed_to = -1
        """The last step before which the loop was checked."""
        self._surroundings: Surroundings | None = None
        self._void = False
        """Whether the body has skipped the batch that it was given."""
        self._seed = 0
        """The seed of torch's generator when the batch was handed out."""
        self.stream: Tensor | None = None
        self.torch_state: Tensor | None = None
        self._paused = False
        self._running: Callable[[], Generator[Any] | None] = lambda: None
        self._check_plan()
        check_optimizers(self.optimizers, self._parameters)
        self._run_folder: RunFolder | None = saving.run if saving is not None else None
        self._own_loop = saving is not None and saving.own_loop
        self._is_saved = saving is not None
        self._save_every = (saving.every if saving is not None else None) or self.steps_per_epoch
        self.paying: AccountedRun | None = None
        """Pays from the account of the data set; None without an account."""
        self.identity = dict(saving.identity) if saving is not None else {}
        self.stateful: dict[str, Stateful] = dict(saving.stateful) if saving is not None else {}
        if saving is not None and saving.state is not None:
            restore(self, saving.path, saving.state)
        elif saving is not None:
            self.save()
        self._wrapped.set_apart(True)
        self._held = _held(self.optimizers)
        guard(self, self.optimizers, self._before_step, self._after_step)

    # --- the interface of a loop ------------------------------------------------------------------------------------

    @property
    def description(self) -> RunDescription:
        """Everything that is needed to describe the run, with all settings as plain data."""
        settings = {"plan": self.plan, "delta": self.delta, "checks": self._checks, **self._settings}
        models = settings.pop("models", (self.engine.model,))
        paths = tuple(class_path(own_class(model)) for model in models)
        return RunDescription(self.plan, plain(settings), self.steps_done, self.delta, self.ledger, paths)

    @property
    def run_folder(self) -> RunFolder | None:
        """The folder of the run; None for one in memory, and in a process that leaves it to process 0."""
        return self._run_folder

    @property
    def dataset(self) -> Any:
        """The records that the loop trains on."""
        return self._records.dataset

    def spent(self) -> Spent:
        """The cost of the recorded steps, with everything that must go with epsilon."""
        return self.ledger.spent(self.delta)

    def batches(self, *, steps: int | None = None, progress: bool = False, on_step: OnStep | None = None) -> Batches:
        """The physical batches of all remaining steps, or of the next `steps`.

        For each batch: zero_grad, loss, backward, optimizer.step. An empty batch is a step that the loop does not see.
        `on_step` gets a dictionary after each step; see `privet.training.logs.StepReport`.
        """
        if steps is not None and steps < 1:
            raise InputError(f"batches(steps=...) takes at least one step, not {steps}.")
        with self._team.telling():
            self._check_limit(self.steps_done)
        left = self.plan.steps - self.steps_done
        return Batches(self, left if steps is None else min(steps, left), progress, on_step)

    @property
    def loader(self) -> EpochLoader:
        """Stands for the data loader of a loop over epochs: each time it is iterated, it gives the batches of one epoch."""
        return EpochLoader(self)

    @property
    def rehearsing(self) -> bool:
        """Whether the current batch is one of the self-check, of which nothing is released or kept."""
        return self._rehearsal is not None

    @property
    def is_paused(self) -> bool:
        """Whether model and optimizers are ordinary at this moment; see `paused`."""
        return self._paused

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps that draw as many records as there are, in expectation."""
        return max(round(1 / self.plan.sampling.rate), 1)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, model and optimizers are ordinary: for evaluation, a generator's step, or training on public data.

        Gradients that the model's parameters get inside are deleted afterward.
        """
        with self.engine.paused(), self.engine.watching(self._memory_of_data()):
            kept = {name: p.grad for name, p in self._parameters.items()}
            self._set_gradients({})
            self._paused = True
            try:
                # While a batch is out, other processes may be elsewhere: nothing is sent.
                with self._wrapped.joined() if self._part is None else nullcontext():
                    yield
            finally:
                self._paused = False
                for name, parameter in self._parameters.items():
                    parameter.grad = kept[name]

    def public(self, function: Callable[[], Tensor | None] | None = None) -> None:
        """Call `function` once in every step, even if no record was drawn, and add its gradients without clipping or noise.

        It returns a loss that uses no record (a penalty, the generated rows of a GAN), or calls `backward` itself. Its
        gradients are added to the private gradient of the step. The step calls it, and not the loop's body: the number of
        times that the body runs depends on who was drawn. A tensor of a batch is refused in it.
        """
        if function is None:
            raise PrivetError(
                "Give private.public a function before the loop: private.public(lambda: 0.01 * model.weight.norm()). In the "
                "body of the loop it would reveal whether anybody was drawn, since the body does not run for an empty batch."
            )
        if self._team.pieces:
            raise PrivetError(
                "private.public(function) does not work with parameters that fully_shard has divided: a penalty on the weights "
                "can be the optimizer's weight_decay."
            )
        if self._part is not None:
            raise PrivetError("Register private.public(function) before the loop, not in its body.")
        self._public.append(function)

    def backward(self, losses: Tensor) -> None:
        """The backward pass of a loss for each record: a vector with one entry for each record of the batch.

        Each record's own loss is differentiated and clipped, so that no reduction has to be recognized.
        """
        self.engine.backward(losses)

    def step(self, losses: Tensor) -> None:
        """`backward` and a step of every optimizer: a whole private step from a vector with a loss for each record."""
        self.backward(losses)
        for optimizer in self.optimizers:
            optimizer.step()

    def check(self, function: Callable[[Any], Tensor], batch: Any) -> None:
        """Check that `function`, which computes the loss or the losses of a batch, treats each record on its own.

        The loop checks itself before its first step; this does the same outside the loop. Nothing is released or changed.
        """
        if self._part is not None:
            raise PrivetError("Call private.check outside the loop, which checks itself.")
        if self._team.pieces:
            raise PrivetError(
                "private.check does not work with parameters that fully_shard has divided: the loop checks itself."
            )
        dims = self._records.dims(batch)
        if any(dim is not None and dim < 0 for _, dim in dims):
            raise InputError("A batch whose records have different numbers of rows cannot be checked outside the loop.")
        records = next((tensor.shape[dim] for tensor, dim in dims if dim is not None), 0)
        if records < 2:
            raise InputError("A check needs a batch of at least two records.")
        with self.engine:
            for places in self._trials(batch, records):
                losses = function(places)
                (losses if losses.ndim == 0 else losses.sum()).backward()
                assert self._rehearsal is not None
                self._rehearsal.measure(self.engine.gradients())
            self._conclude()

    def save(self) -> None:
        """Write a checkpoint now. This happens automatically every `save_every` steps and after the last one.

        With several processes, each calls it, and process 0 writes.
        """
        if not self._is_saved:
            raise InputError("This run has no folder to save it in: give make_private(..., folder=...).")
        if self._part is not None and not self._part.last:
            raise PrivetError("A step of several physical batches can only be saved after its last one.")
        kept = self._gathered() if self._team.pieces else (None, None)
        self._team.asked(f"the checkpoint after step {self.steps_done}", lambda: self._write(*kept))

    def _gathered(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The state of the run and the weights that are left in its folder, whole, in process 0.

        All processes gather sharded tensors, one at a time, and the others drop them.
        """
        self._team.agree(f"gathering the checkpoint after step {self.steps_done}")

        def gathered(leaf: Any) -> Any:
            found = whole(leaf).cpu() if isinstance(leaf, Tensor) else leaf
            return found if self._team.leads else None

        with self.average.applied() if self.average is not None else nullcontext():
            weights = tree_map(gathered, self.engine.model.state_dict())
        return tree_map(gathered, state_of(self)), weights

    def _write(self, state: dict[str, Any] | None, weights: dict[str, Tensor] | None) -> None:
        assert self._run_folder is not None
        self._run_folder.save(self.steps_done, state_of(self) if state is None else state)
        if self._own_loop and self.steps_done:
            self._leave_description(weights)

    def _leave_description(self, weights: dict[str, Tensor] | None) -> None:
        """Write the weights and the description of this run, from which `privet report` makes the page."""
        assert self._run_folder is not None
        folder, told = self._run_folder.path, self.description
        with self.average.applied() if weights is None and self.average is not None else nullcontext():
            write_weights(self.engine.model.state_dict() if weights is None else weights, folder)
        facts = {
            "settings": told.settings,
            "steps": told.steps_done,
            "delta": told.delta,
            "models": list(told.models),
            "parameters": sum(p.numel() for p in self.engine.model.parameters()),
            "shape": _shape(self.dataset),
            "data": self.identity.get("data", ""),
            "seed": self.identity.get("seed"),
        }
        write_whole(folder / LOOP, (json.dumps(facts, indent=1) + "\n").encode(), mode=0o600)

    def report(self, test: Any = None, **about: Any) -> Path:
        """Measure and attack the model, and write record, card and page into the folder of the run; returns the page.

        With several processes, each calls it, and process 0 does the work.

        Args:
            test: records that were not trained on: a `privet.data.Split`, or inputs and labels. Without it nothing is measured.
            about: further arguments of `privet.runs.own.report_loop`.
        """
        if self._team.pieces:
            raise InputError(
                "private.report() does not work with parameters that fully_shard has divided: the weights are in the folder of "
                "the run, and `privet report` makes the page from it."
            )
        # Imported by name, because this package must not depend on the ones above it.
        make = import_module("privet.runs.own").report_loop
        made: Path = self._team.asked("the report", lambda: make(self, test, **about))
        return made

    def close(self) -> None:
        """End the run: the optimizers become ordinary again, and the folder is free for another process.

        A `RunFolder` that was given stays open: the caller closes it.
        """
        running = self._running()
        if running is not None:
            running.close()  # a loop that ended with an error, and that a traceback still holds
        unguard(self.optimizers)
        release(self)
        self._wrapped.set_apart(False)
        if self.paying is not None:
            # Without a folder the run cannot go on, so nothing stays reserved for it.
            self.paying.close(ended=self._run_folder is None or self.steps_done >= self.plan.steps)
        if self._run_folder is not None and self._own_loop:
            self._run_folder.close()

    def __iter__(self) -> NoReturn:
        raise PrivetError(
            "make_private returns one object, not model, optimizer and loader: they stay as they are. "
            "Write `private = make_private(...)`, then `for x, y in private.batches(): ...`, or take private.loader, which has "
            "the batches of one epoch, for your loader."
        )

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _run(self, steps: int, progress: bool, on_step: OnStep | None) -> Generator[Any]:
        before = self._running()
        if before is not None:
            before.close()  # a loop that ended with an error, and that a traceback still holds
        loop = self._loop(steps, progress, on_step)
        self._running = ref(loop)
        return loop

    def _loop(self, steps: int, progress: bool, on_step: OnStep | None) -> Generator[Any]:
        wanted = self.steps_done + steps
        with ExitStack() as stack:
            stack.enter_context(
                self._team.telling(lambda: f"the end of a loop that was left after step {self.steps_done}")
            )
            self._records.check(self.plan)
            self._check_parameters()
            end = min(wanted, self._opened(wanted))
            self._wrapped.refuse_later_wrappers()
            stack.callback(self._wrapped.scatter)
            self._gather(f"the loop from step {self.steps_done + 1}")
            stack.enter_context(self.engine)
            stack.callback(self._forget)
            self._check_rules()
            shown = progress and self._team.leads
            tick = stack.enter_context(step_progress(self.plan.steps, self.steps_done)) if shown else None
            report = StepReport(self)
            self.continue_streams()
            self._look_around()
            for part, batch in self._records.batches(self.plan, self.randomness, range(self.steps_done, end)):
                if part.first:
                    self._check_limit(part.step.number)
                    self._gather(f"step {part.step.number + 1}")
                    yield from self._rehearse(part.step.number)
                self._part, self._batch, self._waiting = part, batch, set(self.optimizers)
                if part.records:
                    self._hand_out(batch, part.records, part.each)
                    yield batch
                    self.engine.set_quiet(True)
                    self._void = self._may_skip and len(self._waiting) == len(self.optimizers)
                if self._void or not part.records:
                    # An empty batch is a step like any other: it is noise and nothing else, and the model does not see it. So is
                    # a batch that the body has skipped: whether it does may depend on the records, and must not be visible.
                    self.engine.drop()
                    for optimizer in self.optimizers:
                        optimizer.step()
                    self.engine.set_quiet(True)
                    self._void = False
                else:
                    self._check_used()
                self._part = self._batch = None
                if part.last:
                    self._wrapped.scatter()
                if part.last and tick is not None:
                    tick(lambda: self.spent().epsilon)
                if part.last and on_step is not None:
                    on_step(report())
                if part.last and self._is_due():
                    self.save()
                if part.last and self.steps_done == self.plan.steps:
                    release(self)
                    self._wrapped.set_apart(False)
                    if self.paying is not None:
                        self.paying.close(ended=True)
            if end < wanted:
                self._team.asked("the end of the budget", lambda: self._check_limit(self.steps_done))

    def _gather(self, place: str) -> None:
        self._wrapped.gather(self._team, place)
        if self._wrapped.is_gathered:
            self._trained = {name: p for name, p in self.engine.model.named_parameters() if p.requires_grad}

    def _opened(self, wanted: int) -> int:
        """The step before which process 0 says that the run has to end; the others take over what its ledger holds."""
        limit, events, conditions = self._team.asked(
            f"the loop from step {self.steps_done + 1} to {wanted}",
            lambda: (self._check_limit(self.steps_done), list(self.ledger), self.ledger.conditions),
        )
        if not self._team.leads:
            self.ledger.take_over(events, conditions)
        return limit

    def _look_around(self) -> None:
        """Before the first batch, note all tensors that exist: except for the data set itself, they hold no records of it."""
        if not self._checks.self_check:
            return  # the statement then assumes that no other tensor holds records
        if self._surroundings is None:
            self._surroundings = Surroundings.now(self.optimizers)
            data = self._memory_of_data()
            self._constants = [
                tensor
                for tensor in self._surroundings.tensors
                if mark_of(tensor) is None and not (data and _memory(tensor) in data)
            ]
            self._data = data
        self.engine.know(self._constants, self._data)

    def _memory_of_data(self) -> set[int | None]:
        return {_memory(tensor) for tensor in self._records.own_tensors()} - {None}

    def _hand_out(self, batch: Any, records: int, each: int) -> None:
        self._check_parameters()
        self._seed = torch.initial_seed()
        alone, assume = self._checks.isolation == "each", self._checks.isolation == "assume"
        dims, strangers, unseen = self._records.dims(batch), not self._checks.self_check, other_parts(batch)
        self._records.check_rows(dims, records * each)
        self.engine.hand_out(
            dims,
            records,
            each=each,
            assume=assume,
            alone=alone,
            strangers=strangers,
            unseen=unseen,
            guarded=self._kept_beside_the_model(),
        )

    def _kept_beside_the_model(self) -> Iterator[tuple[str, Tensor]]:
        """Tensors of the optimizers and of the average, and shards, which records must not change, with names for a message."""
        for optimizer in self.optimizers:
            for state in (*optimizer.state.values(), *optimizer.param_groups):
                yield from (
                    (f"{key} of the optimizer", own_part(each))
                    for key, each in state.items()
                    if isinstance(each, Tensor)
                )
        if self.average is not None:
            yield from ((f"the average of {name}", own_part(value)) for name, value in self.average.values.items())
        for name in self._team.pieces.keys() & self._parameters.keys():
            yield f"the shard of {name}", own_part(self._parameters[name])

    # --- the self-check ---------------------------------------------------------------------------------------------

    def _rehearse(self, step: int) -> Generator[Any]:
        """Give the loop's body a few records to check that it treats each on its own; see `privet.training.rehearsal`."""
        if not self._checks.self_check or step <= self._rehearsed_to or not self._is_checked_before(step):
            return
        if self._count() < 2:
            return  # a single record cannot depend on others
        each = self._checks.isolation == "each"
        if self._rehearsed_to < 0 and not each:
            self._records.check_collate(self._count())
        for seed in (2 * step, 2 * step + 1):
            batch, count = self._records.sample(self._count(), seed), self._count()
            # A part of a batch that was collated for others need not be what a record alone would get.
            alone = (each and self._records.collate is not None) or self._records.is_ragged
            load = partial(self._records.sample, count, seed) if alone else None
            for trial in self._trials(batch, count, self._records.rehearsed, load):
                self._part, self._batch, self._waiting = _NOBODY, trial, set(self.optimizers)
                yield trial
                self.engine.set_quiet(True)
                if isinstance(self._rehearsal, AloneRehearsal) and len(self._waiting) == len(self.optimizers):
                    self._rehearsal.pass_over()
                    self.engine.drop()
                else:
                    self._check_used()
                self._part = self._batch = None
            complaint = self._conclude(quiet=seed % 2 == 0)
            if not complaint:
                break  # after a complaint, the check is repeated once with other records
        self._team.agree(f"the self-check before step {step + 1}")
        self._rehearsed_to = step

    def _is_checked_before(self, step: int) -> bool:
        return self._rehearsed_to < 0 or is_rehearsed(step, self.plan.steps)

    @property
    def _may_skip(self) -> bool:
        """Whether a batch may be skipped: a rehearsal has shown that the body does use batches."""
        return self._rehearsed_to >= 0

    def _count(self) -> int:
        """The number of records in a rehearsal. It differs from the expected size of a batch, so that a loss that is divided by
        that constant is not mistaken for one that is divided by the size of the batch."""
        expected = round(self.plan.expected_batch_size)
        count = max(min(self._records.physical or expected, MOST), FEWEST)
        if count == expected:
            count += 1 if count == FEWEST else -1
        return min(count, len(self._records))

    def _trials(
        self, batch: Any, count: int, each: int = 1, load: Callable[[Tensor], Any] | None = None
    ) -> Iterator[Any]:
        self._look_around()
        surroundings = self._surroundings or Surroundings.now(self.optimizers)
        dims = {id(tensor): dim for tensor, dim in self._records.dims(batch)}
        precise = all(p.element_size() >= 4 for p in self._parameters.values())
        self._rehearsal = (AloneRehearsal if self._checks.isolation == "each" else Rehearsal)(count, precise, each)
        rehearsal = self._rehearsal
        self.engine.size_divisors = frozenset()
        with held_still(self.engine, surroundings.moving) as reset, self.engine.still():
            for _, places in rehearsal.trials():
                reset()
                rows = (places.unsqueeze(1) * each + torch.arange(each)).flatten()
                trial = load(rows) if load else selected(batch, rows, lambda tensor: dims[id(tensor)])
                self._hand_out(trial, len(places), each)
                streams = Streams()
                yield trial
                rehearsal.look_at(self.engine, self.optimizers, streams)

    def _conclude(self, *, quiet: bool = False) -> str:
        assert self._rehearsal is not None
        complaint = self._rehearsal.complaint()
        self.engine.size_divisors = self._rehearsal.size_divisors
        self._rehearsal = None
        if complaint and not quiet:
            raise PrivetError(complaint)
        return complaint

    def continue_streams(self) -> None:
        """Continue the generators after the last step that was done, whatever workers drew ahead of it.

        The loop does this. A run that is continued after its last step has no loop, and calls it before it draws anything.
        """
        if self.stream is not None and isinstance(self.randomness.sampling, torch.Generator):
            self.randomness.sampling.set_state(self.stream)
        if self.torch_state is not None:
            torch.set_rng_state(self.torch_state)
            self.torch_state = None

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._paused:
            with self._team.telling():
                self._take(optimizer, args, kwargs)

    def _take(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the gradients of the batch that was handed out, and give the optimizer what it may use of them."""
        if any(callable(a) for a in args) or kwargs.get("closure") is not None:
            raise PrivetError(
                "optimizer.step(closure) runs several backward passes for one batch; call it without a closure."
            )
        if self._part is None:
            raise PrivetError(
                "optimizer.step() outside of `for ... in private.batches()` would train without privacy. Train on those "
                "batches; on public data, train inside `with private.paused()`, or after private.close()."
            )
        if optimizer not in self._waiting:
            raise PrivetError(
                "optimizer.step() was called without a batch: one step for each batch of private.batches()."
            )
        check_last_hook(optimizer)
        if len(self._waiting) == len(self.optimizers):
            empty = self._void or (self._part is not _NOBODY and not self._part.records)
            gradients = self.engine.empty() if empty else self.engine.gradients()
            self.engine.set_quiet(True)
            self._check_parameters()
            if self._rehearsal is not None:
                self._rehearsal.measure(gradients)
                self._set_gradients({})
            else:
                self._use(self._part, gradients)
            self._given = {name: p.grad for name, p in self._parameters.items()}
            if len(self.optimizers) > 1:
                self._values = {n: (g._version, g.clone()) for n, g in self._given.items() if g is not None}
        else:
            self._refuse_other_gradients()
        self._waiting.discard(optimizer)
        # torch's own optimizers use their gradients and nothing else. Other code may use records, and is listened to.
        self.engine.set_quiet(is_known_to_step(optimizer))

    def _refuse_other_gradients(self) -> None:
        """Raise if a gradient was replaced since the first optimizer stepped, or written into without torch noticing."""
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            version, value = self._values.get(name, (-1, gradient))
            unseen = gradient._version == version and not torch.equal(gradient.nan_to_num(), value.nan_to_num())
            if gradient is not self._given[name] or unseen:
                raise PrivetError(
                    "The gradient of a parameter was replaced between the steps of two optimizers, or written into past torch: "
                    "change parameter.grad in place, with operations of torch, or step all optimizers first."
                )

    def _use(self, part: PhysicalBatch, gradients: PerExampleGradients) -> None:
        """Add the clipped gradients of a physical batch to the sum, and after the last one release the step's gradient."""
        part.step.add(gradients, self.state)
        self.bad_records += gradients.bad_count
        self._set_gradients({})  # an optimizer leaves a parameter without gradient as it is
        if part.last:
            public = self._public_gradients()
            result = part.step.release(self._record, self._replicas(part))
            if not self._team.leads:
                self._follow_ledger(part.step.number)
            self.state = result.state
            own = {n: as_shard(result.gradients[n], p) for n, p in self._parameters.items()}
            self._set_gradients({n: own[n] + public[n] if n in public else own[n] for n in own})
            for optimizer in self.optimizers:
                if isinstance(optimizer, CorrectedAdam):
                    deviations = result.deviations()
                    optimizer.expect_noise({p: deviations[name] for name, p in self._parameters.items()})
            self.steps_done += 1
            self.stream = part.stream

    def _replicas(self, part: PhysicalBatch) -> Iterator[Tensor]:
        """Tensors that are the same in every process of the team: parameters, the state of the plan, and the batch."""
        yield from self._trained.values()
        for leaf in tree_leaves((self.state.clipping, self.state.noise)):
            if isinstance(leaf, Tensor | float | int):
                yield leaf if isinstance(leaf, Tensor) else torch.tensor(leaf)
        if part.step.drawn is not None:
            yield part.step.drawn

    def _follow_ledger(self, step: int) -> None:
        """Record here what process 0 has recorded."""
        if self._team.word > len(self.ledger):
            self.ledger.record(self.plan.step_event(step))
        if self._team.word != len(self.ledger):
            raise PrivetError(
                "The ledger of process 0 holds events that no step of this loop has recorded: record nothing else in it while "
                "the loop runs."
            )

    def _public_gradients(self) -> dict[str, Tensor]:
        """The gradients of the functions of `public` in this step."""
        if not self._public:
            return {}
        with self.paused(), self.engine.public(), torch.enable_grad():
            for function in self._public:
                loss = function()
                if loss is not None:
                    loss.backward()
            return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        complete = self._part is not None and self._part.last and not self._waiting
        done = complete and self._rehearsal is None and not self._paused
        if done and self.average is not None:
            self.engine.set_quiet(True)  # it uses the parameters alone
            self.average.update()
        self.engine.set_quiet(False)
        self.engine.copy_exposed()
        if done and self.scheduler is not None:
            self.scheduler.step()
        if not self._waiting:
            self.engine.refuse_later_writes()

    def _record(self, event: Event, released: Mapping[str, Tensor]) -> None:
        if self._run_folder is not None:
            self._run_folder.record(step_name(self.steps_done), event, released)
        else:
            self.ledger.record(event)
        self._team.word = len(self.ledger)

    def _is_due(self) -> bool:
        at = self.steps_done
        return self._is_saved and (at % self._save_every == 0 or at == self.plan.steps)

    def _check_limit(self, step: int) -> int:
        if not self._team.leads:
            return self.plan.steps  # process 0 tells, at the start of a loop and in every step
        run = self._run_folder
        return self.limit.check(step, run.in_ledger(step_name, step, self.plan.steps) if run is not None else None)

    def _set_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = gradients.get(name)
            if parameter.grad is not None:
                set_mark(parameter.grad, FREE)  # released: it may be used in any way
        for _, tensor in self._kept_beside_the_model():
            if mark_of(tensor) is None:
                set_mark(tensor, FREE)

    def _forget(self) -> None:
        """End the loop: discard an unused batch, whose gradients are in the engine, and detach the engine."""
        self._part = self._batch = self._rehearsal = None
        self._waiting.clear()

    # --- refusals ---------------------------------------------------------------------------------------------------

    def _check_plan(self) -> None:
        """Raise unless the plan, its ledger and the records belong together."""
        if self.plan.sampling.padded:
            raise InputError(
                "A training step releases one sum, which does not show the size of its batch, so padding protects nothing here: "
                "give sampling=PoissonSampling(rate) instead of a padded one."
            )
        check_ledger(self.plan.sampling, self.ledger)
        self._records.check(self.plan)

    def _check_used(self) -> None:
        if len(self._waiting) == len(self.optimizers):
            raise PrivetError(
                "A batch was not used: call loss.backward() and optimizer.step() once for each batch. "
                "To stop early, leave the loop with break."
            )
        self.engine.refuse_changed_buffers()
        self.engine.refuse_records_in(self._kept_beside_the_model())
        if torch.initial_seed() != self._seed and self.engine.has_read:
            raise PrivetError(
                "torch's random generator was seeded in a body that reads values of the records: a seed that depends on a record "
                "shows in every later step. Seed it before the loop."
            )
        if self._waiting:
            raise PrivetError(
                f"{len(self._waiting)} of {len(self.optimizers)} optimizers did not step on a batch: call each once."
            )

    def _check_parameters(self) -> None:
        """Raise unless the model and its optimizers hold exactly the parameters of the plan."""
        now = {name: p for name, p in self.engine.model.named_parameters() if p.requires_grad}
        known = self._trained if self._wrapped.is_gathered else self._parameters
        if now.keys() != known.keys() or any(p is not known[name] for name, p in now.items()):
            odd = sorted(name for name in now.keys() | known.keys() if now.get(name) is not known.get(name))[0]
            raise InputError(
                f"'{odd}' was added, replaced, frozen or unfrozen after make_private: change the "
                f"model first, then call make_private."
            )
        if _held(self.optimizers) != self._held:
            raise InputError(
                "The parameters of an optimizer were changed after make_private: add parameter groups first, then call "
                "make_private."
            )

    def _check_rules(self) -> None:
        """Raise if the model uses a rule of somebody else that the statement does not name."""
        late = set(self.engine.trusted) - set(self.plan.assumptions)
        if late and self._checks.isolation != "each":
            raise InputError(
                f"The statement of this run does not say that {min(late)}: register rules before make_private is called."
            )


def _held(optimizers: Sequence[Optimizer]) -> list[list[int]]:
    return [[id(p) for group in optimizer.param_groups for p in group["params"]] for optimizer in optimizers]


def _memory(tensor: Tensor) -> int | None:
    """A number that is equal for tensors that share memory; None for a tensor without memory of its own."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


_NOBODY = PhysicalBatch(None, 0, first=False, last=False, stream=None)  # type: ignore[arg-type]
"""Stands for a batch of a rehearsal, which belongs to no step."""


class Batches:
    """The batches of the steps to come; its length is the number of steps.

    A step is usually one batch. It is none if no record was drawn, and several if `physical_batch_size` divides it.
    """

    def __init__(self, private: Private, steps: int, progress: bool, on_step: OnStep | None) -> None:
        self._private, self._steps, self._progress, self._on_step = private, steps, progress, on_step

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Generator[Any]:
        return self._private._run(self._steps, self._progress, self._on_step)


class EpochLoader:
    """The batches of one epoch each time that it is iterated: ``for epoch in range(epochs): for x, y in loader: ...``

    Epoch k ends with the first step after which k times as many records were drawn as there are, in expectation. So a plan
    of `epochs` epochs is done after as many iterations, even if an epoch is no whole number of steps. A loop that was left
    with break goes on in the same epoch. Its length is the number of steps to the end of the epoch.
    """

    def __init__(self, private: Private) -> None:
        self._private = private

    @property
    def dataset(self) -> Any:
        return self._private.dataset

    def __len__(self) -> int:
        done, rate = self._private.steps_done, self._private.plan.sampling.rate
        end = math.ceil(round((math.floor(round(done * rate, 9)) + 1) / rate, 9))
        return min(end, self._private.plan.steps) - done

    def __iter__(self) -> Iterator[Any]:
        return iter(self._private.batches(steps=max(len(self), 1)))


def step_name(number: int) -> str:
    """The name of a step of the plan in a run's journal."""
    return f"step {number}"


def _shape(dataset: Any) -> list[int]:
    """The public shape of the first input of a record; empty if the input is not a tensor."""
    record = dataset[0]
    first = record[0] if isinstance(record, tuple | list) and record else record
    return list(first.shape) if isinstance(first, Tensor) else []
