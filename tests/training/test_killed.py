"""SIGKILL, twenty times at random moments (in a step, in a checkpoint, in the first line of the ledger)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_run_that_is_killed_twenty_times(tmp_path: Path) -> None:
    program = Path(__file__).with_name("killed.py")
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    seeded, release = found["seeded"], found["release"]
    # Bit for bit, each distinct release once in the ledger.
    assert seeded["kills"] == 20 and seeded["equal"] and seeded["steps"] == seeded["ledger"] == 100
    assert seeded["covered"]
    # Every step that ever began is counted, those that had to be done again too.
    assert release["kills"] == 20 and release["steps"] == 100 and release["covered"]
    # The kills did hit: progress was made in between, and work was lost.
    assert len(set(seeded["saved"])) > 3 and len(set(release["saved"])) > 3 and release["ledger"] > 100
