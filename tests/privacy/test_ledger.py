"""The ledger: nothing is lost by a kill, nothing is accepted after an edit."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from privet.errors import InputError
from privet.privacy import (
    Claimed,
    Gaussian,
    Ledger,
    LedgerError,
    Nothing,
    PoissonSampled,
    PublishedClaim,
    Relation,
    accountant_named,
)

STEP = PoissonSampled(0.01, Gaussian(1.1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def written(path, steps=5):
    with Ledger(path) as ledger:
        for _ in range(steps):
            ledger.record(STEP)
    return ledger


def test_a_ledger_is_read_back_and_continued(path):
    with Ledger(path, relation="replace-one", unit="patient") as ledger:
        ledger.record(Gaussian(5.0))
        ledger.record(STEP)
        ledger.record(STEP, 3)
        ledger.record(Nothing())
        ledger.record(STEP)
    with Ledger.open(path) as again:
        assert again.event == ledger.event == Gaussian(5.0) + STEP * 5
        assert (again.head, again.relation, again.unit) == (ledger.head, Relation.REPLACE_ONE, "patient")
        again.record(STEP)
    last = Ledger.open(path, read_only=True)
    assert last.event == Gaussian(5.0) + STEP * 6
    assert not last.torn
    assert "replace one patient" in str(last.spent(1e-5))


def test_a_long_run_is_a_small_file(path):
    written(path, 200)
    assert path.stat().st_size < 200 * 110


def test_the_guarantee_is_the_weakest(path):
    with Ledger(path) as ledger:
        ledger.record(STEP)
        ledger.record(PublishedClaim(1.0, 1e-6, "a paper", "no clipping"))
        assert ledger.guarantee == Claimed("a paper", "no clipping")
        assert str(ledger.spent(1e-5)).endswith("only claimed by a paper: no clipping)")


def test_an_empty_ledger_has_spent_nothing():
    spent = Ledger().spent(1e-5)
    assert spent.epsilon == 0
    assert str(spent) == "epsilon = 0 at delta = 1e-05 (add/remove one record; no sampling; PLD; proved)"


def test_every_cut_of_the_last_line_is_recognised(path, tmp_path):
    written(path, 3)
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    for cut in range(start + 1, len(whole)):
        torn = tmp_path / f"torn-{cut}.jsonl"
        torn.write_bytes(whole[:cut])
        with Ledger.open(torn) as ledger:
            # All but the newline is a whole entry: it is kept, as counting too much is safe.
            complete = cut == len(whole) - 1
            assert ledger.torn is not complete
            assert ledger.event == STEP * (3 if complete else 2)
            ledger.record(Gaussian(2.0))
        again = Ledger.open(torn, read_only=True)
        assert not again.torn
        assert again.event == STEP * (3 if complete else 2) + Gaussian(2.0)


def edits(lines):
    yield "a changed number", [*lines[:1], lines[1].replace(b"1.1", b"9.9"), *lines[2:]]
    yield "a removed line", [*lines[:2], *lines[3:]]
    yield "two lines exchanged", [*lines[:2], lines[3], lines[2], *lines[4:]]
    yield "a repeated line", [*lines[:3], lines[2], *lines[3:]]
    yield "a changed header", [lines[0].replace(b"add-remove", b"replace-one"), *lines[1:]]
    yield "a changed hash", [*lines[:-1], lines[-1].replace(lines[-1][-8:-3], b"00000")]
    yield "rubbish in the middle", [*lines[:2], b"rubbish\n", *lines[2:]]
    yield "rubbish as the whole last line", [*lines, b"rubbish\n"]
    yield "another file", [b"{}\n"]
    yield "nothing at all", []


@pytest.mark.parametrize("number", range(10))
def test_an_edited_ledger_is_refused(path, number):
    with Ledger(path) as ledger:
        for sigma in (1.1, 2.0, 3.0, 4.0):
            ledger.record(PoissonSampled(0.01, Gaussian(sigma)))
    name, lines = list(edits(path.read_bytes().splitlines(keepends=True)))[number]
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError):
        pytest.fail(f"{name} was accepted: {Ledger.open(path).event}")


def test_lines_cut_off_at_the_end_are_noticed_by_the_head(path):
    head = written(path, 4).head
    lines = path.read_bytes().splitlines(keepends=True)
    Ledger.open(path, head=head, read_only=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert Ledger.open(path, read_only=True).event == STEP * 3
    with pytest.raises(LedgerError, match="Lines were removed"):
        Ledger.open(path, head=head, read_only=True)


def test_two_writers_and_overwriting_are_refused(path):
    with Ledger(path):
        with pytest.raises(LedgerError, match="another process"):
            Ledger.open(path)
        with pytest.raises(InputError, match="exists already"):
            Ledger(path)


def test_a_closed_or_read_only_ledger_takes_nothing(path):
    closed = written(path)
    with pytest.raises(LedgerError):
        closed.record(STEP)
    with pytest.raises(LedgerError, match="reading only"):
        Ledger.open(path, read_only=True).record(STEP)
    with pytest.raises(InputError, match="holds events"):
        Ledger().record("a step")
    with pytest.raises(InputError, match="cannot be read"):
        Ledger.open(path.with_name("absent"))


def test_the_event_is_on_the_disk_before_record_returns(path, monkeypatch):
    order = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (order.append(path.read_bytes().count(b"\n")), real(descriptor))
    )
    with Ledger(path) as ledger:
        order.clear()
        ledger.record(STEP)
        assert order == [2]


CHILD = """
import sys
from privet.privacy import Gaussian, Ledger, PoissonSampled
from pathlib import Path
path = Path(sys.argv[1])
ledger = Ledger.open(path) if path.exists() else Ledger(path)
print("ready", flush=True)
while True:
    ledger.record(PoissonSampled(0.01, Gaussian(1.1)))
    print("used", flush=True)
