"""`privet report`, and `privet sign` and `privet verify` for its card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from privet.cli.attack import RunFolder
from privet.cli.options import check_used
from privet.cli.program import AsJson, echo, verb
from privet.cli.records import Plugins, load_plugins, say_of_run
from privet.errors import InputError

MaybeRun = Annotated[Path | None, typer.Argument(metavar="RUN", help="The folder of a run, for example runs/a.")]
JOB = "job.json"
"""A file that only the folder of a comparison has, not that of a run."""


@verb("report", "privet report runs/a --license apache-2.0")
def report(
    context: typer.Context,
    run: MaybeRun = None,
    intended_use: Annotated[str | None, typer.Option(help="For the card: what the release is for.")] = None,
    licence: Annotated[
        str | None, typer.Option("--license", "--licence", help="For the card: a license by its identifier.")
    ] = None,
    contact: Annotated[str | None, typer.Option(help="For the card: whom to ask.")] = None,
    about: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with what no run can know: curator, purpose, legal basis and so on (--template)."
        ),
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Print the YAML file with every question, to fill in; no run is needed.")
    ] = False,
    registry: Annotated[
        Path | None,
        typer.Option(help="Also write the card in the fields of the OpenDP registry of deployments, as a YAML file."),
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Make the page and the privacy card of a run again, from its record and ledger alone; or the page of a comparison.

    Statements for the card are kept in the record. The card may be published with the release; the page is only for people
    who may see the data.
    """
    if template:
        from privet.report.about import template as questions

        check_used(context, "template")
        echo(questions().rstrip("\n"))
        return
    if run is None:
        raise InputError("Give the folder of a run, for example runs/a, or --template for the questions of --about.")
    load_plugins(plugins)
    check_used(context, "comparison" if (run / JOB).exists() else "run")
    if (run / JOB).exists():
        _comparison(run, as_json)
        return
    from privet.report import renew
    from privet.report.about import read_about
    from privet.report.card import MARKDOWN
    from privet.report.export import write_registry_entry
    from privet.report.statement import not_for_release
    from privet.runs.after import alone_with
    from privet.runs.own import read_run

    given = {"intended_use": intended_use, "licence": licence, "contact": contact}
    told = read_about(about) if about is not None else {}
    if twice := [name for name, text in given.items() if text is not None and name in told]:
        raise InputError(f"{about} and the command line both give {' and '.join(twice)}: give each once.")
    told |= {name: text for name, text in given.items() if text is not None}
    with alone_with(run):
        record = read_run(run)
        stated = replace(record.stated, **told)
        if stated != record.stated:
            record = replace(record, stated=stated)
            record.write(run)
        page = renew(run)
    if registry is not None:
        write_registry_entry(run, registry)
    say_of_run(record)
    ledger = record.open_ledger(run)
    spent, calibrated = record.spent(ledger), record.calibrated(ledger)
    if as_json:
        other = {"calibrated": calibrated.to_dict()} if calibrated else {}
        facts = {"page": str(page), "card": str(run / MARKDOWN), "spent": spent.to_dict()}
        facts |= {"not_protected": record.data.who_is_unprotected, "not_for_release": not_for_release(record)}
        echo(
            json.dumps(
                facts | {"accuracy": record.released_utility and record.released_utility.accuracy} | other, indent=1
            )
        )
        return
    echo(f"{spent}")
    if calibrated is not None:
        echo(f"The noise was calibrated by {calibrated.accountant}: {calibrated}")
    echo(f"The card: {run / MARKDOWN}")
    echo(f"The page{'' if record.data.public else ', which is internal'}: {page}")


def _comparison(out: Path, as_json: bool) -> None:
    from privet.cli.compare import say
    from privet.runs.comparison import read_result, write_comparison
    from privet.training.folder import alone_in

    read_result(out)  # refused if it is damaged, before anything is written
    with alone_in(out):
        result = read_result(out)
        write_comparison(result, out)
    say(result, out, as_json)


@verb("sign", 'privet sign runs/a --key ~/.ssh/id_ed25519 --name "A. Bee" --role "privacy officer" --decision approved')
def sign(
    run: RunFolder,
    name: Annotated[str, typer.Option(help="Who signs.")],
    role: Annotated[str, typer.Option(help="As what they sign, for example: privacy officer.")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="A private key: Ed25519 in a PEM file, or one of OpenSSH. Without a key, the name is only typed, and is not "
            "called a signature."
        ),
    ] = None,
    expires: Annotated[str, typer.Option(metavar="DATE", help="The last day on which the signature is valid.")] = "",
    decision: Annotated[str, typer.Option(help="approved or rejected; by default, none is stated.")] = "",
    note: Annotated[str, typer.Option(help="A condition or a remark, on one line.")] = "",
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Sign the privacy card of a run, after checking its files, ledger and card. Earlier signatures are kept."""
    load_plugins(plugins)
    from privet.report import renew
    from privet.report.signatures import TYPED, Signer, append_signature, now
    from privet.report.statement import not_for_release
    from privet.report.verify import card_to_sign
    from privet.runs.after import alone_with
    from privet.runs.own import read_run

    if key is not None and run.resolve() in key.resolve().parents:
        raise InputError(
            f"{key} is in the folder of the run, which is meant to be shared: keep a private key elsewhere."
        )
    with alone_with(run):
        refused = not_for_release(read_run(run))
        if refused and decision == "approved":
            raise InputError(f"{refused} It cannot be approved; --decision rejected can be signed.")
        made = append_signature(run, card_to_sign(run), Signer(name, role, now(), decision, expires, note), key)
        page = renew(run)
    if as_json:
        facts = {"kind": made.kind, "how": made.how, "key": made.key, "signer": vars(made.signer), "page": str(page)}
        echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    echo(f"{made.signer.name} ({made.signer.role}): {made.how}.")
    if made.how == TYPED:
        echo("Anybody could have typed it: give --key to sign.", err=True)
    echo(f"The card and the page show it: {page}")


@verb("verify", "privet verify runs/a --allowed-signers signers")
def verify(
    run: RunFolder,
    keys: Annotated[
        list[Path] | None,
        typer.Option("--key", help="A public key that may sign, of OpenSSH or PEM; repeat the option to give several."),
    ] = None,
    allowed_signers: Annotated[
        Path | None, typer.Option(help="A file of allowed signers, as ssh-keygen reads it, for SSH signatures.")
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Check the released files, the ledger, the card and its signatures, and say what changed. Exit code 1 if anything did."""
    load_plugins(plugins)
    from privet.io import read_text
    from privet.report import verify as checks
    from privet.report.signatures import read_public_key

    if allowed_signers is not None:
        read_text(allowed_signers)  # refused if it is missing, or no file
    found = checks.verify(run, checks.Known(tuple(map(read_public_key, keys or ())), allowed_signers))
    good = checks.holds(found)
    if as_json:
        echo(json.dumps(checks.as_dict(found), indent=1, ensure_ascii=False))
    else:
        marks = {True: "ok          ", False: "NOT OK      ", None: "not checked "}
        for one in found:
            echo(f"{marks[one.holds]} {one.said}")
        echo("Nothing was found that does not hold." if good else "This is NOT the release that its card describes.")
    if not good:
        raise typer.Exit(1)
