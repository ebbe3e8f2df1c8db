"""The methods that can be compared: each knows which records it fits and how to run on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from privet.compare import runs
from privet.compare.job import Job
from privet.data import Dataset
from privet.methods.perturbation import ResidualPerturbation
from privet.recipes.methods import METHODS
from privet.recipes.pate import TITLE
from privet.recipes.recipe import kind_of
from privet.report import RunRecord
from privet.training.logs import OnStep

Run = Callable[[Job, Dataset, Path, OnStep], RunRecord]


def _everything(dataset: Dataset) -> str:
    return ""


@dataclass(frozen=True)
class Entrant:
    """A method in a comparison.

    Attributes:
        key: its name on the command line and its folder.
        title: its name on a page.
        run: trains, attacks, and leaves a run in the folder.
        why_not: why the method does not fit these records; empty if it does.
        resumes: whether a run that was stopped goes on; one that does not is started anew beside it.
        by_default: whether it takes part where no methods are named; those that train for long are not.
        needs_public: whether it learns from public records without labels.
        uses: the options of `privet compare` that change what it does, beside those that concern all methods.
        protects_users: whether it has a proof for users who hold several records.
    """

    key: str
    title: str
    run: Run
    why_not: Callable[[Dataset], str] = _everything
    resumes: bool = True
    by_default: bool = True
    needs_public: bool = False
    uses: tuple[str, ...] = ()
    protects_users: bool = False


def _images(dataset: Dataset) -> str:
    return "" if kind_of(dataset.shape) == "images" else "it is for images"


def _trained(key: str, protects_users: bool = True) -> Entrant:
    run, uses = partial(runs.by_recipe, method=key), ("epsilon", "recipe")
    return Entrant(key, METHODS[key].title, run, uses=uses, protects_users=protects_users)


def _artificial(key: str, title: str, **options: Any) -> Entrant:
    run = partial(runs.by_artificial_data, method=key, as_published=options.pop("as_published", False))
    named, uses = f"synthetic-{options.pop('name', key)}", ("epsilon",)
    return Entrant(named, f"A student of artificial data: {title}", run, uses=uses, **options)


_ALL = (
    _trained("dpsgd"),
    _trained("optimized-noise-elliptical"),
    _trained("optimized-noise-isotropic"),
    _trained("optimized-noise"),
    _trained("optimized-noise-published", protects_users=False),
    _artificial("moments", "one-shot moments", resumes=False, protects_users=True),
    Entrant(
        "pate",
        TITLE,
        runs.by_votes,
        resumes=False,
        needs_public=True,
        uses=("epsilon", "recipe", "public"),
        protects_users=True,
    ),
    _artificial("dpgan", "DPGAN", why_not=_images, resumes=False, by_default=False, protects_users=True),
    _artificial("noise-layer-gan", "frozen features, noisy rows", why_not=_images, resumes=False, by_default=False),
    _artificial(
        "noise-layer-gan",
        "the noise-layer GAN as published",
        name="noise-layer-gan-published",
        as_published=True,
        why_not=_images,
        resumes=False,
        by_default=False,
    ),
    Entrant(
        "residual-dpsgd",
        METHODS["residual-dpsgd"].title,
        partial(
            runs.by_recipe,
            method="residual-dpsgd",
            recipe="resnet-dpsgd",
            perturbation=ResidualPerturbation(runs.GAMMA),
        ),
        why_not=_images,
        by_default=False,
        uses=("epsilon",),
        protects_users=True,
    ),
    Entrant(
        "residual",
        "Residual perturbation, as published",
        runs.by_residual_perturbation,
        why_not=_images,
        resumes=False,
        by_default=False,
    ),
)
ENTRANTS: dict[str, Entrant] = {entrant.key: entrant for entrant in _ALL}
"""By key, in the order of the table."""


def entrants_for(
    dataset: Dataset, *, public: str = "", every: bool = False
) -> tuple[dict[str, Entrant], dict[str, str]]:
    """Those that take part by default, or every one that fits; and of the others why they do not."""
    fitting, left_out = {}, {}
    for key, entrant in ENTRANTS.items():
        reason = entrant.why_not(dataset)
        if not reason and dataset.train.users is not None and not entrant.protects_users:
            reason = "it has no proof for users who hold several records"
        if not reason and entrant.needs_public and not public:
            reason = "it learns from public records without labels: give some with --public"
        if not reason and not (every or entrant.by_default):
            reason = "it trains for long: name it with --methods, or ask for all"
        if reason:
            left_out[key] = reason
        else:
            fitting[key] = entrant
    return fitting, left_out
