"""All traps."""

from __future__ import annotations

from tests.zoo.harness import Trap
from tests.zoo.loops import LOOPS
from tests.zoo.losses import LOSSES
from tests.zoo.models import MODELS
from tests.zoo.operations import OPERATIONS

TRAPS: tuple[Trap, ...] = (*OPERATIONS, *LOSSES, *LOOPS, *MODELS)
