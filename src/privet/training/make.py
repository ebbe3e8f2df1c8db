"""`make_private`: from the arguments of a training loop to its plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from privet.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    Clipping,
    EllipticalClipping,
    FlatClipping,
    PerLayerClipping,
    ScheduledClipping,
)
from privet.data.owners import Key
from privet.distributed import Team, pieces_of, unwrapped
from privet.errors import InputError
from privet.gradients import Engine
from privet.gradients.operation import trusted_rules
from privet.noise import GaussianNoise, Noise, ScheduledNoise
from privet.privacy import AccountedRun, Budget, DataAccount, Ledger, Relation, Schedule, steps_of, warn_of_delta
from privet.privacy.data_account import read_stub
from privet.privacy.events import tally
from privet.randomness import Randomness
from privet.sampling import PoissonSampling, Sampling, Users, UserSampling
from privet.training.checkpoint import Stateful, digest
from privet.training.drawing import GivenRecords, Performance
from privet.training.folder import Continued, RunFolder, Saving, opened
from privet.training.identity import plain, rebuild
from privet.training.optimizers import Average, CorrectedAdam, is_planned
from privet.training.plan import BudgetLimit, Calibration, Plan, check_ledger
from privet.training.private import Private
from privet.training.rehearsal import Checks, Isolation

P = ParamSpec("P")
R = TypeVar("R")

PLANNED = "the run was planned before the earlier releases in its ledger were looked at"
"""Numerical composition has a theorem for plans; for parameters that depend on earlier releases see `Budget.after`."""
SAME = {
    "module": "model",
    "data_loader": "dataset",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
}
"""Arguments of Opacus with the same meaning and another name."""
OTHERWISE = {
    "poisson_sampling": "batches are Poisson-sampled unless you give sampling=...; leave it out",
    "grad_sample_mode": "the engine chooses for each layer; leave it out",
    "noise_generator": "give seed=... for an experiment; a release draws its noise from secret keys",
    "batch_first": "a collate function may put the records into any dimension; it is found",
    "secure_mode": "without a seed the noise always comes from secret keys; leave it out",
    "criterion": "the loss stays in your loop; leave it out",
}
"""Arguments of Opacus without a counterpart."""
MOVED = ("physical_batch_size", "memory_budget", "workers", "save_every")
"""Arguments of version 0.1 that are fields of `Performance` now."""
WITH_SHARDS = (
    FlatClipping,
    AutomaticClipping,
    PerLayerClipping,
    ScheduledClipping,
    AdaptiveClipping,
    EllipticalClipping,
)
"""Clippings whose state and metric need no whole tensor of the release."""


def other_names(function: Callable[P, R]) -> Callable[P, R]:
    """Also accept the names of Opacus and the arguments of version 0.1; explain arguments without a counterpart."""

    @wraps(function)
    def translated(*args: P.args, **given: P.kwargs) -> R:
        for name, way_out in OTHERWISE.items():
            if name in given:
                raise InputError(f"make_private has no argument {name!r}: {way_out}.")
        for theirs, ours in SAME.items():
            if theirs in given:
                if ours in given:
                    raise InputError(f"{theirs} and {ours} are two names of one argument: give one.")
                given[ours] = given.pop(theirs)
        moved = {name: given.pop(name) for name in MOVED if name in given}
        for name in moved:
            warnings.warn(
                f"make_private({name}=...) has moved and will be removed in the next version: give "
                f"performance=privet.Performance({name}=...).",
                DeprecationWarning,
                stacklevel=2,
            )
        if "max_physical_batch_size" in given:
            moved["physical_batch_size"] = given.pop("max_physical_batch_size")
        if moved:
            given["performance"] = _with_moved(cast("Performance | None", given.get("performance")), moved)
        if isinstance(given.get("clipping"), str):
            raise InputError(
                f"clipping={given['clipping']!r}: give max_grad_norm for flat clipping, or a value of privet.clipping, such as "
                f"PerLayerClipping(1.0), AdaptiveClipping(1.0) or AutomaticClipping(1.0)."
            )
        return function(*args, **given)

    return translated


@other_names
def make_private(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    dataset: Any,
    *,
    delta: float,
    batch_size: int | None = None,
    sampling: Sampling | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | Schedule | None = None,
    max_grad_norm: float | Schedule | None = None,
    clipping: Clipping | None = None,
    noise: Callable[[float], Noise] = GaussianNoise,
    accountant: str = "pld",
    average: float | None = None,
    scheduler: Any = None,
    views: int = 1,
    loss_reduction: Literal["auto", "mean", "sum"] = "auto",
    public_size: int | None = None,
    users: Users | Key | None = None,
    seed: int | None = None,
    ledger: Ledger | None = None,
    account: DataAccount | str | Path | None = None,
    fixed_beforehand: bool = False,
    folder: RunFolder | str | Path | None = None,
    resume: bool | int = False,
    stateful: Mapping[str, Stateful] | None = None,
    isolation: Isolation = "follow",
    self_check: bool = True,
    performance: Performance | None = None,
) -> Private:
    """Give an existing training loop differential privacy:

        private = privet.make_private(model, optimizer, dataset, batch_size=600, epochs=15,
                                      epsilon=3.0, delta=1e-5, max_grad_norm=1.0)
        for x, y in private.batches():
            optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); optimizer.step()
        print(private.spent())

    The names of Opacus are accepted, too: module, data_loader, target_epsilon, target_delta, max_physical_batch_size.

    Args:
        model: the model; it is neither wrapped nor changed. Several models are clipped as one.
        optimizer: any torch optimizer over the model's parameters, or several that hold them together.
        dataset: a `privet.data.Split`, a ``TensorDataset``, or any map-style data set; a data frame (pandas, Arrow),
            whose batches are dictionaries of columns; a data set of Hugging Face; or a ``DataLoader``, whose data set, batch
            size, workers and collate function are used, but not its order. A collate function that is not known to keep
            records apart is checked on a few records, and the statement names it as an assumption.
        delta: the delta of the statement.
        batch_size: the expected size of a Poisson-sampled batch.
        sampling: another way to draw batches, a value of `privet.sampling`, instead of `batch_size`. `FixedSizeSampling` is
            accounted for replacing one record: a ledger that is given must have that relation.
        epochs, steps: how long to train; give one. An epoch is ``public_size / batch_size`` steps. With both epsilon and
            noise_multiplier, neither is needed: the run has as many steps as the budget allows.
        epsilon: the budget. Without noise_multiplier the noise is calibrated to spend it; with it, the first step that
            would exceed it raises `BudgetExhausted`.
        noise_multiplier: the noise on the sum, in clipping norms; a `Schedule` has one for each step.
        max_grad_norm, clipping: the norm of flat clipping (a `Schedule` has one for each step), or another way of
            clipping; give one.
        noise: the kind of noise: a function that makes it from a noise multiplier. ``GaussianNoise``, or for instance
            ``ShapedNoise``, whose multiplier is 1 / epsilon of a step.
        accountant: the accountant that calibrates the noise and watches the budget.
        average: the decay of a moving average of the parameters, ``private.average``; it is post-processing and costs nothing.
        scheduler: a torch scheduler of the learning rate, stepped once after every private step, also after an empty one.
        views: augmentation multiplicity: the number of rows that the loop makes of each record with
            ``x.repeat_interleave(views, 0)`` before it augments them; it is used for the size of physical batches. Rows of one
            record are followed, and clipped as one record.
        loss_reduction: how the loss joins its records; "auto" recognizes it.
        public_size: the public size of the data set. The sampling rate, the steps of an epoch and the constant by which sums
            are divided follow from it. If it is wrong, privacy is still as stated, because each record is drawn with
            probability ``batch_size / public_size``; batches are then larger or smaller than `batch_size` on average. By
            default, ``len(dataset)`` is used, and the statement names the condition that the number of records is public. With
            `users`, it is the number of users.
        users: the user of each example, if a person may have several: a vector, a list, a function of the example's index, the
            name of a column, or `privet.sampling.Users`. A `Split` with users keeps them, also in a ``Subset`` or a
            ``ConcatDataset``. A user is then drawn, clipped and protected with all their examples together; `batch_size` counts
            users, and an epoch draws each user once on average.
        seed: makes sampling and noise repeatable, for experiments; a run that is released must not have one. Dropout,
            augmentation and the initial model come from torch's own generator: seed that, too.
        ledger: where the steps are recorded, after its earlier events; without it, they are recorded in memory.
        account: the account of the data set, its name or its path (`privet.DataAccount`). The plan is reserved on it now, and
            each step is paid for before it is used; a plan for which the account has no room raises `AccountExhausted`. A
            resumed run stays on its account. Call ``private.close()`` if you stop before the last step: the unused reservation
            is then returned or, for a run in a folder, kept until it is resumed.
        fixed_beforehand: states that this run was planned before anybody looked at the releases in its ledger. Without it, a
            run after other releases is proved only under that assumption.
        folder: where the run keeps its ledger and its checkpoints, so that it can be killed at any moment and continued.
        resume: continue the run in `folder` if there is one; it must have the same plan, data and seed. A number continues it
            after that step, for which the folder must hold a checkpoint; repeated steps are charged again.
        stateful: further parts that are saved and continued, by name: anything with ``state_dict`` and ``load_state_dict``.
        isolation: how each record's gradient is kept apart. "follow" follows every operation from the batch to
            the loss, and refuses operations that are not known to keep records apart. "each" evaluates each record alone: slow,
            and right for any model. "assume" accepts everything, and the statement names the assumption.
        self_check: give the loop's body a few records before the first step, and check that the contribution of one record does
            not depend on the others; see `privet.training.rehearsal`. Without it the statement says so.
        performance: how a step is computed: physical batches, memory, workers and checkpoints; see `Performance`.
    """
    team = Team.found()
    with team.telling(), ExitStack() as undo:
        wrapped = unwrapped((model,) if isinstance(model, nn.Module) else tuple(model), team)
        models = wrapped.models
        whole = models[0] if len(models) == 1 else nn.ModuleList(models)
        team.pieces = pieces_of(whole, team)
        given = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
        _refuse_accumulation(given)
        optimizers = tuple(map(_inner, given))
        performance = performance if performance is not None else Performance()
        source = GivenRecords.of(dataset, users, sampling)
        size = public_size if public_size is not None else source.records
        sampling = _sampling(sampling, batch_size, source, public_size)
        if epsilon is None and noise_multiplier is None:
            raise InputError("Give either epsilon, to calibrate the noise, or noise_multiplier.")
        if steps is not None and epochs is not None:
            raise InputError("Give either epochs or steps.")
        if team.size > 1:
            _refuse_with_several_processes(given, folder, ledger, team)
        _refuse_second_plan(models, ledger)
        _keep_memory_for_the_next_step()
        checks = Checks(isolation, self_check)
        run = None
        if team.leads:
            relation = sampling.relations[0]
            run = opened(folder, resume=resume, ledger=ledger, relation=relation, unit=sampling.unit)
        if run is not None and run is not folder:
            undo.callback(run.close)
        books = _ledger(run, ledger, sampling)
        if team.leads:
            if public_size is None:
                books.size_is_public()
            warn_of_delta(delta, size, books.unit)
        continued = team.asked("the folder of the run", lambda: Continued.of(run, books))
        ledger = books if team.leads else continued.copied(ledger)
        budget = Budget(epsilon, delta, ledger.relation, accountant) if epsilon is not None else None
        if epochs is not None:
            steps = _steps(epochs, size, batch_size or source.batch_size, sampling)
        calibration = Calibration(sampling, noise, budget, ledger)
        steps, noise_multiplier = calibration.solve(steps, noise_multiplier, _stored(continued.identity))
        noises = calibration.made(noise_multiplier)
        # A record that is evaluated alone is collated alone, and its gradient is that of autograd.
        assumptions = checks.assumptions
        if isolation != "each":
            assumptions += source.assumptions + trusted_rules(whole)
        if not fixed_beforehand and _follows_releases(ledger, continued.identity):
            assumptions += (PLANNED,)
        plan = Plan(sampling, _clipping(max_grad_norm, clipping), noises, steps, size, assumptions)
        if team.pieces:
            _refuse_with_shards(plan, optimizers, performance)
        paying = _paying(account, run, ledger, plan, undo) if team.leads else None
        physical = performance.physical(models[0], source.dataset, views)
        settings: dict[str, Any] = {
            "plan": plan,
            "epsilon": epsilon,
            "delta": delta,
            "accountant": accountant,
            "noise_multiplier": noise_multiplier,
            "seed": seed,
            "views": views,
            "average": average,
            "optimizers": [type(each).__name__ for each in optimizers],
        }
        identity = plain(settings) | (source.identity if continued.path or team.size > 1 else {})
        team.same("the settings", identity, "give every process the same arguments and the same records")
        if continued.state is None:
            _require_same_models(whole, team)
        saving = None
        if continued.path:
            # Another division into physical batches rounds differently, which does no harm to a release.
            divided = {"physical_batch_size": physical if seed is not None else None}
            saving = Saving(
                run,
                continued.path,
                identity | divided,
                performance.save_every,
                stateful or {},
                own_loop=not isinstance(folder, RunFolder),
                state=continued.state,
            )
            if run is not None:
                run.begin(saving.identity, seeded=seed is not None)
        private = Private(
            BudgetLimit(plan, ledger, delta, budget),
            Engine(whole, loss_reduction=loss_reduction, memory_budget=performance.memory_budget),
            optimizers,
            source.loaded(public_size is None, 1 if isolation == "each" else physical, performance.workers, team),
            _randomness(seed, team),
            average=None if average is None else Average(whole, average),
            scheduler=scheduler,
            saving=saving,
            checks=checks,
            settings=settings | {"loss_reduction": loss_reduction, "performance": performance, "models": models},
            wrapped=wrapped,
        )
        private.paying = paying
        undo.pop_all()
    return private


def _inner(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a wrapper without hooks, such as that of accelerate; other optimizers are returned unchanged."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and isinstance(
        inside := getattr(optimizer, "optimizer", None), Optimizer
    ):
        optimizer = inside
    return optimizer


def _refuse_accumulation(optimizers: Sequence[Any]) -> None:
    """accelerate joins several batches before a step, by a state that all of its optimizers share."""
    if any(getattr(getattr(each, "gradient_state", None), "num_steps", 1) > 1 for each in optimizers):
        raise InputError(
            "gradient_accumulation_steps would join several batches of the plan to one step: leave it out, give batch_size the "
            "whole size, and performance=privet.Performance(physical_batch_size=...) to compute it in parts."
        )


def _with_moved(performance: Performance | None, moved: Mapping[str, Any]) -> Performance:
    for name in moved:
        if performance is not None and getattr(performance, name) is not None:
            raise InputError(f"{name} is given twice, the second time in performance: give it there only.")
    return replace(performance or Performance(), **moved)


def _sampling(
    sampling: Sampling | None, batch_size: int | None, source: GivenRecords, public_size: int | None
) -> Sampling:
    if sampling is None:
        sampling = _poisson(source.batch_size if batch_size is None else batch_size, source, public_size)
    elif batch_size is not None:
        raise InputError("Give either batch_size, for Poisson sampling, or sampling.")
    elif public_size is not None and Relation.ADD_REMOVE not in sampling.relations:
        raise InputError(
            f"{type(sampling).__name__} takes the number of {sampling.unit}s as public: leave out public_size, or use "
            f"PoissonSampling."
        )
    if source.users is None or isinstance(sampling, UserSampling):
        return sampling
    return UserSampling(sampling, source.users.most)


def _poisson(batch_size: int | None, source: GivenRecords, public_size: int | None) -> PoissonSampling:
    size = public_size if public_size is not None else source.records
    if batch_size is None:
        raise InputError(f"Give batch_size, the expected number of {source.unit}s in a step.")
    if not 1 <= batch_size <= size:
        raise InputError(
            f"batch_size is {batch_size}: give a number from 1 to the number of {source.unit}s"
            f"{f', which was stated to be {size}' if public_size is not None else ''}."
        )
    return PoissonSampling(batch_size / size)


def _steps(epochs: float, size: int, batch_size: int | None, sampling: Sampling) -> int:
    drawn = sampling.users if isinstance(sampling, UserSampling) else sampling
    if batch_size is not None and drawn == PoissonSampling(batch_size / size):
        return steps_of(size, batch_size, epochs)
    return max(1, math.ceil(round(epochs / sampling.rate, 9)))


def _clipping(max_grad_norm: float | Schedule | None, clipping: Clipping | None) -> Clipping:
    if clipping is not None and max_grad_norm is None:
        return clipping
    if clipping is not None or max_grad_norm is None:
        raise InputError("Give either max_grad_norm or clipping.")
    return ScheduledClipping(max_grad_norm) if isinstance(max_grad_norm, Schedule) else FlatClipping(max_grad_norm)


def _ledger(run: RunFolder | None, ledger: Ledger | None, sampling: Sampling) -> Ledger:
    found = run.ledger if run is not None else ledger
    if found is None:
        return Ledger(relation=sampling.relations[0], unit=sampling.unit)
    check_ledger(sampling, found)
    return found


def _paying(
    account: DataAccount | str | Path | None,
    run: RunFolder | None,
    ledger: Ledger,
    plan: Plan,
    undo: ExitStack,
) -> AccountedRun | None:
    """Let the account of the data set, or the ledger's current payer, pay for the plan."""
    ahead = plan.event if run is None or run.state is None else None
    if account is None and run is not None and ledger.payer is None:  # a resumed run stays on its account
        stub = read_stub(run.path)
        account = Path(stub["file"]) if stub is not None else None
    if account is None:
        if ahead is not None:
            ledger.reserve(ahead)
        return None
    books = account if isinstance(account, DataAccount) else DataAccount.open(account)
    paying = books.begin("your own loop", folder=run.path if run is not None else None, ledger=ledger, plan=ahead)
    undo.callback(paying.close)
    return paying


