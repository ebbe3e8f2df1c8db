"""The program `privet`: its verbs, groups of options, exit codes and error messages.

Exit codes: 0 done, 1 a run failed, 2 bad usage or input, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from privet import __version__
from privet.errors import PrivetError
from privet.io import keep_freed_memory

# The order of the work. A verb is listed in the help when its file registers it, never before it works.
ORDER = (
    "data",
    "methods",
    "recipes",
    "attacks",
    "train",
    "synthesize",
    "account",
    "attack",
    "audit",
    "compare",
    "reproduce",
    "report",
    "demo",
)

INTERRUPTED = 130

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


class Verbs(TyperGroup):
    """The verbs in the order of the work, and one sentence instead of a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PrivetError as error:
            typer.echo(f"privet: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            typer.echo("privet: stopped; what was finished before is kept.", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="privet",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start here:  privet demo",
)


def verb(name: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a verb. A parameter whose type is a dataclass is a group of options: one option for each of its fields."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        parameters: list[inspect.Parameter] = []
        groups: dict[str, Any] = {}
        for each in inspect.signature(function).parameters.values():
            hint = hints[each.name]
            if not dataclasses.is_dataclass(hint):
                parameters.append(each.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
                continue
            groups[each.name] = hint
            inner = get_type_hints(hint, include_extras=True)
            for field in dataclasses.fields(hint):
                default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
                parameters.append(
                    inspect.Parameter(
                        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=inner[field.name]
                    )
                )

        def call(**given: Any) -> None:
            for group, kind in groups.items():
                given[group] = kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
            function(**given)

        call.__doc__, call.__name__, call.__module__ = function.__doc__, function.__name__, function.__module__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, epilog=f"Example:  {example}")(call)
        return function

    return register


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"privet {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Private deep learning: train, account, attack and report in one run."""


def main() -> None:
    """Run `privet` with the arguments of the process."""
    # Threads that wait by spinning starve each other as soon as anything else runs on the machine: a step of the demo
    # then took six times as long. This must be set before PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_freed_memory()
    app(prog_name="privet")
