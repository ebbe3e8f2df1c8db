"""Private regression of scikit-learn's diabetes data: the error beside that of a constant and of a regression without privacy.

python benchmarks/diabetes.py            # writes diabetes.csv and diabetes.yaml, and prints the table of docs/scikit-learn.md
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from pathlib import Path

from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only-write", action="store_true", help="write the files, and measure nothing")
    asked = parser.parse_args()
    write(Path())
    if asked.only_write:
        return
    spec = DataSpec("csv:diabetes.csv", "diabetes.yaml", hold_out=0.25)
    dataset = spec.load()
    assert dataset.target is not None
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
            task = Task.of(spec, dataset, epsilon, 1e-5, seed=seed)
            method, began = method_for("dpsgd", task), time.process_time()
            release = method.fit(task, Context.in_memory(method, task)).release
            seconds.append(time.process_time() - began)
            assert isinstance(release, TrainedModel)
            errors.append(error_exactly(scores(release.part, test)[:, 0], test.labels, span).error)
        spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
        shown = f"{statistics.fmean(errors):.1f} ± {spread:.1f}"
        print(f"| `privet train`, recipe regression | {epsilon:g} | {shown} | {statistics.fmean(seconds):.0f} |")


if __name__ == "__main__":
    main()
