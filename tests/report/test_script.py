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

from privet.cli import app
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
        dataclasses.replace(record.model, name="py:mine:Net"),
        dataclasses.replace(record.model, weights=""),
        dataclasses.replace(record.model, arguments={"a); import os; (b": 1}),
    ):
        changed = dataclasses.replace(record, model=summary)
        made = card(changed, ledger)
        assert made["model"]["script"] == []
        assert "How to use it" not in markdown(changed, made)
