"""A release that torchrun starts again when one of its processes dies, for `test_processes.py`.

torchrun --standalone --nproc-per-node=2 --max-restarts=2 restarted.py FOLDER [shards]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet
from privet.training import Performance


def main(folder: Path, kind: str = "") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    (folder / "notes").mkdir(exist_ok=True)
    note = folder / "notes" / f"{rank}-{attempt}"
    torch.manual_seed(0)
    x = torch.randn(60, 5)
    model: nn.Module = nn.Linear(5, 2)
    if kind == "shards":
        model = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = privet.make_private(
        model, optimizer, TensorDataset(x, (x.sum(1) > 0).long()), batch_size=40, steps=8, noise_multiplier=1.0, delta=1e-5,
        max_grad_norm=1.0, folder=folder / "run", resume=True, performance=Performance(save_every=2),
    )  # fmt: skip
    if attempt == 1 and rank == 0:
        die_after_recording(private, 7)
    for inputs, labels in private.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        if not private.rehearsing:
            with note.open("a") as file:
                file.write(f"{private.steps_done} ")
            if attempt == 0 and rank == 1 and private.steps_done == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
    private.close()


def die_after_recording(private: Any, events: int) -> None:
    """Kill this process when an event of step 7 is in the ledger, and nobody has got its release."""
    note = private.ledger.on_record

    def noted(head: str) -> None:
        note(head)
        if private.steps_done + 1 == events:
            os.kill(os.getpid(), signal.SIGKILL)

    private.ledger.on_record = noted


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
