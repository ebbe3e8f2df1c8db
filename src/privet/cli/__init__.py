"""The command line: one file per verb. Nothing heavy is imported until a verb runs."""

from privet.cli.program import app, main

__all__ = ["app", "main"]
