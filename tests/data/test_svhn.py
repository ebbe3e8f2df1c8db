from pathlib import Path

import numpy as np
from scipy.io import savemat

from privet.data import load


def test_ten_means_zero_and_channels_come_first(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    savemat(tmp_path / "train_32x32.mat", {"X": pixels, "y": np.array([[10], [1], [9], [10]], dtype=np.uint8)})
    dataset = load(f"svhn:{tmp_path}")
    assert list(dataset.splits) == ["train"]
    assert dataset.shape == (3, 32, 32)
    assert dataset.train.labels.tolist() == [0, 1, 9, 0]
    assert dataset.train.inputs[2, 1, 5, 7] == pixels[5, 7, 1, 2]


def test_one_file_and_a_folder_agree(tmp_path: Path) -> None:
    pixels = np.zeros((32, 32, 3, 1), dtype=np.uint8)
    for name in ("train", "test"):
        savemat(tmp_path / f"{name}_32x32.mat", {"X": pixels, "y": np.array([[1.0]])})
    assert list(load(f"svhn:{tmp_path}").splits) == ["train", "test"]
    assert len(load(f"svhn:{tmp_path}/test_32x32.mat").train) == 1
