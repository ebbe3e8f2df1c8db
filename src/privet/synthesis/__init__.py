"""Artificial data for release: by which method, for which students, in which folder."""

from privet.synthesis.registry import METHODS, check_name, choose, method_named
from privet.synthesis.release import read_release
from privet.synthesis.run import default_students, run

__all__ = ["METHODS", "check_name", "choose", "default_students", "method_named", "read_release", "run"]
