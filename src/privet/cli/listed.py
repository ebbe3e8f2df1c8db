"""`privet data`, `privet methods`, `privet recipes` and `privet attacks`: what there is."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.program import AsJson, app, echo, verb
from privet.cli.progress import fetching
from privet.cli.records import NAMES, Plugins, completing, load_plugins, recipe_names

if TYPE_CHECKING:
    from privet.data import CatalogEntry, Dataset


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Aligned columns; on a terminal the last one is wrapped."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    before = sum(widths) + 2 * len(widths)
    left = max(30, shutil.get_terminal_size().columns - before) if sys.stdout.isatty() else sys.maxsize
    lines = []
    for row in rows:
        first, *others = textwrap.wrap(row[-1], left) or [""]
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines += ["  ".join([*cells, first]).rstrip(), *(" " * before + other for other in others)]
    return "\n".join(lines)


def _method_keys() -> list[str]:
    from privet.methods import METHODS

    return list(METHODS)


@verb("methods", "privet methods residual")
def methods(
    key: Annotated[
        str | None, typer.Argument(help="A method: its settings are listed.", autocompletion=completing(_method_keys))
    ] = None,
    plugins: Plugins = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table for a Markdown page.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the settings of one with type, default and meaning."""
    load_plugins(plugins)
    from privet.methods import METHODS, method_named, settings_of

    if key is None:
        facts = [
            {
                "key": name,
                "makes": method.makes,
                "title": method.title,
                "noise": method.noise_is,
                "proof": method.proof,
                "source": method.source,
            }
            for name, method in METHODS.items()
        ]
        if as_json:
            echo(json.dumps(facts, indent=1))
            return
        if markdown:
            echo(table_of_methods())
            return
        echo(_table([("key", "makes", "title"), *((f["key"], f["makes"], f["title"]) for f in facts)]))
        echo("\nprivet methods KEY lists the settings of a method.")
        return
    method = method_named(key)
    settings = settings_of(method)
    if as_json:
        echo(json.dumps([dataclasses.asdict(one) for one in settings], indent=1))
        return
    if markdown:
        echo(table_of_settings(key))
        return
    echo(f"{method.title}. Makes {'a model' if method.makes == 'model' else 'data'}.")
    for name, said in (("Source", method.source), ("Noise", method.noise_is), ("Proof", method.proof)):
        if said:
            echo(f"{name}: {said}")
    echo("")
    rows = [("setting", "type", "default", "meaning")]
    rows += [(one.name, one.kind, _shown(one.default), one.meaning) for one in settings]
    echo(_table(rows))
    echo("\nGive one with --set NAME=VALUE. A default of - follows from the records or the recipe when the run starts.")


def table_of_methods() -> str:
    """The methods as a Markdown table; variants of one class share a line."""
    from privet.methods import METHODS, Method

    lines: dict[type[Method], list[str]] = {}
    for key, method in METHODS.items():
        lines.setdefault(type(method), []).append(key)
    rows = ["| method | makes | where the noise is | what is proved | source |", "|---|---|---|---|---|"]
    for kind, named in lines.items():
        makes = METHODS[named[0]].makes
        rows.append(f"| {_together(named)} | {makes} | {kind.noise_is} | {kind.proof} | {kind.source or 'Privet'} |")
    return "\n".join(rows)


def table_of_settings(key: str) -> str:
    """The settings of a method as a Markdown table."""
    from privet.methods import method_named, settings_of

    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{one.name}` | {one.kind} | {_shown(one.default)} | {one.meaning} |"
        for one in settings_of(method_named(key))
    ]
    return "\n".join(rows)


def _together(keys: Sequence[str]) -> str:
    """Keys as code; a key that begins like the first one is shortened to its ending."""
    first = keys[0]
    rest = ", ".join(f"`{key.removeprefix(first)}`" for key in keys[1:])
    return f"`{first}` ({rest})" if rest else f"`{first}`"


def _shown(default: Any) -> str:
    return "-" if default in (None, "") else str(default).lower() if isinstance(default, bool) else f"{default}"


@verb("recipes", "privet recipes mnist-scattering")
def recipes(
    name: Annotated[
        str | None, typer.Argument(help="A recipe: its settings are listed.", autocompletion=recipe_names)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes, or the settings of one and where each came from."""
    from privet.methods import recipe

    if name is None:
        found = [recipe.load(each) for each in recipe.names()]
        if as_json:
            echo(json.dumps([{"name": r.name, "title": r.title, "data": r.data} for r in found], indent=1))
            return
        echo(_table([("name", "data", "title"), *((r.name, r.data, r.title) for r in found)]))
        return
    chosen = recipe.load(name)
    if as_json:
        echo(json.dumps(dataclasses.asdict(chosen), indent=1))
        return
    echo(f"{chosen.title}\n{chosen.why}\nModel: {chosen.model.name} {chosen.model.arguments or ''}\n")
    names = sorted({*chosen.settings, *(key for row in chosen.budgets for key in row)} - {"epsilon"})
    rows = [("setting", *(f"at {epsilon:g}" for epsilon in chosen.epsilons), "where it came from")]
    for each in names:
        values = [chosen.settings | row for row in chosen.budgets]
        cells = (f"{value[each]:g}" if each in value else "-" for value in values)
        rows.append((each, *cells, f"{chosen.origins[each].source}: {chosen.origins[each].note}"))
    echo(_table(rows))


@verb("attacks", "privet attacks")
def attacks(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List the attacks with their settings."""
    load_plugins(plugins)
    from privet.attacks import attack_named, attack_names

    found: list[dict[str, Any]] = []
    for key in attack_names():
        attack: Any = attack_named(key)
        settings = {
            f.name: getattr(attack, f.name) for f in dataclasses.fields(attack) if f.name not in ("key", "title")
        }
        found.append({"key": key, "title": attack.title, "settings": settings})
    if as_json:
        echo(json.dumps(found, indent=1, default=str))
        return
    rows = [("key", "title", "settings")]
    rows += [(f["key"], f["title"], " ".join(f"{n}={v}" for n, v in f["settings"].items())) for f in found]
    echo(_table(rows))
    echo(
        "\nGive a setting with --set NAME=VALUE. privet attack RUN --attack inversion draws a picture of each class instead."
    )


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
