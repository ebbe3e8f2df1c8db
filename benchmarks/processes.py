"""What a step costs in one process and in two, and what that says about more of them.

python benchmarks/processes.py --out benchmarks/results/processes.json

The machine that this ran on was shared, so that seconds on the clock say little. The ratio is one of processor times: they
include what a process computes for the exchange, but not waiting for the other one. On two free cores, two processes are at
best as fast as that. One process on half of the batch tells what the exchange costs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet
from benchmarks._cases import CASES
from privet.sampling import FixedSizeSampling

BANDWIDTH = 12.5e9
"""Bytes per second of the network in the projection: 100 Gbit/s."""


def steps_of(name: str, batch: int, steps: int) -> dict[str, float]:
    """Medians over the steps of a run: seconds on the clock and of the processor."""
    case = CASES[name]
    torch.manual_seed(0)
    model, records = case.make(), 2 * batch
    data = TensorDataset(case.inputs(records), case.targets(records))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privet.make_private(
        model, optimizer, data, sampling=FixedSizeSampling(batch, records), steps=steps + 1, noise_multiplier=1.0, delta=1e-5,
        max_grad_norm=1.0, seed=0, self_check=False,
    )  # fmt: skip
    clock, processor = [time.perf_counter()], [time.process_time()]

    def note(_: Any) -> None:
        clock.append(time.perf_counter())
        processor.append(time.process_time())

    for x, y in private.batches(on_step=note):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    private.close()
    found = {"clock": clock, "processor": processor}
    medians = {key: statistics.median(b - a for a, b in pairwise(times[1:])) for key, times in found.items()}
    return medians | {"parameters": float(sum(p.numel() for p in model.parameters()))}


def team(name: str, batch: int, steps: int, world: int) -> list[dict[str, float]]:
    """The same in each of `world` processes, forked."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for place in range(world):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    if world > 1:
                        dist.init_process_group(
                            "gloo", init_method=f"file://{folder}/meet", rank=place, world_size=world
                        )
                    Path(folder, str(place)).write_text(json.dumps(steps_of(name, batch, steps)))
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        if any(os.waitpid(pid, 0)[1] for pid in children):
            raise SystemExit(f"A process of {name} on {world} has failed.")
        return [json.loads(Path(folder, str(place)).read_text()) for place in range(world)]


def measured(name: str, steps: int, rounds: int) -> dict[str, Any]:
    """One and two processes, in turn, and the model of what a step costs."""
    batch = CASES[name].batch
    ways: dict[str, list[list[dict[str, float]]]] = {"one": [], "half": [], "two": []}
    for _ in range(rounds):
        ways["one"].append(team(name, batch, steps, 1))
        ways["half"].append(team(name, batch // 2, steps, 1))
        ways["two"].append(team(name, batch, steps, 2))

    def least(way: str, key: str) -> float:
        return min(max(each[key] for each in found) for found in ways[way])

    one, half, two = (least(way, "processor") for way in ("one", "half", "two"))
    parameters = int(ways["one"][0][0]["parameters"])
    exchange = max(two - half, 0.0)  # copies for the sum and the release, fingerprints
    return {
        "parameters": parameters,
        "seconds": {"one": one, "half the batch": half, "two": two, "two on the clock": least("two", "clock")},
        "ratio": one / two,
        "exchange": exchange,
        "bytes": 12 * parameters,
        "projection": {str(n): projected(one, exchange, 12 * parameters, n) for n in (2, 8, 64, 512)},
    }


def projected(one: float, exchange: float, size: int, processes: int) -> float:
    """How many times as fast `processes` are as one, each with the records of one (weak scaling).

    The sum (8 bytes a parameter) and the release (4) pass log2 of the number of processes links, one after the other.
    """
    network = math.log2(processes) * size / BANDWIDTH
    return processes * one / (one + exchange + network)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", nargs="+", default=["resnet8", "transformer"])
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"privet": privet.__version__, "torch": torch.__version__, "load before": os.getloadavg()}
    found["models"] = {name: measured(name, given.steps, given.rounds) for name in given.models}
    found["load after"] = os.getloadavg()
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
