"""Artificial data for release: by which method, for which students, in which folder."""

from privet.synthesis.registry import METHODS, choose, method_named
from privet.synthesis.release import read_release
from privet.synthesis.run import run

__all__ = ["METHODS", "choose", "method_named", "read_release", "run"]
