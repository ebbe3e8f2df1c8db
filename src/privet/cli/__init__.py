"""The command line: one file per verb. Nothing heavy is imported until a verb runs."""

from privet.cli import (
    account,
    attack,
    audit,
    budget,
    compare,
    demo,
    listed,
    report,
    reproduce,
    synthesize,
    train,
    tune,
)
from privet.cli.program import app, main

# Importing a verb's file registers the verb.
VERBS = (account, attack, audit, budget, compare, demo, listed, report, reproduce, synthesize, train, tune)

__all__ = ["VERBS", "app", "main"]
