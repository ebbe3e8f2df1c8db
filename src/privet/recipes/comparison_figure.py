"""The ROC curves of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privet.recipes.comparison import Measured


def draw_rocs(path: Path, lines: Sequence[Measured]) -> Path:
    """One curve for each line of the table, and the coin."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["viridis"]
    for number, line in enumerate(lines):
        attack = line.attack
        axes.plot(
            attack.false_positive_rate,
            attack.true_positive_rate,
            color=colours(number / max(1, len(lines) - 1)),
            linestyle="--" if line.line.dpsgd else ":" if not line.line.skips else "-",
            label=f"{line.title}: {attack.auc:.3f}",
        )
    axes.plot([0, 1], [0, 1], color="#a0a0a0", linewidth=1, label="a coin: 0.5")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.grid(visible=True, alpha=0.2)
    axes.legend(title="area under the curve", loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
