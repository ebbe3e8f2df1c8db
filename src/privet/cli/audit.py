"""`privet audit`: lower bounds on epsilon, of a run or of a method."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.attack import Model
from privet.cli.options import check_used, current_key, either, warn_moved
from privet.cli.program import AsJson, echo, how_to_go_on, verb
from privet.cli.progress import computing
from privet.cli.records import (
    LARGEST_SEED,
    ManyRunsOptions,
    Plugins,
    command_line,
    completing,
    load_plugins,
    say_preview,
)
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.audit import Audit
    from privet.methods import Power
    from privet.runs.preview import Preview

RELEASES = ("mean", "second-moment")
"""Releases before training that can be audited by name."""


def method_keys() -> list[str]:
    from privet.methods import METHODS

    return [*METHODS, *RELEASES]


@dataclass
class ExampleOptions:
    """The parameters of a method that is audited without a run."""

    noise: Annotated[
        float, typer.Option(help="The noise divided by the clipping norm; for optimized noise, 1/epsilon of a step.")
    ] = 1.0
    rate: Annotated[float, typer.Option(help="The probability that a record is in a step.")] = 1.0
    steps: Annotated[
        int, typer.Option(help="If above 1, also audit a whole training of this many steps.", min=1, max=1_000_000)
    ] = 1
    delta: Annotated[float, typer.Option(help="The delta of the claim.")] = 1e-5


@dataclass
class EffortOptions:
    """How hard the audit tries."""

    draws: Annotated[
        int,
        typer.Option(
            help="Number of releases of one step with a record, and as many without it.", min=40, max=100_000_000
        ),
    ] = 20_000
    canaries: Annotated[int, typer.Option(help="Number of canaries in a whole training.", min=40, max=1_000_000)] = 1000
    confidence: Annotated[float, typer.Option(help="The confidence of the lower bounds.")] = 0.99
    seed: Annotated[int, typer.Option(help="The seed of the audit.", min=0, max=LARGEST_SEED)] = 0

    def power(self) -> Power:
        from privet.methods import Power

        return Power(**vars(self))


@verb("audit", "privet audit --method dpsgd --noise 1.1 --rate 0.01 --steps 1000")
def audit(
    context: typer.Context,
    example: ExampleOptions,
    effort: EffortOptions,
    control: ManyRunsOptions,
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="The folder of the run to audit.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="A method to audit without a run.", autocompletion=completing(method_keys)),
    ] = None,
    clipping: Annotated[str | None, typer.Option(hidden=True, help="Moved: write --method dpsgd-CLIPPING.")] = None,
    laboratory: Annotated[
        bool, typer.Option(help="Without a run: also audit the whole training path at the stations of the laboratory.")
    ] = True,
    runs: Annotated[
        int,
        typer.Option(
            help="Trainings with a record, and as many without it, at each station of the laboratory.",
            min=40,
            max=1_000_000,
        ),
    ] = 800,
    model: Model = "",
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Bound epsilon from below by attacking the mechanism itself; exits with 1 if a claim is refuted.

    An audit runs the training code on the records that reveal the most, and sees everything that the code releases. For a run,
    it rebuilds the method, plan, clipping and model, and appends the result to the run's record. Without a run, it audits one
    step of every kind of clipping, or the named method, and the library's whole training path at the stations of the laboratory.
    """
    load_plugins(plugins)
    if run is not None and method is not None:
        raise InputError("Give either the folder of a run or --method, for example: privet audit --method dpsgd")
    method = current_key(method) if method is not None else None
    if run is not None:
        check_used(context, "run")
    elif method in (None, "dpsgd"):
        check_used(context, "dpsgd", named="the audit of --method dpsgd")
    else:
        check_used(context, "release" if method in RELEASES else "method", named=f"the audit of --method {method}")
    of_dpsgd = method in (None, "dpsgd")
    if clipping is not None:
        method = _moved(clipping)
    stations: tuple[Audit, ...] = ()
    if control.dry_run:
        say_preview(_preview(run, method, example, effort, runs if laboratory and of_dpsgd else 0, model), as_json)
        return
    asked = (method, example, effort, plugins, runs if laboratory and of_dpsgd else 0)
    with how_to_go_on(pays=False), control.in_use(), computing() as progress:
        if run is not None:
            from privet.runs import audit_run

            found: tuple[Audit, ...] = audit_run(
                run, effort.power(), model=model, resume=control.resume, command=command_line(), progress=progress
            )
        else:
            with _kept(control.resume, *asked):
                found = _of_method(method, example, effort.power(), progress)
                if laboratory and of_dpsgd:
                    stations = _laboratory(runs, effort, progress)
    _say(found, stations, as_json)


def _preview(
    run: Path | None, method: str | None, example: ExampleOptions, effort: EffortOptions, runs: int, model: str
) -> Preview:
    """Describe the audit without making it. It needs no records: the training code runs on made-up ones."""
    from privet.runs.after import audits_of
    from privet.runs.preview import Estimate, Preview, rehearse

    free = "an audit uses no record of the data, only made-up ones and canaries"
    if run is not None:
        plan = f"Audit what the run in {run} did: {effort.draws:,} draws of a step with a record and as many without, "
        plan += f"and {effort.canaries:,} canaries in a whole training where its noise allows one."
        place = run
        time = rehearse(lambda progress: audits_of(place, effort.power(), model, progress))
        return Preview(
            (plan,), (), time, (f"{run}: the audits, appended to its record, and its card and page again",), free=free
        )
    keys = [method] if method else _every()
    time = rehearse(lambda progress: _of_method(keys[0], example, effort.power(), progress))
    time = time.times(len(keys), f"{len(keys)} methods") if len(keys) > 1 else time
    plan = f"Audit {', '.join(keys)} with {effort.draws:,} draws on each side."
    if not runs:
        return Preview((plan,), (), time, ("nothing",), free=free)
    least = 40
    rooms = rehearse(lambda progress: _laboratory(least, effort, progress)).times(
        runs / least, f"{runs:,} runs, not {least}"
    )
    if time.seconds is not None and rooms.seconds is not None:
        time = Estimate(time.seconds + rooms.seconds, f"{time.source}; the laboratory: {rooms.source}")
    more = f"Then the laboratory: {runs:,} trainings with a record and as many without, at each of its stations."
    return Preview((plan, more), (), time, ("nothing",), free=free)


