"""Records larger than memory: the same records as in memory, the same draws, bounded memory, users, hold-outs, and refusals."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather, parquet
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from privet import make_private
from privet.data import ArrowRecords, MappedTensors, ParquetRecords, TarRecords, divide_records
from privet.errors import InputError

N = 90
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 2
USERS = np.arange(N) // 3


def table(rows: slice) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X[rows].numpy().ravel()), 3)
    return pa.table({"x": lists, "y": Y[rows].numpy(), "who": USERS[rows]})


def arrow(folder: Path) -> ArrowRecords:
    feather.write_feather(table(slice(0, 40)), folder / "a.arrow", compression="uncompressed", chunksize=16)
    feather.write_feather(table(slice(40, N)), folder / "b.arrow", compression="uncompressed", chunksize=16)
    return ArrowRecords(folder, ["x", "y"])


def in_parquet(folder: Path) -> ParquetRecords:
    parquet.write_table(table(slice(0, 40)), folder / "a.parquet", row_group_size=16)
    parquet.write_table(table(slice(40, N)), folder / "b.parquet", row_group_size=16)
    return ParquetRecords(folder, ["x", "y"], window=40 * 20)  # a window holds 40 records of 20 bytes


def mapped(folder: Path) -> MappedTensors:
    np.save(folder / "x.npy", X.numpy())
    save_file({"other": torch.zeros(7), "y": Y}, folder / "y.safetensors")
    return MappedTensors(folder / "x.npy", (folder / "y.safetensors", "y"))


def in_tar(folder: Path) -> TarRecords:
    for name, rows in (("a", range(40)), ("b", range(40, N))):
        with tarfile.open(folder / f"{name}.tar", "w") as shard:
            for row in rows:
                content = io.BytesIO()
                np.save(content, X[row].numpy())
                for part, data in (("npy", content.getvalue()), ("cls", str(int(Y[row])).encode())):
                    about = tarfile.TarInfo(f"{row:05}.{part}")
                    about.size = len(data)
                    shard.addfile(about, io.BytesIO(data))
    return TarRecords(folder, ("npy", "cls"))


KINDS = [arrow, in_parquet, mapped, in_tar]


def pair(batch) -> tuple[torch.Tensor, torch.Tensor]:
    return (batch["x"], batch["y"]) if isinstance(batch, dict) else tuple(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_found_by_their_place(kind, tmp_path):
    records = kind(tmp_path)
    assert len(records) == N
    for places in ([3, 88, 41, 3, 0], [], list(range(N))):
        x, y = pair(records.batch(torch.tensor(places, dtype=torch.int64)))
        assert torch.equal(x, X[places]) and torch.equal(y, Y[places])
    one = records[77]
    assert torch.equal(pair({k: v[None] for k, v in one.items()} if isinstance(one, dict) else one)[0].view(-1), X[77])
    some = records.select([5, 60]).select([1])
    assert len(some) == 1 and torch.equal(pair(some.batch([0]))[0], X[60:61])
    assert some.fingerprint != records.fingerprint == kind(tmp_path).fingerprint
    with pytest.raises(IndexError):
        records[N]


def trained(dataset, **more) -> tuple[torch.Tensor, list[int]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    settings = {"batch_size": 12, "steps": 8, "noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "seed": 4}
    private, sizes = make_private(model, optimizer, dataset, **settings | more), []
    for batch in private.batches():
        x, y = pair(batch)
        sizes.append(len(x))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.weight.detach(), sizes


@pytest.mark.parametrize("kind", KINDS)
def test_training_draws_the_same_records_as_from_memory(kind, tmp_path):
    weights, sizes = trained(kind(tmp_path))
    expected, there = trained(TensorDataset(X, Y))
    assert sizes == there and torch.equal(weights, expected)


@pytest.mark.parametrize("kind", [arrow, in_parquet])
def test_a_column_names_the_users(kind, tmp_path):
    kind(tmp_path)
    records = (ArrowRecords if kind is arrow else ParquetRecords)(tmp_path)
    weights, sizes = trained(records, users="who", batch_size=6)
    expected, there = trained(TensorDataset(X, Y), users=USERS, batch_size=6)
    assert sizes == there and torch.equal(weights, expected)


def test_one_pass_for_each_window(tmp_path, monkeypatch):
    records, passes = in_parquet(tmp_path), []
    gather = ParquetRecords._gather
    monkeypatch.setattr(ParquetRecords, "_gather", lambda self, rows: passes.append(len(rows)) or gather(self, rows))
    asked = [torch.randperm(N)[:size] for size in (10, 0, 25, 30, 60, 5)]
    for places, batch in zip(asked, records.windows(iter(asked)), strict=True):
        assert torch.equal(batch["x"], X[places]) and torch.equal(batch["y"], Y[places])
    assert passes == [35, 30, 60, 5]  # never more than the 40 records of a window, but for a batch that is larger


@pytest.mark.parametrize("kind", KINDS)
def test_a_hold_out_by_content_does_not_depend_on_other_records(kind, tmp_path):
    records = kind(tmp_path)
    parts = divide_records(records, {"train": 0.7, "test": 0.3})
    assert sorted(len(part) for part in parts.values()) == sorted([len(parts["train"]), N - len(parts["train"])])
    fewer = divide_records(records.select(range(1, N)), {"train": 0.7, "test": 0.3})
    for name in parts:
        with_it, without = (
            {tuple(row) for row in pair(next(each[name].chunks()))[0].tolist()} for each in (parts, fewer)
        )
        assert without <= with_it and len(with_it - without) <= 1


def test_what_cannot_be_used_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "p").mkdir()
    records = in_parquet(tmp_path / "p")
    with pytest.raises(InputError, match="without a loader, or convert the files to Arrow"):
        trained(DataLoader(records, 12, collate_fn=lambda rows: torch.utils.data.default_collate(rows)))
    with pytest.raises(InputError, match="no column 'z'"):
        ParquetRecords(tmp_path / "p", ["z"])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="not a Parquet file"):
        ParquetRecords(tmp_path / "bad.parquet")
    (tmp_path / "bad.arrow").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not an Arrow file"):
        ArrowRecords(tmp_path / "bad.arrow")
    (tmp_path / "bad.tar").write_bytes(b"nothing" * 1000)
    with pytest.raises(InputError, match=r"not an uncompressed \.tar"):
        TarRecords(tmp_path / "bad.tar", ("npy",))
    np.save(tmp_path / "one.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be mapped"):
        MappedTensors(tmp_path / "one.npy")
    with pytest.raises(InputError, match="different lengths"):
        mapped(tmp_path)
        np.save(tmp_path / "z.npy", np.zeros(3))
        MappedTensors(tmp_path / "x.npy", tmp_path / "z.npy")


def test_the_index_of_a_shard_is_kept_and_made_anew_for_another_shard(tmp_path, monkeypatch):
    in_tar(tmp_path)
    monkeypatch.setattr("privet.data.large._found_in", lambda *_: pytest.fail("the headers are read again"))
    assert torch.equal(TarRecords(tmp_path, ("npy", "cls")).batch([50])[0], X[50:51])
    monkeypatch.undo()
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        about = tarfile.TarInfo("0.cls")
        about.size = 1
        shard.addfile(about, io.BytesIO(b"1"))
    with pytest.raises(InputError, match=r"has no part \.npy"):
        TarRecords(tmp_path, ("npy", "cls"))


LIMITED = """
import resource, sys
limit = int(sys.argv[2]) << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
import numpy as np, torch
torch.set_num_threads(1)
from torch import nn
import privet
from privet.data import MappedTensors
folder = sys.argv[1]
records = MappedTensors(f"{folder}/x.npy", f"{folder}/y.npy")
model = nn.Linear(1024, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
private = privet.make_private(model, optimizer, records, batch_size=100, steps=3, noise_multiplier=1.0, max_grad_norm=1.0,
                              delta=1e-7, seed=0)
for x, y in private.batches():
    optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()
print("trained", len(private.ledger))
try:
    np.array(np.load(f"{folder}/x.npy", mmap_mode="r"))
except MemoryError:
    print("the limit holds")
"""


@pytest.mark.slow
def test_training_on_data_ten_times_the_memory_limit(tmp_path):
    """The limit of the data segment is 400 MiB; the records have ten times as many bytes, zeros in a sparse file."""
    limit, rows = 400, 10 * 400 * 2**20 // 4096 + 1
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (rows, 1024)).flush()
    np.save(tmp_path / "y.npy", np.arange(rows) % 2)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    made = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(limit)], env=environment, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == ["trained 3", "the limit holds"]
