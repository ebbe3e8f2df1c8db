"""How long five million rows in files take to start, and what a step costs: from the files to the first private step.

python benchmarks/large.py --rows 5000000 --out benchmarks/results/large.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import feather, parquet
from torch import nn

from privet import __version__, make_private
from privet.data import ArrowRecords, MappedTensors, ParquetRecords

WIDTH, STEPS, BATCH = 8, 4, 500


def write(folder: Path, rows: int) -> None:
    """The same made-up records in three formats."""
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, WIDTH))
    generator = np.random.default_rng(0)
    for start in range(0, rows, 500_000):
        x[start : start + 500_000] = generator.random((min(500_000, rows - start), WIDTH), dtype=np.float32)
    x.flush()
    np.save(folder / "y.npy", (np.arange(rows) % 2).astype(np.int64))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), WIDTH)
    table = pa.table({"x": lists, "y": np.load(folder / "y.npy")})
    feather.write_feather(table, folder / "records.arrow", compression="uncompressed")
    parquet.write_table(table, folder / "records.parquet", row_group_size=250_000)


def measured(records: Any) -> dict[str, float]:
    """Seconds of `make_private` and of each step, the first one with its rehearsal."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    began, times = time.perf_counter(), []
    private = make_private(
        model,
        optimizer,
        records,
        batch_size=BATCH,
        steps=STEPS,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        delta=1e-8,
        seed=0,
    )
    planned = time.perf_counter() - began
    for batch in private.batches():
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return {"make_private": planned, "first_step": times[0], "later_step": (times[-1] - times[0]) / (len(times) - 1)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=5_000_000)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    found: dict[str, Any] = {
        "privet": __version__,
        "rows": given.rows,
        "threads": torch.get_num_threads(),
        "formats": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.rows)
        opened = {
            "npy": lambda: MappedTensors(folder / "x.npy", folder / "y.npy"),
            "arrow": lambda: ArrowRecords(folder / "records.arrow"),
            "parquet": lambda: ParquetRecords(folder / "records.parquet"),
        }
        for kind, open_them in opened.items():
            began = time.perf_counter()
            records = open_them()
            seconds = time.perf_counter() - began
            times = measured(records)
            start = seconds + times["first_step"]
            found["formats"][kind] = {
                name: round(value, 3) for name, value in {"open": seconds, **times, "start": start}.items()
            }
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
