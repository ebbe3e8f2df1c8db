"""Features of a data set that a fixed transform gives, computed once and kept in the cache.

A transform that is fixed before any record is seen, and looks at one record at a time, costs no privacy.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privet.data.cache import cache_root, install, workplace
from privet.data.dataset import Dataset, Split
from privet.data.download import Progress
from privet.errors import InputError

FORMAT = 1
"""Part of every key: raised when a transform of the same name starts to give other numbers."""

_CHUNK = 128
"""Records at a time: what a chunk needs stays in the processor's cache."""


def compute_features(
    dataset: Dataset,
    transform: Callable[[Tensor], Tensor],
    name: str,
    *,
    precision: torch.dtype = torch.float32,
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """The data set with every record replaced by what `transform` makes of it, memory-mapped from the cache.

    Args:
        dataset: the records.
        transform: maps a batch, as `Split.batch` gives it, to one row (of any shape) for each record; fixed before any
            record is seen.
        name: says which transform it is: the same name must mean the same transform. It may hold letters, digits,
            dots and dashes.
        precision: float32, or float16 to halve the disk and the memory.
        cache: where to keep the features, instead of the usual place.
        progress: called with a description, the records done and the records in all.

    Formal guarantees: features of other records, of another transform or of another precision are never taken for
    these, since the fingerprint of the records is part of the key; a file is in place whole or not at all.
    """
    if not re.fullmatch(r"[A-Za-z0-9.-]+", name):
        raise InputError(f"The name of a transform may hold letters, digits, dots and dashes, and this is {name!r}.")
    if precision not in (torch.float32, torch.float16):
        raise InputError(f"Features are kept in float32 or float16, not {precision}.")
    folder = cache_root(cache) / "features" / f"{dataset.name.replace(':', '-').replace('/', '-')}-{name}"
    key = hashlib.sha256(f"{FORMAT} {dataset.fingerprint} {name} {precision}".encode()).hexdigest()[:16]
    paths = {title: folder / f"{key}-{title}.npy" for title in dataset.splits}
    if not all(path.exists() for path in paths.values()):
        with workplace(folder) as staging:
            done, total = 0, len(dataset)
            for title, split in dataset.splits.items():
                # Another process may have been first while this one waited for the folder.
                if not paths[title].exists():
                    _compute(split, transform, staging / paths[title].name, precision, progress, done, total)
                    install(staging / paths[title].name, paths[title])
                done += len(split)
    made = {title: split.with_inputs(_mapped(paths[title])) for title, split in dataset.splits.items()}
    return replace(dataset, splits=made)


def _compute(
    split: Split,
    transform: Callable[[Tensor], Tensor],
    path: Path,
    precision: torch.dtype,
    progress: Progress | None,
    done: int,
    total: int,
) -> None:
    shape = transform(split.batch([0])[0]).shape[1:]
    kind = np.float16 if precision == torch.float16 else np.float32
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(len(split), *shape))
    for indices in torch.arange(len(split)).split(_CHUNK):
        with torch.no_grad():
            rows[int(indices[0]) : int(indices[-1]) + 1] = transform(split.batch(indices)[0]).numpy()
        if progress is not None:
            # In hundredths: how many records there are may be private, and bars end up in logs.
            progress("Features", 100 * (done + int(indices[-1]) + 1) // total, 100)
    rows.flush()


def _mapped(path: Path) -> Tensor:
    try:
        # Copy on write: nothing that is done to the tensor reaches the file.
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    except (OSError, ValueError, EOFError, TypeError):  # numpy's message may quote the file
        raise InputError(f"{path} is damaged: delete it, and the features are computed again.") from None
