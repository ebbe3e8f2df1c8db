"""Lightning's `Trainer`, with differential privacy by one line:

    from privet.integrations.lightning import PrivateTraining

    trainer = Trainer(max_epochs=5, callbacks=[PrivateTraining(epsilon=3.0, delta=1e-5, max_grad_norm=1.0)])
    trainer.fit(module, loader)

Needs the extra `lightning`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.optimization.automatic import Closure
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from privet.errors import InputError, PrivetError, PrivetWarning
from privet.privacy import Spent
from privet.training import Private, make_private

OTHERS = ("model", "optimizer", "dataset", "batch_size", "steps", "epochs", "resume", "scheduler")
"""Arguments of `make_private` that the module, its loader and the Trainer give."""
HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
FIGURES = ("epsilon", "delta")
"""What the callback logs: it follows from the plan alone."""
SEARCHING = ("LearningRateFinder", "BatchSizeFinder", "GradientAccumulationScheduler")


class PrivateTraining(Callback):  # type: ignore[misc]
    """A callback that makes `Trainer.fit` train by DP-SGD, with automatic or manual optimization.

    A batch of the Trainer is one step of the plan. Its records are Poisson-sampled from the data set of the training loader, with
    the loader's batch size as the expected size. `training_step` gets them; the hooks around it get an empty batch.

    Formal guarantees: those of `privet.make_private` for what the training steps release: the module, its checkpoints and the
    states of its optimizers. What `training_step` logs is computed from records without noise: it is internal.

    Attributes:
        private: the private run; None before `fit`.
    """

    def __init__(self, **settings: Any) -> None:
        """
        Args:
            settings: of `privet.make_private`: epsilon, delta, max_grad_norm and so on. With `folder`, the run can be continued
                with ``fit(ckpt_path=...)``, and `privet report` works on it.
        """
        for name in OTHERS:
            if name in settings:
                raise InputError(
                    f"PrivateTraining has no argument {name!r}: it follows from the module, the loader and the Trainer."
                )
        self.settings = settings
        self.private: Private | None = None
        self._loader: Any = None
        self._resume: bool | int = False
        self._undo: list[Callable[[], None]] = []

    def spent(self) -> Spent:
        """What the steps so far cost, with everything that must go with epsilon."""
        if self.private is None:
            raise PrivetError("Nothing is spent before trainer.fit().")
        return self.private.spent()

    # --- the way of a run: setup, on_fit_start, on_train_start, steps, teardown ---------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._resume = False
            refuse(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the Trainer a loader of nothing, as long as its own: the records of a step are drawn by the plan."""
        loop = trainer.fit_loop
        source, combined = loop._data_source, loop._combined_loader
        loader = self._loader = source.dataloader()
        if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__len__"):
            raise InputError(
                "PrivateTraining draws from one map-style data set: give the Trainer one DataLoader for training, not several, "
                "and no stream."
            )
        places: Any = range(len(loader.dataset))
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        empty: Any = DataLoader(places, batch_size=size, drop_last=loader.drop_last, collate_fn=_nothing)
        loop._data_source, loop._combined_loader = _DataLoaderSource(empty, "train_dataloader"), None

        def put_back() -> None:
            loop._data_source, loop._combined_loader = source, combined

        self._undo.append(put_back)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the plan, when model and optimizers are as the first step finds them."""
        steps = trainer.estimated_stepping_batches
        if not math.isfinite(steps):
            raise InputError("A plan has a number of steps: give the Trainer max_epochs or max_steps.")
        if trainer.ckpt_path and self._resume is False:
            raise InputError(
                f"{trainer.ckpt_path} was trained without PrivateTraining: start with a model that has not seen the records."
            )
        followed = {each.monitor for each in trainer.lr_scheduler_configs if each.reduce_on_plateau}
        monitored = followed | {getattr(each, "monitor", None) for each in trainer.callbacks}
        pl_module.__dict__["log"] = log = _Log(pl_module, monitored)
        self._undo.append(lambda: pl_module.__dict__.pop("log", None))
        for optimizer in trainer.optimizers:
            self._undo.append(optimizer.register_step_pre_hook(_run_closure).remove)
        settings = {**self.settings, "resume": self._resume}
        if self.private is not None and not {"folder", "ledger"} & settings.keys():
            settings["ledger"] = self.private.ledger  # a second `fit` costs what both cost
        self.private = make_private(pl_module, trainer.optimizers, self._loader, steps=int(steps), **settings)
        loop = trainer.fit_loop.epoch_loop
        for part, progress in (
            (loop.automatic_optimization, loop.automatic_optimization.optim_progress.optimizer.step),
            (loop.manual_optimization, loop.manual_optimization.optim_step_progress),
        ):
            self._undo.append(lambda part=part: part.__dict__.pop("run", None))  # type: ignore[misc]
            part.run = _PrivateStep(trainer, log, self.private, part.run, progress)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.private is not None and (batch_idx + 1) % trainer.log_every_n_steps == 0:
            epsilon = self.private.spent().epsilon
            pl_module.log_dict(
                dict(zip(FIGURES, (epsilon, self.private.delta), strict=True)), on_step=True, batch_size=1
            )

    def state_dict(self) -> dict[str, Any]:
        return {"steps": 0 if self.private is None else self.private.steps_done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.settings.get("folder") is None:
            raise InputError(
                "A run that is continued needs its books: give PrivateTraining(folder=...) from the start."
            )
        self._resume = int(state_dict["steps"])

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.private is not None and self.private.run_folder is not None:
            self.private.save()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        while self._undo:
            self._undo.pop()()
        if self.private is not None:
            self.private.close()


class _PrivateStep:
    """Takes the place of `run` in Lightning's loop over optimizers: what was one batch is one step of the plan."""

    def __init__(self, trainer: Trainer, log: _Log, private: Private, run: Callable[..., Any], progress: Any) -> None:
        self.trainer, self.log, self.private, self.run, self.progress = trainer, log, private, run, progress

    def __call__(self, *args: Any) -> Any:
        *first, given = args
        before = self.progress.state_dict()
        output: dict[str, Any] = {}
        for batch in self.private.batches(steps=1):
            batch = self.trainer.precision_plugin.convert_input(batch)
            batch = self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)
            self.trainer._logger_connector.on_batch_start(batch)
            self.log.rehearsing = self.private.rehearsing
            try:
                found = self.run(*first, type(given)({**given, "batch": batch}))
            finally:
                rehearsed, self.log.rehearsing = self.log.rehearsing, False
            output = output if rehearsed else found
        # However many batches the step had, the Trainer counts one step of each optimizer.
        self.progress.load_state_dict(before)
        for _ in self.private.optimizers:
            self.progress.increment_ready()
            self.progress.increment_completed()
        return output


