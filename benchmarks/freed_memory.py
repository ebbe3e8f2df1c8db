"""What it costs to give freed memory back to the system: CPU time and peak memory with and without keeping it.

Each case runs in a process of its own on one thread, as it comes and with `privet.keep_freed_memory`, in turn. Writes
results/freed_memory.json and fills the table of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from _cases import CASES
from _page import put
from engine import Step, make_step, plain_step
from torch.nn import functional as F

import privet
from privet.methods.perturbation import ResidualPerturbation
from privet.models import resnet

RESULTS = Path(__file__).parent / "results"
WAYS = ("as it comes", "kept")


def ensemble_step() -> Step:
    """Five ResNet8 with noise in their streams, on 32 images."""
    model = resnet(members=5).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ResidualPerturbation(0.5).apply(model)
    x = torch.rand(32, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    return plain_step(model, x, torch.randint(10, (32,)))


def ensemble_answers() -> Step:
    """The same five, asked about 250 images."""
    model = resnet(members=5).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    ResidualPerturbation(0.5).apply(model)
    x = torch.rand(250, 3, 32, 32)

    def answer() -> None:
        with torch.no_grad():
            F.softmax(model(x), 1)

    return answer


MADE = {
    "plain step, ResNet8 GroupNorm, batch 128": lambda: make_step(CASES["resnet8"], "plain-channels_last"),
    "private step, ResNet8 GroupNorm, batch 128": lambda: make_step(CASES["resnet8"], "privet-channels_last"),
    "private step, WRN-16-4 GroupNorm, batch 32": lambda: make_step(CASES["wrn-16-4"], "privet-channels_last"),
    "plain step, transformer": lambda: make_step(CASES["transformer"], "plain"),
    "private step, transformer": lambda: make_step(CASES["transformer"], "privet"),
    "step of five ResNet8 with noise, 32 images": ensemble_step,
    "answers of five ResNet8 with noise, 250 images": ensemble_answers,
}


def measure(case: str, way: str, times: int) -> None:
    """Print milliseconds of CPU time (median) and peak MiB of this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if way == "kept":
        privet.keep_freed_memory()
    step, spent = MADE[case](), []
    for number in range(3 + times):  # the first three warm up
        begin = time.process_time()
        step()
        if number >= 3:
            spent.append(time.process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([1e3 * statistics.median(spent), peak]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=8, help="steps in a round")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure, options.times)
        return
    rows = []
    for case in MADE:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                command = [sys.executable, __file__, "--times", str(options.times), "--measure", case, way]
                found[way].append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
        medians = {way: [statistics.median(column) for column in zip(*found[way], strict=True)] for way in WAYS}
        rows.append({"case": case, **{way: {"ms": m, "peak MiB": p} for way, (m, p) in medians.items()}})
        print(line(rows[-1]), flush=True)
    (RESULTS / "freed_memory.json").write_text(json.dumps(rows, indent=1) + "\n")
    header = [
        "| one thread | as it comes, ms | kept, ms | ratio | peak MiB, as it comes | kept |",
        "|---|---|---|---|---|---|",
    ]
    put(
        "performance.md",
        "freed",
        "\n".join(["```sh\npython benchmarks/freed_memory.py\n```\n", *header, *map(line, rows)]),
    )


def line(row: dict) -> str:
    before, after = (row[way] for way in WAYS)
    times = f"{before['ms']:.0f} | {after['ms']:.0f} | {after['ms'] / before['ms']:.2f}"
    return f"| {row['case']} | {times} | {before['peak MiB']:.0f} | {after['peak MiB']:.0f} |"


if __name__ == "__main__":
    main()
