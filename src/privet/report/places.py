"""The path of the records to the release, stage by stage, and where on it each method adds noise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from html import escape

from privet.privacy import Event, Ledger
from privet.privacy.events import (
    CovarianceRelease,
    Gaussian,
    GroupedL2,
    IsotropicL2,
    Laplace,
    NoisyVotes,
    PoissonSampled,
    PureEpsilon,
)
from privet.privacy.guarantees import Claimed
from privet.report.record import RunRecord
from privet.report.words import number, share, times

LONGEST_NAME = 24
FEW = 20
"""A ledger with at most this many events holds releases of statistics, not training steps."""


@dataclass(frozen=True)
class Stage:
    """One stage. Before the noise it sees the records themselves; after the noise it sees noisy values only."""

    title: str
    detail: str = ""
    noise: bool = False


@dataclass(frozen=True)
class Way:
    """The stages from the records to the release.

    Attributes:
        stages: in order; one or more of them is noise.
        again: the stage from which the path goes back, and the one to which it goes back.
        around: the stages between which something bypasses the noise; such a path has only a claim behind it.
        passing: what bypasses the noise, in words.
    """

    stages: tuple[Stage, ...]
    again: tuple[int, int] | None = None
    around: tuple[int, int] | None = None
    passing: str = ""

    @property
    def last_noise(self) -> int:
        return max(place for place, stage in enumerate(self.stages) if stage.noise)


_RECORDS = Stage("The training records")
_SAMPLE = Stage("A random sample of them")
_MODEL = Stage("The trained model", "the release")
_DATA = Stage("The synthetic data set", "the release")
_NOISE = Stage("Noise", noise=True)
_CLIPPED = Stage("Clipped", "no record's gradient is longer than C")
_SUM = replace(_NOISE, title="Noise on their sum")
_GRADIENT = Stage("The gradient of each of them")
_STEP = Stage("A step of the optimizer")
_BLOCKS = replace(_NOISE, title="Noise in each block")
_NOISY_MODEL = replace(_MODEL, detail="the release, noisy when it is asked")

WAYS: dict[str, Way] = {
    "gradient": Way((_RECORDS, _SAMPLE, _GRADIENT, _CLIPPED, _SUM, _STEP, _MODEL), again=(5, 1)),
    "shaped gradient": Way(
        (
            _RECORDS,
            _SAMPLE,
            _GRADIENT,
            _CLIPPED,
            replace(_SUM, title="Shaped noise on their sum"),
            _STEP,
            _MODEL,
        ),
        again=(5, 1),
        around=(0, 4),
        passing="the shape of the noise is computed from the records without noise",
    ),
    "residual mapping": Way(
        (_RECORDS, Stage("The first layers"), _BLOCKS, Stage("The loss at the label"), _STEP, _NOISY_MODEL),
        again=(4, 1),
        around=(0, 4),
        passing="the labels, and the gradients of the layers before the noise, bypass it",
    ),
    "inputs and residual mapping": Way(
        (
            _RECORDS,
            Stage("Clipped", "no input is longer than R"),
            replace(_NOISE, title="Noise on the inputs"),
            _BLOCKS,
            Stage("The loss at the public label"),
            _STEP,
            _NOISY_MODEL,
        ),
        again=(5, 1),
        around=(0, 5),
        passing="the labels bypass it",
    ),
    "embedding layer": Way(
        (
            _RECORDS,
            _SAMPLE,
            Stage("The first layers of the critic"),
            Stage("The embedding, clipped", "no record's embedding is longer than C"),
            replace(_NOISE, title="Noise on the embedding"),
            Stage("The last layers of the critic"),
            Stage("A step of critic and generator"),
            _DATA,
        ),
        again=(6, 1),
        around=(2, 6),
        passing="the first layers learn from gradients that saw the records without noise",
    ),
    "critic": Way(
        (
            _RECORDS,
            _SAMPLE,
            Stage("The critic's gradient of each record"),
            _CLIPPED,
            _SUM,
            Stage("A step of critic and generator"),
            _DATA,
        ),
        again=(5, 1),
    ),
    "moments": Way(
        (
            _RECORDS,
            Stage("Clipped", "no record counts for more than a bound"),
            Stage("Counts, means and second moments"),
            replace(_NOISE, title="Noise on them, once"),
            Stage("Draws from the noisy moments"),
            _DATA,
        )
    ),
    "statistics": Way(
        (
            _RECORDS,
            Stage("Clipped", "no record counts for more than a bound"),
            Stage("Statistics of them"),
            replace(_NOISE, title="Noise on them, once"),
            Stage("A model that follows from them"),
            _MODEL,
        )
    ),
    "voted labels": Way(
        (
            _RECORDS,
            replace(_NOISE, title="Noisy releases"),
            Stage("Artificial inputs from them"),
            Stage("Teachers of disjoint parts vote"),
            replace(_NOISE, title="Noise on the counts"),
            Stage("The winners label them"),
            _DATA,
        )
    ),
    "votes": Way(
        (
            _RECORDS,
            Stage("Disjoint parts, a teacher for each"),
            Stage("Their votes on public inputs"),
            replace(_NOISE, title="Noise on the counts"),
            Stage("The winners label the public inputs"),
            Stage("A student learns from them"),
            _MODEL,
        )
    ),
}
"""The paths by their names in run records."""


def way_of(record: RunRecord, ledger: Ledger) -> Way:
    """The path of a run's records, with the run's numbers. If the record names no path, it follows from the ledger."""
    name = record.place if record.place in WAYS else _place(record, ledger)
    way = WAYS[name]
    if not isinstance(ledger.guarantee, Claimed):
        way = replace(way, around=None, passing="")
    return replace(way, stages=tuple(_told(stage, record, ledger, name) for stage in way.stages))


def _told(stage: Stage, record: RunRecord, ledger: Ledger, place: str) -> Stage:
    """A stage with the numbers from the ledger and the record."""
    event, count = _most_frequent(ledger)
    inner = _innermost(event)
    if stage == _RECORDS:
        name = record.data.name if len(record.data.name) <= LONGEST_NAME else f"{record.data.name[:LONGEST_NAME]}…"
        whose = "users of " if record.data.unit == "user" else "of "
        return replace(stage, detail=f"{record.data.training_records:,} {whose}{name}")
    if stage == _CLIPPED and record.data.unit == "user":
        return replace(stage, detail="no user's gradient is longer than C")
    if stage == _SAMPLE and isinstance(event, PoissonSampled):
        return replace(stage, detail=f"each with probability {share(event.rate)}")
    if stage.title.startswith("A step") and not stage.detail:
        return replace(stage, detail=_how_often(record, count, place))
    if stage == _SUM and isinstance(inner, Gaussian):
        return replace(stage, detail=f"Gaussian, {number(inner.noise_multiplier)} C")
    if stage == _DATA and record.synthetic:
        return replace(stage, detail=f"{record.synthetic.rows:,} rows: the release")
    return stage


def _how_often(record: RunRecord, count: int, place: str) -> str:
    """How often a step was done. Residual perturbation has an entry in the ledger for each pass, not for each step."""
    if "residual" not in place:
        return times(count)
    passes = "1 pass" if count == 1 else f"{count:,} passes"
    return f"{record.settings['Steps']} times in {passes}" if "Steps" in record.settings else f"in {passes}"


def _place(record: RunRecord, ledger: Ledger) -> str:
    event, _ = _most_frequent(ledger)
    inner = _innermost(event)
    if isinstance(inner, NoisyVotes):
        return "votes"
    if isinstance(inner, PureEpsilon | GroupedL2 | IsotropicL2 | Laplace):
        return "shaped gradient"
    if isinstance(inner, CovarianceRelease) or (0 < len(ledger) <= FEW and not isinstance(event, PoissonSampled)):
        return "moments" if record.synthetic else "statistics"
    return "gradient"


def _most_frequent(ledger: Ledger) -> tuple[Event | None, int]:
    """The most frequent event, usually a training step; the last one of several that are equally frequent."""
    counts = Counter[Event]()
    for event, count in ledger.event.leaves():
        counts[event] += count
    if not counts:
        return None, 0
    return max(reversed(list(counts.items())), key=lambda entry: entry[1])


def _innermost(event: Event | None) -> Event | None:
    while event is not None and event.inner:
        event = event.inner[0]
    return event


WIDTH = 320
LEFT, RIGHT = 36, 292
HEIGHT, NOISE, GAP = 40, 52, 18
TOP = 24
_BELOW = {
    "claimed": "only claimed to be protected",
    "open": "not protected",
    "vacuous": "protected in name only",
}
"""The text for the stages after the noise, by kind of guarantee, if they are not protected."""


def draw_way(way: Way, kind: str) -> str:
    """The path as an inline drawing in the page's colors; `kind` is the kind of the run's guarantee."""
    tops = _tops(way)
    line = tops[way.last_noise] + _height(way.stages[way.last_noise]) / 2
    bottom = tops[-1] + HEIGHT + 26
    parts = [_zones(line, bottom, kind), _texts_of_zones(bottom, kind)]
    for place, (stage, top) in enumerate(zip(way.stages, tops, strict=True)):
        if place:
            parts.append(_arrow(tops[place - 1] + _height(way.stages[place - 1]), top))
        parts.append(_noise(stage, top, kind) if stage.noise else _box(stage, top, last=place == len(tops) - 1))
    if way.again:
        parts.append(_lane(way, tops, way.again, RIGHT, WIDTH - 10, "again"))
    if way.around:
        parts.append(_lane(way, tops, way.around, LEFT, 12, "around"))
    label = escape(describe_way(way, kind), quote=True)
    opening = (
        f'<svg class="figure drawing" id="noise" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {bottom:g}">'
    )
    return "\n".join([opening, _MARKERS, *parts, "</svg>"])


def describe_way(way: Way, kind: str) -> str:
    """The drawing in words, for screen readers."""
    names = [stage.title + (f" ({stage.detail})" if stage.detail else "") for stage in way.stages]
    said = f"Where the noise enters. From top to bottom: {'; '.join(names)}."
    if way.again:
        said += f" From stage {way.again[0] + 1} it goes back to stage {way.again[1] + 1}, again and again."
    if way.around:
        said += f" A dashed line goes around the noise: {way.passing}."
    below = f"is {_BELOW.get(kind, 'protected')}"
    return f"{said} What comes after the last noise {below}."


_MARKERS = (
    '<defs><marker id="noise-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="var(--soft)"/></marker>'
    '<marker id="noise-leak" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="var(--claimed)"/></marker>'
    '<pattern id="noise-hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
    '<path d="M0 0V8" stroke="var(--claimed)" stroke-width="1.5" opacity="0.35"/></pattern></defs>'
)


def _zones(line: float, bottom: float, kind: str) -> str:
    color = {"claimed": "claimed", "open": "claimed", "vacuous": "claimed", "assumed": "assumed"}.get(kind, "proved")
    safe = f'<rect x="1" y="{line:g}" width="{WIDTH - 2}" height="{bottom - line:g}" rx="6" '
    hatch = f'{safe}fill="url(#noise-hatch)"/>' if kind in ("claimed", "open", "vacuous") else ""
    return (
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{line:g}" rx="6" fill="var(--bound)" opacity="0.08"/>'
        f'{safe}fill="var(--{color})" opacity="0.10"/>{hatch}'
        f'<path d="M1 {line:g}H{WIDTH - 1}" stroke="var(--{color})" stroke-width="1.6" stroke-dasharray="5 4"/>'
    )


def _texts_of_zones(bottom: float, kind: str) -> str:
    below = _BELOW.get(kind, "protected: may leave")
    middle = WIDTH / 2
    return (
        f'<text x="{middle:g}" y="16" class="zone" text-anchor="middle" fill="var(--bound)">sees the records: stays inside</text>'
        f'<text x="{middle:g}" y="{bottom - 9:g}" class="zone" text-anchor="middle" fill="var(--soft)">{below}</text>'
    )


def _box(stage: Stage, top: float, *, last: bool) -> str:
    weight = 2 if last else 1
    frame = (
        f'<rect x="{LEFT}" y="{top:g}" width="{RIGHT - LEFT}" height="{HEIGHT}" rx="5" fill="var(--paper)" '
        f'stroke="var(--{"ink" if last else "soft"})" stroke-width="{weight}"/>'
    )
    return frame + _label(stage, (LEFT + RIGHT) / 2, top + HEIGHT / 2, "middle")


def _noise(stage: Stage, top: float, kind: str) -> str:
    """A bell curve in a circle, on the line."""
    x, y = LEFT + 26, top + NOISE / 2
    curve = f"M{x - 17:g} {y + 10:g}c9 0 10 -21 17 -21s8 21 17 21"
    box = f'<rect x="{LEFT}" y="{top:g}" width="{RIGHT - LEFT}" height="{NOISE}" rx="26" fill="var(--paper)" '
    return (
        f'{box}stroke="var(--accent)" stroke-width="2"/>'
        f'<circle cx="{x:g}" cy="{y:g}" r="21" fill="var(--accent)" opacity="0.15"/>'
        f'<path d="{curve}" fill="none" stroke="var(--accent)" stroke-width="2.2"/>'
        + _label(stage, x + 30, y, "start", strong=True)
    )


def _label(stage: Stage, x: float, y: float, anchor: str, *, strong: bool = False) -> str:
    weight = ' font-weight="600"' if strong else ""
    title = f'<text x="{x:g}" y="{y + (-3 if stage.detail else 4):g}" text-anchor="{anchor}"{weight}>{escape(stage.title)}</text>'
    if not stage.detail:
        return title
    return title + f'<text x="{x:g}" y="{y + 13:g}" text-anchor="{anchor}" class="detail">{escape(stage.detail)}</text>'


def _arrow(start: float, end: float) -> str:
    middle = (LEFT + RIGHT) / 2
    path = f"M{middle:g} {start + 1:g}V{end - 2:g}"
    return f'<path d="{path}" stroke="var(--soft)" stroke-width="1.5" marker-end="url(#noise-tip)"/>'


def _lane(way: Way, tops: list[float], ends: tuple[int, int], edge: float, lane: float, kind: str) -> str:
    """A line beside the boxes, from one stage to another."""
    start, end = (tops[number] + _height(way.stages[number]) / 2 for number in ends)
    style = (
        'stroke="var(--claimed)" stroke-width="2.2" stroke-dasharray="6 4" marker-end="url(#noise-leak)"'
        if kind == "around"
        else 'stroke="var(--soft)" stroke-width="1.5" marker-end="url(#noise-tip)"'
    )
    tip = edge + 2 if lane > edge else edge - 2
    return f'<path d="M{edge:g} {start:g}H{lane:g}V{end:g}H{tip:g}" fill="none" {style}/>'


def _tops(way: Way) -> list[float]:
    tops, top = [], float(TOP)
    for stage in way.stages:
        tops.append(top)
        top += _height(stage) + GAP
    return tops


def _height(stage: Stage) -> float:
    return NOISE if stage.noise else HEIGHT
