"""Where the accounts of data sets are kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from privet.io.given import user_path

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
