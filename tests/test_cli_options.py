"""Options that a way of a verb does not use are refused, for every pair of a way and an option."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from privet.compare import ENTRANTS
from typer.main import get_command
from typer.testing import CliRunner

from privet.cli import options
from privet.cli.program import app
from privet.errors import InputError

RUNNER = CliRunner()
VALUES: dict[str, list[str]] = {
    "form": ["isotropic"], "strategy": ["II"], "sure": ["10", "2"], "labels": ["votes"], "signal": ["confidence"],
    "shadows": ["8"], "records": ["40"], "clipping": ["flat"], "draws": ["100"], "runs": ["50"], "canaries": ["16"],
    "pi": ["1"], "steps": ["5"], "kind": ["loss"], "method": ["dpsgd"],
}  # fmt: skip
"""What stands behind an option where "2" is not allowed, or would not be a choice."""
ONE_WAY = {"account", "demo", "data get", "data list"}
WAYS = {
    **options.TABLES,
    "compare": {key: options.entrant_way(key, entrant.uses) for key, entrant in ENTRANTS.items()},
}


def commands() -> dict[str, Any]:
    found = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {key}": value for key, value in inner.items()}
    return found


COMMANDS = commands()


def parameters(verb: str) -> list[Any]:
    return [p for p in COMMANDS[verb].params if p.name not in ("help", None)]


def written(parameter: Any) -> list[str]:
    """The option as a user writes it."""
    if parameter.param_type_name == "argument":
        return ["a-folder"]
    flag = next(text for text in parameter.opts if text.startswith("--"))
    return [flag] if parameter.is_flag else [flag, *VALUES.get(parameter.name, ["2"])]


def context(verb: str, arguments: list[str]) -> typer.Context:
    required = [
        word for p in parameters(verb) if p.required and not {p.opts[0]} & set(arguments) for word in written(p)
    ]
    made: typer.Context = COMMANDS[verb].make_context(verb, [*arguments, *required])
    return made


def pairs() -> Iterator[Any]:
    for verb, ways in WAYS.items():
        for key, way in ways.items():
            for parameter in parameters(verb):
                if not parameter.required:
                    yield pytest.param(verb, way, parameter, id=f"{verb}-{key}-{parameter.name}")


@pytest.mark.parametrize(("verb", "way", "parameter"), list(pairs()))
def test_an_option_is_used_or_refused(verb: str, way: options.Way, parameter: Any) -> None:
    given = context(verb, written(parameter))
    if parameter.name in way.uses and (parameter.name not in way.only or way.only[parameter.name].met(given.params)):
        options.check(given, way, WAYS[verb].values())
        return
    with pytest.raises(InputError) as refused:
        options.check(given, way, WAYS[verb].values())
    said = str(refused.value)
    assert written(parameter)[0] in said or parameter.name.upper() in said
    assert "eave it out" in said and (way.named in said or parameter.name in way.only)
    elsewhere = [o for o in WAYS[verb].values() if parameter.name in o.uses and written(parameter)[0] not in o.named]
    assert parameter.name in way.only or not elsewhere or "or use it with" in said


def test_every_verb_is_checked_and_every_option_is_of_some_use() -> None:
    """A new option is refused everywhere until it is listed; this says which one was forgotten."""
    assert set(COMMANDS) == set(WAYS) | ONE_WAY
    for verb, ways in WAYS.items():
        known = {p.name for p in parameters(verb)}
        listed = set().union(*(way.uses for way in ways.values()))
        assert listed == known, f"{verb}: {sorted(known ^ listed)}"
        for way in ways.values():
            assert not set(way.why_not) & way.uses and set(way.only) <= way.uses <= known and set(way.why_not) <= known
        source = inspect.getsource(inspect.getmodule(COMMANDS[verb].callback))  # type: ignore[arg-type]
        assert "check_used(context" in source


def test_the_methods_of_the_command_line_are_those_of_the_tables() -> None:
    from privet.synthesis import METHODS

    from privet.cli import attack, audit, train

    assert set(options.TRAIN) == {method.value for method in train.Method}
    assert set(options.ATTACK) == {kind.value for kind in attack.AttackName}
    assert set(options.AUDIT) == {method.value for method in audit.Method} | {"run"}
    assert set(options.SYNTHESIZE) == {*METHODS, "noise-layer-gan-published"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --data digits --method residual --epsilon 3 --out OUT",
         "--epsilon is not used by --method residual: its noise is set by --gamma and --pi, and its epsilon follows from them. "
         "Leave it out, or use it with --method dpsgd, optimized-noise, residual-dpsgd or pate."),
        ("train --data digits --gamma 0.5 --out OUT", "--gamma is not used by --method dpsgd. Leave it out"),
        ("train --data digits --teachers 5 --out OUT", "use it with --method pate."),
        ("train --data digits --form grouped --out OUT", "--form is not used by --method dpsgd"),
        ("train --data digits --method residual --radius 3 --out OUT", "give --pi too"),
        ("train --data digits --method residual --resume --out OUT", "it starts anew"),
        ("train --data digits --method pate --public 100 --resume --out OUT", "its answers are released at once"),
        ("synthesize --data digits --as-published --out OUT", "--as-published is not used by --method moments"),
        ("synthesize --data digits --student RandomForestClassifier --epochs 3 --out OUT", "cnn and logistic"),
        ("synthesize --data digits --method noise-layer-gan --as-published --labels votes --out OUT", "labels as public"),
        ("audit --method mean --rate 0.1", "--rate is not used by --method mean"),
        ("audit --canaries 100", "give --steps"),
        ("audit --no-laboratory --runs 100", "leave out --no-laboratory"),
        ("audit --method mean --no-laboratory", "--no-laboratory is not used by --method mean"),
        ("audit OUT --delta 1e-6", "--delta is not used by the audit of a run"),
        ("compare --data digits --method residual --epsilon 1 --out OUT", "--epsilon is not used by any of these methods"),
        ("compare --data digits --method synthetic-moments --recipe linear --out OUT", "--recipe is not used by any of these"),
        ("compare --data digits --method dpsgd --public 50 --out OUT", "use it with --method pate"),
        ("reproduce wang-reversal --delta 1e-6", "--delta is not used by wang-reversal"),
        ("reproduce wang-cifar10 --delta 1e-6", "it states its own delta"),
        ("reproduce --all --no-run --seeds 2", "nothing is run"),
        ("reproduce abadi-mnist --line 1", "--line is not used by abadi-mnist"),
    ],
)  # fmt: skip
def test_what_the_user_reads(tmp_path: Path, arguments: str, said: str) -> None:
    out = tmp_path / "out"
    done = RUNNER.invoke(app, [word.replace("OUT", str(out)) for word in arguments.split()])
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split()), done.output
    assert not out.exists()
