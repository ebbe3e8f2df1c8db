"""PATE on MNIST: public records from the test part, tested on the rest of it; rows for benchmarks/results/accuracy.json.

Trainings that `--out` holds are not made again.

    python benchmarks/pate.py --seeds 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from _page import put
from privet.recipes.table import Row, merge

from privet import data, recipes
from privet.methods.dpsgd import accuracy

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
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
        merge(RESULTS, [row(epsilon, runs, command) for epsilon, runs in found.items()])
        put("results.md", "pate", f"```sh\n{command} --page\n```\n\n{table(found)}")


def one(epsilon: float, seed: int, out: Path) -> dict[str, float]:
    path = out / f"epsilon-{epsilon:g}-seed-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())
    mnist = data.load("mnist")
    started = time.process_time()
    public = recipes.Public.of(str(PUBLIC), mnist, "mnist", data.load)
    fitted = recipes.fit_pate(recipes.load("mnist-scattering"), mnist, public, epsilon=epsilon, delta=DELTA, seed=seed)
    seconds = time.process_time() - started
    answers = fitted.trained.answers
    assert answers.internal is not None
    result = {
        "accuracy": accuracy(fitted.trained.model, fitted.test),
        "spent": fitted.trained.ledger.spent(DELTA).epsilon,
        "internal": answers.internal.epsilon,
        "teachers": fitted.voting.teachers,
        "answers": len(answers.labels),
        "noise": answers.noise,
        "seconds": seconds,
    }
    path.write_text(json.dumps(result) + "\n")
    print(f"epsilon {epsilon:g}, seed {seed}: {result}", flush=True)
    return result


def row(epsilon: float, runs: list[dict[str, float]], command: str) -> Row:
    accuracies = [run["accuracy"] for run in runs]
    return Row(
        data="mnist",
        method="pate",
        epsilon=epsilon,
        delta=DELTA,
        accuracy=round(statistics.fmean(accuracies), 6),
        std=round(statistics.stdev(accuracies), 6) if len(runs) > 1 else None,
        seeds=len(runs),
        seconds=round(statistics.fmean(run["seconds"] for run in runs), 1),
        recipe="mnist-scattering",
        command=command,
        curve=(),
    )


def table(found: dict[float, list[dict[str, float]]]) -> str:
    lines = [
        "| epsilon | accuracy % | seeds | published % | teachers | answers | noise | data-dependent epsilon | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for epsilon, runs in found.items():
        made = row(epsilon, runs, "")
        spread = f" ± {100 * made.std:.2f}" if made.std is not None else ""
        inside = max(run["internal"] for run in runs)
        lines.append(
            f"| {epsilon:g} | {100 * made.accuracy:.2f}{spread} | {made.seeds} | {PUBLISHED.get(epsilon, '')} | "
            f"{runs[0]['teachers']:,} | {runs[0]['answers']:,} | {runs[0]['noise']:.1f} | {inside:.2f} | {made.seconds:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
