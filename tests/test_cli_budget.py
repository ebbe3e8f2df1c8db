"""`privet budget` as a data owner uses it."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.privacy import Gaussian, Ledger, PoissonSampled
from privet.privacy.data_account import DataAccount

WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
STEP = PoissonSampled(0.02, Gaussian(1.5))


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_ACCOUNTS", str(tmp_path / "accounts"))
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))


def budget(*arguments, code=0):
    page = CliRunner().invoke(app, ["budget", *map(str, arguments)], env=WIDE)
    assert page.exit_code == code, page.output
    assert "Traceback" not in page.output
    return page


def plain(*arguments, code=0):
    return json.loads(budget(*arguments, "--json", code=code).stdout)


def run_in(folder, steps, *, account=None, ended=True):
    folder.mkdir(parents=True)
    with Ledger(folder / "ledger.jsonl") as ledger:
        paying = account.begin("a model", folder=folder, ledger=ledger, plan=STEP * steps) if account else None
        for _ in range(steps):
            ledger.record(STEP)
        if paying is not None and ended is not None:
            paying.close(ended=ended)
    return folder


def test_open_says_the_total_and_the_line_to_keep(tmp_path):
    (tmp_path / "people.csv").write_text("x\n")
    page = budget("open", "patients", "--epsilon", 8, "--records", 5000, "--data", tmp_path / "people.csv")
    assert "0 runs: 0 % of its total of epsilon = 8 at delta = 1e-05 is used" in page.output
    assert "add/remove one record; Renyi filters of order 3.9 and 2.74; proved" in page.output
    assert DataAccount.open("patients").head_line in page.output.splitlines()
    assert (tmp_path / ".privet-account").read_text() == "patients\n"
    again = budget("open", "patients", "--epsilon", 9, "--delta", 1e-6, code=2)
    assert "opened once" in again.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["a", "--epsilon", 3], "Give --delta, or --records"),
        (["a", "--epsilon", -3, "--delta", 1e-5], "The epsilon of an account must be a positive number"),
        (["a", "--epsilon", "nan", "--delta", 1e-5], "The epsilon of an account must be a positive number"),
        (["a", "--epsilon", 3, "--delta", 5], "The delta of an account"),
        (["a", "--epsilon", 1e-9, "--delta", 1e-5], "too small"),
        (["a", "--epsilon", 3, "--delta", 5e-324], "The delta of an account"),
        (["a", "--epsilon", 1e308, "--delta", 1e-5], "protects nobody"),
        (["a", "--epsilon", 3, "--delta", 0.999], "protects nobody"),
        (["a", "--epsilon", 3, "--delta", 1e-5, "--unit", ""], "The unit of an account"),
        (["a b", "--epsilon", 3, "--delta", 1e-5], "is no name for an account"),
        (["x" * 300, "--epsilon", 3, "--delta", 1e-5], "is no name for an account"),
        (["a", "--epsilon", 3, "--delta", 1e-5, "--data", "nowhere.csv"], "does not exist"),
        (["a", "--epsilon", 3, "--delta", 1e-5, "--stated-share", 1], "The share of delta"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(options, sentence):
    page = CliRunner().invoke(app, ["budget", "open", *map(str, options)], env=WIDE)
    assert page.exit_code == 2
    assert sentence in page.stderr and page.stderr.count("\n") <= 1


def test_a_total_that_promises_nothing_is_marked():
    assert (
        "proved, but vacuous: such a total promises nothing"
        in budget("open", "a", "--epsilon", 50, "--delta", 1e-5).output
    )
    assert plain("show", "a")["vacuous"] is True
    assert "vacuous" not in budget("open", "b", "--epsilon", 8, "--delta", 1e-5).output
    assert plain("show", "b")["vacuous"] is False


def test_a_large_delta_is_warned_of():
    page = budget("open", "a", "--epsilon", 3, "--delta", 0.01, "--records", 1000)
    assert "delta = 0.01 is not below 1/N" in page.stderr


def test_show_lists_runs_charges_and_what_is_gone(tmp_path):
    assert "There are no accounts" in budget("show").output
    budget("open", "patients", "--epsilon", 4, "--delta", 1e-5, "--note", "The clinic's\x1b[31m patients")
    account = DataAccount.open("patients")
    run_in(tmp_path / "runs" / "a", 20, account=account)
    run_in(tmp_path / "runs" / "b", 20, account=account, ended=None)
    shutil.rmtree(tmp_path / "runs" / "a")
    budget("charge", "patients", "--epsilon", 0.2, "--note", "a histogram")
    page = budget("show", "patients").output
    assert "2 runs (1 not ended) and 1 charge by hand" in page
    assert "whose folder is gone" in page and "running or stopped" in page and "a histogram" in page
    assert "Room for a Gaussian release of epsilon = " in page and "\x1b" not in page
    facts = plain("show", "patients")
    assert [run["stands"] for run in facts["runs_on_it"]] == ["ended", "running or stopped"]
    assert facts["runs"] == 2 and facts["charges"] == 1 and 0 < facts["used"] < 1 and not facts["passed"]
    assert facts["assumptions"] == ["what was charged by hand was as stated"]
    assert plain("show")[0]["name"] == "patients"
    assert "the account patients held 2 runs" in budget("show").output
    assert budget("show", "--head", code=2).stderr == "privet: Name the account whose head you want.\n"


def test_a_damaged_account_does_not_hide_the_others(tmp_path):
    for name in ("a", "b"):
        budget("open", name, "--epsilon", 4, "--delta", 1e-5)
    (tmp_path / "accounts" / "a.account").write_text("rubbish\n")
    page = budget("show", code=1)
    assert "the account b held 0 runs" in page.stdout and "a.account is not an entry of an account" in page.stderr


def test_data_that_are_on_an_account_get_no_second_one(tmp_path):
    (tmp_path / "data").mkdir()
    budget("open", "a", "--epsilon", 4, "--delta", 1e-5, "--data", tmp_path / "data")
    refused = budget("open", "b", "--epsilon", 4, "--delta", 1e-5, "--data", tmp_path / "data", code=2)
    assert "already have the account a" in refused.stderr and not (tmp_path / "accounts" / "b.account").exists()


def test_charges_and_their_refusals(tmp_path):
    budget("open", "patients", "--epsilon", 4, "--delta", 1e-5)
    one = plain("charge", "patients", "--noise", 1.5, "--rate", 0.02, "--steps", 100, "--note", "Opacus")["used"]
    total = DataAccount.open("patients").books.total
    assert one == pytest.approx(total.share(total.price(STEP * 100)))
    plain("charge", "patients", "--noise", 30, "--note", "a Gaussian release")
    plain("charge", "patients", "--epsilon", 0.1, "--delta", 1e-7, "--note", "another one")
    for options, sentence in (
        (["--epsilon", 1], "Say with --note"),
        (["--note", "x"], "Give one of --epsilon, --noise and --run."),
        (["--epsilon", 1, "--noise", 1, "--note", "x"], "Give one of"),
        (["--noise", 1, "--delta", 1e-7, "--note", "x"], "belong to --epsilon"),
        (["--epsilon", 1, "--steps", 5, "--note", "x"], "belong to --noise"),
        (["--epsilon", -1, "--note", "x"], "There is no release of epsilon"),
        (["--epsilon", "nan", "--note", "x"], "There is no release of epsilon"),
        (["--epsilon", 0.1, "--relation", "replace-one", "--note", "x"], "bounds nothing for adding or removing"),
        (["--noise", 1, "--rate", 7, "--note", "x"], "rate"),
        (["--run", tmp_path / "nowhere"], "is not the folder of a run"),
        (["--run", tmp_path], "cannot be read"),
        (["--run", tmp_path, "--happened"], "leave it out"),
    ):
        assert sentence in budget("charge", "patients", *options, code=2).stderr
    assert len(DataAccount.open("patients").books.charges) == 3
    page = budget("charge", "patients", "--epsilon", 5, "--note", "too much", code=1)
    assert "has not enough left for this" in page.stderr
    page = budget("charge", "patients", "--epsilon", "inf", "--note", "the file was published", "--happened")
    assert "had passed its total" in page.output
    assert plain("show", "patients")["passed"] is True
    assert "No room for another run" in budget("show", "patients").output


def test_runs_that_were_made_before_the_account_are_entered(tmp_path):
    folders = [run_in(tmp_path / "runs" / name, 30) for name in "ab"]
    budget("open", "patients", "--epsilon", 4, "--delta", 1e-5)
    page = budget("check", "patients", tmp_path / "runs").output
    assert page.count("was made without an account") == 2
    facts = plain("charge", "patients", "--run", folders[0], "--run", folders[1])
    total = DataAccount.open("patients").books.total
    assert facts["used"] == pytest.approx(total.share(total.price(STEP * 60)))
    assert "is on the account patients already" in budget("charge", "patients", "--run", folders[0], code=2).stderr
    assert plain("check", "patients", tmp_path / "runs")["right"] is True


def test_the_check_finds_deleted_moved_copied_and_forged_runs(tmp_path):
    budget("open", "patients", "--epsilon", 6, "--delta", 1e-5)
    account, runs = DataAccount.open("patients"), tmp_path / "runs"
    for name in ("kept", "deleted", "moved", "copied", "forged"):
        run_in(runs / name, 20, account=account)
    run_in(runs / "stopped", 20, account=account, ended=False)
    shutil.copytree(runs / "kept", runs / "kept" / "release")  # holds a copy of the ledger
    kept = budget("show", "patients", "--head").output.strip()
    assert plain("check", "patients", runs, "--head", kept)["right"] is True
    shutil.rmtree(runs / "deleted")
    (runs / "moved").rename(runs / "elsewhere")
    shutil.copytree(runs / "copied", runs / "copy")
    page = budget("check", "patients", runs).output
    assert "runs/deleted is gone: it was deleted or moved. What it drew stays charged." in page
    assert "/runs/moved to" in page and "is in 2 copies" in page and "has not ended" in page
    assert "WRONG" not in page and "release" not in page
    with Ledger.open(runs / "forged" / "ledger.jsonl") as ledger:
        ledger.record(STEP)  # without the account
    page = budget("check", "patients", code=1).output
    assert page.startswith("WRONG: The ledger in ") and "holds more than the run" in page
    (runs / "kept" / "ledger.jsonl").write_text("rubbish\n")
    (runs / "stopped" / "account.json").write_text("{}")
    facts = plain("check", "patients", runs, code=1)
    wrong = [finding["text"] for finding in facts["findings"] if finding["wrong"]]
    assert not facts["right"] and len(wrong) == 3
    assert any("cannot be compared" in text for text in wrong) and any("is damaged" in text for text in wrong)


def test_a_forged_account_does_not_pass_the_check(tmp_path):
    budget("open", "patients", "--epsilon", 6, "--delta", 1e-5)
    account = DataAccount.open("patients")
    run_in(tmp_path / "a", 20, account=account)
    kept = account.head_line
    shutil.rmtree(tmp_path / "state")
    lines = account.path.read_bytes().splitlines(keepends=True)
    account.path.write_bytes(b"".join(lines[:-3]))
    facts = plain("check", "patients", "--head", kept, code=1)
    wrong = [finding["text"] for finding in facts["findings"] if finding["wrong"]]
    assert len(wrong) == 2 and all("an older copy" in text for text in wrong)
    assert "begins with privet-account" in budget("check", "patients", "--head", "nonsense", code=2).stderr
    account.path.write_bytes(b"".join(lines).replace(b'"epsilon": 6', b'"epsilon": 7'))
    assert "was edited: the running hash breaks at line 1" in budget("check", "patients", code=1).stderr


def test_settle_frees_what_was_reserved(tmp_path):
    budget("open", "patients", "--epsilon", 4, "--delta", 1e-5)
    account = DataAccount.open("patients")
    folder = tmp_path / "a"
    folder.mkdir()
    with Ledger(folder / "ledger.jsonl") as ledger:
        account.begin("a model", folder=folder, ledger=ledger, plan=STEP * 100)
        for _ in range(10):
            ledger.record(STEP)
    before = plain("show", "patients")
    assert before["reserved"] > 5 * before["used"] > 0
    page = budget("settle", "patients", folder, "--note", "it did not learn").output
    assert "was given up; what it drew stays charged" in page
    after = plain("show", "patients")
    assert after["used"] == before["used"] and after["reserved"] == 0
    assert "nothing to settle" in budget("settle", "patients", folder, code=2).stderr
    assert "there is no run" in budget("settle", "patients", "nonsense", code=2).stderr


def test_a_lost_account_is_recovered(tmp_path):
    budget("open", "patients", "--epsilon", 4, "--delta", 1e-5)
    account = DataAccount.open("patients")
    run_in(tmp_path / "a", 20, account=account)
    before = plain("show", "patients")
    copy = shutil.copy(account.path, tmp_path / "backup.account")
    account.path.unlink()
    assert "privet budget recover" in budget("show", "patients", code=2).stderr
    assert (
        "privet budget recover patients" in budget("open", "patients", "--epsilon", 4, "--delta", 1e-5, code=1).stderr
    )
    assert "was put back from" in budget("recover", "patients").output
    assert plain("show", "patients") == before
    account.path.unlink()
    shutil.rmtree(tmp_path / "state")
    assert "has no copy" in budget("recover", "patients", code=2).stderr
    assert plain("recover", "patients", "--from", copy)["used"] == before["used"]
