"""The same model and the same plan in Privet and in Opacus, in one run: CPU time for the same steps, and the accuracy.

Both train the network of the recipe demo-cnn on MNIST with its learning rate, sampling rate, clipping and noise, a few steps
of one and then as many of the other, in one process on one thread. What is compared is process CPU time: whole steps, with
sampling, loading, noise and the optimizer. Opacus gets the records as tensors, without its loader's work for each record.

    python benchmarks/opacus_training.py [--epsilon 3] [--epochs 7] [--mode hooks]      # about five minutes
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privet
from privet import data
from privet.data import Dataset, Split
from privet.methods import recipe
from privet.methods.dpsgd import accuracy
from privet.methods.preparation import build_model
from privet.privacy import calibrate_noise

RESULTS = Path(__file__).parent / "results" / "opacus_training.json"
DELTA = 1e-5
TURN = 10
"""Steps of one before it is the other's turn."""


class Tensors(torch.utils.data.Dataset[Any]):
    """Records that are loaded a batch at a time."""

    def __init__(self, records: Split) -> None:
        self.x, self.y = records.tensors

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self.x[indices], self.y[indices]


def together(batch: Any) -> Any:
    return batch


def privet_steps(model: nn.Module, records: Split, plan: dict[str, Any]) -> Iterator[None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=plan["learning_rate"], momentum=plan["momentum"])
    private = privet.make_private(
        model,
        optimizer,
        records,
        batch_size=plan["lot"],
        steps=plan["steps"],
        noise_multiplier=plan["noise"],
        delta=DELTA,
        max_grad_norm=plan["clip"],
        loss_reduction="mean",
        seed=0,
    )
    for x, y in private.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield
    private.close()


def opacus_steps(model: nn.Module, records: Split, plan: dict[str, Any], mode: str) -> Iterator[None]:
    from opacus import PrivacyEngine

    optimizer: Any = torch.optim.SGD(model.parameters(), lr=plan["learning_rate"], momentum=plan["momentum"])
    loader = torch.utils.data.DataLoader(Tensors(records), batch_size=plan["lot"], collate_fn=together)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader,
        noise_multiplier=plan["noise"],
        max_grad_norm=plan["clip"],
        poisson_sampling=True,
        noise_generator=torch.Generator().manual_seed(0),
        grad_sample_mode=mode,
    )
    wrapped, optimizer, *criterion, loader = made
    loss_of = criterion[0] if criterion else nn.CrossEntropyLoss()
    done = 0
    while done < plan["steps"]:
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(wrapped(x), y).backward()
            optimizer.step()
            done += 1
            yield
            if done == plan["steps"]:
                return


def planned(dataset: Dataset, epsilon: float, epochs: float) -> dict[str, Any]:
    settings = recipe.load("demo-cnn").at(epsilon)
    records = len(dataset.train)
    lot = round(settings.sampling_rate * records)
    steps = round(epochs * records / lot)
    return {
        "lot": lot,
        "steps": steps,
        "noise": calibrate_noise(epsilon, DELTA, lot / records, steps),
        "clip": settings.clip,
        "learning_rate": settings.learning_rate,
        "momentum": settings.momentum,
    }


def race(runs: dict[str, Iterator[None]], steps: int) -> dict[str, float]:
    """Seconds of CPU that each took for its steps, taking turns; the first turn of each warms up and is not counted."""
    seconds = dict.fromkeys(runs, 0.0)
    counted = dict.fromkeys(runs, 0)
    for turn in range(-(-steps // TURN)):
        for name, run in runs.items():
            began, did = time.process_time(), 0
            for _ in range(TURN):
                if next(run, "ended") == "ended":
                    break
                did += 1
            if turn:
                seconds[name] += time.process_time() - began
                counted[name] += did
    return {name: seconds[name] / max(counted[name], 1) for name in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--epochs", type=float, default=7.0, help="the demo has 9; 7 take about five minutes")
    parser.add_argument("--mode", default="hooks", choices=("hooks", "functorch", "ew", "ghost"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dataset = data.load("mnist")
    plan = planned(dataset, asked.epsilon, asked.epochs)
    ours = build_model(recipe.load("demo-cnn"), dataset, seed=0)
    theirs = copy.deepcopy(ours).to(memory_format=torch.contiguous_format)
    steps = race(
        {
            "privet": privet_steps(ours, dataset.train, plan),
            "opacus": opacus_steps(theirs, dataset.train, plan, asked.mode),
        },
        plan["steps"],
    )
    row = {
        "command": shlex.join(["python", "benchmarks/opacus_training.py", *sys.argv[1:]]),
        "data": "mnist",
        "model": "tanh_cnn",
        "epsilon": asked.epsilon,
        "delta": DELTA,
        **plan,
        "mode": asked.mode,
        "milliseconds_a_step": {name: round(1000 * value, 2) for name, value in steps.items()},
        "ratio": round(steps["opacus"] / steps["privet"], 3),
        "accuracy": {"privet": accuracy(ours, dataset.test), "opacus": accuracy(theirs, dataset.test)},
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    asked.out.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
