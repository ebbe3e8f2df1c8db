"""The script on a card loads the release and predicts, in a Python that cannot import Privet."""

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import privet
from privet.cli import app
from privet.data import load
from privet.io.names import MODEL_CODE
from privet.report import RunRecord, write_card
from privet.report.card import card, markdown
from privet.report.record import load_model

SCRIPT = re.compile(r"## How to use it\n.*?```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "digits"
    told = CliRunner().invoke(
        app, ["train", "--data", "digits", "--epsilon", "3", "--set", "epochs=1", "--out", str(out)]
    )
    assert told.exit_code == 0, told.output
    return out


@pytest.fixture
def release(finished_run: Path, tmp_path: Path) -> Path:
    """What leaves the building: the card, the weights and the file of the model."""
    write_card(finished_run)
    for name in ("CARD.md", "model.safetensors", MODEL_CODE):
        shutil.copy(finished_run / name, tmp_path / name)
    return tmp_path


def test_the_five_lines_on_the_card_predict_without_privet(release: Path, finished_run: Path) -> None:
    found = SCRIPT.search((release / "CARD.md").read_text(encoding="utf-8"))
    assert found is not None
    lines = found[1].strip().splitlines()
    assert len(lines) == 5
    before = ["import sys", "sys.modules['privet'] = None  # it cannot be imported", "sys.path.insert(0, '.')"]
    (release / "script.py").write_text("\n".join([*before, lines[0], "torch.manual_seed(7)", *lines[1:]]))
    ran = subprocess.run([sys.executable, "-I", "script.py"], cwd=release, capture_output=True, text=True, check=True)
    record = RunRecord.read(finished_run)
    torch.manual_seed(7)
    model = load_model(record, finished_run).eval()  # draws first weights, as the script does, and then the record
    expected = model(torch.rand(1, *record.data.shape)).softmax(-1)
    assert ran.stdout.strip() == str(expected)


def test_what_cannot_be_used_without_privet_has_no_script(finished_run: Path) -> None:
    record = RunRecord.read(finished_run)
    ledger = record.open_ledger(finished_run)
    for summary in (
        dataclasses.replace(record.model, name="py:mine:Net; import os"),
        dataclasses.replace(record.model, name="narrow"),
        dataclasses.replace(record.model, weights=""),
        dataclasses.replace(record.model, arguments={"a); import os; (b": 1}),
    ):
        changed = dataclasses.replace(record, model=summary)
        made = card(changed, ledger)
        assert made["model"]["script"] == []
        found = SCRIPT.search(markdown(changed, made))
        assert (found is not None) == bool(summary.weights)
        assert found is None or ("model.load_state_dict(" in found[1] and "os" not in found[1].replace("torch", ""))


def predicted(folder: Path, place: str = "") -> str:
    """What the script on the card prints, in a Python without Privet; `place` holds the module of the user's model."""
    found = SCRIPT.search((folder / "CARD.md").read_text(encoding="utf-8"))
    assert found is not None
    lines = found[1].strip().splitlines()
    assert len(lines) == 5
    before = ["import sys", "sys.modules['privet'] = None", f"sys.path[:0] = ['.', {place!r}]"]
    (folder / "script.py").write_text("\n".join([*before, lines[0], "torch.manual_seed(7)", *lines[1:]]))
    ran = subprocess.run([sys.executable, "-I", "script.py"], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_a_model_of_ones_own_is_imported_from_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours.py").write_text(
        "from torch import nn\n\n\nclass Small(nn.Module):\n"
        "    def __init__(self, inputs, classes):\n        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))\n\n    def forward(self, x):\n"
        "        return self.layers(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(
        app,
        [
            "train",
            "--data",
            "digits",
            "--model",
            "py:ours:Small",
            "--epsilon",
            "3",
            "--set",
            "epochs=1",
            "--out",
            "run",
        ],
    )
    assert told.exit_code == 0, told.output
    run = tmp_path / "run"
    torch.manual_seed(7)
    model = load_model(RunRecord.read(run), run, "py:ours:Small").eval()
    assert predicted(run, str(tmp_path)) == str(model(torch.rand(1, 1, 8, 8)).softmax(-1))
    assert "the module `ours` of those who trained the model" in (run / "CARD.md").read_text()


def test_a_regression_is_predicted_in_the_unit_of_its_target(tmp_path: Path) -> None:
    rows = "\n".join(f"{n / 20},{100 + n / 5}" for n in range(200))
    (tmp_path / "rows.csv").write_text(f"x,y\n{rows}\n")
    (tmp_path / "rows.yaml").write_text("label: y\ncolumns:\n  x: {low: 0, high: 10}\n  y: {low: 100, high: 150}\n")
    told = CliRunner().invoke(
        app,
        ["train", "--data", f"csv:{tmp_path}/rows.csv", "--schema", f"{tmp_path}/rows.yaml", "--epsilon", "8",
         "--hold-out", "0.25", "--out", f"{tmp_path}/run"],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    run = tmp_path / "run"
    torch.manual_seed(7)
    model = load_model(RunRecord.read(run), run).eval()
    assert predicted(run) == str(100 + 50 * model(torch.rand(1, 1)))
    assert "It prints the prediction of y." in (run / "CARD.md").read_text()


def test_the_weights_of_a_loop_of_ones_own_load_without_privet(tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = load("digits").train.tensors
    private = privet.make_private(
        model, optimizer, torch.utils.data.TensorDataset(x.flatten(1), y), batch_size=100, steps=2, epsilon=3.0, delta=1e-5,
        max_grad_norm=1.0, folder=tmp_path / "run",
    )  # fmt: skip
    for rows, labels in private.batches():
        private.step(torch.nn.functional.cross_entropy(model(rows), labels, reduction="none"))
    private.close()
    told = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert told.exit_code == 0, told.output
    found = SCRIPT.search((tmp_path / "run" / "CARD.md").read_text(encoding="utf-8"))
    assert found is not None
    script = ["import sys", "sys.modules['privet'] = None", "import torch", "model = torch.nn.Linear(64, 10)", found[1]]
    (tmp_path / "run" / "script.py").write_text("\n".join([*script, "print(model.weight.sum().item())"]))
    ran = subprocess.run(
        [sys.executable, "-I", "script.py"], cwd=tmp_path / "run", capture_output=True, text=True, check=True
    )
    assert float(ran.stdout) == model.weight.sum().item()
