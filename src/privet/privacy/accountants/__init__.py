"""Accountants by name."""

from __future__ import annotations

from privet.errors import InputError
from privet.privacy.accountants.base import ACCOUNTANTS, Accountant, UnsupportedEventError
from privet.privacy.accountants.composition import Basic, Optimal, PublishedStrong, Strong
from privet.privacy.accountants.pld import PLD, ReferencePLD
from privet.privacy.accountants.rdp import GDP, RDP, MomentsAccountant

for _one in (PLD, RDP, MomentsAccountant, Strong, PublishedStrong, Optimal, Basic, GDP, ReferencePLD):
    ACCOUNTANTS.register(_one)


def accountant_names() -> tuple[str, ...]:
    """The short names of all accountants, those of plug-ins included."""
    return ACCOUNTANTS.names()


def accountant_named(accountant: str | Accountant) -> Accountant:
    """The accountant with this short name; an accountant is returned as it is."""
    if isinstance(accountant, Accountant):
        return accountant
    if not isinstance(accountant, str):
        raise InputError(f"An accountant is given by its name, not by {accountant!r}.")
    lower = accountant.lower()
    return ACCOUNTANTS[lower if lower in ACCOUNTANTS else accountant]


__all__ = ["ACCOUNTANTS", "Accountant", "UnsupportedEventError", "accountant_named", "accountant_names"]
