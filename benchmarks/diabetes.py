"""Private regression of scikit-learn's diabetes data: the error beside that of a constant and of a regression without privacy.

    python benchmarks/diabetes.py            # writes diabetes.csv and diabetes.yaml, and prints the table of docs/scikit-learn.md
    python benchmarks/diabetes.py --choose   # the settings of the recipe `regression`, chosen on training records alone

The table is measured on a quarter of the records. `--choose` never sees that quarter: it divides the other three quarters into
four folds, which are held out in turn.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression

from privet.data import Dataset, divide
from privet.methods import Context, DataSpec, Task, TrainedModel, method_for
from privet.methods.preparation import scores
from privet.methods.private_accuracy import error_exactly

BOUNDS = {
    "age": (18, 80), "sex": (1, 2), "bmi": (15, 45), "bp": (60, 140), "s1": (90, 310), "s2": (40, 250), "s3": (20, 100),
    "s4": (1, 10), "s5": (3, 6.5), "s6": (50, 130), "progression": (25, 350),
}  # fmt: skip
"""Round bounds, wide enough for adults; values outside are moved to the nearer bound."""


def write(folder: Path) -> None:
    """The data as a CSV file, with its schema."""
    data = load_diabetes(scaled=False)
    with (folder / "diabetes.csv").open("w", newline="") as file:
        rows = ([*map(float, row), float(target)] for row, target in zip(data.data, data.target, strict=True))
        csv.writer(file).writerows([[*data.feature_names, "progression"], *rows])
    columns = [f"  {name}: {{low: {low}, high: {high}}}" for name, (low, high) in BOUNDS.items()]
    (folder / "diabetes.yaml").write_text("\n".join(["label: progression", "clip: true", "columns:", *columns]) + "\n")


CANDIDATES: Mapping[str, tuple[Any, ...]] = {
    "clip": (0.05, 0.1, 0.2, 0.5), "learning_rate": (0.3, 1.0, 3.0), "epochs": (10, 20, 40), "average": (0.0, 0.98),
}  # fmt: skip
START: Mapping[str, Any] = {"clip": 0.1, "learning_rate": 1.0, "epochs": 20, "average": 0.0}
"""Before anything is chosen: inputs and target are in [0, 1], so gradients of records are small; the others by convention."""


def error(spec: DataSpec, dataset: Dataset, epsilon: float, seed: int, given: Mapping[str, Any]) -> float:
    """The root mean squared error on the test part of one private training."""
    task = Task.of(spec, dataset, epsilon, 1e-5, seed=seed)
    method = method_for("dpsgd", task, given)
    release = method.fit(task, Context.in_memory(method, task)).release
    assert isinstance(release, TrainedModel) and dataset.target is not None
    span, test = dataset.target.high - dataset.target.low, dataset.test
    return error_exactly(scores(release.part, test)[:, 0], test.labels, span).error


def choose(spec: DataSpec, dataset: Dataset, epsilon: float, seeds: int) -> None:
    """Choose one setting after the other, by the mean error on folds of the training records."""
    names = [f"fold{fold}" for fold in range(4)]
    train = replace(dataset, splits={"train": dataset.train})
    parts = divide(train, "train", dict.fromkeys(names, 0.25), 1)
    folds = []
    for held in names:
        others = torch.utils.data.ConcatDataset([parts.splits[name] for name in names if name != held])
        rows = [others[place] for place in range(len(others))]
        kept = replace(
            dataset.train, inputs=torch.stack([x for x, _ in rows]), labels=torch.stack([y for _, y in rows])
        )
        folds.append(replace(dataset, splits={"train": kept, "test": parts.splits[held]}, public_size=len(kept)))
    chosen = dict(START)
    print(f"epsilon {epsilon:g}, {len(dataset.train)} training records in four folds, {seeds} seeds each\n")
    print("| setting | error on the folds | chosen |\n|---|---|---|")
    for name, values in CANDIDATES.items():
        found = {}
        for value in values:
            given = {**chosen, name: value}
            found[value] = statistics.fmean(
                error(spec, fold, epsilon, seed, given) for fold in folds for seed in range(seeds)
            )
        chosen[name] = min(found, key=lambda value: found[value])
        shown = ", ".join(f"{value}: {each:.2f}" for value, each in found.items())
        print(f"| {name} | {shown} | {chosen[name]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only-write", action="store_true", help="write the files, and measure nothing")
    parser.add_argument(
        "--choose", action="store_true", help="choose the settings of the recipe, and measure nothing else"
    )
    asked = parser.parse_args()
    write(Path())
    if asked.only_write:
        return
    spec = DataSpec("csv:diabetes.csv", "diabetes.yaml", hold_out=0.25)
    dataset = spec.load()
    assert dataset.target is not None
    if asked.choose:
        choose(spec, dataset, 3.0, asked.seeds)
        return
    span, test = dataset.target.high - dataset.target.low, dataset.test
    plain = LinearRegression().fit(dataset.train.inputs.numpy(), dataset.train.labels.numpy())
    without = error_exactly(test.labels.new_tensor(plain.predict(test.inputs.numpy())), test.labels, span)
    print("| model | epsilon | root mean squared error | seconds of processor time |\n|---|---|---|---|")
    print(
        f"| the best constant | | {without.constant:.1f} | |\n| linear regression without privacy | | {without.error:.1f} | |"
    )
    for epsilon in (8.0, 3.0, 1.0):
        errors, seconds = [], []
        for seed in range(asked.seeds):
            began = time.process_time()
            errors.append(error(spec, dataset, epsilon, seed, {}))
            seconds.append(time.process_time() - began)
        spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
        shown = f"{statistics.fmean(errors):.1f} ± {spread:.1f}"
        print(f"| `privet train`, recipe regression | {epsilon:g} | {shown} | {statistics.fmean(seconds):.0f} |")


if __name__ == "__main__":
    main()
