"""The generators that everybody draws from: torch's, NumPy's and Python's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


class Streams:
    """Where the generators are when it is made."""

    def __init__(self) -> None:
        self._torch, self._python, self._numpy = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def put_back(self) -> None:
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)

    def have_moved(self) -> bool:
        """Whether somebody has drawn since."""
        arrays = zip(self._numpy, numpy.random.get_state(), strict=True)
        return (
            not torch.equal(self._torch, torch.get_rng_state())
            or self._python != random.getstate()
            or not all(numpy.array_equal(one, other) for one, other in arrays)
        )


@contextmanager
def same_streams() -> Iterator[Streams]:
    """Afterwards the generators are where they were before."""
    streams = Streams()
    try:
        yield streams
    finally:
        streams.put_back()
