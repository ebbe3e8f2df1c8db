"""What released gradients say of the next ones: post-processing, free of cost."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from privet.errors import InputError

Tensors = Mapping[str, Tensor]


def moving_average(before: Tensors | None, now: Tensors, decay: float) -> dict[str, Tensor]:
    """``decay * before + (1 - decay) * now``, beginning at 0: only its shape is meant, not its size."""
    if before is None:
        return {name: (1 - decay) * tensor for name, tensor in now.items()}
    return {name: torch.lerp(tensor, before[name], decay) for name, tensor in now.items()}


def floored(w: Tensor, share: float = 1e-3) -> Tensor:
    """The magnitudes of w, none below `share` of their median; all 1 where the median is 0."""
    w = w.abs()
    if not bool(w.isfinite().all()):
        raise InputError("The weights w are not finite everywhere.")
    least = share * float(w.median())
    return w.clamp(min=least) if least > 0 else torch.ones_like(w)


def joined(tensors: Tensors) -> Tensor:
    """All coordinates in one vector, in the order of the mapping."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def divided(vector: Tensor, like: Tensors) -> dict[str, Tensor]:
    """The vector that `joined` made, as tensors again."""
    parts = vector.split([tensor.numel() for tensor in like.values()])
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}


def check_decay(decay: float) -> None:
    if not 0 <= decay < 1:
        raise InputError(f"The decay of a moving average is at least 0 and below 1, and this is {decay!r}.")
