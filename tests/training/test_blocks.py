"""Loops in blocks: what a repeated block costs, and where a loop that was stopped goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from privet.errors import InputError
from privet.privacy import Gaussian, Ledger, LedgerError
from privet.randomness import Randomness
from privet.training import BudgetExhausted, RunFolder
from privet.training.blocks import Blocks, Box

EVENT, BLOCKS = Gaussian(3.0), 5


class Loop:
    """Adds noise to a number, twice in a block."""

    def __init__(self, folder: Path | None, seed: int | None, planned: int = BLOCKS, stage: str = "") -> None:
        self.run = RunFolder(folder, resume=True) if folder is not None else None
        self.randomness, self.total, self.drawn = Randomness.of(seed), Box(torch.zeros(1)), 0
        where = self.run if self.run is not None else Ledger()
        self.blocks = Blocks(where, {"total": self.total}, self.randomness, planned=EVENT * planned, stage=stage)

    def go_on(self, stop: int = -1, twist: float = 0.0) -> Tensor:
        """To the end, or until so many numbers were drawn; `twist` makes a block come out otherwise."""
        try:
            self.blocks.begin({"planned": BLOCKS})
            while self.blocks.step < BLOCKS and self.blocks.allows({(name := f"block {self.blocks.step}"): EVENT}):
                self.blocks.announce(name, EVENT)
                for _ in range(2):
                    noise = self.randomness.noise
                    drawn = torch.randn(1, generator=noise) if isinstance(noise, torch.Generator) else noise.normal(1)
                    self.total.value = self.total.value + drawn.float() + twist + torch.rand(1)
                    self.drawn += 1
                    if self.drawn == stop:
                        raise KeyboardInterrupt
                self.blocks.conclude(name, EVENT)
                self.blocks.save(self.blocks.step + 1)
        finally:
            if self.run is not None:
                self.run.close()
        return self.total.value


def stopped(folder: Path, seed: int | None, stop: int) -> Loop:
    torch.manual_seed(0)
    loop = Loop(folder, seed)
    with pytest.raises(KeyboardInterrupt):
        loop.go_on(stop)
    return loop


def test_a_seeded_loop_ends_with_the_same_bits_and_counts_each_block_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = Loop(None, 3).go_on()
    for stop in (1, 3, 2, 4):
        stopped(tmp_path, 3, stop)
    torch.manual_seed(9)  # torch's own generator goes on, too
    last = Loop(tmp_path, 3)
    assert torch.equal(last.go_on(), whole)
    assert len(last.blocks.ledger) == BLOCKS


def test_a_block_that_comes_out_otherwise_is_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of a library, say: two results under one noise are two releases."""
    torch.manual_seed(0)
    loop = Loop(tmp_path, 3)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Blocks, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        loop.go_on()
    assert len(loop.blocks.ledger) == 1
    again = Loop(tmp_path, 3, planned=BLOCKS + 1)
    again.go_on(twist=1e-3)
    assert len(again.blocks.ledger) == BLOCKS + 1


def test_a_release_counts_again_what_it_repeats_and_never_more_than_the_plan(tmp_path: Path) -> None:
    for stop in (3, 1):
        stopped(tmp_path, None, stop)
    last = Loop(tmp_path, None)
    last.go_on()
    # Blocks 0 and 1, block 1 again twice, and two more: the plan pays for five.
    assert len(last.blocks.ledger) == BLOCKS and last.blocks.step == BLOCKS - 2


def test_a_plan_that_is_used_up_before_a_block_was_saved_is_refused(tmp_path: Path) -> None:
    for _ in range(BLOCKS):
        stopped(tmp_path, None, 1)
    with pytest.raises(BudgetExhausted, match="before the end of block 0"):
        Loop(tmp_path, None).go_on()
    assert len(Ledger.open(tmp_path / "ledger.jsonl", read_only=True)) == BLOCKS


def test_a_loop_that_has_ended_stays_ended(tmp_path: Path) -> None:
    stopped(tmp_path, None, 3)
    loop = Loop(tmp_path, None)
    loop.blocks.begin({"planned": BLOCKS})
    loop.blocks.save(2, ended=True)
    assert loop.run is not None
    loop.run.close()
    again = Loop(tmp_path, None)
    again.go_on()
    assert again.blocks.ended and again.drawn == 0


def test_other_settings_and_an_older_ledger_are_refused(tmp_path: Path) -> None:
    loop = Loop(tmp_path, None, stage="votes")
    loop.go_on()
    other = RunFolder(tmp_path, resume=True)
    with pytest.raises(InputError, match="planned"):
        other.begin({"planned": 9}, seeded=False, stage="votes")
    other.close()
    (tmp_path / "newest-head").unlink()
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="older than a checkpoint"):
        Loop(tmp_path, None, stage="votes").go_on()


def test_stages_are_kept_apart_and_forgotten(tmp_path: Path) -> None:
    Loop(tmp_path, None, stage="votes").go_on()
    Loop(tmp_path, None, planned=2 * BLOCKS).go_on()
    names = {path.name.rpartition("-")[0] for path in tmp_path.glob("checkpoint-*")}
    assert names == {"checkpoint-votes", "checkpoint"}
    run = RunFolder(tmp_path, resume=True)
    run.forget("votes")
    run.close()
    assert {path.name.rpartition("-")[0] for path in tmp_path.glob("checkpoint-*")} == {"checkpoint"}
