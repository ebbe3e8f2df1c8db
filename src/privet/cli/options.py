"""Which options a verb uses. Unused options are refused, never ignored; options of version 0.1 are translated."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from privet.cli.program import echo
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.methods import Method

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Only:
    """An option that is used only under a condition on the others; `otherwise` describes the condition."""

    met: Callable[[Values], bool]
    otherwise: str


@dataclass(frozen=True)
class VerbMode:
    """One of the things that a verb can do.

    Attributes:
        named: as the user asks for it.
        uses: the names of the options that change what it does.
        why_not: why it does not use other options; without a reason the message only says where they are used.
        only: the conditions under which it uses an option.
    """

    named: str
    uses: frozenset[str]
    why_not: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Only] = field(default_factory=dict)


def _mode(
    named: str, *uses: str, why_not: Mapping[str, str] | None = None, only: Mapping[str, Only] | None = None
) -> VerbMode:
    return VerbMode(named, frozenset(name for names in uses for name in names.split()), why_not or {}, only or {})


OUTPUT = "as_json"

_AUDIT = f"{OUTPUT} run method plugins draws confidence seed resume dry_run"
_EXAMPLE = "noise rate steps delta canaries"
_OF_THE_RUN = "it is what the run's ledger and record say"
_CANARIES = {"canaries": Only(lambda given: given["steps"] > 1, "they are put into a whole training: give --steps")}
AUDIT = {
    "run": _mode(
        "the audit of a run",
        _AUDIT,
        "canaries model",
        why_not=dict.fromkeys(("clipping", "noise", "rate", "steps", "delta"), _OF_THE_RUN),
    ),
    "dpsgd": _mode(
        "--method dpsgd",
        _AUDIT,
        _EXAMPLE,
        "clipping laboratory runs jobs backend address",
        only=_CANARIES
        | dict.fromkeys(
            ("runs", "jobs", "backend", "address"),
            Only(lambda given: given["laboratory"], "the laboratory has many runs: leave out --no-laboratory"),
        ),
    ),
    "method": _mode("another method", _AUDIT, _EXAMPLE, only=_CANARIES),
    "release": _mode("the release of a mean or a second moment", _AUDIT, "noise delta"),
}

_REPRODUCE = f"{OUTPUT} recipe plugins"
_OWN_LINES = {"epsilon": "it states its own budgets", "method": "it states its own methods"}
REPRODUCE = {
    "all": _mode(
        "--all", OUTPUT, "every no_run out results export seeds delta plugins resume dry_run jobs backend address"
    ),
    "no-run": _mode(
        "--all --no-run",
        OUTPUT,
        "every no_run out results export plugins",
        why_not=dict.fromkeys(("seeds", "delta"), "nothing is run"),
    ),
    "reversal": _mode("wang-reversal", _REPRODUCE, "out image"),
    "formulas": _mode("a table of formulas", _REPRODUCE, "export"),
    "quarters": _mode(
        "a table of attacked networks",
        _REPRODUCE,
        "out records line seeds results export resume dry_run jobs backend address",
        why_not=_OWN_LINES | {"delta": "it states its own delta"},
    ),
    "students": _mode(
        "a table of students",
        _REPRODUCE,
        "out line epsilon delta seeds results export resume dry_run jobs backend address",
    ),
    "accuracy": _mode(
        "a table of accuracies",
        _REPRODUCE,
        "out epsilon method delta seeds results export resume dry_run jobs backend address",
    ),
}

REPORT = {
    "run": _mode("a run", f"{OUTPUT} run intended_use licence contact about registry plugins"),
    "template": _mode("--template", "template"),
    "comparison": _mode("a comparison", f"{OUTPUT} run plugins"),
}

TABLES: Mapping[str, Mapping[str, VerbMode]] = {
    "audit": AUDIT,
    "reproduce": REPRODUCE,
    "report": REPORT,
}
"""The verbs with several modes. Of train, synthesize and compare the method says what it uses (`check_methods`)."""


def check_used(context: typer.Context, mode: str, *, named: str = "") -> None:
    """Raise if an option was given that this mode of the verb does not use; `named` is what the user calls it."""
    table = TABLES[str(context.info_name)]
    check(context, table[mode], table.values(), named)


def check(context: typer.Context, mode: VerbMode, others: Iterable[VerbMode] = (), named: str = "") -> None:
    """Raise if an option was given that `mode` does not use; the message names `others` that do."""
    for name, option in given(context).items():
        if name not in mode.uses:
            users = [other.named for other in others if name in other.uses and option not in other.named]
            raise InputError(_refusal(option, named or mode.named, mode.why_not.get(name, ""), users))
        if name in mode.only and not mode.only[name].met(context.params):
            raise InputError(f"{option} is not used here: {mode.only[name].otherwise}, or leave it out.")


def _refusal(option: str, named: str, why: str, users: Sequence[str]) -> str:
    out = f", or use it with {either(users)}" if users else ""
    return f"{option} is not used by {named}{f': {why}' if why else ''}. Leave it out{out}."


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


def either(names: Sequence[str]) -> str:
    """ "--method a, b or c": a common prefix is written once."""
    option = names[0].split()[0]
    if option.startswith("--") and all(name.startswith(f"{option} ") for name in names[1:]):
        names = [names[0], *(name.removeprefix(f"{option} ") for name in names[1:])]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


DEPENDS = {
    "epsilon": ("spends_budget", "its noise is set by its settings, and its epsilon follows from them"),
    "users": ("protects_users", "it has no proof for users who hold several records"),
    "public": ("needs_public", "it does not learn from public records"),
}
"""Options that only some methods use: the attribute of the method that says so, and why the others do not."""


@dataclass
class GivenSettings:
    """Settings by name, each with the option by which the user gave it."""

    values: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Iterable[str] | None) -> GivenSettings:
        """The settings of --set NAME=VALUE."""
        found = cls()
        for text in texts or ():
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise InputError(f"--set takes NAME=VALUE, for example --set epochs=3, and not {text!r}.")
            name = name.strip().replace("-", "_")
            found.add(f"--set {name}", name, value.strip())
        return found

    def add(self, option: str, name: str, value: Any) -> None:
        """Another setting, given by `option`; a setting that is given twice is refused."""
        if name in self.values:
            twice = option == self.options[name]
            said = f"{option} was given twice" if twice else f"{option} and {self.options[name]} are the same setting"
            raise InputError(f"{said}: give one value.")
        self.values[name], self.options[name] = value, option


def check_methods(
    context: typer.Context, methods: Sequence[Method], settings: GivenSettings, among: Mapping[str, Method]
) -> None:
    """Raise if an option or a setting was given that none of the methods uses; the message names those `among` that do."""
    from privet.methods import settings_of

    written = given(context)
    several = len(methods) > 1
    named = (
        f"any of these methods: {', '.join(each.key for each in methods)}" if several else f"--method {methods[0].key}"
    )
    for name, (attribute, why) in DEPENDS.items():
        if name in written and not any(getattr(each, attribute) for each in methods):
            users = [f"--method {key}" for key, other in among.items() if getattr(other, attribute)]
            raise InputError(_refusal(written[name], named, "" if several else why, users))
    names = {each.key: [setting.name for setting in settings_of(each)] for each in methods}
    for name, option in settings.options.items():
        if any(name in known for known in names.values()):
            continue
        users = [f"--method {key}" for key, other in among.items() if name in {one.name for one in settings_of(other)}]
        if users:
            raise InputError(_refusal(option, named, "", users))
        raise InputError(unknown_setting(option, named, {each for known in names.values() for each in known}))


def unknown_setting(option: str, named: str, known: Iterable[str]) -> str:
    """The sentence for a setting that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(option.removeprefix("--set ").removeprefix("--"), known := sorted(known), n=1)
    there = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}." if known else "there are none."
    return f"{option} is not a setting of {named}: {there}"


def warn_moved(old: str, new: str) -> None:
    """Say that something of version 0.1 still works, and what to write instead."""
    echo(f"privet: {old} is deprecated and will be removed in the next version: write {new} instead.", err=True)


def current_key(key: str, option: str = "--method") -> str:
    """The key of a method; one of version 0.1 is translated, with a warning."""
    from privet.methods.method import ALIASES

    if key in ALIASES:
        warn_moved(f"{option} {key}", f"{option} {ALIASES[key]}")
    return ALIASES.get(key, key)
