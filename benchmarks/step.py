"""Whole private steps: what a user waits for, against a plain loop with the same loading, and against Opacus.

A step is one turn of the loop: draw a batch by Poisson sampling from 50 times as many records, load it, zero_grad, forward,
loss, backward, clipping, noise, ledger, a step of SGD. The plain loop draws and loads in the same way and does nothing else. A
seeded run has reproducible noise; a release has secret keys. Each is measured with its ledger in memory and in a folder, where
each step is on the disk before its result is used. Opacus runs with its own loader, its own noise (not the cryptographic one,
which needs a package that has to be compiled), and no ledger.

Each variant has a process of its own on one thread and one core; they take turns. Batches differ in size from turn to turn, so
times are divided by the number of records in the batch. What is compared is the median over the rounds of the ratio to the plain
loop in the same round, of CPU time and of wall time; memory is the peak of the process over that of the plain one, less what
there is before the first step.

    python benchmarks/step.py [--models mlp,cnn] [--variants plain,release] [--rounds 15]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from _cases import CASES, Case
from _page import put

RESULTS = Path(__file__).parent / "results"
VARIANTS = {
    "plain": "plain loop",
    "seeded": "Privet, seeded",
    "seeded-folder": "seeded, in a folder",
    "release": "Privet, release",
    "release-folder": "release, in a folder",
    "opacus-hooks": "Opacus, hooks",
    "opacus-ghost": "Opacus, ghost",
    "opacus-functorch": "Opacus, functorch",
    "opacus-ew": "Opacus, ew",
}
WARM_UP, MOST_STEPS, TIMES = 3, 99, 50
"""`MOST_STEPS` of a run: later self-checks come at step 100 and after. `TIMES` as many records as a batch has."""
Turn = Callable[[], int]


def plain(case: Case, model: nn.Module, records: TensorDataset) -> Turn:
    optimizer, rate = torch.optim.SGD(model.parameters(), lr=1e-3), 1 / TIMES

    def turn() -> int:
        drawn = int(torch.distributions.Binomial(len(records), rate).sample())
        x, y = records[torch.randint(len(records), (drawn,))]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        return drawn

    return turn


def private(case: Case, model: nn.Module, records: TensorDataset, variant: str) -> Turn:
    import privet

    kind, _, folder = variant.partition("-")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    private = privet.make_private(
        model, optimizer, records, batch_size=case.batch, steps=MOST_STEPS, noise_multiplier=1.0, delta=1e-6,
        max_grad_norm=1.0, seed=0 if kind == "seeded" else None,
        folder=tempfile.mkdtemp(dir=os.environ.get("STEP_FOLDER")) + "/run" if folder else None,
    )  # fmt: skip
    batches = iter(private.batches())

    def turn() -> int:
        done, drawn = private.steps_done, 0
        while private.steps_done == done:  # the first turn has the self-check
            x, y = next(batches)
            drawn = len(x)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return drawn

    return turn


def opacus(case: Case, model: nn.Module, records: TensorDataset, mode: str) -> Turn:
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator

    warnings.simplefilter("ignore")
    model = ModuleValidator.fix(model).train()
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3), noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(records, batch_size=case.batch), criterion=nn.CrossEntropyLoss(), grad_sample_mode=mode,
    )  # fmt: skip
    wrapped, optimizer, *rest, loader = made
    criterion = rest[0] if rest else nn.CrossEntropyLoss()

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    drawn = batches()

    def turn() -> int:
        x, y = next(drawn)
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()
        return len(x)

    return turn


def make_turn(name: str, variant: str) -> Turn:
    torch.manual_seed(0)
    case = CASES[name]
    model, size = case.make(), TIMES * case.batch
    records = TensorDataset(case.inputs(size), case.targets(size))
    family, _, mode = variant.partition("-")
    if family == "plain":
        return plain(case, model, records)
    return opacus(case, model, records, mode) if family == "opacus" else private(case, model, records, variant)


def work(name: str, variant: str) -> None:
    """A worker: one turn for each line that comes in; answers CPU and wall seconds for each record of a batch."""
    torch.set_num_threads(1)
    import privet

    privet.keep_freed_memory()
    turn = make_turn(name, variant)
    base = status("VmHWM")
    for _ in range(WARM_UP):
        turn()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            print(status("VmHWM") - base, flush=True)
            continue
        cpu, wall = time.process_time(), time.perf_counter()
        drawn = turn()
        print((time.process_time() - cpu) / drawn, (time.perf_counter() - wall) / drawn, flush=True)


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


class Worker:
    def __init__(self, name: str, variant: str, core: int | None) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", name, variant],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        if core is not None:
            os.sched_setaffinity(self.process.pid, {core})
        self.works = self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str = "step") -> list[float]:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return [float(number) for number in self.read().split()]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, variants: list[str], rounds: int) -> list[dict[str, Any]]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    workers = {variant: Worker(name, variant, cores[-1] if cores else None) for variant in variants}
    times: dict[str, list[list[float]]] = {variant: [] for variant in variants}
    for number in range(rounds):
        for variant in variants if number % 2 else reversed(variants):
            if workers[variant].works:
                times[variant].append(workers[variant].ask())
    rows = []
    memory = {variant: worker.ask("memory")[0] if worker.works else 0.0 for variant, worker in workers.items()}
    for variant, worker in workers.items():
        worker.close()
        row: dict[str, Any] = {"model": name, "variant": variant, "works": worker.works}
        if worker.works:
            for place, kind in enumerate(("cpu", "wall")):
                ratios = [one[place] / base[place] for one, base in zip(times[variant], times["plain"], strict=True)]
                row[kind] = round(statistics.median(ratios), 3)
                row[f"{kind}_ms"] = round(
                    1e3 * CASES[name].batch * statistics.median(one[place] for one in times[variant]), 2
                )
            row["memory"] = round(memory[variant] / max(memory["plain"], 1), 2)
        rows.append(row)
        print(row, flush=True)
    return rows


def table(rows: list[dict[str, Any]], machine: str, rounds: int) -> str:
    variants = [variant for variant in VARIANTS if any(row["variant"] == variant for row in rows)][1:]
    found = {(row["model"], row["variant"]): row for row in rows}
    lines = [
        "| model | plain, ms | " + " | ".join(VARIANTS[variant] for variant in variants) + " |",
        "|---" * (len(variants) + 2) + "|",
    ]
    for name, case in CASES.items():
        if (name, "plain") not in found:
            continue
        cells = [case.title, f"{found[name, 'plain']['cpu_ms']:.3g}"]
        for variant in variants:
            row = found.get((name, variant))
            cells.append(
                f"{row['cpu']:.2f}, {row['wall']:.2f} ({row['memory']:.2f})" if row and row["works"] else "does not run"
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Measured on: {machine}; {rounds} rounds."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--variants", default=",".join(list(VARIANTS)[:7]))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    variants = ["plain", *(variant for variant in options.variants.split(",") if variant != "plain")]
    rounds = min(options.rounds, MOST_STEPS - WARM_UP - 1)
    rows = [row for name in options.models.split(",") for row in measure(name, variants, rounds)]
    machine = (
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, one thread on one core"
    )
    text = table(rows, machine, rounds)
    print(text)
    if options.models == ",".join(CASES):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "step.json").write_text(
            json.dumps({"machine": machine, "rounds": rounds, "rows": rows}, indent=1) + "\n"
        )
        (RESULTS / "step.md").write_text(text + "\n")
        put("performance.md", "step", text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3])
    else:
        main()
