"""All traps.

To add one: an operation on a (records, 6) tensor is a line in `operations` (or `disguises`, where it hides; or
`everyday`, beside the same operation along other dimensions); a loss of outputs and targets is a line in `losses`; a loop is a
function in `loops` (or `late`, `detours` and `further`, where it is hidden from the self-check); a whole model is a class in
`models`. A trap that is there to mix records must bite (`tests.zoo.naive` is wrong on it by more than C), or say
``bites=False``. An ordinary case has ``allowed=SOUND`` and an oracle, the loss of a batch of one record. One trap alone:

    pytest tests/zoo -k "Cox"
    python benchmarks/zoo.py --only loss
"""

from __future__ import annotations

from tests.zoo.detours import DETOURS
from tests.zoo.disguises import DISGUISES
from tests.zoo.everyday import EVERYDAY
from tests.zoo.further import FURTHER
from tests.zoo.harness import Trap
from tests.zoo.late import LATE
from tests.zoo.loops import LOOPS
from tests.zoo.losses import LOSSES
from tests.zoo.models import MODELS
from tests.zoo.operations import OPERATIONS
from tests.zoo.places import PLACES

TRAPS: tuple[Trap, ...] = (
    *OPERATIONS,
    *LOSSES,
    *LOOPS,
    *MODELS,
    *DISGUISES,
    *PLACES,
    *EVERYDAY,
    *LATE,
    *DETOURS,
    *FURTHER,
)
