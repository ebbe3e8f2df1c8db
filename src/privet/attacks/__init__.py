"""Attacks on what a run releases: each scores every record, higher meaning "was in the training data"."""

from privet.attacks.loss_threshold import LossThreshold, membership_scores
from privet.attacks.roc import Interval, Roc

__all__ = ["Interval", "LossThreshold", "Roc", "membership_scores"]
