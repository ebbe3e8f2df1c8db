"""One private step: from the clipped sum of a batch to the gradient that an optimizer may use."""

from __future__ import annotations

import torch
from torch import Tensor

from privet.clipping import AdaptiveClipping, BoundedSum
from privet.privacy import Ledger
from privet.training.plan import Plan


def release(bounded: BoundedSum, plan: Plan, ledger: Ledger, generator: torch.Generator) -> dict[str, Tensor]:
    """The private mean gradient: recorded, then noised, then divided by a public constant.

    Formal guarantees: the ledger holds the step, on the disk, before its noise is drawn; whatever happens later, it never
    shows less than was used.
    """
    ledger.record(plan.step_event)
    noisy = plan.noise.add(bounded, generator)
    if isinstance(plan.clipping, AdaptiveClipping):
        plan.clipping.update(noisy, plan.expected_batch_size)
    return {name: tensor.div_(plan.expected_batch_size) for name, tensor in noisy.items()}
