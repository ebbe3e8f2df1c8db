"""Attacks on what a run releases: each scores every record, higher meaning "was in the training data"."""

from privet.attacks.fitting import Fitting, fresh
from privet.attacks.lira import lira
from privet.attacks.loss_threshold import LossThreshold, membership_scores
from privet.attacks.membership import membership
from privet.attacks.roc import Interval, Operating, Roc
from privet.attacks.shadow import ShadowAttack, quarters

__all__ = [
    "Fitting",
    "Interval",
    "LossThreshold",
    "Operating",
    "Roc",
    "ShadowAttack",
    "fresh",
    "lira",
    "membership",
    "membership_scores",
    "quarters",
]
