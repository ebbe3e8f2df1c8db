"""The figures of docs/results.md, its comparison of clippings and its race against Opacus, from benchmarks/results.

Nothing is trained here: measurements are put there by `privet reproduce NAME --results benchmarks/results`. The tables of the
page that are named after a paper's table are filled by benchmarks/reproduced.py.

    python benchmarks/accuracy.py
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from privet.methods import METHODS
from privet.papers import Measurement, load, names, read
from privet.papers.results import means

sys.path.insert(0, str(Path(__file__).parent))
from _page import put

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RACE = RESULTS / "opacus_training.json"
ELLIPTICAL = "optimized-noise-elliptical"
IMAGES = ROOT / "docs" / "images"
COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#666666")


def main() -> None:
    tables = [name for name in names() if load(name).protocol == "accuracy"][
        ::-1
    ]  # practical recipes before a paper's own
    rows = [row for name in tables for row in means(read(RESULTS / f"{name}.json")) if row.line in METHODS]
    rows.sort(key=lambda row: (list(METHODS).index(row.line), row.epsilon))
    by_table: dict[str, list[Measurement]] = {}
    for row in rows:
        if row.line == "dpsgd" and len(load(row.table).lines) == 1:
            by_table.setdefault(row.table, []).append(row)
    fill_ellipses(rows)
    fill_race()
    matplotlib.rcParams["svg.hashsalt"] = "privet"
    against_epsilon(by_table)
    against_epochs(by_table)
    against_gaussian([row for row in rows if row.table == "xiang-mnist"])
    ellipses(rows)


def percent(row: Measurement) -> float:
    return 100 * row.quantities["accuracy"]


def deviation(row: Measurement) -> float:
    return 100 * row.spread.get("accuracy", 0.0)


def fill_ellipses(rows: list[Measurement]) -> None:
    """Elliptical clipping in the settings of recipes that were made for plain DP-SGD."""
    pairs = [pair for pair in beside(rows) if len(load(pair[0].table).lines) == 1]
    if not pairs:
        return
    commands = "\n".join(dict.fromkeys(other.command for _, other in pairs))
    lines = ["| recipe | epsilon | flat, % | elliptical, % | difference | seeds |", "|---|---|---|---|---|---|"]
    for flat, other in pairs:
        gain = round(percent(other) - percent(flat), 2) + 0.0
        seeds = f"{flat.seeds} and {other.seeds}" if flat.seeds != other.seeds else f"{flat.seeds}"
        lines.append(f"| {flat.table} | {flat.epsilon:g} | {spread(flat)} | {spread(other)} | {gain:+.2f} | {seeds} |")
    put("results.md", "ellipse-features", f"```sh\n{commands}\n```\n\n" + "\n".join(lines))


def beside(rows: list[Measurement]) -> list[tuple[Measurement, Measurement]]:
    """Plain DP-SGD and elliptical clipping by the same recipe at the same budget, tuned comparisons first."""
    flat = {(row.table, row.epsilon): row for row in rows if row.line == "dpsgd"}
    pairs = [(flat[row.table, row.epsilon], row) for row in rows if row.line == ELLIPTICAL]
    kept = [pair for pair in pairs if pair[0].table != "xiang-mnist"]
    return sorted(kept, key=lambda pair: (not pair[0].table.startswith("ellipse"), pair[0].table, pair[0].epsilon))


def spread(row: Measurement) -> str:
    return f"{percent(row):.2f}" + (f" ± {deviation(row):.2f}" if row.spread else "")


def fill_race() -> None:
    """The race against Opacus, as benchmarks/opacus_training.py left it."""
    row = json.loads(RACE.read_text(encoding="utf-8"))
    lines = [f"```sh\n{row['command']}\n```\n", "| | CPU milliseconds a step | accuracy % |", "|---|---|---|"]
    for name in ("privet", "opacus"):
        title = "Privet" if name == "privet" else f"Opacus, {row['mode']}"
        lines.append(f"| {title} | {row['milliseconds_a_step'][name]:.0f} | {100 * row['accuracy'][name]:.2f} |")
    plan = f"{row['steps']} steps, lots of {row['lot']:,}, epsilon {row['epsilon']:g}, delta {row['delta']:g}"
    put("results.md", "race", "\n".join([*lines, "", f"{plan}: Opacus takes {row['ratio']:.1f} times as long."]))


def against_epsilon(by_table: dict[str, list[Measurement]]) -> None:
    """Accuracy against epsilon, a panel for each data set, published figures as crosses."""
    data = [name for name in ("mnist", "fashion-mnist", "cifar10") if any(r[0].data == name for r in by_table.values())]
    figure, panels = plt.subplots(1, len(data), figsize=(4.2 * len(data), 3.6), squeeze=False)
    for name, axes in zip(data, panels[0], strict=True):
        curves = {recipe: rows for recipe, rows in by_table.items() if rows[0].data == name}
        for colour, (recipe, rows) in zip(COLOURS, curves.items(), strict=False):
            where = [row.epsilon for row in rows]
            spread = [deviation(row) for row in rows]
            axes.errorbar(where, [percent(row) for row in rows], spread, label=recipe, color=colour, marker="o", ms=4)
            published = load(recipe).lines[0].published
            stated = [each.figures["accuracy"] for each in published]
            axes.plot([each.epsilon for each in published], stated, "x", color=colour, ms=7, mew=2)
        axes.set_xscale("log")
        ticks = (0.5, 1, 2, 3, 8)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_title(name, fontsize=10)
        dress(axes, "epsilon at delta = 1e-05")
    save(figure, "accuracy-epsilon.svg")


def against_epochs(by_table: dict[str, list[Measurement]]) -> None:
    """Accuracy against epochs, a panel for each budget, as in the paper's figures."""
    rows = by_table.get("abadi-mnist") or by_table.get("mnist-scattering") or next(iter(by_table.values()))
    practical = {row.epsilon: row for row in by_table.get("mnist-scattering", [])}
    figure, panels = plt.subplots(1, len(rows), figsize=(4.2 * len(rows), 3.6), squeeze=False, sharey=True)
    for row, axes in zip(rows, panels[0], strict=True):
        drawn = [row] + ([practical[row.epsilon]] if row.epsilon in practical and row.table == "abadi-mnist" else [])
        for colour, each in zip(COLOURS[1::-1], drawn, strict=False):
            epochs, _, accuracies = zip(*each.curve, strict=True)
            axes.plot(epochs, [100 * value for value in accuracies], color=colour, label=each.table)
        for paper in load(row.table).lines[0].at(row.epsilon).published:
            stated = paper.figures["accuracy"]
            axes.axhline(stated, color="#888888", linestyle=":", label=f"published: {stated:g} %")
        axes.set_xscale("log")
        axes.set_title(f"epsilon {row.epsilon:g}, delta {row.delta:g}", fontsize=10)
        axes.set_ylim(60, 100)
        dress(axes, "epoch")
    save(figure, "accuracy-epochs.svg")


