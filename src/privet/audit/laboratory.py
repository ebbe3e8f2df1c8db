"""The laboratory: the library's own training path, run on small data sets on which bugs show.

A *station* runs the real path (`make_private` and its loop, teachers, a GAN, the split of a file) once, with or without one
worst-case record, and returns everything that is released. The laboratory repeats it and bounds epsilon from below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.audit.bounds import TwoSampleBound
from privet.audit.result import (
    CRASHED,
    REFUSED,
    Audit,
    Claim,
    Claimable,
    audit_scores,
    contradicted,
    now,
    resumable,
)
from privet.data import Progress
from privet.errors import InputError, PrivetError
from privet.io.farm import farm_in_use
from privet.privacy import Event
from privet.training.releases import spread

RUNS = 800
"""Runs with the record, and as many without it: enough to see 1.5 times the allowed sensitivity at 99 %, over all stations."""
PROBES = 4
"""Runs on each side with almost no noise: they show in which direction the record moves a release."""
QUIET = 1e-6
"""The noise multiplier of a probe."""
_CHOSEN_ON = 0.25
_FATE = "whether it raised"
_FINITE = "numbers that are not finite"

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Seen:
    """Everything that an attacker sees of one run.

    Attributes:
        tensors: the released tensors by name: parameters after each step, optimizer state, buffers.
        numbers: other numbers that are released, or follow from the release.
        event: the event in the run's ledger; None if the run raised or has no ledger.
        raised: the error that ended the run, or "".
        refused: whether that error is a refusal by the library, and not a crash.
        faults: observations that cannot happen in a sound run, in words: a single one refutes.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    event: Event | None = None
    raised: str = ""
    refused: bool = False
    faults: tuple[str, ...] = ()

    @classmethod
    def of_error(cls, error: Exception) -> Seen:
        """What an attacker sees of a run that raised."""
        sentence = str(error).split(". ")[0].strip()[:160]
        return cls(raised=f"{type(error).__name__}: {sentence}", refused=isinstance(error, PrivetError))


class Station(Protocol):
    """A place where bugs occur: a small setting in which they show."""

    @property
    def name(self) -> str: ...

    @property
    def looks_for(self) -> str:
        """The bugs that show here, in words."""
        ...

    @property
    def effort(self) -> float:
        """The number of its runs relative to other stations: below 1 if a run is slow and its bugs are easy to see."""
        ...

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        """Run the library once, with or without the record; `noise` replaces the noise multiplier, for probes."""
        ...

    def claimed(self) -> Claimable:
        """The claim for a sound run, if there is no ledger to take it from."""
        ...

    def bound(self, confidence: float) -> TwoSampleBound:
        """The bound that fits the claimed event; its delta is that of the audit."""
        ...


def laboratory(
    stations: Sequence[Station] | None = None,
    *,
    runs: int = RUNS,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Audit, ...]:
    """Audit the library's own training path: one audit for each station.

    A few runs with almost no noise find the direction in which the record moves the release of a station. A quarter of the
    other runs choose the score (a linear discriminant of everything that is released) and its threshold, and only the rest is
    counted. A contradiction (a record twice in a batch, a step that is not in the ledger, a ledger that depends on the records)
    refutes at once, without statistics.

    Formal guarantees: if the library keeps its claims, at most ``1 - confidence`` of all laboratories refute anything: each of
    k stations has an error probability of ``(1 - confidence) / k``. A laboratory that refutes nothing proves nothing. If the
    ceiling of a station lies below its claim, its verdict says that it could not have refuted.

    Args:
        stations: the stations to visit; by default all of `privet.audit.stations.stations()`, with those that were added.
        runs: with the record, and as many without it, at each station.
        confidence: of the whole laboratory.
        seed: of the laboratory; every run has a seed of its own.
        progress: called with a description, the stations that are done and all stations.
    """
    if stations is None:
        from privet.audit.stations import stations as all_stations

        stations = all_stations()
    if runs < 40:
        raise InputError(f"A laboratory needs at least 40 runs on each side, not {runs}.")
    if not stations:
        raise InputError("A laboratory without stations sees nothing: give at least one station.")
    each = 1 - (1 - confidence) / len(stations)
    work = [
        (station, max(40, round(runs * station.effort)), (seed * len(stations) + n) * 10_000_000, each, confidence)
        for n, station in enumerate(stations)
    ]
    if (farm := farm_in_use()) is not None:
        told = partial(progress, "Laboratory") if progress is not None else _tell_nobody
        return tuple(Audit.from_dict(one) for one in spread(farm, "station", _audit_there, work, told))
    found = []
    with _one_thread():
        for number, one in enumerate(work):
            if progress is not None:
                progress(f"Laboratory: {one[0].name}", number, len(stations))
            found.append(_audit(*one))
    if progress is not None:
        progress("Laboratory", len(stations), len(stations))
    return tuple(found)


