"""Epsilon against steps under every accountant: the moments accountant's comparison figure, with what came after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from privet.errors import InputError
from privet.privacy.accountants import accountant_named
from privet.privacy.accountants.composition import Strong
from privet.privacy.events import Gaussian, PoissonSampled
from privet.privacy.relations import Relation
from privet.privacy.spent import round_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("basic", "basic composition", {"color": "#c8c8c8", "linestyle": ":"}),
    ("strong-classic", "strong, classic Gaussian bound", {"color": "#a0a0a0", "linestyle": "--"}),
    ("strong", "strong composition", {"color": "#a0a0a0"}),
    ("optimal", "optimal composition", {"color": "#66a61e"}),
    ("strong-published", "strong as published (no bound)", {"color": "#444444", "linestyle": "-."}),
    ("moments", "moments accountant", {"color": "#d95f02"}),
    ("rdp", "RDP", {"color": "#7570b3"}),
    ("gdp", "GDP", {"color": "#e7298a", "linewidth": 3.5}),
    ("pld", "PLD", {"color": "#1b9e77", "linewidth": 2.2}),
)
"""Every accountant but the slow reference, and the paper's own Gaussian bound with the amplification that holds."""
ENDINGS = (".svg", ".png", ".pdf")
LEGEND: dict[str, Any] = {"alignment": "left", "fontsize": 9, "title_fontsize": 9, "frameon": False}


def epsilon_curves(
    rate: float,
    noise_multiplier: float,
    delta: float,
    steps: int,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
    points: int = 16,
) -> tuple[list[int], dict[str, list[float]]]:
    """The steps at which epsilon is computed, and for each accountant that has a bound its epsilons."""
    marks = sorted({max(1, round(steps * (i / points) ** 1.5)) for i in range(1, points + 1)})
    step = PoissonSampled(rate, Gaussian(noise_multiplier))
    curves: dict[str, list[float]] = {}
    for key, _, _ in CURVES:
        accountant = Strong(classic=True) if key == "strong-classic" else accountant_named(key)
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
            axes.plot(marks, curves[key], label=f"{label}: {round_up(curves[key][-1])}", **style)
    axes.set_yscale("log")
    axes.set_xlim(0, steps)
    axes.set_xlabel("steps")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    said = Relation.of(relation).describe()
    axes.set_title(f"sampling rate {rate:g}, noise multiplier {noise_multiplier:g} ({said})", fontsize=10)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(title=f"epsilon after {steps:,} steps", loc="upper left", bbox_to_anchor=(1.02, 1.0), **LEGEND)


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
    file = Path(path)
    if file.suffix.lower() not in ENDINGS:
        raise InputError(f"The ending of {file} says no kind of figure: use {', '.join(ENDINGS)}.")
    if noise_multiplier == 0:
        raise InputError("Without noise every epsilon is infinite: there is nothing to draw.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    draw_epsilons(figure.add_subplot(), rate, noise_multiplier, delta, steps, relation=relation)
    try:
        figure.savefig(file, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise InputError(f"The figure {file} cannot be written: {error.strerror}.") from None
