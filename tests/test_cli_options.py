"""Options that change nothing are refused, for every pair of a mode and an option; options of version 0.1 still work."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from privet.cli import options
from privet.cli.program import app
from privet.cli.train import MovedTrainOptions
from privet.errors import InputError
from privet.methods import METHODS, method_named, methods_that_make, settings_of

RUNNER = CliRunner()
VALUES: dict[str, list[str]] = {
    "form": ["isotropic"], "strategy": ["II"], "sure": ["10", "2"], "labels": ["votes"], "signal": ["confidence"],
    "shadows": ["8"], "records": ["40"], "clipping": ["flat"], "draws": ["100"], "runs": ["50"], "canaries": ["50"],
    "pi": ["1"], "steps": ["5"], "kind": ["loss"], "method": ["dpsgd"], "settings": ["gamma=1"],
}  # fmt: skip
"""What stands behind an option where "2" is not allowed, or would not be a choice."""
ONE_MODE = {"account", "demo", "data get", "data list", "methods", "recipes", "attacks", "sign", "verify"}
ONE_MODE |= {f"budget {verb}" for verb in ("open", "show", "charge", "check", "settle", "recover")}
BY_METHOD = {"train", "tune", "synthesize", "compare", "attack"}
"""The method or the attack says which options are used."""


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
    for verb, modes in options.TABLES.items():
        for key, mode in modes.items():
            for parameter in parameters(verb):
                if not parameter.required:
                    yield pytest.param(verb, mode, parameter, id=f"{verb}-{key}-{parameter.name}")


@pytest.mark.parametrize(("verb", "mode", "parameter"), list(pairs()))
def test_an_option_is_used_or_refused(verb: str, mode: options.VerbMode, parameter: Any) -> None:
    given, others = context(verb, written(parameter)), options.TABLES[verb].values()
    if parameter.name in mode.uses and (parameter.name not in mode.only or mode.only[parameter.name].met(given.params)):
        options.check(given, mode, others)
        return
    with pytest.raises(InputError) as refused:
        options.check(given, mode, others)
    said = str(refused.value)
    assert written(parameter)[0] in said or parameter.name.upper() in said
    assert "eave it out" in said and (mode.named in said or parameter.name in mode.only)
    elsewhere = [o for o in others if parameter.name in o.uses and written(parameter)[0] not in o.named]
    assert parameter.name in mode.only or not elsewhere or "or use it with" in said


def test_every_verb_is_checked_and_every_option_is_of_some_use() -> None:
    """A new option is refused everywhere until it is listed; this says which one was forgotten."""
    assert set(COMMANDS) == set(options.TABLES) | ONE_MODE | BY_METHOD
    for verb, modes in options.TABLES.items():
        known = {p.name for p in parameters(verb)}
        listed = set().union(*(mode.uses for mode in modes.values()))
        assert listed == known, f"{verb}: {sorted(known ^ listed)}"
        for mode in modes.values():
            assert not set(mode.why_not) & mode.uses and set(mode.only) <= mode.uses <= known
            assert set(mode.why_not) <= known
        assert "check_used(context" in inspect.getsource(inspect.getmodule(COMMANDS[verb].callback))  # type: ignore[arg-type]
    for verb in BY_METHOD - {"attack"}:
        assert "check_methods(" in inspect.getsource(inspect.getmodule(COMMANDS[verb].callback))  # type: ignore[arg-type]


# --- options that a method decides about ------------------------------------------------------------------------------

MODELS = {key: METHODS[key] for key in methods_that_make("model")}
EVERY_METHOD = (
    "data schema no_header public_size hold_out unprotected_test delta seed settings out method attacks plugins"
)
ALWAYS = {*EVERY_METHOD.split(), "tuned_from", "resume", "dry_run", "track", "account", "as_json"}
"""Options of train that every method uses."""
MEANS = {"sure": ("threshold", "threshold_noise")}
VARIANTS = {"form", "as_published"}
"""Old options that name a variant of optimized-noise."""


@pytest.mark.parametrize("key", MODELS)
@pytest.mark.parametrize("parameter", [p for p in parameters("train") if p.name not in ALWAYS], ids=lambda p: p.name)
def test_an_option_of_train_is_used_by_a_method_or_refused_with_the_methods_that_use_it(
    key: str, parameter: Any
) -> None:
    """Denied by default: whatever is not in `ALWAYS` is asked of the method, or is one of its settings."""
    given, method, option = context("train", written(parameter)), METHODS[key], written(parameter)[0]
    settings = options.GivenSettings()
    if parameter.name in VARIANTS:
        moved = MovedTrainOptions(**{parameter.name: given.params[parameter.name]})
        if key == "optimized-noise":
            assert moved.applied(key, settings) in METHODS
        else:
            with pytest.raises(InputError, match=f"{option} is not used by --method {key}. .*--method optimized-noise"):
                moved.applied(key, settings)
        return
    if parameter.name not in options.DEPENDS:
        for name in MEANS.get(parameter.name, (parameter.name,)):
            settings.add(option, name, given.params[parameter.name])

    def used(by: Any) -> bool:
        if parameter.name in options.DEPENDS:
            return bool(getattr(by, options.DEPENDS[parameter.name][0]))
        return bool(set(settings.values) & {setting.name for setting in settings_of(by)})

    users = [name for name, other in MODELS.items() if used(other)]
    assert users, f"no method uses {option}"
    if used(method):
        options.check_methods(given, [method], settings, MODELS)
        return
    with pytest.raises(InputError) as refused:
        options.check_methods(given, [method], settings, MODELS)
    said = str(refused.value)
    assert (
        said.startswith(f"{option} is not used by --method {key}") and "Leave it out, or use it with --method" in said
    )
    assert all(user in said for user in users)


def test_a_setting_that_no_method_has_is_refused_with_the_nearest_one() -> None:
    dpsgd, residual = method_named("dpsgd"), method_named("residual")
    given = context("train", [])
    for text, methods, said in (
        ("gama=1", [residual], "--set gama is not a setting of --method residual: did you mean gamma?"),
        (
            "xyz=1",
            [residual],
            "is not a setting of --method residual: there are depth, ensemble, epochs, gamma, pi, radius",
        ),
        (
            "gamma=1",
            [dpsgd],
            "--set gamma is not used by --method dpsgd. Leave it out, or use it with --method residual or",
        ),
        (
            "xyz=1",
            [dpsgd, residual],
            "is not a setting of any of these methods: dpsgd, residual: there are accountant,",
        ),
    ):
        with pytest.raises(InputError) as refused:
            options.check_methods(given, methods, options.GivenSettings.of([text]), MODELS)
        assert said in str(refused.value)
    options.check_methods(given, [dpsgd, residual], options.GivenSettings.of(["gamma=1"]), MODELS)  # one of them has it


@pytest.mark.parametrize("text", ["gamma", "=3", "  =3"])
def test_settings_are_pairs(text: str) -> None:
    with pytest.raises(InputError, match=r"--set takes NAME=VALUE, for example --set epochs=3"):
        options.GivenSettings.of([text])


def test_a_setting_is_given_once() -> None:
    with pytest.raises(InputError, match="--set gamma was given twice: give one value"):
        options.GivenSettings.of(["gamma=1", "gamma=2"])
    found = options.GivenSettings.of(["batch-size = 5", "model=py:a.b:C=d"])
    assert found.values == {"batch_size": "5", "model": "py:a.b:C=d"}
    with pytest.raises(InputError, match="--model and --set model are the same setting: give one value"):
        found.add("--model", "model", "x")


# --- what the user reads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --data digits --method residual --epsilon 3 --out OUT",
         "--epsilon is not used by --method residual: its noise is set by its settings, and its epsilon follows from them. "
         "Leave it out, or use it with --method dpsgd, dpsgd-automatic,"),
        ("train --data digits --gamma 0.5 --out OUT",
         "--gamma is not used by --method dpsgd. Leave it out, or use it with --method residual or residual-dpsgd."),
        ("train --data digits --teachers 5 --out OUT", "use it with --method pate."),
        ("train --data digits --sure 5 2 --out OUT", "--sure is not used by --method dpsgd. Leave it out, or use it with"),
        ("train --data digits --form grouped --out OUT", "--form is not used by --method dpsgd"),
        ("train --data digits --as-published --out OUT", "--as-published is not used by --method dpsgd"),
        ("train --data digits --method optimized-noise --form round --out OUT", "grouped, isotropic or elliptical"),
        ("train --data digits --method residual --radius 3 --out OUT", "give pi too, or leave radius out"),
        ("train --data digits --method pate --public 100 --set threshold=9 --out OUT", "a threshold and a threshold_noise"),
        ("train --data digits --method moments --out OUT", "use privet synthesize --method moments"),
        ("train --data digits --method dpsdg --out OUT", "There is no method 'dpsdg': did you mean 'dpsgd'?"),
        ("train --data digit --out OUT", "There is no data set 'digit': did you mean digits?"),
        ("train --data digits --attack lyra --out OUT", "There is no attack 'lyra': did you mean 'lira'?"),
        ("train --data digits --attack distance --out OUT", "it attacks synthetic data"),
        ("train --data digits --gamma 1 --set gamma=2 --method residual --out OUT", "are the same setting"),
        ("synthesize --data digits --as-published --out OUT", "--as-published is not used by --method auto"),
        ("synthesize --data digits --method dpgan --as-published --out OUT", "or use it with --method noise-layer-gan."),
        ("synthesize --data digits --method dpsgd --out OUT", "use privet train --method dpsgd"),
        ("synthesize --data digits --student RandomForestClassifier --epochs 3 --out OUT", "cnn and logistic"),
        ("synthesize --data digits --method noise-layer-gan --as-published --labels votes --out OUT", "labels as public"),
        ("synthesize --data digits --set bins=3 --out OUT", "--set bins is not used by --method moments. Leave it out, or use"),
        ("synthesize --data digits --set teachers=20 --out OUT", "used for labels by votes: ask for them (--labels votes"),
        ("synthesize --data digits --labels public --out OUT", "Labels are protected or votes, not 'public'."),
        ("audit --method mean --rate 0.1", "--rate is not used by the audit of --method mean"),
        ("audit --method optimized-noise --clipping flat", "--clipping is not used by the audit of --method optimized-noise"),
        ("audit --clipping round", "--clipping is every, flat, per-layer, automatic, adaptive or elliptical, and not 'round'"),
        ("audit --canaries 100", "give --steps"),
        ("audit --no-laboratory --runs 100", "leave out --no-laboratory"),
        ("audit --method mean --no-laboratory", "--no-laboratory is not used by the audit of --method mean"),
        ("audit --method pate --rate 0.5", "the votes have no sampling rate"),
        ("audit OUT --delta 1e-6", "--delta is not used by the audit of a run"),
        ("audit OUT --clipping flat", "--clipping is not used by the audit of a run"),
        ("compare --data digits --method residual --epsilon 1 --out OUT", "--epsilon is not used by --method residual"),
        ("compare --data digits --method residual,moments --recipe linear --out OUT",
         "--recipe is not used by any of these methods: residual, moments"),
        ("compare --data digits --method dpsgd --public 50 --out OUT", "use it with --method pate"),
        ("compare --data digits --method dpsgd --set gama=1 --out OUT", "--set gama is not a setting of --method dpsgd"),
        ("compare --data digits --method all,dpsgd --out OUT", "--methods all stands alone"),
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
