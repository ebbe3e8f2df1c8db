"""A table for `privet compare`: the breast-cancer data set that comes with scikit-learn, as a CSV file with its schema.

The bounds of the columns are those of the data set's published description, not of the file.

    python benchmarks/cancer.py runs/cancer
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import yaml
from sklearn.datasets import load_breast_cancer

BOUNDS = re.compile(r"^\s*([a-z ]+) \((mean|standard error|worst)\):\s+([\d.]+)\s+([\d.]+)\s*$", re.MULTILINE)
SHORT = {"mean": "mean", "standard error": "error", "worst": "worst"}


def main(folder: Path) -> None:
    data = load_breast_cancer()
    names = [_name(str(name)) for name in data.feature_names]
    bounds = {
        f"{what} {SHORT[which]}": (float(low), float(high)) for what, which, low, high in BOUNDS.findall(data.DESCR)
    }
    classes = [str(name) for name in data.target_names]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "cancer.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "diagnosis"])
        writer.writerows(
            [*map(repr, row), classes[label]] for row, label in zip(data.data.tolist(), data.target, strict=True)
        )
    columns: dict[str, dict[str, object]] = {name: {"low": bounds[name][0], "high": bounds[name][1]} for name in names}
    schema = {"label": "diagnosis", "clip": True, "columns": columns | {"diagnosis": {"categories": classes}}}
    (folder / "cancer.yaml").write_text(yaml.safe_dump(schema, sort_keys=False), encoding="utf-8")
    print(f"{folder / 'cancer.csv'}: {len(data.data)} records of {len(names)} columns; {folder / 'cancer.yaml'}")


def _name(name: str) -> str:
    """'mean radius', 'radius error' and 'worst radius' as the description has them: 'radius mean', ..."""
    first, *rest = name.split()
    return " ".join([*rest, first]) if first in ("mean", "worst") else name


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/cancer"))