def against_gaussian(rows: list[Measurement]) -> None:
    """Optimized noise and the Gaussian at the same budget; what is only claimed is dashed, hollow and says so."""
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    for colour, key in zip(COLOURS, dict.fromkeys(row.line for row in rows), strict=False):
        curve = [row for row in rows if row.line == key]
        title = METHODS[key].title
        claimed = "only claimed" in title
        axes.errorbar(
            [row.epsilon for row in curve],
            [percent(row) for row in curve],
            [deviation(row) for row in curve],
            label=title.replace("Optimized additive noise (Xiang et al. 2019), ", "Optimized noise, "),
            color=colour,
            marker="o",
            ms=6 if claimed else 4,
            mfc="white" if claimed else colour,
            linestyle="--" if claimed else "-",
        )
    axes.set_xscale("log")
    ticks = sorted({row.epsilon for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    dress(axes, "epsilon at delta = 1e-05")
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    save(figure, "xiang-mnist.svg")


def ellipses(rows: list[Measurement]) -> None:
    """What elliptical clipping gains over flat clipping, in percent points, with the deviation of the difference of means."""
    pairs = beside(rows)[::-1]
    figure, axes = plt.subplots(figsize=(7.2, 1.2 + 0.32 * len(pairs)))
    for place, (flat, other) in enumerate(pairs):
        error = math.hypot(*(deviation(row) / math.sqrt(row.seeds) for row in (flat, other)))
        gain = percent(other) - percent(flat)
        axes.errorbar(gain, place, xerr=error, marker="o", ms=5, color=COLOURS[0] if gain > 0 else COLOURS[1])
    axes.axvline(0, color="#888888", linewidth=1)
    axes.set_yticks(range(len(pairs)), [f"{flat.table}, epsilon {flat.epsilon:g}" for flat, _ in pairs], fontsize=8)
    axes.set_xlabel("accuracy of elliptical less that of flat clipping, percent points")
    axes.grid(visible=True, axis="x", alpha=0.2)
    save(figure, "ellipse.svg")


def dress(axes: Any, label: str) -> None:
    axes.set_xlabel(label)
    axes.set_ylabel("accuracy on test records, %")
    axes.grid(visible=True, alpha=0.2)
    axes.legend(fontsize=8, frameon=False, loc="lower right")


def save(figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(IMAGES / name, metadata={"Date": None})


if __name__ == "__main__":
    main()
