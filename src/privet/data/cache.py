"""The cache of data sets and of computed features: its files are put in place whole, and only after verification."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import platformdirs
import torch
from torch import Tensor

from privet.data.dataset import Dataset, Split
from privet.data.files import sha256
from privet.data.sources import Progress
from privet.errors import InputError, PrivetError, PrivetWarning
from privet.io import Lock, read_text, sync_folder, user_path, write_whole

_LOCK = ".lock"


def cache_root(cache: Path | str | None = None) -> Path:
    """The folder of the cache: ``cache``, else ``$PRIVET_DATA``, else the platform's cache folder."""
    if cache is not None:
        return user_path(cache)
    if named := os.environ.get("PRIVET_DATA"):
        return user_path(named)
    return Path(platformdirs.user_cache_dir("privet")) / "data"


def is_intact(path: Path, checksum: str) -> bool:
    """Whether a cached file exists, can be read and has this SHA-256."""
    try:
        return sha256(path) == checksum
    except OSError:
        return False


def install(staged: Path, target: Path) -> None:
    """Put a verified file in place. After a crash at any moment ``target`` is the old file or the whole new one."""
    with staged.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(staged, target)
    sync_folder(target.parent)


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """Lock the folder of a data set and give an empty ``.staging`` folder inside it, which is removed at the end.

    Files that a killed run left in ``.staging`` are removed. If nothing is put in place, no folder is left behind.
    """
    staging = folder / ".staging"
    try:
        made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        with _lock(folder):
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(mode=0o700)
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
                if made and [file.name for file in folder.iterdir()] == [_LOCK]:
                    with suppress(OSError):  # fails on Windows, where the file of a held lock cannot be deleted
                        (folder / _LOCK).unlink()
                for parent in made:
                    with suppress(OSError):  # not empty, so it is in use
                        parent.rmdir()
    except OSError as error:
        raise PrivetError(
            f"The cache {folder} cannot be written ({error.strerror or error}): "
            "free some space, or set PRIVET_DATA to a folder that you can write."
        ) from None


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Create ``folder`` and let one process at a time work in it; the operating system frees the lock on a crash."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # the last holder of the lock removed the folder: create it again
            lock = Lock(folder / _LOCK, wait=True)
            break
    try:
        yield
    finally:
        lock.release()


FORMAT = 1
"""Part of every key. Increase it when a transform of the same name computes different numbers."""

_CHUNK = 128
"""Records per chunk: small enough for the processor's cache."""


def compute_features(
    dataset: Dataset,
    transform: Callable[[Tensor], Tensor],
    name: str,
    *,
    precision: torch.dtype = torch.float32,
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Replace every record by its features under `transform`, computed once and memory-mapped from the cache.

    A transform that is fixed before any record is seen, and looks at one record at a time, costs no privacy.

    Args:
        dataset: the records.
        transform: maps a batch, as `Split.batch` returns it, to one row of any shape for each record; it must be fixed
            before any record is seen.
        name: identifies the transform: the same name must always mean the same transform. It may contain letters, digits,
            dots and dashes.
        precision: float32, or float16 to halve disk space and memory.
        cache: the folder for the features, instead of the usual one.
        progress: called with a description, the hundredths done and 100.

    Formal guarantees: features of other records, another transform or another precision are never used, because the
    fingerprint of the records is part of the key. A file is in place whole or not at all. Its SHA-256 is kept beside it and
    checked before every use; a file that differs, or has none, is computed again. Only their owner can read the files.
    """
    if not re.fullmatch(r"[A-Za-z0-9.-]+", name):
        raise InputError(f"The name of a transform may contain letters, digits, dots and dashes, but is {name!r}.")
    if precision not in (torch.float32, torch.float16):
        raise InputError(f"Features are stored as float32 or float16, not {precision}.")
    folder = cache_root(cache) / "features" / f"{_file_name(dataset.name)}-{_file_name(name)}"
    key = hashlib.sha256(f"{FORMAT} {dataset.fingerprint} {name} {precision}".encode()).hexdigest()[:16]
    paths = {title: folder / f"{key}-{_file_name(title)}.npy" for title in dataset.splits}
    intact = {title for title, path in paths.items() if _is_whole(path)}
    if len(intact) < len(paths):
        with workplace(folder) as staging:
            done, total = 0, len(dataset)
            for title, split in dataset.splits.items():
                # Another process may have computed them while this one waited for the lock.
                if title not in intact and not _is_whole(paths[title], warn=True):
                    staged = staging / paths[title].name
                    _compute(split, transform, staged, precision, progress, done, total)
                    staged.chmod(0o600)
                    checksum = write_whole(_checksum(staged), sha256(staged).encode())
                    _checksum(paths[title]).unlink(missing_ok=True)  # that of an older file
                    install(staged, paths[title])
                    install(checksum, _checksum(paths[title]))
                done += len(split)
    made = {title: split.with_inputs(_mapped(paths[title])) for title, split in dataset.splits.items()}
    return replace(dataset, splits=made)


def _file_name(text: str) -> str:
    """A name for a file that differs for different texts; short and simple texts stay as they are."""
    clean = re.sub(r"[^A-Za-z0-9._-]", "-", text)[:80]
    return clean if clean == text else f"{clean}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _checksum(path: Path) -> Path:
    """The file with the SHA-256 of the features at `path`."""
    return path.with_suffix(".sha256")


def _is_whole(path: Path, *, warn: bool = False) -> bool:
    """Whether features are in the cache exactly as they were computed."""
    try:
        expected = read_text(_checksum(path), 200).strip()
    except InputError:
        return False  # none, or of version 0.1, which kept no checksum
    if is_intact(path, expected):
        return True
    if warn and path.exists():
        warnings.warn(f"The features in {path} are damaged: they are computed again.", PrivetWarning, stacklevel=3)
    return False


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
            # In hundredths: the number of records may be private, and progress bars end up in logs.
            progress("Features", 100 * (done + int(indices[-1]) + 1) // total, 100)
    rows.flush()


def _mapped(path: Path) -> Tensor:
    try:
        # Copy on write: changes of the tensor do not reach the file.
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    except (OSError, ValueError, EOFError, TypeError):  # numpy's message may quote private content
        raise InputError(f"{path} is damaged: delete it, and the features are computed again.") from None
