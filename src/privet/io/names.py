"""Names of the files in the folder of a run or of a comparison, and the folders of a user's accounts and stopped work.

Old folders have the same names: do not change them.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from privet.io.given import user_path

LEDGER = "ledger.jsonl"
"""Every event of the run; the privacy statement is computed from it."""
RECORD = "record.json"
"""The settings, results, attacks and audits of the run."""
MODEL = "model.safetensors"
"""The weights of the released model."""
MODEL_CODE = "model.py"
"""The released model as Python source that needs torch only."""
CARD, CARD_JSON = "CARD.md", "card.json"
"""The privacy card, for people and for programs."""
PAGE = "report.html"
"""The report as one self-contained page."""
LOOP = "loop.json"
"""The description of a user's own loop, from which its record is made."""
STEPS = "steps.csv"
"""The history of a training, one row for each logged step."""
DATA_KEY = "data.key"
"""The secret key that marks the data set of a run without revealing its fingerprint."""
IDENTITY = "identity.json"
"""The method, the settings and the records of a run that is not finished, so that it is continued with the same ones."""

TABLE, SCHEMA, ARRAYS, PICTURES = "train.csv", "schema.json", "synthetic.npz", "train.zip"
"""Released synthetic data: a table with its schema, or arrays; images also as PNG files, which `datasets.load_dataset` reads."""

JOURNAL = "released.txt"
"""Digests of the releases of a seeded run, so that a repeated step is recognized."""
NEWEST_HEAD = "newest-head"
"""The newest hash of the ledger, so that a shortened ledger is noticed."""
LOCK = "lock"
"""Held by the process that writes the run."""
UNFINISHED = "unfinished"
"""A folder with what an attack or an audit that was stopped had finished; deleted when it is done."""

COMPARISON, JOB, ROW, CLOCK = "compare.json", "job.json", "row.json", "clock.txt"
"""A comparison: its result, its settings, the result of one run, and the time used so far."""

ACCOUNT = ".account"
"""The ending of an account's file."""


def accounts_folder() -> Path:
    """The folder of accounts that are given by name: ``$PRIVET_ACCOUNTS``, else the platform's folder for a user's data."""
    if named := os.environ.get("PRIVET_ACCOUNTS"):
        return user_path(named)
    return Path(platformdirs.user_data_dir("privet")) / "accounts"


def seen_folder() -> Path:
    """The folder of the newest copies that this machine has seen: ``$PRIVET_STATE``, else the platform's folder for state."""
    named = os.environ.get("PRIVET_STATE")
    return (user_path(named) if named else Path(platformdirs.user_state_dir("privet"))) / "accounts"


def unfinished_folder() -> Path:
    """The folder of stopped work that has no folder of its own: ``$PRIVET_STATE``, else the platform's folder for state."""
    return seen_folder().parent / "unfinished"


def account_names() -> list[str]:
    """The names of the accounts in the folder of accounts."""
    return sorted(path.stem for path in accounts_folder().glob(f"*{ACCOUNT}"))
