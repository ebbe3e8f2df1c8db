"""Sampling: which records are in a batch, and the privacy event that follows."""

from typing import TYPE_CHECKING

from privet.io.moved import moved_names
from privet.sampling.samplers import (
    EMPTY,
    FixedSizeSampling,
    Holdings,
    PaddedPoissonSampling,
    PoissonSampling,
    SampleOverflowError,
    Sampling,
    Users,
    UserSampling,
    uniform_subset,
)

__all__ = [
    "EMPTY",
    "FixedSizeSampling",
    "Holdings",
    "PaddedPoissonSampling",
    "PoissonSampling",
    "SampleOverflowError",
    "Sampling",
    "UserSampling",
    "Users",
    "uniform_subset",
]

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
