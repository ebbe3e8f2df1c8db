"""What a run was and what came out of it, as plain data and as one page."""

from privet.attacks.result import AttackResult
from privet.report.card import write_card
from privet.report.environment import versions
from privet.report.others import find_others
from privet.report.page import render, write_page
from privet.report.record import DataSummary, Epoch, ModelSummary, OtherRun, RunRecord, Stated, SyntheticSummary
from privet.report.renew import renew
from privet.report.weights import load_model, save_weights

__all__ = [
    "AttackResult",
    "DataSummary",
    "Epoch",
    "ModelSummary",
    "OtherRun",
    "RunRecord",
    "Stated",
    "SyntheticSummary",
    "find_others",
    "load_model",
    "render",
    "renew",
    "save_weights",
    "versions",
    "write_card",
    "write_page",
]
