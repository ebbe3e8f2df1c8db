"""Trackers: what they get, under which names, and that nothing leaves the machine."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import privet
from privet.cli.program import app
from privet.data import load
from privet.errors import InputError, PrivetWarning
from privet.integrations import trackers
from privet.integrations.trackers import Track, tracked

STEP = {
    "loss": 0.5,
    "accuracy": 0.25,
    "epsilon": 1.5,
    "delta": 1e-5,
    "step": 3,
    "steps": 9,
    "guarantee": "proved",
    "mine": 7,
}


class Noted:
    """A tracker that keeps what it gets."""

    def __init__(self) -> None:
        self.values: list[tuple[dict[str, float], int]] = []
        self.facts: dict[str, Any] = {}
        self.closed = False

    def log(self, values: Any, step: int) -> None:
        self.values.append((dict(values), step))

    def describe(self, facts: Any) -> None:
        self.facts |= facts

    def close(self) -> None:
        self.closed = True


def test_what_is_not_known_to_be_public_is_named_internal() -> None:
    noted = Noted()
    track = Track([noted])
    track(STEP)
    track({"what": "Attacking", "step": 1, "steps": 100})
    track({"loss": float("nan"), "epsilon": 2.0, "step": 4})
    assert noted.values == [
        ({"internal/loss": 0.5, "internal/accuracy": 0.25, "epsilon": 1.5, "delta": 1e-5, "internal/mine": 7.0}, 3),
        ({"epsilon": 2.0}, 4),
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("mlflow", "A tracker is mlflow:FOLDER, wandb:FOLDER, tensorboard:FOLDER, and not 'mlflow'"),
        ("comet:here", "A tracker is mlflow:FOLDER"),
        ("mlflow:https://example.org", "sends nothing: name a folder"),
        ("wandb:s3://bucket", "sends nothing: name a folder"),
    ],
)
def test_a_tracker_that_is_no_folder_is_refused(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said), tracked(spec):
        pass


def test_a_tracker_that_is_not_installed_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    out = tmp_path / "run"
    done = CliRunner().invoke(
        app, ["train", "--data", "digits", "--out", str(out), "--track", f"mlflow:{tmp_path / 'm'}"]
    )
    assert done.exit_code == 2 and "pip install privet[track]" in " ".join(done.output.split())
    assert not out.exists() and not (tmp_path / "m").exists()


def test_a_tracker_that_fails_costs_the_log_and_not_the_run() -> None:
    class Full(Noted):
        def log(self, values: Any, step: int) -> None:
            raise OSError("no space")

    other = Noted()
    track = Track([Full(), other])
    with pytest.warns(PrivetWarning, match="Full failed with OSError and gets nothing more; the run goes on"):
        track(STEP)
    track(STEP)
    assert len(other.values) == 2


def test_a_run_of_the_command_line_is_tracked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a tracker of our own in the place of MLflow."""
    noted = Noted()
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", lambda folder, name: noted)  # type: ignore[attr-defined]
    monkeypatch.setattr(trackers, "_required", lambda module, package: None)
    words = ["train", "--data", "py:tests.runs.small:records", "--epsilon", "3", "--seed", "0", "--set", "epochs=1"]
    rows = "\n".join(f"{n % 7},{n % 5},{'a' if n % 7 > 3 else 'b'}" for n in range(400))
    (tmp_path / "t.csv").write_text(f"x,y,z\n{rows}\n")
    (tmp_path / "t.yaml").write_text(
        "label: z\ncolumns:\n  x: {low: 0, high: 7}\n  y: {low: 0, high: 5}\n  z: {categories: [a, b]}\n"
    )
    words[2:3] = [f"csv:{tmp_path / 't.csv'}", "--schema", str(tmp_path / "t.yaml")]
    out = tmp_path / "run"
    done = CliRunner().invoke(app, [*words, "--out", str(out), "--track", f"mlflow:{tmp_path / 'm'}"])
    assert done.exit_code == 0, done.output
    assert noted.closed and noted.values[-1][0]["epsilon"] == pytest.approx(noted.facts["epsilon"], rel=0.2)
    assert "internal/loss" in noted.values[0][0] and "loss" not in noted.values[0][0]
    assert "internal/test_accuracy" in noted.facts and "test_accuracy" not in noted.facts
    assert noted.facts["guarantee"] == "proved"


def loop(track: Track) -> None:
    data = load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = privet.make_private(
        model,
        optimizer,
        data.train,
        batch_size=144,
        steps=4,
        noise_multiplier=2.0,
        delta=1e-5,
        max_grad_norm=1.0,
        seed=0,
    )
    for x, y in private.batches(on_step=track):
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    track({"loss": 0.25, "step": 5})


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Addresses outside this machine that somebody tried to reach."""
    asked: list[Any] = []
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            asked.append(address)
            raise OSError("no network in this test")
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://example.invalid")
    monkeypatch.setenv("WANDB_DIR", "/nonexistent")
    return asked


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_every_step_in_the_folder(offline: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    for name in ("first", "second"):
        with tracked(f"mlflow:{tmp_path / 'm'}", name=name) as track:
            loop(track)
    assert offline == []
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o700
    notes = list((tmp_path / "m").rglob("tags/mlflow.note.content"))
    assert len(notes) == 2 and "not for release" in notes[0].read_text()
    for run in (note.parent.parent for note in notes):
        found = {
            str(path.relative_to(run / "metrics")): [int(line.split()[2]) for line in path.read_text().splitlines()]
            for path in (run / "metrics").rglob("*")
            if path.is_file()
        }
        assert found == {"delta": [1, 2, 3, 4], "epsilon": [1, 2, 3, 4], "internal/loss": [5]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_is_offline_whatever_the_environment_says(offline: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    with tracked(f"wandb:{tmp_path / 'w'}", name="first") as track:
        loop(track)
    assert offline == []
    runs = list((tmp_path / "w").rglob("*.wandb"))
    assert len(runs) == 1 and "offline-run" in str(runs[0])
    content = runs[0].read_bytes()
    assert b"internal/loss" in content and b"epsilon" in content and b"not for release" in content


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_every_step(offline: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracked(f"tensorboard:{tmp_path / 't'}", name="first") as track:
        loop(track)
    found = EventAccumulator(str(tmp_path / "t" / "first")).Reload()
    assert set(found.Tags()["scalars"]) == {"epsilon", "delta", "internal/loss"}
    assert [each.step for each in found.Scalars("epsilon")] == [1, 2, 3, 4]
    assert offline == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_three_on_the_command_line(offline: list[Any], tmp_path: Path) -> None:
    for package in ("mlflow", "wandb", "tensorboard"):
        pytest.importorskip(package)
    options = [f"--track={kind}:{tmp_path / kind}" for kind in ("mlflow", "wandb", "tensorboard")]
    words = [
        "train",
        "--data",
        "digits",
        "--epsilon",
        "3",
        "--set",
        "epochs=1",
        "--out",
        str(tmp_path / "run"),
        "--json",
    ]
    done = CliRunner().invoke(app, [*words, *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["spent"]["guarantee"] == "proved"
    assert offline == [] and all(os.listdir(tmp_path / kind) for kind in ("mlflow", "wandb", "tensorboard"))
