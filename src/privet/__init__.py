"""Privet: private deep learning. Train, account, attack and report in one run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from privet.io.moved import OldModules

__version__ = "0.1.0"

if TYPE_CHECKING:
    from privet.gradients import fix
    from privet.io import keep_freed_memory
    from privet.privacy import DataAccount
    from privet.training import BudgetExhausted, Performance, make_private

_PUBLIC = {
    "BudgetExhausted": "privet.training",
    "DataAccount": "privet.privacy",
    "Performance": "privet.training",
    "fix": "privet.gradients",
    "keep_freed_memory": "privet.io",
    "make_private": "privet.training",
}
_ROOMS = (
    "attacks",
    "audit",
    "clipping",
    "data",
    "gradients",
    "methods",
    "models",
    "noise",
    "papers",
    "privacy",
    "randomness",
    "report",
    "runs",
    "sampling",
    "training",
)
_OLD_ROOMS = ("compare", "recipes", "reproduction", "synthesis")

__all__ = ["BudgetExhausted", "DataAccount", "Performance", "__version__", "fix", "keep_freed_memory", "make_private"]


def __getattr__(name: str) -> Any:
    """Names are imported when they are asked for, so that `privet --help` does not wait for PyTorch."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name in (*_ROOMS, *_OLD_ROOMS):
        return import_module(f"privet.{name}")
    raise AttributeError(f"module 'privet' has no attribute {name!r}")


OldModules.install()


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, *_ROOMS])
