"""`privet audit`."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.options import check_used
from privet.cli.program import AsJson, app
from privet.cli.progress import computing
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.audit import Audit


class Method(StrEnum):
    """What can be audited by its name."""

    dpsgd = "dpsgd"
    optimized_noise = "optimized-noise"
    mean = "mean"
    second_moment = "second-moment"


class Clip(StrEnum):
    """A way of clipping, or each of them."""

    every = "every"
    flat = "flat"
    per_layer = "per-layer"
    automatic = "automatic"
    adaptive = "adaptive"
    elliptical = "elliptical"


@app.command("audit", epilog="Example:  privet audit --method dpsgd --noise 1.1 --rate 0.01 --steps 1000")
def audit(
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run, to audit what it did.")
    ] = None,
    method: Annotated[Method | None, typer.Option(help="Or the method to audit, without a run.")] = None,
    clipping: Annotated[Clip, typer.Option(help="Which way of clipping, of one step.")] = Clip.every,
    noise: Annotated[
        float, typer.Option(help="The noise over the clipping norm; of optimised noise, 1/epsilon.")
    ] = 1.0,
    rate: Annotated[float, typer.Option(help="The probability that a record is in a step.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Above 1: also a whole training of so many steps.", min=1)] = 1,
    delta: Annotated[float, typer.Option(help="The delta of the claim.")] = 1e-5,
    draws: Annotated[
        int, typer.Option(help="Releases of one step with, and as many without, a record.", min=40)
    ] = 20_000,
    canaries: Annotated[int, typer.Option(help="Canaries of a whole training.", min=8)] = 1000,
    laboratory: Annotated[
        bool, typer.Option(help="Of dpsgd: also audit the whole training path at the stations of the laboratory.")
    ] = True,
    runs: Annotated[
        int, typer.Option(help="Trainings with, and as many without, a record at a station of the laboratory.", min=40)
    ] = 800,
    confidence: Annotated[float, typer.Option(help="Of the lower bounds.")] = 0.99,
    seed: Annotated[int, typer.Option(help="Of the audit.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Bound epsilon from below by attacking the mechanism itself; ends with 1 if a claim is refuted.

    An audit runs the code that trains, on the records that tell the most, and sees everything that it releases. Without a
    run it audits one step of DP-SGD, and the library's whole training path at the stations of the laboratory. Of a run it
    audits the most frequent step of its ledger, once and as often as it happened, and renews the run's page.
    """
    if run is not None and method is not None:
        raise InputError("Give either the folder of a run or --method, for example: privet audit --method dpsgd")
    method = Method.dpsgd if run is None and method is None else method
    check_used(context, "run" if method is None else method.value)
    asked: dict[str, Any] = {"delta": delta, "draws": draws, "confidence": confidence, "seed": seed}
    stations: tuple[Audit, ...] = ()
    with computing() as progress:
        if run is not None:
            found = _of_run(run, canaries, {**asked, "progress": progress})
        elif method is Method.dpsgd:
            found = _dpsgd(clipping, noise, rate, steps, canaries, {**asked, "progress": progress})
            if laboratory:
                import privet.methods.stations  # noqa: F401 - adds the stations of the methods
                from privet.audit import laboratory as visit

                stations = visit(runs=runs, confidence=confidence, seed=seed, progress=progress)
        elif method is Method.optimized_noise:
            found = _optimised(noise, rate, {**asked, "progress": progress})
        else:
            assert method is not None
            from privet.methods import release

            found = [release(method.value, noise, **asked, progress=progress)]
    _say(found, stations, run, as_json)


def _of_run(run: Path, canaries: int, asked: dict[str, Any]) -> list[Audit]:
    from privet.audit import recorded
    from privet.methods import ledger_audits
    from privet.report import RunRecord

    record = RunRecord.read(run)
    try:
        settings = {**asked, "delta": record.delta, "canaries": canaries}
        return list(recorded(record.open_ledger(run), **settings, contributed=ledger_audits()))
    except InputError as error:
        raise InputError(f"{run}: {error}") from None


def _dpsgd(clipping: Clip, noise: float, rate: float, steps: int, canaries: int, asked: dict[str, Any]) -> list[Audit]:
    from privet.audit import step, training
    from privet.audit.one_step import clippings

    kinds = list(Clip)[1:] if clipping is Clip.every else [clipping]
    found = [
        step(clippings()[kind.value], noise, rate=rate, name=f"One step of DP-SGD, {kind.value} clipping", **asked)
        for kind in kinds
    ]
    if steps > 1:
        whole = {name: value for name, value in asked.items() if name != "draws"}
        name = f"DP-SGD, {steps:,} steps"
        found.append(training(rate=rate, noise_multiplier=noise, steps=steps, canaries=canaries, name=name, **whole))
    return found


def _optimised(noise: float, rate: float, asked: dict[str, Any]) -> list[Audit]:
    from privet.audit import step
    from privet.audit.one_step import noises
    from privet.clipping import FlatClipping

    return [
        step(FlatClipping(1.0), noise=kind, rate=rate, name=f"One step, {name} noise", **asked)
        for name, kind in noises(1 / noise).items()
    ]


def _say(found: list[Audit], stations: tuple[Audit, ...], run: Path | None, as_json: bool) -> None:
    plain = json.dumps([one.to_dict() for one in (*found, *stations)], indent=1, allow_nan=False)
    if run is not None:
        from privet.report import RunRecord, renew

        replace(RunRecord.read(run), audits=tuple(found)).write(run)
        renew(run)
    if as_json:
        typer.echo(plain)
    else:
        if run is not None:
            typer.echo(
                f"Audited: what the ledger of {run} says was done (its noise, sampling rate and number of steps), by the code "
                "that trains. The run's own records, model and clipping took no part."
            )
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
