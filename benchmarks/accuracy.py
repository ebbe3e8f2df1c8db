"""The tables and the figures of docs/results.md, from benchmarks/results/accuracy.json.

Nothing is trained here: rows are put into the file by `privet reproduce RECIPE --results benchmarks/results/accuracy.json`.

    python benchmarks/accuracy.py
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from privet import recipes
from privet.cli.reproduce import shown
from privet.io import build
from privet.recipes.methods import CLAIMED, METHODS
from privet.recipes.table import Row

sys.path.insert(0, str(Path(__file__).parent))
from _page import put

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "accuracy.json"
RACE = ROOT / "benchmarks" / "results" / "opacus_training.json"
ELLIPTICAL = "optimized-noise-elliptical"
IMAGES = ROOT / "docs" / "images"
COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#666666")


def main() -> None:
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = [build(Row, row) for row in stored if row.get("method") in METHODS]
    rows.sort(key=lambda row: (list(METHODS).index(row.method), row.epsilon))
    comparing = {row.recipe for row in rows if len(recipes.load(row.recipe).methods) > 1}
    by_recipe = grouped(row for row in rows if row.method == "dpsgd" and row.recipe not in comparing)
    fill_tables(by_recipe | grouped(row for row in rows if row.recipe in comparing))
    fill_ellipses(rows)
    fill_race()
    matplotlib.rcParams["svg.hashsalt"] = "privet"
    against_epsilon(by_recipe)
    against_epochs(by_recipe)
    against_gaussian([row for row in rows if row.recipe == "xiang-mnist"])
    ellipses(rows)


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    by_recipe: dict[str, list[Row]] = {}
    for row in rows:
        by_recipe.setdefault(row.recipe, []).append(row)
    return by_recipe


def fill_tables(by_recipe: dict[str, list[Row]]) -> None:
    """Put the table of each recipe between its marks on the page."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for name, rows in by_recipe.items():
        if f"<!-- {name} -->" not in page:
            continue
        commands = "\n".join(dict.fromkeys(row.command for row in rows))
        table = "\n".join(shown(recipes.load(name), rows).splitlines()[2:])
        put("results.md", name, f"```sh\n{commands}\n```\n\n{table}")


def fill_ellipses(rows: list[Row]) -> None:
    """Elliptical clipping in the settings of recipes that were made for plain DP-SGD."""
    pairs = [pair for pair in beside(rows) if len(recipes.load(pair[0].recipe).methods) == 1]
    if not pairs:
        return
    commands = "\n".join(dict.fromkeys(other.command for _, other in pairs))
    lines = ["| recipe | epsilon | flat, % | elliptical, % | difference | seeds |", "|---|---|---|---|---|---|"]
    for flat, other in pairs:
        gain = round(100 * (other.accuracy - flat.accuracy), 2) + 0.0
        seeds = f"{flat.seeds} and {other.seeds}" if flat.seeds != other.seeds else f"{flat.seeds}"
        lines.append(f"| {flat.recipe} | {flat.epsilon:g} | {spread(flat)} | {spread(other)} | {gain:+.2f} | {seeds} |")
    put("results.md", "ellipse-features", f"```sh\n{commands}\n```\n\n" + "\n".join(lines))


