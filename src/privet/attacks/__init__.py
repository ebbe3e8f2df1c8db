"""Attacks on what a run releases: each scores every record, higher meaning "was in the training data"."""

from privet.attacks.fitting import Fitting, fresh
from privet.attacks.gradient_span import outside, reconstruct, span
from privet.attacks.inversion import class_means, draw_inversion, invert
from privet.attacks.lira import lira
from privet.attacks.loss_threshold import LossThreshold, membership_scores
from privet.attacks.membership import membership
from privet.attacks.reversal import Reversed, convolved, draw_reversal, reverse
from privet.attacks.roc import Interval, Operating, Roc
from privet.attacks.shadow import ShadowAttack, quarters
from privet.attacks.synthetic import closest_records, density_ratio, distance_attack, exact_copies
from privet.attacks.tables import linkability, singling_out

__all__ = [
    "Fitting",
    "Interval",
    "LossThreshold",
    "Operating",
    "Reversed",
    "Roc",
    "ShadowAttack",
    "class_means",
    "closest_records",
    "convolved",
    "density_ratio",
    "distance_attack",
    "draw_inversion",
    "draw_reversal",
    "exact_copies",
    "fresh",
    "invert",
    "linkability",
    "lira",
    "membership",
    "membership_scores",
    "outside",
    "quarters",
    "reconstruct",
    "reverse",
    "singling_out",
    "span",
]
