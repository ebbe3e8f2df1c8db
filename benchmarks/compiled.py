"""A private step of `torch.compile(model)` beside one of the model itself: CPU time, in turns.

    OMP_NUM_THREADS=1 python benchmarks/compiled.py [--models mlp,cnn,transformer] [--rounds 20]

Inside the private loop a compiled model runs as it is, so that its operations are seen; nothing is compiled there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from _cases import CASES, Case

import privet


def stepping(case: Case, rounds: int, compiled: bool) -> Callable[[], float]:
    """A function that takes one step and gives its CPU seconds. The first call includes the self-check."""
    torch.manual_seed(0)
    model = case.make()
    used = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(case.inputs(4 * case.batch), case.targets(4 * case.batch))
    private = privet.make_private(
        used, optimizer, data, batch_size=case.batch, steps=rounds + 1, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0,
        seed=0,
    )  # fmt: skip

    def step() -> float:
        began = time.process_time()
        for x, y in private.batches(steps=1):
            private.step(F.cross_entropy(used(x), y, reduction="none"))
        return time.process_time() - began

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | step, ms | compiled over plain | first step, compiled over plain |\n|---|---|---|---|")
    for name in asked.models.split(","):
        steps = [stepping(CASES[name], asked.rounds, compiled) for compiled in (False, True)]
        first = [step() for step in steps]
        times = [[step() for step in steps] for _ in range(asked.rounds)]
        ratio = statistics.median(compiled / plain for plain, compiled in times)
        usual = 1e3 * statistics.median(plain for plain, _ in times)
        print(f"| {CASES[name].title} | {usual:.0f} | {ratio:.2f} | {first[1] / first[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
