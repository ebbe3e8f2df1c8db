"""A recipe: what to train on which records, with which settings, and where each setting came from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

from privet import models
from privet.data import Dataset
from privet.errors import InputError
from privet.io import MisfitError, build, from_yaml, read_text, user_path
from privet.io.registry import PREFIX, no_such

OWN_MODEL = "own-model"
"""The recipe for models without a recipe of their own."""
ORIGINS = ("paper", "training split", "carried over", "convention", "public")
"""Where a setting can come from. Never from test records.

- paper: the publication that the recipe follows states it;
- training split: chosen on a part of the training records that was held out. It depends on the data;
- carried over: taken from the recipe of another data set that is named;
- convention: a usual value that nobody tuned;
- public: follows from public facts, such as the shape of the records.
"""


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. Noise that is not given here is calibrated to the budget.

    Attributes:
        sampling_rate: the probability that a record is in a step's batch.
        clip: the norm to which each record's gradient is clipped.
        learning_rate: of the optimizer, on the mean clipped gradient.
        steps, epochs: the length of the training; give one of the two. With `noise_multiplier`, the largest length.
        momentum: of the optimizer.
        average: the decay of the moving average of the parameters; 0 uses the last parameters.
        learning_rate_end: the learning rate falls linearly to this value over `decay_epochs`, and then stays constant.
        noise_multiplier: fixed noise, as stated in a paper; then the budget sets the number of steps.
        mean_noise: noise of the release of the features' mean, which is then subtracted; 0 means none.
        whitening_noise: noise of the two releases of the features' second moments; 0 means no whitening.
        whitening_power: features are multiplied by second moments to this power.
        components_noise: noise of DP-PCA.
    """

    sampling_rate: float
    clip: float
    learning_rate: float
    steps: int = 0
    epochs: float = 0.0
    momentum: float = 0.0
    average: float = 0.0
    learning_rate_end: float = 0.0
    decay_epochs: float = 0.0
    noise_multiplier: float = 0.0
    mean_noise: float = 0.0
    whitening_noise: float = 0.0
    whitening_power: float = -0.25
    components_noise: float = 0.0

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.epochs > 0):
            raise MisfitError("the settings need either steps or epochs")


@dataclass(frozen=True)
class Network:
    """A model of `privet.models`, and its arguments that do not follow from the records."""

    name: str
    arguments: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Fits:
    """The records for which a recipe is the default: data sets by name, or all of a kind."""

    data: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class Origin:
    """Where a setting came from, with a note."""

    source: str
    note: str


