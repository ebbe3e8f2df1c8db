"""Regression on the command line: bounds from the schema, a noisy error on the card, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from privet.cli.program import app
from privet.data import Categorical, Dataset, Numeric, Schema, Split, load
from privet.errors import InputError, PrivetError
from privet.methods.private_accuracy import PrivateAccuracy, error_exactly
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.report import RunRecord

SCHEMA = (
    "label: size\nclip: true\ncolumns:\n  a: {low: -3, high: 3}\n  b: {low: -3, high: 3}\n  size: {low: 0, high: 200}\n"
)


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(2, 2000))
    size = 100 + 20 * a - 10 * b + 5 * draw.normal(size=2000)
    rows = "\n".join(f"{one:.4f},{two:.4f},{three:.3f}" for one, two, three in zip(a, b, size, strict=True))
    (tmp_path / "sizes.csv").write_text(f"a,b,size\n{rows}\n")
    (tmp_path / "sizes.yaml").write_text(SCHEMA)
    return ["--data", f"csv:{tmp_path / 'sizes.csv'}", "--schema", str(tmp_path / "sizes.yaml")]


def privet(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_regression_from_the_table_to_the_card(table: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    # Not seed 0: there an exact error has, by chance, the four digits of the scale of the noise, which is on the card.
    done = privet("train", *table, "--epsilon", 8, "--seed", 2, "--set", "epochs=10", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    error = json.loads(done.stdout)["error"]
    assert error["noise"] > 0 and error["low"] <= error["error"] <= error["high"]
    assert error["constant"] == pytest.approx(
        23, rel=0.35
    )  # the standard deviation, sqrt(20^2 + 10^2 + 5^2), with noise
    assert error["error"] < error["constant"]
    card, record = (out / "CARD.md").read_text(), RunRecord.read(out)
    assert "tabular-regression" in card and "The best constant has an error of" in card
    assert "The target is size, a number." in card
    exact = {name: value for name, value in record.internal.items() if "exactly" in name}
    numbers = re.findall(
        r"[\d.]*\d", re.sub(r"[\d.]+ (?:kB|MB|bytes)", "", card)
    )  # the size of a file may have the same digits
    assert len(exact) == 2 and not set(exact.values()) & set(numbers)
    assert "proved" in str(record.spent(record.open_ledger(out)))
    assert record.attack is not None and record.attack.key == "loss" and 0.4 < record.attack.auc < 0.6
    page = (out / "report.html").read_text()
    assert "Error for size on the records" in page
    again = privet("attack", out, "--attack", "loss")
    assert again.exit_code == 0, again.output
    refused = privet("attack", out, "--attack", "lira")
    assert refused.exit_code == 2 and "this model predicts a number" in refused.output


def test_what_is_for_classes_is_refused_before_anything_is_spent(table: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    for words, said in (
        (
            ("train", "--method", "optimized-noise"),
            "is for classes, and size is a number, which the method dpsgd can learn",
        ),
        (("synthesize",), "is for classes, and size is a number"),
        (("compare",), "A comparison ranks methods by their accuracy"),
        (("tune", "--set", "clip=0.1,1"), "A tuning chooses by the accuracy"),
    ):
        done = privet(words[0], *table, *words[1:], "--out", out)
        assert done.exit_code == 2, (words, done.output)
        assert said in " ".join(done.output.split()), done.output
        assert not (out / "ledger.jsonl").exists()


def test_targets_are_scaled_by_their_bounds_and_outside_them_refused(table: list[str], tmp_path: Path) -> None:
    data = load(table[1], schema=table[3])
    first = float((tmp_path / "sizes.csv").read_text().splitlines()[1].split(",")[2])
    assert data.train.labels.dtype == torch.float32
    assert float(data.train.labels[0]) == pytest.approx(first / 200, abs=1e-6)
    assert data.classes == () and data.outputs == 1 and data.target == Numeric("size", 0, 200)
    narrow = Schema((Numeric("a", -9, 9), Numeric("b", -9, 9), Numeric("size", 99, 101)), "size")
    with pytest.raises(InputError, match="column 'size': the value is outside the bounds 99 to 101"):
        load(table[1], schema=narrow)
    with pytest.raises(InputError, match="targets must be in"):
        Split(torch.zeros(2, 1), torch.tensor([0.5, 1.5]))
    with pytest.raises(InputError, match="need a target"):
        Dataset("none", (), {"train": Split(torch.zeros(2, 1), torch.tensor([0.5, 1.0]))})
    with pytest.raises(InputError, match="need a target"):
        Dataset("none", ("a",), {"train": Split(torch.zeros(2, 1), torch.zeros(2).long())}, target=Numeric("t", 0, 1))
    assert Schema((Numeric("a", 0, 1), Categorical("b", ("x", "y"))), "b").target is None


def test_the_noisy_error_is_that_of_the_records_and_no_record_moves_it_by_more_than_its_share() -> None:
    draw = torch.Generator().manual_seed(0)
    targets = torch.rand(20_000, generator=draw)
    predicted = targets + 0.1 * torch.randn(20_000, generator=draw)
    plan, ledger = PrivateAccuracy(2.0), Ledger()
    with pytest.raises(PrivetError, match="must be charged"):
        plan.read_error(predicted, targets, 10.0, ledger=ledger, randomness=Randomness.of(0))
    plan.charge(ledger)
    found = plan.read_error(predicted, targets, 10.0, ledger=ledger, randomness=Randomness.of(0))
    exact = error_exactly(predicted, targets, 10.0)
    assert found.error == pytest.approx(exact.error, rel=0.02) and found.low < exact.error < found.high
    assert found.constant == pytest.approx(exact.constant, rel=0.02)
    assert exact.error == pytest.approx(1.0, rel=0.03) and exact.constant == pytest.approx(10 / 12**0.5, rel=0.02)
    # The same noise with and without one record: the sums may differ by one record's share alone.
    sums = []

    def noted(self: Any, total: Any, source: Any) -> Any:
        sums.append(total.tensors["sum"])
        return {"sum": total.tensors["sum"]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privet.methods.private_accuracy.GaussianNoise.add", noted)
        for worst in (1e30, float("nan"), -5.0, float("inf")):
            with_it = torch.cat([predicted, torch.tensor([worst])]), torch.cat([targets, torch.tensor([1.0])])
            for one, two in ((predicted, targets), with_it):
                plan.read_error(one, two, 10.0, ledger=ledger, randomness=Randomness.of(0))
            assert (sums[-1] - sums[-2]).norm() <= 1
            assert (sums[-1] - sums[-2])[0] > 0.49  # it counts: a prediction that is no number does not hide


def test_so_few_records_that_the_noise_hides_them_say_nothing() -> None:
    plan, ledger = PrivateAccuracy(50.0), Ledger()
    plan.charge(ledger)
    found = [
        plan.read_error(torch.zeros(3), torch.zeros(3), 1.0, ledger=ledger, randomness=Randomness.of(seed))
        for seed in range(20)
    ]
    assert all(one.low == 0.0 and one.high <= 0.5 for one in found)
