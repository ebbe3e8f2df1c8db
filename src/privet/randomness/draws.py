"""Normal, Laplace and gamma numbers, and permutations, from either kind of source."""

from __future__ import annotations

import torch
from torch import Tensor

from privet.randomness.secure import SecureSource
from privet.randomness.streams import Source

CHUNK = 2**16
"""Numbers are made and used in chunks of so many, which stay in the cache."""


def fill_normal(chunk: Tensor, source: Source) -> Tensor:
    """Fill a vector with standard normal numbers."""
    if isinstance(source, SecureSource):
        return chunk.copy_(source.normal(len(chunk)))
    return chunk.normal_(generator=source)


def fill_laplace(chunk: Tensor, source: Source) -> Tensor:
    """Fill a vector with Laplace numbers of scale 1: the sign and the logarithm of a uniform integer.

    A half is added to the integer, so that neither 0 nor infinity can come out; of 32 bits (seeded), none is beyond 22.2, and
    of 64 bits (secure), none is beyond 44.4.
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
    """A random order of ``range(count)``: by sorting integers of 64 bits, of which two are equal once in 2^64 pairs."""
    if isinstance(source, SecureSource):
        return source.integers(count).argsort()
    return torch.randperm(count, generator=source)


def gamma(shapes: Tensor, source: Source) -> Tensor:
    """One gamma number of scale 1 for each shape, all of at least 1, as float64 (Marsaglia and Tsang 2000)."""
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
