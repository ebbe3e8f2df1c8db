"""`PrivateTrainer`: the same steps as a plain loop through `make_private`, its books right, and no way out of the plan."""

from __future__ import annotations

import copy
import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, WeightedRandomSampler
from typer.testing import CliRunner

import privet
from privet.cli import app
from privet.errors import InputError, PrivetError, PrivetWarning
from privet.privacy import AccountExhausted, DataAccount, Ledger

pytest.importorskip("transformers")
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from privet.integrations.transformers import PrivacyArguments, PrivateTrainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
RECORDS, LENGTH, WORDS = 48, 10, 50
TINY = 1e-6


class Texts(Dataset[dict[str, Tensor]]):
    """Random tokens of different lengths, padded; labels of padding are -100."""

    def __init__(self, count: int = RECORDS, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, WORDS, (count, LENGTH), generator=generator)
        self.mask = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (count, 1), generator=generator)
        self.ids[~self.mask] = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        ids, mask = self.ids[place], self.mask[place]
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}


def small_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **off, bos_token_id=1, eos_token_id=2))


def arguments(folder: Path, **given: object) -> TrainingArguments:
    usual = {
        "per_device_train_batch_size": 12,
        "num_train_epochs": 2,
        "learning_rate": 0.5,
        "lr_scheduler_type": "constant",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    return TrainingArguments(str(folder), **{**usual, **given})


def privacy(**given: object) -> PrivacyArguments:
    usual = {"noise_multiplier": TINY, "delta": 1e-3, "clipping_norm": 0.1, "noise_seed": 0}
    return PrivacyArguments(**{**usual, **given})


def trainer_of(
    folder: Path, *, kind: type = PrivateTrainer, model: nn.Module | None = None, given: PrivacyArguments | None = None,
    callbacks: list[TrainerCallback] | None = None, data: object = None, **args: object,
) -> PrivateTrainer:  # fmt: skip
    model = small_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return kind(
        model,
        arguments(folder, **args),
        train_dataset=data or Texts(),
        eval_dataset=Texts(16, seed=2),
        optimizers=(optimizer, None),
        callbacks=callbacks,
        privacy=given or privacy(),
    )


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_hand(
    steps: int, batch_size: int, given: PrivacyArguments, physical: int | None = None
) -> privet.training.Private:
    """The plain loop."""
    model = small_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = torch.utils.data.DataLoader(Texts(), batch_size=batch_size, collate_fn=torch.utils.data.default_collate)
    private = privet.make_private(
        model, optimizer, loader, steps=steps, delta=given.delta, noise_multiplier=given.noise_multiplier,
        epsilon=given.epsilon, max_grad_norm=given.clipping_norm, seed=given.noise_seed,
        performance=privet.Performance(physical_batch_size=physical),
    )  # fmt: skip
    for batch in private.batches():
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return private


@pytest.mark.parametrize("parts", [1, 3])
def test_a_run_is_a_plain_loop_through_make_private(tmp_path, parts):
    trainer = trainer_of(tmp_path, per_device_train_batch_size=12 // parts, gradient_accumulation_steps=parts)
    trainer.train()
    physical = None if parts == 1 else 12 // parts
    private = by_hand(8, 12, privacy(), physical)
    assert trainer.state.global_step == trainer.private.steps_done == 8
    before = parameters(small_model())
    moved = (parameters(trainer.model) - before).norm()
    assert moved > 0.01, "nothing was trained"
    torch.testing.assert_close(parameters(trainer.model), parameters(private.engine.model), rtol=0, atol=1e-6)
    assert trainer.spent().epsilon == private.spent().epsilon


def clipped_mean(model: nn.Module, clip: float, smoothing: float = 0.0) -> Tensor:
    """Each record alone, in float64: the mean over its own tokens, clipped; divided by the number of records."""
    double, data = copy.deepcopy(model).double().eval(), Texts()
    total = torch.zeros_like(parameters(double))
    for place in range(len(data)):
        record = {name: value[None] for name, value in data[place].items()}
        labels = record.pop("labels")
        logits = double(**record).logits[0, :-1]
        counted = labels[0, 1:] != -100
        loss = F.cross_entropy(logits[counted], labels[0, 1:][counted], label_smoothing=smoothing)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(double.parameters()))])
        assert gradient.norm() > clip, "a record that is not clipped tests nothing"
        total += gradient * (clip / gradient.norm())
    return total / len(data)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_is_the_clipped_sum_of_single_records(tmp_path, smoothing):
    trainer = trainer_of(
        tmp_path, per_device_train_batch_size=RECORDS, max_steps=1, label_smoothing_factor=smoothing, max_grad_norm=7.0
    )
    before = copy.deepcopy(trainer.model)
    trainer.train()
    found = (parameters(before) - parameters(trainer.model)).double() / 0.5
    torch.testing.assert_close(found, clipped_mean(before, 0.1, smoothing), rtol=0, atol=2e-6)


