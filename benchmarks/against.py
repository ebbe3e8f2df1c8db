"""One private step in two versions of the library: how much CPU time the second takes for each second of the first.

Each version runs in a process of its own, on one thread and one core; the two take turns, and which goes first changes from
round to round, so that whatever else the machine does meets both. A step is one turn of the loop of `make_private`: draw the
batch (all records, so that both versions have the same), zero_grad, forward, loss, backward, clipping, noise, ledger, division,
a step of SGD. What is printed is the median over the rounds of the ratio of process CPU times, with its 95 % interval (of
order statistics: it assumes nothing but that rounds are alike). Beside it stand the ratio of the peaks of memory of the two
processes, and how much longer the first step took in the second version than in the first, in steps: the self-check.

    git worktree add ../old v0.1.0
    python benchmarks/against.py ../old/src src [--models mlp,cnn] [--rounds 40] [--name v0.1.0]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from _cases import CASES, Case

RESULTS = Path(__file__).parent / "results"
WARM_UP = 3
STEPS = 90
"""Steps of the plan: later self-checks come at step 100 and after."""


def make_loop(case: Case, channels_last: bool) -> tuple[Callable[[], None], Any]:
    """A step of a user's loop with the version of the library that this process imports, and what `make_private` gave."""
    from torch.utils.data import TensorDataset

    import privet

    torch.manual_seed(0)
    model, x, y = case.make(), case.inputs(case.batch), case.targets(case.batch)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    private = privet.make_private(
        model, optimizer, TensorDataset(x, y), batch_size=case.batch, steps=STEPS, noise_multiplier=1.0, delta=1e-5,
        max_grad_norm=1.0, seed=0,
    )  # fmt: skip
    batches = iter(private.batches())

    def run() -> None:
        inputs, targets = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return run, private


def work(model: str, kept: bool) -> None:
    """A worker: one step and its CPU time for each line that comes in."""
    torch.set_num_threads(1)
    if kept:
        from privet import keep_freed_memory

        keep_freed_memory()
    name, _, layout = model.partition(":")
    step, private = make_loop(CASES[name], layout == "channels_last")
    start = time.process_time()
    while not private.steps_done:
        step()
    first = time.process_time() - start
    for _ in range(WARM_UP):
        step()
    print("ready", first, flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            print(_peak(), flush=True)
            continue
        start = time.process_time()
        step()
        print(time.process_time() - start, flush=True)


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


class Worker:
    def __init__(self, source: Path, model: str, kept: bool, core: int | None) -> None:
        command = [sys.executable, __file__, "--work", model, str(int(kept))]
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        if core is not None:
            os.sched_setaffinity(self.process.pid, {core})
        said, *first = self._read().split() or [""]
        if said != "ready":
            raise SystemExit(f"The version in {source} could not run {model}.")
        self.first = float(first[0])
        """Seconds until the first step was done, a self-check before it included."""

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str = "step") -> float:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return float(self._read())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def interval(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """The order statistics between which the median lies with this confidence."""
    ordered, n = sorted(values), len(values)
    left, below = 0.0, 0
    for k in range(n // 2):
        left += math.comb(n, k) / 2**n
        if left > (1 - level) / 2:
            break
        below = k
    return ordered[below], ordered[n - 1 - below]


def compare(old: Path, new: Path, model: str, rounds: int, kept: bool) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    core = cores[-1] if cores else None
    workers = [Worker(source, model, kept, core) for source in (old, new)]
    seconds: list[tuple[float, float]] = []
    for number in range(rounds):
        first = number % 2
        times = {first: workers[first].ask(), 1 - first: workers[1 - first].ask()}
        seconds.append((times[0], times[1]))
    memory = [worker.ask("memory") for worker in workers]
    for worker in workers:
        worker.close()
    ratios = [after / before for before, after in seconds]
    low, high = interval(ratios)
    return {
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "rounds": rounds,
        "old_ms": 1e3 * statistics.median(before for before, _ in seconds),
        "new_ms": 1e3 * statistics.median(after for _, after in seconds),
        "memory_ratio": memory[1] / memory[0] if memory[0] else None,
        "first_check_steps": (workers[1].first - workers[0].first) / statistics.median(after for _, after in seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "old", type=Path, nargs="?", help="the folder that holds the package `privet` of the first version"
    )
    parser.add_argument("new", type=Path, nargs="?", help="the same of the second version")
    parser.add_argument("--models", default=",".join(CASES), help="names, each perhaps with :channels_last")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--keep-freed-memory", action="store_true", help="call privet.keep_freed_memory() in both")
    parser.add_argument("--name", default="against", help="name of the file of results")
    options = parser.parse_args()
    if options.new is None:
        print("Nothing is compared: give the folders of two versions of the library.")
        return
    found: dict[str, Any] = {}
    print(f"{'model':<26} {'ratio':>6}  {'95 % interval':<15} {'old ms':>8} {'new ms':>8} {'memory':>7} {'check':>6}")
    for model in options.models.split(","):
        one = found[model] = compare(options.old, options.new, model, options.rounds, options.keep_freed_memory)
        between = f"{one['low']:.3f} to {one['high']:.3f}"
        print(
            f"{model:<26} {one['ratio']:>6.3f}  {between:<15} {one['old_ms']:>8.1f} {one['new_ms']:>8.1f} "
            f"{one['memory_ratio'] or 0:>7.2f} {one['first_check_steps']:>6.2f}",
            flush=True,
        )
    about = {"date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__, "machine": platform.machine()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{options.name}.json").write_text(json.dumps({**about, "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], bool(int(sys.argv[3])))
    else:
        main()
