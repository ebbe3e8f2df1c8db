"""Attacks on what a run releases. A membership attack scores each record, higher if it seems to be a training record."""

from privet.attacks.classifiers import Fitting, fresh, membership_scores
from privet.attacks.inversion import (
    Reversed,
    class_means,
    convolved,
    invert,
    outside,
    reconstruct,
    reverse,
    span,
)
from privet.attacks.membership import Lira, LossThreshold, Rmia, Shadow, ShadowAttack, lira, membership, quarters, rmia
from privet.attacks.pictures import draw_classes, draw_inversion, draw_reversal
from privet.attacks.result import AttackResult, Interval, Operating, Rate, Roc
from privet.attacks.synthetic import (
    Density,
    Distance,
    closeness,
    closest_records,
    density_ratio,
    distance_attack,
    exact_copies,
    linkability,
    singling_out,
)
from privet.attacks.target import Attack, Target, attack_named, attack_names, register

__all__ = [
    "Attack",
    "AttackResult",
    "Density",
    "Distance",
    "Fitting",
    "Interval",
    "Lira",
    "LossThreshold",
    "Operating",
    "Rate",
    "Reversed",
    "Rmia",
    "Roc",
    "Shadow",
    "ShadowAttack",
    "Target",
    "attack_named",
    "attack_names",
    "class_means",
    "closeness",
    "closest_records",
    "convolved",
    "density_ratio",
    "distance_attack",
    "draw_classes",
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
    "register",
    "reverse",
    "rmia",
    "singling_out",
    "span",
]
