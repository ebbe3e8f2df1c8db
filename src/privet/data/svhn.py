"""SVHN's cropped digits: MATLAB files with X [32, 32, 3, N] and y [N, 1], where label 10 means the digit 0."""

from pathlib import Path

import numpy as np
import torch

from privet.data.dataset import Dataset, Split
from privet.data.files import open_file
from privet.data.labels import TEN_DIGITS
from privet.errors import InputError

SPLITS = {"train": "train_32x32.mat", "test": "test_32x32.mat", "extra": "extra_32x32.mat"}


def read_svhn(path: Path) -> Dataset:
    """One file, or a folder with those that are there of ``train_``, ``test_`` and ``extra_32x32.mat``."""
    if not path.is_dir():
        return Dataset(path.name, TEN_DIGITS, {"train": read_svhn_split(path)})
    splits = {split: read_svhn_split(path / name) for split, name in SPLITS.items() if (path / name).exists()}
    if not splits:
        raise InputError(f"{path} holds no train_32x32.mat or test_32x32.mat: name the folder with the SVHN files.")
    return Dataset(path.resolve().name, TEN_DIGITS, splits)


def read_svhn_split(path: Path) -> Split:
    """The records of one file as uint8 ``[N, 3, 32, 32]`` with labels 0 to 9."""
    from scipy.io import loadmat  # slow to import, and most runs do not need it

    with open_file(path) as file:
        try:
            content = loadmat(file, variable_names=["X", "y"])
        except NotImplementedError:
            raise InputError(f"{path} is a MATLAB 7.3 file: save it with -v7, as SVHN's authors did.") from None
        except Exception:  # a damaged file raises nearly anything
            raise InputError(f"{path} is not a MATLAB file, or it is truncated: copy or download it again.") from None
    if "X" not in content or "y" not in content:
        raise InputError(f"{path} does not hold both X and y: give SVHN's cropped digits, such as train_32x32.mat.")
    pixels, labels = content["X"], np.asarray(content["y"]).reshape(-1)
    if (
        pixels.ndim != 4
        or pixels.shape[:3] != (32, 32, 3)
        or pixels.dtype != np.uint8
        or pixels.shape[3] != len(labels)
    ):
        raise InputError(
            f"{path} does not hold X as uint8 of shape (32, 32, 3, N) for N labels: give SVHN's cropped digits."
        )
    if len(labels) == 0:
        raise InputError(f"{path} holds no records: give a file with records.")
    wrong = np.flatnonzero(~np.isin(labels, np.arange(1, 11)))
    if len(wrong):
        raise InputError(
            f"{path}, record {wrong[0] + 1}: the label is out of range for SVHN (1 to 10): mend the record."
        )
    inputs = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64) % 10))
