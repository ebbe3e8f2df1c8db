"""The laboratory at full power: every planted bug, every station of the library as it is, and false alarms over 200 laboratories.

Writes results/laboratory.json and results/laboratory.md, from which docs/audit.md has its tables. `--quick` takes fewer runs and
laboratories, and writes nothing. Two processes; each uses one thread.
"""

# ruff: noqa: E402 - the number of threads has to be set before NumPy is imported

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the planted bugs are those of the tests

import privet.methods  # noqa: F401 - adds the stations of the methods
from privet.audit import Audit, laboratory
from privet.audit.stations import Training, path_stations, stations
from tests.audit.planted import MORE, SIXTEEN

torch.set_num_threads(1)
STATIONS = {station.name: station for station in stations()}
PATH = tuple(station.name for station in path_stations())
CONFIDENCE = 0.99
ALONE = 1 - (1 - CONFIDENCE) / len(STATIONS)
"""Of one station in a whole laboratory: its result is the same there, since no station knows of another."""
PLANTS = {plant.name: plant for plant in SIXTEEN + MORE}
FALSE_ALARM_RUNS, FALSE_ALARM_STATIONS = 100, 5


def row(found: Audit, seconds: float, **more: Any) -> dict[str, Any]:
    plain = found.to_dict()
    kept = ("claimed_epsilon", "lower_bound", "ceiling", "delta", "method", "evidence", "refuted", "verdict")
    return (
        {"station": found.name, "looks_for": found.setting, **more}
        | {k: plain[k] for k in kept}
        | {"seconds": round(seconds, 1)}
    )


def as_it_is(station: str, runs: int) -> dict[str, Any]:
    begin = time.process_time()
    (found,) = laboratory([STATIONS[station]], runs=runs, confidence=ALONE)
    return row(found, time.process_time() - begin)


def planted(bug: str, station: str, runs: int, seed: int = 0) -> dict[str, Any]:
    begin = time.process_time()
    with PLANTS[bug].bug():
        (found,) = laboratory([STATIONS[station]], runs=runs, confidence=ALONE, seed=seed)
    return row(found, time.process_time() - begin, planted_bug=bug, seed=seed)


def false_alarm(seed: int) -> list[str]:
    """The stations that a laboratory of the sound path refutes: none, in 99 of 100 laboratories. Each has five, in turn."""
    chosen = [STATIONS[PATH[(FALSE_ALARM_STATIONS * seed + n) % len(PATH)]] for n in range(FALSE_ALARM_STATIONS)]
    found = laboratory(chosen, runs=FALSE_ALARM_RUNS, confidence=CONFIDENCE, seed=seed + 1)
    return [one.name for one in found if one.refuted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs; writes nothing")
    quick = parser.parse_args().quick
    runs, laboratories, seeds = (200, 4, 2) if quick else (800, 200, 10)
    weakest = "clipped to one and a half"
    flat = [
        name
        for name in PATH
        if isinstance(station := STATIONS[name], Training) and station.rate == 1 and "clipping" not in station.settings
    ]
    begin = time.perf_counter()
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        plants = [pool.submit(planted, plant.name, plant.station, runs) for plant in PLANTS.values()]
        weak = [pool.submit(planted, weakest, name, runs, seed) for name in flat[:1] for seed in range(1, seeds + 1)]
        results: dict[str, Any] = {"planted": [each.result() for each in plants]}
        results["seconds of the planted bugs, two processes"] = round(time.perf_counter() - begin, 1)
        results["one and a half"] = [each.result() for each in weak]
        whole = time.perf_counter()
        results["stations"] = [each.result() for each in [pool.submit(as_it_is, name, runs) for name in STATIONS]]
        results["seconds of one laboratory, two processes"] = round(time.perf_counter() - whole, 1)
        alarms = list(pool.map(false_alarm, range(laboratories), chunksize=1))
    results["false alarms"] = {
        "laboratories": laboratories,
        "stations": FALSE_ALARM_STATIONS,
        "of": list(PATH),
        "runs": FALSE_ALARM_RUNS,
        "confidence": CONFIDENCE,
        "alarms": sum(bool(each) for each in alarms),
        "where": sorted({name for each in alarms for name in each}),
    }
    results["runs"], results["confidence"] = runs, CONFIDENCE
    results["seconds"] = round(time.perf_counter() - begin, 1)
    results["environment"] = (
        f"{platform.machine()}, Python {platform.python_version()}, torch {version('torch')}, two processes of one thread each"
    )
    page = as_page(results)
    print(page)
    if not quick:
        folder = Path(__file__).parent / "results"
        (folder / "laboratory.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
        (folder / "laboratory.md").write_text(page)


def as_page(results: dict[str, Any]) -> str:
    def number(value: float | None) -> str:
        return "infinite" if value is None else f"{value:.2f}"

    def cpu(part: str) -> float:
        return float(sum(one["seconds"] for one in results[part]))

    lines = [
        "| planted bug | station | claimed | lower bound | ceiling | verdict | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in results["planted"]:
        verdict = "**refuted**" if one["refuted"] else one["verdict"]
        numbers = (number(one[key]) for key in ("claimed_epsilon", "lower_bound", "ceiling"))
        lines.append(" | ".join(["| " + one["planted_bug"], one["station"], *numbers, verdict, f"{one['seconds']} |"]))
    weak = results["one and a half"]
    refuted = sum(one["refuted"] for one in weak)
    said = f"refuted in {refuted} of {len(weak)} laboratories of other seeds"
    lines += ["", f"A record that counts 1.5 times, at the station {weak[0]['station']!r}: {said}."]
    lines += ["", "| station | looks for | claimed | lower bound | ceiling | verdict |", "|---|---|---|---|---|---|"]
    for one in results["stations"]:
        verdict = "**refuted**" if one["refuted"] else one["verdict"]
        numbers = (number(one[key]) for key in ("claimed_epsilon", "lower_bound", "ceiling"))
        lines.append(" | ".join(["| " + one["station"], one["looks_for"], *numbers, f"{verdict} |"]))
    false = results["false alarms"]
    lines += [
        "",
        f"False alarms: {false['alarms']} of {false['laboratories']} laboratories, each of {false['stations']} of the "
        f"{len(false['of'])} stations of the library's own path in turn, {false['runs']} runs on each side, at "
        f"{100 * false['confidence']:g} %.",
        "",
        f"Seconds by the clock: {results['seconds of the planted bugs, two processes']} for all planted bugs, "
        f"{results['seconds of one laboratory, two processes']} for one whole laboratory, {results['seconds']} in all. "
        f"Seconds of CPU time: {cpu('planted'):.0f} for all planted bugs, {cpu('stations'):.0f} for one whole laboratory of "
        f"{len(results['stations'])} stations. {results['environment']}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
