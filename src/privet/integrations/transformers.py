"""Hugging Face's `Trainer`, with differential privacy:

    from privet.integrations.transformers import PrivacyArguments, PrivateTrainer

    trainer = PrivateTrainer(model, args, train_dataset=data, privacy=PrivacyArguments(epsilon=8.0, delta=1e-5))
    trainer.train()
    print(trainer.spent())

Needs the extra `transformers`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from accelerate.utils import find_batch_size
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_utils import HubStrategy, get_last_checkpoint

from privet.data.owners import owners_of
from privet.errors import InputError, PrivetError, PrivetWarning
from privet.io import write_whole
from privet.io.names import LEDGER
from privet.privacy import Spent
from privet.report import renew
from privet.report.card import MARKDOWN
from privet.runs.own import record_of_loop
from privet.training import Performance, Private, make_private

FOLDER = "_privacy"
"""In the output folder. The Trainer uploads no file whose path begins with an underscore."""
INTERNAL = ("trainer_state.json", "*_results.json", "runs")
"""Files that the Trainer writes into the output folder and that hold figures of records without noise."""


@dataclass(frozen=True)
class PrivacyArguments:
    """The arguments of `privet.make_private` that `TrainingArguments` has no name for; `HfArgumentParser` reads them.

    Attributes:
        delta: the delta of the statement.
        epsilon: the budget, to which the noise is calibrated; or give noise_multiplier, or both.
        noise_multiplier: the noise on the sum, in clipping norms.
        clipping_norm: the norm to which the gradient of each record is clipped; by default `TrainingArguments.max_grad_norm`. The
            gradient of the batch is not clipped again.
        folder: where the run keeps its books and its checkpoints; by default ``_privacy`` in the output folder.
        users: the column with the user of each record, where a user is to be protected with all of their records. Batch sizes and
            epochs then count users.
        public_size: the size of the data set as far as it is public.
        account: the account of the data set.
        accountant, isolation, self_check: as in `privet.make_private`.
        noise_seed: makes sampling and noise repeatable, for experiments. `TrainingArguments.seed` does not.
    """

    delta: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    clipping_norm: float | None = None
    folder: str | None = None
    users: str | None = None
    public_size: int | None = None
    account: str | None = None
    accountant: str = "pld"
    isolation: str = "follow"
    self_check: bool = True
    noise_seed: int | None = None


class PrivateTrainer(Trainer):  # type: ignore[misc]
    """A `Trainer` that trains by DP-SGD; everything else of it stays as it is.

    A step of the Trainer is one step of the plan. Its batch is Poisson-sampled, with an expected size of
    ``per_device_train_batch_size * gradient_accumulation_steps``; with accumulation, at most ``per_device_train_batch_size``
    records are computed at once. The gradient of each record's own loss is clipped. With labels of -100, a record's loss is
    the mean over its own tokens that count, never over those of the batch.

    Formal guarantees: those of `privet.make_private` for what the training steps release: the model, its checkpoints and the
    states of the optimizer. Losses and metrics in the Trainer's logs are computed from records without noise: they are internal.

    Attributes:
        private: the private run; None before `train`.
    """

    def __init__(self, *args: Any, privacy: PrivacyArguments, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.privacy = privacy
        self.private: Private | None = None
        self._loader: DataLoader[Any] | None = None
        self._resume: bool | int = False
        self._has_stepped = False
        self._loss = torch.zeros((), device=self.args.device)
        if getattr(self, "label_smoother", None) is not None:
            self.label_smoother = _Smoothed(self.args.label_smoothing_factor)
        refuse(self.args)

    @property
    def folder(self) -> Path:
        """The folder of the private run, on which `privet report`, `account` and `audit` work."""
        return Path(self.privacy.folder or Path(self.args.output_dir, FOLDER))

    def spent(self) -> Spent:
        """What the steps so far cost, with everything that must go with epsilon."""
        if self.private is None:
            raise PrivetError("Nothing is spent before trainer.train().")
        return self.private.spent()

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, **kwargs: Any) -> Any:
        """As `Trainer.train`. A run continues with `resume_from_checkpoint`, and its books with it."""
        refuse(self.args)
        if trial is not None:
            self.hyperparameter_search()
        self._warn_of_choices()
        resume_from_checkpoint = resume_from_checkpoint or None
        if resume_from_checkpoint is True:
            resume_from_checkpoint = (
                get_last_checkpoint(self.args.output_dir) or True
            )  # the Trainer says what is missing
        self._resume = self._step_to_resume(resume_from_checkpoint)
        self._loader = None
        try:
            return super().train(resume_from_checkpoint, **kwargs)
        finally:
            if self.private is not None:
                self.private.close()

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A loader of nothing: the records of a step are drawn by the plan.

        It is as long as the Trainer's own. With users, an epoch draws each user once on average.
        """
        self._loader = super().get_train_dataloader()
        users = self._users()
        places = range(len(self._loader.dataset if users is None else users.unique()))  # type: ignore[arg-type]
        size, drop_last = self._train_batch_size, self.args.dataloader_drop_last
        return DataLoader(places, batch_size=size, drop_last=drop_last, collate_fn=_nothing)  # type: ignore[arg-type]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Called once before the first step, when model and optimizer are ready: the plan is made here."""
        if self.is_in_train:
            self.private = self._planned(num_training_steps)
            # The steps of the optimizer are taken in `training_step`; the Trainer's own call finds them done.
            self.optimizer.step = MethodType(lambda _, closure=None: self._find_step_done(), self.optimizer)
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One private step: the losses of its physical batches, clipped, summed and noised, and the optimizer's step."""
        if self.private is None or self._loader is None:
            raise PrivetError(
                "This step is not in a plan: a subclass of PrivateTrainer calls super() in train, get_train_dataloader and "
                "create_scheduler."
            )
        if not self.accelerator.sync_gradients:
            return torch.zeros_like(self._loss)  # the records of the whole step come with its last part
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        total, count = torch.zeros_like(self._loss), 0
        for batch in self.private.batches(steps=1):
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, self._prepare_inputs(batch))
            loss.backward()
            for optimizer in self.private.optimizers:
                optimizer.step()
            if not self.private.rehearsing:
                size = find_batch_size(batch)
                total, count = total + loss.detach().float() * size, count + size
        self._has_stepped = True
        self._loss = total / count if count else self._loss
        return self._loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As `Trainer.log`, with epsilon and delta beside the training loss."""
        if self.private is not None and self.private.steps_done and not {"loss", "train_loss"}.isdisjoint(logs):
            logs |= {"epsilon": self.private.spent().epsilon, "delta": self.privacy.delta}
        super().log(logs, *args, **kwargs)

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: the Trainer's batches hold no records that it could count."""
        return 0

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        raise InputError(
            "A search trains on the records once for each trial, and no statement covers the choice: choose on public records, "
            "or with `privet tune`."
        )

    def create_model_card(self, **about: Any) -> None:
        """Write the privacy card to ``README.md`` of the output folder. It has no figure of records without noise."""
        if self.private is None or not self.private.steps_done:
            raise PrivetError("There is nothing to write on a card before trainer.train().")
        data = about.get("dataset")
        record_of_loop(self.folder, name=data if isinstance(data, str) else "")
        renew(self.folder)
        text = (self.folder / MARKDOWN).read_text(encoding="utf-8")
        _, metadata, said = text.split("---\n", 2)
        facts = _metadata(self.model, yaml.safe_load(metadata), about)
        made = f"---\n{yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)}---\n{said}{_how_to_load(self.model)}"
        write_whole(Path(self.args.output_dir) / "README.md", made.encode(), mode=0o644)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.push_to_hub`, with the privacy card; refuses to upload logs of records without noise."""
        self._refuse_internal_files()
        return super().push_to_hub(*args, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        self._refuse_internal_files()
        super()._push_from_checkpoint(checkpoint_folder)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self.private is not None:
            self.private.save()
        super()._save_checkpoint(*args, **kwargs)

    def _planned(self, steps: int) -> Private:
        """The private run of `steps` steps of the Trainer."""
        if self._loader is None:
            raise InputError(
                "A subclass of PrivateTrainer calls super().get_train_dataloader(): the plan draws batches."
            )
        given, args = self.privacy, self.args
        parts = args.gradient_accumulation_steps
        performance = Performance(
            physical_batch_size=args.per_device_train_batch_size if parts > 1 else None, workers=0, save_every=steps
        )
        return make_private(
            self.model,
            self.optimizer,
            self._loader,
            batch_size=args.per_device_train_batch_size * parts,
            steps=steps,
            max_grad_norm=given.clipping_norm or args.max_grad_norm or None,
            epsilon=given.epsilon,
            delta=given.delta,
            noise_multiplier=given.noise_multiplier,
            accountant=given.accountant,
            users=self._users(),
            public_size=given.public_size,
            account=given.account,
            isolation=given.isolation,  # type: ignore[arg-type]
            self_check=given.self_check,
            seed=given.noise_seed,
            folder=self.folder,
            resume=self._resume,
            performance=performance,
        )

    def _users(self) -> Tensor | None:
        """The number of each record's user, from a column that the model does not see."""
        name, data = self.privacy.users, self.train_dataset
        if name is None:
            return None
        names = data.column_names if hasattr(data, "column_names") else data[0].keys()
        if name not in names:
            raise InputError(f"The records have no column {name!r} with their users: they have {', '.join(names)}.")
        found = list(data[name]) if hasattr(data, "column_names") else [data[place][name] for place in range(len(data))]
        return owners_of(found, data)

    def _find_step_done(self) -> None:
        if not self._has_stepped:
            raise PrivetError(
                "optimizer.step() would train without privacy: a subclass of PrivateTrainer calls super().training_step()."
            )
        self._has_stepped = False

    def _step_to_resume(self, checkpoint: Any) -> bool | int:
        """The step after which the run continues; False for a new one."""
        books = (self.folder / LEDGER).exists()
        if checkpoint is None:
            if books:
                raise InputError(
                    f"{self.folder} holds the books of an earlier run: continue it with trainer.train(resume_from_checkpoint="
                    f"True), or give another folder in PrivacyArguments(folder=...)."
                )
            return False
        if checkpoint is True:
            return False
        if not books:
            raise InputError(
                f"{checkpoint} was trained without privacy, or its books were moved: there are none in {self.folder}. Give their "
                f"folder in PrivacyArguments(folder=...), or start with a model that has not seen the records."
            )
        return int(TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json"))).global_step)

    def _warn_of_choices(self) -> None:
        stopping = any(type(each).__name__ == "EarlyStoppingCallback" for each in self.callback_handler.callbacks)
        plateau = str(self.args.lr_scheduler_type).endswith(("plateau", "greedy"))
        if not (self.args.load_best_model_at_end or stopping or plateau):
            return
        if self.eval_dataset is self.train_dataset:
            raise InputError(
                "The training records decide which model is released, through an evaluation without noise: give an eval_dataset "
                "of other records, or leave out load_best_model_at_end, early stopping and schedules that follow a metric."
            )
        warnings.warn(
            "The records of eval_dataset decide which model is released. The statement is about the training records only: it "
            "does not cover those of eval_dataset.",
            PrivetWarning,
            stacklevel=3,
        )

    def _refuse_internal_files(self) -> None:
        folder = Path(self.args.output_dir)
        found = next((path for pattern in INTERNAL for path in folder.glob(pattern)), None)
        if found is not None:
            raise InputError(
                f"{found} holds figures of records without noise, and a push would upload it: move it out of {folder} first."
            )


def refuse(args: TrainingArguments) -> None:
    """Raise if the arguments ask for something that would leave the plan, or that is not known to keep to it."""
    for wrong, sentence in (
        (
            args.n_gpu > 1 or args.world_size > 1,
            "The Trainer with several devices or processes is not supported: start one process, and show it one device "
            "(CUDA_VISIBLE_DEVICES=0), or train in a loop of your own that torchrun starts.",
        ),
        (
            args.deepspeed or args.fsdp,
            "DeepSpeed and FSDP join gradients outside the plan: leave out deepspeed and fsdp.",
        ),
        (args.fp16, "The loss scaling of fp16 is not supported: use bf16=True, or float32."),
        (
            str(getattr(args, "include_num_input_tokens_seen", "no")).lower() not in ("no", "false"),
            "The number of tokens tells who was drawn, and is not counted: leave out include_num_input_tokens_seen.",
        ),
        (args.torch_compile, "A compiled model hides its operations from the checks: leave out torch_compile."),
        (
            args.auto_find_batch_size,
            "auto_find_batch_size starts again with another batch size, which is another plan: give a smaller "
            "per_device_train_batch_size and more gradient_accumulation_steps.",
        ),
        (
            getattr(args, "group_by_length", False)
            or getattr(args, "train_sampling_strategy", "random") not in ("random", "sequential"),
            "The plan draws the records of a batch independently of their lengths: leave out group_by_length and "
            "train_sampling_strategy.",
        ),
        (
            args.push_to_hub and args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS),
            "This hub_strategy uploads trainer_state.json, with losses of records without noise: give hub_strategy='end' or "
            "'every_save'.",
        ),
    ):
        if wrong:
            raise InputError(sentence)


class _Smoothed:
    """Label smoothing that divides by a record's own number of labels, where the Trainer's divides by that of the batch."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def __call__(
        self, outputs: Any, labels: Tensor, shift_labels: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=self.smoothing)


def _nothing(places: list[int]) -> dict[str, Any]:
    return {}


def _metadata(model: nn.Module, facts: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """The metadata of the card, with what the Hub wants to know of a model of transformers."""
    from transformers.modelcard import TASK_MAPPING

    inside: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    kind = type(inside).__name__
    found = [task for task, names in TASK_MAPPING.items() if kind in names.values()]
    tags = about.get("tags") or []
    base = about.get("finetuned_from") or getattr(inside.config, "_name_or_path", "")
    facts |= {
        "library_name": "peft" if inside is not model else "transformers",
        "pipeline_tag": about.get("tasks") or (found[0] if found else None),
        "tags": [*facts.get("tags", []), *([tags] if isinstance(tags, str) else tags)],
        "base_model": None if not base or Path(base).exists() else base,
        "license": about.get("license") or facts.get("license"),
        "language": about.get("language"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _how_to_load(model: nn.Module) -> str:
    kind = type(model).__name__
    package = "peft" if hasattr(model, "get_base_model") else "transformers"
    return (
        f"\n## How to load it\n\n```python\nfrom {package} import {kind}\n\n"
        f"model = {kind}.from_pretrained({'base_model, ' if package == 'peft' else ''}folder_or_repository)\n```\n"
    )
