"""The exact privacy loss of isotropic noise with density ~ exp(-|z|_2) in d dimensions, shifted by tau.

With |z| = r ~ Gamma(d) and a uniform direction, L = |z + tau e| - |z| >= t exactly if the cosine between z and e is at least
c = (t^2 + 2 r t - tau^2) / (2 r tau), whose tail is an incomplete beta function (Joseph, Kulesza and Yu 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import betainc, gammainc, gammainccinv, gammaincinv

from privet.privacy.pld.pairs import Array, Span

_SMOOTH_NODES = 64
_KINKED_NODES = 192
_TAIL = 1e-17
"""The radii beyond which so little lies are left out, on either side."""
_ROUNDING = 1e-13


@dataclass(frozen=True)
class IsotropicPair:
    """Noise of density ~ exp(-|z|_2) in `dimension` >= 2 coordinates, moved by a vector of length `shift`.

    Formal guarantees: dominates every shift of at most that length: along a line the density is log-concave, so the loss is
    monotone in the shift. The masses come from a quadrature over the radius, not from a closed form: 1e-13 of the largest
    loss, in either direction, stands for its rounding.
    """

    shift: float
    dimension: int
    symmetric: bool = True
    infinite: tuple[float, float] = (0.0, 0.0)

    def span(self, tail: float) -> Span:
        return Span(-self.shift, self.shift, low_closed=True, high_closed=True)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        above = self._above(edges)
        p = -np.diff(np.concatenate(([1.0], above, [0.0])))
        # Q is P mirrored: Q[L <= -t] = P[L >= t].
        below = self._above(-edges)
        q = np.diff(np.concatenate(([0.0], below, [1.0])))
        p, q = np.maximum(p, 0.0), np.maximum(q, 0.0)
        p[np.searchsorted(edges, self.shift)] += _ROUNDING
        q[np.searchsorted(edges, -self.shift)] += _ROUNDING
        return p, q

    def _above(self, losses: Array) -> Array:
        """P[L > t] for each t."""
        # In many dimensions nearly all losses are far smaller than the largest one; what lies beyond is in the rounding.
        reach = _reach(self.shift, self.dimension)
        out = np.where(losses < 0, 1.0, 0.0)
        inside = np.flatnonzero((losses >= -reach) & (losses < reach))
        for some in np.split(inside, range(4096, len(inside), 4096)):
            out[some] = _share_above(losses[some], self.shift, self.dimension)
        return np.asarray(np.minimum.accumulate(np.clip(out, 0.0, 1.0)) if losses[0] <= losses[-1] else out)


def _share_above(losses: Array, shift: float, dimension: int) -> Array:
    """P[L > t] for each t between -shift and shift, by quadrature over the radius.

    With a radius below (shift - t) / 2 the loss is above t in every direction; there the integrand has a kink.
    """
    low, high = _ends(dimension)
    t, half = losses[:, None], (dimension - 1) / 2
    if shift <= low:
        radius, weight = _smooth_radii(dimension)
        return np.asarray(betainc(half, half, _share_of_directions(t, radius, shift)) @ weight)
    kink = np.clip((shift - t) / 2, low, high)
    places, weights = _double_exponential()
    radius = kink + (high - kink) * places
    weight = (high - kink) * weights * _density(radius, dimension)
    above = (weight * betainc(half, half, _share_of_directions(t, radius, shift))).sum(1)
    return np.asarray(gammainc(dimension, kink[:, 0]) + above)


def _share_of_directions(t: Array, radius: Array, shift: float) -> Array:
    """(1 - c) / 2 for the least cosine c at which the loss is above t: factored, so that it is exact near t = shift."""
    return np.asarray(np.clip((shift - t) * (shift + t + 2 * radius) / (4 * radius * shift), 0.0, 1.0))


@lru_cache(maxsize=256)
def _reach(shift: float, dimension: int) -> float:
    """A loss that is exceeded with a probability of less than 1e-17, by halving; at most `shift`."""
    halves = shift * np.exp2(-np.arange(40.0))
    above = _share_above(halves, shift, dimension)
    return float(halves[above < 1e-17].min(initial=shift))


def _ends(dimension: int) -> tuple[float, float]:
    return float(gammaincinv(dimension, _TAIL)), float(gammainccinv(dimension, _TAIL))


@lru_cache(maxsize=64)
def _smooth_radii(dimension: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights for r ~ Gamma(dimension)."""
    low, high = _ends(dimension)
    nodes, weights = np.polynomial.legendre.leggauss(_SMOOTH_NODES)
    radius = (high - low) / 2 * nodes + (low + high) / 2
    weight = weights * _unscaled(radius, dimension)
    return radius, weight / weight.sum()


@lru_cache(maxsize=1)
def _double_exponential() -> tuple[Array, Array]:
    """Nodes and weights between 0 and 1 that no kink at an end disturbs (Takahasi and Mori)."""
    u = np.linspace(-3.6, 3.6, _KINKED_NODES)
    places = 1 / (1 + np.exp(-np.pi * np.sinh(u)))
    return places, (u[1] - u[0]) * np.pi * np.cosh(u) * places * (1 - places)


def _density(radius: Array, dimension: int) -> Array:
    return _unscaled(radius, dimension) / _total(dimension)


@lru_cache(maxsize=64)
def _total(dimension: int) -> float:
    low, high = _ends(dimension)
    places, weights = _double_exponential()
    return float((high - low) * weights @ _unscaled(low + (high - low) * places, dimension))


def _unscaled(radius: Array, dimension: int) -> Array:
    """The density of Gamma(dimension) over its largest value: the logarithms themselves would cancel in many dimensions."""
    mode = dimension - 1
    away = (radius - mode) / mode
    return np.asarray(np.exp(mode * (np.log1p(away) - away)))
