"""A run that is killed twenty times at random moments, for `test_killed.py`: prints what came out as JSON.

A program of its own, so that it has one thread and its children can be forked without waiting for torch to load.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

import privet
from privet.privacy import Ledger
from privet.training import Performance
from privet.training.checkpoint import load_checkpoint

STEPS, KILLS = 100, 20


def train(folder: Path | None, seed: int | None) -> Any:
    torch.manual_seed(7)
    x = torch.randn(300, 20)
    model = nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Dropout(0.1), nn.Linear(200, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    where = {} if folder is None else {"folder": folder, "resume": True}
    private = privet.make_private(
        model, optimizer, TensorDataset(x, (x.sum(1) > 0).long()), batch_size=60, steps=STEPS,
        performance=Performance(physical_batch_size=25, save_every=4),
        noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0, average=0.9, scheduler=CosineAnnealingLR(optimizer, STEPS),
        seed=seed, **where,
    )  # fmt: skip
    for x, y in private.batches() if private.steps_done < STEPS else ():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    private.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), private


def wait_for_lines(path: Path, lines: int) -> None:
    """Until the run has written so many lines more, on however slow a machine; a seeded one repeats in silence."""
    begun, start = time.monotonic(), path.read_bytes().count(b"\n") if path.exists() else 0
    while (path.read_bytes().count(b"\n") if path.exists() else 0) < start + lines and time.monotonic() < begun + 5:
        time.sleep(0.001)


def kill_until_done(folder: Path, seed: int | None, chance: random.Random) -> dict[str, Any]:
    """Kill KILLS times, then let it finish; after every kill the ledger must cover every checkpoint that was there."""
    kills, last, covered, saved = 0, 0, [], []
    while True:
        child = os.fork()
        if child == 0:
            train(folder, seed)
            os._exit(0)
        if kills < KILLS:
            wait_for_lines(folder / ("ledger.jsonl" if seed is None else "released.txt"), chance.randrange(8))
            time.sleep(chance.uniform(0.0, 0.01))
            os.kill(child, signal.SIGKILL)
            kills += 1
        _, status = os.waitpid(child, 0)
        ledger = folder / "ledger.jsonl"
        if ledger.exists() and b"\n" in ledger.read_bytes():
            used = len(Ledger.open(ledger, read_only=True))
            state = load_checkpoint(folder)
            saved.append(state["step"] if state else 0)
            covered.append(used >= max(saved[-1], last))
            last = used
        if kills == KILLS and os.WIFEXITED(status):
            return {"kills": kills, "saved": saved, "covered": all(covered), "ledger": last, "status": status}


def main(root: Path) -> None:
    torch.set_num_threads(1)
    expected, _ = train(None, seed=5)
    chance = random.Random(0)
    seeded = kill_until_done(root / "seeded", 5, chance)
    found, private = train(root / "seeded", 5)
    seeded |= {"equal": torch.equal(found, expected), "steps": private.steps_done}
    release = kill_until_done(root / "release", None, chance)
    _, private = train(root / "release", None)
    release |= {"steps": private.steps_done, "planned": private.plan.event == private.plan.step_event(0) * STEPS}
    print(json.dumps({"seeded": seeded, "release": release}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