def beside(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Plain DP-SGD and elliptical clipping by the same recipe at the same budget, tuned comparisons first."""
    flat = {(row.recipe, row.epsilon): row for row in rows if row.method == "dpsgd"}
    pairs = [(flat[row.recipe, row.epsilon], row) for row in rows if row.method == ELLIPTICAL]
    kept = [pair for pair in pairs if pair[0].recipe != "xiang-mnist"]
    return sorted(kept, key=lambda pair: (not pair[0].recipe.startswith("ellipse"), pair[0].recipe, pair[0].epsilon))


def spread(row: Row) -> str:
    return f"{100 * row.accuracy:.2f}" + (f" ± {100 * row.std:.2f}" if row.std is not None else "")


def fill_race() -> None:
    """The race against Opacus, as benchmarks/opacus_training.py left it."""
    row = json.loads(RACE.read_text(encoding="utf-8"))
    lines = [f"```sh\n{row['command']}\n```\n", "| | CPU milliseconds a step | accuracy % |", "|---|---|---|"]
    for name in ("privet", "opacus"):
        title = "Privet" if name == "privet" else f"Opacus, {row['mode']}"
        lines.append(f"| {title} | {row['milliseconds_a_step'][name]:.0f} | {100 * row['accuracy'][name]:.2f} |")
    plan = f"{row['steps']} steps, lots of {row['lot']:,}, epsilon {row['epsilon']:g}, delta {row['delta']:g}"
    put("results.md", "race", "\n".join([*lines, "", f"{plan}: Opacus takes {row['ratio']:.1f} times as long."]))


def against_epsilon(by_recipe: dict[str, list[Row]]) -> None:
    """Accuracy against epsilon, a panel for each data set, published figures as crosses."""
    data = [
        name for name in ("mnist", "fashion-mnist", "cifar10") if any(r[0].data == name for r in by_recipe.values())
    ]
    figure, panels = plt.subplots(1, len(data), figsize=(4.2 * len(data), 3.6), squeeze=False)
    for name, axes in zip(data, panels[0], strict=True):
        curves = {recipe: rows for recipe, rows in by_recipe.items() if rows[0].data == name}
        for colour, (recipe, rows) in zip(COLOURS, curves.items(), strict=False):
            where = [row.epsilon for row in rows]
            spread = [100 * (row.std or 0) for row in rows]
            axes.errorbar(
                where, [100 * row.accuracy for row in rows], spread, label=recipe, color=colour, marker="o", ms=4
            )
            published = recipes.load(recipe).published
            axes.plot([p.epsilon for p in published], [p.accuracy for p in published], "x", color=colour, ms=7, mew=2)
        axes.set_xscale("log")
        ticks = (0.5, 1, 2, 3, 8)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_title(name, fontsize=10)
        dress(axes, "epsilon at delta = 1e-05")
    save(figure, "accuracy-epsilon.svg")


def against_epochs(by_recipe: dict[str, list[Row]]) -> None:
    """Accuracy against epochs, a panel for each budget, as in the paper's figures."""
    rows = by_recipe.get("abadi-mnist") or by_recipe.get("mnist-scattering") or next(iter(by_recipe.values()))
    practical = {row.epsilon: row for row in by_recipe.get("mnist-scattering", [])}
    figure, panels = plt.subplots(1, len(rows), figsize=(4.2 * len(rows), 3.6), squeeze=False, sharey=True)
    for row, axes in zip(rows, panels[0], strict=True):
        drawn = [row] + ([practical[row.epsilon]] if row.epsilon in practical and row.recipe == "abadi-mnist" else [])
        for colour, each in zip(COLOURS[1::-1], drawn, strict=False):
            epochs, _, accuracies = zip(*each.curve, strict=True)
            axes.plot(epochs, [100 * value for value in accuracies], color=colour, label=each.recipe)
        if paper := row.published(recipes.load(row.recipe)):
            axes.axhline(paper.accuracy, color="#888888", linestyle=":", label=f"published: {paper.accuracy:g} %")
        axes.set_xscale("log")
        axes.set_title(f"epsilon {row.epsilon:g}, delta {row.delta:g}", fontsize=10)
        axes.set_ylim(60, 100)
        dress(axes, "epoch")
    save(figure, "accuracy-epochs.svg")


def against_gaussian(rows: list[Row]) -> None:
    """Optimised noise and the Gaussian at the same budget; what is only claimed is dashed, hollow and says so."""
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    for colour, key in zip(COLOURS, dict.fromkeys(row.method for row in rows), strict=False):
        curve = [row for row in rows if row.method == key]
        title = METHODS[key].title
        claimed = CLAIMED in title
        axes.errorbar(
            [row.epsilon for row in curve],
            [100 * row.accuracy for row in curve],
            [100 * (row.std or 0) for row in curve],
            label=title.replace("Optimised additive noise (Xiang et al. 2019), ", "Optimised noise, "),
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


def ellipses(rows: list[Row]) -> None:
    """What elliptical clipping gains over flat clipping, in percent points, with the deviation of the difference of means."""
    pairs = beside(rows)[::-1]
    figure, axes = plt.subplots(figsize=(7.2, 1.2 + 0.32 * len(pairs)))
    for place, (flat, other) in enumerate(pairs):
        error = 100 * math.hypot(*((row.std or 0) / math.sqrt(row.seeds) for row in (flat, other)))
        gain = 100 * (other.accuracy - flat.accuracy)
        axes.errorbar(gain, place, xerr=error, marker="o", ms=5, color=COLOURS[0] if gain > 0 else COLOURS[1])
    axes.axvline(0, color="#888888", linewidth=1)
    axes.set_yticks(range(len(pairs)), [f"{flat.recipe}, epsilon {flat.epsilon:g}" for flat, _ in pairs], fontsize=8)
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
