"""Which records are in a batch, and what that is worth."""

from privet.sampling.batches import load_batches
from privet.sampling.fixed_size import FixedSizeSampling
from privet.sampling.padded import PaddedPoissonSampling
from privet.sampling.poisson import PoissonSampling, uniform_subset
from privet.sampling.users import Holdings, Users

__all__ = [
    "FixedSizeSampling",
    "Holdings",
    "PaddedPoissonSampling",
    "PoissonSampling",
    "Users",
    "load_batches",
    "uniform_subset",
]
