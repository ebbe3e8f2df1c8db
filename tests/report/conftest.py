"""A small real private run: softmax regression on digits by DP-SGD written out by hand, attacked and recorded."""

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from privet.attacks import LossThreshold
from privet.audit import Audit, Claim
from privet.data.catalogue import load_digits
from privet.methods.private_accuracy import exactly
from privet.privacy.events import Gaussian, PoissonSampled
from privet.privacy.ledger import Ledger
from privet.report import (
    AttackResult,
    DataSummary,
    Epoch,
    ModelSummary,
    OtherRun,
    RunRecord,
    SyntheticSummary,
    versions,
)

DELTA, CLIP, NOISE, RATE, EPOCHS, SEED = 1e-5, 1.0, 2.0, 0.1, 6, 7


def private_run(folder: Path) -> RunRecord:
    folder.mkdir(parents=True, exist_ok=True)
    data = load_digits()
    (x, y), (x_test, y_test) = ((s.inputs.flatten(1), s.labels) for s in (data.train, data.test))
    generator = torch.Generator().manual_seed(SEED)
    model = nn.Linear(64, 10, bias=False)
    nn.init.zeros_(model.weight)
    history, expected, steps = [], RATE * len(x), int(EPOCHS / RATE)
    event = PoissonSampled(RATE, Gaussian(NOISE))
    with Ledger(folder / "ledger.jsonl") as ledger:
        losses = []
        for step in range(1, steps + 1):
            ledger.record(event)
            chosen = torch.rand(len(x), generator=generator) < RATE
            a, b = x[chosen], y[chosen]
            logits = model(a).detach()
            errors = logits.softmax(1) - nn.functional.one_hot(b, 10)
            # The gradient of one record is the outer product of its error and its input.
            norms = errors.norm(dim=1) * a.norm(dim=1)
            clipped = (errors * (CLIP / norms).clamp(max=1)[:, None]).T @ a
            noise = NOISE * CLIP * torch.randn(clipped.shape, generator=generator)
            with torch.no_grad():
                model.weight -= 2.0 * (clipped + noise) / expected
            losses.append(nn.functional.cross_entropy(logits, b).item())
            if step % (steps // EPOCHS) == 0:
                spent = ledger.spent(DELTA).epsilon
                history.append(Epoch(len(history) + 1, step, sum(losses) / len(losses), spent))
                losses = []
    record = RunRecord(
        title="A private classifier of digits",
        method="DP-SGD",
        created="2025-01-31T12:00:00+00:00",
        command=("privet", "demo", "--data", "digits"),
        seconds=2.5,
        delta=DELTA,
        seeds={"sampling": str(SEED), "noise": str(SEED)},
        environment=versions(),
        data=DataSummary("digits", data.fingerprint, len(x), len(x_test), data.classes),
        model=ModelSummary("softmax regression", 640),
        settings={"Expected lot": "143.7 records", "Clipping": "norm at most 1", "Noise": "2 times the clipping norm"},
        history=tuple(history),
        test_accuracy=float((model(x_test).argmax(1) == y_test).float().mean()),
        training_accuracy=float((model(x).argmax(1) == y).float().mean()),
        utility=exactly(model(x_test).argmax(1), y_test, len(data.classes)),
        ledger_head=ledger.head,
        attacks=(AttackResult.of("Loss threshold", LossThreshold()(model, (x, y), (x_test, y_test))),),
    )
    record.write(folder)
    return record


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that tests only read."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    private_run(folder)
    return folder


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory, finished_run: Path) -> Path:
    """The same run with everything that a record can hold; only for looking at."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    folder.mkdir()
    record = RunRecord.read(finished_run)
    (folder / "ledger.jsonl").write_bytes((finished_run / "ledger.jsonl").read_bytes())
    Image.new("L", (160, 80), 90).save(folder / "samples.png")
    event = PoissonSampled(RATE, Gaussian(NOISE)) * 10
    other = OtherRun("tuning", "2025-01-30", "DP-SGD", "0" * 64, "add-remove", "record", event.to_dict())
    words = (0.99, "one run", "1,000 canaries", "")
    audits = (
        Audit(
            "One step of DP-SGD, flat clipping, with a name that is too long",
            Claim(0.5, DELTA, "x"),
            0.1,
            107.0,
            *words,
        ),
        Audit("DP-SGD, 60 steps", Claim(3.0, DELTA, "x"), 0.6, 4.3, *words),
        Audit("Something broken", Claim(1.0, DELTA, "x"), 2.5, 4.3, *words),
    )
    dataclasses.replace(
        record,
        audits=audits,
        others=(other,),
        history=tuple(dataclasses.replace(epoch, accuracy=0.5 + epoch.epoch / 20) for epoch in record.history),
        synthetic=SyntheticSummary(1000, ("release/synthetic.npz",), "samples.png", ("a", "b"), (("1", "x"),)),
    ).write(folder)
    return folder
