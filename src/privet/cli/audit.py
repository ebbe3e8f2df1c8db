"""`privet audit`: lower bounds on epsilon, of a run or of a method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.attack import Model
from privet.cli.options import check_used
from privet.cli.program import AsJson, verb
from privet.cli.progress import computing
from privet.cli.records import Plugins, command_line, load_plugins
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.audit import Audit
    from privet.methods import Power

RELEASES = ("mean", "second-moment")
"""Releases before training that can be audited by name."""


def method_keys() -> list[str]:
    from privet.methods import METHODS

    return [*METHODS, *RELEASES]


@dataclass
class Example:
    """The parameters of a method that is audited without a run."""

    noise: Annotated[
        float, typer.Option(help="The noise over the clipping norm; of optimized noise, 1/epsilon of a step.")
    ] = 1.0
    rate: Annotated[float, typer.Option(help="The probability that a record is in a step.")] = 1.0
    steps: Annotated[int, typer.Option(help="Above 1: also a whole training of this many steps.", min=1)] = 1
    delta: Annotated[float, typer.Option(help="The delta of the claim.")] = 1e-5


@dataclass
class Effort:
    """How hard the audit tries."""

    draws: Annotated[int, typer.Option(help="Releases of one step with, and as many without, a record.", min=40)] = (
        20_000
    )
    canaries: Annotated[int, typer.Option(help="Canaries of a whole training.", min=8)] = 1000
    confidence: Annotated[float, typer.Option(help="Of the lower bounds.")] = 0.99
    seed: Annotated[int, typer.Option(help="Of the audit.", min=0)] = 0

    def power(self) -> Power:
        from privet.methods import Power

        return Power(**vars(self))


@verb("audit", "privet audit --method dpsgd --noise 1.1 --rate 0.01 --steps 1000")
def audit(
    context: typer.Context,
    example: Example,
    effort: Effort,
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run, to audit what it did.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Or the method to audit, without a run.", autocompletion=method_keys),
    ] = None,
    clipping: Annotated[str | None, typer.Option(hidden=True, help="Moved: write --method dpsgd-CLIPPING.")] = None,
    laboratory: Annotated[
        bool, typer.Option(help="Without a run: also audit the whole training path at the stations of the laboratory.")
    ] = True,
    runs: Annotated[
        int, typer.Option(help="Trainings with, and as many without, a record at a station of the laboratory.", min=40)
    ] = 800,
    model: Model = "",
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Bound epsilon from below by attacking the mechanism itself; exits with 1 if a claim is refuted.

    An audit runs the code that trains, on the records that reveal the most, and sees everything that it releases. Of a run
    it rebuilds the method, plan, clipping and model, and appends the result to the run's record. Without a run it audits one
    step of every way of clipping, or the named method, and the library's whole training path at the stations of the laboratory.
    """
    load_plugins(plugins)
    if run is not None and method is not None:
        raise InputError("Give either the folder of a run or --method, for example: privet audit --method dpsgd")
    if clipping is not None and method in (None, "dpsgd"):
        method = _moved(clipping)
    check_used(context, "run" if run is not None else "release" if method in RELEASES else "method")
    stations: tuple[Audit, ...] = ()
    with computing() as progress:
        if run is not None:
            from privet.runs import audit_run

            found: tuple[Audit, ...] = audit_run(
                run, effort.power(), model=model, command=command_line(), progress=progress
            )
        else:
            found = _of_method(method, example, effort.power(), progress)
            if laboratory and method in (None, "dpsgd"):
                stations = _laboratory(runs, effort, progress)
    _say(found, stations, as_json)


def _moved(clipping: str) -> str | None:
    from privet.cli.train import warn_moved

    keys = {"every": None, "flat": "dpsgd", "elliptical": "optimized-noise-elliptical"}
    method = keys.get(clipping, f"dpsgd-{clipping}")
    warn_moved("--clipping", f"--method {method}" if method else "privet audit without --method")
    return method


def _of_method(method: str | None, example: Example, power: Power, progress: Any) -> tuple[Audit, ...]:
    from privet.methods import METHODS, method_named
    from privet.methods.statistics import audit_release

    if method in RELEASES:
        asked: dict[str, Any] = {"draws": power.draws, "confidence": power.confidence, "seed": power.seed}
        return (audit_release(method, example.noise, delta=example.delta, **asked, progress=progress),)
    every = [key for key in METHODS if key.startswith("dpsgd")] + ["optimized-noise-elliptical"]
    found: list[Audit] = []
    for key in [method] if method else every:
        named = method_named(key)
        ran = named.example(example.noise, example.rate, example.steps, example.delta)
        if ran is None:
            if method:
                raise InputError(
                    f"The method {key} cannot be audited without a run: give the folder of one, or audit it from Python with "
                    "privet.audit.mechanism or privet.audit.trainer."
                )
            continue
        found += named.audits(ran, power, progress)
    return tuple(found)


def _laboratory(runs: int, effort: Effort, progress: Any) -> tuple[Audit, ...]:
    import privet.methods  # noqa: F401 - methods add stations of their own
    from privet.audit import laboratory

    return laboratory(runs=runs, confidence=effort.confidence, seed=effort.seed, progress=progress)


def _say(found: tuple[Audit, ...], stations: tuple[Audit, ...], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([one.to_dict() for one in (*found, *stations)], indent=1, allow_nan=False))
    else:
        for one in found:
            typer.echo(str(one))
        if stations:
            typer.echo(_table(stations))
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
