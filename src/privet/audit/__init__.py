"""Audits: a lower bound on epsilon from an attack, beside the claim and the highest bound that the attack could have shown.

Audits know the parts of a private step and no method. The audits of a method are in `privet.methods`.
"""

from privet.audit.black_box import Canaries, mechanism, mislabelled, out_of_distribution, trainer
from privet.audit.bounds import ClaimedForm, ClopperPearson, Counts, GaussianTradeOff, OneRun, SampledStep, ceiling
from privet.audit.laboratory import Seen, Station, laboratory
from privet.audit.one_step import step
from privet.audit.plans import audit_plan, recorded
from privet.audit.result import Audit, Claim
from privet.audit.scores import audit_guesses, audit_scores
from privet.audit.whole_run import training

__all__ = [
    "Audit",
    "Canaries",
    "Claim",
    "ClaimedForm",
    "ClopperPearson",
    "Counts",
    "GaussianTradeOff",
    "OneRun",
    "SampledStep",
    "Seen",
    "Station",
    "audit_guesses",
    "audit_plan",
    "audit_scores",
    "ceiling",
    "laboratory",
    "mechanism",
    "mislabelled",
    "out_of_distribution",
    "recorded",
    "step",
    "trainer",
    "training",
]
