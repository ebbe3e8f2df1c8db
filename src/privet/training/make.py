"""`make_private`: from the arguments of a training loop to its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, default_collate

from privet.clipping import Clipping, FlatClipping, ScheduledClipping
from privet.data.owners import Key, users_within
from privet.errors import InputError
from privet.gradients import Engine
from privet.noise import GaussianNoise, NoisePlan, ScheduledNoise
from privet.privacy import Budget, Ledger, Schedule, steps_of, warn_of_delta
from privet.privacy.events import tally
from privet.randomness import Randomness
from privet.sampling import PoissonSampling, Users
from privet.training.average import Average
from privet.training.folder import RunFolder
from privet.training.identity import data_fingerprint, describe
from privet.training.opacus import opacus_names
from privet.training.optimizers import is_planned
from privet.training.physical import free_memory, records_within
from privet.training.plan import Plan
from privet.training.private import Isolation, Private
from privet.training.state import Stateful

PLANNED = "the run was planned before the earlier releases in its ledger were looked at"
"""Numerical composition has a theorem for plans; for parameters that depend on earlier releases see `Budget.after`."""


@opacus_names
def make_private(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    dataset: Any,
    *,
    delta: float,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | Schedule | None = None,
    max_grad_norm: float | Schedule | None = None,
    clipping: Clipping | None = None,
    noise: Callable[[float], NoisePlan] = GaussianNoise,
    accountant: str = "pld",
    average: float | None = None,
    scheduler: Any = None,
    views: int = 1,
    loss_reduction: Literal["auto", "mean", "sum"] = "auto",
    physical_batch_size: int | Literal["auto"] | None = None,
    memory_budget: int | None = None,
    workers: int | None = None,
    public_size: int | None = None,
    users: Users | Key | None = None,
    seed: int | None = None,
    ledger: Ledger | None = None,
    fixed_beforehand: bool = False,
    folder: RunFolder | str | Path | None = None,
    resume: bool = False,
    save_every: int | None = None,
    stateful: Mapping[str, Stateful] | None = None,
    isolation: Isolation = "follow",
    self_check: bool = True,
) -> Private:
    """Give an existing training loop differential privacy:

        private = privet.make_private(model, optimizer, dataset, batch_size=600, epochs=15,
                                      epsilon=3.0, delta=1e-5, max_grad_norm=1.0)
        for x, y in private.batches():
            optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); optimizer.step()
        print(private.spent())

    The names of Opacus are taken too: module, data_loader, target_epsilon, target_delta.

    Args:
        model: trained as it is; it is neither wrapped nor changed. Several models are clipped as one.
        optimizer: any torch optimizer over the model's parameters, or several that hold them together.
        dataset: a `privet.data.Split`, a ``TensorDataset``, or any map-style data set; of a ``DataLoader``, its data set,
            batch size, workers and collate function are taken, and its order is not.
        delta: the delta of the statement.
        batch_size: the expected size of a Poisson-sampled batch.
        epochs, steps: how long to train; give one. An epoch is ``public_size / batch_size`` steps. With both epsilon and
            noise_multiplier, neither is needed: as many steps as the budget allows.
        epsilon: the budget. Without noise_multiplier the noise is calibrated to spend it; with it, the first step that
            would pass it raises `BudgetExhausted`.
        noise_multiplier: the noise on the sum, in clipping norms; a `Schedule` has one for each step.
        max_grad_norm, clipping: the norm of flat clipping (a `Schedule` has one for each step), or another way of
            clipping; give one.
        noise: the kind of noise, as what makes one of a noise multiplier: ``GaussianNoise``, or for instance ``ShapedNoise``,
            whose multiplier is 1 / epsilon of a step.
        accountant: whose theorem calibrates the noise and watches the budget.
        average: the decay of a moving average of the parameters, ``private.average``; post-processing, free of cost.
        scheduler: a torch scheduler of the learning rate, stepped once after every private step, also an empty one.
        views: augmentation multiplicity: how many rows the loop makes of each record (``x.repeat_interleave(views, 0)``, then
            augments them), for the size of physical batches. Rows of one record are followed, and clipped as one record.
        loss_reduction: how the loss joins its records; "auto" reads it off the loss.
        physical_batch_size: at most so many records go through the model at once; the step stays the same. "auto"
            chooses as many as fit into `memory_budget`, or into a quarter of the free memory without one.
        memory_budget: bytes that may be used to keep per-example gradients, and by a physical batch under "auto".
        workers: processes that load records of a map-style data set.
        public_size: the size of the data set as far as it is public. The sampling rate, the steps of an epoch and the
            constant by which sums are divided follow from it. It may be wrong: each record is drawn with probability
            ``batch_size / public_size`` all the same, so privacy is what is stated, and batches are larger or smaller than
            `batch_size` on average. Without it, ``len(dataset)`` is taken, and the statement names the condition that the
            number of records is public. With `users`, all of this is about the number of users.
        users: whose each example is, where a person may hold several: a vector, a list, a function of the example's index,
            a column's name, or `privet.sampling.Users`; a `Split` that has users brings them along, also in a ``Subset`` or
            a ``ConcatDataset``. A user is then what is drawn, clipped and protected, with all their examples together;
            `batch_size` counts users, and an epoch draws each user once on average.
        seed: makes sampling and noise repeatable, for experiments; a run that is released has none. Dropout, augmentation
            and the model's start come from torch's own generator: seed that, too.
        ledger: where the steps are recorded, after what it holds already; without it, in memory.
        fixed_beforehand: you state that this run was planned before anything in its ledger was looked at. Without it, a run
            after other releases is proved under that assumption only.
        folder: where the run keeps its ledger and its checkpoints, so that it can be killed at any moment and continued.
        resume: continue the run in `folder` where there is one: it must have the same plan, data and seed.
        save_every: steps from one checkpoint to the next; an epoch without it. There is one after the last step, too.
        stateful: more that is saved and continued by name: anything with ``state_dict`` and ``load_state_dict``.
        isolation: how it is made sure that a record's gradient is its own. "follow" follows every operation from the batch to
            the loss, and refuses what is not known to keep records apart. "each" evaluates each record alone: slow, and
            right whatever the model does. "assume" goes on, and the statement says what it assumes.
        self_check: give the loop's body a few records before the first step, and see that what one record contributes does
            not depend on the others; see `privet.training.rehearsal`. Without it the statement says so.
    """
    dataset, batch_size, workers, collate = _opened(dataset, batch_size, workers)
    if users is None:
        users = users_within(dataset)
    holdings = None if users is None else Users.of(users).found_in(dataset)
    unit, held = ("record", dataset) if holdings is None else ("user", holdings)
    records = public_size if public_size is not None else len(held)
    if batch_size is None:
        raise InputError(f"Give batch_size, the expected number of {unit}s in a step.")
    if not 1 <= batch_size <= records:
        raise InputError(
            f"batch_size is {batch_size}: give a number from 1 to the number of {unit}s"
            f"{f', which was stated to be {records}' if public_size is not None else ''}."
        )
    if epsilon is None and noise_multiplier is None:
        raise InputError("Give either epsilon, from which the noise is calibrated, or noise_multiplier.")
    if steps is not None and epochs is not None:
        raise InputError("Give either epochs or steps.")
    models = (model,) if isinstance(model, nn.Module) else tuple(model)
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    _refuse_several_processes(models)
    _refuse_second_plan(models, ledger)
    _keep_memory_for_the_next_step()
    with ExitStack() as undo:
        run = _run_folder(folder, resume, ledger, unit, undo)
        ledger = run.ledger if run is not None else ledger if ledger is not None else Ledger(unit=unit)
        ledger.require_unit(unit)
        if public_size is None:
            ledger.size_is_public()
        warn_of_delta(delta, records, ledger.unit)
        sampling = PoissonSampling(batch_size / records)
        budget = Budget(epsilon, delta, ledger.relation, accountant) if epsilon is not None else None
        steps = steps if epochs is None else steps_of(records, batch_size, epochs)
        steps, noises = _calibrated(steps, noise_multiplier, noise, sampling, budget, ledger, run)
        assumptions = _assumptions(isolation, self_check)
        if not fixed_beforehand and _follows_releases(ledger, run):
            assumptions += (PLANNED,)
        plan = Plan(sampling, _clipping(max_grad_norm, clipping), noises, steps, records, assumptions)
        whole = models[0] if len(models) == 1 else nn.ModuleList(models)
        if physical_batch_size == "auto":
            first = dataset[0][0] if isinstance(dataset[0], (tuple, list)) else dataset[0]
            physical_batch_size = records_within(models[0], first, memory_budget or free_memory() // 4) // views or 1
        identity = {}
        if run is not None:
            identity = {
                "plan": describe(plan),
                "epsilon": epsilon,
                "delta": delta,
                "accountant": accountant,
                "seed": seed,
                "views": views,
                "average": average,
                "optimizers": [type(each).__name__ for each in optimizers],
                # Another division into physical batches rounds differently: no harm to a release.
                "physical_batch_size": physical_batch_size if seed is not None else None,
                "data": data_fingerprint(dataset),
                **({} if holdings is None else {"users": holdings.fingerprint, "examples of a user": holdings.most}),
            }
            run.begin(identity, seeded=seed is not None)
        private = Private(
            plan,
            Engine(whole, loss_reduction=loss_reduction, memory_budget=memory_budget),
            optimizers,
            dataset,
            ledger,
            delta,
            Randomness.of(seed),
            budget=budget,
            size_is_public=public_size is None,
            physical_batch_size=1 if isolation == "each" else physical_batch_size,
            workers=workers,
            collate=collate,
            average=None if average is None else Average(whole, average),
            scheduler=scheduler,
            run=run,
            identity=identity,
            save_every=save_every,
            stateful=stateful,
            isolation=isolation,
            self_check=self_check,
            users=holdings,
        )
        undo.pop_all()
    return private


def _follows_releases(ledger: Ledger, run: RunFolder | None) -> bool:
    """Whether the ledger held other releases when the run began: of a run that is continued, as it said then."""
    if run is not None and run.identity:
        return PLANNED in run.identity["plan"].get("assumptions", ())
    return bool(tally(ledger.event))


def _assumptions(isolation: Isolation, self_check: bool) -> tuple[str, ...]:
    if isolation not in ("follow", "each", "assume"):
        raise InputError(f"isolation is 'follow', 'each' or 'assume', not {isolation!r}.")
    if isolation == "assume":
        checked = ", as a check on a few of them found" if self_check else ""
        return (f"records are processed independently of each other{checked}",)
    if not self_check:
        return ("the loop treats each record on its own, and uses records in no other way, which was not checked",)
    return ()


def _keep_memory_for_the_next_step() -> None:
    """Take and free one block of 31 MiB, which nothing touches.

    glibc gives freed blocks back to the system from a size on that grows with the largest block that was freed, up to 32 MiB. In
    a step of small tensors, taking them again page by page is a fifth of the time (an MLP on 600 records: 9.3 and 7.4 ms).
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def _refuse_several_processes(models: Sequence[nn.Module]) -> None:
    """Each process would draw batches and noise of its own, and the gradients would be joined outside the plan."""
    for each in models:
        if isinstance(each, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise InputError(
                f"{type(each).__name__} joins gradients of several devices, which no plan accounts for: give the model that is "
                f"in it (model.module), and train it in one process."
            )
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        raise InputError("This is one of several processes that train together, which no plan accounts for: start one.")


def _refuse_second_plan(models: Sequence[nn.Module], ledger: Ledger | None) -> None:
    """Two plans on one model would each state a part of what was spent, unless they write into one ledger."""
    if ledger is None and is_planned(p for model in models for p in model.parameters() if p.requires_grad):
        raise InputError(
            "The model is trained by another make_private already: finish it, end it with private.close(), or record both "
            "in one ledger with make_private(..., ledger=private.ledger)."
        )


def _opened(
    dataset: Any, batch_size: int | None, workers: int | None
) -> tuple[Any, int | None, int, Callable[[list[Any]], Any] | None]:
    """Of a loader, what is in it: batches are drawn by the plan, not by the loader."""
    collate = None
    if isinstance(dataset, DataLoader):
        batch_size = dataset.batch_size if batch_size is None else batch_size
        workers = dataset.num_workers if workers is None else workers
        collate = None if dataset.collate_fn is default_collate else dataset.collate_fn
        dataset = dataset.dataset
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError("The data set must be map-style (len and indexing): a stream cannot be Poisson-sampled.")
    return dataset, batch_size, workers or 0, collate


def _run_folder(
    folder: RunFolder | str | Path | None, resume: bool, ledger: Ledger | None, unit: str, undo: ExitStack
) -> RunFolder | None:
    if folder is None:
        if resume:
            raise InputError("resume continues the run in a folder: give folder=...")
        return None
    if ledger is not None and not (isinstance(folder, RunFolder) and ledger is folder.ledger):
        raise InputError(
            "A run in a folder has its ledger there: leave out ledger, or record in RunFolder(...).ledger."
        )
    if isinstance(folder, RunFolder):
        return folder
    run = RunFolder(folder, resume=resume, unit=unit)
    undo.callback(run.close)
    return run


def _clipping(max_grad_norm: float | Schedule | None, clipping: Clipping | None) -> Clipping:
    if clipping is not None and max_grad_norm is None:
        return clipping
    if clipping is not None or max_grad_norm is None:
        raise InputError("Give either max_grad_norm or clipping.")
    return ScheduledClipping(max_grad_norm) if isinstance(max_grad_norm, Schedule) else FlatClipping(max_grad_norm)


def _calibrated(
    steps: int | None,
    multiplier: float | Schedule | None,
    noise: Callable[[float], NoisePlan],
    sampling: PoissonSampling,
    budget: Budget | None,
    ledger: Ledger,
    run: RunFolder | None,
) -> tuple[int, NoisePlan]:
    """What was left open, from the budget after what the ledger holds; of a run that is continued, what it was then."""
    stored = run.identity.get("plan") if run is not None else None
    if stored is not None:
        steps = stored["steps"] if steps is None else steps
        multiplier = stored["noise"]["multiplier"] if multiplier is None else multiplier
    gaussian = noise is GaussianNoise
    if isinstance(multiplier, Schedule):
        if not gaussian:
            raise InputError("A schedule of noise is one of Gaussian noise: give noise_multiplier as a number.")
        return multiplier.steps if steps is None else steps, ScheduledNoise(multiplier)
    if steps is None and (multiplier is None or budget is None):
        raise InputError("Give either epochs or steps.")
    if steps is None:
        assert multiplier is not None and budget is not None
        if not gaussian:
            raise InputError("Give either epochs or steps: for this noise they are not computed from the budget.")
        steps = budget.after(ledger, fixed_beforehand=True).steps(sampling.rate, multiplier)
    if multiplier is None:
        assert budget is not None
        left, count = budget.after(ledger, fixed_beforehand=True), steps
        if gaussian:
            multiplier = left.noise_multiplier(sampling.rate, steps)
        else:
            multiplier = left.least(lambda x: sampling.event(noise(x).at(0).event()) * count, what="noise multiplier")
    return steps, noise(multiplier)
