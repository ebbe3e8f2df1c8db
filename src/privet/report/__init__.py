"""What a run was and what came out of it, as plain data and as one page."""

from privet.report.environment import versions
from privet.report.page import render, write_page
from privet.report.record import AttackResult, DataSummary, Epoch, ModelSummary, RunRecord, SyntheticSummary
from privet.report.weights import load_model, save_weights

__all__ = [
    "AttackResult",
    "DataSummary",
    "Epoch",
    "ModelSummary",
    "RunRecord",
    "SyntheticSummary",
    "load_model",
    "render",
    "save_weights",
    "versions",
    "write_page",
]
