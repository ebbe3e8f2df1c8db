"""What noise in the residual stream and ensembles cost: CPU time of a training step on one thread, in interleaved rounds.

Writes results/residual.json and results/residual.md, and fills the table of docs/residual-perturbation.md.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _page import put
from engine import keep_freed_memory
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

import privet
from privet.methods.perturbation import ResidualPerturbation
from privet.models import resnet

RESULTS = Path(__file__).parent / "results"
MEMBERS = 5
PLAIN = "one network"


class Grouped(nn.Module):
    """An ensemble of ResNet8 as one network with grouped convolutions: batch norm of all maps is that of each member."""

    def __init__(self, members: int, classes: int = 10) -> None:
        super().__init__()
        self.members = members
        self.stem = nn.Conv2d(3, 16 * members, 3, 1, 1, bias=False)
        stages = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        self.residuals = nn.ModuleList(self._residual(*stage) for stage in stages)
        self.norm = nn.BatchNorm2d(64 * members)
        self.heads = nn.Parameter(torch.randn(members, classes, 64) / 8)

    def _residual(self, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        k = self.members
        return nn.Sequential(
            nn.BatchNorm2d(k * inputs),
            nn.ReLU(),
            nn.Conv2d(k * inputs, k * outputs, 3, stride, 1, bias=False, groups=k),
            nn.BatchNorm2d(k * outputs),
            nn.ReLU(),
            nn.Conv2d(k * outputs, k * outputs, 3, 1, 1, bias=False, groups=k),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(4 * (x - 0.5))
        for residual in self.residuals:
            out = residual(x)
            if out.shape != x.shape:
                split = x[:, :, ::2, ::2].unflatten(1, (self.members, -1))
                x = F.pad(split, (0, 0, 0, 0, 0, split.shape[2])).flatten(1, 2)
            x = x + out
        maps = F.relu(self.norm(x)).mean((2, 3)).unflatten(1, (self.members, -1))
        return torch.einsum("nkc,kjc->nj", maps, self.heads) / self.members


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--only", nargs="*", help="words that the names of the ways to measure begin with")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    x, y = torch.rand(asked.batch, 3, 32, 32), torch.randint(10, (asked.batch,))
    ways = {
        name: way
        for name, way in steps(x, y).items()
        if not asked.only or name == PLAIN or name.startswith(tuple(asked.only))
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(asked.rounds + 1):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            if round_:  # the first one warms up
                times[name].append(time.process_time() - begin)
    # Each step is compared with the plain step of its own round.
    rows = [
        {
            "way": name,
            "milliseconds": 1e3 * statistics.median(spent),
            "cost": statistics.median(a / b for a, b in zip(spent, times[PLAIN], strict=True)),
        }
        for name, spent in times.items()
    ]
    machine = f"{platform.machine()}, torch {torch.__version__}, one thread, CPU time"
    lines = ["| a step of | milliseconds | times the plain step | throughput |", "|---|---|---|---|"]
    lines += [f"| {r['way']} | {r['milliseconds']:.0f} | {r['cost']:.2f} | {1 / r['cost']:.2f} |" for r in rows]
    text = "\n".join(
        [
            *lines,
            "",
            f"ResNet8, batches of {asked.batch} of 3x32x32; median of {asked.rounds} interleaved rounds. {machine}.",
        ]
    )
    print(text)
    if not asked.only:
        (RESULTS / "residual.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
        (RESULTS / "residual.md").write_text(text + "\n")
        put("residual-perturbation.md", "cost", f"```sh\npython benchmarks/residual.py\n```\n\n{text}")


def steps(x: Tensor, y: Tensor) -> dict[str, Callable[[], Any]]:
    x = x.contiguous(memory_format=torch.channels_last)
    plain = as_images(resnet())
    ways: dict[str, Callable[[], Any]] = {PLAIN: lambda: step(plain, x, y)}
    for strategy in ("I", "II"):
        perturbed = as_images(resnet())
        ResidualPerturbation(0.5, strategy).apply(perturbed)
        ways[f"the network under strategy {strategy}"] = lambda model=perturbed: step(model, x, y)
    ways["DP-SGD on the network with group norm"] = dpsgd(x, y)
    together = as_images(resnet(members=MEMBERS))
    ways[f"En{MEMBERS}, one member after the other"] = lambda: step(together, x, y)
    grouped = as_images(Grouped(MEMBERS))
    ways[f"En{MEMBERS}, grouped convolutions"] = lambda: step(grouped, x, y)
    members = [as_images(resnet()) for _ in range(MEMBERS)]
    parameters, buffers = stack_module_state(members)
    skeleton = copy.deepcopy(members[0]).to("meta")

    def vectorised() -> None:
        for parameter in parameters.values():
            parameter.grad = None
        scores = vmap(lambda p, b: functional_call(skeleton, (p, b), (x,)))(parameters, buffers)
        F.cross_entropy(scores.mean(0), y).backward()

    ways[f"En{MEMBERS}, torch.func.vmap"] = vectorised
    return ways


def step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    F.cross_entropy(model(x), y).backward()


def dpsgd(x: Tensor, y: Tensor) -> Callable[[], Any]:
    model = as_images(resnet(groups=8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = privet.data.Split(x, y)
    private = privet.make_private(
        model,
        optimizer,
        records,
        batch_size=len(x),
        steps=10_000,
        noise_multiplier=1.1,
        max_grad_norm=1.0,
        delta=1e-5,
        loss_reduction="mean",
        seed=0,
    )
    batches = iter(private.batches())

    def one() -> None:
        inputs, labels = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return one


def as_images(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)


if __name__ == "__main__":
    main()
