"""`privet data get` and `privet data list`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.program import AsJson, app, echo
from privet.cli.progress import fetching

if TYPE_CHECKING:
    from privet.data import CatalogEntry, Dataset

# For tab completion only: the catalog imports PyTorch, which takes too long for a key press.
NAMES = ("mnist", "fashion-mnist", "cifar10", "digits", "sms-spam", "sotu")

verbs = typer.Typer(no_args_is_help=True, help="Get data sets and list them.")
app.add_typer(verbs, name="data")


@verbs.command("get", epilog="Example:  privet data get mnist")
def get(
    name: Annotated[str, typer.Argument(help="A name that `privet data list` shows.", autocompletion=lambda: NAMES)],
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Your own folder or archive with the files; no other source is tried."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a data set into the cache ($PRIVET_DATA, else your cache folder) and check every file."""
    from privet import data

    with fetching() as progress:
        dataset = data.get(name, from_=from_, progress=progress)
    facts = _facts(data.CATALOGUE[name], dataset, data.cache_root() / name)
    if as_json:
        echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in facts["records"].items())
    echo(f"{name}: {counts} records of shape {' x '.join(map(str, facts['shape']))}")
    if facts["target"]:
        echo(f"The target is {facts['target']}, a number.")
    else:
        echo(f"{len(facts['classes'])} classes: {', '.join(facts['classes'])}")
    if facts["license"]:
        echo(f"License: {facts['license']}")
    if not facts["files"]:
        echo("It comes with scikit-learn: no file had to be fetched.")
        return
    echo(f"in {facts['folder']}, SHA-256 checked:")
    for file in facts["files"]:
        echo(f"  {file['sha256']}  {file['name']}")


def _facts(entry: CatalogEntry, dataset: Dataset, folder: Path) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "records": {split: len(records) for split, records in dataset.splits.items()},
        "shape": list(dataset.shape),
        "classes": list(dataset.classes),
        "target": dataset.target.name if dataset.target else "",
        "fingerprint": dataset.fingerprint,
        "license": entry.license or None,
        "folder": str(folder) if entry.files else None,
        "files": [{"name": file.name, "sha256": file.sha256} for file in entry.files],
    }


@verbs.command("list", epilog="Example:  privet data list")
def list_data(as_json: AsJson = False) -> None:
    """List the data sets that Privet gets by name, and whether they are in the cache."""
    from privet import data

    root = data.cache_root()
    cached = {entry.name: data.is_cached(entry, root) for entry in data.CATALOGUE.values()}
    if as_json:
        rows = [
            {
                "name": entry.name,
                "title": entry.title,
                "records": dict(entry.records),
                "classes": list(entry.classes),
                "cached": cached[entry.name],
                "homepage": entry.homepage,
                "license": entry.license or None,
            }
            for entry in data.CATALOGUE.values()
        ]
        echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for entry in data.CATALOGUE.values():
        counts = " + ".join(f"{count:,}" for count in entry.records.values())
        here = "here" if cached[entry.name] else "to fetch"
        echo(f"{entry.name:14} {counts:>16} records  {here:8}  {entry.title}")
