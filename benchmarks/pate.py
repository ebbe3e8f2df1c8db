"""PATE on MNIST: public records from the test part, tested on the rest of it; for benchmarks/results/mnist-scattering.json.

Trainings that `--out` holds are not made again.

    python benchmarks/pate.py --seeds 3
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path

from _page import put

from privet import data
from privet.methods import Context, DataSpec, Public, Task, method_for
from privet.methods.dpsgd import accuracy
from privet.papers import Measurement, merge
from privet.papers.results import mean

TABLE = "mnist-scattering"
RESULTS = Path(__file__).parent / "results" / f"{TABLE}.json"
PUBLIC = 5000
DELTA = 1e-5
PUBLISHED = {8: "98.10 (PATE in the GAN paper's table)", 3.45: "98.19 (the noise-layer GAN, only claimed)"}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--epsilon", type=float, nargs="*", default=[1, 3.45, 8])
    asked.add_argument("--out", type=Path, default=Path("runs/pate"))
    asked.add_argument("--page", action="store_true", help="also fill the table of docs/results.md")
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found = {epsilon: [one(epsilon, seed, given.out) for seed in range(given.seeds)] for epsilon in given.epsilon}
    command = f"python benchmarks/pate.py --seeds {given.seeds}"
    if given.page:
        merge(RESULTS, [one for epsilon, runs in found.items() for one in measurements(epsilon, runs, command)])
        put("results.md", "pate", f"```sh\n{command} --page\n```\n\n{table(found)}")


def one(epsilon: float, seed: int, out: Path) -> dict[str, float]:
    path = out / f"epsilon-{epsilon:g}-seed-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())
    mnist, spec = data.load("mnist"), DataSpec("mnist")
    task = Task(mnist, epsilon, DELTA, seed=seed, spec=spec, public=Public.of(str(PUBLIC), mnist, spec))
    method = method_for("pate", task, {"recipe": TABLE})
    context = Context.in_memory(method, task)
    started = time.process_time()
    outcome = method.fit(task, context)
    seconds = time.process_time() - started
    result = {
        "accuracy": accuracy(outcome.release.part, outcome.release.test),
        "spent": context.ledger.spent(DELTA).epsilon,
        "internal": number(outcome.internal["Data-dependent cost"]),
        "teachers": number(outcome.settings["Teachers"]),
        "answers": number(outcome.settings["Queries"]),  # all are answered
        "noise": number(outcome.settings["Noise"]),
        "seconds": seconds,
    }
    path.write_text(json.dumps(result) + "\n")
    print(f"epsilon {epsilon:g}, seed {seed}: {result}", flush=True)
    return result


def number(text: str) -> float:
    """The first number of a sentence."""
    return float(re.search(r"\d[\d,]*(\.\d+)?", text)[0].replace(",", ""))


def measurements(epsilon: float, runs: list[dict[str, float]], command: str) -> list[Measurement]:
    return [
        Measurement(
            TABLE,
            "pate",
            float(epsilon),
            DELTA,
            {"accuracy": run["accuracy"]},
            "mnist",
            seed,
            spent=run["spent"],
            guarantee="proved",
            seconds=round(run["seconds"], 1),
            command=command,
        )
        for seed, run in enumerate(runs)
    ]


def table(found: dict[float, list[dict[str, float]]]) -> str:
    lines = [
        "| epsilon | accuracy % | seeds | published % | teachers | answers | noise | data-dependent epsilon | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for epsilon, runs in found.items():
        made = mean(measurements(epsilon, runs, ""))
        spread = f" ± {100 * made.spread['accuracy']:.2f}" if made.spread else ""
        inside = max(run["internal"] for run in runs)
        asked = f"{runs[0]['teachers']:,.0f} | {runs[0]['answers']:,.0f} | {runs[0]['noise']:.1f}"
        lines.append(
            f"| {epsilon:g} | {100 * made.quantities['accuracy']:.2f}{spread} | {made.seeds} | {PUBLISHED.get(epsilon, '')} | "
            f"{asked} | {inside:.2f} | {made.seconds:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
