"""Starts a comparison and kills itself, as a machine would, when the first method is in the middle."""

import os
import signal
import sys
from pathlib import Path

from privet.io.farm import Farm
from privet.runs.race import race
from tests.runs.worker import slow

OUT = Path(sys.argv[1])


def die_in_the_middle(_: object) -> None:
    ledger = OUT / "dpsgd" / "ledger.jsonl"
    if ledger.exists() and ledger.read_bytes().count(b"\n") > 13:
        os.kill(os.getpid(), signal.SIGKILL)


race(["dpsgd"], OUT, farm=Farm(1), one=slow, on_change=die_in_the_middle)
