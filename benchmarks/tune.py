"""Tuning on the books: a secret number of trials against full composition, at the same epsilon of the whole.

Nine candidates (three learning rates, three clipping norms) of softmax regression on the digits. For each way to make trials
and each seed, the trials are drawn and chosen as `privet tune` does it; the winner's accuracy is measured on the half of the
test records that did not choose it. Two lines that nobody can have compare: settings drawn at random for one run with the
whole budget, and the settings that are best on average, known before.

Everything runs in memory and is seeded. A few minutes on two cores:

    PYTHONPATH=. python benchmarks/tune.py [--data digits] [--seeds 10] [--epsilon 1 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from privet.methods import Context, DataSpec, Method, Task
from privet.methods.preparation import scores
from privet.privacy import Gaussian, PoissonSampled, Trials
from privet.privacy.events import tally
from privet.randomness import Randomness
from privet.runs.runner import fraction_right
from privet.runs.tune import Candidate, Drawn, TuningPlan, choose, grid

sys.path.insert(0, str(Path(__file__).parent))
from _page import put

RESULTS = Path(__file__).parent / "results"
CHOICES = {"learning_rate": ["0.25", "2", "16"], "clip": ["0.1", "1", "10"]}
DELTA = 1e-5


def ways(candidates: int) -> dict[str, Trials | None]:
    return {
        "secret number, Poisson": Trials(float(candidates)),
        "secret number, logarithmic": Trials(float(candidates), 0.0),
        "secret number, geometric": Trials(float(candidates), 1.0),
        "each candidate once, full composition": None,
    }


def trained(method: Method, task: Task) -> tuple[float, Any]:
    """A run in memory: its accuracy on the records that measure, and its model."""
    outcome = method.fit(task, Context.in_memory(method, task))
    release = outcome.release
    return fraction_right(scores(release.part, release.test), release.test.labels), release.model


def tuned(plan: TuningPlan, seed: int) -> dict[str, Any]:
    """One tuning: which candidate won, and how good it is."""
    plan = replace(plan, task=replace(plan.task, seed=seed))
    drawn, found = Drawn.of(plan.trials, len(plan.candidates), Randomness.apart("tuning", seed)), {}

    def trial(number: int) -> float:
        accuracy, model = trained(plan.candidates[drawn.order[number]].method, plan.trial_task(number))
        found[number] = accuracy
        return fraction_right(scores(model, plan.validation), plan.validation.labels)

    *_, (_, best) = (0, None), *choose(drawn, trial)
    if best is None:
        return {"accuracy": None, "chosen": None, "score": None}
    chosen = plan.candidates[drawn.order[best.trial]].label
    return {"accuracy": found[best.trial], "chosen": chosen, "score": best.score}


def noise(plan: TuningPlan) -> float:
    (step,) = {leaf for run in plan.runs for leaf, _ in tally(run)}
    assert isinstance(step, PoissonSampled) and isinstance(step.event, Gaussian)
    return step.event.noise_multiplier


def alone(candidates: tuple[Candidate, ...], task: Task, seeds: int) -> dict[str, list[float]]:
    """One run of each candidate with the whole budget."""
    return {
        one.label: [trained(one.method, replace(task, seed=1000 + seed))[0] for seed in range(seeds)]
        for one in candidates
    }


def measured(data: str, epsilons: list[float], seeds: int) -> list[dict[str, Any]]:
    rows = []
    spec = DataSpec(data)
    dataset = spec.load()
    for epsilon in epsilons:
        task = Task.of(spec, dataset, epsilon, DELTA, seed=0)
        candidates = grid(["dpsgd"], task, CHOICES)
        for name, trials in ways(len(candidates)).items():
            began = time.monotonic()
            plan = TuningPlan.of(candidates, task, trials)
            runs = [tuned(plan, seed) for seed in range(seeds)]
            tried = 1.0 if trials is None else 1 - trials.never(1 / len(candidates))
            rows.append(
                {
                    "epsilon": epsilon,
                    "way": name,
                    "spent": str(plan.spent()),
                    "epsilon_of_a_trial": plan.epsilon,
                    "noise": noise(plan),
                    "tried": tried,
                    "runs": runs,
                    "seconds": round(time.monotonic() - began, 1),
                }
            )
            print(line(rows[-1]), flush=True)
        whole = TuningPlan.of(candidates, task, None).task  # without the records that choose
        found = alone(candidates, whole, max(3, seeds // 4))
        every = [value for values in found.values() for value in values]
        best = max(found, key=lambda label: statistics.fmean(found[label]))
        rows.append({"epsilon": epsilon, "way": "one run, settings at random", "values": every})
        rows.append(
            {
                "epsilon": epsilon,
                "way": "one run, the best settings known before",
                "values": found[best],
                "settings": best,
            }
        )
        print(line(rows[-2]), line(rows[-1]), sep="\n", flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    values = row.get("values") or [run["accuracy"] for run in row["runs"] if run["accuracy"] is not None]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    cells = [f"{row['epsilon']:g}", row["way"]]
    cells += (
        [f"{row['epsilon_of_a_trial']:.2f}", f"{row['noise']:.2f}", f"{100 * row['tried']:.0f} %"]
        if "noise" in row
        else [f"{row['epsilon']:g}", "", ""]
    )
    return f"| {' | '.join([*cells, f'{100 * mean:.1f} ± {100 * spread:.1f}'])} |"


def page(result: dict[str, Any]) -> str:
    heads = (
        "epsilon of the whole",
        "trials",
        "epsilon of a trial",
        "noise",
        "a candidate is tried",
        "accuracy of the winner, %",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *map(line, result["rows"])]
    said = f"{result['data']}, {result['seeds']} seeds, delta = {DELTA:g}; the mean and its standard error. `{result['command']}`"
    return "\n".join([*lines, "", said])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "data": given.data,
        "seeds": given.seeds,
        "choices": CHOICES,
        "command": " ".join(["python benchmarks/tune.py", *sys.argv[1:]]),
        "rows": measured(given.data, given.epsilon, given.seeds),
    }
    name = "tune" if given.data == "digits" else f"tune-{given.data}"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(page(result) + "\n", encoding="utf-8")
    put("tuning.md", name, page(result))


if __name__ == "__main__":
    main()
