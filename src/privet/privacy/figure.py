"""Epsilon against steps under every accountant: the moments accountant's comparison figure, with what came after it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privet.privacy.accountants import accountant_named
from privet.privacy.accountants.composition import Strong
from privet.privacy.events import Gaussian, PoissonSampled
from privet.privacy.relations import Relation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("strong-exact", "strong composition, exact amplification", {"color": "#b0b0b0", "linestyle": "--"}),
    ("strong-published", "strong composition as published", {"color": "#7f7f7f"}),
    ("moments", "moments accountant", {"color": "#d95f02"}),
    ("rdp", "RDP", {"color": "#7570b3"}),
    ("pld", "PLD", {"color": "#1b9e77", "linewidth": 2.2}),
)


def epsilon_curves(
    rate: float,
    noise_multiplier: float,
    delta: float,
    steps: int,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
    points: int = 24,
) -> tuple[list[int], dict[str, list[float]]]:
    """The steps at which epsilon is computed, and for each accountant that has a bound its epsilons."""
    marks = sorted({max(1, round(steps * (i / points) ** 1.5)) for i in range(1, points + 1)})
    step = PoissonSampled(rate, Gaussian(noise_multiplier))
    curves: dict[str, list[float]] = {}
    for key, _, _ in CURVES:
        accountant = Strong(classic=True) if key == "strong-exact" else accountant_named(key)
        if accountant.supports(step, relation):
            curves[key] = [accountant.epsilon(step * mark, delta, relation) for mark in marks]
    return marks, curves


def draw_epsilons(
    axes: Axes,
    rate: float,
    noise_multiplier: float,
    delta: float,
    steps: int,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> None:
    """Draw epsilon against steps, one curve for each accountant, labelled at its end."""
    marks, curves = epsilon_curves(rate, noise_multiplier, delta, steps, relation=relation)
    for key, label, style in CURVES:
        if key in curves:
            end = curves[key][-1]
            said = f"{label}: {end:.3g}" if math.isfinite(end) else label
            axes.plot(marks, curves[key], label=said, **style)
    axes.set_yscale("log")
    axes.set_xlim(0, steps)
    axes.set_xlabel("steps")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    said = Relation.of(relation).describe()
    axes.set_title(f"sampling rate {rate:g}, noise multiplier {noise_multiplier:g} ({said})", fontsize=10)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(title=f"after {steps} steps", fontsize=8, title_fontsize=8)


def save_epsilons(
    path: str | Path,
    rate: float,
    noise_multiplier: float,
    delta: float,
    steps: int,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> None:
    """Write the figure to a file: SVG, PNG or PDF by its ending."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    draw_epsilons(figure.add_subplot(), rate, noise_multiplier, delta, steps, relation=relation)
    figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