@contextmanager
def _kept(resume: bool, *asked: object) -> Iterator[None]:
    """Keep the parts of an audit without a run in the user's folder until all of them are finished.

    The name of the folder is a hash of the options, so that different audits do not mix. Without `resume` it starts empty.
    """
    from privet import __version__
    from privet.io.names import unfinished_folder
    from privet.training.folder import alone_in
    from privet.training.releases import Kept

    told = json.dumps([__version__, *map(repr, asked)])
    place = unfinished_folder() / f"audit-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        echo(f"privet: {place} cannot be written ({error.strerror}), so this audit cannot be resumed.", err=True)
        yield
        return
    with alone_in(place):
        kept = Kept(place / "parts")
        if not resume:
            kept.remove()
        with kept.in_use():
            yield
        kept.remove()
    with suppress(OSError):
        place.rmdir()


CLIPPINGS = {
    "every": None,
    "flat": "dpsgd",
    "per-layer": "dpsgd-per-layer",
    "automatic": "dpsgd-automatic",
    "adaptive": "dpsgd-adaptive",
    "elliptical": "optimized-noise-elliptical",
}
"""The methods that replace the values of --clipping of version 0.1; None for all methods."""


def _moved(clipping: str) -> str | None:
    if clipping not in CLIPPINGS:
        raise InputError(f"--clipping is {either(list(CLIPPINGS))}, and not {clipping!r}.")
    method = CLIPPINGS[clipping]
    warn_moved("--clipping", f"--method {method}" if method else "privet audit without --method")
    return method


def _of_method(method: str | None, example: ExampleOptions, power: Power, progress: Any) -> tuple[Audit, ...]:
    from privet.methods import method_named
    from privet.methods.statistics import audit_release
    from privet.privacy import Assumed

    if method in RELEASES:
        asked: dict[str, Any] = {"draws": power.draws, "confidence": power.confidence, "seed": power.seed}
        return (audit_release(method, example.noise, delta=example.delta, **asked, progress=progress),)
    found: list[Audit] = []
    for key in [method] if method else _every():
        named = method_named(key)
        ran = named.example(example.noise, example.rate, example.steps, example.delta)
        if ran is None:
            if method:
                raise InputError(
                    f"The method {key} cannot be audited without a run: give the folder of one, or audit it from Python with "
                    "privet.audit.mechanism or privet.audit.trainer."
                )
            continue
        made = named.audits(ran, power, progress)
        found += [one.within(Assumed(named.trusted)) for one in made] if named.trusted else made
    return tuple(found)


def _every() -> list[str]:
    """The methods that are audited if neither a run nor a method is given."""
    from privet.methods import METHODS

    return [*(key for key in METHODS if key.startswith("dpsgd")), "optimized-noise-elliptical"]


def _laboratory(runs: int, effort: EffortOptions, progress: Any) -> tuple[Audit, ...]:
    import privet.methods  # noqa: F401 - methods add stations of their own
    from privet.audit import laboratory

    return laboratory(runs=runs, confidence=effort.confidence, seed=effort.seed, progress=progress)


def _say(found: tuple[Audit, ...], stations: tuple[Audit, ...], as_json: bool) -> None:
    if as_json:
        echo(json.dumps([one.to_dict() for one in (*found, *stations)], indent=1, allow_nan=False))
    else:
        for one in found:
            echo(str(one))
        if stations:
            echo(_table(stations))
    if any(one.refuted for one in (*found, *stations)):
        raise typer.Exit(1)


def _table(stations: tuple[Audit, ...]) -> str:
    """The laboratory as a table, a line for each station, and its result in a sentence."""
    from privet.audit.result import CONTRADICTION, CRASHED, REFUSED, round_down

    rows = [("station", "looks for", "claim", "bound", "ceiling", "verdict")]
    for one in stations:
        numbers = [f"{one.claimed_epsilon:.3g}", round_down(one.lower_bound), round_down(one.ceiling)]
        if one.method in (REFUSED, CRASHED):
            numbers[1:] = ["-", "-"]
        rows.append((one.name, one.setting, *numbers, one.verdict))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    aligned = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5]]) for row in rows]
    refuted = [one for one in stations if one.refuted]
    total = (
        f"{len(refuted)} of {len(stations)} stations refuted"
        if refuted
        else f"none of {len(stations)} stations refuted"
    )
    why = [f"{one.name}: {one.evidence}." for one in refuted if one.method == CONTRADICTION]
    for method in (REFUSED, CRASHED):
        if count := sum(one.method == method for one in stations):
            total += f", {count} {method}"
    result = f"Laboratory: {total}, at {100 * stations[0].confidence:g} % confidence for all stations together."
    return "\n".join(["", "The laboratory: the real training path, where bugs live", *aligned, *why, result])
