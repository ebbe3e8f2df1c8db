"""`PrivateTraining`: Lightning's Trainer takes the steps of a plain loop through `make_private`, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler
from typer.testing import CliRunner

import privet
from privet.cli import app
from privet.errors import InputError, PrivetError, PrivetWarning

pytest.importorskip("lightning")
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder, ModelCheckpoint

from privet.integrations.lightning import PrivateTraining

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
RECORDS, BATCH = 48, 12
KNOWN = {"noise_multiplier": 1e-6, "delta": 1e-3, "max_grad_norm": 0.1, "seed": 0}


def data(records: int = RECORDS) -> TensorDataset:
    x = torch.randn(records, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(1) > 0).long())


class Classifier(LightningModule):
    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
        self.automatic_optimization = not manual
        self.seen: list[int] = []

    def loss(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def trainer_with(*callbacks: Callback, **given: object) -> Trainer:
    usual = {
        "max_epochs": 2, "logger": False, "accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False,
        "enable_model_summary": False, "log_every_n_steps": 1,
    }  # fmt: skip
    return Trainer(callbacks=list(callbacks), **{**usual, **given})


def loader(records: Dataset | None = None, **given: object) -> DataLoader:
    return DataLoader(records or data(), **{"batch_size": BATCH, "shuffle": True, **given})


def fit(module: LightningModule, *more: Callback, settings: dict | None = None, **given: object) -> PrivateTraining:
    private = PrivateTraining(**{**KNOWN, **(settings or {})})
    trainer_with(private, *more, **given).fit(module, loader(), DataLoader(data(16), batch_size=16))
    return private


def parameters(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def by_hand(steps: int = 8, *, scheduler: bool = False, **settings: object) -> tuple[Tensor, privet.training.Private]:
    module = Classifier()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps) if scheduler else None
    private = privet.make_private(
        module, optimizer, data(), batch_size=BATCH, steps=steps, scheduler=schedule, **{**KNOWN, **settings}
    )
    for batch in private.batches():
        optimizer.zero_grad()
        module.loss(batch).backward()
        optimizer.step()
    return parameters(module), private


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("physical", [None, 5])
def test_a_run_is_a_plain_loop_through_make_private(manual, physical):
    module, performance = Classifier(manual), privet.Performance(physical_batch_size=physical)
    private = fit(module, settings={"performance": performance})
    expected, plain = by_hand(performance=performance)
    assert module.trainer.global_step == private.private.steps_done == 8
    assert (parameters(module) - parameters(Classifier())).norm() > 0.01, "nothing was trained"
    assert torch.equal(parameters(module), expected)
    assert private.spent() == plain.spent()


def test_a_step_is_the_clipped_sum_of_single_records():
    module, before = Classifier(), Classifier()
    private = PrivateTraining(**KNOWN)
    trainer_with(private, max_epochs=1).fit(module, loader(batch_size=RECORDS))
    total = torch.zeros_like(parameters(before))
    for x, y in data():
        gradients = torch.autograd.grad(before.loss((x[None], y[None])), list(before.parameters()))
        gradient = torch.cat([g.flatten() for g in gradients])
        total += gradient * min(1.0, 0.1 / float(gradient.norm()))
    found = (parameters(before) - parameters(module)) / 0.5
    torch.testing.assert_close(found, total / RECORDS, rtol=0, atol=1e-6)


class Scheduled(Classifier):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        steps = self.trainer.estimated_stepping_batches  # reads the loader before the first step
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_schedules_step_once_for_each_step_of_the_plan():
    module = Scheduled()
    fit(module, settings={"performance": privet.Performance(physical_batch_size=5)})
    expected, _ = by_hand(scheduler=True, performance=privet.Performance(physical_batch_size=5))
    torch.testing.assert_close(parameters(module), expected, rtol=0, atol=1e-6)


def test_epsilon_is_that_of_the_plan_and_logged():
    module = Classifier()
    private = fit(module, settings={"epsilon": 3.0, "noise_multiplier": None, "seed": None})
    _, plain = by_hand(epsilon=3.0, noise_multiplier=None, seed=None)
    assert private.private.plan == plain.plan
    assert private.spent().epsilon == plain.spent().epsilon
    logged = module.trainer.callback_metrics
    assert float(logged["epsilon"]) == pytest.approx(private.spent().epsilon)
    assert float(logged["delta"]) == pytest.approx(1e-3)


class Seen(Classifier):
    def training_step(self, batch, batch_idx):
        self.seen.append(len(batch[0]))
        self.log("size", float(len(batch[0])), on_step=False, on_epoch=True, reduce_fx="max", batch_size=1)
        return super().training_step(batch, batch_idx)


def test_batches_of_the_self_check_are_not_logged():
    module = Seen()
    fit(module, max_epochs=1)
    rehearsed, steps = module.seen[:-4], module.seen[-4:]
    assert len(rehearsed) >= 4
    assert float(module.trainer.callback_metrics["size"]) == max(steps)


# --- checkpoints --------------------------------------------------------------------------------------------------------


class Killed(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == 7:
            raise RuntimeError("killed")


def saved(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(dirpath=folder, every_n_train_steps=3, save_top_k=-1, filename="{step}")


@pytest.mark.parametrize("seed", [0, None])
def test_a_run_is_continued_with_its_books(tmp_path, seed):
    settings = {"folder": tmp_path / "books", "seed": seed, "noise_multiplier": 1.0}
    with pytest.raises(RuntimeError, match="killed"):
        fit(Classifier(), saved(tmp_path), Killed(), settings=settings, enable_checkpointing=True)
    module, private = Classifier(), PrivateTraining(**{**KNOWN, **settings})
    trainer = trainer_with(private)
    trainer.fit(module, loader(), ckpt_path=str(tmp_path / "step=6.ckpt"))
    assert trainer.global_step == private.private.steps_done == 8
    expected, plain = by_hand(noise_multiplier=1.0, seed=seed)
    counted = sum(count for _, count in private.private.ledger)
    if seed is None:  # step 7 was done twice
        assert counted == 9 and private.spent().epsilon > plain.spent().epsilon
    else:
        assert counted == 8 and private.spent() == plain.spent()
        assert torch.equal(parameters(module), expected)


def test_a_checkpoint_without_books_is_refused(tmp_path):
    trainer = trainer_with(saved(tmp_path), enable_checkpointing=True)
    trainer.fit(Classifier(), loader())
    with pytest.raises(InputError, match="without PrivateTraining"):
        trainer_with(PrivateTraining(**KNOWN)).fit(Classifier(), loader(), ckpt_path=str(tmp_path / "step=3.ckpt"))
    private = tmp_path / "private"
    fit(Classifier(), saved(private), enable_checkpointing=True)
    with pytest.raises(InputError, match="needs its books"):
        trainer_with(PrivateTraining(**KNOWN)).fit(Classifier(), loader(), ckpt_path=str(private / "step=3.ckpt"))


def test_a_second_fit_adds_to_the_books():
    private, module = PrivateTraining(**KNOWN | {"noise_multiplier": 1.0}), Classifier()
    trainer_with(private).fit(module, loader())
    once = private.spent().epsilon
    trainer_with(private).fit(module, loader())
    assert private.spent().epsilon > once


def test_the_commands_work_on_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))
    settings = {"folder": tmp_path / "run", "epsilon": 3.0, "noise_multiplier": None, "seed": None}
    fit(Classifier(), settings=settings)
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    assert "8 of 8 planned" in (tmp_path / "run" / "report.html").read_text()


# --- what would leave the plan ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"gradient_clip_val": 1.0},
        {"accumulate_grad_batches": 4},
        {"devices": 2, "strategy": "ddp"},
        {"overfit_batches": 2},
        {"reload_dataloaders_every_n_epochs": 1},
        {"max_epochs": -1},
    ],
    ids=str,
)
def test_settings_that_would_leave_the_plan_are_refused(given):
    module = Classifier()
    trainer = trainer_with(PrivateTraining(**KNOWN), **{name: v for name, v in given.items() if name != "devices"})
    if "devices" in given:
        trainer = trainer_with(PrivateTraining(**KNOWN))
        trainer.strategy.__class__ = type("Several", (type(trainer.strategy),), {"world_size": property(lambda _: 2)})
        with pytest.raises(InputError):
            PrivateTraining(**KNOWN).setup(trainer, module, "fit")
        return
    with pytest.raises(InputError):
        trainer.fit(module, loader())
    assert torch.equal(parameters(module), parameters(Classifier()))


def test_arguments_of_the_trainer_are_not_given_twice():
    with pytest.raises(InputError, match="'epochs'"):
        PrivateTraining(**KNOWN, epochs=3)


class Twice(Classifier):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.optimizers().step()


class Never(Classifier):
    def training_step(self, batch, batch_idx):
        self.manual_backward(self.loss(batch))


class OwnData(Classifier):
    def training_step(self, batch, batch_idx):
        x, y = data().tensors
        return self.loss((x[:4].clone(), y[:4].clone()))


class Mixing(Classifier):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return self.loss((x - x.mean(0), y))


class Reading(Classifier):
    def on_before_optimizer_step(self, optimizer):
        self.norm = sum(p.grad.norm() for p in self.parameters())


class Clipping(Classifier):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)


class Transfer(Classifier):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [part * 1 for part in batch]


class Unheld(Classifier):
    def configure_optimizers(self):
        return torch.optim.SGD(self.net[0].parameters(), lr=0.5)


class BatchNorm(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.net.insert(1, nn.BatchNorm1d(8))


@pytest.mark.parametrize(
    "module",
    [Twice(True), Never(True), OwnData(), Mixing(), Reading(), Clipping(), Transfer(), Unheld(), BatchNorm()],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_would_leave_the_plan_are_refused(module):
    before = parameters(module).clone()
    with pytest.raises((InputError, PrivetError)):
        fit(module)
    assert torch.equal(parameters(module), before)


class Trains(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        trainer.optimizers[0].step()


class TrainsAgain(Callback):
    def on_train_epoch_end(self, trainer, module):
        loss = module.loss(data().tensors)
        loss.backward()
        torch.optim.SGD(module.parameters(), lr=1.0).step()


@pytest.mark.parametrize("meddling", [Trains(), TrainsAgain()], ids=lambda each: type(each).__name__)
def test_a_callback_that_trains_is_refused(meddling):
    with pytest.raises(PrivetError):
        fit(Classifier(), meddling)


def test_a_search_for_the_learning_rate_is_refused():
    with pytest.raises(InputError, match="LearningRateFinder"):
        fit(Classifier(), LearningRateFinder())


class Following(Classifier):
    """A learning rate that follows a metric."""

    def __init__(self, metric: str) -> None:
        super().__init__()
        self.metric = metric

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": self.metric}}


def test_a_choice_by_a_metric_is_said():
    for module, callbacks in ((Classifier(), [EarlyStopping("val_loss")]), (Following("val_loss"), [])):
        with pytest.warns(PrivetWarning, match="does not cover that choice"):
            fit(module, *callbacks)


@pytest.mark.parametrize("metric", ["train_loss", "train_loss_epoch"])
@pytest.mark.parametrize("what", ["schedule", "checkpoint"])
@pytest.mark.parametrize("self_check", [True, False])
def test_a_choice_by_a_metric_of_training_records_is_refused(tmp_path, metric, what, self_check):
    module = Following(metric) if what == "schedule" else Classifier()
    callbacks = [] if what == "schedule" else [ModelCheckpoint(tmp_path, monitor=metric)]
    with pytest.raises(InputError, match=f"'{metric}' is logged from training records"):
        fit(module, *callbacks, settings={"self_check": self_check}, enable_checkpointing=bool(callbacks))


def test_epsilon_may_decide_when_to_stop():
    private = fit(Classifier(), EarlyStopping("epsilon", mode="max"))
    assert private.private.steps_done == 8


class Counting(Classifier):
    """Metrics as torchmetrics keeps them: computed in `training_step` after the loss, with masks and numbers of the records."""

    def __init__(self) -> None:
        super().__init__()
        self.right: list[Tensor] = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        loss = F.cross_entropy(scores, y)
        self.right.append(torch.bincount((scores.argmax(1) == y).int(), minlength=2)[1] / max(len(y), 1))
        self.log("accuracy", self.right[-1].item())
        return loss


def test_metrics_after_the_loss_are_logged_and_change_nothing():
    module = Counting()
    private = fit(module)
    assert str(private.spent().guarantee) == "proved" and 0 <= module.trainer.callback_metrics["accuracy"] <= 1
    assert torch.equal(parameters(module), by_hand()[0])


@pytest.mark.parametrize("first", [True, False])
def test_two_optimizers_and_their_schedules_step_once_for_each_batch(first):
    class Parts(Classifier):
        def __init__(self) -> None:
            super().__init__(manual=True)

        def configure_optimizers(self):
            parts = (self.net[0], self.net[2])
            optimizers = [torch.optim.SGD(part.parameters(), lr=0.5) for part in parts]
            return optimizers, [torch.optim.lr_scheduler.StepLR(each, 4, 0.1) for each in optimizers]

        def training_step(self, batch, batch_idx):
            both = self.optimizers() if first else self.optimizers()[::-1]
            for optimizer in both:
                optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            for optimizer in both:
                optimizer.step()
            for schedule in self.lr_schedulers():
                schedule.step()

    module, plain = Parts(), Classifier()
    private = fit(module)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.1)
    made = privet.make_private(plain, optimizer, data(), batch_size=BATCH, steps=8, scheduler=schedule, **KNOWN)
    for batch in made.batches():
        optimizer.zero_grad()
        plain.loss(batch).backward()
        optimizer.step()
    assert private.private.steps_done == 8
    assert [each.param_groups[0]["lr"] for each in module.trainer.optimizers] == [optimizer.param_groups[0]["lr"]] * 2
    assert torch.equal(parameters(module), parameters(plain))


def test_a_batch_without_a_loss_is_refused_with_the_reason():
    class Sometimes(Classifier):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) if batch_idx % 2 else None

    with pytest.raises(InputError, match="return a loss for each"):
        fit(Sometimes())


@pytest.mark.parametrize(
    "loaders",
    [
        [loader(), loader()],
        loader(shuffle=False, sampler=WeightedRandomSampler([1.0] * RECORDS, RECORDS)),
    ],
    ids=["several", "weighted"],
)
def test_loaders_that_a_plan_does_not_draw_from_are_refused(loaders):
    with pytest.raises(InputError):
        trainer_with(PrivateTraining(**KNOWN)).fit(Classifier(), loaders)


def test_bfloat16_autocast_is_trained_privately(monkeypatch):
    module = Classifier()
    private = fit(module, precision="bf16-mixed")
    expected, _ = by_hand()
    assert private.private.steps_done == 8
    torch.testing.assert_close(parameters(module), expected, rtol=0, atol=0.02)
    monkeypatch.setattr(Trainer, "precision", "16-mixed")  # needs a graphics card otherwise
    with pytest.raises(InputError, match="16-mixed is not supported"):
        fit(Classifier())


def test_afterward_the_trainer_is_as_it_was():
    module, private = Classifier(), PrivateTraining(**KNOWN)
    trainer = trainer_with(private)
    given = loader()
    trainer.fit(module, given)
    assert trainer.fit_loop._data_source.instance is given
    assert "run" not in trainer.fit_loop.epoch_loop.automatic_optimization.__dict__
    assert "log" not in module.__dict__
    assert not trainer.optimizers[0]._optimizer_step_pre_hooks
