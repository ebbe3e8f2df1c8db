"""Names and arguments of version 0.1 that moved: for one version each works with a warning, or says what to write instead."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from privet.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

MODULES = {
    "privet.allocator": "privet.io",
    "privet.locks": "privet.io",
    "privet.methods.dp_pca": "privet.methods.statistics",
    "privet.methods.moments": "privet.methods.class_moments",
    "privet.methods.voted_labels": "privet.methods.pate",
    "privet.models.scattering": "privet.models.features",
    "privet.noise.layer": "privet.noise",
    "privet.privacy.account": "privet.privacy.budget",
    "privet.recipes": "privet.methods.recipe",
}
"""Modules by their old names: importing one gives the names of the module that replaced it."""
NAMES = {
    "privet.audit.published_noise": "privet.methods.published_noise",
    "privet.audit.release": "privet.methods.audit_release",
    "privet.audit.votes": "privet.methods.votes",
    "privet.data.Entry": "privet.data.CatalogEntry",
    "privet.methods.pate.Student": "privet.methods.pate.StudentTraining",
    "privet.methods.pate.Trained": "privet.methods.pate.TrainedByVotes",
    "privet.methods.residual_perturbation.Schedule": "privet.methods.residual_perturbation.SgdSchedule",
    "privet.models.scattering.GroupNormalise": "privet.models.features.GroupNormalize",
    "privet.recipes.Public": "privet.methods.Public",
    "privet.recipes.Settings": "privet.methods.recipe.TrainingSettings",
    "privet.recipes.outputs": "privet.methods.preparation.outputs",
}
"""Functions and classes by the name that they had."""
_RUN = "make a privet.methods.Task, and call privet.runs.run(method_for({method}, task), task, folder)"
_STATE = (
    "what changes from step to step is the state of a {part} now: give it init and update, as privet.{part}.{kind} says"
)
INSTEAD = {
    "privet.clipping.MetricClipping": _STATE.format(part="clipping", kind="Clipping"),
    "privet.clipping.MovingClipping": _STATE.format(part="clipping", kind="Clipping"),
    "privet.compare": "run `privet compare`, or from Python privet.runs.job.Job and privet.runs.race.race",
    "privet.noise.MovingNoise": _STATE.format(part="noise", kind="Noise"),
    "privet.noise.NoisePlan": _STATE.format(part="noise", kind="Noise"),
    "privet.recipes.Fitted": "a method gives back a privet.methods.Outcome",
    "privet.recipes.fit": _RUN.format(method="'dpsgd'"),
    "privet.recipes.fit_pate": _RUN.format(method="'pate'"),
    "privet.recipes.run": _RUN.format(method="'dpsgd'"),
    "privet.recipes.staged": "privet.runs.run writes a run folder that is complete or not there",
    "privet.recipes.run_pate": _RUN.format(method="'pate'"),
    "privet.reproduction": "the tables of papers are in privet.papers: load, gather and write_reproduction",
    "privet.sampling.load_batches": "private.batches() gives the batches of a loop",
    "privet.training.logs.TensorBoardLog": "give --track tensorboard:FOLDER, or privet.integrations.trackers.tracked",
    "privet.synthesis": _RUN.format(method="'moments'"),
}
"""What to write where the old name has no counterpart."""


def moved_names(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that had other names in version 0.1."""

    def find(name: str) -> Any:
        old = f"{module}.{name}"
        if old in NAMES:
            _warn(old, NAMES[old], 3)
            home, _, last = NAMES[old].rpartition(".")
            return getattr(import_module(home), last)
        if old in INSTEAD:  # an AttributeError would lose its sentence in `from module import name`
            raise ImportError(f"{old} is gone: {INSTEAD[old]}.", name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def moved_arguments(
    renamed: Mapping[str, str] | None = None, gone: Mapping[str, str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Also take the arguments that a function had in version 0.1 under another name; explain those that are `gone`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def translated(*args: P.args, **given: P.kwargs) -> R:
            for name, instead in (gone or {}).items():
                if name in given:
                    raise InputError(f"{function.__name__} has no argument {name!r} any more: {instead}.")
            for old, new in (renamed or {}).items():
                if old in given:
                    _warn(f"{function.__name__}({old}=...)", f"{function.__name__}({new}=...)", 3)
                    given[new] = given.pop(old)
            return function(*args, **given)

        translated.old_arguments = {*(renamed or {}), *(gone or {})}  # type: ignore[attr-defined]
        return translated

    return decorate


def joined_arguments(
    joined: Mapping[str, tuple[str, Callable[[Any, Any], Any]]],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Also take arguments of version 0.1 that are parts of another argument now.

    For each of them, by name, the argument that it is a part of, and a function that puts it there: from that argument, or
    None, and the part.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def translated(*args: P.args, **given: P.kwargs) -> R:
            for old, (new, put) in joined.items():
                if old in given:
                    _warn(f"{function.__name__}({old}=...)", f"{function.__name__}({new}=...)", 3)
                    given[new] = put(given.get(new), given.pop(old))
            return function(*args, **given)

        translated.old_arguments = set(joined)  # type: ignore[attr-defined]
        return translated

    return decorate


def _warn(old: str, new: str, level: int) -> None:
    said = f"{old} is deprecated and will be removed in the next version: write {new} instead."
    warnings.warn(said, DeprecationWarning, stacklevel=level)


class OldModules:
    """Finds the modules of version 0.1 that moved, after every other finder has failed."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name in INSTEAD:
            raise ModuleNotFoundError(f"{name} is gone: {INSTEAD[name]}.", name=name)
        return ModuleSpec(name, cls(), is_package=False) if name in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _warn(module.__name__, MODULES[module.__name__], 3)
        now = import_module(MODULES[module.__name__])
        vars(module).update({name: value for name, value in vars(now).items() if not name.startswith("__")})
        vars(module)["__getattr__"] = moved_names(module.__name__)

    @classmethod
    def install(cls) -> None:
        if cls not in sys.meta_path:
            sys.meta_path.append(cls)