@dataclass(frozen=True)
class Recipe:
    """One file of the folder of recipes."""

    name: str
    title: str
    why: str
    data: str
    """The data set for which its settings were chosen."""
    fits: Fits
    model: Network
    settings: dict[str, float]
    budgets: tuple[dict[str, float], ...]
    origins: dict[str, Origin]

    def __post_init__(self) -> None:
        if not self.budgets or not all(row.get("epsilon", 0) > 0 for row in self.budgets):
            raise MisfitError("'budgets' needs at least one row, each with its epsilon")
        stated = set(self.settings).union(*self.budgets) - {"epsilon"}
        check_origins(self.origins, stated | {"model"})
        if self.model.name not in models.MODELS and not self.model.name.startswith(PREFIX):
            raise MisfitError(f"'model.name' is {self.model.name!r}, which is no model of privet.models")
        for epsilon in self.epsilons:
            self.at(epsilon)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The budgets that the recipe was made for."""
        return tuple(row["epsilon"] for row in self.budgets)

    def with_arguments(self, **arguments: int) -> Recipe:
        """The same recipe with other arguments of its model."""
        network = dataclasses.replace(self.model, arguments=self.model.arguments | arguments)
        return dataclasses.replace(self, model=network)

    def with_model(self, name: str) -> Recipe:
        """The same recipe with another model: one of `privet.models`, or `py:package.module:Net`."""
        if not name.startswith(PREFIX):
            models.MODELS[name]  # an unknown name is refused with the known ones
        return dataclasses.replace(self, model=Network(name))

    def at(self, epsilon: float) -> TrainingSettings:
        """The settings for a budget: those of the nearest one that the recipe was made for, in ratio."""
        nearest = min(self.budgets, key=lambda row: abs(math.log(row["epsilon"] / epsilon)))
        given = self.settings | {name: value for name, value in nearest.items() if name != "epsilon"}
        for name, other in _NEEDS.items():
            if name in given and not given.get(other):
                raise MisfitError(f"'{name}' is not used without '{other}': state that too, or leave it out")
        whole = {f.name for f in dataclasses.fields(TrainingSettings) if f.type == "int"}
        return build(TrainingSettings, {name: int(value) if name in whole else value for name, value in given.items()})


_NEEDS = {"learning_rate_end": "decay_epochs", "whitening_power": "whitening_noise"}
"""Settings that have no effect without another one."""


def check_origins(origins: dict[str, Origin], stated: set[str], also: Iterable[str] = ()) -> None:
    """Raise unless every stated setting has an origin, and every origin belongs to a stated setting or to one of `also`."""
    for name in sorted(stated):
        if name not in origins:
            raise MisfitError(f"'origins' does not say where '{name}' came from")
    for name, origin in origins.items():
        if name not in stated and name not in also:
            raise MisfitError(f"'origins' says where '{name}' came from, but no setting has this name")
        if origin.source not in ORIGINS:
            raise MisfitError(f"'origins.{name}.source' is {origin.source!r} and should be one of {', '.join(ORIGINS)}")


@cache
def names() -> tuple[str, ...]:
    """The recipes that come with Privet."""
    files = resources.files("privet.methods").joinpath("recipes").iterdir()
    return tuple(sorted(Path(file.name).stem for file in files if file.name.endswith(".yaml")))


def load(name: str) -> Recipe:
    """A recipe by its name, or from a .yaml file of the user."""
    if name in names():
        return _read(
            resources.files("privet.methods").joinpath("recipes", f"{name}.yaml").read_text(encoding="utf-8"), name
        )
    path = user_path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise InputError(f"{no_such('recipe', name, names())}; or give the path of a .yaml file.")
    return _read(read_text(path), name)


def _read(text: str, name: str) -> Recipe:
    try:
        made = build(Recipe, from_yaml(text))
    except MisfitError as error:
        raise InputError(f"The recipe {name} does not fit: {error}.") from None
    if made.model.name.startswith(PREFIX):
        raise InputError(
            f"The recipe {name} names code to import, {made.model.name}: name that model yourself "
            f"(--model {made.model.name}, or model={made.model.name!r})."
        )
    return made


def kind_of(shape: tuple[int, ...]) -> str:
    """The kind of records with this shape, for the choice of a recipe."""
    if len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 8:
        return "images"
    return "vectors"


def chosen(name: str, dataset: Dataset, model: str = "") -> tuple[Recipe, str]:
    """The named recipe, or the one that fits the records; and why it is this one.

    A `model` replaces that of the recipe. If no recipe is named, the one for models without a recipe is used: settings of another
    model, and releases of its features, would not fit.
    """
    if not name and not model:
        return pick(dataset)
    found, why = (load(name), "you asked for it") if name else (load(OWN_MODEL), "the model is your own")
    return (found.with_model(model) if model else found), why


def pick(dataset: Dataset) -> tuple[Recipe, str]:
    """The recipe for a data set, and why it is this one: by name, else by the shape of its records."""
    recipes = [load(name) for name in names()]
    for recipe in recipes:
        if dataset.name in recipe.fits.data:
            return recipe, f"it was made for {dataset.name}"
    kind = kind_of(dataset.shape) if dataset.target is None else "targets"
    shape = "x".join(map(str, dataset.shape))
    found = next(recipe for recipe in recipes if recipe.fits.kind == kind)
    if dataset.target is not None:
        return found, f"{dataset.target.name} is a number"
    return found, f"no recipe was made for {dataset.name}, and records of {shape} are {kind}"
