"""Every option of every verb of version 0.1: it is still there, or works with a warning that says what to write instead."""

import re
import shutil
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from privet.cli import app
from privet.errors import PrivetError
from privet.methods import METHODS
from privet.methods.method import ALIASES, plain_settings

OLD_RUN = Path(__file__).parent / "made_by_0_1_0" / "train"
OPTIONS = {
    "account": "--examples --delta --batch-size --noise --steps --epochs --epsilon --accountant --relation --explain --plot "
    "--json",
    "report": "--intended-use --licence --contact --json",
    "attack": "--attack --signal --shadows --records --epochs --seed --json",
    "audit": "--method --clipping --noise --rate --steps --delta --draws --canaries --laboratory --no-laboratory --runs "
    "--confidence --seed --json",
    "train": "--data --out --schema --method --no-header --users --epsilon --delta --public-size --hold-out "
    "--unprotected-test --recipe --resume --form --as-published --gamma --strategy --pi --radius --ensemble --epochs "
    "--public --teachers --queries --sure --tuned-from --seed --json",
    "compare": "--data --out --schema --no-header --users --epsilon --delta --public-size --hold-out --unprotected-test "
    "--minutes --method --methods --recipe --public --jobs --seed --json",
    "demo": "--data --epsilon --delta --out --seed --json",
    "reproduce": "--all --no-run --seeds --epsilon --method --delta --out --results --data --line --image --json",
    "synthesize": "--data --out --schema --method --no-header --users --epsilon --delta --public-size --hold-out "
    "--unprotected-test --size --labels --as-published --set --student --epochs --baseline --tuned-from --seed --json",
    "data get": "--from --json",
    "data list": "--json",
}
"""The options of version 0.1."""
METHODS_OF = {
    "train": "dpsgd optimized-noise residual residual-dpsgd pate",
    "audit": "dpsgd optimized-noise mean second-moment",
    "synthesize": "auto moments dpgan noise-layer-gan",
    "compare": "dpsgd optimized-noise-elliptical optimized-noise-isotropic optimized-noise optimized-noise-published "
    "synthetic-moments pate synthetic-dpgan synthetic-noise-layer-gan synthetic-noise-layer-gan-published residual-dpsgd "
    "residual",
    "reproduce": "dpsgd dpsgd-advanced optimized-noise optimized-noise-isotropic optimized-noise-elliptical "
    "optimized-noise-published residual-dpsgd",
}
"""The methods of version 0.1."""
ACCOUNTANTS = "pld rdp moments strong strong-published optimal basic gdp pld-reference"


