"""Audits: a lower bound on epsilon from an attack, beside the claim and the highest bound the attack could have shown."""

from privet.audit.black_box import mechanism
from privet.audit.bounds import ClopperPearson, Counts, GaussianTradeOff, OneRun, ceiling
from privet.audit.canaries import Canaries, mislabelled, out_of_distribution
from privet.audit.claim import Claim
from privet.audit.guessing import audit_guesses
from privet.audit.laboratory import Seen, Station, laboratory
from privet.audit.one_step import step
from privet.audit.result import Audit
from privet.audit.threshold import audit_scores
from privet.audit.trained import trainer
from privet.audit.whole_run import training

__all__ = [
    "Audit",
    "Canaries",
    "Claim",
    "ClopperPearson",
    "Counts",
    "GaussianTradeOff",
    "OneRun",
    "Seen",
    "Station",
    "audit_guesses",
    "audit_scores",
    "ceiling",
    "laboratory",
    "mechanism",
    "mislabelled",
    "out_of_distribution",
    "step",
    "trainer",
    "training",
]


def __getattr__(name):  # until the audits of methods have moved
    import importlib

    where = {"published_noise": "published", "recorded": "recorded", "release": "releases", "votes": "voting"}
    if name in where:
        return getattr(importlib.import_module(f"privet.audit.{where[name]}"), name)
    raise AttributeError(name)
