"""Releases with added noise: each states its noise relative to the largest contribution of one record."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privet.errors import InputError
from privet.privacy.events._base import Event, require_number, require_whole


@dataclass(frozen=True)
class Gaussian(Event):
    """A sum of contributions of L2 norm at most C, plus N(0, (noise_multiplier * C)^2) in every coordinate.

    Formal guarantees: C is the most that one record adds to the sum (replacing a record moves it by 2C, which the
    accountants apply). A noise multiplier of 0 is no privacy: epsilon is infinite.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Laplace(Event):
    """A sum of contributions of L1 norm at most C, plus Laplace noise of scale noise_multiplier * C.

    Formal guarantees: 1/noise_multiplier pure epsilon for adding or removing a record, twice that for replacing one.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class IsotropicL2(Event):
    """A sum of contributions of L2 norm at most C in `dimension` coordinates, plus noise of density ~ exp(-|z|_2 / s).

    `noise_multiplier` is s/C.

    Formal guarantees: 1/noise_multiplier pure epsilon; the exact privacy loss is that of a shift of length C
    (the density along any line is log-concave, so the loss is monotone in the shift's length).
    """

    noise_multiplier: float
    dimension: int

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)
        require_whole(self, "dimension", self.dimension)


@dataclass(frozen=True)
class GroupedL2(Event):
    """A sum of contributions of L2 norm at most C, plus noise of density ~ exp(-sum_g a_g |z_g|_2).

    `rates` are the a_g * C, one for each group of coordinates. Product Laplace noise has one
    group for each coordinate.

    Formal guarantees: pure epsilon sqrt(sum rates^2) (Cauchy-Schwarz), and zCDP with rho = max(rates)^2 / 2 (the groups
    are independent and group g is (a_g t_g)-DP for a shift t_g, with sum t_g^2 <= C^2).
    """

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.rates, tuple) or not self.rates:
            raise InputError("rates of GroupedL2 must be a non-empty tuple, one rate for each group.")
        for rate in self.rates:
            require_number(self, "rates", rate)

    @property
    def epsilon(self) -> float:
        return math.hypot(*self.rates)

    @property
    def rho(self) -> float:
        return max(self.rates) ** 2 / 2


@dataclass(frozen=True)
class NoisyVotes(Event):
    """Counts of votes of teachers trained on disjoint records, plus noise of scale `noise_multiplier` votes per count.

    The noise is "gaussian" (standard deviation) or "laplace" (scale); the winner or the noisy counts may be released.

    Formal guarantees: one record, added, removed or replaced, changes one teacher, whose vote moves from one label to
    another: sensitivity sqrt 2 in L2 and 2 in L1, for either relation.
    """

    noise_multiplier: float
    noise: str = "gaussian"

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)
        if self.noise not in ("gaussian", "laplace"):
            raise InputError(f"noise of NoisyVotes must be 'gaussian' or 'laplace', and is {self.noise!r}.")


@dataclass(frozen=True)
class NoisyTopCount(Event):
    """The votes for the label that has most of them, plus N(0, noise_multiplier^2); the teachers are as in `NoisyVotes`.

    Formal guarantees: one record, added, removed or replaced, changes one vote, which moves the largest count by at
    most 1: sensitivity 1, for either relation.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class CovarianceRelease(Event):
    """X^T X for rows of L2 norm at most 1, plus N(0, noise_multiplier^2) in each entry of a triangle (DP-PCA).

    Formal guarantees: Frobenius sensitivity 1 for adding or removing a row and sqrt 2 for replacing one.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)
