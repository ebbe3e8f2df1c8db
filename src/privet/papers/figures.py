"""The figures of the papers: a picture recovered from its features, and the ROC curves of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from privet.attacks import convolved, draw_reversal, reverse
from privet.attacks.pictures import picture
from privet.papers.results import Measurement
from privet.papers.table import PaperTable

PICTURE = "reversal.jpg"
CURVES = "roc.svg"


def draw_figure(table: PaperTable, folder: Path, image: Path | None = None) -> tuple[Path, list[Measurement]]:
    """Recover a picture from its features, without noise and with it; gives the figure's file and the error of each line."""
    folder.mkdir(parents=True, exist_ok=True)
    original, field, generator = picture(image), convolved(), torch.Generator().manual_seed(0)
    found = {}
    for line in table.cases:
        gamma, multiplicative = float(line.settings.get("gamma", 0)), line.settings.get("strategy") == "II"
        recovered = reverse(original, field, gamma=gamma, multiplicative=multiplicative, generator=generator)
        found[line.key] = recovered
    made = [Measurement(table.name, name, None, table.delta, {"error": each.rmse}) for name, each in found.items()]
    return draw_reversal(folder / PICTURE, found), made


def draw_rocs(path: Path, table: PaperTable, found: Sequence[Measurement]) -> Path:
    """One curve for each measurement of a table, and the diagonal of an attack that guesses."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.add_subplot()
    colors, lines = colormaps["viridis"], {line.key: line for line in table.cases}
    for number, one in enumerate(found):
        attack, line = one.attack, lines[one.line]
        assert attack is not None
        axes.plot(
            attack.false_positive_rate,
            attack.true_positive_rate,
            color=colors(number / max(1, len(found) - 1)),
            linestyle="--" if line.method == "residual-dpsgd" else "-" if line.settings.get("skips", True) else ":",
            label=f"{line.title}: {attack.auc:.3f}",
        )
    axes.plot([0, 1], [0, 1], color="#a0a0a0", linewidth=1, label="guessing: 0.5")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.grid(visible=True, alpha=0.2)
    axes.legend(title="area under the curve", loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
