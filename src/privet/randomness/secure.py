"""Random numbers for releases: a secret key, expanded by a cryptographic function of the standard library."""

from __future__ import annotations

import hashlib
import math
import secrets
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

_CHUNK = 2**16
"""Numbers are made in chunks of so many, which stay in the cache."""


class SecureSource:
    """SHAKE-128 over a key of 256 bits from the operating system and a counter.

    Formal guarantees: who does not know the key cannot tell the numbers from random ones with less than about 2^128 work,
    whatever part of them is known. The key is in this object only: it is never written, and the object cannot be pickled or
    copied, so that no number is ever drawn twice.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._requests = 0

    def integers(self, count: int) -> Tensor:
        """Uniform integers of 64 bits, as int64."""
        parts = []
        for start in range(0, count, _CHUNK):
            self._requests += 1
            message = self._key + self._requests.to_bytes(16, "little")
            stream = hashlib.shake_128(message).digest(8 * min(_CHUNK, count - start))
            parts.append(np.frombuffer(stream, dtype=np.int64))
        return torch.from_numpy(np.concatenate(parts)) if parts else torch.empty(0, dtype=torch.int64)

    def coins(self, count: int, probability: float) -> Tensor:
        """Which of `count` independent coins show heads: each with `probability`, rounded down to a multiple of 2^-64."""
        if probability >= 1:
            return torch.ones(count, dtype=torch.bool)
        # A product with a power of two is exact, so the threshold is.
        return self.integers(count) < int(probability * 2.0**64) - 2**63

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers as float64 (Box and Muller), from uniform numbers of 53 bits; none is beyond 8.66."""
        result = torch.empty(count, dtype=torch.float64)
        for start in range(0, count, _CHUNK):
            chunk = result[start : start + _CHUNK]
            half = (len(chunk) + 1) // 2
            # In (-1/2, 1/2), symmetric; adding a half is exact where it matters, next to 0.
            uniform = (self.integers(2 * half) >> 11).double().add_(0.5).mul_(2.0**-53)
            radius = uniform[:half].add_(0.5).log_().mul_(-2).sqrt_()
            angle = uniform[half:].mul_(2 * math.pi)
            torch.mul(radius, angle.cos(), out=chunk[:half])
            rest = len(chunk) - half
            torch.mul(radius[:rest], angle[:rest].sin(), out=chunk[half:])
        return result

    def __reduce__(self) -> NoReturn:
        raise TypeError("A secret key is neither written nor copied: draw a new one with SecureSource().")
