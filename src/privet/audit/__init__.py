"""Audits: a lower bound on epsilon from an attack, beside the claim and the highest bound that the attack could have shown.

Audits know the parts of a private step and no method. The audits of a method are in `privet.methods`.
"""

from typing import TYPE_CHECKING

from privet.audit.black_box import Canaries, mechanism, mislabelled, out_of_distribution, trainer
from privet.audit.bounds import ClaimedForm, ClopperPearson, Counts, GaussianTradeOff, OneRun, SampledStep, ceiling
from privet.audit.laboratory import Seen, Station, laboratory
from privet.audit.plans import RunPlan, audit_plan, audit_run_plan, beside, recorded
from privet.audit.result import Audit, Claim, audit_guesses, audit_scores
from privet.audit.white_box import step, training
from privet.io.moved import moved_names

__all__ = [
    "Audit",
    "Canaries",
    "Claim",
    "ClaimedForm",
    "ClopperPearson",
    "Counts",
    "GaussianTradeOff",
    "OneRun",
    "RunPlan",
    "SampledStep",
    "Seen",
    "Station",
    "audit_guesses",
    "audit_plan",
    "audit_run_plan",
    "audit_scores",
    "beside",
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

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
