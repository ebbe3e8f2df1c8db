"""Sampling: which records are in a batch, and the privacy event that follows."""

from privet.sampling.samplers import (
    EMPTY,
    FixedSizeSampling,
    PaddedPoissonSampling,
    PoissonSampling,
    SampleOverflowError,
    Sampling,
    uniform_subset,
)
from privet.sampling.users import Holdings, Users, UserSampling

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
