"""The ledger: nothing is lost by a kill, nothing is accepted after an edit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from privet.errors import InputError
from privet.io.chained import chained as _chain
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
    with pytest.raises(InputError, match="records events"):
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


WRITER = """
import sys, time
from privet.privacy import Gaussian, Ledger, LedgerError
path, events, mark = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(events):
    while True:
        try:
            with Ledger.open(path) as ledger:
                ledger.record(Gaussian(mark))
            break
        except LedgerError as busy:
            if "another process" not in str(busy):
                raise
            time.sleep(0.001)
"""


@pytest.mark.parametrize(("writers", "events"), [(3, 15), pytest.param(4, 200, marks=pytest.mark.slow)])
def test_processes_that_append_at_the_same_time_lose_nothing(path, writers, events):
    """Version 0.1 kept 118 of 120 events of two processes: it read the file before it locked it."""
    Ledger(path).close()
    command = [sys.executable, "-c", WRITER, str(path), str(events)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([*command, str(1.0 + number)], **pipes) for number in range(writers)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    read = 0
    while any(process.poll() is None for process in started):
        seen = len(Ledger.open(path, read_only=True))  # readers are never in the way, and never see less than before
        assert seen >= read
        read = seen
        time.sleep(0.01)
    for process in started:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    counts = {}
    for event, count in Ledger.open(path, read_only=True):
        counts[event] = counts.get(event, 0) + count
    assert counts == {Gaussian(1.0 + number): events for number in range(writers)}


def test_a_writer_between_reading_and_locking_is_not_overwritten(path, monkeypatch):
    """The moment in which events were lost: somebody appends just before the lock is taken."""
    written(path, 2)
    from privet.io import chained as module

    real = module.Lock

    def late(*given, **named):
        monkeypatch.setattr(module, "Lock", real)
        with Ledger.open(path) as other:
            other.record(Gaussian(7.0))
        return real(*given, **named)

    monkeypatch.setattr(module, "Lock", late)
    with Ledger.open(path) as ledger:
        ledger.record(STEP)
    assert Ledger.open(path, read_only=True).event == STEP * 2 + Gaussian(7.0) + STEP


HOLDER = """
import sys, time
from privet.privacy import Ledger
ledger = Ledger.open(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_free_again(path):
    written(path, 2)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(LedgerError, match="another process"):
        Ledger.open(path)
    assert len(Ledger.open(path, read_only=True)) == 2
    process.kill()
    process.communicate()
    with Ledger.open(path) as ledger:
        ledger.record(STEP)
    assert len(Ledger.open(path, read_only=True)) == 3


def test_a_forked_child_does_not_free_the_lock(path):
    with Ledger(path) as ledger:
        child = os.fork()
        if child == 0:
            del ledger
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LedgerError, match="another process"):
            Ledger.open(path)


def test_a_writer_that_no_lock_held_back_is_noticed(path):
    """As over a network file system: what stands in the file is not what this process left there."""
    with Ledger(path) as ledger:
        ledger.record(STEP)
        before = path.read_bytes()
        path.write_bytes(before + before.splitlines(keepends=True)[-1])
        with pytest.raises(LedgerError, match="changed by somebody else"):
            ledger.record(STEP)
        with pytest.raises(LedgerError):
            ledger.record(STEP)
    path.write_bytes(before)
    with Ledger.open(path) as ledger:
        ledger.record(STEP)
        path.unlink()
        with pytest.raises(LedgerError, match="was deleted"):
            ledger.record(STEP)


def test_no_ledger_is_made_where_nothing_can_be_locked(path, tmp_path):
    with pytest.raises(LedgerError, match="cannot be written"):
        Ledger(tmp_path / "absent" / "ledger.jsonl")
    assert not (tmp_path / "absent").exists()
    with pytest.raises(InputError, match="cannot be read"):
        Ledger.open(path)
    assert list(tmp_path.iterdir()) == []


def long_ledger(path, events, kinds, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with Ledger(path) as ledger:
        for number in range(events):
            ledger.record(PoissonSampled(0.01, Gaussian(1.0 + number % kinds)))
    return ledger


def test_a_long_ledger_is_opened_without_parsing_its_repeated_lines(path, monkeypatch):
    """Each line is hashed, and only the lines that say something new are parsed: each event twice, and the header."""
    from privet.io import chained as module

    written = long_ledger(path, 100_000, 3, monkeypatch)
    parsed, real = [], module.json.loads
    monkeypatch.setattr(module.json, "loads", lambda line: parsed.append(line) or real(line))
    opened = Ledger.open(path, read_only=True)
    assert len(parsed) <= 1 + 2 * 3
    assert len(opened) == 100_000 and opened.head == written.head and opened.event == written.event


def test_the_quick_way_and_the_long_way_read_the_same(path, monkeypatch):
    """Lines with other spaces are parsed one by one; the running hash is that of what they say."""
    quick = long_ledger(path, 50, 3, monkeypatch)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line.replace(b'": ', b'":  ') for line in lines))
    slow = Ledger.open(path, read_only=True)
    assert (slow.head, list(slow), len(slow)) == (quick.head, list(quick), 50)


