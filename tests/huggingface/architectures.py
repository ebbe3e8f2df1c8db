"""Small models of Hugging Face from configurations, each with a batch of records as its users have it: padded and labelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

RECORDS = 4
TOKENS = 8
WORDS = 40
Batch = dict[str, Tensor]
Isolation = Literal["follow", "each"]


@dataclass(frozen=True)
class Architecture:
    """One model.

    Attributes:
        name: unique.
        config, model: names of classes of transformers.
        settings: of the configuration.
        batch: makes the records; the labels are among them, so that `model(**batch).loss` is the loss.
        attention: "eager" or "sdpa"; empty for the model's own choice.
        isolation: "follow" where every operation is known; "each" where the model routes, sorts or branches by values of the
            records, so that `make_private` has to be told to compute record by record.
        experts: how experts are computed: "eager" passes each the tokens of all records that it was chosen for; "batched_mm"
            takes for each token the weights of its own experts.
    """

    name: str
    config: str
    model: str
    settings: Mapping[str, Any]
    batch: Callable[[], Batch]
    attention: str = ""
    isolation: Isolation = "follow"
    experts: str = "eager"

    def make(self) -> nn.Module:
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.settings)
        if self.attention:
            config._attn_implementation = self.attention
        # The grouped product of experts takes no float64, in which the oracle computes.
        config._experts_implementation = self.experts
        made: nn.Module = getattr(transformers, self.model)(config)
        return made

    def ready(self) -> nn.Module:
        """In eval mode, so that nothing is drawn; Reformer, which draws nothing here, trains in training mode only."""
        return self.make().train(self.name == "Reformer")


def _ids() -> Tensor:
    return torch.randint(3, WORDS, (RECORDS, TOKENS))


def _mask() -> Tensor:
    """Records of different lengths, padded on the right."""
    lengths = torch.tensor([TOKENS, TOKENS - 3, TOKENS - 1, TOKENS - 5])
    return (torch.arange(TOKENS) < lengths[:, None]).long()


def text(**more: Tensor) -> Batch:
    """Padded text with a class."""
    mask = _mask()
    ids = torch.where(mask == 1, _ids(), 0)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(RECORDS) % 2, **more}


def text_with_types() -> Batch:
    return text(token_type_ids=torch.randint(0, 2, (RECORDS, TOKENS)))


def text_with_positions() -> Batch:
    return text(position_ids=torch.arange(TOKENS).expand(RECORDS, -1).contiguous())


def embedded(width: int = 16) -> Batch:
    """Vectors in place of tokens."""
    found = text()
    del found["input_ids"]
    return {"inputs_embeds": torch.randn(RECORDS, TOKENS, width), **found}


def tokens() -> Batch:
    """Padded text whose tokens are the labels; padding is ignored."""
    found = text()
    found["labels"] = torch.where(found["attention_mask"] == 1, found["input_ids"], -100)
    return found


def tags() -> Batch:
    """Padded text with a class for each token; padding is ignored."""
    found = text()
    found["labels"] = torch.where(found["attention_mask"] == 1, torch.randint(0, 2, (RECORDS, TOKENS)), -100)
    return found


def masked_words() -> Batch:
    """Some tokens are to be guessed; all others are ignored."""
    found = text()
    chosen = (torch.rand(RECORDS, TOKENS) < 0.4) & (found["attention_mask"] == 1)
    chosen[:, 0] = True
    found["labels"] = torch.where(chosen, found["input_ids"], -100)
    return found


def translation() -> Batch:
    """Two padded texts: encoder and decoder."""
    found = text()
    labels = torch.where(_mask().flip(0) == 1, _ids(), -100)
    return {**found, "labels": labels}


def questions() -> Batch:
    """Where an answer begins and ends."""
    found = text()
    del found["labels"]
    where = torch.randint(0, TOKENS - 5, (RECORDS,))
    return {**found, "start_positions": where, "end_positions": where + 1}


def pictures(size: int = 16, channels: int = 3, name: str = "pixel_values") -> Batch:
    return {name: torch.randn(RECORDS, channels, size, size), "labels": torch.arange(RECORDS) % 2}


def big_pictures() -> Batch:
    return pictures(32)


def sounds() -> Batch:
    """Raw waveforms."""
    return {"input_values": torch.randn(RECORDS, 400), "labels": torch.arange(RECORDS) % 2}


def spectra() -> Batch:
    return {"input_values": torch.randn(RECORDS, 24, 16), "labels": torch.arange(RECORDS) % 2}


def mel_features() -> Batch:
    return {"input_features": torch.randn(RECORDS, 8, 40), "labels": torch.arange(RECORDS) % 2}


def series() -> Batch:
    return {"past_values": torch.randn(RECORDS, 16, 2), "target_values": torch.arange(RECORDS) % 2}


_BERT = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 0,
}  # fmt: skip
_DEBERTA = {
    **_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pooler_dropout": 0.0, "max_relative_positions": 8,
}  # fmt: skip
_LLAMA = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 24, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "use_cache": False, "head_dim": 8,
}  # fmt: skip
_MIXTRAL = {"num_local_experts": 3, "num_experts_per_tok": 2}
_QWEN_MOE = {
    "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
}  # fmt: skip
_GPT2 = {
    "vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False,
}  # fmt: skip
_T5 = {
    "vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0,
    "pad_token_id": 0, "decoder_start_token_id": 0, "use_cache": False,
}  # fmt: skip
_BART = {
    "vocab_size": WORDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32, "dropout": 0.0,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
}  # fmt: skip
_VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 16,
    "patch_size": 4, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 2,
}  # fmt: skip
_TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
_TOWERS = {
    "vision_config": {**_TOWER, "image_size": 16, "patch_size": 4},
    "text_config": {**_TOWER, "vocab_size": WORDS, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2},
}
_SOUND = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "conv_dim": (8, 8),
    "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0,
    "feat_proj_dropout": 0.0, "layerdrop": 0.0, "final_dropout": 0.0, "mask_time_prob": 0.0, "num_labels": 2,
    "apply_spec_augment": False, "classifier_proj_size": 8,
}  # fmt: skip


def _of(
    name: str,
    settings: Mapping[str, Any],
    batch: Callable[[], Batch],
    head: str = "ForSequenceClassification",
    **more: Any,
) -> Architecture:
    """A model whose classes are called after one name."""
    prefix = name.split(" ")[0]
    arguments = {key: more.pop(key) for key in ("attention", "config", "isolation", "experts") if key in more}
    config = arguments.pop("config", f"{prefix}Config")
    return Architecture(name, config, f"{prefix}{head}", {**settings, **more}, batch, **arguments)


ARCHITECTURES: tuple[Architecture, ...] = (
    _of("Bert", _BERT, text_with_types),
    _of("Bert eager", _BERT, text, attention="eager"),
    _of("Bert sdpa", _BERT, text, attention="sdpa"),
    _of("Bert embedded", _BERT, embedded),
    _of("Bert positions", _BERT, text_with_positions),
    _of("Bert tags", _BERT, tags, "ForTokenClassification"),
    _of("Bert words", _BERT, masked_words, "ForMaskedLM"),
    _of("Bert questions", _BERT, questions, "ForQuestionAnswering"),
    _of(
        "DistilBert",
        {
            "vocab_size": WORDS,
            "dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 24,
            "max_position_embeddings": 32,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "seq_classif_dropout": 0.0,
            "pad_token_id": 0,
        },
        text,
    ),
    _of("Roberta", {**_BERT, "type_vocab_size": 1, "pad_token_id": 0}, text),
    _of("XLMRoberta", {**_BERT, "type_vocab_size": 1}, text),
    _of("Camembert", {**_BERT, "type_vocab_size": 1}, text),
    _of("Albert", {**_BERT, "embedding_size": 8, "classifier_dropout_prob": 0.0}, text),
    _of("Electra", {**_BERT, "embedding_size": 8}, text),
    _of("DebertaV2", {**_DEBERTA, "position_buckets": 4}, text, isolation="each"),
    _of("Deberta", _DEBERTA, text, isolation="each"),
    _of(
        "DebertaV2 of one label",
        {**_DEBERTA, "position_buckets": 4, "problem_type": "single_label_classification"},
        text,
    ),
    _of("Deberta of one label", {**_DEBERTA, "problem_type": "single_label_classification"}, text),
    _of("ConvBert", {**_BERT, "embedding_size": 16, "conv_kernel_size": 3, "num_groups": 1, "head_ratio": 1}, text),
    _of(
        "MobileBert",
        {
            **_BERT,
            "embedding_size": 16,
            "intra_bottleneck_size": 8,
            "true_hidden_size": 8,
            "num_feedforward_networks": 1,
        },
        text,
    ),
    _of("SqueezeBert", {**_BERT, "embedding_size": 16}, text),
    _of("MPNet", _BERT, text),
    _of(
        "FNet",
        {key: value for key, value in _BERT.items() if "attention" not in key} | {"tpu_short_seq_length": TOKENS},
        lambda: {k: v for k, v in text().items() if k != "attention_mask"},
    ),
    _of(
        "Funnel",
        {
            "vocab_size": WORDS,
            "block_sizes": [1, 1],
            "d_model": 16,
            "n_head": 2,
            "d_head": 8,
            "d_inner": 24,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
        },
        text,
    ),
    _of("RoFormer", {**_BERT, "embedding_size": 16}, text),
    _of(
        "XLNet",
        {
            "vocab_size": WORDS,
            "d_model": 16,
            "n_layer": 2,
            "n_head": 2,
            "d_inner": 24,
            "dropout": 0.0,
            "pad_token_id": 0,
            "use_mems_eval": False,
            "use_mems_train": False,
            "summary_last_dropout": 0.0,
        },
        text,
    ),
    _of(
        "XLM",
        {
            "vocab_size": WORDS,
            "emb_dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "max_position_embeddings": 32,
            "pad_index": 0,
            "summary_first_dropout": 0.0,
        },
        text,
        isolation="each",
    ),
    _of(
        "ModernBert",
        {
            **{k: v for k, v in _BERT.items() if "dropout" not in k},
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "attention_dropout": 0.0,
            "embedding_dropout": 0.0,
            "mlp_dropout": 0.0,
            "local_attention": 4,
        },
        text,
    ),
    _of("Longformer", {**_BERT, "attention_window": 4}, text, isolation="each"),
    _of(
        "Reformer",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "attention_head_size": 8,
            "num_attention_heads": 2,
            "feed_forward_size": 24,
            "attn_layers": ["local", "local"],
            "local_attn_chunk_length": 4,
            "axial_pos_embds": False,
            "max_position_embeddings": 32,
            "hidden_dropout_prob": 0.0,
            "local_attention_probs_dropout_prob": 0.0,
            "is_decoder": False,
            "pad_token_id": 0,
            "eos_token_id": 2,
        },
        text,
        isolation="each",
    ),
    _of("GPT2", _GPT2, tokens, "LMHeadModel"),
    _of("GPT2 class", _GPT2, text, "ForSequenceClassification"),
    _of(
        "GPTNeo",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 32,
            "window_size": 4,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "use_cache": False,
        },
        tokens,
        "ForCausalLM",
    ),
    _of("GPTJ", {**_GPT2, "rotary_dim": 4}, tokens, "ForCausalLM"),
    _of(
        "GPTNeoX",
        {k: v for k, v in _LLAMA.items() if k not in ("num_key_value_heads", "head_dim")},
        tokens,
        "ForCausalLM",
    ),
    _of(
        "OPT",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 24,
            "max_position_embeddings": 32,
            "dropout": 0.0,
            "word_embed_proj_dim": 16,
            "pad_token_id": 0,
            "use_cache": False,
        },
        tokens,
        "ForCausalLM",
    ),
    _of(
        "Bloom",
        {"vocab_size": WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0, "use_cache": False},
        tokens,
        "ForCausalLM",
        isolation="each",
    ),
    _of(
        "Falcon",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "pad_token_id": 0,
            "use_cache": False,
            "new_decoder_architecture": False,
        },
        tokens,
        "ForCausalLM",
    ),
    _of(
        "Mpt",
        {
            "vocab_size": WORDS,
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 2,
            "max_seq_len": 32,
            "pad_token_id": 0,
            "use_cache": False,
        },
        tokens,
        "ForCausalLM",
    ),
    _of("Llama", _LLAMA, tokens, "ForCausalLM"),
    _of("Llama eager", _LLAMA, tokens, "ForCausalLM", attention="eager"),
    _of("Mistral", {**_LLAMA, "sliding_window": 4}, tokens, "ForCausalLM"),
    _of("Qwen2", _LLAMA, tokens, "ForCausalLM"),
    _of("Qwen3", _LLAMA, tokens, "ForCausalLM"),
    _of("Gemma", _LLAMA, tokens, "ForCausalLM"),
    _of("Gemma2", {**_LLAMA, "query_pre_attn_scalar": 8, "sliding_window": 8}, tokens, "ForCausalLM"),
    _of("Phi", {k: v for k, v in _LLAMA.items() if k != "head_dim"}, tokens, "ForCausalLM"),
    _of("Phi3", {k: v for k, v in _LLAMA.items() if k != "head_dim"} | {"pad_token_id": 0}, tokens, "ForCausalLM"),
    _of("StableLm", {k: v for k, v in _LLAMA.items() if k != "head_dim"}, tokens, "ForCausalLM"),
    _of("Cohere", {k: v for k, v in _LLAMA.items() if k != "head_dim"}, tokens, "ForCausalLM"),
    _of("Olmo", {k: v for k, v in _LLAMA.items() if k != "head_dim"}, tokens, "ForCausalLM"),
    _of("Mixtral", {**_LLAMA, **_MIXTRAL}, tokens, "ForCausalLM", isolation="each"),
    _of("Mixtral batched", {**_LLAMA, **_MIXTRAL}, tokens, "ForCausalLM", experts="batched_mm"),
    _of("Qwen2Moe", {**_LLAMA, **_QWEN_MOE}, tokens, "ForCausalLM", isolation="each"),
    _of("Qwen2Moe batched", {**_LLAMA, **_QWEN_MOE}, tokens, "ForCausalLM", experts="batched_mm"),
    _of(
        "Mamba",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "state_size": 4,
            "num_hidden_layers": 2,
            "conv_kernel": 3,
            "time_step_rank": 2,
            "use_cache": False,
            "pad_token_id": 0,
            "use_mambapy": False,
        },
        tokens,
        "ForCausalLM",
    ),
    _of(
        "Mamba2",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "state_size": 4,
            "num_hidden_layers": 1,
            "conv_kernel": 3,
            "num_heads": 4,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "use_cache": False,
            "pad_token_id": 0,
        },
        tokens,
        "ForCausalLM",
    ),
    _of("T5", _T5, translation, "ForConditionalGeneration"),
    _of("MT5", _T5, translation, "ForConditionalGeneration"),
    _of(
        "SwitchTransformers",
        {
            **_T5,
            "num_experts": 2,
            "expert_capacity": 64,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "router_jitter_noise": 0.0,
        },
        translation,
        "ForConditionalGeneration",
        isolation="each",
    ),
    _of("Bart", _BART, translation, "ForConditionalGeneration"),
    _of("MBart", _BART, translation, "ForConditionalGeneration"),
    _of("Pegasus", _BART, translation, "ForConditionalGeneration"),
    _of("Marian", _BART, translation, "MTModel"),
    _of("ViT", _VIT, pictures, "ForImageClassification"),
    _of("DeiT", _VIT, pictures, "ForImageClassification"),
    _of("Beit", _VIT, pictures, "ForImageClassification"),
    _of("Dinov2", _VIT, pictures, "ForImageClassification"),
    _of("ViTMSN", _VIT, pictures, "ForImageClassification"),
    _of(
        "Swin",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 2,
            "drop_path_rate": 0.0,
            "num_labels": 2,
        },
        pictures,
        "ForImageClassification",
    ),
    _of(
        "Swinv2",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 2,
            "drop_path_rate": 0.0,
            "num_labels": 2,
        },
        pictures,
        "ForImageClassification",
    ),
    _of(
        "ConvNext",
        {"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "image_size": 16, "num_labels": 2},
        pictures,
        "ForImageClassification",
    ),
    _of(
        "ConvNextV2",
        {"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "image_size": 16, "num_labels": 2},
        pictures,
        "ForImageClassification",
    ),
    _of(
        "PoolFormer",
        {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_labels": 2, "drop_path_rate": 0.0},
        big_pictures,
        "ForImageClassification",
    ),
    _of(
        "Segformer",
        {
            "hidden_sizes": [8, 8, 8, 8],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 8,
            "drop_path_rate": 0.0,
            "hidden_dropout_prob": 0.0,
            "classifier_dropout_prob": 0.0,
            "num_labels": 2,
        },
        big_pictures,
        "ForImageClassification",
    ),
    _of("Siglip", {**_TOWERS, "num_labels": 2}, pictures, "ForImageClassification"),
    _of("CLIP", {**_TOWERS, "num_labels": 2}, pictures, "ForImageClassification"),
    _of("Wav2Vec2", {**_SOUND, "feat_extract_norm": "layer"}, sounds, "ForSequenceClassification"),
    _of("Hubert", {**_SOUND, "feat_extract_norm": "layer"}, sounds, "ForSequenceClassification"),
    _of(
        "WavLM",
        {**_SOUND, "feat_extract_norm": "layer", "num_buckets": 8, "max_bucket_distance": 16},
        sounds,
        "ForSequenceClassification",
    ),
    _of(
        "Whisper",
        {
            "d_model": 16,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "dropout": 0.0,
            "classifier_proj_size": 8,
            "num_labels": 2,
        },
        mel_features,
        "ForAudioClassification",
    ),
    _of(
        "AST",
        {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "patch_size": 8,
            "frequency_stride": 8,
            "time_stride": 8,
            "max_length": 24,
            "num_mel_bins": 16,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "num_labels": 2,
        },
        spectra,
        "ForAudioClassification",
    ),
    _of(
        "PatchTST",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 24,
            "num_targets": 2,
            "norm_type": "layernorm",
            "attention_dropout": 0.0,
            "use_cls_token": True,
        },
        series,
        "ForClassification",
    ),
)


def pairs() -> Batch:
    """Pictures with their texts."""
    found = text()
    del found["labels"]
    return {**found, "pixel_values": pictures()["pixel_values"]}


JOINING: tuple[Architecture, ...] = (
    _of("CLIP pairs", _TOWERS, pairs, "Model"),
    _of("Siglip pairs", _TOWERS, pairs, "Model"),
    _of(
        "Mixtral with a balanced load", {**_LLAMA, **_MIXTRAL, "output_router_logits": True}, tokens, "ForCausalLM",
        experts="batched_mm",
    ),
)  # fmt: skip
"""Models whose own loss compares the records of a batch with each other, or counts over all of them."""
