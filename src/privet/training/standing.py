"""Where a run stands, as a plain dictionary: what a callback gets after each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privet.training.private import Private

OnStep = Callable[[dict[str, Any]], None]
"""Called with a dictionary after each step."""

_SECONDS = 0.2


class Standing:
    """Called after a step, it gives step, steps, epsilon with its delta, and the guarantee.

    Epsilon is computed a few times a second and after the last step: it may be a few steps old.
    """

    def __init__(self, private: Private) -> None:
        self._private = private
        self._epsilon, self._looked = 0.0, 0.0

    def __call__(self) -> dict[str, Any]:
        private = self._private
        done, steps, now = private.steps_done, private.plan.steps, time.monotonic()
        if now - self._looked > _SECONDS or done == steps:
            self._epsilon, self._looked = private.spent().epsilon, now
        standing = {"epsilon": self._epsilon, "delta": private.delta, "guarantee": str(private.ledger.guarantee)}
        return {"step": done, "steps": steps, **standing}
