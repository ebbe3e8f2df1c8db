"""Audits: a lower bound on epsilon from an attack, beside the claim and the highest bound the attack could have shown."""

from privet.audit.black_box import mechanism
from privet.audit.bounds import ClopperPearson, Counts, GaussianTradeOff, OneRun, ceiling
from privet.audit.claim import Claim
from privet.audit.one_step import step
from privet.audit.result import Audit

__all__ = ["Audit", "Claim", "ClopperPearson", "Counts", "GaussianTradeOff", "OneRun", "ceiling", "mechanism", "step"]
