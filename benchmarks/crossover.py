"""Where optimised pure-epsilon noise beats calibrated Gaussian noise: the figure and the tables of docs/optimised-noise.md.

Everything is computed from formulas and accountants; nothing is trained and nothing is timed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from _page import put

from privet.noise.additive import Crossover, isotropic_constant
from privet.privacy import Budget, IsotropicL2

IMAGES = Path(__file__).parent.parent / "docs" / "images"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
RUNS = {
    "one release": {},
    "2 releases": {"steps": 2},
    "5 releases": {"steps": 5},
    "10 releases": {"steps": 10},
    "100 releases": {"steps": 100},
    "10,000 steps on samples of 1 %": {"rate": 0.01, "steps": 10_000},
}


def main() -> None:
    put("optimised-noise.md", "crossover", "\n".join(table()))
    put("optimised-noise.md", "exact", "\n".join(exact()))
    draw()


def table() -> list[str]:
    lines = ["| | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |", "|---|" + "---|" * len(EPSILONS)]
    for name, run in RUNS.items():
        cells = []
        for epsilon in EPSILONS:
            found = Crossover(epsilon, **run)
            most = f"d <= {found.dimension:,}" if found.dimension else "never"
            cells.append(f"{most}; {found.ratio(1e5):.0f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def exact() -> list[str]:
    """Isotropic noise composed as what it is, and not as any pure-epsilon mechanism: 100 releases within (2, 1e-5)."""
    steps, budget = 100, Budget(2.0, 1e-5)
    gaussian = np.sqrt(2 / np.pi) * budget.noise_multiplier(1.0, steps)
    lines = ["| coordinates | as any pure-epsilon noise | by its own privacy loss |", "|---|---|---|"]
    known = Crossover(2.0, steps=steps)
    for dimension in (2, 10, 100, 1000):
        scale = budget.least(lambda x, d=dimension: IsotropicL2(x, d) * steps, 1.0)
        own = float(isotropic_constant(dimension)) * scale / gaussian
        lines.append(f"| {dimension:,} | {known.ratio(dimension):.2f} | {own:.3f} |")
    return lines


def draw() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "privet"
    epsilons = np.geomspace(0.05, 12, 25)
    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    for (name, run), shade in zip(list(RUNS.items())[:3], ("#1b7f5c", "#5aa88c", "#a5d0c0"), strict=True):
        most = [largest(Crossover(float(epsilon), **run)) for epsilon in epsilons]
        axes.plot(epsilons, most, color=shade, label=name)
        if not run:
            axes.fill_between(epsilons, 1, most, color=shade, alpha=0.12)
    axes.axhline(26_010, color="#8a8f98", linestyle="--")
    axes.annotate("a small network: 26,010 parameters", (0.055, 33_000), color="#55595f", fontsize=9)
    axes.annotate("pure-epsilon noise is smaller", (0.055, 2.1), color="#1b7f5c", fontsize=9)
    axes.annotate("Gaussian noise is smaller", (0.7, 600), color="#55595f", fontsize=9)
    axes.set(xscale="log", yscale="log", ylim=(1, 2e5), xlim=(0.05, 12))
    axes.set_xlabel("epsilon (delta = 1e-5)")
    axes.set_ylabel("coordinates d")
    axes.set_title("The most coordinates in which optimised pure-epsilon noise beats the Gaussian", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(loc="center right", frameon=False, fontsize=9)
    figure.savefig(IMAGES / "crossover.svg", metadata={"Date": None})


def largest(found: Crossover) -> float:
    """The d, not rounded, at which the two cost the same; NaN where the Gaussian always wins."""
    if found.ratio(1.0) > 1:
        return float("nan")
    low, high = 1.0, 1e6
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if found.ratio(middle) <= 1 else (low, middle)
    return low


if __name__ == "__main__":
    main()
