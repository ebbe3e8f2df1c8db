"""The exact privacy loss of isotropic noise with density ~ exp(-|z|_2) in d dimensions, shifted by tau.

With |z| = r ~ Gamma(d) and a uniform direction, L = |z + tau e| - |z| >= t exactly if the cosine between z and e is at least
c = (t^2 + 2 r t - tau^2) / (2 r tau), whose tail is an incomplete beta function (Joseph, Kulesza and Yu 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.special import betainc, gammainccinv, gammaincinv, gammaln

from privet.privacy.pld.pairs import Array, Span

_NODES = 240
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
    """P[L > t] for each t between -shift and shift, by quadrature."""
    radius, weight = _radii(dimension)
    t, half = losses[:, None], (dimension - 1) / 2
    cosine = (shift**2 - t**2 - 2 * radius * t) / (2 * radius * shift)
    return np.asarray(betainc(half, half, np.clip((cosine + 1) / 2, 0.0, 1.0)) @ weight)


@lru_cache(maxsize=256)
def _reach(shift: float, dimension: int) -> float:
    """A loss that is exceeded with a probability of less than 1e-17, by halving; at most `shift`."""
    halves = shift * np.exp2(-np.arange(40.0))
    above = _share_above(halves, shift, dimension)
    return float(halves[above < 1e-17].min(initial=shift))


@lru_cache(maxsize=64)
def _radii(dimension: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights for r ~ Gamma(dimension), in pieces between its quantiles."""
    low = float(gammaincinv(dimension, 1e-17))
    high = float(gammainccinv(dimension, 1e-17))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES // 4)
    cuts = np.linspace(low, high, 5)
    radius = np.concatenate([(b - a) / 2 * nodes + (a + b) / 2 for a, b in pairwise(cuts)])
    weight = np.concatenate([(b - a) / 2 * weights for a, b in pairwise(cuts)])
    density = np.exp((dimension - 1) * np.log(radius) - radius - gammaln(dimension))
    return radius, weight * density
