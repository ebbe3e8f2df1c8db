"""Which options each way of each verb uses. An option that was given and would change nothing is refused, never ignored.

Denied by default: an option that stands in no line of this file is refused wherever it is given, until somebody lists it.
"""

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
RECORDS = "data schema no_header public_size hold_out unprotected_test"

# --- train ----------------------------------------------------------------------------------------------------------

_TRAIN = f"{RECORDS} {OUTPUT} out method delta tuned_from seed"
_BUDGET = {"epsilon": "its noise is set by --gamma and --pi, and its epsilon follows from them"}
_RESUME = {"resume": "it starts anew, in another folder"}
_NO_USERS = {"users": "it has no proof for users who hold several records"}
_OWN_RECIPE = {"recipe": "it has a schedule of its own"}
TRAIN = {
    "dpsgd": _way("--method dpsgd", _TRAIN, "epsilon recipe resume users"),
    "optimized-noise": _way("--method optimized-noise", _TRAIN, "epsilon recipe resume form as_published users"),
    "residual": _way(
        "--method residual",
        _TRAIN,
        "gamma strategy pi radius ensemble epochs",
        why_not=_BUDGET | _RESUME | _OWN_RECIPE | _NO_USERS,
        only={"radius": Only(lambda given: given["pi"] > 0, "it bounds inputs that get noise by --pi: give --pi too")},
    ),
    "residual-dpsgd": _way(
        "--method residual-dpsgd",
        _TRAIN,
        "epsilon recipe resume gamma strategy ensemble users",
        why_not=dict.fromkeys(("pi", "radius", "epochs"), "its proof and its length are those of DP-SGD"),
    ),
    "pate": _way(
        "--method pate",
        _TRAIN,
        "epsilon recipe public teachers queries sure users",
        why_not={"resume": "its answers are released at once, and another run has another folder"},
    ),
}

# --- synthesize -----------------------------------------------------------------------------------------------------

_SYNTHESIZE = f"{RECORDS} {OUTPUT} out method epsilon delta size settings students baseline tuned_from seed"
_NETWORKS = ("cnn", "logistic")
_EPOCHS = {
    "epochs": Only(
        lambda given: not given["students"] or any(name in _NETWORKS for name in given["students"]),
        "it is of the students cnn and logistic, and none of them is asked for",
    )
}
SYNTHESIZE = {
    "moments": _way("--method moments", _SYNTHESIZE, "labels epochs users", only=_EPOCHS),
    "dpgan": _way("--method dpgan", _SYNTHESIZE, "labels epochs users", only=_EPOCHS),
    "noise-layer-gan": _way(
        "--method noise-layer-gan", _SYNTHESIZE, "labels epochs as_published", why_not=_NO_USERS, only=_EPOCHS
    ),
    "noise-layer-gan-published": _way(
        "--method noise-layer-gan --as-published",
        _SYNTHESIZE,
        "epochs as_published",
        why_not={"labels": "it takes the labels as public, as its source does"} | _NO_USERS,
        only=_EPOCHS,
    ),
}

# --- attack, audit --------------------------------------------------------------------------------------------------

_ATTACK = f"{OUTPUT} run kind"
ATTACK = {
    "loss": _way("--attack loss", _ATTACK, "signal", why_not={"records": "it asks about all records"}),
    "shadow": _way("--attack shadow", _ATTACK, "records epochs seed"),
    "lira": _way("--attack lira", _ATTACK, "shadows records epochs seed"),
    "inversion": _way("--attack inversion", _ATTACK),
    "distance": _way("--attack distance", _ATTACK, "records seed"),
    "density": _way("--attack density", _ATTACK, "records seed"),
}

_AUDIT = f"{OUTPUT} run method draws confidence seed"
_OF_THE_RUN = "it is what the run's ledger and record say"
_CANARIES = {"canaries": Only(lambda given: given["steps"] > 1, "they are put into a whole training: give --steps")}
_RUNS = {"runs": Only(lambda given: given["laboratory"], "they are those of the laboratory: leave out --no-laboratory")}
AUDIT = {
    "run": _way(
        "the audit of a run",
        _AUDIT,
        "canaries",
        why_not=dict.fromkeys(("clipping", "noise", "rate", "steps", "delta"), _OF_THE_RUN),
    ),
    "dpsgd": _way(
        "--method dpsgd",
        _AUDIT,
        "clipping noise rate steps delta canaries laboratory runs",
        only=_CANARIES | _RUNS,
    ),
    "optimized-noise": _way(
        "--method optimized-noise", _AUDIT, "noise rate delta", why_not={"steps": "one step is audited"}
    ),
    "mean": _way("--method mean", _AUDIT, "noise delta"),
    "second-moment": _way("--method second-moment", _AUDIT, "noise delta"),
}

# --- compare, reproduce, report -------------------------------------------------------------------------------------

COMPARE = f"{RECORDS} {OUTPUT} users out delta minutes methods at_once seed"
"""What every comparison uses; an entrant adds its own (`privet.compare.Entrant.uses`)."""


def entrant_way(key: str, uses: Iterable[str]) -> Way:
    """A method of a comparison with the options that it uses beside the common ones."""
    return _way(f"--method {key}", COMPARE, *uses)


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
    "train": TRAIN,
    "synthesize": SYNTHESIZE,
    "attack": ATTACK,
    "audit": AUDIT,
    "reproduce": REPRODUCE,
    "report": REPORT,
}
"""The verbs with several ways. In the others (account, data, demo) there is one, and every option belongs to it."""


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
