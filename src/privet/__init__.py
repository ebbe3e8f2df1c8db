"""Privet: private deep learning. Train, account, attack and report in one run."""

__version__ = "0.1.0"
