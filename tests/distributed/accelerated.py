"""A training with accelerate, for `test_accelerated.py`: python accelerated.py FOLDER, or started by torchrun."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import privet
from privet.errors import InputError


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tool = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(48, 5)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=12, shuffle=True)
    model, optimizer, loader = tool.prepare(model, optimizer, loader)
    known = {"steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "max_grad_norm": 0.5, "seed": 0}
    said = ""
    if tool.num_processes > 1:
        try:
            privet.make_private(model, optimizer, loader, **known)
        except InputError as error:
            said = str(error)
    private = privet.make_private(model, optimizer, loader, batch_size=12, **known)
    for inputs, labels in private.batches():
        with tool.accumulate(model):
            optimizer.zero_grad()
            tool.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    found = {"parameters": parameters, "said": said, "events": len(private.ledger), "kind": type(model).__name__}
    torch.save(found, folder / f"{tool.num_processes}-{tool.process_index}.pt")
    private.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
