"""The command line as a user meets it: order, examples, exit codes, sentences instead of tracebacks."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from privet import __version__
from privet.cli import app
from privet.cli.program import INTERRUPTED, ORDER
from privet.errors import InputError, PrivetError

WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def privet(*arguments: str, **variables: str):
    return CliRunner().invoke(app, arguments, env=WIDE | variables)


def commands() -> dict[str, typer.core.TyperCommand]:
    """Every verb that can be called, by its full name."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        below = getattr(command, "commands", None)
        found |= {f"{name} {sub}": c for sub, c in below.items()} if below else {name: command}
    return found


def test_the_verbs_are_listed_in_the_order_of_the_work():
    page = privet("--help")
    assert page.exit_code == 0
    group = typer.main.get_command(app)
    listed = group.list_commands(None)
    assert listed == [verb for verb in ORDER if verb in group.commands]
    shown = page.output[page.output.index("Commands") :]
    places = [re.search(rf"^\W+{verb} ", shown, re.MULTILINE).start() for verb in listed]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", commands())
def test_every_verb_has_an_example_that_is_a_command_of_its_own(verb):
    page = privet(*verb.split(), "--help")
    assert page.exit_code == 0
    assert f"Example:  privet {verb}" in page.output


def test_the_version():
    page = privet("--version")
    assert (page.exit_code, page.output) == (0, f"privet {__version__}\n")


def test_python_dash_m_is_the_same_program():
    said = subprocess.run([sys.executable, "-m", "privet", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"privet {__version__}\n"


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['privet', '--help']\n"
        "from privet.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'sklearn', 'dp_accounting'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("arguments", [["no-such-verb"], ["data", "get"], ["report", "--no-such-option"]])
def test_bad_usage_ends_with_two(arguments):
    page = privet(*arguments)
    assert page.exit_code == 2
    assert "Traceback" not in page.output


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (InputError("The file is not there."), 2, "privet: The file is not there.\n"),
        (PrivetError("The run failed."), 1, "privet: The run failed.\n"),
        (KeyboardInterrupt(), INTERRUPTED, "privet: stopped; what was finished before is kept.\n"),
    ],
)
def test_an_error_is_one_sentence_on_the_error_stream(monkeypatch, error, code, sentence):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("privet.data.get", fails)
    page = privet("data", "get", "digits")
    assert (page.exit_code, page.stderr, page.stdout) == (code, sentence, "")


def test_control_c_ends_with_one_sentence_and_130():
    code = (
        "import signal, sys, time, privet.data\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell ignores it for what it runs in the background
        "privet.data.get = lambda *_, **__: (print('waiting', flush=True), time.sleep(60))\n"
        "sys.argv = ['privet', 'data', 'get', 'digits']\n"
        "from privet.cli import main; main()\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as waiting:
        assert waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signal.SIGINT)
        _, stderr = waiting.communicate(timeout=20)
    assert waiting.returncode == INTERRUPTED
    assert stderr == "privet: stopped; what was finished before is kept.\n"


def test_data_get_says_what_was_got():
    page = privet("data", "get", "digits")
    assert page.exit_code == 0
    assert "1,437 train, 360 test records of shape 1 x 8 x 8" in page.output
    assert "10 classes: 0, 1, 2" in page.output


def test_data_get_from_a_folder_prints_each_checksum(tmp_path, monkeypatch):
    from privet import data

    monkeypatch.setattr("privet.data.get", lambda name, **_: data.load("digits"))
    page = privet("data", "get", "mnist", PRIVET_DATA=str(tmp_path))
    for file in data.CATALOGUE["mnist"].files:
        assert f"{file.sha256}  {file.name}" in page.output
    assert str(tmp_path / "mnist") in page.output


def test_data_get_for_a_program():
    facts = json.loads(privet("data", "get", "digits", "--json").stdout)
    assert facts["records"] == {"train": 1437, "test": 360}
    assert len(facts["fingerprint"]) == 64
    assert facts["files"] == []


def test_data_get_of_an_unknown_name_or_place(tmp_path):
    unknown = privet("data", "get", "mnits")
    assert unknown.exit_code == 2
    assert "did you mean mnist?" in unknown.stderr
    nowhere = privet("data", "get", "mnist", "--from", str(tmp_path / "nowhere"), PRIVET_DATA=str(tmp_path / "cache"))
    assert nowhere.exit_code == 2
    assert nowhere.stderr.startswith("privet: ")
    assert nowhere.stderr.count("\n") == 1
    assert not (tmp_path / "cache").exists()


def test_data_list(tmp_path):
    page = privet("data", "list", PRIVET_DATA=str(tmp_path))
    assert [line.split()[0] for line in page.output.splitlines()] == [
        "mnist",
        "fashion-mnist",
        "cifar10",
        "digits",
        "sms-spam",
        "sotu",
    ]
    rows = json.loads(privet("data", "list", "--json", PRIVET_DATA=str(tmp_path)).stdout)
    assert [row["name"] for row in rows if row["cached"]] == ["digits"]


def test_the_names_that_tab_completes_are_the_catalogue():
    from privet.cli.records import NAMES
    from privet.data import CATALOGUE

    assert tuple(CATALOGUE) == NAMES


ACCOUNT = ("account", "--examples", "60000", "--batch-size", "600", "--delta", "1e-5")


def test_account_answers_with_one_sentence():
    page = privet(*ACCOUNT, "--noise", "1.1", "--epochs", "15")
    assert page.output == (
        "noise multiplier 1.1, 1500 steps of 600 of 60000 records on average: epsilon = 1.87 at delta = 1e-05 "
        "(add/remove one record; Poisson sampling; PLD; proved)\n"
    )
    claimed = privet(*ACCOUNT, "--noise", "1.1", "--steps", "9", "--accountant", "strong-published")
    assert "only claimed by" in claimed.output


