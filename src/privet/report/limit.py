"""The line above which an (epsilon, delta) guarantee lets no membership attack come."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """The largest true positive rate at a false positive rate (Kairouz, Oh and Viswanath 2015, Theorem 2.1).

    Formal guarantees: for an attack on one record, in expectation over the randomness of the training;
    TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta.
    """

    epsilon: float
    delta: float

    def __call__(self, fpr: float) -> float:
        if not math.isfinite(self.epsilon) or self.epsilon > 700:  # e^epsilon is no float any more
            return 1.0
        return min(
            1.0,
            math.exp(self.epsilon) * fpr + self.delta,
            1 - math.exp(-self.epsilon) * (1 - self.delta - fpr),
        )
