"""The methods by which a recipe can be trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from privet.errors import InputError
from privet.methods import dpsgd, optimized_noise, residual_perturbation

CLAIMED = "only claimed"


@dataclass(frozen=True)
class Method:
    """A way of training.

    Attributes:
        key: its short name.
        title: its name on a page, which says so where its epsilon is only claimed.
        train: called as `privet.methods.dpsgd.train` is.
        states_noise: whether a noise multiplier that a recipe states is meant for it.
        accountant: whose theorem calibrates the noise.
    """

    key: str
    title: str
    train: Callable[..., dpsgd.Trained]
    states_noise: bool = False
    accountant: str = "pld"


_OPTIMISED = "Optimised additive noise (Xiang et al. 2019)"
_ALL = (
    Method("dpsgd", "DP-SGD (Abadi et al. 2016)", dpsgd.train, states_noise=True),
    Method("dpsgd-advanced", "DP-SGD calibrated by advanced composition", dpsgd.train, accountant="strong"),
    Method("optimized-noise", f"{_OPTIMISED}, grouped", optimized_noise.train),
    Method(
        "optimized-noise-isotropic",
        f"{_OPTIMISED}, isotropic",
        partial(optimized_noise.train, form="isotropic"),
    ),
    Method(
        "optimized-noise-elliptical",
        f"{_OPTIMISED}, elliptical clipping with Gaussian noise",
        partial(optimized_noise.train, form="elliptical"),
    ),
    Method(
        "optimized-noise-published",
        f"{_OPTIMISED}, as published, by advanced composition: {CLAIMED}",
        partial(optimized_noise.train, as_published=True),
        accountant="strong",
    ),
    Method("residual-dpsgd", "DP-SGD, residual perturbation as a regulariser", residual_perturbation.train_by_dpsgd),
)
METHODS = {method.key: method for method in _ALL}


def method_named(key: str) -> Method:
    if key not in METHODS:
        raise InputError(f"There is no method {key!r}: there are {', '.join(METHODS)}.")
    return METHODS[key]
