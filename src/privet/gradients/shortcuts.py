"""Questions about records that other libraries ask in order to save work, and the answer that saves none.

Hugging Face's models look whether a batch has padding at all, and leave out the mask if it has none. One record would decide
that for all. Here the answer is always the same, so that nothing depends on it: the mask is made.
"""

from __future__ import annotations

import sys

_ANSWERS = {
    ("transformers.masking_utils", "_ignore_causal_mask_sdpa"): False,
    ("transformers.masking_utils", "_ignore_bidirectional_mask_sdpa"): False,
    ("transformers.masking_utils", "create_recurrent_attention_mask"): False,
    ("transformers.modeling_attn_mask_utils", "_ignore_causal_mask_sdpa"): False,
    ("transformers.modeling_attn_mask_utils", "_prepare_4d_attention_mask_for_sdpa"): False,
}
"""By the module and the name of the function that asks."""


def answer() -> bool | None:
    """The answer that never depends on records, where such a function asks for a truth value; None elsewhere."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("privet.", "torch.")):
            return _ANSWERS.get((module, frame.f_code.co_name))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
