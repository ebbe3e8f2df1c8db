"""Users as the unit of privacy: what it costs in accuracy, and what it costs in time.

Accuracy: MNIST is dealt to users who hold 1 to 500 records each (a power law), mostly of two classes of their own. A linear
classifier of scattering features is trained at one epsilon with the record as the unit, and with the user as the unit and at
most 1, 4, 16 or 64 examples of a user in a step. All runs have the same steps, learning rate and clipping norm, which were
set once and not tuned; the test records only measure.

Time: one step over the same examples, each a record of its own or eight to a user, in turns; CPU time on one thread.

    PYTHONPATH=. python benchmarks/users.py [--seeds 3] [--epsilon 3] [--rounds 40] [--only accuracy|time]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet
from privet.data import compute_features, load
from privet.models import scattering_linear
from privet.sampling import Users

sys.path.insert(0, str(Path(__file__).parent))
from _cases import CASES

RESULTS = Path(__file__).parent / "results"
MOST_HELD = 500
POWER = 1.6
"""The chance that a user holds n records falls as n to the minus this."""
STEPS, USERS_A_STEP, RECORDS_A_STEP = 400, 0.1, 0.02


def deal(labels: Tensor, seed: int) -> Tensor:
    """A user for each record: sizes by a power law, and two classes to a user for nine of ten of their records."""
    generator = torch.Generator().manual_seed(seed)
    chances = torch.arange(1, MOST_HELD + 1).double() ** -POWER
    by_class = [list(row) for row in _by_class(labels, generator)]
    owners, user = torch.full((len(labels),), -1), 0
    while any(by_class):
        size = int(torch.multinomial(chances, 1, generator=generator)) + 1
        own = torch.randperm(10, generator=generator)[:2].tolist()
        for _ in range(size):
            other = float(torch.rand((), generator=generator)) < 0.1
            wanted = [c for c in (range(10) if other else own) if by_class[c]] or [c for c in range(10) if by_class[c]]
            if not wanted:
                break
            chosen = wanted[int(torch.randint(len(wanted), (), generator=generator))]
            owners[by_class[chosen].pop()] = user
        user += 1
    return owners.unique(return_inverse=True)[1]


def _by_class(labels: Tensor, generator: torch.Generator) -> list[list[int]]:
    order = torch.randperm(len(labels), generator=generator)
    return [order[labels[order] == c].tolist() for c in range(10)]


def train(
    x: Tensor, y: Tensor, epsilon: float, delta: float, seed: int, users: Users | None
) -> tuple[nn.Module, privet.training.Private]:
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0, momentum=0.9)
    held = len(x) if users is None else len(users.found_in(x))
    private = privet.make_private(
        model, optimizer, TensorDataset(x, y), epsilon=epsilon, delta=delta, steps=STEPS, max_grad_norm=0.5, seed=seed,
        batch_size=round((RECORDS_A_STEP if users is None else USERS_A_STEP) * held), users=users, average=0.95,
        performance=privet.Performance(physical_batch_size=2048),
    )  # fmt: skip
    for rows, labels in private.batches():
        private.step(F.cross_entropy(model(rows), labels, reduction="none"))
    assert private.average is not None
    private.average.keep()
    return model, private


def features() -> dict[str, tuple[Tensor, Tensor]]:
    """Scattering coefficients, each record's scaled to norm 1: a fixed transform of each record by itself."""
    dataset = load("mnist")
    model = scattering_linear(1, 28, 28, 10)
    kept = compute_features(dataset, model.features, model.key)
    found = {}
    for name in ("train", "test"):
        rows = kept[name].tensors[0].flatten(1)
        found[name] = F.normalize(rows - rows.mean(1, keepdim=True)), kept[name].labels
    return found


def accuracy(epsilon: float, seeds: int) -> dict[str, Any]:
    data = features()
    (x, y), (test_x, test_y) = data["train"], data["test"]
    rows: dict[str, list[float]] = {}
    told: dict[str, Any] = {}
    for seed in range(seeds):
        owners = deal(y, seed)
        sizes = torch.bincount(owners)
        delta = 1e-5
        runs: list[tuple[str, Users | None]] = [("record", None)]
        runs += [(f"user, {most}", Users(owners, most=most)) for most in (1, 4, 16, 64)]
        for name, users in runs:
            start = time.process_time()
            model, private = train(x, y, epsilon, delta, seed, users)
            right = float((model(test_x).argmax(1) == test_y).double().mean())
            rows.setdefault(name, []).append(right)
            told.setdefault(name, {"spent": str(private.spent()), "cpu_seconds": []})
            told[name]["cpu_seconds"].append(round(time.process_time() - start, 1))
            print(f"seed {seed}: {name}: {100 * right:.2f} % ({private.spent()})", flush=True)
        told["deal"] = {
            "users": len(sizes), "largest": int(sizes.max()), "median": int(sizes.median()), "delta": delta,
        }  # fmt: skip
    return {
        "epsilon": epsilon,
        **told.pop("deal"),
        "rows": {name: {"accuracy": values, **told[name]} for name, values in rows.items()},
    }


def step(case: str, users: int, rounds: int) -> Callable[[], float]:
    """The CPU time of a step over a case's batch, with so many examples to a user; 0 means that a record is the unit."""
    chosen = CASES[case]
    torch.manual_seed(0)
    model, x, y = chosen.make(), chosen.inputs(chosen.batch), chosen.targets(chosen.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    units = chosen.batch // users if users else chosen.batch
    private = privet.make_private(
        model, optimizer, TensorDataset(x, y), batch_size=units, steps=rounds + 5, noise_multiplier=1.0, delta=1e-5,
        max_grad_norm=1.0, seed=0, users=torch.arange(chosen.batch) // users if users else None,
    )  # fmt: skip
    batches = iter(private.batches())

    def run() -> float:
        start, before = time.process_time(), private.steps_done
        while private.steps_done == before:
            inputs, targets = next(batches)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        return time.process_time() - start

    return run


def times(rounds: int) -> dict[str, Any]:
    found = {}
    for case in CASES:
        one, eight = step(case, 0, rounds), step(case, 8, rounds)
        for _ in range(3):
            one(), eight()
        ratios = []
        for number in range(rounds):
            pair = (one(), eight()) if number % 2 else (eight(), one())[::-1]
            ratios.append(pair[1] / pair[0])
        ratios.sort()
        low, high = (
            ratios[max(int(rounds / 2 - 0.98 * rounds**0.5), 0)],
            ratios[min(int(rounds / 2 + 0.98 * rounds**0.5), rounds - 1)],
        )
        found[case] = {"ratio": statistics.median(ratios), "low": low, "high": high, "rounds": rounds}
        print(
            f"{case}: a step by users takes {found[case]['ratio']:.2f} ({low:.2f} to {high:.2f}) of one by records",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", choices=["accuracy", "time"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "users.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    result |= {"date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__}
    if options.only != "time":
        result["accuracy"] = accuracy(options.epsilon, options.seeds)
    if options.only != "accuracy":
        result["time"] = times(options.rounds)
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
