"""Every table and figure of the papers that can be run here: our figures beside the published ones, and why they differ."""

from privet.papers.page import Reproduction, gather, markdown, section, write_reproduction
from privet.papers.results import Measurement, merge, read
from privet.papers.table import Paper, PaperTable, load, names, papers

__all__ = [
    "Measurement",
    "Paper",
    "PaperTable",
    "Reproduction",
    "gather",
    "load",
    "markdown",
    "merge",
    "names",
    "papers",
    "read",
    "section",
    "write_reproduction",
]
