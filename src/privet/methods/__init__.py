"""One file for each published method, and the audits that belong to a method and not to every private step."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privet.audit.plans import LedgerAudit
    from privet.methods.audits_published_noise import published_noise
    from privet.methods.audits_release import release
    from privet.methods.audits_votes import votes

__all__ = ["ledger_audits", "published_noise", "release", "votes"]


def ledger_audits() -> tuple[LedgerAudit, ...]:
    """The audits of methods that `privet.audit.recorded` should try for a ledger (its argument `contributed`)."""
    from privet.methods.audits_published_noise import published_noise_in
    from privet.methods.audits_votes import votes_in

    return votes_in, published_noise_in


def __getattr__(name: str) -> Any:
    """Audits are imported when they are asked for: most users of a method need none."""
    if name in ("published_noise", "release", "votes"):
        return getattr(import_module(f"privet.methods.audits_{name}"), name)
    raise AttributeError(f"module 'privet.methods' has no attribute {name!r}")
