import gzip
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from privet.data import load
from privet.data.idx import MAP_FROM_BYTES, read_idx, write_idx
from privet.errors import InputError

KINDS = st.sampled_from(["u1", "i1", "i2", "i4", "f4", "f8"])


def arrays() -> st.SearchStrategy[NDArray[np.generic]]:
    def of(kind: str) -> st.SearchStrategy[NDArray[np.generic]]:
        shape = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)
        elements = {"allow_nan": False, "allow_infinity": False} if kind.startswith("f") else None
        return hnp.arrays(np.dtype(kind), shape, elements=elements)

    return KINDS.flatmap(of)


@given(arrays(), st.booleans())
def test_round_trip(values: NDArray[np.generic], zipped: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values"
        write_idx(path, values)
        if zipped:
            path.write_bytes(gzip.compress(path.read_bytes()))
        back = read_idx(path)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


@given(arrays(), st.data())
def test_no_cut_and_no_surplus_passes(values: NDArray[np.generic], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values"
        write_idx(path, values)
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(InputError):
            read_idx(path)
        path.write_bytes(whole + b"x")
        with pytest.raises(InputError, match="has more bytes"):
            read_idx(path)


@given(st.binary(max_size=64))
def test_any_bytes_give_an_array_or_an_input_error(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values"
        path.write_bytes(raw)
        with suppress(InputError):
            assert read_idx(path).size


def test_large_files_are_mapped_and_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "large"
    write_idx(path, np.zeros((MAP_FROM_BYTES // 16, 4, 4), dtype=np.uint8))
    before = path.read_bytes()
    mapped = read_idx(path)
    assert isinstance(mapped, np.memmap)
    torch.from_numpy(mapped).add_(1)
    del mapped
    assert path.read_bytes() == before


def test_a_header_that_promises_the_world_takes_no_memory(tmp_path: Path) -> None:
    raw = b"\0\0\x08\x03" + b"\xff" * 12
    for content in (raw, gzip.compress(raw)):
        (tmp_path / "huge").write_bytes(content)
        with pytest.raises(InputError, match="truncated"):
            read_idx(tmp_path / "huge")


def pair(folder: Path, prefix: str, end: str = "") -> None:
    folder.mkdir(exist_ok=True)
    write_idx(folder / f"{prefix}-images{end or '-idx3-ubyte'}", np.ones((3, 4, 4), dtype=np.uint8))
    write_idx(folder / f"{prefix}-labels{end or '-idx1-ubyte'}", np.array([0, 9, 4], dtype=np.uint8))


def test_a_folder_has_the_splits_that_are_there(tmp_path: Path) -> None:
    pair(tmp_path / "mine", "train")
    assert list(load(f"idx:{tmp_path}/mine").splits) == ["train"]
    pair(tmp_path / "mine", "t10k")
    dataset = load(f"idx:{tmp_path}/mine")
    assert list(dataset.splits) == ["train", "test"]
    assert dataset.name == "mine"
    assert dataset.classes == tuple("0123456789")


def test_one_file_finds_its_labels(tmp_path: Path) -> None:
    pair(tmp_path, "mine", ".idx")
    dataset = load(f"idx:{tmp_path}/mine-images.idx", classes=[f"c{n}" for n in range(12)])
    assert dataset.train.labels.tolist() == [0, 9, 4]
    assert len(dataset.classes) == 12


def test_idx_cannot_hold_everything(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="IDX cannot store int64"):
        write_idx(tmp_path / "x", np.zeros(3, dtype=np.int64))
