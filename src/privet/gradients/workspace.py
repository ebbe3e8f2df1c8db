"""Memory that is used again and again: fresh memory costs a page fault for every 4 KiB."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from torch import Tensor

_KEPT_BYTES = 2**21


class _Workspace(threading.local):
    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Room for a tensor of the dtype and on the device of `like`, not filled; the next call for the name takes it back."""
        size = math.prod(shape)
        kept = self.kept.get(name)
        if kept is None or kept.numel() < size or kept.dtype != like.dtype or kept.device != like.device:
            kept = like.new_empty(size)
            if size * like.element_size() <= _KEPT_BYTES:
                self.kept[name] = kept
        return kept[:size].view(shape)


workspace = _Workspace()