def refuse(trainer: Trainer, module: LightningModule) -> None:
    """Raise if the Trainer is set up for something that would leave the plan, or that is not known to keep to it."""
    names = [type(each).__name__ for each in trainer.callbacks]
    searching = next((name for name in names if name in SEARCHING), "")
    hooks = [name for name in HOOKS for owner in (module, trainer.datamodule) if _has_own(owner, name)]
    for wrong, sentence in (
        (
            trainer.world_size > 1 or trainer.num_devices > 1,
            "Lightning with several devices or processes is not supported: give the Trainer devices=1, or train in a loop of "
            "your own that torchrun starts.",
        ),
        (
            trainer.gradient_clip_val,
            "The gradient of each record is clipped, by PrivateTraining(max_grad_norm=...): leave out gradient_clip_val.",
        ),
        (
            trainer.accumulate_grad_batches > 1,
            "The plan divides large batches itself: leave out accumulate_grad_batches, give the loader the whole batch size, and "
            "give PrivateTraining(performance=privet.Performance(physical_batch_size=...)).",
        ),
        (
            str(trainer.precision).startswith(("16", "transformer-engine")),
            f"The precision {trainer.precision} is not supported: give the Trainer precision='bf16-mixed' or 32.",
        ),
        (trainer.overfit_batches, "A plan draws from all records: leave out overfit_batches."),
        (
            trainer.reload_dataloaders_every_n_epochs,
            "A plan is for one data set: leave out reload_dataloaders_every_n_epochs.",
        ),
        (searching, f"{searching} trains outside the plan, or changes it on the way: leave it out."),
        (hooks, f"{' and '.join(hooks)} would get an empty batch: do this at the start of training_step."),
        (names.count(PrivateTraining.__name__) > 1, "A Trainer has one plan: give it one PrivateTraining."),
    ):
        if wrong:
            raise InputError(sentence)
    if any(getattr(each, "monitor", None) is not None for each in trainer.callbacks):
        warnings.warn(
            "A metric decides which model is kept or when training stops. The statement does not cover that choice: let the "
            "metric be one of validation records, never of training records.",
            PrivetWarning,
            stacklevel=2,
        )


def _has_own(owner: Any, name: str) -> bool:
    return owner is not None and is_overridden(name, owner)


def _run_closure(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run Lightning's closure, `training_step` and the backward pass, before the private gradient is made."""
    given = [*args[1:], *kwargs.values()]
    if len(given) != 1 or not callable(given[0]):
        return None
    with torch.enable_grad():
        loss = given[0]()
    if loss is None and any(isinstance(each, Closure) for each in getattr(given[0], "args", ())):
        raise InputError(
            "training_step returned None instead of a loss. Which batches are left out would tell about their records: return a "
            "loss for each, 0 * the loss of a record that is not to count."
        )
    return (optimizer,), {}


def _nothing(places: list[int]) -> dict[str, Any]:
    return {}


class _Log:
    """In place of the module's `log` while it trains: silent in the self-check, and not for what decides about the model.

    A metric of training records is computed without noise. If it decides which model is kept, when training stops or how fast
    it goes on, the model tells about the records in a way that no statement covers.
    """

    def __init__(self, module: LightningModule, monitored: set[str | None]) -> None:
        self.module, self.monitored, self.rehearsing = module, monitored - {*FIGURES}, False

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> None:
        found = self.monitored & {name, f"{name}_step", f"{name}_epoch"}
        if found and self.module.trainer.training:
            raise InputError(
                f"{found.pop()!r} is logged from training records, without noise, and decides which model is kept, when training "
                f"stops or how fast it goes on, which no statement covers: monitor a metric of validation_step."
            )
        if not self.rehearsing:
            type(self.module).log(self.module, name, *args, **kwargs)
