"""The figures of `privet account`: epsilon against steps for every accountant, and the trade-off curve of a statement."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr, ndtri

from privet.errors import InputError, PrivetError
from privet.io import of_the_path, why_refused
from privet.privacy.accountants import accountant_named
from privet.privacy.accountants.composition import Strong
from privet.privacy.events import Gaussian, PoissonSampled
from privet.privacy.guarantees import Proved, Relation
from privet.privacy.meaning import TradeOff
from privet.privacy.spent import Spent, round_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
"""All of Privet's accountants except the slow reference, and strong composition with the paper's own Gaussian bound."""
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
    """The steps at which epsilon is computed, and the epsilons of each accountant that has a bound."""
    marks = sorted({max(1, round(steps * (i / points) ** 1.5)) for i in range(1, points + 1)})
    step = PoissonSampled(rate, Gaussian(noise_multiplier))
    curves: dict[str, list[float]] = {}
    for key, _, _ in CURVES:
        accountant = Strong(classic=True) if key == "strong-classic" else accountant_named(key)
        if accountant.supports(step, relation):
            curves[key] = [accountant.epsilon(step * mark, delta, relation) for mark in marks]
    return marks, curves


def save_epsilons(
    path: str | Path,
    rate: float,
    noise_multiplier: float,
    delta: float,
    steps: int,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> None:
    """Draw epsilon against steps, one curve for each accountant, as an SVG, PNG or PDF file, depending on its ending."""
    file = _checked(path)
    if noise_multiplier == 0:
        raise InputError("Without noise every epsilon is infinite, so there is nothing to draw.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
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
    _write(figure, file)


def save_tradeoff(path: str | Path, spent: Spent) -> None:
    """Write the trade-off curve of a statement to a file: both error rates of the best test, and low rates magnified."""
    file = _checked(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 5.4), layout="constrained")
    errors, low = figure.subplots(1, 2)
    draw_tradeoff(errors, spent)
    draw_low_rates(low, spent)
    mark = type(spent.guarantee).__name__.lower() + (", vacuous" if spent.vacuous else "")
    said = f"epsilon = {round_up(spent.epsilon)} at delta = {spent.delta:g}, {spent.relation.describe(spent.unit)}"
    figure.suptitle(f"What the best test can tell about one {spent.unit} ({said}; {mark})", fontsize=11)
    handles, labels = errors.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    _write(figure, file)


def draw_tradeoff(axes: Axes, spent: Spent) -> None:
    """Draw the false negative against the false positive rate; no test can reach the shaded region."""
    rates = np.linspace(0.0, 1.0, 401)
    _curves(axes, spent, rates, rates, lambda curve: curve.false_negative_rates(rates), missed=True)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("false positive rate: people wrongly named")
    axes.set_ylabel("false negative rate: people missed")
    axes.set_title("Both errors of the best test", fontsize=10)


def draw_low_rates(axes: Axes, spent: Spent) -> None:
    """Draw the true positive against the false positive rate on logarithmic axes, for attackers who are nearly sure."""
    rates = np.geomspace(1e-5, 1.0, 201)
    _curves(axes, spent, rates, rates, lambda curve: 1 - curve.false_negative_rates(rates), missed=False)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1e-5, 1)
    axes.set_ylim(1e-5, 1.3)
    axes.set_xlabel("false positive rate: people wrongly named (log)")
    axes.set_ylabel("true positive rate: people found (log)")
    axes.set_title("When the attacker must be nearly sure", fontsize=10)


def _curves(axes: Axes, spent: Spent, x: Any, rates: Any, height: Any, *, missed: bool) -> None:
    found = spent.meaning
    own = height(found.curve)
    axes.fill_between(
        x,
        own,
        0.0 if missed else 2.0,
        color="#1b5e8c",
        alpha=0.10,
        linewidth=0,
        label=f"no test reaches this region{_mark(spent)}",
    )
    axes.plot(x, 1 - rates if missed else rates, color="#5d5a53", linestyle="--", linewidth=1, label="guessing blindly")
    envelope = height(TradeOff([(spent.epsilon, spent.delta)]))
    name = f"from epsilon = {round_up(spent.epsilon)} and delta = {spent.delta:g} alone"
    axes.plot(x, envelope, color="#a8431a", linestyle="-.", linewidth=1.4, label=name)
    mu = found.mu if found.mu is not None else 2 * float(ndtri((1 + found.advantage) / 2))
    if found.mu is None and 0 < mu < math.inf:
        gaussian = ndtr(mu + ndtri(rates))
        drawn = 1 - gaussian if missed else gaussian
        label = f"for comparison, not a bound: a Gaussian with mu = {mu:.3g}"
        axes.plot(x, drawn, color="#7d5200", linestyle=":", linewidth=1.6, label=label)
    label = f"the best test{_mark(spent)} (advantage {math.ceil(1000 * found.advantage) / 1000:.3f})"
    axes.plot(x, own, color="#1b5e8c", linewidth=2.2, label=label)
    axes.grid(visible=True, alpha=0.2)


def _mark(spent: Spent) -> str:
    return "" if isinstance(spent.guarantee, Proved) else f" ({type(spent.guarantee).__name__.lower()})"


def _checked(path: str | Path) -> Path:
    file = Path(path)
    if file.suffix.lower() not in ENDINGS:
        raise InputError(f"{file} has an unknown ending for a figure: use {', '.join(ENDINGS)}.")
    return file


def _write(figure: Figure, file: Path) -> None:
    try:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)
    except OSError as error:
        kind = InputError if of_the_path(error) else PrivetError
        raise kind(f"The figure {file} cannot be written {why_refused(error)}.") from None
