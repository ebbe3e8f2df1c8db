"""The self-checks before later steps: how much CPU time one takes, in steps of the same loop.

    OMP_NUM_THREADS=1 python benchmarks/later_checks.py [--models mlp,cnn]

In a run of at least 400 steps the loop is checked again before steps 100, 1,000, ...; here it is before every fourth step,
so that a few rounds show what a check takes: the median over them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from _cases import CASES
from against import RESULTS, make_loop

import privet.training.private as private_loop

EVERY = 4


def later_check(model: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a step, and how many of them a check takes."""
    step, private = make_loop(CASES[model], False)
    checked, plain = [], []
    while not private.steps_done:
        step()
    for _ in range(EVERY * rounds):
        done, start = private.steps_done, time.process_time()
        while private.steps_done == done:
            step()
        (plain if done % EVERY else checked).append(time.process_time() - start)
    usual = statistics.median(plain)
    return {"step_ms": 1e3 * usual, "check_steps": statistics.median(checked) / usual - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    private_loop.is_rehearsed = lambda step, steps: step % EVERY == 0
    found = {}
    for model in options.models.split(","):
        one = found[model] = later_check(model, options.rounds)
        print(f"{model:<14} step {one['step_ms']:8.1f} ms   later check {one['check_steps']:5.2f} steps", flush=True)
    about = {"date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__, "machine": platform.machine()}
    (RESULTS / "later_checks.json").write_text(json.dumps({**about, "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
