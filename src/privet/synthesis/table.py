"""The source's Table 1 beside ours: students of every method at every budget over seeds, each run kept when it is there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from privet.data import Dataset
from privet.io import MisfitError, build, write_whole
from privet.methods.synthetic import OnStep, Order, Synthesizer
from privet.privacy import Ledger
from privet.recipes.table import Row
from privet.synthesis.public_records import VotedRecords
from privet.synthesis.registry import method_named
from privet.synthesis.students import train_student

CLAIMED = "only claimed"


@dataclass(frozen=True)
class Line:
    """One row of the comparison.

    Attributes:
        key: its name in files; method, budget and labels as `privet synthesize` takes them, "none" meaning the records
            themselves, and "pate" half of the test records with labels by vote, tested on the other half.
        published: what the source states for a student, in percent.
    """

    key: str
    title: str
    method: str
    epsilon: float = 0.0
    as_published: bool = False
    labels: str = "protected"
    seeds: int = 0
    """How many are run at most; 0 means as many as asked for. Methods that take an hour get one."""
    published: dict[str, float] = dataclasses.field(default_factory=dict)
    differs: str = ""
    """Why ours is another figure than the source's."""


@dataclass(frozen=True)
class Comparison:
    """A file of this folder."""

    name: str
    title: str
    why: str
    data: str
    size: int
    epochs: int
    students: tuple[str, ...]
    lines: tuple[Line, ...]
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    """Where the settings of the methods came from."""
    differs: str = ""
    """In what the whole differs from the source."""


@dataclass(frozen=True)
class Result:
    """One run: the accuracy of each student on the test records."""

    key: str
    seed: int
    accuracy: dict[str, float]
    spent: float
    guarantee: str
    seconds: float
    mark: str
    """Says which settings and records it belongs to."""


OnResult = Callable[[Line, Result], None]


def names() -> tuple[str, ...]:
    """The comparisons that come with Privet."""
    files = resources.files("privet.synthesis").iterdir()
    return tuple(sorted(Path(file.name).stem for file in files if file.name.endswith(".yaml")))


def load(name: str) -> Comparison:
    text = resources.files("privet.synthesis").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return build(Comparison, yaml.safe_load(text))


def reproduce(
    comparison: Comparison,
    dataset: Dataset,
    folder: Path,
    *,
    seeds: int,
    delta: float,
    epsilons: Sequence[float] = (),
    keys: Sequence[str] = (),
    on_result: OnResult | None = None,
    on_step: OnStep | None = None,
) -> dict[str, list[Result]]:
    """Run every line (or those of some budgets, or by their keys); what `folder` holds already is not computed again."""
    found: dict[str, list[Result]] = {}
    for line in comparison.lines:
        if (epsilons and line.epsilon not in epsilons) or (keys and line.key not in keys):
            continue
        for seed in range(min(seeds, line.seeds) if line.seeds else seeds):
            result = _result(comparison, line, dataset, folder, seed, delta, on_step)
            found.setdefault(line.key, []).append(result)
            if on_result is not None:
                on_result(line, result)
    return found


def rows(comparison: Comparison, found: Mapping[str, list[Result]], delta: float, command: str) -> list[Row]:
    """The results as rows of a file of results, one for each student."""
    made = []
    for line in comparison.lines:
        results = found.get(line.key, [])
        for student in comparison.students if results else ():
            accuracies = [result.accuracy[student] for result in results]
            made.append(
                Row(
                    data=comparison.data,
                    method=f"{line.key}/{student}",
                    epsilon=line.epsilon,
                    delta=delta,
                    accuracy=round(statistics.fmean(accuracies), 6),
                    std=round(statistics.stdev(accuracies), 6) if len(accuracies) > 1 else None,
                    seeds=len(results),
                    seconds=round(statistics.fmean(result.seconds for result in results), 1),
                    recipe=comparison.name,
                    command=command,
                    curve=(),
                )
            )
    return made


def _result(
    comparison: Comparison, line: Line, dataset: Dataset, folder: Path, seed: int, delta: float, on_step: OnStep | None
) -> Result:
    order = Order(
        classes=len(dataset.classes),
        size=comparison.size,
        epsilon=line.epsilon or 1.0,
        delta=delta,
        labels=line.labels,
        seed=seed,
        source=dataset.name,
        records=len(dataset.train),
    )
    method = _method(line, dataset, order)
    mark = _mark(comparison, method, order, dataset)
    path = folder / f"{line.key}-seed-{seed}.json"
    if path.exists():
        try:
            kept = build(Result, json.loads(path.read_text(encoding="utf-8")))
            if kept.mark == mark:
                return kept
        except (ValueError, MisfitError):
            pass  # torn or of another version: it is computed again
    started = time.process_time()
    (inputs, targets), test, ledger = dataset.train.tensors, dataset.test, None
    if isinstance(method, VotedRecords):
        ledger = Ledger()
        inputs, targets, test = method.label(dataset, order, ledger, on_step)
    elif method is not None:
        ledger = Ledger(relation=method.relation)
        made = method.synthesize(dataset.train, order, ledger, on_step)
        inputs, targets = made.inputs, made.targets
    spent = ledger.spent(delta) if ledger is not None else None
    # As many steps on records as on artificial examples.
    epochs = max(1, round(comparison.epochs * comparison.size / len(inputs)))
    accuracy = {
        name: train_student(name, inputs, targets, order.classes, epochs=epochs, seed=seed, on_step=on_step).accuracy(
            test
        )
        for name in comparison.students
    }
    result = Result(
        line.key,
        seed,
        accuracy,
        spent.epsilon if spent is not None else 0.0,
        str(spent.guarantee) if spent is not None else "not private",
        round(time.process_time() - started, 1),
        mark,
    )
    write_whole(path, (json.dumps(dataclasses.asdict(result)) + "\n").encode(), mode=0o644)
    return result


def _method(line: Line, dataset: Dataset, order: Order) -> Synthesizer | VotedRecords | None:
    if line.method == "none":
        return None
    if line.method == "pate":
        return VotedRecords.fitting(dataset, order)
    return method_named(line.method, dataset, order, as_published=line.as_published)


def _mark(comparison: Comparison, method: Any, order: Order, dataset: Dataset) -> str:
    told = {
        "method": dataclasses.asdict(method) if method is not None else None,
        "order": dataclasses.asdict(order),
        "students": [*comparison.students, comparison.epochs],
        "data": dataset.fingerprint,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
