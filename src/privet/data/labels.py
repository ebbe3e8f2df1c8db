"""Labels: whole numbers from 0 that index the declared class names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.errors import InputError

TEN_DIGITS = tuple("0123456789")


def check_labels(path: Path, labels: NDArray[Any], classes: Sequence[str]) -> Tensor:
    """The labels as an int64 tensor, each an index into ``classes``; otherwise InputError with the first bad record."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise InputError(
            f"{path}, record {wrong[0] + 1}: the label is out of range for {len(classes)} classes "
            f"(0 to {len(classes) - 1}): mend the record, or declare more classes."
        )
    return torch.from_numpy(labels.astype(np.int64))
