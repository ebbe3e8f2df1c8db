"""Adapters of PEFT train as they are: the clipped sum is that of a float64 loop over single records."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.errors import PrivetError
from tests.huggingface.architectures import ARCHITECTURES, Batch
from tests.huggingface.test_architectures import CLOSE, clipped_sum_by_a_loop, distance, own_loss, train

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

ATTENTION = {"GPT2": ["c_attn"], "Llama": ["q_proj", "v_proj"], "Bert": ["query", "value"], "T5": ["q", "v"]}
TASKS = {"GPT2": "CAUSAL_LM", "Llama": "CAUSAL_LM", "Bert": "SEQ_CLS", "T5": "SEQ_2_SEQ_LM"}
FEEDING = {"GPT2": ["mlp.c_proj"], "Llama": ["down_proj"], "Bert": ["output.dense"], "T5": ["wo"]}


def adapter(kind: str, model: str) -> Any:
    """A small adapter. What PEFT starts at zero is left to `shaken`."""
    shared = {"task_type": TASKS[model]}
    low = {**shared, "r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "target_modules": ATTENTION[model]}
    if kind in ("LoRA", "rsLoRA", "DoRA"):
        return peft.LoraConfig(**low, use_rslora=kind == "rsLoRA", use_dora=kind == "DoRA")
    if kind == "LoRA with embeddings":
        words = "wte" if model == "GPT2" else "word_embeddings" if model == "Bert" else "embed_tokens"
        return peft.LoraConfig(**{**low, "target_modules": [*ATTENTION[model], words]})
    if kind == "AdaLoRA":
        return peft.AdaLoraConfig(
            **shared, init_r=3, target_r=2, total_step=20, lora_dropout=0.0, target_modules=ATTENTION[model],
            orth_reg_weight=0.5,
        )  # fmt: skip
    if kind == "IA3":
        return peft.IA3Config(
            **shared, target_modules=[*ATTENTION[model], *FEEDING[model]], feedforward_modules=FEEDING[model]
        )
    if kind == "VeRA":
        return peft.VeraConfig(**shared, r=2, target_modules=ATTENTION[model], vera_dropout=0.0)
    if kind == "prompt":
        return peft.PromptTuningConfig(**shared, num_virtual_tokens=3)
    if kind == "prefix":
        return peft.PrefixTuningConfig(**shared, num_virtual_tokens=3)
    if kind == "prefix projected":
        return peft.PrefixTuningConfig(**shared, num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8)
    if kind == "P-tuning":
        return peft.PromptEncoderConfig(**shared, num_virtual_tokens=3, encoder_hidden_size=8, encoder_dropout=0.0)
    if kind == "LoHa":
        return peft.LoHaConfig(**shared, r=2, target_modules=ATTENTION[model])
    if kind == "LoKr":
        return peft.LoKrConfig(**shared, r=2, target_modules=ATTENTION[model])
    if kind == "OFT":
        return peft.OFTConfig(**shared, oft_block_size=2, target_modules=ATTENTION[model], use_cayley_neumann=False)
    raise AssertionError(kind)


def shaken(model: nn.Module) -> nn.Module:
    """Many adapters begin at zero, where half of their gradients are zero."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


KINDS = [
    "LoRA", "rsLoRA", "DoRA", "LoRA with embeddings", "AdaLoRA", "IA3", "VeRA", "prompt", "prefix",
    "prefix projected", "P-tuning",
]  # fmt: skip
PAIRS = [(kind, model) for kind in KINDS for model in ("GPT2", "Bert")]
PAIRS += [(kind, model) for kind in ("LoRA", "IA3", "prompt", "prefix") for model in ("Llama", "T5")]
PAIRS.append(("LoKr", "Bert"))
CLIP = 1e-3


def made(kind: str, of: str) -> tuple[nn.Module, Batch]:
    architecture = next(each for each in ARCHITECTURES if each.name == of)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = shaken(peft.get_peft_model(architecture.make(), adapter(kind, of))).eval()
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained and len(trained) < len(list(model.parameters()))
    torch.manual_seed(1)
    return model, architecture.batch()


def of_scores(model: nn.Module, batch: Batch) -> Tensor:
    """The loss by hand, from what the model returns without labels."""
    given = {name: column for name, column in batch.items() if name != "labels"}
    scores, labels = model(**given).logits, batch["labels"]
    if labels.ndim == 1:
        return F.cross_entropy(scores, labels)
    return F.cross_entropy(scores[:, :-1].transpose(1, 2), labels[:, 1:])


@pytest.mark.parametrize(("kind", "of"), PAIRS)
def test_the_clipped_sum_is_that_of_single_records(kind: str, of: str) -> None:
    model, batch = made(kind, of)
    loss = of_scores if kind == "AdaLoRA" else own_loss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = clipped_sum_by_a_loop(model, batch, CLIP, loss)
        found, guarantee = train(model, batch, clip=CLIP, loss=loss)
    assert guarantee == "proved"
    assert distance(found, expected) < CLOSE * CLIP


def test_the_penalty_in_the_loss_of_adalora_is_refused_with_the_way_out() -> None:
    """AdaLoRA adds a penalty to `.loss`: its gradient belongs to no record."""
    with warnings.catch_warnings(), pytest.raises(PrivetError, match=r"For a penalty use .* private\.public"):
        warnings.simplefilter("ignore")
        train(*made("AdaLoRA", "Bert"))


def test_an_adapter_with_a_backward_pass_of_its_own_is_refused() -> None:
    """LoHa computes its weight by an autograd.Function, whose backward pass cannot be seen."""
    with warnings.catch_warnings(), pytest.raises(PrivetError, match=r"custom autograd\.Function"):
        warnings.simplefilter("ignore")
        train(*made("LoHa", "Bert"))


def test_the_adapter_is_all_that_moves() -> None:
    model, batch = made("LoRA", "GPT2")
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, batch)
    assert frozen and all(torch.equal(dict(model.named_parameters())[name], was) for name, was in frozen.items())
