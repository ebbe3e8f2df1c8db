"""The account of a data set as its owner lives with it: ten runs on growing data, and everything that happens to files.

    PYTHONPATH=. python benchmarks/data_owner.py

Each command is a process of its own, as at a prompt. Two runs are killed with SIGKILL, one folder is deleted, one is copied and
both copies go on; then the account's file is put back from an older copy, lost, moved, shared by two machines that do not see
each other's lines, and edited. After each command, what the account shows is compared with what the ledgers of all runs hold,
also of the deleted one: it must never be less. The commands and what they printed are in results/data_owner.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from engine import RESULTS

from privet.privacy import Event, Ledger
from privet.privacy.data_account import DataAccount
from privet.privacy.events import NOTHING

KILLED = """
import os, signal, sys
from privet.privacy.ledger import Ledger
kill, recorded, steps = int(sys.argv.pop(1)), Ledger.record, []
def record(self, event, *rest, **named):
    recorded(self, event, *rest, **named)
    steps.append(event)
    if kill and len(steps) == kill:
        os.kill(os.getpid(), signal.SIGKILL)
Ledger.record = record
from privet.cli import main
sys.argv[0] = "privet"
main()
"""
"""The command line, which kills itself after so many recorded events; 0 for never."""
TRAIN = "train --data csv:data/people.csv --schema data/schema.json --epsilon 0.6 --delta 1e-6"


class Owner:
    """Somebody at a prompt; keeps what was typed and printed, and what was really used."""

    def __init__(self, home: Path) -> None:
        self.home, self.lines = home, []
        self.used: dict[str, Event] = {}
        """What each run has used, by its folder."""
        self.twice: Event = NOTHING
        """What is in the ledgers of two folders, because one is a copy of the other."""
        self.environment = os.environ | {"PRIVET_ACCOUNTS": str(home / "accounts"), "PRIVET_STATE": str(home / "state")}
        self.environment |= {
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
            "COLUMNS": "200",
        }

    def say(self, text: str) -> None:
        self.lines += ["", text, ""]
        print(f"\n{text}\n", flush=True)

    def types(
        self, line: str, code: int, *said: str, kill: int = 0, machine: str = "state", quiet: bool = False
    ) -> str:
        """Type a command of privet; it must end with `code` and say the words of `said`.

        Args:
            kill: it is killed after so many events.
            machine: the folder in which the machine keeps what it has seen.
            quiet: the transcript gets the command alone.
        """
        words = [sys.executable, "-c", KILLED, str(kill), *line.split()]
        environment = self.environment | {"PRIVET_STATE": str(self.home / machine)}
        done = subprocess.run(words, cwd=self.home, env=environment, capture_output=True, text=True, check=False)
        printed = " ".join(done.stdout.split()) + " " + " ".join(done.stderr.split())
        where = "" if machine == "state" else f"        # on the machine {machine}"
        shown = [f"    $ privet {line}{where}"]
        if kill:
            shown.append("    Killed")
        elif not quiet:
            text = (done.stdout + done.stderr).replace(str(self.home), "~").strip()
            shown += [f"    {each}" for each in text.splitlines()]
        if done.returncode not in (0, -9):
            shown.append(f"    (exit code {done.returncode})")
        self.lines += shown
        print("\n".join(shown), flush=True)
        if done.returncode != code or any(words not in printed for words in said):
            raise SystemExit(f"expected {code} and {said}, and not {done.returncode}:\n{printed}")
        return done.stdout

    def check(self, named: str = "people") -> None:
        """What the account shows is at least what all runs have used, and not much more."""
        for ledger in (self.home / "runs").glob("*/ledger.jsonl"):
            self.used[ledger.parent.name] = Ledger.open(ledger, read_only=True).event
        before = {key: os.environ.get(key) for key in ("PRIVET_ACCOUNTS", "PRIVET_STATE")}
        os.environ |= {
            "PRIVET_ACCOUNTS": self.environment["PRIVET_ACCOUNTS"],
            "PRIVET_STATE": str(self.home / "nothing"),
        }
        try:
            books = DataAccount.open(named).books
        finally:
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
        truth = books.total.free
        for event in self.used.values():
            truth += books.total.price(event)
        truth -= books.total.price(self.twice)
        for each in books.charges:
            truth += each.price
        shown, used = books.total.share(books.used), books.total.share(truth)
        if not books.used.covers(truth.scaled(1 - 1e-9)):
            raise SystemExit(f"UNDER-COUNTED: the account shows {shown:.4%} of its total, and {used:.4%} were used")
        self.lines.append(f"    # The account shows {shown:.2%} of its total; all ledgers together hold {used:.2%}.")
        print(self.lines[-1], flush=True)


def people(home: Path, number: int) -> None:
    draw = random.Random(0)
    rows = (f"{20 + draw.randrange(60)},{draw.choice('abc')},{draw.choice(('no', 'yes'))}\n" for _ in range(number))
    (home / "data").mkdir(exist_ok=True)
    (home / "data" / "people.csv").write_text("age,work,owns\n" + "".join(rows))
    columns = {
        "age": {"low": 20, "high": 80},
        "work": {"categories": list("abc")},
        "owns": {"categories": ["no", "yes"]},
    }
    (home / "data" / "schema.json").write_text(json.dumps({"label": "owns", "columns": columns}))


def play(home: Path) -> Owner:
    owner, settings = Owner(home), "--set epochs=2 --set sampling_rate=0.05"
    account = home / "accounts" / "people.account"
    people(home, 400)
    owner.say("An account for 400 people. One line is kept elsewhere.")
    owner.types("budget open people --epsilon 8 --delta 1e-6 --data data", 0, "Keep this line elsewhere")
    owner.say(
        "Ten runs, while the file grows from 400 to 760 people. Runs 3 and 6 are killed; run 4 is deleted afterward."
    )
    for number in range(10):
        people(home, 400 + 40 * number)
        kill = {3: 12, 6: 25}.get(number, 0)
        owner.types(f"{TRAIN} {settings} --out runs/{number}", -9 if kill else 0, kill=kill, quiet=True)
        owner.check()
        if number == 4:
            shutil.rmtree(home / "runs" / "4")
            owner.lines.append("    $ rm -r runs/4")
    owner.types("budget show people", 0, "10 runs", "whose folder is gone", "running or stopped")
    head = owner.types("budget show people --head", 0, "privet-account people").strip()
    owner.say("The folder of run 6, which was killed, is copied. Both copies go on, with the data of run 6.")
    people(home, 400 + 40 * 6)
    shutil.copytree(home / "runs" / "6", home / "runs" / "copy")
    owner.twice = Ledger.open(home / "runs" / "6" / "ledger.jsonl", read_only=True).event
    owner.lines.append("    $ cp -r runs/6 runs/copy")
    for name in ("6", "copy"):
        owner.types(f"{TRAIN} {settings} --out runs/{name} --resume", 0, quiet=True)
        owner.check()
    owner.types("budget check people runs", 0, "is in 2 copies", "is gone", "has not ended")
    owner.say("Run 3 is given up. A run that would pass the total is refused, and leaves nothing.")
    owner.types("budget settle people runs/3 --note not-needed", 0, "what it drew stays charged")
    owner.types(f"{TRAIN.replace('0.6', '8')} {settings} --out runs/much", 1, "has not enough left")
    if (home / "runs" / "much").exists():
        raise SystemExit("a refused run left a folder")
    owner.say("**Rolled back.** The file of the account is put back from a backup that was made before one more run.")
    backup = home / "backup.account"
    shutil.copy(account, backup)
    people(home, 800)
    owner.types(f"{TRAIN} {settings} --out runs/10", 0, quiet=True)
    shutil.copy(backup, account)
    owner.lines.append("    $ cp backup.account accounts/people.account")
    owner.types("budget show people", 1, "an older copy was put back")
    owner.types(f"{TRAIN} {settings} --out runs/11", 1, "an older copy was put back")
    owner.types("budget recover people", 0, "were put back")
    owner.say(
        "On another machine, which has never seen the account, only the line that was kept and the run folders show it."
    )
    newest = owner.types("budget show people --head", 0).strip()
    whole = account.read_bytes()
    shutil.copy(backup, account)
    checked = ["budget", "check", "people", "runs", "--head", newest]
    owner.environment["PRIVET_STATE"] = str(home / "elsewhere")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, "0", *checked],
        cwd=home,
        env=owner.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    owner.environment["PRIVET_STATE"] = str(home / "state")
    wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    owner.lines += [
        '    $ privet budget check people runs --head "$(cat head.txt)"        # on the machine elsewhere',
        *(f"    {line}" for line in wrong),
    ]
    print(*owner.lines[-1 - len(wrong) :], sep="\n", flush=True)
    if done.returncode != 1 or len(wrong) < 2:
        raise SystemExit(f"a rollback was not noticed: {done.stdout}{done.stderr}")
    account.write_bytes(whole)
    owner.check()
    owner.say("**Lost.**")
    account.unlink()
    owner.lines.append("    $ rm accounts/people.account")
    owner.types("budget show people", 2, "There is no account")
    owner.types(f"{TRAIN} {settings} --out runs/11", 2, "There is no account")
    owner.types("budget open people --epsilon 8 --delta 1e-6", 1, "still has a copy of it")
    owner.types("budget recover people", 0, "was put back")
    owner.check()
    owner.say("**Moved.** A run that was killed before goes on with the path of the file.")
    owner.types(f"{TRAIN} {settings} --out runs/11", -9, kill=20)
    moved = home / "elsewhere.account"
    account.rename(moved)
    owner.lines.append("    $ mv accounts/people.account elsewhere.account")
    owner.types(f"{TRAIN} {settings} --out runs/11 --resume", 2, "give its path if it was moved")
    (home / "data" / ".privet-account").write_text("../elsewhere.account\n")
    owner.lines.append("    $ echo ../elsewhere.account > data/.privet-account")
    owner.types(f"{TRAIN} {settings} --out runs/11 --resume", 0, quiet=True)
    owner.check(str(moved))
    moved.rename(account)
    (home / "data" / ".privet-account").write_text("people\n")
    owner.say("**Two machines.** Each has its own copy of the file, and each makes a run. Then the two copies meet.")
    shutil.copytree(home / "state", home / "other")
    theirs = home / "theirs.account"
    before = account.read_bytes()
    owner.types(f"{TRAIN} {settings} --out runs/12", 0, quiet=True)
    ours = account.read_bytes()
    account.write_bytes(before)
    owner.types(f"{TRAIN} {settings} --out runs/13", 0, machine="other", quiet=True)
    shutil.copy(account, theirs)
    owner.types("budget show people", 1, "two copies of it went on separately")
    account.write_bytes(ours)
    owner.types("budget show people", 1, "two copies of it went on separately", machine="other")
    owner.types("budget recover people --from theirs.account", 0, "went on separately after line")
    owner.check()
    owner.types("budget check people runs", 1, "does not hold what the run in")
    owner.say("**Edited.** Somebody changes a number in the middle of the file.")
    lines = account.read_bytes().splitlines(keepends=True)
    place = len(lines) // 2
    lines[place] = re.sub(rb"0\.\d", b"0.0", lines[place], count=1)
    account.write_bytes(b"".join(lines))
    owner.types("budget show people", 1, "was edited")
    owner.types("budget recover people", 0, "It was damaged at line")
    owner.check()
    owner.types(f"{TRAIN} {settings} --out runs/14", 0, quiet=True)
    owner.check()
    owner.types("budget show people", 0)
    assert head
    return owner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        owner = play(Path(made).resolve())
    text = "\n".join(owner.lines).strip().replace("\n\n\n", "\n\n")
    (RESULTS / "data_owner.md").write_text(f"`PYTHONPATH=. python benchmarks/data_owner.py`\n\n{text}\n")


if __name__ == "__main__":
    main()
