"""Clipped sums of per-example gradients: Privet against plain training and every mode of Opacus.

All variants of a model run interleaved in one process on one thread; what is compared is process CPU time, as the median
over rounds of the ratio to plain training in the same round. Memory is the peak above the process's base, the median of three
processes of each variant. One training step is zero_grad, forward, backward, clipping, a step of SGD; no noise, no sampling.
Time is measured twice: with the C library's settings as they come, and with freed memory kept (`privet.keep_freed_memory`). As
it comes, the library decides what to keep by the largest block that was freed so far, so that a variant with large blocks spares
the others some of their page faults: the same plain step is faster where Opacus runs in the same process. With freed memory
kept no variant has page faults, and no ratio depends on which variants run.

    python benchmarks/engine.py [--models mlp,cnn] [--variants plain,privet] [--rounds 15]
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from _cases import CASES, Case
from _page import put

import privet

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parent.parent / "docs" / "images"
NORM = 1.0
VARIANTS = (
    "plain",
    "plain-channels_last",
    "privet",
    "privet-channels_last",
    "opacus-hooks",
    "opacus-functorch",
    "opacus-ew",
    "opacus-ghost",
)
Step = Callable[[], None]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def plain_step(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def privet_step(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from privet.clipping import FlatClipping
    from privet.gradients import Engine

    optimizer, engine, clipping = sgd(model), Engine(model).attach(), FlatClipping(NORM)
    parameters = dict(model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for name, tensor in clipping.clip(engine.gradients()).tensors.items():
            parameters[name].grad = tensor.div_(len(x))
        optimizer.step()

    return step


def opacus_step(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> Step:
    from opacus.grad_sample import wrap_model
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from opacus.validators import ModuleValidator

    model = ModuleValidator.fix(model).train()
    settings: dict[str, Any] = {"noise_multiplier": 0.0, "max_grad_norm": NORM, "expected_batch_size": len(x)}
    if mode == "ghost":
        wrapped = wrap_model(model, grad_sample_mode="ghost", max_grad_norm=NORM, use_ghost_clipping=True)
        ghost = DPOptimizerFastGradientClipping(sgd(wrapped), **settings)
        criterion = DPLossFastGradientClipping(wrapped, ghost, nn.CrossEntropyLoss(), loss_reduction="mean")

        def ghost_step() -> None:
            ghost.zero_grad()
            criterion(wrapped(x), y).backward()
            ghost.step()

        return ghost_step
    wrapped = wrap_model(model, grad_sample_mode=mode)
    optimizer = DPOptimizer(sgd(wrapped), **settings)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    return step


def make_step(case: Case, variant: str, batch: int | None = None) -> Step:
    torch.manual_seed(0)
    model, size = case.make(), batch or case.batch
    x, y = case.inputs(size), case.targets(size)
    family, _, mode = variant.partition("-")
    if mode == "channels_last":
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    if family == "plain":
        return plain_step(model, x, y)
    if family == "privet":
        return privet_step(model, x, y)
    return opacus_step(copy.deepcopy(model), x, y, mode)


def cpu_seconds(step: Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def time_ratios(case: Case, variants: list[str], rounds: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """For each variant its CPU time over that of plain training in the same round; and why some could not run."""
    steps: dict[str, Step] = {}
    failures: dict[str, str] = {}
    for variant in ["plain", *(v for v in variants if v != "plain")]:
        try:
            step = make_step(case, variant)
            step()
            step()
            steps[variant] = step
        except Exception as error:
            failures[variant] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    ratios: dict[str, list[float]] = {variant: [] for variant in steps}
    for _ in range(rounds):
        seconds = {variant: cpu_seconds(step) for variant, step in steps.items()}
        for variant, second in seconds.items():
            ratios[variant].append(second / seconds["plain"])
    return ratios, failures


def time_ratios_apart(
    model: str, variants: list[str], rounds: int, *, kept: bool
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """`time_ratios` in a process of its own, with freed memory kept or not."""
    command = [sys.executable, __file__, "--measure-time", model, ",".join(variants), str(rounds), str(int(kept))]
    ratios, failures = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return ratios, failures


def measure_time(model: str, variants: str, rounds: str, kept: str) -> None:
    torch.set_num_threads(1)
    if int(kept):
        privet.keep_freed_memory()
    print(json.dumps(time_ratios(CASES[model], variants.split(","), int(rounds))))


def peak_memory(model: str, variant: str, batch: int | None = None) -> float | None:
    """Peak bytes above the base, the median of three processes of its own, or None where the variant does not run."""
    command = [sys.executable, __file__, "--measure-memory", model, variant, str(batch or 0)]
    done = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(3)]
    return statistics.median(int(one.stdout) for one in done) if not any(one.returncode for one in done) else None


def measure_memory(model: str, variant: str, batch: int) -> int:
    torch.set_num_threads(1)
    case = CASES[model]
    # One step of a batch of two loads every library before the base is taken.
    make_step(case, variant, 2)()
    step = make_step(case, variant, batch or None)
    base = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for _ in range(3):
        step()
    return _status("VmHWM") - base


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} on this system")


def machine() -> dict[str, Any]:
    model = next(
        (s.split(":")[1].strip() for s in Path("/proc/cpuinfo").read_text().splitlines() if s.startswith("model name")),
        "",
    )
    return {"processor": model, "python": platform.python_version(), "torch": torch.__version__, "threads": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["time", "memory"], help="leave the other as it was measured last")
    parser.add_argument("--measure-time", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--measure-memory", nargs=3, metavar=("MODEL", "VARIANT", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.measure_memory:
        model, variant, batch = options.measure_memory
        print(measure_memory(model, variant, int(batch)))
        return
    if options.measure_time:
        measure_time(*options.measure_time)
        return
    models, variants = options.models.split(","), options.variants.split(",")
    unknown = [m for m in models if m not in CASES] + [v for v in variants if v not in VARIANTS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; models are {', '.join(CASES)}; variants are {', '.join(VARIANTS)}")
    rows = []
    for name in models:
        rows += measure(name, variants, options)
    write(rows, models, variants)


def measure(name: str, variants: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    case = CASES[name]
    chosen = [v for v in variants if case.images or not v.endswith("channels_last")]
    print(f"\n{case.title}", flush=True)
    ratios: dict[str, list[float]] = {}
    ratios_kept: dict[str, list[float]] = {}
    failures: dict[str, str] = {}
    if options.only != "memory":
        ratios, failures = time_ratios_apart(name, chosen, options.rounds, kept=False)
        ratios_kept, _ = time_ratios_apart(name, chosen, options.rounds, kept=True)
    base = None if options.only == "time" else peak_memory(name, "plain")
    rows = []
    for variant in chosen:
        row: dict[str, Any] = {
            "model": name,
            "title": case.title,
            "variant": variant,
            "time_ratio": None,
            "time_ratio_kept": None,
            "memory_ratio": None,
        }
        if variant in failures:
            row["failed"] = failures[variant]
        elif ratios:
            quartiles = statistics.quantiles(ratios[variant], n=4)
            row["time_ratio"] = round(statistics.median(ratios[variant]), 3)
            row["time_quartiles"] = [round(quartiles[0], 3), round(quartiles[2], 3)]
            row["time_ratio_kept"] = round(statistics.median(ratios_kept[variant]), 3)
        if base and variant not in failures:
            peak = base if variant == "plain" else peak_memory(name, variant)
            row["memory_ratio"] = round(peak / base, 3) if peak is not None else None
        rows.append(row)
        print("  " + said(row), flush=True)
    return rows


def said(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['variant']:22} does not run: {row['failed']}"
    memory = f"{row['memory_ratio']:.2f}" if row["memory_ratio"] is not None else "-"
    if row["time_ratio"] is None:
        return f"{row['variant']:22} memory {memory}"
    low, high = row["time_quartiles"]
    time_ratio = f"time {row['time_ratio']:6.2f} ({low:.2f} to {high:.2f})"
    return f"{row['variant']:22} {time_ratio}, with freed memory kept {row['time_ratio_kept']:.2f}   memory {memory}"


GOALS = {"mlp": 1.10, "cnn": 1.0, "resnet8": 1.10, "wrn-16-4": 1.05, "transformer": 1.10, "lstm": 1.3}


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """In words: where we lose, against our goals and against Opacus, with the C library's settings as they come."""
    words = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [r for r in rows if r["model"] == model and r["variant"].startswith("privet") and r["time_ratio"]]
        peers = [r for r in rows if r["model"] == model and r["variant"].startswith("opacus") and r["time_ratio"]]
        if not mine:
            continue
        ours = min(mine, key=lambda r: r["time_ratio"])
        sentence = (
            f"{model}: {ours['variant']} takes {ours['time_ratio']:.2f} of plain training (goal {GOALS[model]:.2f})"
        )
        sentence += ", reached" if ours["time_ratio"] <= GOALS[model] else ", MISSED"
        if ours["memory_ratio"] is not None:
            sentence += f"; memory {ours['memory_ratio']:.2f} (goal 1.30)" + (
                ", reached" if ours["memory_ratio"] <= 1.3 else ", MISSED"
            )
        if peers:
            best = min(peers, key=lambda r: r["time_ratio"])
            factor = best["time_ratio"] / ours["time_ratio"]
            sentence += f"; {factor:.1f} times as fast as {best['variant']} (goal 1.5)" + (
                ", reached" if factor >= 1.5 else ", MISSED"
            )
        if mine and (
            last := next((r for r in rows if r["model"] == model and r["variant"] == "plain-channels_last"), None)
        ):
            own = next((r for r in mine if r["variant"] == "privet-channels_last"), None)
            if own is not None and last["time_ratio"]:
                sentence += f"; {own['time_ratio'] / last['time_ratio']:.2f} of plain training in channels_last"
        words.append(sentence + ".")
    return words


