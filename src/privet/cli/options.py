"""Which options each way of a verb uses: an option that would change nothing is refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import typer

from privet.errors import InputError

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Only:
    """An option that is used under a condition on the other ones; `otherwise` says which."""

    met: Callable[[Values], bool]
    otherwise: str


@dataclass(frozen=True)
class Way:
    """One way through a verb.

    Attributes:
        named: as the user asks for it.
        uses: the names of the options that change what it does.
        why_not: of options that it does not use, why; without it the message only says where they are used.
        only: of options that it uses, when.
    """

    named: str
    uses: frozenset[str]
    why_not: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Only] = field(default_factory=dict)


def _way(
    named: str, *uses: str, why_not: Mapping[str, str] | None = None, only: Mapping[str, Only] | None = None
) -> Way:
    return Way(named, frozenset(name for names in uses for name in names.split()), why_not or {}, only or {})


OUTPUT = "as_json"

_AUDIT = f"{OUTPUT} run method clipping plugins"
_POWER = "draws confidence seed"
_OF_THE_RUN = "it is what the run's ledger and record say"
AUDIT = {
    "run": _way(
        "the audit of a run",
        _AUDIT,
        _POWER,
        "canaries model",
        why_not=dict.fromkeys(("noise", "rate", "steps", "delta"), _OF_THE_RUN),
    ),
    "method": _way(
        "the audit of a method",
        _AUDIT,
        _POWER,
        "noise rate steps delta canaries laboratory runs",
        only={
            "canaries": Only(lambda given: given["steps"] > 1, "they are put into a whole training: give --steps"),
            "runs": Only(
                lambda given: given["laboratory"], "they are those of the laboratory: leave out --no-laboratory"
            ),
        },
    ),
    "release": _way("the audit of a release before training", _AUDIT, _POWER, "noise delta"),
}

_REPRODUCE = f"{OUTPUT} recipe"
_OWN_LINES = {"epsilon": "it states its own budgets", "method": "it states its own methods"}
REPRODUCE = {
    "all": _way("--all", OUTPUT, "every no_run out results seeds delta"),
    "no-run": _way(
        "--all --no-run",
        OUTPUT,
        "every no_run out results",
        why_not=dict.fromkeys(("seeds", "delta"), "nothing is run"),
    ),
    "reversal": _way("wang-reversal", _REPRODUCE, "out image"),
    "formulas": _way("a table of formulas", _REPRODUCE),
    "quarters": _way(
        "a table of attacked networks",
        _REPRODUCE,
        "out records line seeds results",
        why_not=_OWN_LINES | {"delta": "it states its own delta"},
    ),
    "students": _way("a table of students", _REPRODUCE, "out line epsilon delta seeds results"),
    "accuracy": _way("a table of accuracies", _REPRODUCE, "out epsilon method delta seeds results"),
}

REPORT = {
    "run": _way("a run", f"{OUTPUT} run intended_use licence contact"),
    "comparison": _way("a comparison", f"{OUTPUT} run", why_not={}),
}

TABLES: Mapping[str, Mapping[str, Way]] = {
    "audit": AUDIT,
    "reproduce": REPRODUCE,
    "report": REPORT,
}
"""The verbs with several ways. Of train, synthesize and compare the method says what it uses (`cli.records.check_used`)."""


def check_used(context: typer.Context, way: str, *, named: str = "") -> None:
    """Raise if an option was given that this way of the verb does not use; `named` is what the user calls it."""
    table = TABLES[str(context.info_name)]
    check(context, table[way], table.values(), named)


def check(context: typer.Context, way: Way, others: Iterable[Way] = (), named: str = "") -> None:
    """Raise if an option was given that `way` does not use; the message names `others` that do."""
    named = named or way.named
    for name, option in given(context).items():
        if name not in way.uses:
            why = f": {way.why_not[name]}" if name in way.why_not else ""
            users = [other.named for other in others if name in other.uses and option not in other.named]
            out = f", or use it with {_either(users)}" if users else ""
            raise InputError(f"{option} is not used by {named}{why}. Leave it out{out}.")
        if name in way.only and not way.only[name].met(context.params):
            raise InputError(f"{option} is not used here: {way.only[name].otherwise}, or leave it out.")


def given(context: typer.Context) -> dict[str, str]:
    """The options and arguments that the user wrote, by parameter, as they are written."""
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name is not None and source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
            spelt = [text for text in parameter.opts if text.startswith("--")]
            negative = parameter.secondary_opts if context.params.get(parameter.name) is False else []
            found[parameter.name] = (negative or spelt or [parameter.name.upper()])[0]
    return found


def _either(names: list[str]) -> str:
    """ "--method a, b or c": what all begin with is said once."""
    option = names[0].split()[0]
    if option.startswith("--") and all(name.startswith(f"{option} ") for name in names[1:]):
        names = [names[0], *(name.removeprefix(f"{option} ") for name in names[1:])]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
