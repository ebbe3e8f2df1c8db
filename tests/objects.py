"""Keeping what exists out of the garbage collector's lists, where thousands of short runs would look through it."""

from __future__ import annotations

import ctypes
import gc

from torch import Tensor


def freeze() -> None:
    """Keep everything that exists, but for tensors, out of the lists of the garbage collector.

    A run looks on these lists for the tensors that exist before its first batch, so tensors stay.
    """
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    gc.freeze()
    for tensor in tensors:
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(tensor))
        ctypes.pythonapi.PyObject_GC_Track(ctypes.py_object(tensor))
