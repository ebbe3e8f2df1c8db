"""Dividing a split into parts at random, the same parts for the same seed.

For tuning: hold out a part of the training records, never the test records. For attacks: quarters, two for the target
model (in and out) and two for the shadow model.
"""

import math
from collections.abc import Mapping

import torch

from privet.data.dataset import Dataset, Split
from privet.errors import InputError


def with_test_records(dataset: Dataset, source: str) -> Dataset:
    """The data set with training and test records; where it has no test records a fifth is held out, always the same."""
    if "train" not in dataset.splits:
        raise InputError(f"{source} has no part named train: it has {', '.join(dataset.splits)}.")
    if "test" in dataset.splits:
        return dataset
    return divide(dataset, "train", {"train": 0.8, "test": 0.2}, 0)


def divide(dataset: Dataset, split: str, parts: Mapping[str, float], generator: torch.Generator | int) -> Dataset:
    """The data set with ``split`` replaced by ``parts``: their names and fractions, which sum to 1.

    ``generator`` is a generator, which is advanced, or a seed. Guaranteed: every record of ``split`` is in exactly one
    part; the sizes depend on nothing but the fractions and the number of records; other splits stay as they are::

        divide(mnist, "train", {"train": 0.9, "tune": 0.1}, generator=0)
        divide(mnist, "train", dict.fromkeys(["target_in", "target_out", "shadow_in", "shadow_out"], 0.25), 0)
    """
    whole = dataset[split]
    if any(not fraction > 0 for fraction in parts.values()) or not math.isclose(sum(parts.values()), 1, abs_tol=1e-9):
        raise InputError(f"The parts {dict(parts)} do not sum to 1: give fractions above 0 that do.")
    if taken := sorted((dataset.splits.keys() - {split}) & parts.keys()):
        raise InputError(f"{dataset.name} already has a split {taken[0]!r}: give the part another name.")
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    order = torch.randperm(len(whole), generator=generator)
    ends = [round(len(whole) * math.fsum(list(parts.values())[: n + 1])) for n in range(len(parts))]
    made = {}
    for name, start, end in zip(parts, [0, *ends], ends, strict=False):
        if start == end:
            raise InputError(f"The part {name!r} of {len(whole)} records would be empty: give it a larger fraction.")
        made[name] = whole.select(order[start:end])
    return Dataset(dataset.name, dataset.classes, {**made, **{k: v for k, v in dataset.splits.items() if k != split}})


def set_aside(dataset: Dataset, count: int) -> Dataset:
    """The data set with ``count`` of its test records as a split ``public`` without labels (each is 0).

    Guaranteed: always the same records, chosen by their number alone, so that the features of a data set and the data set
    are divided alike; none of them stays in ``test``. Nothing changes for a count of 0.
    """
    if count == 0:
        return dataset
    test = dataset.test
    if not 0 < count < len(test):
        raise InputError(
            f"{count:,} of {len(test):,} test records cannot be taken as public: leave at least one to test on."
        )
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    public = test.inputs[order[:count]]
    made = {
        "test": test.select(order[count:].sort().values),
        "public": Split(public, torch.zeros(count, dtype=torch.int64)),
    }
    return Dataset(dataset.name, dataset.classes, {**dataset.splits, **made})