def test_epsilon_is_that_of_the_plan(tmp_path):
    given = privacy(epsilon=3.0, noise_multiplier=None, noise_seed=None)
    trainer = trainer_of(tmp_path, given=given, logging_steps=2)
    trainer.train()
    private = by_hand(8, 12, given)
    assert trainer.private.plan == private.plan
    assert trainer.spent().epsilon == private.spent().epsilon == pytest.approx(3.0, abs=0.01)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["epsilon"] for entry in logged] == sorted({entry["epsilon"] for entry in logged})
    assert logged[-1]["epsilon"] == trainer.spent().epsilon and logged[-1]["delta"] == 1e-3
    assert logged[-1]["loss"] == pytest.approx(3.9, abs=0.3)


def test_the_norm_of_training_arguments_is_that_of_a_record(tmp_path):
    trainer = trainer_of(tmp_path / "a", given=privacy(clipping_norm=None), max_grad_norm=0.1, max_steps=1)
    trainer.train()
    assert trainer.private.plan.clipping == privet.clipping.FlatClipping(0.1)
    with pytest.raises(InputError, match="max_grad_norm"):
        trainer_of(tmp_path / "b", given=privacy(clipping_norm=None), max_grad_norm=0.0, max_steps=1).train()


def test_evaluation_is_that_of_the_trainer(tmp_path):
    trainer = trainer_of(tmp_path, eval_strategy="steps", eval_steps=2)
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if "eval_loss" in entry]) == 4
    plain = Trainer(trainer.model, arguments(tmp_path / "plain"), eval_dataset=Texts(16, seed=2))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-6)


# --- what users bring ---------------------------------------------------------------------------------------------------


def test_bfloat16_is_close_to_the_plain_loop(tmp_path):
    trainer = trainer_of(tmp_path, bf16=True)
    trainer.train()
    expected = parameters(by_hand(8, 12, privacy()).engine.model)
    torch.testing.assert_close(parameters(trainer.model), expected, rtol=0, atol=0.02)


def test_checkpointed_activations_change_nothing(tmp_path):
    trainer = trainer_of(tmp_path, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False})
    trainer.train()
    expected = parameters(by_hand(8, 12, privacy()).engine.model)
    torch.testing.assert_close(parameters(trainer.model), expected, rtol=0, atol=1e-5)


def test_steps_in_which_nobody_is_drawn_are_steps(tmp_path):
    trainer = trainer_of(tmp_path, per_device_train_batch_size=1, max_steps=12, logging_steps=1)
    trainer.train()
    # The rate is 1 / 48: about a third of the steps are empty.
    assert trainer.state.global_step == trainer.private.steps_done == 12
    assert sum(count for _, count in trainer.private.ledger) == 12
    torch.testing.assert_close(
        parameters(trainer.model), parameters(by_hand(12, 1, privacy()).engine.model), rtol=0, atol=1e-6
    )


