"""Killed at any moment, a run goes on: a seeded one bit for bit, a release with every step counted."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

import privet
from privet.clipping import AdaptiveClipping, BoundedSum, Clipping, FlatClipping, Released
from privet.errors import InputError, PrivetError
from privet.noise import IsotropicL2Noise
from privet.privacy import Ledger, LedgerError
from privet.training import BudgetExhausted, Performance, RunFolder
from privet.training.checkpoint import DamagedCheckpointWarning, load_checkpoint, save_checkpoint
from tests.training.conftest import KNOWN, data, flat, run

DROPOUT = [nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)]


def start(folder: Path | None, **settings: Any) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = CosineAnnealingLR(optimizer, 12)
    chosen = {**KNOWN, "steps": 12, "average": 0.8, "scheduler": scheduler, **settings}
    chosen["performance"] = replace(settings.get("performance", Performance()), save_every=3)
    where = {} if folder is None else {"folder": folder, "resume": True}
    private = privet.make_private(model, optimizer, **{"dataset": data(), **where, **chosen})
    OPEN.append(private)
    return model, optimizer, private


OPEN: list[Any] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def stopped_after(steps: int, folder: Path, **settings: Any) -> None:
    """Run a few steps and end as a killed process does: nothing more is written."""
    model, optimizer, private = start(folder, **settings)
    done = private.steps_done
    for x, y in private.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if private.steps_done - done >= steps:
            break
    private.close()


SETTINGS: list[dict[str, Any]] = [
    {},
    {"performance": Performance(physical_batch_size=7)},
    {"batch_size": 2},
    {"max_grad_norm": None, "clipping": AdaptiveClipping(5.0)},
    {"noise_multiplier": None, "epsilon": 3.0},
    {"max_grad_norm": privet.privacy.Schedule.linear(1.0, 0.5, 12)},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_seeded_run_continues_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = start(None, **settings)
    expected = run(*whole)
    for steps in (4, 1, 2, 5, 1):
        stopped_after(steps, tmp_path, **settings)
    resumed = start(tmp_path, **settings)
    assert torch.equal(run(*resumed), expected)
    assert all(torch.equal(v, whole[2].average.values[n]) for n, v in resumed[2].average.values.items())
    assert resumed[2].state.clipping == whole[2].state.clipping
    assert len(resumed[2].ledger) == 12 and resumed[2].spent() == whole[2].spent()
    assert "reproducible" in resumed[2].randomness.mark


@pytest.mark.parametrize("seed", [0, None])
def test_a_run_goes_back_to_an_older_checkpoint_that_is_kept(tmp_path: Path, seed: int | None) -> None:
    whole = start(None, seed=seed)
    expected = run(*whole)
    stopped_after(8, tmp_path, seed=seed)  # checkpoints after 3 and 6 steps
    with pytest.raises(InputError, match=r"no state of the run after step 5 \(there is: 3 and 6"):
        start(tmp_path, seed=seed, resume=5)
    back = start(tmp_path, seed=seed, resume=3)
    assert back[2].steps_done == 3
    back[2].save()  # the state after step 6 belongs to steps that the run has left
    assert load_checkpoint(tmp_path)["step"] == 3
    found = run(*back)
    if seed is not None:
        assert torch.equal(found, expected)
        assert len(back[2].ledger) == 12
    else:
        assert sum(count for _, count in back[2].ledger) == 8 + 9


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Map-style records, which workers fetch ahead."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = data().tensors
        return x[index], y[index]


def test_a_seeded_run_with_workers_that_draw_ahead_continues_bit_for_bit(tmp_path: Path) -> None:
    settings = {"dataset": Rows(), "performance": Performance(workers=1)}
    expected = run(*start(None, **settings))
    stopped_after(5, tmp_path, **settings)
    stopped_after(4, tmp_path, **settings)
    resumed = start(tmp_path, **settings)
    assert torch.equal(run(*resumed), expected) and len(resumed[2].ledger) == 12


def test_a_release_counts_again_what_was_not_saved(tmp_path: Path) -> None:
    stopped_after(5, tmp_path, seed=None)  # saved after 3
    stopped_after(2, tmp_path, seed=None)  # 4 and 5 again
    model, optimizer, private = start(tmp_path, seed=None)
    assert (private.steps_done, len(private.ledger)) == (3, 7)
    run(model, optimizer, private)
    assert (private.steps_done, len(private.ledger)) == (12, 16)
    private.close()
    assert Ledger.open(tmp_path / "ledger.jsonl", read_only=True).event == private.plan.step_event(0) * 16


def test_a_release_that_counts_again_still_keeps_its_budget(tmp_path: Path) -> None:
    settings = {"seed": None, "noise_multiplier": None, "epsilon": 2.0}
    stopped_after(5, tmp_path, **settings)
    model, optimizer, private = start(tmp_path, **settings)
    with pytest.raises(BudgetExhausted, match="would exceed the budget of epsilon 2"):
        run(model, optimizer, private)
    assert private.steps_done == 10 and len(private.ledger) == 12 and 1.9 < private.spent().epsilon <= 2.0


def test_a_release_never_writes_its_keys(tmp_path: Path) -> None:
    model, optimizer, private = start(tmp_path, seed=None)
    keys = [private.randomness.noise._key, private.randomness.sampling._key]
    run(model, optimizer, private)
    private.close()
    state = load_checkpoint(tmp_path)
    assert state is not None and not state["streams"] and state["torch"] is None
    for file in tmp_path.iterdir():
        content = file.read_bytes()
        assert not any(key in content or key.hex().encode() in content for key in keys)
    with pytest.raises(TypeError, match="neither written nor copied"):
        __import__("copy").deepcopy(private.randomness.noise)


def test_a_repeated_step_that_differs_is_counted_again(tmp_path: Path) -> None:
    stopped_after(5, tmp_path)
    torch.manual_seed(1)
    model, optimizer, private = start(tmp_path)
    for x, y in private.batches():
        F.cross_entropy(model(x) * 1.0000001, y).backward()  # another library, another rounding
        optimizer.step()
    assert len(private.ledger) == 14


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    expected = run(*start(None))
    for damage in (lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:]):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        stopped_after(7, folder)
        newest = max(folder.glob("checkpoint-*"))
        assert newest.name == "checkpoint-000000006.safetensors"
        newest.write_bytes(damage(newest.read_bytes()))
        with pytest.warns(DamagedCheckpointWarning):
            resumed = start(folder)
        assert resumed[2].steps_done == 3
        assert torch.equal(run(*resumed), expected) and len(resumed[2].ledger) == 12
        resumed[2].close()


def test_without_a_checkpoint_that_can_be_read_nothing_goes_on(tmp_path: Path) -> None:
    stopped_after(1, tmp_path)
    for file in tmp_path.glob("checkpoint-*"):
        file.write_bytes(b"")
    with pytest.raises(PrivetError, match="No checkpoint"), pytest.warns(DamagedCheckpointWarning):
        start(tmp_path)


def test_a_checkpoint_of_version_0_1_is_refused_with_a_sentence(tmp_path: Path) -> None:
    stopped_after(4, tmp_path)
    for path in tmp_path.glob("checkpoint-*"):
        with safe_open(path, framework="pt") as file:
            metadata = {**file.metadata(), "format": "1"}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        path.write_bytes(save(tensors, metadata))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(PrivetError, match=r"another version of Privet, .* layout .* start again in another folder"):
        start(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


class Counting(Clipping):
    """A plug-in whose state is a mapping with a tensor, a number and nothing."""

    def init(self, parameters: Any) -> dict[str, Any]:
        return {"last": torch.zeros(()), "steps": 0, "none": None}

    def clip(self, gradients: Any, state: Any = None) -> BoundedSum:
        return FlatClipping(1.0 + 0.1 * float(state["last"])).clip(gradients)

    def update(self, state: Any, released: Released) -> dict[str, Any]:
        moved = torch.stack([tensor.mean() for tensor in released.noisy.values()]).mean().tanh()
        return {"last": moved, "steps": state["steps"] + 1, "none": None}


def test_the_state_of_a_plug_in_is_saved_as_it_is(tmp_path: Path) -> None:
    settings = {"max_grad_norm": None, "clipping": Counting()}
    expected = run(*start(None, **settings))
    stopped_after(5, tmp_path, **settings)
    resumed = start(tmp_path, **settings)
    assert resumed[2].state.clipping["steps"] == resumed[2].steps_done == 3
    assert torch.equal(run(*resumed), expected)
    assert resumed[2].state.clipping["steps"] == 12


def test_isotropic_noise_resumes(tmp_path: Path) -> None:
    """Its gap is not a number before it was solved for weights, and equals itself all the same."""
    count = sum(p.numel() for p in nn.Sequential(*DROPOUT).parameters())
    settings = {"noise": partial(IsotropicL2Noise, count), "noise_multiplier": None, "epsilon": 6.0}
    expected = run(*start(None, **settings))
    stopped_after(5, tmp_path, **settings)
    assert torch.equal(run(*start(tmp_path, **settings)), expected)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after(4, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("checkpoint-*")}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    state = load_checkpoint(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(PrivetError, match=r"No space left .* make room and resume"):
            save_checkpoint(tmp_path, 6, state or {})
    assert {file.name: file.read_bytes() for file in tmp_path.glob("checkpoint-*")} == before
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_a_disk_that_fills_up_in_a_run_loses_nothing(tmp_path: Path) -> None:
    """The kernel itself refuses to let files grow, at a size that some write of the run reaches."""
    expected = run(*start(None))
    for limit in (1500, 2500, 4000, 9000, 12000):
        folder = tmp_path / str(limit)
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                run(*start(folder))
            except PrivetError:
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 3
        resumed = start(folder)
        assert torch.equal(run(*resumed), expected)
        assert len(resumed[2].ledger) == 12
        resumed[2].close()


def test_two_processes_on_one_run_are_refused(tmp_path: Path) -> None:
    private = start(tmp_path)[2]
    with pytest.raises(PrivetError, match="another process"):
        start(tmp_path)
    code = f"from privet.training import RunFolder; RunFolder({str(tmp_path)!r}, resume=True)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert other.returncode == 1 and "is being continued by another process" in other.stderr
    private.close()
    start(tmp_path)[2].close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"noise_multiplier": 2.0}, r"plan.noise.multiplier 1.0, and 2.0 was given"),
        ({"batch_size": 41}, "plan.sampling.rate"),
        ({"steps": 13}, "plan.steps 12, and 13"),
        ({"max_grad_norm": 2.0}, "plan.clipping.max_grad_norm"),
        ({"seed": 1}, "seed 0, and 1"),
        ({"seed": None}, "seed 0, and None"),
        ({"delta": 1e-6}, "delta"),
        ({"average": 0.9}, "average"),
        ({"epsilon": 9.0}, "epsilon None, and 9.0"),
        ({"accountant": "rdp"}, "accountant .pld., and .rdp."),
        ({"performance": Performance(physical_batch_size=3)}, "physical_batch_size"),
    ],
)
def test_another_plan_is_refused(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    stopped_after(1, tmp_path)
    with pytest.raises(InputError, match=why):
        start(tmp_path, **settings)
    start(tmp_path)[2].close()  # and the lock is free


def test_other_data_are_refused(tmp_path: Path) -> None:
    stopped_after(1, tmp_path)
    model = nn.Sequential(*DROPOUT)
    optimizer = torch.optim.Adam(model.parameters())
    other = data()
    other.tensors[0][17, 2] += 1e-3
    settings = {**KNOWN, "steps": 12, "average": 0.8, "folder": tmp_path, "resume": True}
    with pytest.raises(InputError, match="other data"):
        privet.make_private(model, optimizer, other, **settings)
    with pytest.raises(InputError, match="had another"):
        privet.make_private(small := nn.Linear(5, 2), torch.optim.Adam(small.parameters()), data(), **settings)
    sgd = torch.optim.SGD(model.parameters(), lr=1)
    with pytest.raises(InputError, match="optimizers"):
        privet.make_private(model, sgd, data(), **settings)


def test_a_ledger_that_lost_lines_is_refused(tmp_path: Path) -> None:
    stopped_after(4, tmp_path)
    ledger = tmp_path / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:2]))
    with pytest.raises(LedgerError, match="Lines were removed"):
        start(tmp_path)
    ledger.unlink()
    with pytest.raises(PrivetError, match="missing"):
        start(tmp_path)


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    stopped_after(4, tmp_path)
    journal = tmp_path / "released.txt"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], b"nonsense\n", *lines[2:]]))
    with pytest.raises(PrivetError, match="damaged"):
        start(tmp_path)
    journal.write_bytes(b"".join(lines)[:-20])  # a torn last line is one that was never relied on
    resumed = start(tmp_path)
    assert torch.equal(run(*resumed), run(*start(None))) and len(resumed[2].ledger) == 12


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    stopped_after(1, tmp_path)
    with pytest.raises(InputError, match="holds a run already"):
        RunFolder(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        RunFolder(tmp_path / "ledger.jsonl")


def test_what_was_recorded_before_training_stays_and_is_calibrated_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.ledger.record(privet.privacy.CovarianceRelease(8.0))
    settings = {"noise_multiplier": None, "epsilon": 2.0, "seed": 3}
    model, optimizer, private = start(None, ledger=folder.ledger, **settings)
    private.close()
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    chosen = {**KNOWN, **settings}
    made = privet.make_private(model, optimizer, data(), folder=folder, **chosen)
    assert made.plan.noise == start(None, ledger=folder.ledger, **{**settings, "steps": 6})[2].plan.noise
    run(model, optimizer, made)
    made.close()
    folder.close()
    assert made.spent().epsilon <= 2.0
    again = privet.make_private(model, optimizer, data(), folder=tmp_path, resume=True, **chosen)
    assert again.plan == made.plan
    with pytest.raises(BudgetExhausted):
        again.batches()
    again.close()


def test_checkpoints_hold_no_code_and_only_two_are_kept(tmp_path: Path) -> None:
    made = start(tmp_path)
    run(*made)
    made[2].close()
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [
        "checkpoint-000000009.safetensors", "checkpoint-000000012.safetensors", "ledger.jsonl", "ledger.jsonl.lock", "lock",
        "loop.json", "model.safetensors", "newest-head", "released.txt",
    ]  # fmt: skip
    # A user's own loop leaves the description and the weights that its report, its attacks and its audits need.
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("loop.json", "model.safetensors")}
    assert modes == {"loop.json": 0o600, "model.safetensors": 0o644}
    tied = nn.Linear(2, 2, bias=False)
    state = {
        "a": [1, (2.5, None)],
        "b": {0: tied.weight, "c": tied.weight},
        "bf16": torch.ones(3, dtype=torch.bfloat16),
    }
    save_checkpoint(tmp_path, 99, state)
    back = load_checkpoint(tmp_path)
    assert back is not None and back["a"] == [1, (2.5, None)] and torch.equal(back["b"][0], tied.weight)
    assert back["bf16"].dtype == torch.bfloat16
    with pytest.raises(PrivetError, match=r"state\.x is a function"):
        save_checkpoint(tmp_path, 100, {"x": json.dumps})


def test_a_method_resumes_with_its_history(tmp_path: Path) -> None:
    from privet.methods import dpsgd

    digits = privet.data.load("digits")
    small = digits.train.select(range(300))

    def go(folder: Path | None, stop: int | None = None) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

        def on_step(entry: dict[str, Any]) -> None:
            if entry["step"] == stop:
                raise KeyboardInterrupt

        where = {} if folder is None else {"folder": folder, "resume": True, "performance": Performance(save_every=2)}
        return dpsgd.train(
            model, torch.optim.SGD(model.parameters(), lr=1.0), small, test=digits.test, on_step=on_step, batch_size=60,
            epochs=3, epsilon=4.0, delta=1e-5, max_grad_norm=1.0, seed=0, average=0.9, **where,
        )  # fmt: skip

    whole = go(None)
    for stop in (4, 9):
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path, stop)
    resumed = go(tmp_path)
    assert resumed.history == whole.history and len(whole.history) == 3
    assert torch.equal(flat(resumed.model), flat(whole.model))
    again = go(tmp_path)
    assert again.steps == 15 and torch.equal(flat(again.model), flat(whole.model))


def test_a_long_history_can_be_thinned() -> None:
    from privet.methods import dpsgd

    digits = privet.data.load("digits")
    histories = {}
    for every in (1, 2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        trained = dpsgd.train(
            model, torch.optim.SGD(model.parameters(), lr=1.0), digits.train, test=digits.test, batch_size=144, epochs=5,
            noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0, seed=0, measure_every=every,
        )  # fmt: skip
        histories[every] = {entry["step"]: entry["accuracy"] for entry in trained.history}
    assert list(histories[1]) == [10, 20, 30, 40, 50] and list(histories[2]) == [20, 40, 50]
    assert histories[2].items() <= histories[1].items()
