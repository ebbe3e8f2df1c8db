"""Which line of the user's code an operation comes from."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_OURS = str(Path(__file__).parent.parent)
_TORCH = str(Path(torch.__file__).parent)


def source_line() -> str:
    """The file's name and the line of the innermost call that is neither torch's nor this library's; empty without one."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_OURS, _TORCH, "<")):
            return f"{Path(path).name}, line {frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def is_called_by(package: str) -> bool:
    """Whether the innermost call that is not this library's is in a package of torch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith(package)
