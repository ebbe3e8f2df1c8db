"""The C library's memory allocator, and what it costs to give memory back."""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Numbers of glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for the next step. Returns whether the C library can (glibc does).

    glibc gives large freed blocks back to the system, which hands them out again page by page, filled with zeros: in a
    training step that frees what the next one needs, up to a quarter of the time (`benchmarks/freed_memory.py`). What is
    kept counts as the process's own until it ends.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_MMAP_MAX, 0) and library.mallopt(_TRIM_THRESHOLD, 2**31 - 1))
