"""Which records are in a batch, and what that is worth."""

from privet.sampling.batches import load_batches
from privet.sampling.poisson import PoissonSampling, uniform_subset

__all__ = ["PoissonSampling", "load_batches", "uniform_subset"]
