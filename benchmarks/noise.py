"""The noise and the sampling of a release against those of a seeded run, interleaved, by CPU time on one thread.

Writes results/noise.json and results/noise.md.
"""

# ruff: noqa: E402 - the number of threads has to be set before NumPy is imported

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import hashlib
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from privet.clipping import BoundedSum
from privet.noise import GaussianNoise
from privet.randomness import Randomness, SecureSource
from privet.sampling import PoissonSampling

SIZES = (26_010, 1_000_000)
RECORDS, RATE = 60_000, 0.01


def key_stream(count: int) -> None:
    """As many bytes as a draw takes, in pieces of its size."""
    source, piece = SecureSource(), 6 * 2**16
    for place in range(0, count, piece):
        source._bytes(min(piece, count - place))


def milliseconds(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median CPU time of each call, taken in turn."""
    taken: dict[str, list[float]] = {what: [] for what in calls}
    for _ in range(repeats + 1):
        for what, call in calls.items():
            begin = time.process_time()
            call()
            taken[what].append(time.process_time() - begin)
    return {what: 1000 * statistics.median(times[1:]) for what, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    seeded, release = Randomness.of(0), Randomness.of(None)
    rows, noise = [], GaussianNoise(1.0)
    for size in SIZES:
        bounded = BoundedSum({"gradient": torch.randn(size)}, 1.0, {"gradient": 1.0}, 600)
        found = milliseconds(
            {
                "torch.normal_ alone": lambda size=size: torch.empty(size).normal_(),  # type: ignore[misc]
                "noise of a seeded run": lambda b=bounded: noise.add(b, seeded.noise),  # type: ignore[misc]
                "noise of a release": lambda b=bounded: noise.add(b, release.noise),  # type: ignore[misc]
                "of which key stream": lambda size=size: key_stream(6 * size),  # type: ignore[misc]
                "the same stream by SHAKE-128": lambda size=size: hashlib.shake_128(b"k").digest(6 * size),  # type: ignore[misc]
                "the same stream from os.urandom": lambda size=size: os.urandom(6 * size),  # type: ignore[misc]
                "four float32 draws": lambda size=size: [torch.empty(size).normal_() for _ in range(4)],  # type: ignore[misc]
            },
            chosen.repeats,
        )
        rows += [{"what": what, "size": size, "milliseconds": round(value, 3)} for what, value in found.items()]
    sampling = PoissonSampling(RATE)
    found = milliseconds(
        {
            "sampling of a seeded run": lambda: sampling.draw(RECORDS, seeded.sampling),
            "sampling of a release": lambda: sampling.draw(RECORDS, release.sampling),
        },
        10 * chosen.repeats,
    )
    rows += [{"what": what, "size": RECORDS, "milliseconds": round(value, 3)} for what, value in found.items()]
    environment = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, one thread"
    chosen.out.mkdir(exist_ok=True)
    (chosen.out / "noise.json").write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
    table = "".join(f"| {row['what']} | {row['size']:,} | {row['milliseconds']:.3g} |\n" for row in rows)
    text = (
        f"# Randomness of a release\n\n`python benchmarks/noise.py --repeats {chosen.repeats}`: median CPU time. "
        f"{environment}.\n\n"
        f"| what | numbers | ms |\n|---|---|---|\n{table}"
    )
    (chosen.out / "noise.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
