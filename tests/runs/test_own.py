"""A loop of the user's own leaves a folder on which report, attack and audit work; nothing that was tried is lost."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import privet
from privet.cli import app
from privet.data import Dataset, load
from privet.errors import InputError
from privet.report import RunRecord

RECORDS = 200


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.layers[0].eval()  # a part whose mode is the user's own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def loaded():
    """The records of the loop, as `--data py:tests.runs.test_own:loaded` gives them."""
    digits = load("digits")
    parts = {part: digits[part].select(range(RECORDS)) for part in ("train", "test")}
    return Dataset("my digits", digits.classes, parts)


def begun(folder: Path, model: nn.Module):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = privet.make_private(
        model,
        optimizer,
        loaded().train,
        batch_size=50,
        steps=8,
        epsilon=3.0,
        delta=1e-5,
        max_grad_norm=1.0,
        seed=0,
        folder=folder,
    )
    batches = iter(private.batches())
    return private, optimizer, batches


def stepped(private, model, optimizer, batches, until: int) -> None:
    while private.steps_done < until:  # the first batches are a rehearsal
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.fixture
def loop(tmp_path):
    model = Net()
    private, optimizer, batches = begun(tmp_path / "own", model)
    stepped(private, model, optimizer, batches, 4)
    yield tmp_path / "own", model, private, optimizer, batches
    batches.close()
    private.close()


def test_the_loop_is_measured_attacked_and_put_on_a_page(loop):
    folder, model, private, *_ = loop
    modes = [module.training for module in model.modules()]
    page = private.report(test=loaded().test, name="my records", attacks=("loss", "confidence"))
    assert page == folder / "report.html" and "my records" in page.read_text()
    record = RunRecord.read(folder)
    assert [attack.key for attack in record.attacks] == ["loss", "confidence"]
    assert [module.training for module in model.modules()] == modes
    assert record.spent(record.open_ledger(folder)).epsilon == private.spent().epsilon
    card = (folder / "CARD.md").read_text()
    assert f"{record.test_accuracy:.4f}" not in card and f"{record.attack.auc:.3f}" not in card


def test_what_was_tried_before_stays_and_says_of_which_model(loop):
    folder, model, private, optimizer, batches = loop
    private.report(test=loaded().test)
    refused = CliRunner().invoke(app, ["report", str(folder), "--contact", "the office"])
    assert refused.exit_code == 1  # the loop still has the folder
    record = RunRecord.read(folder)
    replace(record, stated=replace(record.stated, contact="the office")).write(folder)
    private.report(test=loaded().test, attacks=("confidence",))
    same = RunRecord.read(folder)
    assert [attack.name for attack in same.attacks] == [
        "Loss threshold",
        "Confidence threshold (the attacker has no labels)",
    ]
    stepped(private, model, optimizer, batches, 8)
    private.report(test=loaded().test)
    later = RunRecord.read(folder)
    assert [attack.key for attack in later.attacks] == ["loss", "confidence", "loss"]
    assert [attack.name.endswith(", after 4 steps") for attack in later.attacks] == [True, True, False]
    assert later.how.steps == 8 and later.stated.contact == "the office"
    assert later.spent(later.open_ledger(folder)).epsilon > same.spent(same.open_ledger(folder)).epsilon - 1e-9


def test_an_attack_that_is_unknown_changes_nothing(loop):
    folder, _, private, *_ = loop
    private.report(test=loaded().test)
    before = (folder / "record.json").read_bytes()
    with pytest.raises(InputError, match="There is no attack 'mystery'"):
        private.report(test=loaded().test, attacks=("mystery",))
    assert (folder / "record.json").read_bytes() == before


def test_the_verbs_work_on_the_folder(loop):
    folder, _, private, *_ = loop
    private.save()
    private.close()
    made = CliRunner().invoke(app, ["report", str(folder)])
    assert made.exit_code == 0, made.output
    assert "not measured" in (folder / "report.html").read_text()
    named = ["--model", "py:tests.runs.test_own:Net", "--data", "py:tests.runs.test_own:loaded"]
    made = CliRunner().invoke(app, ["attack", str(folder), *named, "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["members"] is None  # private, as long as nobody says otherwise
    assert [attack.key for attack in RunRecord.read(folder).attacks] == ["loss"]
    made = CliRunner().invoke(app, ["attack", str(folder)])
    assert made.exit_code == 2 and "name its records with --data" in " ".join(made.output.split())
