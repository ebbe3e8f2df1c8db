"""How long a CSV file of a million rows takes to load, and in how much memory.

    PYTHONPATH=src python benchmarks/read_csv.py [--rows 1000000]

The file has two numbers, two columns of categories and a label, about 20 bytes in each row. It is read in a process of its own
with pyarrow, without it, and from Parquet; `load` and the division into training and test records are timed separately. The
memory is the peak of that process above its memory before, when it had read a file of a few rows. (Linux counts the peak anew
when asked; elsewhere the peak of `resource.getrusage` is taken, of which imports are a part.)
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from engine import RESULTS, machine

SCHEMA = {
    "label": "income",
    "columns": {
        "age": {"low": 0, "high": 120},
        "hours": {"low": 0, "high": 100},
        "work": {"categories": ["none", "public", "own"]},
        "region": {"categories": ["n", "s", "w"]},
        "income": {"categories": ["lo", "hi"]},
    },
}
WAYS = ("pyarrow", "own", "parquet")


def write(path: Path, rows: int) -> None:
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        file.write("age,hours,work,region,income\n")
        for _ in range(rows):
            work, region, income = draw.choice(("none", "public", "own")), draw.choice("nsw"), draw.choice(("lo", "hi"))
            file.write(f"{draw.randrange(100)},{100 * draw.random():.2f},{work},{region},{income}\n")


def status(field: str) -> int:
    """VmRSS, the memory of this process in bytes, or VmHWM, its peak."""
    for line in Path("/proc/self/status").read_text().splitlines() if sys.platform == "linux" else ():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    return (1 if sys.platform == "darwin" else 1024) * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def loaded(way: str, path: Path, schema: Path) -> dict[str, float]:
    """Load one file in this process."""
    if way == "own":
        sys.modules["pyarrow"] = None  # type: ignore[assignment]
    else:
        import pyarrow.csv
        import pyarrow.parquet  # noqa: F401

    from privet.data import load, with_test_records

    told: list[float] = []
    spec = f"{'parquet' if way == 'parquet' else 'csv'}:{path}"
    with_test_records(load(spec.replace("large", "small"), schema=schema), spec)
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
    base, begin = status("VmRSS"), time.perf_counter()
    dataset = load(spec, schema=schema, progress=lambda *_: told.append(time.perf_counter()))
    seconds, first = time.perf_counter() - begin, status("VmHWM")
    begin_divide = time.perf_counter()
    with_test_records(dataset, spec)
    return {
        "rows": len(dataset),
        "load_seconds": round(seconds, 2),
        "divide_seconds": round(time.perf_counter() - begin_divide, 2),
        "load_bytes": first - base,
        "all_bytes": status("VmHWM") - base,
        "longest_silence": round(max(b - a for a, b in zip([begin, *told], [*told, begin + seconds], strict=True)), 2),
        "result_bytes": sum(part.inputs.nbytes + part.labels.nbytes for part in dataset.splits.values()),
    }


def measured(way: str, path: Path, schema: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", way, str(path), str(schema)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(loaded(asked.one[0], *map(Path, asked.one[1:]))))
        return
    lines = [f"<!-- python benchmarks/read_csv.py --rows {asked.rows}; {machine()} -->", ""]
    lines += ["| way | file | load | silent at most | divide | memory of load | with the division | of it the result |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "schema.json").write_text(json.dumps(SCHEMA))
        for name, rows in (("large", asked.rows), ("small", 100)):
            write(folder / f"{name}.csv", rows)
            _to_parquet(folder / f"{name}.csv")
        size = (folder / "large.csv").stat().st_size
        for way in WAYS:
            suffix = "parquet" if way == "parquet" else "csv"
            large = measured(way, folder / f"large.{suffix}", folder / "schema.json")
            load, whole = large["load_bytes"], large["all_bytes"]
            lines.append(
                f"| {way} | {(folder / f'large.{suffix}').stat().st_size / 1e6:.1f} MB | {large['load_seconds']} s | "
                f"{large['longest_silence']} s | {large['divide_seconds']} s | {load / 1e6:.0f} MB, {load / size:.1f} times "
                f"the CSV | {whole / 1e6:.0f} MB, {whole / size:.1f} times | {large['result_bytes'] / 1e6:.0f} MB |"
            )
    print("\n".join(lines))
    if asked.rows == parser.get_default("rows"):
        (RESULTS / "read_csv.md").write_text("\n".join(lines) + "\n")


def _to_parquet(path: Path) -> None:
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(path), path.with_suffix(".parquet"))


if __name__ == "__main__":
    main()