@pytest.mark.parametrize("place", [2, 30, 49])
@pytest.mark.parametrize("edit", ["digit", "name", "drop", "twice", "swap", "case"])
def test_an_edit_of_a_repeated_line_is_refused(path, monkeypatch, place, edit):
    long_ledger(path, 50, 2, monkeypatch)
    lines = path.read_bytes().splitlines(keepends=True)
    line = lines[place + 1]
    other = b"1" if b'"as": 2' in line else b"2"
    edited = {
        "digit": [line[:-4] + (b"0" if line[-4:-3] != b"0" else b"1") + line[-3:]],
        "name": [line.replace(b'{"as": ' + line[7:8], b'{"as": ' + other)],
        "drop": [],
        "twice": [line, line],
        "swap": [lines[place], line],
        "case": [line[:-67] + line[-67:-3].upper() + line[-3:]],
    }[edit]
    after = lines[place + 2 :] or [b'{"as": 1, "hash": "' + b"0" * 64 + b'"}\n']
    path.write_bytes(b"".join([*lines[: place + 1], *edited, *after]))
    with pytest.raises(LedgerError):
        Ledger.open(path, read_only=True)


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


@pytest.mark.parametrize("line", [b'{"event": NaN, "hash": "0"}', b'{"event": 1e999, "hash": "0"}'])
def test_a_line_that_is_no_json_for_a_ledger_is_named(path, line):
    """It was a bare ValueError."""
    written(path)
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(LedgerError, match="Line 7 of the ledger"):
        Ledger.open(path)


@pytest.mark.parametrize("more", [{"condition": "x"}, {"as": 1}])
def test_a_line_with_two_facts_is_refused(path, more):
    """One of them was dropped: an event beside a condition cost nothing."""
    ledger = written(path)
    entry = {"event": Gaussian(0.1).to_dict(), **more}
    with path.open("a") as file:
        file.write(json.dumps({**entry, "hash": _chain(ledger.head, entry)}) + "\n")
    with pytest.raises(LedgerError, match="Line 7 of the ledger"):
        Ledger.open(path)


def test_a_link_to_a_ledger_is_the_same_ledger(path, tmp_path):
    """Each name had a lock of its own, so that two could write."""
    written(path)
    (tmp_path / "other").mkdir()
    link = tmp_path / "other" / "link.jsonl"
    link.symlink_to(path)
    with Ledger.open(path), pytest.raises(LedgerError, match="another process"):
        Ledger.open(link)
    with Ledger.open(link) as ledger:
        ledger.record(STEP)
    assert len(Ledger.open(path, read_only=True)) == 6


# --- drafts -------------------------------------------------------------------------------------------------------------


def drafted(ledger):
    """A draft with a new event, one that the ledger knows, and a condition."""
    draft = ledger.draft()
    draft.record(Gaussian(3.0))
    draft.record(STEP, 4)
    draft.record(STEP)
    draft.condition("the number of records is public")
    return draft


def test_a_draft_goes_on_from_a_ledger_and_changes_nothing_in_it(path):
    with Ledger(path, unit="user") as ledger:
        ledger.record(STEP)
        before = path.read_bytes()
        draft = drafted(ledger)
        assert path.read_bytes() == before and len(ledger) == 1 and draft.unit == "user"
        assert draft.event == STEP + Gaussian(3.0) + STEP * 5 and draft.before == ledger.head
        ledger.extend(draft.entries, draft.before)
        assert ledger.head == draft.head and ledger.event == draft.event and ledger.conditions == draft.conditions
    assert Ledger.open(path, read_only=True).event == draft.event


@pytest.mark.parametrize("there", range(5))
def test_a_draft_is_taken_over_once_wherever_that_was_interrupted(path, there):
    with Ledger(path) as ledger:
        ledger.record(STEP)
        draft = drafted(ledger)
        ledger.extend(draft.entries[:there], draft.before)
    entries = json.loads(json.dumps(draft.entries))  # as a file keeps them
    with Ledger.open(path) as ledger:
        for _ in range(2):
            ledger.extend(entries, draft.before)
            assert ledger.head == draft.head and len(ledger) == 4
        ledger.record(STEP)
        ledger.extend(entries, draft.before)
        assert len(ledger) == 5


def test_a_draft_of_a_ledger_that_lost_lines_or_went_another_way_is_refused(path):
    with Ledger(path) as ledger:
        ledger.record(STEP)
        draft = drafted(ledger)
        ledger.record(Gaussian(7.0))
        with pytest.raises(LedgerError, match="older copy was put back"):
            ledger.extend(draft.entries, draft.before)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerError, match="lines were removed"):
            ledger.extend(draft.entries, draft.before)
        assert len(ledger) == 0
    with pytest.raises(LedgerError, match="closed"):
        ledger.draft()


def test_a_draft_of_a_ledger_in_memory():
    ledger = Ledger()
    draft = drafted(ledger)
    ledger.extend(draft.entries, draft.before)
    ledger.extend(draft.entries, draft.before)
    assert len(ledger) == 3 and ledger.head == draft.head
