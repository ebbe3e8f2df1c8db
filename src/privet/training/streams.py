"""The generators that everybody draws from: torch's, NumPy's and Python's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy
import torch


def kept_streams() -> Callable[[], None]:
    """Gives a function that puts the generators back to where they are now."""
    own, plain, arrays = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def put_back() -> None:
        torch.set_rng_state(own)
        random.setstate(plain)
        numpy.random.set_state(arrays)
        if devices:
            torch.cuda.set_rng_state_all(devices)

    return put_back


@contextmanager
def same_streams() -> Iterator[Callable[[], None]]:
    """Afterwards the generators are where they were before; the function that it gives puts them there at once."""
    put_back = kept_streams()
    try:
        yield put_back
    finally:
        put_back()
