"""LSTM models train under the same plan as any other; a record is one sequence."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet
from privet.gradients import Engine
from privet.models import LSTMClassifier, LSTMLanguageModel

WORDS, LENGTH = 12, 16


def text(records: int = 3000) -> Tensor:
    """A language with a grammar: after each word comes its successor, four times of five."""
    generator = torch.Generator().manual_seed(0)
    follows = torch.randperm(WORDS, generator=generator)
    words = torch.randint(WORDS, (records, LENGTH), generator=generator)
    for place in range(1, LENGTH):
        regular = torch.rand(records, generator=generator) < 0.8
        words[:, place] = torch.where(regular, follows[words[:, place - 1]], words[:, place])
    return words


def next_word_loss(model: LSTMLanguageModel, words: Tensor) -> Tensor:
    return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def test_a_language_model_learns_the_grammar_under_a_budget() -> None:
    words = text()
    torch.manual_seed(0)
    model = LSTMLanguageModel(WORDS, 16, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    private = privet.make_private(
        model, optimizer, TensorDataset(words[:2700]), batch_size=300, epochs=6, epsilon=4.0, delta=1e-4, max_grad_norm=1.0,
        seed=0,
    )  # fmt: skip
    for (batch,) in private.batches():
        optimizer.zero_grad()
        next_word_loss(model, batch).backward()
        optimizer.step()
    with torch.no_grad():
        loss = float(next_word_loss(model, words[2700:]))
    right = 0.8 + 0.2 / WORDS
    entropy = -right * math.log(right) - (1 - right) * math.log(0.2 / WORDS)
    assert entropy < loss < 1.15 < math.log(WORDS)
    assert private.spent().epsilon <= 4.0


def test_a_classifier_of_text_learns_under_a_budget() -> None:
    words = text()
    labels = ((words == 3).sum(1) >= 2).long()
    torch.manual_seed(0)
    model = LSTMClassifier(WORDS, 2, 16, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    private = privet.make_private(
        model, optimizer, TensorDataset(words[:2700], labels[:2700]), batch_size=300, epochs=6, epsilon=4.0, delta=1e-4,
        max_grad_norm=1.0, seed=0,
    )  # fmt: skip
    for x, y in private.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = float((model(words[2700:]).argmax(1) == labels[2700:]).double().mean())
    assert accuracy > 0.85


def test_padding_says_nothing() -> None:
    model = LSTMClassifier(WORDS, 3, 8, 8, padding=0)
    words = torch.randint(1, WORDS, (4, 6))
    padded = torch.cat([words, torch.zeros(4, 5, dtype=torch.long)], 1)
    torch.testing.assert_close(model(words), model(padded))


def test_the_gradient_of_a_sequence_is_that_of_a_loop() -> None:
    words, model = text(5), LSTMLanguageModel(WORDS, 4, 6, layers=2)
    with Engine(model) as engine:
        next_word_loss(model, words).backward()
        found = engine.gradients().instantiate()
    for record in range(5):
        model.zero_grad()
        next_word_loss(model, words[record : record + 1]).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name][record], parameter.grad, atol=1e-6, rtol=1e-3)
