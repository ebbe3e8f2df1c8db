"""The record of a run, and the page, card and figures that are made from it."""

from privet.attacks.result import AttackResult
from privet.report.card import write_card
from privet.report.others import find_others
from privet.report.page import render, renew, write_page
from privet.report.record import (
    DataSummary,
    Epoch,
    MethodSummary,
    ModelSummary,
    OtherRun,
    RunRecord,
    Stated,
    SyntheticSummary,
    TuningSummary,
    load_model,
    versions,
)
from privet.training.checkpoint import save_weights

__all__ = [
    "AttackResult",
    "DataSummary",
    "Epoch",
    "MethodSummary",
    "ModelSummary",
    "OtherRun",
    "RunRecord",
    "Stated",
    "SyntheticSummary",
    "TuningSummary",
    "find_others",
    "load_model",
    "render",
    "renew",
    "save_weights",
    "versions",
    "write_card",
    "write_page",
]
