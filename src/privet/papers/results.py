"""Measurements: kept in a file for each run, and merged into one file for each table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from privet.attacks import AttackResult
from privet.errors import InputError
from privet.io import MisfitError, build, from_json, read_text, to_plain, write_whole


@dataclass(frozen=True)
class Measurement:
    """The figures of one line with one seed, or their means over several seeds.

    Attributes:
        table, line, epsilon, delta: what was measured; `line` is its name in the table.
        quantities: by name. Accuracies are shares between 0 and 1.
        data: the records.
        seed: of the run; of a mean, the first one.
        seeds: how many runs this is the mean of.
        spread: the standard deviations over the seeds.
        spent, guarantee, statement: what the ledger says: the epsilon spent, whether it is proved, and both in a sentence.
        steps: how many steps were done.
        seconds: of processor time, for one run.
        curve: epoch, epsilon spent and accuracy on the test records, after some of the epochs.
        attack: what the attack found; of a mean, with the first seed.
        command: the command that measured it.
        key: identifies the settings and the records; it is the same for all seeds.
    """

    MAY_BE_INFINITE: ClassVar[tuple[str, ...]] = ("spent",)

    table: str
    line: str
    epsilon: float | None
    delta: float
    quantities: dict[str, float]
    data: str = ""
    seed: int = 0
    seeds: int = 1
    spread: dict[str, float] = field(default_factory=dict)
    spent: float | None = None
    guarantee: str = ""
    statement: str = ""
    steps: int = 0
    seconds: float = 0.0
    curve: tuple[tuple[float, ...], ...] = ()
    attack: AttackResult | None = None
    command: str = ""
    key: str = ""

    @property
    def place(self) -> tuple[str, str, float | None, float]:
        """Its place in the table, whatever the seed."""
        return self.table, self.line, self.epsilon, self.delta


def mean(found: Sequence[Measurement]) -> Measurement:
    """The mean over seeds; a single measurement is its own mean."""
    first = found[0]
    if len(found) == 1:
        return first
    shared = [name for name in first.quantities if all(name in one.quantities for one in found)]
    values = {name: [one.quantities[name] for one in found] for name in shared}
    points = zip(*(one.curve[: min(len(one.curve) for one in found)] for one in found), strict=True)
    return replace(
        first,
        quantities={name: statistics.fmean(each) for name, each in values.items()},
        spread={name: statistics.stdev(each) for name, each in values.items()},
        seeds=len(found),
        seconds=statistics.fmean(one.seconds for one in found),
        curve=tuple((*same[0][:2], round(statistics.fmean(point[2] for point in same), 5)) for same in points),
    )


def means(found: Sequence[Measurement]) -> list[Measurement]:
    """The mean for each place of a table, in the order in which the places come first."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for one in found:
        groups.setdefault(one.place, []).append(one)
    return [mean(group) for group in groups.values()]


def read_kept(path: Path, key: str) -> Measurement | None:
    """The measurement of a run that was kept, if it belongs to these settings and records."""
    try:
        found = build(Measurement, from_json(read_text(path), 1 << 63))
    except ValueError:
        return None  # not there, torn, or of another version: it is measured again
    return found if found.key == key else None


def keep(path: Path, made: Measurement) -> None:
    """Keep the measurement of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(to_plain(made), ensure_ascii=False) + "\n").encode(), mode=0o644)


def read(path: Path) -> list[Measurement]:
    """The measurements of a file of results; none if there is no such file."""
    if not path.exists():
        return []
    try:
        plain = from_json(read_text(path), 1 << 63)
    except ValueError as error:
        raise InputError(f"{path} is not a file of results ({error}): give another with --results.") from None
    try:
        if not isinstance(plain, list):
            raise MisfitError("it is not a list")
        return [build(Measurement, one) for one in plain]
    except MisfitError as error:
        raise InputError(f"{path} does not hold measurements: {error}.") from None


def merge(path: Path, made: Sequence[Measurement]) -> None:
    """Put measurements into a file of results.

    They replace those of the same place and seed, and at their places also means and what belongs to other settings or
    records, which must not be averaged with them. All others stay.
    """
    keys = {one.place: one.key for one in made}
    fresh = {(*one.place, one.seed) for one in made}
    kept = [
        one
        for one in read(path)
        if one.place not in keys
        or (one.seeds == 1 and one.key == keys[one.place] and (*one.place, one.seed) not in fresh)
    ]
    rows = [json.dumps(to_plain(one), ensure_ascii=False) for one in [*kept, *made]]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, ("[\n" + ",\n".join(rows) + "\n]\n").encode(), mode=0o644)


def file_of(results: Path, table: str) -> Path:
    """The file of a table in a folder of results; a path that is not a folder is the file itself."""
    return results / f"{table}.json" if results.is_dir() else results
