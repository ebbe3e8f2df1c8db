"""The figures of the page: vector drawings that take their colors from the page, so that dark mode and print work."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from privet.attacks.result import AttackResult
from privet.audit import Audit
from privet.audit.result import round_down
from privet.privacy.spent import round_up
from privet.report.record import Epoch
from privet.report.words import share

# Colors that are drawn, and the page's variables that replace them in the file.
INK, SOFT, GRID, ACCENT, BOUND = "#010101", "#020202", "#030303", "#040404", "#050505"
VARIABLES = {INK: "--ink", SOFT: "--soft", GRID: "--grid", ACCENT: "--accent", BOUND: "--bound"}
SIZE = (4.4, 3.1)
# The names of matplotlib's settings are a closed type only in its newest stubs.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
    "text.color": INK,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
}


def budget(history: Sequence[Epoch], final: str) -> str:
    """Epsilon after each epoch, with the spent epsilon of the whole run written at the end of the line."""

    def draw(axes: Axes) -> None:
        steps = [0, *(epoch.step for epoch in history)]
        axes.plot(steps, [0.0, *(epoch.epsilon for epoch in history)], color=ACCENT)
        last = history[-1]
        axes.plot([last.step], [last.epsilon], "o", color=ACCENT, markersize=6)
        axes.annotate(f"ε = {final}", (last.step, last.epsilon), xytext=(-8, 7), textcoords="offset points", ha="right")
        axes.set_ylim(0, 1.18 * max(last.epsilon, 1e-9))
        axes.set_xlim(0, last.step * 1.02)
        _label(axes, "step", "epsilon spent")

    last = history[-1]
    return _svg("budget", draw, "Epsilon over time", f"Epsilon grows to {final} after {last.step:,} steps.")


def accuracy(history: Sequence[Epoch]) -> str:
    """Accuracy on the test records against epsilon, one point for each epoch."""
    seen = [(epoch.epsilon, epoch.accuracy) for epoch in history if epoch.accuracy is not None]

    def draw(axes: Axes) -> None:
        axes.plot([x for x, _ in seen], [y for _, y in seen], color=ACCENT, marker="o", markersize=3.5)
        axes.annotate(f"{100 * seen[-1][1]:.1f} %", seen[-1], xytext=(-6, 7), textcoords="offset points", ha="right")
        axes.set_xlim(0, 1.05 * seen[-1][0])
        lowest = min(y for _, y in seen)
        axes.set_ylim(max(0.0, lowest - 0.25 * (1 - lowest)), 1)
        _label(axes, "epsilon spent", "accuracy on the test records")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: share(value)))

    words = f"The accuracy goes from {share(seen[0][1])} to {share(seen[-1][1])} as epsilon is spent."
    return _svg("accuracy", draw, "Accuracy against epsilon", words)


def loss(history: Sequence[Epoch]) -> str:
    """The mean training loss of each epoch."""

    def draw(axes: Axes) -> None:
        steps = [epoch.step for epoch in history]
        axes.plot(steps, [epoch.loss for epoch in history], color=ACCENT, marker="o", markersize=3.5)
        axes.set_xlim(0, steps[-1] * 1.02)
        axes.set_ylim(bottom=0)
        _label(axes, "step", "training loss")

    first, last = history[0], history[-1]
    words = f"The mean loss of an epoch goes from {first.loss:.3g} to {last.loss:.3g} over {last.step:,} steps."
    return _svg("loss", draw, "Training loss", words)


def roc(attack: AttackResult, limit: Callable[[float], float], limit_name: str) -> str:
    """The attack's ROC curve, the diagonal of guessing, and the curve that no attack can exceed if the guarantee holds."""

    def draw(axes: Axes) -> None:
        grid = [i / 400 for i in range(401)]
        _bound(axes, grid, [limit(x) for x in grid])
        axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(attack.false_positive_rate, attack.true_positive_rate, color=ACCENT, drawstyle="steps-post")
        axes.text(0.62, 0.55, "chance", color=SOFT)
        axes.text(0.97, 0.06, f"AUC {attack.auc:.3f}", color=ACCENT, ha="right", weight="bold")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.005)
        _percent(axes)
        _label(axes, "false positive rate", "true positive rate")

    words = f"The area under the curve of the attack is {attack.auc:.3f}; chance is 0.5. {limit_name} is drawn above."
    return _svg("roc", draw, "ROC of the membership attack", words)


