"""A table of results: a recipe at every budget, over several seeds, each figure kept as soon as it is there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from privet.data import Dataset, Progress
from privet.errors import InputError
from privet.io import MisfitError, build, write_whole
from privet.recipes.fit import fit
from privet.recipes.methods import method_named
from privet.recipes.recipe import Published, Recipe
from privet.training.standing import OnStep

_POINTS = 60
"""How many points of a curve are kept."""

OnResult = Callable[["Result"], None]


@dataclass(frozen=True)
class Result:
    """One training: its accuracy on the test records, what it cost, and the processor's time."""

    epsilon: float
    seed: int
    accuracy: float
    spent: float
    steps: int
    seconds: float
    curve: tuple[tuple[float, ...], ...]
    """Epoch, epsilon spent and accuracy on the test records, after some of the epochs."""
    key: str
    """Says which settings and records it belongs to."""
    method: str = "dpsgd"
    last: float | None = None
    """The accuracy of the last parameters, where `accuracy` is that of averaged ones."""


@dataclass(frozen=True)
class Row:
    """The mean over seeds at one budget."""

    data: str
    method: str
    epsilon: float
    delta: float
    accuracy: float
    std: float | None
    seeds: int
    seconds: float
    recipe: str
    command: str
    curve: tuple[tuple[float, ...], ...]
    last: float | None = None
    """The mean accuracy of the last parameters, where `accuracy` is that of averaged ones."""
    last_std: float | None = None

    def published(self, recipe: Recipe) -> Published | None:
        """The published figure nearest to this budget, if there is one within a tenth of it."""
        return recipe.published_near(self.epsilon)


def reproduce(
    recipe: Recipe,
    dataset: Dataset,
    folder: Path,
    *,
    epsilons: Sequence[float],
    methods: Sequence[str],
    seeds: int,
    delta: float,
    command: str,
    on_result: OnResult | None = None,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Train by every method at every budget with seeds 0, 1, ...; what `folder` holds already is not computed again."""
    rows = []
    for method, epsilon in product(methods, epsilons):
        results = []
        for seed in range(seeds):
            result = _result(recipe, dataset, folder, method, epsilon, delta, seed, on_step, progress)
            results.append(result)
            if on_result is not None:
                on_result(result)
        rows.append(_row(recipe, dataset, method, epsilon, delta, results, command))
    return rows


def merge(path: Path, rows: Sequence[Row]) -> None:
    """Put rows into a file of results; rows of the same recipe at the same budget are replaced, others are left alone."""
    try:
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    except ValueError as error:
        raise InputError(f"{path} is not a file of results ({error}): give another.") from None
    fresh = [dataclasses.asdict(row) for row in rows]
    same = ("recipe", "method", "epsilon", "delta")
    taken = {tuple(row[name] for name in same) for row in fresh}
    kept = [row for row in old if tuple(row.get(name) for name in same) not in taken]
    lines = [json.dumps(row, ensure_ascii=False) for row in kept + fresh]
    write_whole(path, ("[\n" + ",\n".join(lines) + "\n]\n").encode(), mode=0o644)


def _result(
    recipe: Recipe,
    dataset: Dataset,
    folder: Path,
    method: str,
    epsilon: float,
    delta: float,
    seed: int,
    on_step: OnStep | None,
    progress: Progress | None,
) -> Result:
    key = _key(recipe, dataset, method, epsilon, delta)
    prefix = "" if method == "dpsgd" else f"{method}-"
    path = folder / f"{prefix}epsilon-{epsilon:g}-seed-{seed}.json"
    if path.exists():
        try:
            found = build(Result, json.loads(path.read_text(encoding="utf-8")))
            if found.key == key:
                return found
        except (ValueError, MisfitError):
            pass  # torn or of another version: it is computed again
    started = time.process_time()
    fitted = fit(
        recipe, dataset, epsilon=epsilon, delta=delta, method=method, seed=seed, on_step=on_step, progress=progress
    )
    seconds = time.process_time() - started
    points = [(entry["epoch"], entry["epsilon"], entry["accuracy"]) for entry in fitted.history]
    every = max(1, -(-len(points) // _POINTS))
    result = Result(
        epsilon=epsilon,
        seed=seed,
        accuracy=fitted.history[-1]["accuracy"],
        spent=fitted.ledger.spent(delta).epsilon,
        steps=fitted.steps,
        seconds=round(seconds, 1),
        curve=tuple(tuple(round(value, 5) for value in point) for point in [*points[:-1:every], points[-1]]),
        key=key,
        method=method,
        last=fitted.history[-1].get("last_accuracy"),
    )
    write_whole(path, (json.dumps(dataclasses.asdict(result)) + "\n").encode(), mode=0o644)
    return result


def _row(
    recipe: Recipe, dataset: Dataset, method: str, epsilon: float, delta: float, results: Sequence[Result], command: str
) -> Row:
    accuracy, std = _over_seeds([result.accuracy for result in results])
    lasts = [result.last for result in results if result.last is not None]
    last, last_std = _over_seeds(lasts) if len(lasts) == len(results) else (None, None)
    shortest = min(len(result.curve) for result in results)
    curves = zip(*(result.curve[:shortest] for result in results), strict=True)
    return Row(
        data=dataset.name,
        method=method,
        epsilon=epsilon,
        delta=delta,
        accuracy=accuracy,
        std=std,
        seeds=len(results),
        seconds=round(statistics.fmean(result.seconds for result in results), 1),
        recipe=recipe.name,
        command=command,
        curve=tuple((*points[0][:2], round(statistics.fmean(p[2] for p in points), 5)) for points in curves),
        last=last,
        last_std=last_std,
    )


def _over_seeds(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; of one value there is none."""
    return round(statistics.fmean(values), 6), round(statistics.stdev(values), 6) if len(values) > 1 else None


def _key(recipe: Recipe, dataset: Dataset, method: str, epsilon: float, delta: float) -> str:
    told = {
        "settings": dataclasses.asdict(recipe.at(epsilon)),
        "model": dataclasses.asdict(recipe.model),
        "data": dataset.fingerprint,
        "delta": delta,
        # Left out where it is what it always was: what is kept from then stays good.
        **({} if method == "dpsgd" else {"method": method, "accountant": method_named(method).accountant}),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
