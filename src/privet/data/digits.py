"""scikit-learn's digits: 1,797 pictures of 8 x 8, always there, no network."""

import numpy as np
import torch

from privet.data.dataset import Dataset, Split
from privet.data.labels import TEN_DIGITS

TEST_RECORDS = 360


def load_digits() -> Dataset:
    """1,437 training and 360 test records of shape (1, 8, 8), scaled from 0..16 to [0, 1].

    The file lists the digits in a repeating order, so the parts are drawn at random, always the same:
    numpy guarantees that ``RandomState`` never changes its stream.
    """
    from sklearn.datasets import load_digits as read  # slow to import, and most runs do not need it

    bunch = read()
    order = np.random.RandomState(0).permutation(len(bunch.target))
    inputs = torch.from_numpy((bunch.images[order] / 16).astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target[order].astype(np.int64))
    cut = len(labels) - TEST_RECORDS
    splits = {"train": Split(inputs[:cut], labels[:cut]), "test": Split(inputs[cut:], labels[cut:])}
    return Dataset("digits", TEN_DIGITS, splits)
