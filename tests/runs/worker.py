"""Work of a worker whose audits are quick, and that can be made slow enough to be killed in the middle."""

import os
import signal
import time
from pathlib import Path

from privet.methods import Power
from privet.runs import race
from privet.runs.job import Row
from privet.training.step import Step

_RELEASE = Step.release


def quick(out: Path, key: str) -> Row:
    """One method, with quick audits."""
    race.POWER = Power(draws=400, canaries=100)
    return race.run_method(out, key)


def slow(out: Path, key: str) -> Row:
    """One method with long steps: somebody kills it."""

    def slowly(*arguments, **named):
        time.sleep(0.1)
        return _RELEASE(*arguments, **named)

    Step.release = slowly
    return quick(out, key)


def killed_once(out: Path, key: str) -> Row:
    """One method, whose worker is killed in the middle of the first attempt."""
    there, steps = out / f"{key}.was-killed", 0

    def release(*arguments, **named):
        nonlocal steps
        steps += 1
        if steps == 12 and not there.exists():
            there.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return _RELEASE(*arguments, **named)

    Step.release = release
    return quick(out, key)
