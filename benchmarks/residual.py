"""What noise in the residual stream and ensembles cost: CPU time on one thread, in interleaved rounds.

Writes results/residual.json and results/residual.md, and fills the tables of docs/residual-perturbation.md.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from _ensembles import Mapped, SharedStem, convolutions, operations
from _page import put
from torch import Tensor, nn
from torch.nn import functional as F

import privet
from privet.methods.perturbation import ResidualPerturbation
from privet.models import resnet

RESULTS = Path(__file__).parent / "results"
MEMBERS = 5
STEPS = {"a step, 128 of 32x32": (128, 32), "a step, 32 of 16x16": (32, 16)}
"""The paper's size, and that of the comparison on CIFAR-10."""
ANSWER = "an answer, one of 32x32"
ROWS = (1, 2, 4, 8, 16, 32, 128)
SIDES = (32, 16)
GOAL = 4
"""What five members may cost, in units of one network."""
IN_TURN, LAST, FIRST = (
    f"En{MEMBERS}, {way}" for way in ("one member after the other", "joined, channels last", "joined, channels first")
)
PERTURBED = ("I", "II")

Ways = dict[str, Callable[[], Any]]
Costs = dict[str, dict[str, float]]
"""Of each way: its milliseconds, and its cost in units of the first way's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    privet.keep_freed_memory()
    torch.manual_seed(0)
    networks = {name: measured(steps(*size), rounds if size[0] > 100 else 3 * rounds) for name, size in STEPS.items()}
    networks[ANSWER] = measured(answers(), 10 * rounds)
    few = {rows: few_rows(rows, rounds * max(1, 64 // rows)) for rows in ROWS}
    layers = {name: measured(convolutions(*size, MEMBERS), rounds) for name, size in STEPS.items()}
    speed = {name: operations(*size) / layers[name]["one member"]["milliseconds"] / 1e6 for name, size in STEPS.items()}
    product = matrix_product()
    machine = f"{platform.machine()}, torch {torch.__version__}"
    kept = {
        "machine": f"median of {rounds} interleaved rounds or more; {machine}, one thread, CPU time",
        "networks": networks,
        "answers": few,
        "convolutions": layers,
        "gflops": speed,
        "product": product,
    }
    (RESULTS / "residual.json").write_text(json.dumps(kept, indent=1) + "\n")
    text = page(**kept)
    print(text)
    (RESULTS / "residual.md").write_text(text + "\n")
    put("residual-perturbation.md", "cost", f"```sh\npython benchmarks/residual.py --rounds {rounds}\n```\n\n{text}")


def page(
    machine: str,
    networks: dict[str, Costs],
    answers: dict[int, Costs],
    convolutions: dict[str, Costs],
    gflops: dict[str, float],
    product: float,
) -> str:
    plain = {name: next(iter(costs.values()))["milliseconds"] for name, costs in networks.items()}
    shares = {name: costs["one member"]["milliseconds"] / plain[name] for name, costs in convolutions.items()}
    at_best = {name: MEMBERS * (share * gflops[name] / product + 1 - share) for name, share in shares.items()}
    percent = {name: 100 * share for name, share in shares.items()}
    return "\n".join(
        [
            *table("times one network", networks),
            "",
            f"One plain network takes {' / '.join(f'{value:.3g}' for value in plain.values())} ms ({machine}).",
            "",
            "Answers of the plain ensemble to so many rows at once, each in units of one network's answer to as many:",
            "",
            *table("rows", {str(rows): costs for rows, costs in answers.items()}),
            "",
            f"Joined, channels first, five members cost at most {GOAL} times one for up to "
            f"{' and '.join(f'{at_most(answers, side)} rows of {side}x{side}' for side in SIDES)}.",
            "",
            "The convolutions after the first alone, there and back, for five members:",
            "",
            *table("times one member", convolutions),
            "",
            f"One member's are {each(percent, '.0f')} % of its step and run at {each(gflops, '.0f')} GFLOP/s; the product of two "
            f"large matrices runs at {product:.0f}. If five members' ran at that, and all else took five times as long, "
            f"they would cost {each(at_best, '.2f')} times one.",
        ]
    )


def at_most(answers: dict[int, Costs], side: int) -> int:
    """For how many rows, and all fewer, the joined ensemble reaches the goal."""
    reached = takewhile(lambda rows: answers[rows][of_side(FIRST, side)]["cost"] <= GOAL, answers)
    return max(reached, default=0)


def of_side(way: str, side: int) -> str:
    return f"{way}, {side}x{side}"


def each(values: dict[str, float], form: str) -> str:
    return " and ".join(f"{value:{form}}" for value in values.values())


def table(title: str, cases: dict[str, Costs]) -> list[str]:
    names = list(dict.fromkeys(way for costs in cases.values() for way in costs))
    cells = [[f"{costs[way]['cost']:.2f}" if way in costs else "" for costs in cases.values()] for way in names]
    rows = [" | ".join((way, *row)) for way, row in zip(names, cells, strict=True)]
    return [f"| {' | '.join((title, *cases))} |", f"|{'---|' * (1 + len(cases))}", *(f"| {row} |" for row in rows)]


def measured(ways: Ways, rounds: int) -> Costs:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            if round_:  # the first one warms up
                times[name].append(time.process_time() - begin)
    one = next(iter(times.values()))
    # Each is compared with the first of its own round.
    return {
        name: {
            "milliseconds": 1e3 * statistics.median(spent),
            "cost": statistics.median(a / b for a, b in zip(spent, one, strict=True)),
        }
        for name, spent in times.items()
    }


def steps(batch: int, side: int) -> Ways:
    x, y = torch.rand(batch, 3, side, side), torch.randint(10, (batch,))
    ways: Ways = {name: partial(step, model, laid_out(x, name), y) for name, model in networks().items()}
    return ways | {"DP-SGD on the network with group norm": dpsgd(x, y)}


def answers() -> Ways:
    x = torch.rand(1, 3, 32, 32)
    return {name: partial(answer, model.eval(), laid_out(x, name)) for name, model in networks().items()}


def few_rows(rows: int, rounds: int) -> Costs:
    """The ensemble in turn and joined, against one network's answers to as many images of the same size."""
    found: Costs = {}
    for side in SIDES:
        x = torch.rand(rows, 3, side, side)
        made = {name: model for name, model in networks().items() if name in ("one network", IN_TURN, LAST, FIRST)}
        costs = measured({way: partial(answer, model.eval(), laid_out(x, way)) for way, model in made.items()}, rounds)
        found |= {of_side(way, side): cost for way, cost in costs.items() if way != "one network"}
    return found


def laid_out(x: Tensor, way: str) -> Tensor:
    return x if way.endswith("first") else x.contiguous(memory_format=torch.channels_last)


def networks() -> dict[str, nn.Module]:
    made = {"one network": as_images(resnet())}
    for strategy in PERTURBED:
        made[f"the network under strategy {strategy}"] = as_images(resnet())
        ResidualPerturbation(0.5, strategy).apply(made[f"the network under strategy {strategy}"])
    return made | {
        IN_TURN: as_images(resnet(members=MEMBERS)),
        f"En{MEMBERS}, the first layers as one": as_images(SharedStem(MEMBERS)),
        LAST: as_images(resnet(members=MEMBERS)).joined(),
        FIRST: resnet(members=MEMBERS).joined(),
        f"En{MEMBERS}, torch.func.vmap": Mapped(MEMBERS),
    }


def step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    F.cross_entropy(model(x), y).backward()


def answer(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        model(x)


def matrix_product(size: int = 1024, times: int = 10) -> float:
    """GFLOP/s of the library's product of two large matrices: what this core can do."""
    a = torch.randn(size, size)
    a @ a
    begin = time.process_time()
    for _ in range(times):
        a @ a
    return 2e-9 * size**3 * times / (time.process_time() - begin)


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