def test_account_for_a_program():
    page = privet(*ACCOUNT, "--epsilon", "3", "--steps", "1500", "--relation", "replace-one", "--json")
    said = json.loads(page.stdout)
    plan = ["epsilon", "delta", "noise_multiplier", "steps", "accountant", "relation", "guarantee"]
    assert list(said) == [*plan, "vacuous", "meaning"]
    assert said["vacuous"] is False
    assert said["meaning"]["guarantee"] == "proved"
    assert 0 < said["meaning"]["advantage"] < 1
    assert 2.997 <= said["epsilon"] <= 3
    assert said["relation"] == "replace-one"


def test_account_draws_a_figure(tmp_path):
    page = privet(*ACCOUNT, "--noise", "4", "--steps", "50", "--plot", str(tmp_path / "figure.svg"))
    assert page.exit_code == 0
    assert f"The figure: {tmp_path / 'figure.svg'}" in page.output
    assert "<svg" in (tmp_path / "figure.svg").read_text()


UNSAMPLED = ("account", "--examples", "100", "--batch-size", "100", "--delta", "1e-5", "--steps", "4")


def test_account_explains_itself():
    page = privet(*UNSAMPLED, "--noise", "4", "--explain")
    assert page.output.startswith("noise multiplier 4, 4 steps of 100 of 100 records on average: epsilon = 2 at")
    for part in ("THE ATTACKER", "FINDING PEOPLE", "CHANGING THEIR MIND", "A FAMILY", "WHAT IT DOES NOT PROMISE"):
        assert part in page.output
    assert "vacuous" not in page.output.lower()
    said = json.loads(privet(*UNSAMPLED, "--noise", "4", "--explain", "--json").stdout)
    assert said["explanation"] in page.output


def test_account_marks_a_budget_that_promises_nothing():
    page = privet(*UNSAMPLED, "--noise", "0.0258", "--explain")
    assert "proved, but vacuous: it promises nothing in practice" in page.output
    assert "THIS STATEMENT IS VACUOUS" in page.output
    assert json.loads(privet(*UNSAMPLED, "--noise", "0.0258", "--json").stdout)["vacuous"] is True


@pytest.mark.parametrize("plot", ["tradeoff", "tradeoff=curve.svg", "epsilons=steps.svg"])
def test_account_draws_the_figure_that_is_named(tmp_path, monkeypatch, plot):
    monkeypatch.chdir(tmp_path)
    file = plot.partition("=")[2] or "tradeoff.png"
    page = privet(*UNSAMPLED, "--noise", "4", "--plot", plot)
    assert page.output.endswith(f"The figure: {file}\n")
    assert [path.name for path in tmp_path.iterdir()] == [file]
    if file.endswith("svg"):
        assert ("false negative rate" in (tmp_path / file).read_text()) == plot.startswith("tradeoff")


def test_account_explains_a_ledger_that_was_written(tmp_path):
    from privet.privacy import Gaussian, Ledger

    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.record(Gaussian(2.0))
    page = privet("account", str(tmp_path / "ledger.jsonl"), "--delta", "1e-5", "--explain")
    assert page.output.startswith(f"{ledger.spent(1e-5)}\n\nWHAT THIS MEANS")
    said = json.loads(privet("account", str(tmp_path / "ledger.jsonl"), "--delta", "1e-5", "--json").stdout)
    assert said["meaning"]["mu"] == 0.5
    for wrong, message in {
        ("--explain",): "has no delta of its own: give --delta",
        ("--delta", "1e-5", "--noise", "3"): "states the plan",
        ("--delta", "1e-5", "--plot", "a.svg"): "--plot tradeoff=a.svg",
    }.items():
        refused = privet("account", str(tmp_path / "ledger.jsonl"), *wrong)
        assert refused.exit_code == 2
        assert message in refused.stderr
    assert "Give --examples and --delta" in privet("account", "--noise", "3").stderr
    assert privet("account", str(tmp_path / "nothing"), "--delta", "1e-5").exit_code == 2


def test_account_warns_of_a_delta_of_one_over_the_records_and_says_what_is_impossible():
    page = privet(*ACCOUNT[:-1], "1e-3", "--noise", "4", "--steps", "50")
    assert page.exit_code == 0
    assert page.stderr.startswith("privet: delta = 0.001 is not below 1/N")
    impossible = privet(*ACCOUNT, "--noise", "0.1", "--epsilon", "0.001")
    assert impossible.exit_code == 2
    assert impossible.stderr.startswith("privet: A budget of epsilon 0.001 is less than one step costs")
    everything = privet(*ACCOUNT, "--noise", "1", "--epsilon", "3", "--steps", "9")
    assert (everything.exit_code, everything.stderr.count("\n")) == (2, 1)


def test_the_accountants_that_tab_completes_are_all_there_are():
    from privet.cli.account import ACCOUNTANTS
    from privet.privacy import accountant_names

    assert tuple(accountant_names()) == ACCOUNTANTS


def test_tab_completes_verbs_and_names():
    def completed(words: str) -> list[str]:
        asked = {"_PRIVET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        script = Path(sys.executable).with_name("privet")
        ended = subprocess.run([script], capture_output=True, text=True, env=os.environ | asked)
        return ended.stdout.split()

    assert completed("privet da") == ["data"]
    assert completed("privet data get fa") == ["fashion-mnist"]
