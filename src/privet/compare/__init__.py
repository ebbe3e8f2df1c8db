"""Every method that fits the data, at one budget, on the same split: trained, attacked, audited and laid side by side."""

from privet.compare.entrants import ENTRANTS, Entrant, entrants_for
from privet.compare.job import Job
from privet.compare.race import Lane, race
from privet.compare.result import finish

__all__ = ["ENTRANTS", "Entrant", "Job", "Lane", "entrants_for", "finish", "race"]
