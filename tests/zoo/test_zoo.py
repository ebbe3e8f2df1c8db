"""Every trap is right, refused or not called proved; every ordinary case is right and proved."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from tests.zoo.catalog import TRAPS
from tests.zoo.harness import SOUND, Outcome, Trap, accepts, judge
from tests.zoo.naive import naive_change

MIXING = [trap for trap in TRAPS if trap.allowed != SOUND]
ORDINARY = [trap for trap in TRAPS if trap.allowed == SOUND]


def _some(traps: list[Trap], every: int) -> list[Any]:
    """All traps, of which only some are looked at in the quick suite."""
    return [pytest.param(t, marks=() if i % every == 0 else pytest.mark.slow) for i, t in enumerate(traps)]


@pytest.mark.parametrize("trap", _some(list(TRAPS), 5), ids=str)
def test_no_trap_is_silently_wrong(trap: Trap) -> None:
    verdict = judge(trap)
    assert verdict.outcome in trap.allowed, f"{verdict.outcome}: {verdict.reason}"


@pytest.mark.parametrize("trap", _some([t for t in MIXING if t.bites and t.loss is not None], 5), ids=str)
def test_the_trap_bites(trap: Trap) -> None:
    """A naive engine, which trusts everything, is wrong on it: the trap is not passed by chance."""
    change = naive_change(trap)
    assert change > (2.05 if trap.replace else 1.05) or math.isnan(change)


@pytest.mark.skipif(not accepts("isolation"), reason="this version has no isolation")
@pytest.mark.parametrize("trap", _some([t for t in MIXING if t.loss is not None], 20), ids=str)
def test_records_evaluated_alone_are_never_wrong(trap: Trap) -> None:
    judged = judge(dataclasses.replace(trap, replace=trap.replace or trap.draws), isolation="each")
    assert judged.outcome in {Outcome.RIGHT, Outcome.REFUSED, Outcome.ASSUMED, Outcome.CRASHED}


@pytest.mark.skipif(not accepts("isolation"), reason="this version has no isolation")
@pytest.mark.parametrize("trap", _some([t for t in MIXING if t.loss is not None][1::2], 10), ids=str)
def test_what_is_assumed_is_not_called_proved(trap: Trap) -> None:
    # The self-check of one run may refuse what that of its neighbor lets pass: the statement only assumes that it does not.
    judged = judge(dataclasses.replace(trap, fate=False), isolation="assume")
    assert judged.outcome in {Outcome.ASSUMED, Outcome.REFUSED, Outcome.RIGHT, Outcome.CRASHED}


def test_the_zoo_is_large_and_names_are_unique() -> None:
    names = [str(trap) for trap in TRAPS]
    assert len(names) == len(set(names))
    assert len(MIXING) >= 170 and len(ORDINARY) >= 40