def roc_at_low_rates(attack: AttackResult, limit: Callable[[float], float], limit_name: str) -> str:
    """The same curves on logarithmic axes, which show attacks that find a few records with certainty."""
    floor = 1 / max(attack.non_members, 10)  # an axis from 1 to 1 cannot be drawn

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        grid = [floor ** (1 - i / 400) for i in range(401)]
        _bound(axes, grid, [limit(x) for x in grid])
        axes.plot(grid, grid, color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
        pairs = zip(attack.false_positive_rate, attack.true_positive_rate, strict=True)
        seen = [(x, y) for x, y in pairs if x > 0 and y > 0]
        axes.plot([x for x, _ in seen], [y for _, y in seen], color=ACCENT, drawstyle="steps-post")
        axes.set_xlim(floor, 1)
        axes.set_ylim(floor, 1.1)
        axes.minorticks_off()
        _percent(axes)
        _label(axes, "false positive rate (log)", "true positive rate (log)")

    rates = "; ".join(f"{share(rate.tpr)} at a false positive rate of {share(rate.fpr)}" for rate in attack.rates)
    words = f"True positive rate: {rates}. {limit_name} is drawn above."
    return _svg("roc-log", draw, "ROC at low false positive rates", words)


def audits(found: Sequence[Audit]) -> str:
    """Each audit on one axis: its lower bound, the claimed epsilon, and the highest bound that it could have reached."""
    finite = [x for audit in found for x in (audit.lower_bound, audit.claimed_epsilon) if isfinite(x)]
    edge = 1.6 * max([*finite, 0.1])

    def draw(axes: Axes) -> None:
        for row, audit in enumerate(reversed(found)):
            low, claim, ceiling = (min(x, edge) for x in (audit.lower_bound, audit.claimed_epsilon, audit.ceiling))
            bar = BOUND if audit.refuted else ACCENT
            axes.plot([0, low], [row, row], color=bar, linewidth=7, solid_capstyle="butt")
            axes.plot([low, ceiling], [row, row], color=SOFT, linewidth=1.2, linestyle=(0, (2, 2)))
            axes.plot([claim, claim], [row - 0.22, row + 0.22], color=INK, linewidth=2.4)
            axes.plot([ceiling], [row], "D" if ceiling < edge else ">", color=SOFT, markersize=6, fillstyle="none")
            if ceiling == edge and isfinite(audit.ceiling):
                axes.text(edge, row + 0.14, round_down(audit.ceiling), color=SOFT, ha="right", va="bottom")
            axes.text(0, row + 0.26, _short(audit.name), color=INK, va="bottom")
        _label(axes, "epsilon", "")
        axes.set_xlim(0, edge * 1.03)
        axes.set_ylim(-0.45, len(found) - 0.2)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")

    said = "; ".join(
        f"{audit.name}: at least {round_down(audit.lower_bound)}, claimed {round_up(audit.claimed_epsilon)}, could have "
        f"shown {round_down(audit.ceiling)}"
        for audit in found
    )
    height = 0.8 + 0.75 * len(found)
    return _svg("audits", draw, "Audits: bound, claim and ceiling", f"{said}.", size=(SIZE[0], height))


@dataclass(frozen=True)
class MethodAccuracy:
    """The accuracy of a method, and whether its statement holds."""

    name: str
    accuracy: float
    low: float
    high: float
    sound: bool


def accuracies(found: Sequence[MethodAccuracy]) -> str:
    """Methods side by side: full circles where the statement holds, open squares where it is only claimed or vacuous."""

    def draw(axes: Axes) -> None:
        for row, one in enumerate(reversed(found)):
            style: dict[str, Any] = {"color": ACCENT} if one.sound else {"color": BOUND, "linestyle": (0, (3, 2))}
            axes.plot([one.low, one.high], [row, row], linewidth=1.6, **style)
            mark: dict[str, Any] = {"marker": "o"} if one.sound else {"marker": "s", "fillstyle": "none"}
            axes.plot([one.accuracy], [row], color=style["color"], markersize=7, linestyle="none", **mark)
            axes.text(0, row + 0.2, _short(one.name, 56), color=INK, va="bottom", transform=axes.get_yaxis_transform())
        _label(axes, "accuracy on the test records", "")
        axes.set_ylim(-0.4, len(found) - 0.2)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: share(value)))

    said = "; ".join(
        f"{one.name} {share(one.accuracy)}{'' if one.sound else ' (only claimed, or vacuous)'}" for one in found
    )
    return _svg("accuracies", draw, "Accuracy of each method", f"{said}.", size=(SIZE[0], 0.8 + 0.62 * len(found)))


def _short(name: str, most: int = 44) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _bound(axes: Axes, x: list[float], y: list[float]) -> None:
    axes.fill_between(x, y, 1.1, color=BOUND, alpha=0.10, linewidth=0)
    axes.plot(x, y, color=BOUND, linewidth=1.4, linestyle=(0, (6, 2, 1.5, 2)))


def _label(axes: Axes, x: str, y: str) -> None:
    """Write the name of the vertical axis horizontally above it, which is easier to read."""
    axes.set_xlabel(x)
    axes.set_title(y, loc="left", fontsize=10, color=SOFT, pad=10)
    for locator_axis in (axes.xaxis, axes.yaxis):
        if locator_axis.get_scale() == "linear":
            locator_axis.set_major_locator(MaxNLocator(5))


def _percent(axes: Axes) -> None:
    formatter = FuncFormatter(lambda value, _: f"{100 * value:.3g} %")
    axes.xaxis.set_major_formatter(formatter)
    axes.yaxis.set_major_formatter(formatter)


def _svg(
    name: str, draw: Callable[[Axes], None], title: str, description: str, size: tuple[float, float] = SIZE
) -> str:
    """The drawing as an inline SVG element: labeled for screen readers, in the colors of the page, always the same bytes."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawing = file.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<(metadata|style).*?</\1>\s*", "", drawing, flags=re.DOTALL)
    # Several drawings share one page: every name within them is made the drawing's own.
    drawing = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", drawing)
    for color, variable in VARIABLES.items():
        drawing = drawing.replace(color, f"var({variable})")
    view = re.search(r'viewBox="([^"]+)"', drawing)
    assert view is not None
    label = html.escape(f"{title}. {description}")
    opening = f'<svg class="figure" id="{name}" role="img" aria-label="{label}" viewBox="{view[1]}">'
    return re.sub(r"^<svg[^>]*>", lambda _: opening, drawing, count=1).strip()
