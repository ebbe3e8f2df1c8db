"""Noise: the only consumer of a bounded sum."""

from typing import TYPE_CHECKING

from privet.io.moved import moved_names
from privet.noise.additive import AdditiveNoise, Crossover, Mechanism, Noise, SteadyNoise, lower_bound
from privet.noise.gaussian import ComparedGaussianNoise, GaussianNoise, NoiseLayer, ScheduledNoise
from privet.noise.pure import (
    GroupedL2Noise,
    IsotropicL2Noise,
    MovingShapeNoise,
    ProductLaplaceNoise,
    PublishedShapeNoise,
    ShapedNoise,
    StaircaseNoise,
)

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

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
