"""Runs: one runner for every method, attacks and audits of finished runs, and comparisons."""

from privet.runs.after import attack_run, audit_run, rebuilt
from privet.runs.runner import Measuring, run

__all__ = ["Measuring", "attack_run", "audit_run", "rebuilt", "run"]
