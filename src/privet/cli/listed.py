"""`privet methods`, `privet recipes` and `privet attacks`: what there is, from the registries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from privet.cli.program import AsJson, verb
from privet.cli.records import Plugins, load_plugins, recipe_names


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _method_keys() -> list[str]:
    from privet.methods import METHODS

    return list(METHODS)


@verb("methods", "privet methods residual")
def methods(
    key: Annotated[
        str | None, typer.Argument(help="A method: its settings are listed.", autocompletion=_method_keys)
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
            typer.echo(json.dumps(facts, indent=1))
            return
        if markdown:
            typer.echo(table_of_methods())
            return
        typer.echo(_table([("key", "makes", "title"), *((f["key"], f["makes"], f["title"]) for f in facts)]))
        typer.echo("\nprivet methods KEY lists the settings of a method.")
        return
    method = method_named(key)
    settings = settings_of(method)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(one) for one in settings], indent=1))
        return
    typer.echo(f"{method.title}. Makes {'a model' if method.makes == 'model' else 'data'}.")
    for name, said in (("Source", method.source), ("Noise", method.noise_is), ("Proof", method.proof)):
        if said:
            typer.echo(f"{name}: {said}")
    typer.echo("")
    rows = [("setting", "type", "default", "meaning")]
    rows += [(one.name, one.kind, _shown(one.default), one.meaning) for one in settings]
    typer.echo(_table(rows))
    typer.echo("\nGive one with --set NAME=VALUE. Defaults that depend on the records are chosen when the run starts.")


def table_of_methods() -> str:
    """The methods as a Markdown table; variants of one class share a line."""
    from privet.methods import METHODS, Method

    lines: dict[type[Method], list[str]] = {}
    for key, method in METHODS.items():
        lines.setdefault(type(method), []).append(key)
    rows = ["| method | makes | where the noise is | proof | source |", "|---|---|---|---|---|"]
    for kind, named in lines.items():
        method = METHODS[named[0]]
        said = ", ".join(f"`{key}`" for key in named)
        rows.append(f"| {said} | {method.makes} | {kind.noise_is} | {kind.proof} | {kind.source or 'Privet'} |")
    return "\n".join(rows)


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
            typer.echo(json.dumps([{"name": r.name, "title": r.title, "data": r.data} for r in found], indent=1))
            return
        typer.echo(_table([("name", "data", "title"), *((r.name, r.data, r.title) for r in found)]))
        return
    chosen = recipe.load(name)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(chosen), indent=1))
        return
    typer.echo(f"{chosen.title}\n{chosen.why}\nModel: {chosen.model.name} {chosen.model.arguments or ''}\n")
    names = sorted({*chosen.settings, *(key for row in chosen.budgets for key in row)} - {"epsilon"})
    rows = [("setting", *(f"at {epsilon:g}" for epsilon in chosen.epsilons), "where it came from")]
    for each in names:
        values = [chosen.settings | row for row in chosen.budgets]
        cells = (f"{value[each]:g}" if each in value else "-" for value in values)
        rows.append((each, *cells, f"{chosen.origins[each].source}: {chosen.origins[each].note}"))
    typer.echo(_table(rows))


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
        typer.echo(json.dumps(found, indent=1, default=str))
        return
    rows = [("key", "title", "settings")]
    rows += [(f["key"], f["title"], " ".join(f"{n}={v}" for n, v in f["settings"].items())) for f in found]
    typer.echo(_table(rows))
