"""A user's own loop: `make_private(..., folder=...)` leaves a run that can be reported, attacked and audited."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import privet
from privet.cli import app
from privet.errors import InputError
from privet.report import RunRecord

QUICK = ["--draws", "400", "--canaries", "100"]
MODULE = """
import torch
from torch import nn

from privet.data import load as load_data


class Net(nn.Module):
    def __init__(self, classes: int = 10, hidden: int = 16):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.layers(x)


def load():
    digits = load_data("digits")
    return digits.train.tensors, digits.test.tensors


def other():
    (x, y), test = load()
    return (x.flip(0), y.flip(0)), test
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The user's package in the current folder, imported as Python does."""
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "module.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["privet"])
    for name in ("mypackage", "mypackage.module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import mypackage.module

    yield mypackage.module
    for name in ("mypackage", "mypackage.module"):
        sys.modules.pop(name, None)


def trained(mine, records, **more):
    """A loop of three steps in runs/own."""
    model = mine.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = privet.make_private(
        model,
        optimizer,
        records,
        batch_size=144,
        steps=3,
        epsilon=3.0,
        delta=1e-5,
        max_grad_norm=1.0,
        folder="runs/own",
        **more,
    )
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    return private


def said(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


FORMS = {
    "split": lambda mine: privet.data.load("digits").train,
    "tensors": lambda mine: TensorDataset(*mine.load()[0]),
    "list": lambda mine: list(zip(mine.load()[0][0], mine.load()[0][1].tolist(), strict=True)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_loop_is_reported_attacked_and_audited(mine, form):
    trained(mine, FORMS[form](mine)).close()
    assert "epsilon = 3 at delta = 1e-05" in said("account", "runs/own")
    assert "epsilon = 3 at delta = 1e-05" in said("report", "runs/own", "--contact", "me")
    own = ["--data", "py:mypackage.module:load", "--model", "py:mypackage.module:Net"]
    with pytest.warns(privet.errors.PrivetWarning, match="does not name its classes"):
        assert "AUC" in said("attack", "runs/own", *own)
    audits = json.loads(said("audit", "runs/own", *QUICK, "--json", *own[2:]))
    assert any("its model with its weights" in audit["audited"] for audit in audits)
    assert not any(audit["refuted"] for audit in audits)
    record = RunRecord.read(Path("runs/own"))
    assert [attack.key for attack in record.attacks] == ["loss"]
    assert len(record.audits) == len(audits)
    assert record.stated.contact == "me"


def test_without_the_users_word_no_code_of_theirs_is_imported(mine):
    trained(mine, FORMS["split"](mine)).close()
    del sys.modules["mypackage.module"]
    (audits := json.loads(said("audit", "runs/own", *QUICK, "--json")))
    assert "mypackage.module" not in sys.modules
    assert all("the run's model" in audit["not_audited"] for audit in audits)
    assert all(audit["verdict"].startswith("consistent for the parts") for audit in audits)
    assert "name its records with --data" in said("attack", "runs/own", code=2)
    with pytest.warns(privet.errors.PrivetWarning, match="does not name its classes"):
        assert "name it yourself" in said("attack", "runs/own", "--data", "py:mypackage.module:load", code=2)


def test_other_records_are_not_taken_for_members(mine):
    trained(mine, FORMS["tensors"](mine)).close()
    own = ["--data", "py:mypackage.module:other", "--model", "py:mypackage.module:Net"]
    with pytest.warns(privet.errors.PrivetWarning, match="does not name its classes"):
        assert "other records" in said("attack", "runs/own", *own, code=2)


def test_a_report_needs_a_folder_and_a_step(mine):
    model = mine.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"batch_size": 144, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0}
    private = privet.make_private(model, optimizer, FORMS["split"](mine), **settings)
    with pytest.raises(InputError, match="needs a folder"):
        private.report()
    private.close()
    private = privet.make_private(model, optimizer, FORMS["split"](mine), folder="runs/own", **settings)
    with pytest.raises(InputError, match="before the first step"):
        private.report()
    private.close()


@pytest.mark.slow
def test_a_clipping_of_the_users_own_is_audited_where_its_module_is_named(mine, tmp_path):
    """A clipping that clips nothing, in the user's own loop: refuted with its module, and not called consistent without."""
    (tmp_path / "own_clipping.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "import torch\n"
        "from privet.clipping import FlatClipping\n"
        "@dataclass(frozen=True)\n"
        "class Unclipped(FlatClipping):\n"
        "    def clip(self, gradients, state=None):\n"
        "        tensors = gradients.weighted_sum(torch.ones(gradients.records, dtype=torch.float64))\n"
        "        return replace(super().clip(gradients), tensors=tensors)\n",
        encoding="utf-8",
    )
    code = (
        "import torch, privet, own_clipping\n"
        "from mypackage.module import Net\n"
        "from torch.nn import functional as F\n"
        "model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=1.0)\n"
        "private = privet.make_private(model, optimizer, privet.data.load('digits').train, batch_size=144, steps=2,\n"
        "    noise_multiplier=2.0, delta=1e-5, clipping=own_clipping.Unclipped(0.01), folder='runs/own')\n"
        "for x, y in private.batches():\n"
        "    private.step(F.cross_entropy(model(x), y, reduction='none'))\n"
        "private.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)
    unaware = json.loads(said("audit", "runs/own", *QUICK, "--json"))
    assert not any(audit["verdict"] == "consistent" for audit in unaware)
    assert any("clipping" in audit["not_audited"] for audit in unaware)
    result = CliRunner().invoke(app, ["audit", "runs/own", *QUICK, "--json", "--plugin", "own_clipping.py"])
    assert result.exit_code == 1, result.output
    assert json.loads(result.stdout)[0]["refuted"]
