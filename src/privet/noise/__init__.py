"""Noise: the only consumer of a bounded sum."""

from privet.noise.additive import AdditiveNoise, Mechanism, Noise, SteadyNoise
from privet.noise.bound import Crossover, lower_bound
from privet.noise.gaussian import ComparedGaussianNoise, GaussianNoise, NoiseLayer, ScheduledNoise
from privet.noise.grouped import GroupedL2Noise, MovingShapeNoise, PublishedShapeNoise, ShapedNoise
from privet.noise.pure import IsotropicL2Noise, ProductLaplaceNoise, StaircaseNoise

__all__ = [
    "AdditiveNoise",
    "ComparedGaussianNoise",
    "Crossover",
    "GaussianNoise",
    "GroupedL2Noise",
    "IsotropicL2Noise",
    "Mechanism",
    "MovingShapeNoise",
    "Noise",
    "NoiseLayer",
    "ProductLaplaceNoise",
    "PublishedShapeNoise",
    "ScheduledNoise",
    "ShapedNoise",
    "StaircaseNoise",
    "SteadyNoise",
    "lower_bound",
]
