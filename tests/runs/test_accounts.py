"""Runs on the account of their records: every method pays before it uses a record, and every way of ending is counted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import privet
from privet.cli import app
from privet.errors import InputError, PrivetError
from privet.methods import DataSpec, Task, method_for
from privet.privacy import (
    AccountExhausted,
    Claimed,
    DataAccount,
    Gaussian,
    Ledger,
    UnsupportedEventError,
)
from privet.privacy.data_account import bind, read_stub
from privet.privacy.price import Price
from privet.report import RunRecord
from privet.runs import Measuring, run
from privet.runs.accounts import account_of
from privet.runs.tune import TuningPlan, grid, tune
from privet.training import BudgetExhausted, RunFolder
from tests.runs.small import BUDGET, DELTA, SETTINGS, Moments, ctrl_c, digits, task_of

QUICK = Measuring(students=("GaussianNB",))


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_ACCOUNTS", str(tmp_path / "accounts"))
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))


def opened(epsilon: float = 40.0, name: str = "people", **more: str) -> DataAccount:
    return DataAccount.create(name, epsilon, DELTA, **more)


def small(
    name: str, out: Path, account: object, *, moments: Moments | None = None, resume: bool = True, epsilon=BUDGET
):
    task = replace(task_of(name, None, out.parent), epsilon=epsilon)
    key, settings = SETTINGS[name]
    moments = moments or Moments()
    with moments.watched():
        return run(
            method_for(key, task, settings),
            task,
            out,
            measuring=QUICK,
            resume=resume,
            account=account,
            on_step=moments.report,
        )


def held(out: Path, account: DataAccount) -> Price:
    """What the ledger of a run costs the account."""
    return account.books.total.price(Ledger.open(out / "ledger.jsonl", read_only=True).event)


def close(one: Price, other: Price) -> bool:
    return one.divergences == pytest.approx(other.divergences) and one.delta == pytest.approx(other.delta)


CLAIMED = {"noise layer as published"}
LABELS = "record (its label is public)"


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in CLAIMED])
def test_every_method_pays_for_everything_that_its_ledger_holds(name, tmp_path):
    more = {"epsilon": 900.0, "unit": LABELS} if name == "residual" else {}
    account, out = opened(**more), tmp_path / "run"
    record = small(name, out, account)
    books = DataAccount.open("people").books
    assert close(books.used, held(out, account)) and books.reserved.is_free
    assert [run.said for run in books.runs.values()] == ["ended"]
    assert not isinstance(record.open_ledger(out).guarantee, Claimed)
    assert record.account is not None and record.account.used > 0 and record.account.account == books.id
    said = json.loads((out / "card.json").read_text())["account"]
    assert said["said"] in (out / "CARD.md").read_text().replace("\\", "")
    assert said["head"] == books.head and f"account {books.name} held 1 run" in (out / "report.html").read_text()


@pytest.mark.parametrize("name", sorted(CLAIMED))
def test_a_method_whose_privacy_is_only_claimed_is_refused(name, tmp_path):
    account, out = opened(), tmp_path / "run"
    with pytest.raises(UnsupportedEventError, match="is only claimed by"):
        small(name, out, account)
    assert not out.exists()
    assert account.refresh().used.is_free and account.books.reserved.is_free


def test_a_run_without_an_account_says_so(tmp_path):
    record = small("moments", tmp_path / "run", None)
    assert (
        record.account is None and "There is no account of these records" in (tmp_path / "run" / "CARD.md").read_text()
    )


@pytest.mark.parametrize("name", ["dpsgd", "moments", "pate"])
def test_a_run_that_would_pass_the_total_is_refused_before_it_uses_a_record(name, tmp_path):
    account = opened(2.0)
    with pytest.raises(AccountExhausted, match="has not enough left for"):
        small(name, tmp_path / "run", account)
    assert not (tmp_path / "run").exists()
    assert account.refresh().used.is_free and account.books.reserved.is_free


def test_the_plan_of_dpsgd_is_reserved_before_the_first_record(tmp_path):
    account, out, seen = opened(), tmp_path / "run", []
    task = task_of("dpsgd", None, tmp_path)
    method = method_for("dpsgd", task, {"epochs": 1})
    planned = account.books.total.price(method.planned(task))

    def look(step):
        books = DataAccount.open("people").books
        seen.append(books.used + books.reserved)

    run(method, task, out, measuring=QUICK, account="people", on_step=look)
    assert close(seen[0], planned) and close(account.refresh().used, planned)


def test_a_run_that_is_stopped_stays_reserved_and_goes_on(tmp_path):
    account, out = opened(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        small("dpsgd", out, account, moments=Moments(4, ctrl_c, "report"))
    books = DataAccount.open("people").books
    assert not books.reserved.is_free and books.used.covers(held(out, account).scaled(1 - 1e-12))
    assert [run.said for run in books.runs.values()] == ["stopped"]
    record = small("dpsgd", out, "")  # the folder knows its account
    books = DataAccount.open("people").books
    assert record.account is not None and books.reserved.is_free and len(books.runs) == 1
    assert close(books.used, held(out, account))


def test_a_run_goes_on_when_it_was_stopped_before_its_first_event(tmp_path):
    """Its own reservation must not refuse it: it takes more than half of the account."""
    account, out = opened(5.0), tmp_path / "run"
    task = task_of("dpsgd", None, tmp_path)
    method = method_for("dpsgd", task, {"epochs": 1})
    with Ledger(_made(out) / "ledger.jsonl") as ledger:
        account.begin("dpsgd", folder=out, ledger=ledger, plan=method.planned(task))
    assert account.books.total.share(account.books.reserved) > 0.5
    run(method, task, out, measuring=QUICK, account="people", resume=True)
    assert len(account.refresh().runs) == 1 and account.books.reserved.is_free


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_units_and_accounts_that_do_not_fit_are_refused(tmp_path):
    opened(name="users", unit="user")
    with pytest.raises(InputError, match="use an account that was opened for that unit"):
        small("moments", tmp_path / "run", "users")
    opened()
    with pytest.raises(InputError, match=r"but this run protects a record \(its label is public\)"):
        small("residual", tmp_path / "run", "people")
    with pytest.raises(InputError, match="There is no account"):
        small("moments", tmp_path / "run", "nobody")
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_the_task_leaves_nothing_reserved(tmp_path):
    account = opened()
    task = task_of("dpsgd", None, tmp_path)
    method = method_for("dpsgd", task, {"recipe": "mnist-scattering"})
    with pytest.raises(PrivetError):
        run(replace(method, sampling_rate=1e-9), task, tmp_path / "run", account=account)
    assert account.refresh().reserved.is_free and account.books.used.is_free


def test_which_account_it_is(tmp_path):
    opened(), opened(name="other")
    data = _made(tmp_path / "data") / "people.csv"
    data.write_text("x\n")
    spec = DataSpec(f"csv:{data}")
    assert account_of(spec) is None and account_of(DataSpec("digits")) is None
    assert account_of(DataSpec("digits", account="people")).books.name == "people"
    bind(data, DataAccount.open("people"), "people")
    assert account_of(spec).books.name == account_of(replace(spec, account="people")).books.name == "people"
    assert account_of(spec, given=None) is None
    assert account_of(spec, given=DataAccount.open("other")).books.name == "other"
    for call in (lambda: account_of(spec, given="other"), lambda: account_of(replace(spec, account="other"))):
        with pytest.raises(InputError, match="are bound to the account people, and other was named"):
            call()


def test_a_tuning_is_charged_once_for_all_of_its_trials(tmp_path):
    account = opened()
    task = Task.of(DataSpec("digits", account="people"), digits(), BUDGET, DELTA, seed=3)
    plan = TuningPlan.of(grid(["dpsgd"], task, {"learning_rate": ["0.5", "2"], "epochs": ["0.5"]}), task, None)
    record = tune(plan, tmp_path / "tuned")
    books = account.refresh()
    assert close(books.used, account.books.total.price(plan.event)) and books.reserved.is_free
    assert len(books.runs) == 1 and record.account is not None and record.account.stopped == 1  # as it stood before
    assert "the account people" in (tmp_path / "tuned" / "CARD.md").read_text()


def test_a_tuning_that_would_pass_the_total_leaves_nothing(tmp_path):
    account = opened(2.0)
    task = Task.of(DataSpec("digits"), digits(), BUDGET, DELTA, seed=3)
    plan = TuningPlan.of(grid(["dpsgd"], task, {"learning_rate": ["0.5", "2"], "epochs": ["0.5"]}), task, None)
    with pytest.raises(AccountExhausted):
        tune(plan, tmp_path / "tuned", account=account)
    assert not (tmp_path / "tuned").exists() and account.refresh().reserved.is_free


# --- loops of one's own ---------------------------------------------------------------------------------------------------


def loop(steps: int = 8, until: int | None = None, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privet.make_private(
        model,
        optimizer,
        digits().train,
        batch_size=40,
        steps=steps,
        delta=DELTA,
        max_grad_norm=1.0,
        **({"epsilon": 2.0} | more),
    )
    try:
        for x, y in private.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if until is not None and private.steps_done >= until:
                break
    except PrivetError:
        private.close()
        raise
    return private


def test_a_loop_pays_from_an_account(tmp_path):
    account = privet.DataAccount.create("people", 20.0, DELTA)
    private = loop(account="people")
    price = account.books.total.price(private.ledger.event)
    assert close(account.refresh().used, price) and account.books.reserved.is_free
    private.close()
    stopped = loop(account=account, until=3)
    assert not account.refresh().reserved.is_free
    stopped.close()
    assert account.refresh().reserved.is_free  # in memory: it cannot go on
    total = account.books.total
    assert close(account.books.used, price + total.price(stopped.ledger.event))
    with pytest.raises(AccountExhausted):
        loop(account=account, epsilon=30.0)
    assert account.refresh().reserved.is_free


def test_a_loop_in_a_folder_stays_on_its_account(tmp_path):
    account = privet.DataAccount.create("people", 20.0, DELTA)
    first = loop(account="people", until=4, folder=tmp_path / "own")
    first.save()
    first.close()
    assert not account.refresh().reserved.is_free
    again = loop(folder=tmp_path / "own", resume=True)
    page = again.report(test=digits().test)
    again.close()
    books = account.refresh()
    assert len(books.runs) == 1 and books.reserved.is_free
    assert close(books.used, held(tmp_path / "own", account))
    assert "the account people held 1 run" in page.read_text()


def test_a_run_folder_that_the_caller_opened_stays_on_its_account_too(tmp_path):
    account = privet.DataAccount.create("people", 20.0, DELTA)
    first = loop(account="people", until=4, folder=tmp_path / "own")
    first.save()
    first.close()
    with closing(RunFolder(tmp_path / "own", resume=True)) as folder:
        loop(folder=folder).close()
    books = account.refresh()
    assert len(books.runs) == 1 and close(books.used, held(tmp_path / "own", account))


def test_a_loop_ends_where_its_account_ends(tmp_path):
    """A copy of its folder has used the reservation: the loop ends as it does at the end of a budget."""
    account = privet.DataAccount.create("people", 4.0, DELTA)
    first = loop(account="people", noise_multiplier=1.5, epsilon=None, until=2, folder=tmp_path / "own")
    first.close()
    total, books = account.books.total, account.refresh()
    account.charge(_rest(account), "somebody else", happened=True)
    account.settle(next(iter(books.runs)))
    with pytest.raises((BudgetExhausted, AccountExhausted), match="account"):
        loop(folder=tmp_path / "own", resume=True, noise_multiplier=1.5, epsilon=None)
    assert total.fits(account.refresh().used)


def _rest(account: DataAccount) -> Price:
    """All that is left."""
    books, sigma = account.books, 30.0
    while books.total.fits(books.used + books.total.price(Gaussian(sigma * 0.99))):
        sigma *= 0.99
    return books.total.price(Gaussian(sigma))


# --- the commands ---------------------------------------------------------------------------------------------------------


def people(home: Path, count: int) -> list[str]:
    """A table of so many people, as the options of a command."""
    draw = np.random.default_rng(0)
    rows = [f"{draw.random():.6f},{draw.random():.6f},{'yes' if draw.random() < 0.4 else 'no'}" for _ in range(count)]
    home.mkdir(exist_ok=True)
    (home / "people.csv").write_text("\n".join(["age,height,sick", *rows]) + "\n")
    columns = {"age": {"low": 0, "high": 1}, "height": {"low": 0, "high": 1}, "sick": {"categories": ["no", "yes"]}}
    (home / "schema.json").write_text(json.dumps({"label": "sick", "columns": columns}))
    return ["--data", f"csv:{home / 'people.csv'}", "--schema", str(home / "schema.json")]


def privet_(*arguments: object, code: int = 0):
    page = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert page.exit_code == code, page.output
    return page


def test_train_and_synthesize_on_an_account(tmp_path):
    data = people(tmp_path / "data", 600)
    privet_("budget", "open", "people", "--epsilon", 6, "--delta", 1e-5, "--data", tmp_path / "data")
    page = privet_("train", *data, "--epsilon", 1, "--set", "epochs=1", "--out", tmp_path / "a")
    assert "the account people held 0 runs" in page.stderr
    privet_(
        "synthesize", *data, "--epsilon", 1, "--account", "people", "--out", tmp_path / "b", "--student", "GaussianNB"
    )
    facts = json.loads(privet_("budget", "show", "people", "--json").stdout)
    assert [each["what"] for each in facts["runs_on_it"]] == ["dpsgd on people.csv", "table-moments on people.csv"]
    assert facts["stopped"] == 0 and 0 < facts["used"] < 0.2 and facts["reserved"] == 0
    refused = privet_("train", *data, "--epsilon", 6, "--set", "epochs=1", "--out", tmp_path / "c", code=1)
    assert "has not enough left" in refused.stderr and not (tmp_path / "c").exists()
    privet_("budget", "open", "other", "--epsilon", 6, "--delta", 1e-5)
    refused = privet_("train", *data, "--account", "other", "--out", tmp_path / "c", code=2)
    assert "are bound to the account people" in refused.stderr
    assert json.loads(privet_("budget", "check", "people", tmp_path, "--json").stdout)["right"]


@pytest.mark.slow
def test_a_comparison_charges_each_of_its_methods(tmp_path):
    data = people(tmp_path / "data", 600)
    privet_("budget", "open", "people", "--epsilon", 8, "--delta", 1e-5)
    options = ["--epsilon", 1, "--methods", "dpsgd,table-moments", "--set", "epochs=1", "--account", "people"]
    privet_("compare", *data, *options, "--out", tmp_path / "compared")
    books = DataAccount.open("people").books
    assert sorted(run.what for run in books.runs.values()) == ["dpsgd on people.csv", "table-moments on people.csv"]
    assert all(run.how == "ended" for run in books.runs.values()) and books.reserved.is_free
    folders = [Path(run.folder) for run in books.runs.values()]
    total = sum((held(folder, DataAccount.open("people")) for folder in folders), start=books.total.free)
    assert close(books.used, total)


OWNER = """
import sys, time
from privet.cli import program
from privet.training import folder
real = folder.RunFolder.record
def record(self, *given):
    real(self, *given)
    if int(sys.argv[1]) and len(self.ledger) >= int(sys.argv[1]):
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
folder.RunFolder.record = record
kill, sys.argv = sys.argv[1], ["privet", *sys.argv[2:]]
sys.argv, arguments = [kill, kill], sys.argv
from privet.cli import app
app(arguments[1:], prog_name="privet")
"""


def command(*arguments: object, kill: int = 0) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own; it is killed by SIGKILL after so many recorded steps."""
    given = [sys.executable, "-c", OWNER, str(kill), *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_as_a_data_owner_would_over_ten_runs_on_growing_data(tmp_path):
    """Two are killed, one is deleted, one folder is copied and continued twice; records are added all along."""
    home, runs = tmp_path / "data", tmp_path / "runs"
    people(home, 400)
    opened = command("budget", "open", "people", "--epsilon", 8, "--delta", 1e-6, "--data", home)
    assert opened.returncode == 0, opened.stderr
    kept = opened.stdout.splitlines()[-2]
    account = DataAccount.open("people")
    truth, shown = account.books.total.free, []

    def train(name: str, *, kill: int = 0, resume: bool = False, epsilon: float = 0.6):
        options = ["--epsilon", epsilon, "--delta", 1e-6, "--set", "epochs=2", "--set", "sampling_rate=0.05"]
        ended = command("train", *data, *options, "--out", runs / name, *(["--resume"] if resume else []), kill=kill)
        account.refresh()
        shown.append(account.standing().used)
        return ended

    for number in range(10):
        data = people(home, 400 + 40 * number)  # the file grows, and its account stays
        kill = {3: 12, 6: 25}.get(number, 0)
        ended = train(f"run-{number}", kill=kill)
        assert ended.returncode == (-9 if kill else 0), ended.stderr
        ledger = Ledger.open(runs / f"run-{number}" / "ledger.jsonl", read_only=True)
        truth += account.books.total.price(ledger.event)
        assert account.books.used.covers(truth.scaled(1 - 1e-9)), number
        if number == 4:
            shutil.rmtree(runs / "run-4")
    # The killed run 6 is copied, and both copies go on; run 3 is never continued.
    data = people(home, 400 + 40 * 6)
    before = Ledger.open(runs / "run-6" / "ledger.jsonl", read_only=True).event
    shutil.copytree(runs / "run-6", runs / "copy")
    for name in ("run-6", "copy"):
        ended = train(name, resume=True)
        assert ended.returncode == 0, ended.stderr
        total, ledger = account.books.total, Ledger.open(runs / name / "ledger.jsonl", read_only=True)
        truth += total.price(ledger.event) - total.price(before)
        assert account.books.used.covers(truth.scaled(1 - 1e-9)), name
    assert shown == sorted(shown) and shown[-1] < 1
    assert (truth + truth.scaled(0.05)).covers(account.books.used)  # and not much more than was used
    standing = account.standing()
    assert standing.runs == 10 and standing.stopped == 1
    checked = command("budget", "check", "people", runs, "--head", kept)
    assert checked.returncode == 0, checked.stdout
    for said in ("run-4 is gone", "is in 2 copies", "has not ended", "lines were added since"):
        assert said in checked.stdout
    settled = command("budget", "settle", "people", runs / "run-3", "--note", "not needed any more")
    assert settled.returncode == 0 and account.refresh().reserved.is_free
    refused = train("too-much", epsilon=8.0)
    assert refused.returncode == 1 and "has not enough left" in refused.stderr and not (runs / "too-much").exists()
    card = json.loads((runs / "run-9" / "card.json").read_text())
    assert card["account"]["runs"] == 10 and card["account"]["stopped"] == 2 and card["account"]["date"]
    assert RunRecord.read(runs / "run-9").account.head in account.books.heads
    assert read_stub(runs / "copy")["run"] == read_stub(runs / "run-6")["run"]
