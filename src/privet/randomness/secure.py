"""Random numbers for releases: a secret key, expanded by a cryptographic function of the standard library."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CHUNK = 2**15
"""Numbers are made in chunks of so many, which stay in the cache."""


class SecureSource:
    """SHAKE-128 over a key of 256 bits from the operating system and a counter.

    Formal guarantees: who does not know the key cannot tell the numbers from random ones with less than about 2^128 work,
    whatever part of them is known. The key is in this object only: it is never written, and the object cannot be pickled or
    copied, and a forked process draws a new key, so that no number is ever drawn twice.
    """

    def __init__(self) -> None:
        self._new_key()

    def _new_key(self) -> None:
        self._key, self._requests, self._process = secrets.token_bytes(32), 0, os.getpid()

    def coins(self, count: int, probability: float) -> Tensor:
        """Which of `count` independent coins show heads: each with `probability`, rounded down to a multiple of 2^-64."""
        if probability >= 1:
            return torch.ones(count, dtype=torch.bool)
        # A product with a power of two is exact. The upper half of 64 bits decides but once in 2^32 coins.
        upper, lower = divmod(int(probability * 2.0**64), 2**32)
        words = self._words(count)
        heads = words < upper
        ties = np.flatnonzero(words == upper)
        if len(ties):
            heads[ties] = self._words(len(ties)) < lower
        return torch.from_numpy(heads)

    def integers(self, count: int) -> Tensor:
        """Uniform integers of 64 bits, as int64."""
        return torch.from_numpy(np.frombuffer(self._bytes(8 * count), np.int64).copy())

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers as float64 (Box and Muller), from radii of 53 bits and angles of 32; none exceeds 8.66."""
        result = torch.empty(count, dtype=torch.float64)
        for start in range(0, count, _CHUNK):
            chunk = result[start : start + _CHUNK]
            half = (len(chunk) + 1) // 2
            stream = self._bytes(12 * half)
            radius, angle = np.frombuffer(stream, np.int64, half), np.frombuffer(stream, np.int32, half, 8 * half)
            # A uniform number in (-1/2, 1/2), symmetric; adding a half is exact where it matters, next to 0.
            uniform = torch.from_numpy(radius >> 11).double().add_(0.5).mul_(2.0**-53)
            length = uniform.add_(0.5).log_().mul_(-2).sqrt_()
            turned = torch.from_numpy(angle.astype(np.float64)).add_(0.5).mul_(math.pi * 2.0**-31)
            torch.mul(length, turned.cos(), out=chunk[:half])
            rest = len(chunk) - half
            torch.mul(length[:rest], turned[:rest].sin(), out=chunk[half:])
        return result

    def _words(self, count: int) -> npt.NDArray[np.uint32]:
        return np.frombuffer(self._bytes(4 * count), np.uint32)

    def _bytes(self, count: int) -> bytes:
        """The next `count` bytes of the stream: every request has its own number, so none comes twice."""
        if self._process != os.getpid():
            self._new_key()  # a forked process must not draw what its parent draws
        self._requests += 1
        return hashlib.shake_128(self._key + self._requests.to_bytes(16, "little")).digest(count)

    def __reduce__(self) -> NoReturn:
        raise TypeError("A secret key is neither written nor copied: draw a new one with SecureSource().")