def _stored(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The steps and the noise multiplier of a run that is continued."""
    if not identity:
        return {}
    return {"steps": identity["plan"]["steps"], "noise_multiplier": rebuild(identity["noise_multiplier"])}


def _follows_releases(ledger: Ledger, identity: Mapping[str, Any]) -> bool:
    """Whether the ledger held other releases when the run began; a run that is continued keeps its answer."""
    if identity:
        return PLANNED in identity["plan"].get("assumptions", ())
    return bool(tally(ledger.event))


def _keep_memory_for_the_next_step() -> None:
    """Allocate and free one block of 31 MiB, which is never written to.

    glibc returns freed blocks to the system above a size that grows with the largest block that was freed, up to 32 MiB. In
    a step of small tensors, getting them again page by page takes a fifth of the time (an MLP on 600 records: 9.3 and 7.4 ms).
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def _refuse_with_several_processes(
    optimizers: Sequence[Any], folder: RunFolder | str | Path | None, ledger: Ledger | None, team: Team
) -> None:
    if any(_inner(each) is not each for each in optimizers):
        raise InputError(
            "accelerate with several processes is not supported: start the script with torchrun, call "
            "torch.distributed.init_process_group() in it, and give make_private torch's own optimizer."
        )
    if isinstance(folder, RunFolder):
        raise InputError("Process 0 alone opens the folder of a run: give make_private its path, not a RunFolder.")
    if ledger is not None and ledger.path is not None and not team.leads:
        raise InputError(
            "Process 0 alone writes the ledger: open it there only, and give ledger=None in the other processes."
        )


def _refuse_with_shards(plan: Plan, optimizers: Sequence[Optimizer], performance: Performance) -> None:
    """Refuse what needs whole parameters, or the whole noisy sum, in one process."""
    odd = ""
    if type(plan.clipping) not in WITH_SHARDS:
        odd = f"{type(plan.clipping).__name__}, which is not known to work on shards of the noisy sum"
    elif not isinstance(plan.noise, GaussianNoise | ScheduledNoise):
        odd = f"{type(plan.noise).__name__}, whose noise is not drawn for each shard on its own"
    elif any(isinstance(each, CorrectedAdam) for each in optimizers):
        odd = "CorrectedAdam; take torch.optim.Adam"
    elif performance.physical_batch_size == "auto":
        odd = "physical_batch_size='auto'; give a number"
    if odd:
        raise InputError(f"Parameters that fully_shard has divided cannot be trained with {odd}.")


def _randomness(seed: int | None, team: Team) -> Randomness:
    if seed is not None:
        return Randomness.of(seed)
    key = team.key()
    return Randomness.of(None, key, team.key() if team.pieces else None)


def _require_same_models(whole: nn.Module, team: Team) -> None:
    """Raise unless all processes begin with the same parameters and buffers."""
    if team.size > 1:
        prints = {
            f"value of '{name}'": digest({"": tensor.cpu()})
            for name, tensor in whole.state_dict().items()
            if name not in team.pieces
        }
        team.same(
            "the model",
            prints,
            "build the model after the same torch.manual_seed in every process, load the same weights, or wrap it in "
            "DistributedDataParallel first",
        )


def _refuse_second_plan(models: Sequence[nn.Module], ledger: Ledger | None) -> None:
    """Refuse two plans on one model with separate ledgers: each would state only a part of the cost."""
    if ledger is None and is_planned(p for model in models for p in model.parameters() if p.requires_grad):
        raise InputError(
            "The model is trained by another make_private already: finish it, end it with private.close(), or record both "
            "in one ledger with make_private(..., ledger=private.ledger)."
        )
