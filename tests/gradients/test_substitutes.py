"""Questions that other libraries ask about the records, to save work, have one answer for all batches."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet
from privet.errors import PrivetError


def _ignore_causal_mask_sdpa(mask: Tensor) -> bool:
    return bool(mask.all())


def _other(mask: Tensor) -> bool:
    return bool(mask.all())


def _as_of(module: str, function: Any) -> Any:
    """The same function, of another module."""
    return FunctionType(function.__code__, {**function.__globals__, "__name__": module})


def _train(model: nn.Module, data: TensorDataset, losses: Any) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privet.make_private(
        model, optimizer, data, batch_size=8, steps=2, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0
    )
    for batch in private.batches():
        private.step(losses(*batch))
    return str(private.spent())


def _padded(function: Any, seen: list[bool]) -> str:
    model = nn.Linear(4, 2)

    def losses(x: Tensor, mask: Tensor) -> Tensor:
        seen.append(function(mask))
        return (model(x * mask[..., None]).square().sum(-1) * mask).sum(1)

    return _train(model, TensorDataset(torch.randn(48, 3, 4), torch.ones(48, 3)), losses)


def test_the_answer_never_depends_on_records() -> None:
    seen: list[bool] = []
    assert "proved" in _padded(_as_of("transformers.masking_utils", _ignore_causal_mask_sdpa), seen)
    assert seen and not any(seen)  # although no record is padded


@pytest.mark.parametrize(
    "function", [_as_of("transformers.masking_utils", _other), _as_of("mine", _ignore_causal_mask_sdpa), _other]
)
def test_other_questions_are_refused(function: Any) -> None:
    with pytest.raises(PrivetError, match="`bool` reads a value of the records"):
        _padded(function, [])


@pytest.mark.parametrize("padded", [False, True])
def test_a_small_bert_is_proved(padded: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config)
    mask = torch.ones(48, 6, dtype=torch.long)
    mask[::2, 4:] = int(not padded)
    data = TensorDataset(torch.randint(1, 30, (48, 6)), mask, torch.arange(48) % 2)

    def losses(ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(input_ids=ids, attention_mask=mask).logits, labels, reduction="none")

    assert "proved" in _train(model, data, losses)
