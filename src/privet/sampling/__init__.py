"""Which records are in a batch, and what that is worth."""

from privet.sampling.batches import load_batches
from privet.sampling.fixed_size import FixedSizeSampling
from privet.sampling.padded import PaddedPoissonSampling
from privet.sampling.poisson import PoissonSampling, uniform_subset

__all__ = ["FixedSizeSampling", "PaddedPoissonSampling", "PoissonSampling", "load_batches", "uniform_subset"]