def test_adapters_are_trained_and_nothing_else(tmp_path):
    peft = pytest.importorskip("peft")
    base = small_model()
    before = {name: p.clone() for name, p in base.state_dict().items()}
    torch.manual_seed(0)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    args = arguments(tmp_path, **SAVING)
    trainer = PrivateTrainer(model, args, train_dataset=Texts(), optimizers=(optimizer, None), privacy=privacy())
    trainer.train()
    after = model.get_base_model().state_dict()
    assert all(torch.equal(before[name], after[name.replace("c_attn.", "c_attn.base_layer.")]) for name in before)
    assert any(p.abs().max() > 0 for name, p in model.named_parameters() if "lora_B" in name)
    trainer.create_model_card()
    assert "library_name: peft" in (tmp_path / "README.md").read_text()
    trainer.save_model()
    again = peft.PeftModel.from_pretrained(small_model(), tmp_path)
    assert torch.equal(parameters(again), parameters(model))


def test_a_data_set_of_hugging_face_with_a_padding_collator_and_a_column_of_users(tmp_path):
    datasets = pytest.importorskip("datasets")
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(["yes no maybe"], vocab_size=270, special_tokens=["<pad>"], show_progress=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, pad_token="<pad>")
    texts = ["yes", "no no", "maybe not", "yes yes yes"] * 12
    people = [f"p{place // 2}" for place in range(48)]
    data = datasets.Dataset.from_dict({"text": texts, "label": [place % 2 for place in range(48)], "person": people})
    data = data.map(lambda row: tokenizer(row["text"]))
    config = transformers.BertConfig(
        vocab_size=270, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config)

    def trainer(folder: str, **given: object) -> PrivateTrainer:
        collator = transformers.DataCollatorWithPadding(tokenizer)
        args = arguments(tmp_path / folder, max_steps=1, learning_rate=1e-3)
        return PrivateTrainer(model, args, train_dataset=data, data_collator=collator, privacy=privacy(**given))

    assert trainer("users", users="person")._users().tolist() == [place // 2 for place in range(48)]
    with pytest.raises(InputError, match="no column 'who'"):
        trainer("wrong", users="who").train()
    one = trainer("records")
    one.train()
    assert one.private.steps_done == 1


class OwnedTexts(Texts):
    """Three records of each user in turn; the model does not see the column `person`."""

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {**super().__getitem__(place), "person": torch.tensor(place // 3)}


def clipped_mean_of_users(model: nn.Module, clip: float) -> Tensor:
    """Each user alone, in float64: the mean over all tokens of their records, clipped; divided by the number of users."""
    double, data = copy.deepcopy(model).double().eval(), Texts()
    total = torch.zeros_like(parameters(double))
    for first in range(0, RECORDS, 3):
        records = torch.utils.data.default_collate([data[place] for place in range(first, first + 3)])
        logits = double(records["input_ids"], attention_mask=records["attention_mask"]).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), records["labels"][:, 1:].flatten())
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(double.parameters()))])
        assert gradient.norm() > clip
        total += gradient * clip / gradient.norm()
    return total / (RECORDS // 3)


def test_users_are_drawn_clipped_and_protected(tmp_path):
    model = small_model()
    start, expected = parameters(model).double(), clipped_mean_of_users(model, 0.1)
    given = {"per_device_train_batch_size": RECORDS // 3, "num_train_epochs": 1}
    trainer = trainer_of(tmp_path, model=model, data=OwnedTexts(), given=privacy(users="person"), **given)
    trainer.train()
    assert trainer.private.steps_done == 1, "an epoch counts users"
    spent = trainer.spent()
    assert spent.unit == "user" and str(spent.guarantee) == "proved"
    torch.testing.assert_close((start - parameters(model).double()) / 0.5, expected, rtol=0, atol=1e-5)


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft")
    from privet.data import Dataset as Named
    from privet.data import Split
    from privet.data.texts import encode_texts

    texts = [f"message {place} of {place % 7} words" for place in range(4600)]
    split = Split(torch.from_numpy(encode_texts(texts, 64)), torch.zeros(len(texts), dtype=torch.long))
    monkeypatch.setattr(privet.data, "load", lambda name: Named(name, ("texts",), {"train": split}))
    out = tmp_path / "out"
    short = ["--steps", "1", "--public-steps", "1", "--batch-size", "16", "--table", str(tmp_path / "table")]
    monkeypatch.setattr("sys.argv", ["lora_gpt2.py", "--out", str(out), *short])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lora_gpt2.py"), run_name="__main__")
    assert "| LoRA, private | 8.00 |" in capsys.readouterr().out
    assert "| LoRA, without privacy | none |" in (tmp_path / "table.md").read_text()
    assert [row["epsilon"] for row in json.loads((tmp_path / "table.json").read_text())["rows"]][::2] == [0.0, None]
    assert "library_name: peft" in (out / "private" / "README.md").read_text()


# --- checkpoints --------------------------------------------------------------------------------------------------------


class Killed(TrainerCallback):
    """Ends the process, as far as the Trainer can tell."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.after:
            raise KeyboardInterrupt


SAVING = {"save_strategy": "steps", "save_steps": 3, "per_device_train_batch_size": 12, "num_train_epochs": 2}


def test_a_seeded_run_continues_bit_for_bit(tmp_path):
    whole = trainer_of(tmp_path / "whole", **SAVING)
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path / "killed", callbacks=[Killed(5)], **SAVING).train()
    again = trainer_of(tmp_path / "killed", **SAVING)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == again.private.steps_done == 8
    assert torch.equal(parameters(whole.model), parameters(again.model))
    assert again.spent().epsilon == whole.spent().epsilon


def test_a_release_counts_again_what_it_does_again(tmp_path):
    given = privacy(noise_multiplier=1.0, noise_seed=None)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, given=given, callbacks=[Killed(5)], **SAVING).train()
    again = trainer_of(tmp_path, given=given, **SAVING)
    again.train(resume_from_checkpoint=True)
    once = by_hand(8, 12, privacy(noise_multiplier=1.0))
    assert sum(count for _, count in again.private.ledger) == 8 + 2
    assert again.spent().epsilon > once.spent().epsilon
    # The checkpoint after step 6 is older than the newest state, that after step 8; it is there, so the run may go back to it.
    back = trainer_of(tmp_path, given=given, **SAVING)
    back.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert sum(count for _, count in back.private.ledger) == 8 + 2 + 2
    with pytest.raises(InputError, match="no state of the run after step 3"):
        trainer_of(tmp_path, given=given, **SAVING).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_a_budget_is_not_spent_twice_by_going_back(tmp_path):
    given = privacy(epsilon=2.0, noise_multiplier=None, noise_seed=None)
    trainer_of(tmp_path, given=given, **SAVING).train()
    back = trainer_of(tmp_path, given=given, **SAVING)
    with pytest.raises(PrivetError, match="epsilon"):
        back.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert back.spent().epsilon <= 2.0


def test_a_run_does_not_start_again_over_its_books(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=1)
    trainer.train()
    with pytest.raises(InputError, match="resume_from_checkpoint"):
        trainer.train()
    with pytest.raises(InputError, match="resume_from_checkpoint"):
        trainer_of(tmp_path, max_steps=1).train()


def test_a_checkpoint_without_books_is_refused(tmp_path):
    model = small_model()
    Trainer(model, arguments(tmp_path, **SAVING), train_dataset=Texts()).train()
    with pytest.raises(InputError, match="trained without privacy"):
        trainer_of(tmp_path, **SAVING).train(resume_from_checkpoint=True)
    trainer_of(tmp_path / "other", **SAVING).train()
    shutil.rmtree(tmp_path / "other" / "_privacy")
    with pytest.raises(InputError, match="books were moved"):
        trainer_of(tmp_path / "other", **SAVING).train(resume_from_checkpoint=True)


def test_another_plan_is_not_continued(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, callbacks=[Killed(5)], **SAVING).train()
    with pytest.raises(InputError, match="rate"):
        trainer_of(tmp_path, **{**SAVING, "per_device_train_batch_size": 6}).train(resume_from_checkpoint=True)


# --- what would leave the plan ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        {"fp16": True},
        {"torch_compile": True},
        {"auto_find_batch_size": True},
        {"include_num_input_tokens_seen": "all"},
        {"train_sampling_strategy": "group_by_length"},
        {"push_to_hub": True, "hub_strategy": "all_checkpoints", "hub_model_id": "a/b"},
        {"push_to_hub": True, "hub_strategy": "checkpoint", "hub_model_id": "a/b"},
    ],
    ids=str,
)
def test_arguments_that_would_leave_the_plan_are_refused(tmp_path, args, monkeypatch):
    monkeypatch.setattr(Trainer, "init_hf_repo", lambda self, *a, **k: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises((InputError, ValueError)) as raised:
        trainer_of(tmp_path, **args)
    assert isinstance(raised.value, InputError) or "fp16" in args  # the Trainer itself may refuse fp16 on a CPU


def test_several_devices_are_refused(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path)
    monkeypatch.setattr(type(trainer.args), "n_gpu", 2)
    with pytest.raises(InputError, match="several devices"):
        trainer.train()


class OwnStep(PrivateTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        batch = torch.utils.data.default_collate([self.train_dataset[place] for place in range(4)])
        loss = model(**batch).loss
        loss.backward()
        return loss.detach()


class OwnLoader(PrivateTrainer):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=12)


class OwnSampler(PrivateTrainer):
    def _get_train_sampler(self, *_):
        return WeightedRandomSampler([1.0] * RECORDS, RECORDS)


class LossOfTheBatch(PrivateTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits[:, :-1]
        losses = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        return losses / (labels[:, 1:] != -100).sum()


class Contrastive(PrivateTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        features = model(**inputs, output_hidden_states=True).hidden_states[-1][:, 0]
        return F.cross_entropy(features @ features.T, torch.arange(len(features)))


@pytest.mark.parametrize("kind", [OwnStep, OwnLoader, OwnSampler, LossOfTheBatch, Contrastive])
def test_subclasses_that_would_leave_the_plan_are_refused(tmp_path, kind):
    trainer = trainer_of(tmp_path, kind=kind)
    before = parameters(trainer.model)
    with pytest.raises((InputError, PrivetError)):
        trainer.train()
    assert torch.equal(before, parameters(trainer.model))


class OwnMean(PrivateTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def test_a_loss_of_ones_own_that_keeps_records_apart_works(tmp_path):
    trainer, usual = trainer_of(tmp_path / "a", kind=OwnMean), trainer_of(tmp_path / "b")
    trainer.train()
    usual.train()
    assert torch.equal(parameters(trainer.model), parameters(usual.model))


class Meddling(TrainerCallback):
    def __init__(self, what: str) -> None:
        self.what = what

    def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if self.what == "step again":
            optimizer.step()
        elif self.what == "step inside":
            optimizer.optimizer.step()
        else:
            torch.optim.SGD(model.parameters(), lr=1.0).step()


@pytest.mark.parametrize("what", ["step again", "step inside", "another optimizer"])
def test_a_callback_that_trains_is_refused(tmp_path, what):
    trainer = trainer_of(tmp_path, callbacks=[Meddling(what)])
    with pytest.raises(PrivetError):
        trainer.train()
    assert trainer.private.steps_done == 1


class Clipping(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)


def test_gradients_changed_after_the_private_step_change_nothing(tmp_path):
    trainer, usual = trainer_of(tmp_path / "a", callbacks=[Clipping()], max_grad_norm=1e-4), trainer_of(tmp_path / "b")
    trainer.train()
    usual.train()
    assert torch.equal(parameters(trainer.model), parameters(usual.model))


def test_a_step_outside_train_is_refused(tmp_path):
    trainer = trainer_of(tmp_path)
    with pytest.raises(PrivetError, match="not in a plan"):
        trainer.training_step(trainer.model, Texts()[0])
    with pytest.raises(InputError, match="no statement covers the choice"):
        trainer.hyperparameter_search(n_trials=2)


def test_choices_by_an_evaluation_are_said(tmp_path):
    choosing = {**SAVING, "eval_strategy": "steps", "eval_steps": 3, "load_best_model_at_end": True}
    with pytest.warns(PrivetWarning, match="does not cover those of eval_dataset"):
        trainer_of(tmp_path / "a", **choosing).train()
    trainer = trainer_of(tmp_path / "b", **choosing)
    trainer.eval_dataset = trainer.train_dataset
    with pytest.raises(InputError, match="The training records decide"):
        trainer.train()


def test_a_stream_is_refused(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([Texts()[place] for place in range(RECORDS)])

    with pytest.raises((InputError, TypeError)):
        trainer_of(tmp_path, data=Stream(), max_steps=2).train()


# --- the card and the page ----------------------------------------------------------------------------------------------


def test_the_card_is_ready_for_the_hub(tmp_path, monkeypatch):
    from huggingface_hub import ModelCard

    uploaded = []

    class Api:
        def upload_folder(self, *, folder_path, ignore_patterns, **_):
            files = [str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()]
            from huggingface_hub.utils import filter_repo_objects

            uploaded.extend(filter_repo_objects(files, ignore_patterns=ignore_patterns))

    monkeypatch.setattr(transformers.trainer, "hf_api", Api)
    trainer = trainer_of(
        tmp_path, given=privacy(epsilon=3.0, noise_multiplier=None, noise_seed=None), logging_steps=1, **SAVING
    )
    trainer.hub_model_id = "someone/private-gpt2"
    trainer.train()
    trainer.push_to_hub(dataset="letters")
    assert "README.md" in uploaded and "model.safetensors" in uploaded
    assert not [name for name in uploaded if name.startswith(("_privacy", "checkpoint"))]
    text = (tmp_path / "README.md").read_text()
    card = ModelCard(text)
    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "text-generation"
    assert "differential-privacy" in card.data.tags
    assert card.data.to_dict()["privacy"]["epsilon"] == trainer.spent().epsilon
    losses = {f"{entry['loss']:.3f}" for entry in trainer.state.log_history if "loss" in entry}
    assert losses and not any(loss in text for loss in losses)
    again = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(parameters(again), parameters(trainer.model))

    uploaded.clear()
    trainer.save_state()
    with pytest.raises(InputError, match=r"trainer_state\.json"):
        trainer.push_to_hub()
    assert uploaded == []


def test_the_commands_work_on_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))
    trainer = trainer_of(
        tmp_path / "out", given=privacy(epsilon=3.0, noise_multiplier=None, noise_seed=None), max_steps=2
    )
    trainer.train()
    runner = CliRunner()
    assert runner.invoke(app, ["report", str(trainer.folder)]).exit_code == 0
    assert "2 of 2 planned" in (trainer.folder / "report.html").read_text()
    said = runner.invoke(app, ["account", str(trainer.folder), "--json"])
    assert json.loads(said.output)["epsilon"] == pytest.approx(trainer.spent().epsilon)


def test_a_run_is_on_the_account_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_ACCOUNTS", str(tmp_path / "accounts"))
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))
    account = DataAccount.create("people", 20.0, 1e-5)
    named = privacy(epsilon=3.0, noise_multiplier=None, noise_seed=None, account="people")
    trainer = trainer_of(tmp_path / "out", given=named, max_steps=2)
    trainer.train()
    books = account.refresh()
    used = books.total.price(Ledger.open(trainer.folder / "ledger.jsonl", read_only=True).event)
    assert books.used.divergences == pytest.approx(used.divergences) and books.reserved.is_free
    with pytest.raises(AccountExhausted):
        too_much = privacy(epsilon=40.0, noise_multiplier=None, noise_seed=None, account="people")
        trainer_of(tmp_path / "more", given=too_much, max_steps=2).train()
    assert account.refresh().used == books.used and account.books.reserved.is_free


def test_arguments_come_from_a_command_line(tmp_path):
    parser = transformers.HfArgumentParser((TrainingArguments, PrivacyArguments))
    line = ["--output_dir", str(tmp_path), "--delta", "1e-5", "--epsilon", "3", "--public_size", "5000"]
    _, given = parser.parse_args_into_dataclasses(line)
    assert given == PrivacyArguments(delta=1e-5, epsilon=3.0, public_size=5000)
