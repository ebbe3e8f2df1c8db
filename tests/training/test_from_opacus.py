"""Loops of the shape of Opacus' tutorials run under both libraries: only the import and the call of `make_private` differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import opacus
import pytest
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import privet
from privet.errors import InputError
from privet.training import BudgetExhausted

EPOCHS, BATCH, EPSILON, DELTA, NORM = 3, 96, 8.0, 1e-5, 1.0
Prepared = tuple[nn.Module, torch.optim.Optimizer, Iterable[Any], Callable[[], float]]
Prepare = Callable[[nn.Module, torch.optim.Optimizer, DataLoader[Any]], Prepared]


def with_opacus(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any]) -> Prepared:
    engine = opacus.PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        epochs=EPOCHS,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        max_grad_norm=NORM,
    )
    return model, optimizer, loader, lambda: engine.get_epsilon(DELTA)


def with_privet(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any]) -> Prepared:
    private = privet.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        epochs=EPOCHS,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        max_grad_norm=NORM,
    )
    return model, optimizer, private.loader, lambda: private.spent().epsilon


LIBRARIES = pytest.mark.parametrize("prepare", [with_opacus, with_privet])
pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha"),
    pytest.mark.filterwarnings("ignore:Using a non-full backward hook"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing. is deprecated:FutureWarning"),  # peft asks for it
]


def classify_images(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Any], criterion: nn.Module
) -> list[tuple[float, float]]:
    """The loop of an image classifier: loss and accuracy of each epoch."""
    told = []
    for _ in range(EPOCHS):
        model.train()
        losses, right, seen = [], 0, 0
        for images, target in loader:
            optimizer.zero_grad()
            output = model(images)
            loss = criterion(output, target)
            predicted = np.argmax(output.detach().cpu().numpy(), axis=1)
            right += int((predicted == target.cpu().numpy()).sum())
            seen += len(target)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        told.append((float(np.mean(losses)), right / seen))
    return told


def images() -> TensorDataset:
    return TensorDataset(*privet.data.load("digits").train.tensors)


def cnn(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
    )


@LIBRARIES
def test_image_classification(prepare: Prepare) -> None:
    torch.manual_seed(0)
    model = cnn(lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    model, optimizer, loader, epsilon = prepare(model, optimizer, DataLoader(images(), batch_size=BATCH, shuffle=True))
    told = classify_images(model, optimizer, loader, nn.CrossEntropyLoss())
    assert told[-1][0] < told[0][0] and told[-1][1] > 0.6
    assert EPSILON * 0.9 < epsilon() <= EPSILON * 1.01


@pytest.mark.parametrize(("prepare", "fix"), [(with_opacus, ModuleValidator.fix), (with_privet, privet.fix)])
def test_a_model_with_batch_norm_is_mended_first(prepare: Prepare, fix: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    model = fix(cnn(nn.BatchNorm2d))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.003)
    model, optimizer, loader, _ = prepare(model, optimizer, DataLoader(images(), batch_size=BATCH))
    assert classify_images(model, optimizer, loader, nn.CrossEntropyLoss())[-1][1] > 0.5


class Words(Dataset[tuple[Tensor, int]]):
    """Made-up words of two languages: the letters of one are mostly the first half of the alphabet."""

    def __init__(self, count: int) -> None:
        draws = torch.Generator().manual_seed(0)
        self.labels = torch.randint(2, (count,), generator=draws).tolist()
        self.words = [
            (torch.randint(1, 14, (int(length),), generator=draws) + 7 * label).long()
            for label, length in zip(self.labels, torch.randint(3, 9, (count,), generator=draws), strict=True)
        ]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.words[index], self.labels[index]


def padded(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    words, labels = zip(*rows, strict=True)
    return nn.utils.rnn.pad_sequence(list(words), batch_first=True), torch.tensor(labels)


class Tagger(nn.Module):
    """Letters to a language, by the recurrent layer that is given."""

    def __init__(self, recurrent: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16, padding_idx=0)
        self.recurrent = recurrent(16, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, letters: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(letters))
        scores: Tensor = self.head(states.mean(1))
        return scores


def classify_text(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Any], criterion: nn.Module
) -> list[float]:
    """The loop of a text classifier, with the accuracy of each epoch."""
    accuracies = []
    for _ in range(EPOCHS):
        right = []
        for letters, labels in loader:
            scores = model(letters)
            loss = criterion(scores, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            right += (scores.argmax(1) == labels).tolist()
        accuracies.append(sum(right) / len(right))
    return accuracies


@pytest.mark.parametrize(("prepare", "recurrent"), [(with_opacus, DPLSTM), (with_privet, nn.LSTM)])
def test_text_classification_with_an_lstm(prepare: Prepare, recurrent: Any) -> None:
    torch.manual_seed(0)
    model = Tagger(recurrent)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = DataLoader(Words(1500), batch_size=BATCH, collate_fn=padded)
    model, optimizer, batches, epsilon = prepare(model, optimizer, loader)
    assert classify_text(model, optimizer, batches, nn.CrossEntropyLoss())[-1] > 0.7
    assert epsilon() <= EPSILON * 1.01


def test_weights_of_their_layers_load_into_torchs_own() -> None:
    lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)
    theirs = DPLSTM(3, 5, num_layers=2, batch_first=True)
    lstm.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 3)
    assert torch.allclose(lstm(x)[0], theirs(x)[0], atol=1e-6)
    attention, dp = nn.MultiheadAttention(8, 2), DPMultiheadAttention(8, 2)
    attention.load_state_dict(dp.state_dict())
    q = torch.randn(5, 3, 8)
    assert torch.allclose(attention(q, q, q)[0], dp(q, q, q)[0], atol=1e-6)


@pytest.mark.parametrize(("batch_size", "epochs"), [(96, 3), (97, 2), (149, 3), (153, 3), (1437, 2), (700, 1)])
def test_a_loop_over_epochs_does_exactly_the_steps_of_the_plan(batch_size: int, epochs: int) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privet.make_private(
        model, optimizer, images(), batch_size=batch_size, epochs=epochs, epsilon=8.0, delta=1e-5, max_grad_norm=1.0, seed=0,
        self_check=False,
    )  # fmt: skip
    loader, lengths = private.loader, []
    assert loader.dataset is private.dataset
    for _ in range(epochs):
        before = private.steps_done
        lengths.append(len(loader))
        for x, y in loader:
            private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
        assert private.steps_done - before == lengths[-1]
    assert private.steps_done == private.plan.steps == math.ceil(epochs * 1437 / batch_size)
    assert max(lengths) - min(lengths) <= 1
    with pytest.raises(BudgetExhausted):
        iter(loader)


def test_an_epoch_that_was_left_goes_on() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privet.make_private(
        model, optimizer, images(), batch_size=150, epochs=2, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0, seed=0,
        self_check=False,
    )  # fmt: skip
    for x, y in private.loader:
        private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
        if private.steps_done == 4:
            break
    assert len(private.loader) == 6


def test_a_loop_of_more_epochs_than_were_planned_stops_with_the_reason() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader, epsilon = with_privet(model, optimizer, DataLoader(images(), batch_size=480))
    classify_images(model, optimizer, loader, nn.CrossEntropyLoss())
    with pytest.raises(BudgetExhausted, match="steps are done"):
        classify_images(model, optimizer, loader, nn.CrossEntropyLoss())
    assert epsilon() <= EPSILON
    with pytest.raises(InputError, match="physical_batch_size is given twice"):
        privet.make_private(
            model, optimizer, images(), batch_size=10, steps=1, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0,
            max_physical_batch_size=5, performance=privet.Performance(physical_batch_size=4),
        )  # fmt: skip


# --- models of Hugging Face -----------------------------------------------------------------------------------------------


class Tokens(Dataset[dict[str, Tensor]]):
    """Padded sentences whose label is whether they have more tokens of the upper half of the vocabulary."""

    def __init__(self, count: int, length: int = 12, vocabulary: int = 40) -> None:
        draws = torch.Generator().manual_seed(0)
        self.ids = torch.randint(2, vocabulary, (count, length), generator=draws)
        self.mask = torch.arange(length) < torch.randint(4, length + 1, (count, 1), generator=draws)
        self.ids = torch.where(self.mask, self.ids, 0)
        self.labels = ((self.ids >= vocabulary // 2).sum(1) > self.mask.sum(1) / 2).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {
            "input_ids": self.ids[index],
            "attention_mask": self.mask[index].long(),
            "labels": self.labels[index],
        }


def fine_tune(model: Any, optimizer: torch.optim.Optimizer, loader: Iterable[Any]) -> list[float]:
    """The loop that fine-tunes a model of transformers, which computes its own loss; the loss of each epoch."""
    told = []
    for _ in range(EPOCHS):
        losses = []
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
        told.append(float(np.mean(losses)))
    return told


@pytest.fixture
def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


@pytest.mark.slow
@LIBRARIES
def test_the_last_layers_of_a_bert(prepare: Prepare, bert: Any) -> None:
    """As in the tutorial: all is frozen but the last encoder layer, the pooler and the classifier."""
    for parameter in bert.parameters():
        parameter.requires_grad = False
    for part in (bert.bert.encoder.layer[-1], bert.bert.pooler, bert.classifier):
        for parameter in part.parameters():
            parameter.requires_grad = True
    bert.train()
    before = {name: p.detach().clone() for name, p in bert.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in bert.parameters() if p.requires_grad], lr=5e-4)
    model, optimizer, loader, epsilon = prepare(bert, optimizer, DataLoader(Tokens(1200), batch_size=BATCH))
    told = fine_tune(model, optimizer, loader)
    assert all(map(math.isfinite, told)) and told[-1] < told[0] + 0.05
    assert all(torch.equal(p, before[name]) != p.requires_grad for name, p in bert.named_parameters())
    assert epsilon() <= EPSILON * 1.01


@pytest.mark.slow
@LIBRARIES
def test_lora(prepare: Prepare, bert: Any) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=16, target_modules=["query", "value"])
    model = peft.get_peft_model(bert, settings)
    model.train()
    before = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    wrapped, optimizer, loader, epsilon = prepare(model, optimizer, DataLoader(Tokens(1200), batch_size=BATCH))
    told = fine_tune(wrapped, optimizer, loader)
    assert all(map(math.isfinite, told)) and told[-1] < told[0] + 0.05
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters() if name in before)
    assert epsilon() <= EPSILON * 1.01
