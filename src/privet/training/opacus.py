"""The argument names of Opacus, for those who come from there."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from privet.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

SAME = {
    "module": "model",
    "data_loader": "dataset",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "max_physical_batch_size": "physical_batch_size",
}
"""What Opacus calls otherwise and means the same."""
OTHERWISE = {
    "poisson_sampling": "batches are always Poisson-sampled, as the accounting asks; leave it out",
    "grad_sample_mode": "the engine chooses for each layer; leave it out",
    "noise_generator": "give seed=... for an experiment; a release draws its noise from secret keys",
    "batch_first": "a collate function may put the records into any dimension; it is found",
    "secure_mode": "without a seed the noise always comes from secret keys; leave it out",
    "criterion": "the loss stays in your loop; leave it out",
}
"""What has another way here."""


def opacus_names(function: Callable[P, R]) -> Callable[P, R]:
    """Take the names of Opacus too; refuse what has no place here with the way out."""

    @wraps(function)
    def translated(*args: P.args, **given: P.kwargs) -> R:
        for name, way_out in OTHERWISE.items():
            if name in given:
                raise InputError(f"make_private has no argument {name!r}: {way_out}.")
        for theirs, ours in SAME.items():
            if theirs in given:
                if ours in given:
                    raise InputError(f"{theirs} and {ours} are two names of one argument: give one.")
                given[ours] = given.pop(theirs)
        if isinstance(given.get("clipping"), str):
            raise InputError(
                f"clipping={given['clipping']!r}: give max_grad_norm for flat clipping, or a value of privet.clipping, such as "
                f"PerLayerClipping(1.0), AdaptiveClipping(1.0) or AutomaticClipping(1.0)."
            )
        return function(*args, **given)

    return translated
