"""The drawing of where the noise enters: stages from top to bottom, and a line below which only noisy values go."""

from __future__ import annotations

from html import escape

from privet.report.places import Stage, Way

WIDTH = 320
LEFT, RIGHT = 36, 292
HEIGHT, NOISE, GAP = 40, 52, 18
TOP = 24
_BELOW = {
    "claimed": "only claimed to be protected",
    "open": "not protected",
    "vacuous": "protected in name only",
}
"""What is said of what comes after the noise, where it is not protected."""


def draw_way(way: Way, kind: str) -> str:
    """The way as one inline drawing in the page's colours; `kind` is how the run's statement stands."""
    tops = _tops(way)
    line = tops[way.last_noise] + _height(way.stages[way.last_noise]) / 2
    bottom = tops[-1] + HEIGHT + 26
    parts = [_zones(line, bottom, kind), _texts_of_zones(bottom, kind)]
    for number, (stage, top) in enumerate(zip(way.stages, tops, strict=True)):
        if number:
            parts.append(_arrow(tops[number - 1] + _height(way.stages[number - 1]), top))
        parts.append(_noise(stage, top, kind) if stage.noise else _box(stage, top, last=number == len(tops) - 1))
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
    """The drawing in words, for those who do not see it."""
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
    colour = {"claimed": "claimed", "open": "claimed", "vacuous": "claimed", "assumed": "assumed"}.get(kind, "proved")
    safe = f'<rect x="1" y="{line:g}" width="{WIDTH - 2}" height="{bottom - line:g}" rx="6" '
    hatch = f'{safe}fill="url(#noise-hatch)"/>' if kind in ("claimed", "open", "vacuous") else ""
    return (
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{line:g}" rx="6" fill="var(--bound)" opacity="0.08"/>'
        f'{safe}fill="var(--{colour})" opacity="0.10"/>{hatch}'
        f'<path d="M1 {line:g}H{WIDTH - 1}" stroke="var(--{colour})" stroke-width="1.6" stroke-dasharray="5 4"/>'
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
