"""Optimised noise: how long it takes to solve and to draw, beside ``torch.normal_`` of the same size, by CPU time on one thread.

Writes results/optimised_noise.json and results/optimised_noise.md.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from privet.noise import GroupedL2Noise, IsotropicL2Noise, ProductLaplaceNoise

RESULTS = Path(__file__).parent / "results"
FAMILIES = {"grouped L2": GroupedL2Noise, "product Laplace": ProductLaplaceNoise, "isotropic L2": IsotropicL2Noise}
EPSILON = 1e-3
"""So small that e^epsilon is 1: the gap is then that of the shape alone."""
GOALS = {"solve": 5.0, "sample": 3.0}
"""Seconds of the solver, and a draw over torch.normal_, at ten million coordinates."""


def seconds(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for size in asked.sizes for row in measured(size, asked.rounds)]
    machine = (
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, one thread, CPU time"
    )
    text = "\n".join(
        [*table(rows), "", *verdicts(rows), "", f"Median of {asked.rounds} interleaved rounds. {machine}."]
    )
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "optimised_noise.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    (RESULTS / "optimised_noise.md").write_text(text + "\n")


def measured(size: int, rounds: int) -> list[dict[str, Any]]:
    """Every family at one size, in turn with torch.normal_ into a tensor that is there already."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(size, generator=generator).mul_(1.5).exp_()
    place = torch.empty(size)
    solved = {name: family.solve(w, EPSILON) for name, family in FAMILIES.items()}
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, family in FAMILIES.items():
            normal = seconds(lambda: place.normal_(generator=generator))
            times.setdefault((name, "normal"), []).append(normal)
            times.setdefault((name, "solve"), []).append(seconds(lambda f=family: f.solve(w, EPSILON)))
            drawn = seconds(lambda n=name: solved[n].sample(generator))
            times.setdefault((name, "sample"), []).append(drawn)
    return [
        {
            "family": name,
            "size": size,
            "gap": solved[name].gap / math.exp(EPSILON),
            **{what: statistics.median(times[name, what]) for what in ("solve", "sample", "normal")},
        }
        for name in FAMILIES
    ]


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| coordinates | family | cost over the bound | solve, s | draw, s | draw over `torch.normal_` |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['size']:,} | {row['family']} | {row['gap']:.4f} | {row['solve']:.3f} | {row['sample']:.4f} | "
        f"{row['sample'] / row['normal']:.2f} |"
        for row in rows
    ]
    return lines


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    largest = [row for row in rows if row["size"] == max(row["size"] for row in rows)]
    found = {
        "solve": max(row["solve"] for row in largest),
        "sample": max(row["sample"] / row["normal"] for row in largest),
    }
    said = {"solve": "the slowest solver takes {:.2f} s", "sample": "the slowest draw takes {:.2f} of `torch.normal_`"}
    return [
        f"- {said[what].format(value)} (goal {GOALS[what]:g}), {'reached' if value <= GOALS[what] else 'MISSED'}."
        for what, value in found.items()
    ]


if __name__ == "__main__":
    main()
