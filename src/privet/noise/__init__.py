"""Noise: the only consumer of a bounded sum."""

from privet.noise.gaussian import GaussianNoise

__all__ = ["GaussianNoise"]
