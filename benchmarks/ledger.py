"""How long it takes to open a long ledger, and in how much memory.

    python benchmarks/ledger.py [--events 1000000]

Each ledger is written by `Ledger` itself (without waiting for the disk), then opened in a process of its own: CPU seconds of
`Ledger.open(read_only=True)`, every line's hash checked, and the memory that it holds
afterwards (the file is read line by line). Then how long `record` takes with fsync.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
from engine import RESULTS, _status, machine

from privet.privacy import Event, Gaussian, Ledger, PoissonSampled

KINDS = {
    "one event, repeated": lambda number: 1.0,
    "two events in turn": lambda number: 1.0 + number % 2,
    "a thousand events in turn": lambda number: 1.0 + number % 1000,
    "every tenth line a new event": lambda number: 1.0 + number / 1e6 if number % 10 == 0 else 1.0,
}


def event(kind: str, number: int) -> Event:
    return PoissonSampled(0.01, Gaussian(KINDS[kind](number)))


def write(path: Path, kind: str, events: int) -> None:
    with mock.patch.object(os, "fsync", return_value=None), Ledger(path) as ledger:
        for number in range(events):
            ledger.record(event(kind, number))


def opened(path: Path) -> dict[str, float]:
    base, start = _status("VmRSS"), time.process_time()
    ledger = Ledger.open(path, read_only=True)
    seconds, held = time.process_time() - start, _status("VmRSS") - base
    return {"events": len(ledger), "seconds": round(seconds, 2), "mebibytes": round(held / 2**20, 1)}


def microseconds_per_record(folder: Path, events: int = 500) -> float:
    with Ledger(folder / "recorded.jsonl") as ledger:
        start = time.perf_counter()
        for number in range(events):
            ledger.record(event("one event, repeated", number))
        return round(1e6 * (time.perf_counter() - start) / events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--open", type=Path)
    given = parser.parse_args()
    if given.open is not None:
        print(json.dumps(opened(given.open)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / "ledger.jsonl"
            write(path, kind, given.events)
            command = [sys.executable, __file__, "--open", str(path)]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            rows.append({"kind": kind, "megabytes": round(path.stat().st_size / 1e6), **found})
            print(rows[-1], flush=True)
            path.unlink()
        record = microseconds_per_record(Path(folder))
    print(f"{record} microseconds for each record, fsync included")
    result = {"machine": machine(), "rows": rows, "microseconds_per_record": record}
    (RESULTS / "ledger.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