"""


def test_a_run_killed_at_any_moment_never_shows_less_than_it_used(path):
    """Whatever moment the kill comes, the reloaded ledger has at least every step whose noise could have been used."""
    chance = random.Random(7)
    used = 0
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 0.2))
        child.send_signal(signal.SIGKILL)
        output, _ = child.communicate()
        used += output.count("used")
        recorded = len(Ledger.open(path, read_only=True))
        assert used <= recorded <= used + 4
    assert used > 0


@pytest.mark.parametrize("entries", [[{"as": 7}], [{}], [{"event": Gaussian(1.0).to_dict()}, {"as": "x"}]])
def test_an_entry_that_hashes_well_and_says_nothing_is_refused(path, entries):
    """As a newer version, or a careless program, might write it."""
    with Ledger(path) as ledger:
        for entry in entries:
            ledger._write(entry)
    with pytest.raises(LedgerError, match=f"Line {len(entries) + 1} of the ledger"):
        Ledger.open(path)


def test_a_condition_is_kept_in_the_file_and_named_by_every_statement(tmp_path):
    ledger = Ledger(tmp_path / "a")
    ledger.size_is_public()
    ledger.record(Gaussian(2.0))
    ledger.condition("the columns are public")
    ledger.record(Gaussian(2.0))
    ledger.size_is_public()  # written once
    ledger.close()
    again = Ledger.open(tmp_path / "a")
    assert again.conditions == ("the number of records is public", "the columns are public")
    assert again.event == Gaussian(2.0) * 2 and again.head == ledger.head
    spent = again.spent(1e-5)
    assert str(spent).endswith("proved; the number of records is public; the columns are public)")
    assert spent.to_dict()["conditions"] == list(again.conditions)
    assert spent.epsilon == accountant_named("pld").epsilon(Gaussian(2.0) * 2, 1e-5)
    again.close()
    with pytest.raises(LedgerError, match="was edited"):
        text = (tmp_path / "a").read_text().replace("columns are public", "columns are secret")
        (tmp_path / "b").write_text(text)
        Ledger.open(tmp_path / "b")
    with pytest.raises(LedgerError, match="reading only"):
        Ledger.open(tmp_path / "a", read_only=True).condition("something else")


def test_neighbours_that_replace_a_record_have_no_condition_on_their_number():
    ledger = Ledger(relation="replace-one")
    ledger.size_is_public()
    assert ledger.conditions == () and "public" not in str(ledger.spent(1e-5))


def test_the_number_of_users_is_named_for_users():
    ledger = Ledger(unit="user")
    ledger.size_is_public()
    assert ledger.conditions == ("the number of users is public",)
