"""The program `privet`: its verbs, groups of options, exit codes and error messages.

Exit codes: 0 done, 1 a run failed, 2 bad usage or input, 130 stopped with Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import dataclasses
import errno
import inspect
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperGroup

from privet import __version__
from privet.errors import PrivetError, PrivetWarning
from privet.io import check_unicode, keep_freed_memory, of_the_path, printable, why_refused
from privet.io.names import LEDGER

# The order in which users need the verbs. The help lists a verb once its file has registered it.
ORDER = (
    "data",
    "methods",
    "recipes",
    "attacks",
    "train",
    "tune",
    "synthesize",
    "account",
    "budget",
    "attack",
    "audit",
    "compare",
    "reproduce",
    "report",
    "sign",
    "verify",
    "demo",
)

INTERRUPTED = 130

FIRST = ("run", "data", "method", "methods", "out", "epsilon", "delta")
"""Options that are listed before the others."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


class Verbs(TyperGroup):
    """The verbs in the order of the work, and one sentence instead of a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["privet.words"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            check_unicode(*ctx.meta["privet.words"], os.getcwd())  # records and accounts hold them
            return super().invoke(ctx)
        except PrivetError as error:
            echo(f"privet: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            echo("privet: stopped; what was finished before is kept.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of the output has closed it
                raise
            where = error.filename if error.filename is not None else "A file"
            echo(f"privet: {where} cannot be read or written {why_refused(error)}.", err=True)
            raise typer.Exit(2 if of_the_path(error) else 1) from None
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not any(said in str(error) for said in TOO_LARGE):
                raise
            echo("privet: This machine has too little memory: use fewer records or a smaller model.", err=True)
            raise typer.Exit(1) from None


TOO_LARGE = ("can't allocate memory", "out of memory")
"""Whether this is PyTorch's form of a MemoryError."""


def echo(text: object = "", *, err: bool = False) -> None:
    """Print a text without control characters: it may contain names and notes from other people's files."""
    typer.echo("\n".join(printable(line) for line in str(text).split("\n")), err=err)


class Stopped(PrivetError):  # noqa: N818 - a name that reads as what happened
    """The user has stopped the program; the message says how to continue."""

    exit_code = INTERRUPTED


@contextmanager
def how_to_go_on(out: Path | None = None, *, pays: bool = True) -> Iterator[None]:
    """If the command is stopped inside this context, print how to continue it.

    Args:
        out: the folder that --out names, or that was chosen without it; None for a verb that has no such option.
        pays: whether this is one run in `out` that pays for what it does.
    """
    try:
        yield
    except KeyboardInterrupt:
        if pays and out is not None and not (out / LEDGER).exists():
            raise Stopped("stopped before any record was used.") from None
        raise Stopped(
            f"stopped; {'nothing that was paid for is lost' if pays else 'what was finished is kept'}, and this goes on: "
            f"{command_to_go_on(out)}"
        ) from None


def command_to_go_on(out: Path | None = None) -> str:
    """The command that was called, with --resume, quoted for a shell."""
    words = ["privet", *sys.argv[1:]]
    if out is not None and not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(out)]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


app = typer.Typer(
    name="privet",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start here:  privet demo",
)


def verb(name: str, example: str, of: typer.Typer = app) -> Callable[[Callable[..., None]], Callable[..., None]]:
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

        parameters.sort(key=lambda each: FIRST.index(each.name) if each.name in FIRST else len(FIRST))

        def call(**given: Any) -> None:
            for group, kind in groups.items():
                given[group] = kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
            function(**given)

        call.__doc__, call.__name__, call.__module__ = function.__doc__, function.__name__, function.__module__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        of.command(name, epilog=f"Example:  {example}")(call)
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


def _warn_in_sentences() -> None:
    """Show Privet's warnings as sentences, without file names and line numbers."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *more: Any, **named: Any) -> None:
        if issubclass(category, PrivetWarning):
            echo(f"privet: {message}", err=True)
        else:
            usual(message, category, *more, **named)

    warnings.showwarning = show


def main() -> None:
    """Run `privet` with the arguments of the process."""
    # Threads that spin while they wait starve each other when anything else runs on the machine: a step of the demo
    # took six times as long. This must be set before PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_freed_memory()
    _warn_in_sentences()
    signal.signal(signal.SIGTERM, _stop)
    app(prog_name="privet")


def _stop(*_: object) -> NoReturn:
    """SIGTERM stops a run as Ctrl-C does: it says how to go on."""
    raise KeyboardInterrupt
