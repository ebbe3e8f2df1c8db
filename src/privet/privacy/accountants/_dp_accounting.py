"""Privet's events in dp-accounting's vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet.privacy.accountants._forms import bare, gaussian_multiplier, pure_epsilon
from privet.privacy.events import Event, FixedSizeSampled, GroupedL2, Laplace, PoissonSampled, RandomizedResponse
from privet.privacy.relations import Relation

if TYPE_CHECKING:
    import dp_accounting as dp


def to_dp_event(leaf: Event, relation: Relation) -> dp.DpEvent | None:
    """The same event for dp-accounting, the relation's sensitivity already in the noise multiplier; None if unknown.

    dp-accounting's RDP and PLD do not agree on whether replacing a record doubles the sensitivity, so callers that
    pass `relation` on have to undo the factor where dp-accounting applies it itself.
    """
    # Imported where it is used: it takes longer to load than everything else that an epsilon needs.
    import dp_accounting as dp

    event = bare(leaf)
    sigma = gaussian_multiplier(event, relation)
    if sigma is not None:
        return dp.GaussianDpEvent(sigma) if sigma else dp.NonPrivateDpEvent()
    match event:
        case Laplace():
            epsilon = pure_epsilon(event, relation)
            return dp.LaplaceDpEvent(1 / epsilon) if epsilon else dp.NoOpDpEvent()
        case GroupedL2() as grouped:
            return dp.ZCDpEvent(rho=relation.factor**2 * grouped.rho)
        case RandomizedResponse(noise=noise, buckets=buckets) if relation is Relation.REPLACE_ONE:
            return dp.RandomizedResponseDpEvent(noise, buckets)
        case PoissonSampled(rate=rate, event=inner) if relation is Relation.ADD_REMOVE:
            sampled = to_dp_event(inner, relation)
            return None if sampled is None else dp.PoissonSampledDpEvent(rate, sampled)
        case FixedSizeSampled(size=size, examples=examples, event=inner) if relation is Relation.REPLACE_ONE:
            sampled = to_dp_event(inner, relation)
            return None if sampled is None else dp.SampledWithoutReplacementDpEvent(examples, size, sampled)
    return None
