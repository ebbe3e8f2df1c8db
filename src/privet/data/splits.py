"""Division of a split into parts by a keyed hash of each record; the same seed gives the same parts.

For tuning, hold out a part of the training records, never the test records. For attacks, divide into quarters: two for the
target model (members and others) and two for the shadow model.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.data.dataset import Dataset, Split
from privet.data.owners import owners_of, user_number
from privet.errors import InputError

Keys = Sequence[str | int | bytes] | NDArray[np.generic] | Tensor
"""The user of each record; all records of a user go to the same part."""

_CHUNK = 4096
"""Records copied at once, so that memory-mapped inputs are read in pieces."""

MEASURED = 0.2
"""The default share of a file for testing."""


def with_test_records(
    dataset: Dataset,
    source: str,
    *,
    hold_out: float | None = None,
    unprotected_test: bool = False,
    public_size: int | None = None,
) -> Dataset:
    """The data set with training and test records.

    If it has no test records, about a fifth of the training records become the test part. They are protected like the
    others: results on them are released only with noise (`privet.methods.private_accuracy`).

    Args:
        dataset, source: the records, and the user's name for them.
        hold_out: the share of the records to hold out without protection, if the user asked for it.
        unprotected_test: the user states that the data set's own test part needs no protection.
        public_size: the public number of records, or of users if a user is the unit of privacy; for data with a test part
            of its own, the number of training records. Without it the number of records is taken as public.

    Formal guarantees: those of `divide`. The key is fixed, so a record is always in the same part, whatever else is in the
    file. The public number of training records is computed from the public number of all records; the exact number that the
    hash gave is private.
    """
    if "train" not in dataset.splits:
        raise InputError(f"{source} has no part named train: it has {', '.join(dataset.splits)}.")
    if hold_out is not None and not 0 < hold_out < 1:
        raise InputError(f"The share to hold out must be between 0 and 1, and is {hold_out:g}.")
    if public_size is not None and public_size < 1:
        raise InputError(f"The public number of records must be at least 1, and is {public_size}.")
    stated = public_size is not None
    if "test" in dataset.splits:
        if hold_out is not None:
            raise InputError(
                f"{source} has test records of its own, so none are held out: state that they need no protection "
                "(--unprotected-test, or unprotected_test=True), or leave the share out."
            )
        return replace(dataset, public_size=public_size, size_is_stated=stated, unprotected=unprotected_test)
    if unprotected_test:
        raise InputError(
            f"{source} has no test records of its own: give the share to hold out without protection (--hold-out, or "
            "hold_out=0.2)."
        )
    share = MEASURED if hold_out is None else hold_out
    size = max(1, round((1 - share) * (public_size if public_size is not None else dataset.train.units)))
    divided = divide(dataset, "train", {"train": 1 - share, "test": share}, 0)
    return replace(
        divided,
        public_size=size,
        size_is_stated=stated,
        measured_share=share,
        unprotected=hold_out is not None,
        undivided=dataset.fingerprint,
    )


def divide(
    dataset: Dataset,
    split: str,
    parts: Mapping[str, float],
    generator: torch.Generator | int,
    *,
    keys: Keys | None = None,
) -> Dataset:
    """Replace ``split`` by ``parts``, given as names and fractions that sum to 1::

        divide(mnist, "train", {"train": 0.9, "tune": 0.1}, generator=0)
        divide(mnist, "train", dict.fromkeys(["target_in", "target_out", "shadow_in", "shadow_out"], 0.25), 0)

    Args:
        dataset: the data set; splits other than ``split`` stay as they are.
        split: the split to divide.
        parts: the name of each part and the probability that a record goes there.
        generator: the source of the hash's key: a seed, or a generator, which is advanced.
        keys: one user key for each record, if the unit of privacy is a user; they become the users of the parts. By default
            the split's own users; without any, a record is the unit.

    Formal guarantees: every record is in exactly one part, in the order of the file. Its part depends only on a keyed hash
    (BLAKE2b) of its own bytes, inputs and label, or of its user key. So neighboring files stay neighbors: adding, removing
    or replacing a record (or all records of a user) moves no other record from one part to another. As a consequence the
    sizes are random (the fraction of a part is the probability of each record to be in it), and identical records are
    always in the same part, so copies of a training record are never held out.
    """
    whole = dataset[split]
    if any(not fraction > 0 for fraction in parts.values()) or not math.isclose(sum(parts.values()), 1, abs_tol=1e-9):
        raise InputError(f"The parts {dict(parts)} do not sum to 1: give fractions above 0 that do.")
    if taken := sorted((dataset.splits.keys() - {split}) & parts.keys()):
        raise InputError(f"{dataset.name} already has a split {taken[0]!r}: give the part another name.")
    if keys is not None and len(keys) != len(whole):
        raise InputError("There are more or fewer user keys than records: give one key for each record.")
    if keys is not None:
        owners_of(keys, whole)  # refuses keys that are empty or have several parts
    if keys is not None and whole.users is None:
        whole = replace(whole, users=_numbers(keys))
    keys = whole.users if keys is None else keys
    if isinstance(generator, torch.Generator):
        generator = int(torch.randint(2**62, (), generator=generator))
    ends = [math.fsum(list(parts.values())[: n + 1]) for n in range(len(parts) - 1)]
    where = torch.from_numpy(keyed_parts(_contents(whole) if keys is None else _named(keys), generator, np.array(ends)))
    made = {}
    for number, name in enumerate(parts):
        chosen = (where == number).nonzero().flatten()
        if not len(chosen):
            raise InputError(
                f"The part {name!r} of {dataset.name} would be empty: give it a larger fraction, or more records."
            )
        made[name] = whole.select(chosen)
    return replace(dataset, splits={**made, **{k: v for k, v in dataset.splits.items() if k != split}})


def keyed_parts(contents: Iterator[bytes | memoryview], seed: int, ends: NDArray[np.float64]) -> NDArray[np.int32]:
    """The part of each content: where a number in [0, 1), 53 bits of a keyed hash, lies among `ends`."""
    keyed = blake2b(digest_size=8, key=blake2b(f"privet splits {seed}".encode()).digest())
    parts = array("i")
    while digests := b"".join(_digest(keyed, content) for content in islice(contents, _CHUNK)):
        places = (np.frombuffer(digests, "<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53
        parts.frombytes(np.searchsorted(ends, places, side="right").astype(np.intc).tobytes())
    return np.frombuffer(parts, dtype=np.intc)


def _digest(keyed: blake2b, content: bytes | memoryview) -> bytes:
    own = keyed.copy()
    own.update(content)
    return own.digest()


def _contents(split: Split) -> Iterator[memoryview]:
    """The bytes of each record: its inputs as stored, then its label."""
    for start in range(0, len(split), _CHUNK):
        inputs, labels = split.inputs[start : start + _CHUNK], split.labels[start : start + _CHUNK]
        rows = [each.flatten(1).contiguous().view(torch.uint8) for each in (inputs, labels[:, None])]
        joined = torch.cat(rows, dim=1)
        content, width = memoryview(joined.numpy().tobytes()), joined.shape[1]
        yield from (content[n * width : (n + 1) * width] for n in range(len(labels)))


def _named(keys: Keys) -> Iterator[bytes]:
    """The bytes of each user key."""
    plain = keys.tolist() if isinstance(keys, Tensor | np.ndarray) else keys
    return (key if isinstance(key, bytes) else str(key).encode() for key in plain)


def _numbers(keys: Keys) -> Tensor:
    """A number for each user that depends only on their key: 63 bits of its hash."""
    return torch.tensor([user_number(key) for key in _named(keys)], dtype=torch.int64)


def set_aside(dataset: Dataset, count: int) -> Dataset:
    """Move ``count`` test records to a split ``public`` without labels (each label is 0).

    Guaranteed: always the same records, chosen only by their place, so that a data set and its features are divided alike.
    A count of 0 changes nothing. Choosing by place is safe here: neither test nor public records are protected, and the
    training records are not touched. (`divide` hashes the content of each record instead, because it divides protected
    records.)
    """
    if count == 0:
        return dataset
    test = dataset.test
    if not 0 < count < len(test):
        raise InputError(f"{count:,} test records cannot be used as public ones: leave at least one to test on.")
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    public = test.inputs[order[:count]]
    made = {
        "test": test.select(order[count:].sort().values),
        "public": Split(public, torch.zeros(count, dtype=torch.int64)),
    }
    return replace(dataset, splits={**dataset.splits, **made})