class CapturedError(PrivetError):
    """A run would have started."""


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def options(verb: str) -> dict[str, object]:
    command = get_command(app)
    for word in verb.split():
        command = command.commands[word]
    return {text: each for each in command.params for text in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_option_is_still_there(verb):
    there = options(verb)
    assert [option for option in OPTIONS[verb].split() if option not in there] == []


def test_every_method_recipe_table_and_accountant_is_still_there():
    from privet.cli.audit import RELEASES
    from privet.methods import recipe
    from privet.papers import load, names
    from privet.privacy import accountant_names

    for keys in METHODS_OF.values():
        assert [key for key in keys.split() if ALIASES.get(key, key) not in (*METHODS, *RELEASES, "auto")] == []
    assert set(ACCOUNTANTS.split()) <= set(accountant_names())
    old = (
        "abadi-mnist cifar10-scattering demo-cnn digits-linear ellipse-fashion ellipse-mnist fashion-scattering images "
    )
    old += "mnist-cnn mnist-scattering resnet-dpsgd vectors xiang-mnist"
    assert set(old.split()) <= set(recipe.names())
    for name in [*old.split(), "wang-cifar10", "wang-idc", "triastcyn-fashion", "triastcyn-mnist", "wang-reversal"]:
        assert name in names() and load(name)


def deprecated(said: str) -> list[str]:
    """What the warnings say to write instead."""
    return re.findall(r"is deprecated and will be removed in the next version: write (.+) instead\.", said)


@pytest.fixture
def started(monkeypatch):
    """The method, task and measuring of runs that would have started."""
    found = []

    def capture(method, task, out, *, measuring, **_):
        found.append((method, task.epsilon, task.public and task.public.named, measuring))
        raise CapturedError("captured")

    monkeypatch.setattr("privet.runs.run", capture)
    return found


@pytest.mark.parametrize(
    ("verb", "old", "new"),
    [
        ("train", "--method residual --gamma 0.25", "--method residual --set gamma=0.25"),
        ("train", "--method residual --strategy II --epochs 3", "--method residual --set strategy=II --set epochs=3"),
        ("train", "--method residual --pi 30 --radius 4", "--method residual --set pi=30 --set radius=4"),
        ("train", "--method residual --ensemble 2", "--method residual --set ensemble=2"),
        ("train", "--method residual-dpsgd --gamma 1 --strategy II --ensemble 2",
         "--method residual-dpsgd --set gamma=1 --set strategy=II --set ensemble=2"),
        ("train", "--method pate --public 180 --teachers 20 --queries 60 --sure 8 25.5",
         "--method pate --public 180 --set teachers=20 --set queries=60 --set threshold=8 --set threshold_noise=25.5"),
        ("train", "--method optimized-noise --form grouped", "--method optimized-noise"),
        ("train", "--method optimized-noise --form isotropic", "--method optimized-noise-isotropic"),
        ("train", "--method optimized-noise --form elliptical", "--method optimized-noise-elliptical"),
        ("train", "--method optimized-noise --as-published", "--method optimized-noise-published"),
        ("synthesize", "--method noise-layer-gan --as-published", "--method noise-layer-gan-published"),
    ],
)  # fmt: skip
def test_an_old_command_starts_the_run_of_the_new_one_and_says_how_to_write_it(verb, old, new, started, tmp_path):
    pages = [privet(verb, "--data", "digits", "--out", tmp_path / "a", *words.split()) for words in (old, new)]
    assert [page.exit_code for page in pages] == [1, 1], [page.output for page in pages]
    first, second = started
    assert first == second
    assert plain_settings(first[0]) == plain_settings(second[0])
    assert deprecated(pages[1].stderr) == []
    instead = " ".join(deprecated(pages[0].stderr)).split()
    assert instead and " ".join(instead).replace("--set ", "") in new.replace("--set ", "")


@pytest.mark.parametrize(
    "arguments",
    ["--recipe vectors", "--epsilon 2 --method dpsgd", "--method pate --public 100", "--public-size 1437 --delta 1e-6"],
)
def test_options_that_stayed_do_not_warn(arguments, started, tmp_path):
    page = privet("train", "--data", "digits", "--out", tmp_path / "a", *arguments.split())
    assert (page.exit_code, deprecated(page.stderr), len(started)) == (1, [], 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--signal confidence", "--attack confidence"),
        ("--attack loss --signal loss", "--attack loss"),
        ("--attack lira --shadows 8 --records 50 --epochs 2 --seed 3",
         "--attack lira --set shadows=8 --set records=50 --set epochs=2 --set seed=3"),
        ("--attack shadow --records 50", "--attack shadow --set records=50"),
    ],
)  # fmt: skip
def test_an_old_attack_is_the_new_one(old, new, tmp_path, monkeypatch):
    found = []

    def capture(run, attacks, *_, **__):
        found.append(attacks)
        raise CapturedError("captured")

    monkeypatch.setattr("privet.runs.after.attack_run", capture)
    shutil.copytree(OLD_RUN, tmp_path / "a")
    pages = [privet("attack", tmp_path / "a", *words.split()) for words in (old, new)]
    assert [page.exit_code for page in pages] == [1, 1], [page.output for page in pages]
    assert found[0] == found[1]
    assert deprecated(pages[1].stderr) == []
    assert " ".join(deprecated(pages[0].stderr)) in new


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--attack lira --signal loss",
            "--signal is not used by --attack lira. Leave it out, or use it with --attack loss.",
        ),
        ("--signal colour", "--signal is loss or confidence, and not 'colour'"),
        ("--shadows 8", "--shadows is not used by --attack loss. Leave it out, or use it with --attack lira or rmia."),
        ("--set recods=8 --attack lira", "--set recods is not a setting of --attack lira: did you mean records?"),
        ("--attack inversion --seed 3", "--attack inversion draws pictures and takes no --seed: leave it out."),
        ("--attack inversion,loss", "--attack inversion draws pictures and takes no loss"),
        ("--attack lyra", "There is no attack 'lyra': did you mean 'lira'?"),
        ("--shadows 8 --set shadows=9 --attack lira", "are the same setting: give one value"),
    ],
)
def test_an_attack_refuses_what_it_does_not_use(words, said, tmp_path):
    shutil.copytree(OLD_RUN, tmp_path / "a")
    page = privet("attack", tmp_path / "a", *words.split())
    assert page.exit_code == 2
    assert said in " ".join(page.stderr.split())


@pytest.mark.parametrize(
    ("clipping", "method", "instead"),
    [
        ("every", None, "privet audit without --method"),
        ("flat", "dpsgd", "--method dpsgd"),
        ("per-layer", "dpsgd-per-layer", "--method dpsgd-per-layer"),
        ("automatic", "dpsgd-automatic", "--method dpsgd-automatic"),
        ("adaptive", "dpsgd-adaptive", "--method dpsgd-adaptive"),
        ("elliptical", "optimized-noise-elliptical", "--method optimized-noise-elliptical"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--method", "dpsgd"]])
def test_an_old_clipping_is_a_method_of_an_audit(clipping, method, instead, more, monkeypatch):
    found = []
    monkeypatch.setattr("privet.cli.audit._of_method", lambda key, *_: found.append(key) or ())
    page = privet("audit", "--clipping", clipping, "--no-laboratory", *more)
    assert (page.exit_code, found) == (0, [method]), page.output
    assert deprecated(page.stderr) == [instead]


def test_old_names_of_methods_in_a_comparison(tmp_path, monkeypatch):
    jobs = []

    def capture(job, *_, **__):
        jobs.append(job)
        raise CapturedError("captured")

    monkeypatch.setattr("privet.cli.compare.run", capture)
    asked = ("compare", "--data", "digits", "--method")
    old = privet(*asked, "synthetic-moments,dpsgd", "--recipe", "vectors", "--out", tmp_path / "a")
    new = privet(*asked, "moments,dpsgd", "--set", "recipe=vectors", "--out", tmp_path / "b")
    assert (old.exit_code, new.exit_code) == (1, 1), old.output + new.output
    assert jobs[0].methods == jobs[1].methods == ("moments", "dpsgd")
    assert jobs[0].settings == jobs[1].settings == {"recipe": "vectors"}
    assert deprecated(old.stderr) == ["--method moments"] and deprecated(new.stderr) == []


def test_british_spelling_is_taken_too(tmp_path):
    shutil.copytree(OLD_RUN, tmp_path / "a")
    for option in ("--licence", "--license"):
        page = privet("report", tmp_path / "a", option, f"mit{option[-2]}")
        assert page.exit_code == 0, page.output
        assert f"mit{option[-2]}" in (tmp_path / "a" / "CARD.md").read_text()
