"""Numbers of the sources that follow from a formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from privet.privacy import Gaussian, PoissonSampled, Relation, accountant_named
from privet.privacy.residual import Theorem1


def _steps(accountant: str) -> Callable[..., float]:
    """The epsilon of so many steps of DP-SGD by an accountant."""

    def epsilon(rate: float, noise_multiplier: float, steps: float, delta: float) -> float:
        event = PoissonSampled(rate, Gaussian(noise_multiplier)) * int(steps)
        return accountant_named(accountant).spent(event, delta, Relation.ADD_REMOVE).epsilon

    return epsilon


def _theorem1(
    gamma: float, steps: float, batch_size: float, records: float, blocks: float, delta: float, bound: float
) -> float:
    whole = {"steps": int(steps), "batch_size": int(batch_size), "records": int(records), "blocks": int(blocks)}
    return Theorem1(**whole, delta=delta, bound=bound).epsilon_by_stream(gamma)


FORMULAS: Mapping[str, Callable[..., float]] = {
    "moments": _steps("moments"),
    "strong-published": _steps("strong-published"),
    "theorem-1": _theorem1,
}
