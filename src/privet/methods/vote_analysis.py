"""What votes cost at the records that there are: Renyi privacy by the data-dependent theorem (Papernot et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp
from torch import Tensor

from privet.privacy.spent import round_up

if TYPE_CHECKING:
    from privet.methods.voting import Confidence

Array = npt.NDArray[np.float64]

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)


@dataclass(frozen=True)
class DataDependent:
    """Epsilon at these records alone. It is a function of the votes that nothing protects: internal, not for release.

    Formal guarantees: the divergence of the answers on these records from those on any neighbouring ones is bounded by
    it. It is no bound for other records, and it is no differential privacy unless it is released by a mechanism of its
    own (smooth sensitivity), which is not done here.
    """

    epsilon: float
    delta: float

    def __str__(self) -> str:
        return (
            f"epsilon = {round_up(self.epsilon)} at delta = {self.delta:g} at these records alone (data-dependent RDP of the "
            "votes); computed from the votes without protection: internal, not for release"
        )


def analyse(counts: Tensor, asked: Tensor, noise: float, confidence: Confidence | None, delta: float) -> DataDependent:
    """The data-dependent epsilon of the winners at `asked`, and of the checks at every query where there were any."""
    from dp_accounting.rdp import rdp_privacy_accountant

    orders = np.array(ORDERS, dtype=np.float64)
    total = divergences(log_upset(counts[asked].numpy().astype(np.float64), noise), noise**2, orders).sum(0)
    if confidence is not None:
        top = counts.max(1).values.numpy().astype(np.float64)
        upset = log_ndtr(-np.abs(top - confidence.threshold) / confidence.noise)
        total += divergences(upset, 2 * confidence.noise**2, orders).sum(0)
    epsilon, _ = rdp_privacy_accountant.compute_epsilon(list(ORDERS), total, delta)
    return DataDependent(float(epsilon), delta)


def log_upset(counts: Array, noise: float) -> Array:
    """The logarithm of a bound of the probability that noise makes another class than the largest win, for each row.

    The union over the others, and at most 1 - 1/classes: none is likelier than the one with most votes.
    """
    ordered = np.sort(counts, axis=1)
    gaps = ordered[:, -1:] - ordered[:, :-1]
    union = logsumexp(log_ndtr(-gaps / (math.sqrt(2) * noise)), axis=1)
    bound: Array = np.minimum(union, math.log1p(-1 / counts.shape[1]))
    return bound


def divergences(log_q: Array, scale: float, orders: Array) -> Array:
    """Renyi divergences, a row for each release and a column for each order (Theorem 6 and Proposition 10).

    Args:
        log_q: the logarithms of the probabilities of all outcomes but the likeliest.
        scale: the mechanism's divergence of order a is at most a / scale whatever the data: noise^2 for votes, which have
            sensitivity sqrt 2, and 2 noise^2 for the largest count.
        orders: above 1.

    Formal guarantees: never above a / scale.
    """
    anyway = np.broadcast_to(orders / scale, (len(log_q), len(orders)))
    log_q = log_q[:, None]
    second = np.sqrt(np.maximum(scale * -log_q, 1e-300))
    first = second + 1
    epsilon_first, epsilon_second = first / scale, second / scale
    with np.errstate(all="ignore"):
        largest = (second - 1) * epsilon_second - second * (np.log(first / second) + np.log(second / (second - 1)))
        holds = (second > 1) & (orders <= first) & (log_q <= largest) & (log_q + epsilon_second < 0)
        log_p = _log_1_minus(log_q)
        log_a = log_p - _log_1_minus((log_q + epsilon_second) * (second - 1) / second)
        log_b = epsilon_first - log_q / (first - 1)
        power = orders - 1
        found = np.logaddexp(log_p + power * log_a, log_q + power * log_b) / power
    found = np.where(holds & np.isfinite(found), np.maximum(found, 0.0), anyway)
    bound: Array = np.where(np.isneginf(log_q), 0.0, np.minimum(found, anyway))
    return bound


def _log_1_minus(log_x: Array) -> Array:
    """log(1 - x) from log x < 0."""
    difference: Array = np.where(log_x > -math.log(2), np.log(-np.expm1(log_x)), np.log1p(-np.exp(log_x)))
    return difference
