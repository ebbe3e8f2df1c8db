"""Accountants by name."""

from __future__ import annotations

from privet.errors import InputError
from privet.privacy.accountants._base import Accountant, UnsupportedEventError
from privet.privacy.accountants.composition import Basic, Optimal, PublishedStrong, Strong
from privet.privacy.accountants.gdp import GDP
from privet.privacy.accountants.moments import Moments
from privet.privacy.accountants.pld import PLD
from privet.privacy.accountants.rdp import RDP
from privet.privacy.accountants.reference import ReferencePLD

_ACCOUNTANTS: dict[str, Accountant] = {
    one.key: one
    for one in (PLD(), RDP(), Moments(), Strong(), PublishedStrong(), Optimal(), Basic(), GDP(), ReferencePLD())
}


def accountant_names() -> tuple[str, ...]:
    """The short names of all accountants."""
    return tuple(_ACCOUNTANTS)


def accountant_named(accountant: str | Accountant) -> Accountant:
    """The accountant of that name; an accountant itself is passed through."""
    if isinstance(accountant, Accountant):
        return accountant
    try:
        return _ACCOUNTANTS[accountant.lower()]
    except (KeyError, AttributeError):
        known = ", ".join(_ACCOUNTANTS)
        raise InputError(f"There is no accountant {accountant!r}; the accountants are {known}.") from None


__all__ = ["Accountant", "UnsupportedEventError", "accountant_named", "accountant_names"]
