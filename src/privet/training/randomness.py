"""Generators for sampling and for noise: separate, and explicit."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Randomness:
    """The generators of one run. With a seed the run can be repeated and must not be released: who knows the seed can
    subtract the noise."""

    sampling: torch.Generator
    noise: torch.Generator
    reproducible: bool

    @classmethod
    def of(cls, seed: int | None) -> Randomness:
        if seed is None:
            return cls(_seeded(secrets.randbits(63)), _seeded(secrets.randbits(63)), reproducible=False)
        # Distinct streams from one seed: the noise must not repeat the sampling's draws.
        return cls(_seeded(2 * seed), _seeded(2 * seed + 1), reproducible=True)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
