"""Sources of random numbers, secret or seeded; the streams of a run; and draws from either kind of source."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

_CHUNK = 2**16
"""Secure normal numbers per chunk: small enough for the processor's cache."""
_ZEROS = bytes(12 * (_CHUNK // 2))


class SecureSource:
    """Random numbers for releases: AES-256 in counter mode, with a key of its own for each request.

    The key of a request is SHAKE-128 of its number and of a secret key of 256 bits from the operating system.

    Formal guarantees: if SHAKE-128 and AES-256 are what they are believed to be, nobody without the key can distinguish the
    numbers from truly random ones with less than about 2^128 work, even if they know many of them; a cipher in counter mode
    adds at most b^2 / 2^129 for a request of b blocks of 16 bytes, which is 2^-100 for a chunk of normal numbers. Only
    this object has the key: it is never written, the object cannot be pickled or copied, and a forked process draws a new
    key, so no number is ever drawn twice.
    """

    def __init__(self, key: bytes | None = None) -> None:
        """`key` is one that the processes of a training share: each draws the same numbers and uses its share of them."""
        self._new_key()
        if key is not None:
            if len(key) != 32:
                raise ValueError("A secret key has 32 bytes.")
            self._key = key

    def _new_key(self) -> None:
        self._key, self._requests, self._process = secrets.token_bytes(32), 0, os.getpid()
        self._stream = bytearray(len(_ZEROS))
        self._chunk = torch.empty(_CHUNK, dtype=torch.float64)

    def coins(self, count: int, probability: float) -> Tensor:
        """Flip `count` independent coins, each heads with `probability` rounded down to a multiple of 2^-64."""
        if probability >= 1:
            return torch.ones(count, dtype=torch.bool)
        # A product with a power of two is exact. The upper 32 of 64 bits decide, except once in 2^32 coins.
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

    def normal(self, count: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Standard normal numbers as float64 (Box and Muller), from radii of 53 bits and angles of 32 bits; at most 8.66.

        Of `count` numbers, those from `start` to `stop`: processes that share the key draw disjoint parts of one draw, and
        after it all of them are at the same place of the stream.
        """
        stop = count if stop is None else stop
        result = torch.empty(stop - start, dtype=torch.float64)
        for first, chunk in self.normal_chunks(count, start, stop):
            result[first - start : first - start + len(chunk)] = chunk
        return result

    def normal_chunks(self, count: int, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """The numbers of `normal` in pieces that fit into the cache, each with its place among the `count`.

        Each piece is memory that the next one uses again.
        """
        for place in range(0, count, _CHUNK):
            first, last = max(start, place), min(stop, place + _CHUNK)
            if first >= last:
                self._pass_over()
                continue
            chunk = self._chunk[: min(count - place, _CHUNK)]
            self._fill_normal(chunk)
            yield first, chunk[first - place : last - place]

    def _fill_normal(self, chunk: Tensor) -> None:
        half = (len(chunk) + 1) // 2
        self._cipher().update_into(memoryview(_ZEROS)[: 12 * half], self._stream)
        radius = torch.frombuffer(self._stream, dtype=torch.int64, count=half)
        angle = torch.frombuffer(self._stream, dtype=torch.int32, count=half, offset=8 * half)
        # A symmetric uniform number in (-1/2, 1/2); adding 1/2 is exact where it matters, near 0.
        uniform = (radius >> 11).double().add_(0.5).mul_(2.0**-53)
        length = uniform.add_(0.5).log_().mul_(-2).sqrt_()
        turned = angle.double().add_(0.5).mul_(math.pi * 2.0**-31)
        torch.mul(length, turned.cos(), out=chunk[:half])
        rest = len(chunk) - half
        torch.mul(length[:rest], turned[:rest].sin_(), out=chunk[half:])

    def _words(self, count: int) -> npt.NDArray[np.uint32]:
        return np.frombuffer(self._bytes(4 * count), np.uint32)

    def _bytes(self, count: int) -> bytes:
        """The next `count` bytes of the stream."""
        stream: bytes = self._cipher().update(bytes(count))
        return stream

    def _cipher(self) -> CipherContext:
        """The key stream of the next request. Every request has its own number and key, so no bytes come twice."""
        self._pass_over()
        key = hashlib.shake_128(self._key + self._requests.to_bytes(16, "little")).digest(32)
        return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def _pass_over(self) -> None:
        """Use up the number of one request."""
        if self._process != os.getpid():
            self._new_key()  # a forked process must not draw what its parent draws
        self._requests += 1

    def __reduce__(self) -> NoReturn:
        raise TypeError("A secret key is neither written nor copied: draw a new one with SecureSource().")


Source = torch.Generator | SecureSource
"""A torch generator makes a run repeatable; a secure source makes it fit for release."""

SEEDED, SECRET = "reproducible, not for release", "secret keys"
"""Descriptions of the randomness of a run."""


@dataclass(frozen=True, eq=False)
class Randomness:
    """The streams of one run: sampling and noise.

    Formal guarantees: the streams are independent of each other and of torch's global generator. With a seed the run can be
    repeated but must not be released: anybody who knows the seed can subtract the noise, and torch's generator is not
    cryptographic, so its state can be recovered from its output. Without a seed both streams have secret keys.
    """

    sampling: Source
    noise: Source
    seed: int | None

    @classmethod
    def of(cls, seed: int | None, key: bytes | None = None, noise_key: bytes | None = None) -> Randomness:
        """The streams of a seeded run, or of a release.

        `key` is a secret key that several processes share for sampling, and `noise_key` another one that they share for the noise
        where each draws a part of it.
        """
        if seed is None:
            if key is not None and key == noise_key:
                raise ValueError("Sampling and noise need two keys.")
            return cls(SecureSource(key), SecureSource(noise_key), None)
        return cls(_seeded("sampling", seed), _seeded("noise", seed), seed)

    @classmethod
    def apart(cls, purpose: str, seed: int | None) -> Randomness:
        """Separate streams for one purpose of a run, so that no two purposes of a seeded run draw the same noise."""
        if seed is None:
            return cls.of(None)
        return cls.of(int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:4], "big"))

    @property
    def reproducible(self) -> bool:
        return self.seed is not None

    @property
    def mark(self) -> str:
        """The description of the randomness that belongs beside epsilon."""
        return SEEDED if self.reproducible else SECRET

    def state(self) -> dict[str, Tensor]:
        """The state of the streams of a seeded run; secret keys are never part of it."""
        streams = {"sampling": self.sampling, "noise": self.noise}
        return {name: stream.get_state() for name, stream in streams.items() if isinstance(stream, torch.Generator)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue the streams of a seeded run from `state`."""
        for name, stream in (("sampling", self.sampling), ("noise", self.noise)):
            if isinstance(stream, torch.Generator):
                stream.set_state(state[name])


def before_training(seed: int | None) -> Randomness:
    """Separate streams for releases before training: a step must not draw the same noise again."""
    return Randomness.apart("before training", seed)


def _seeded(name: str, seed: int) -> torch.Generator:
    """A generator with a hashed seed, unrelated to those of other seeds and to torch.manual_seed(seed)."""
    digest = hashlib.sha256(f"privet {name} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


CHUNK = 2**16
"""Numbers drawn and used per chunk: small enough for the processor's cache."""


def fill_normal(chunk: Tensor, source: Source) -> Tensor:
    """Fill a vector with standard normal numbers."""
    if isinstance(source, SecureSource):
        return chunk.copy_(source.normal(len(chunk)))
    return chunk.normal_(generator=source)


def fill_laplace(chunk: Tensor, source: Source) -> Tensor:
    """Fill a vector with Laplace numbers of scale 1: the sign and the logarithm of a uniform integer.

    1/2 is added to the integer, so the result is never 0 or infinite. With 32 bits (seeded) it is at most 22.2, and with 64
    bits (secure) at most 44.4.
    """
    if isinstance(source, SecureSource):
        integers, bits = source.integers(len(chunk)).double().add_(0.5), 63
    else:
        words = torch.empty((len(chunk) + 1) // 2, dtype=torch.int64, device=chunk.device)
        words.random_(-(2**63), None, generator=source)
        integers, bits = words.view(torch.int32)[: len(chunk)].to(chunk.dtype).add_(0.5), 31
    chunk.copy_(integers.abs().mul_(2.0**-bits).log_())
    return chunk.copysign_(integers)


def uniform(source: Source, count: int) -> Tensor:
    """Uniform numbers in (0, 1), as float64."""
    if isinstance(source, SecureSource):
        return (source.integers(count) >> 11).double().add_(0.5).mul_(2.0**-53).add_(0.5)
    return torch.rand(count, dtype=torch.float64, generator=source, device=source.device).clamp_(min=2.0**-54)


def permutation(count: int, source: Source) -> Tensor:
    """A random order of ``range(count)``, by sorting 64-bit integers, of which two are equal once in 2^64 pairs."""
    if isinstance(source, SecureSource):
        return source.integers(count).argsort()
    return torch.randperm(count, generator=source)


def gamma(shapes: Tensor, source: Source) -> Tensor:
    """One gamma number of scale 1 for each shape (all at least 1) as float64 (Marsaglia and Tsang 2000)."""
    d = shapes.double() - 1 / 3
    c = 1 / (9 * d).sqrt()
    result = torch.empty_like(d)
    open_ = torch.arange(len(d), device=d.device)
    while len(open_):
        x = fill_normal(torch.empty(len(open_), dtype=torch.float64, device=d.device), source)
        v = (1 + c[open_] * x).pow_(3)
        u = uniform(source, len(open_)).to(d.device)
        good = (v > 0) & (u.log() < x.square() / 2 + d[open_] * (1 - v + v.clamp(min=1e-300).log()))
        result[open_[good]] = (d[open_] * v)[good]
        open_ = open_[~good]
    return result
