"""Getting a catalogued data set: from the cache, else from the first source that has it, verified either way."""

import difflib
import shutil
from contextlib import suppress
from pathlib import Path

from privet.data.archive import is_archive, unpack
from privet.data.cache import cache_root, install, is_intact, workplace
from privet.data.catalogue import CATALOGUE, Entry
from privet.data.dataset import Dataset
from privet.data.digits import load_digits
from privet.data.download import Progress, UnavailableError, silent
from privet.data.files import open_file, unreadable
from privet.data.idx import read_idx_split
from privet.data.sources import Source
from privet.errors import InputError, PrivetError


def find(name: str) -> Entry:
    """The catalogue's entry of this name; otherwise InputError with the names that there are."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=1)
    hint = f"did you mean {near[0]}? The" if near else "the"
    raise InputError(f"There is no data set {name!r}: {hint} known ones are {', '.join(CATALOGUE)}.")


def get(
    name: str,
    from_: Path | str | None = None,
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """A data set of the catalogue, fetched into the cache where it is not there yet.

    ``from_`` is a file or folder of yours: then nothing else is tried. ``cache`` stands for ``$PRIVET_DATA``.

    Guaranteed: every file that is returned has the SHA-256 of the catalogue, checked in this call; a file reaches the
    cache whole or not at all; a damaged file in the cache is fetched again. Raises InputError where ``name`` or
    ``from_`` cannot be used, PrivetError where no source could give the data set, with the reason of each.
    """
    entry = find(name)
    if not entry.files:
        if from_ is not None:
            raise InputError(f"{name} comes with scikit-learn: leave out the path {from_}.")
        return load_digits()
    return obtain(entry, None if from_ is None else Path(from_), cache_root(cache), progress or silent)


def obtain(entry: Entry, from_: Path | None, root: Path, progress: Progress) -> Dataset:
    """What ``get`` does for an entry whose files live in the cache folder ``root``."""
    folder = root / entry.name
    if from_ is not None:
        _check_readable(from_)
        with workplace(folder) as staging:
            _take_from(entry, from_, staging)
            _install(entry, staging, folder)
    elif not is_cached(entry, root):
        with workplace(folder) as staging:
            if not is_cached(entry, root):  # another process may have put it there while this one waited
                _try_sources(entry, staging, folder, progress)
    splits = {
        split: read_idx_split(folder / images, folder / labels, entry.classes)
        for split, (images, labels) in entry.splits.items()
    }
    return Dataset(entry.name, entry.classes, splits)


def is_cached(entry: Entry, root: Path) -> bool:
    """Whether every file of the data set is in the cache with its checksum."""
    return all(is_intact(root / entry.name / file.name, file.sha256) for file in entry.files)


def _check_readable(path: Path) -> None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            open_file(path).close()
    except OSError as error:
        raise unreadable(path, error) from None


def _take_from(entry: Entry, path: Path, staging: Path) -> None:
    try:
        if path.is_dir():
            entry.gather(path, staging, entry.files)
        elif is_archive(path):
            entry.gather(unpack(path, staging / "given"), staging, entry.files)
        else:
            raise InputError(
                f"{path} is neither a folder nor an archive: give the one that holds the {entry.name} files."
            )
    except UnavailableError as reason:
        text = str(reason).replace(str(staging / "given"), str(path))
        raise InputError(f"{text}: give the folder or archive with the true {entry.name} files.") from None


def _try_sources(entry: Entry, staging: Path, folder: Path, progress: Progress) -> None:
    failures = []
    partial = folder / ".partial"
    for source in entry.sources:
        resumed = partial.exists()
        reason = _try_source(source, entry, staging, partial, progress)
        if reason and resumed and not partial.exists():
            # What an earlier run had left was not a beginning of the true file: once more, from nothing.
            reason = _try_source(source, entry, staging, partial, progress)
        if reason is None:
            _install(entry, staging, folder)
            shutil.rmtree(partial, ignore_errors=True)
            return
        failures.append(f"{source}: {reason}")
    raise PrivetError(
        f"No source could give {entry.name}. {'. '.join(failures)}. "
        f"Get its files from {entry.homepage} by other means, then run: privet data get {entry.name} --from FOLDER"
    )


def _try_source(source: Source, entry: Entry, staging: Path, partial: Path, progress: Progress) -> str | None:
    """Bring the files of one source into ``staging``; otherwise say why not.

    Of an unfinished download the bytes stay in ``partial``; of a whole one that was not the true file, nothing.
    """
    work = staging / "work"
    work.mkdir()
    try:
        fetched = source.fetch(work, partial, progress)
        progress(f"checking and storing {entry.name}", 0, None)
        entry.gather(fetched, staging, entry.files)
        return None
    except (UnavailableError, InputError) as reason:
        for whole in (path for path in partial.glob("*") if path.suffix != ".part"):
            whole.unlink()
        with suppress(OSError):  # not empty, or never made
            partial.rmdir()
        return str(reason).rstrip(".")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _install(entry: Entry, staging: Path, folder: Path) -> None:
    for file in entry.files:
        install(staging / file.name, folder / file.name)
