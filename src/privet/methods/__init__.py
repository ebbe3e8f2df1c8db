"""Every method of the library: one file each, one table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from privet.methods.method import (
    METHODS,
    Context,
    DataSpec,
    Method,
    Outcome,
    Power,
    Public,
    Ran,
    Setting,
    Task,
    TrainedModel,
    method_for,
    method_named,
    methods_that_make,
    option,
    plain_settings,
    register,
    settings_of,
    with_settings,
)

if TYPE_CHECKING:
    from privet.audit.plans import LedgerAudit
    from privet.methods.optimized_noise import published_noise
    from privet.methods.statistics import audit_release
    from privet.methods.voting import votes

__all__ = [
    "METHODS",
    "Context",
    "DataSpec",
    "Method",
    "Outcome",
    "Power",
    "Public",
    "Ran",
    "Setting",
    "Task",
    "TrainedModel",
    "audit_release",
    "ledger_audits",
    "method_for",
    "method_named",
    "methods_that_make",
    "option",
    "plain_settings",
    "published_noise",
    "register",
    "settings_of",
    "votes",
    "with_settings",
]

# Importing a file registers its methods. This is the order of every table.
for _file in (
    "dpsgd",
    "optimized_noise",
    "class_moments",
    "pate",
    "dpgan",
    "frozen_noise_layer_gan",
    "noise_layer_gan",
    "residual_perturbation",
    "svrg",
):
    import_module(f"privet.methods.{_file}")

_AUDITS = {"audit_release": "statistics", "published_noise": "optimized_noise", "votes": "voting"}
"""The audits that belong to a method, and not to every private step."""


def __getattr__(name: str) -> Any:
    if name in _AUDITS:
        return getattr(import_module(f"privet.methods.{_AUDITS[name]}"), name)
    raise AttributeError(f"module 'privet.methods' has no attribute {name!r}")


def ledger_audits() -> tuple[LedgerAudit, ...]:
    """The audits of methods that `privet.audit.recorded` tries if only the ledger of a run is known."""
    from privet.methods.optimized_noise import published_noise_in
    from privet.methods.voting import votes_in

    return votes_in, published_noise_in
