"""How large delta may be, and which delta to take where the user names none."""

from __future__ import annotations

import warnings

from privet.errors import InputError, PrivetWarning

LARGEST = 1e-5
"""The default delta of small data sets."""


def usual_delta(count: int) -> float:
    """The default delta for `count` units of privacy: a power of ten with delta * count <= 0.6, at most 1e-5.

    A delta of 1 / count allows a mechanism that publishes one unit whole. 0.6 is the share of the first paper on DP-SGD
    (1e-5 for 60,000 records). `count` must be public, since the delta is part of the statement.
    """
    if count < 1:
        raise InputError(f"There must be at least one record, not {count}.")
    digits = 5
    while 10 * count > 6 * 10**digits:  # whole numbers: 1e-5 * 60,000 is more than 0.6 in floating point
        digits += 1
    return float(f"1e-{digits}")


def delta_warning(delta: float, count: int, unit: str = "record") -> str:
    """A sentence for the user where delta is 1 / count or more; empty where it is less.

    Args:
        delta: of the statement.
        count: how many units of privacy there are, as far as that is public.
        unit: what one of them is called.
    """
    if count < 1 or delta * count < 1:
        return ""
    return (
        f"delta = {delta:g} is not below 1/N = {1 / count:g}, N being the number of {unit}s. By convention delta is well "
        f"below 1/N: a mechanism that publishes a random {unit} whole has delta = 1/N. Take {usual_delta(count):g} or less."
    )


def warn_of_delta(delta: float, count: int, unit: str = "record") -> None:
    """Warn (`PrivetWarning`) where delta is 1 / count or more."""
    if said := delta_warning(delta, count, unit):
        warnings.warn(said, PrivetWarning, stacklevel=4)  # the caller of make_private