def write(rows: list[dict[str, Any]], models: list[str], variants: list[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "engine.json"
    # A run of a part replaces that part and leaves the rest.
    kept = json.loads(path.read_text()) if path.exists() else []
    known = {(row["model"], row["variant"]): row for row in kept}
    for row in rows:
        for key, value in known.get((row["model"], row["variant"]), {}).items():
            if row.get(key) is None and key != "machine" and "failed" not in row:
                row[key] = value
    kept = [row for row in kept if not (row["model"] in models and row["variant"] in variants)]
    order = {model: i for i, model in enumerate(CASES)}
    rows = sorted(
        kept + [{**row, "machine": machine()} for row in rows],
        key=lambda r: (order[r["model"]], VARIANTS.index(r["variant"])),
    )
    path.write_text(json.dumps(rows, indent=1) + "\n")
    words = verdicts(rows)
    print("\n" + "\n".join(words))
    text = "\n".join([*table(rows), "", *(f"- {word}" for word in words), "", described(rows)])
    (RESULTS / "engine.md").write_text(text + "\n")
    put("performance.md", "engine", text)
    draw(rows)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line for each model, one column for each variant: time, time with freed memory kept, memory in brackets."""
    variants = [v for v in VARIANTS if v != "plain" and any(row["variant"] == v for row in rows)]
    lines = [
        "| model | " + " | ".join(v.replace("-", " ", 1) for v in variants) + " |",
        "|---" * (1 + len(variants)) + "|",
    ]
    for title in dict.fromkeys(row["title"] for row in rows):
        found = {row["variant"]: row for row in rows if row["title"] == title}
        lines.append(f"| {title} | " + " | ".join(cell(found.get(variant)) for variant in variants) + " |")
    return lines


def cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["time_ratio"] is None:
        return "does not run"
    memory = "" if row["memory_ratio"] is None else f" ({row['memory_ratio']:.2f})"
    time_ratio = f"{row['time_ratio']:.2f}"
    kept = f", {row['time_ratio_kept']:.2f}" if row.get("time_ratio_kept") is not None else ""
    return (f"**{time_ratio}**" if row["variant"].startswith("privet") else time_ratio) + kept + memory


def described(rows: list[dict[str, Any]]) -> str:
    machines = list(dict.fromkeys(", ".join(f"{k} {v}" for k, v in row["machine"].items()) for row in rows))
    return "Measured on: " + "; ".join(machines) + "."


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = plt.subplots(2, -(-len(models) // 2), figsize=(11, 6), squeeze=False)
    colours = {"plain": "#8a8f98", "privet": "#1b7f5c", "opacus": "#c46a2b"}
    for axis, model in zip(axes.flat, models, strict=False):
        mine = [row for row in rows if row["model"] == model and row["time_ratio"]]
        names = [row["variant"] for row in mine]
        bars = axis.barh(names, [row["time_ratio"] for row in mine], color=[colours[n.split("-")[0]] for n in names])
        axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.set_title(mine[0]["title"], fontsize=8)
        axis.tick_params(labelsize=7)
        axis.invert_yaxis()
        axis.margins(x=0.2)
    for axis in axes.flat[len(models) :]:
        axis.axis("off")
    figure.supxlabel("CPU time of a training step, as a multiple of plain training (log scale)", fontsize=9)
    figure.tight_layout()
    matplotlib.rcParams["svg.hashsalt"] = "privet"
    figure.savefig(IMAGES / "engine.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
