"""DP-PCA: principal directions of the inputs, from a noisy second moment (Abadi et al. 2016, section 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from privet.data import Split
from privet.errors import InputError
from privet.methods.statistics import private_second_moment
from privet.privacy import Ledger
from privet.randomness import Randomness


def private_components(
    records: Split, components: int, *, noise_multiplier: float, ledger: Ledger, randomness: Randomness
) -> Tensor:
    """The `components` leading eigenvectors of the noisy second moment, as rows, the largest eigenvalue first.

    Records are scaled to norm 1, as in the paper. Everything after the noise is post-processing.

    Formal guarantees: one `CovarianceRelease` of sensitivity 1 for adding or removing a record.
    """
    width = records[0][0].numel()
    if not 1 <= components <= width:
        raise InputError(f"DP-PCA can give from 1 to {width} components of records of size {width}, not {components}.")
    # Directions do not depend on what the sum is divided by.
    moment = private_second_moment(
        records, noise_multiplier=noise_multiplier, public_size=1, ledger=ledger, randomness=randomness
    )
    _, vectors = torch.linalg.eigh(moment)
    leading: Tensor = vectors[:, -components:].flip(1).mT
    return leading.to(torch.float32).contiguous()
