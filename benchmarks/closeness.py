"""Do artificial digits lie closer to their training records than to others? With controls, for docs/attacks.md.

The records are divided into three parts at random, again and again. A generator sees the first; its rows are asked which part
they are closer to: the first or the second (seen against unseen), and the second or the third (both unseen, the control).

    python benchmarks/closeness.py --page
"""

from __future__ import annotations

import argparse
import statistics

import torch
from _page import put

from privet import data
from privet.attacks import closest_records
from privet.attacks.synthetic import ClosestRecords
from privet.data import Split
from privet.methods import Context
from privet.methods.class_moments import Moments
from privet.methods.synthetic import Order
from privet.privacy import Ledger

ROWS = 1000


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--divisions", type=int, default=40)
    asked.add_argument("--page", action="store_true", help="fill the table of docs/attacks.md")
    given = asked.parse_args()
    digits = data.load("digits")
    inputs, labels = (
        torch.cat([getattr(split, part) for split in (digits.train, digits.test)]) for part in ("inputs", "labels")
    )
    every = Split(inputs, labels)
    lines = []
    for epsilon in (3.0, 1000.0):
        seen, control = [], []
        for number in range(given.divisions):
            generator = torch.Generator().manual_seed(number)
            parts = [
                every.select(part) for part in torch.randperm(len(every), generator=generator).split(len(every) // 3)
            ]
            order = Order(10, ROWS, epsilon, 1e-5, seed=number, records=len(parts[0]))
            rows = Moments.fitting(digits.shape, order).synthesize(parts[0], order, Context(Ledger())).inputs
            first, second, third = (part.tensors[0] for part in parts[:3])
            seen.append(closest_records(rows, first, second, generator))
            control.append(closest_records(rows, second, third, generator))
        lines += [line(f"{epsilon:g}", "seen against unseen", seen), line(f"{epsilon:g}", "both unseen", control)]
    table = "\n".join([HEAD, *lines])
    print(table)
    if given.page:
        put(
            "attacks.md",
            "closeness",
            f"```sh\npython benchmarks/closeness.py --divisions {given.divisions} --page\n```\n\n{table}",
        )


HEAD = (
    "| epsilon | parts | share of the rows, mean and deviation % | outside of what rows taken as independent would allow | "
    "outside of `by_chance` |\n|---|---|---|---|---|"
)


def line(epsilon: str, parts: str, found: list[ClosestRecords]) -> str:
    shares = [each.share for each in found]
    naive = sum(abs(share - 0.5) > 1.96 * 0.5 / ROWS**0.5 for share in shares)
    alarms = sum(each.share not in each.by_chance for each in found)
    spread = f"{100 * statistics.fmean(shares):.1f} ± {100 * statistics.stdev(shares):.1f}"
    return f"| {epsilon} | {parts} | {spread} | {naive} of {len(found)} | {alarms} of {len(found)} |"


if __name__ == "__main__":
    main()
