"""One file for each published method, and the audits that belong to a method and not to every private step."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privet.methods.audits_published_noise import published_noise
    from privet.methods.audits_release import release
    from privet.methods.audits_votes import votes

__all__ = ["published_noise", "release", "votes"]


def __getattr__(name: str) -> Any:
    """Audits are imported when they are asked for: most users of a method need none."""
    if name in __all__:
        return getattr(import_module(f"privet.methods.audits_{name}"), name)
    raise AttributeError(f"module 'privet.methods' has no attribute {name!r}")