def _tell_nobody(done: int, total: int) -> None:
    """For a laboratory whose progress nobody follows."""


def _audit_there(station: Station, runs: int, seed: int, each: float, whole: float) -> dict[str, Any]:
    """Audit one station in a worker of a farm."""
    return _audit(station, runs, seed, each, whole).to_dict()


@resumable
def _audit(station: Station, runs: int, seed: int, each: float, whole: float) -> Audit:
    """Audit one station: `each` is the confidence of its bound, `whole` that of all stations together."""
    bound = station.bound(each)
    directions = _directions(station, seed)
    sides: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    events, raised, faults = Counter[Event](), Counter[str](), Counter[str]()
    refused = 0
    for count in range(2 * runs):
        present = count % 2 == 0
        seen = station.run(present, seed + PROBES + count)
        sides[0 if present else 1].append(_features(seen, directions))
        raised[seen.raised] += 1
        refused += seen.refused
        faults.update(seen.faults)
        if seen.event is not None:
            events[seen.event] += 1
        if faults:
            break
    if len(events) > 1:
        faults["the ledgers of runs that differ in one record or in their noise are different"] += 1
    # A claim by events holds at every delta. Of several claims take the largest: a refutation must hold for each.
    delta = bound.delta
    claim = max((Claim.of(event, delta) for event in events or [station.claimed()]), key=lambda one: one.epsilon)
    if faults:
        return contradicted(station.name, claim, whole, "; ".join(faults), setting=station.looks_for)
    said = next((words for words in raised if words), "")
    if raised[""] == 0:
        ended = REFUSED if refused == 2 * runs else CRASHED
        evidence = f"{ended} in each of {2 * runs:,} runs, with the record and without it: {said}"
        return Audit(station.name, claim, 0.0, 0.0, whole, ended, evidence, station.looks_for, date=now())
    members, others = _scores(*sides)
    audit = audit_scores(
        members, others, claim=claim, bound=bound, name=station.name, setting=station.looks_for, chosen_on=_CHOSEN_ON
    )
    evidence = audit.evidence if not said else f"{audit.evidence}; {sum(raised.values()) - raised['']:,} raised: {said}"
    return replace(audit, confidence=whole, evidence=evidence)


def _directions(station: Station, seed: int) -> dict[str, Tensor]:
    """How the record moves each released tensor, by runs with almost no noise, which are not counted."""
    totals: dict[str, Tensor] = {}
    for count in range(PROBES):
        pair = [station.run(present, seed + count, QUIET).tensors for present in (True, False)]
        for name in pair[0].keys() & pair[1].keys():
            change = (pair[0][name].double() - pair[1][name].double()).flatten()
            totals[name] = totals[name] + change if name in totals else change
    return {
        name: total / length
        for name, total in sorted(totals.items())
        if np.isfinite(length := float(total.norm())) and length > 1e-3 * PROBES
    }


def _features(seen: Seen, directions: Mapping[str, Tensor]) -> dict[str, float]:
    """A run as a few numbers: each tensor projected on the record's direction, the other numbers, and how the run ended."""
    found = dict.fromkeys(directions, 0.0)
    wrong = 0
    for name, tensor in seen.tensors.items():
        wrong += int((~tensor.isfinite()).sum())
        if name in directions and tensor.numel() == directions[name].numel():
            found[name] = float(tensor.double().flatten().nan_to_num(0.0, 0.0, 0.0) @ directions[name])
    return {**found, **seen.numbers, _FATE: float(bool(seen.raised)), _FINITE: float(wrong)}


def _scores(members: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]]) -> tuple[Array, Array]:
    """One score for each run: the linear discriminant that is learned on a quarter of the runs."""
    names = sorted({name for each in (*members, *others) for name in each})
    inside, outside = (
        np.array([[each.get(name, 0.0) for name in names] for each in side]) for side in (members, others)
    )
    chosen = [side[: round(_CHOSEN_ON * len(side))] for side in (inside, outside)]
    change = chosen[0].mean(0) - chosen[1].mean(0)
    spread = np.sqrt((chosen[0].var(0) + chosen[1].var(0)) / 2)
    # A number that differs and never varies decides. One that neither varies nor differs says nothing.
    scale = np.maximum(spread, 1e-3 * np.abs(change))
    used = scale > 0
    if not used.any():
        return np.zeros(len(inside)), np.zeros(len(outside))
    scaled = [(side[:, used] - side[:, used].mean(0)) / scale[used] for side in chosen]
    joint = np.concatenate(scaled)
    covariance = joint.T @ joint / len(joint) + 1e-4 * np.eye(int(used.sum()))
    weights = np.linalg.solve(covariance, change[used] / scale[used]) / scale[used]
    return inside[:, used] @ weights, outside[:, used] @ weights


class _one_thread:  # noqa: N801 - a context manager
    """Tiny tensors are faster in one thread."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)
