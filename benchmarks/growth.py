"""How the cost of a private step grows: time and memory against batch size, sequence length and depth, beside plain training.

    python benchmarks/growth.py [--rounds 5]

CPU time on one thread, Privet and plain interleaved, medians; peak memory above the base, each point in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from _cases import Block, Case, Transformer
from _page import put
from engine import IMAGES, RESULTS, _status, cpu_seconds, machine, make_step

import privet


def transformer(length: int) -> Case:
    return Case(
        f"length {length}", 8, lambda: Transformer(2000, 128, 2, length), lambda n: torch.randint(2000, (n, length))
    )


def mlp(depth: int) -> Case:
    def make() -> nn.Module:
        middle = [layer for _ in range(depth) for layer in (nn.Linear(256, 256), nn.ReLU())]
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), *middle, nn.Linear(256, 10))

    return Case(f"depth {depth}", 256, make, lambda n: torch.randn(n, 64))


def cnn(batch: int) -> Case:
    def make() -> nn.Module:
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Block(16, 32, 2, 8), nn.ReLU(), *head)

    return Case(f"batch {batch}", batch, make, lambda n: torch.randn(n, 3, 32, 32))


CURVES: dict[str, tuple[str, Any, list[int]]] = {
    "batch size": ("residual CNN, 32x32 images", cnn, [16, 32, 64, 128, 256, 512]),
    "sequence length": ("transformer 2x128, batch 8", transformer, [16, 32, 64, 128, 256, 512]),
    "depth": ("MLP 256 wide, batch 256", mlp, [1, 2, 4, 8, 16, 32]),
}


def milliseconds(case: Case, rounds: int) -> dict[str, float]:
    steps = {variant: make_step(case, variant) for variant in ("plain", "privet")}
    for step in steps.values():
        step()
    seconds: dict[str, list[float]] = {variant: [] for variant in steps}
    for _ in range(rounds):
        for variant, step in steps.items():
            seconds[variant].append(cpu_seconds(step))
    return {variant: round(1000 * statistics.median(values), 3) for variant, values in seconds.items()}


def memory(curve: str, size: int, variant: str) -> float:
    command = [sys.executable, __file__, "--measure-memory", curve, str(size), variant]
    return round(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 2**20, 2)


def measure_memory(curve: str, size: int, variant: str) -> int:
    torch.set_num_threads(1)
    case = CURVES[curve][1](size)
    make_step(case, variant, 2)()
    step = make_step(case, variant)
    base = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        step()
    return _status("VmHWM") - base


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure-memory", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.measure_memory:
        curve, size, variant = options.measure_memory
        print(measure_memory(curve, int(size), variant))
        return
    torch.set_num_threads(1)
    privet.keep_freed_memory()
    rows = []
    for curve, (title, make, sizes) in CURVES.items():
        print(f"\n{curve}: {title}", flush=True)
        for size in sizes:
            times = milliseconds(make(size), options.rounds)
            peaks = {variant: memory(curve, size, variant) for variant in times}
            ratio = times["privet"] / times["plain"]
            print(
                f"  {size:5}  plain {times['plain']:9.2f} ms  privet {times['privet']:9.2f} ms  ratio {ratio:.2f}",
                end="",
            )
            print(f"   memory {peaks['plain']:8.1f} and {peaks['privet']:8.1f} MiB", flush=True)
            rows += [
                {
                    "curve": curve,
                    "title": title,
                    "size": size,
                    "variant": v,
                    "milliseconds": times[v],
                    "mebibytes": peaks[v],
                }
                for v in times
            ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "growth.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    put("performance.md", "growth", "\n".join(table(rows)))
    draw(rows)


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| what grows | size | plain, ms | Privet, ms | ratio | plain, MiB | Privet, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for plain, ours in zip(rows[::2], rows[1::2], strict=True):
        times, peaks = (plain["milliseconds"], ours["milliseconds"]), (plain["mebibytes"], ours["mebibytes"])
        lines.append(
            f"| {plain['curve']} ({plain['title']}) | {plain['size']} | {times[0]:.1f} | {times[1]:.1f} | "
            f"{times[1] / times[0]:.2f} | {peaks[0]:.1f} | {peaks[1]:.1f} |"
        )
    return lines


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    matplotlib.rcParams["svg.hashsalt"] = "privet"
    figure, axes = plt.subplots(2, len(CURVES), figsize=(11, 6))
    for column, (curve, (title, _, _)) in enumerate(CURVES.items()):
        for axis, quantity in zip(axes[:, column], ("milliseconds", "mebibytes"), strict=True):
            for variant, colour, marker in (("plain", "#8a8f98", "o"), ("privet", "#1b7f5c", "s")):
                points = [(r["size"], r[quantity]) for r in rows if r["curve"] == curve and r["variant"] == variant]
                axis.loglog(*zip(*points, strict=True), color=colour, marker=marker, label=variant)
            axis.set_xticks(CURVES[curve][2], labels=map(str, CURVES[curve][2]))
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            for ticks in (axis.xaxis, axis.yaxis):
                ticks.set_minor_formatter("")
            axis.set_xlabel(curve)
            axis.set_ylabel("CPU time of a step, ms" if quantity == "milliseconds" else "peak memory, MiB")
            axis.grid(alpha=0.3)
        axes[0, column].set_title(title, fontsize=9)
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(IMAGES / "growth.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
