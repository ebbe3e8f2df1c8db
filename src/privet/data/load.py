"""One way to name any data set: a name of the catalogue, or a format and a path."""

from pathlib import Path

from privet.data.cifar import read_cifar
from privet.data.dataset import Dataset
from privet.data.download import Progress
from privet.data.fetch import get
from privet.data.idx import read_idx_dataset


def load(spec: str, *, cache: Path | str | None = None, progress: Progress | None = None) -> Dataset:
    """The data set that ``spec`` names."""
    kind, colon, path = spec.partition(":")
    if not colon:
        return get(spec, cache=cache, progress=progress)
    if kind == "idx":
        return read_idx_dataset(Path(path))
    return read_cifar(Path(path))
