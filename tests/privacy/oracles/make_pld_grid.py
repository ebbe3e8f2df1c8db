"""Write pld_grid.json: dp-accounting's PLD epsilon on a grid of settings, each with two discretisation intervals.

Run it by hand (it takes most of an hour of one core); the tests read the file and recompute a random part of it.
The interval of each setting is small against the spread of one step's loss, so that the oracle is itself accurate; the
epsilon at twice the interval tells how accurate.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from pathlib import Path

from dp_accounting.pld import privacy_loss_distribution as pld

RATES = (1e-5, 1e-4, 1e-3, 0.004, 0.01, 0.03, 0.1, 0.3, 0.7, 1.0)
SIGMAS = (0.3, 0.5, 0.7, 1.0, 1.3, 2.0, 4.0, 10.0, 50.0, 200.0)
STEPS = (1, 3, 10, 100, 1000, 10_000, 100_000, 1_000_000)
DELTAS = (1e-2, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)
WANTED = 600
MOST_POINTS = 1_500_000


def deviation(rate: float, sigma: float) -> float:
    """About the standard deviation of one step's loss."""
    return rate * math.sqrt(math.expm1(min(1 / sigma**2, 50.0))) if rate < 1 else 1 / sigma


def interval_for(rate: float, sigma: float, steps: int) -> float | None:
    """A fine enough interval, a power of two; None if it would take too many points."""
    spread = min(deviation(rate, sigma), 0.3)
    interval = 2.0 ** math.floor(math.log2(0.04 * spread))
    single = 12 / sigma + 0.5 / sigma**2 if rate > 0.5 else math.log1p(rate * math.exp(min(12 / sigma, 500)))
    points = (12 * spread * math.sqrt(steps) + 2 * single) / interval
    return interval if points <= MOST_POINTS and steps * spread**2 < 3000 else None


def epsilon(rate: float, sigma: float, steps: int, delta: float, interval: float) -> float:
    single = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=interval)
    return float(single.self_compose(steps).get_epsilon_for_delta(delta))


def main() -> None:
    settings = [(r, s, t, d) for r in RATES for s in SIGMAS for t in STEPS for d in DELTAS]
    random.Random(4).shuffle(settings)
    rows: list[dict[str, float]] = []
    for rate, sigma, steps, delta in settings:
        interval = interval_for(rate, sigma, steps)
        # Its FFT is not tilted: about 1e-16 of rounding for each step has to be small against delta.
        if interval is None or steps * 1e-16 > 1e-3 * delta:
            continue
        begin = time.process_time()
        fine = epsilon(rate, sigma, steps, delta, interval)
        # Beyond 700 its e^epsilon overflows and it answers with a tail probability instead of delta.
        if not 1e-6 < fine < 600:
            continue
        coarse = epsilon(rate, sigma, steps, delta, 2 * interval)
        if not fine <= coarse <= 1.005 * fine:
            print("not accurate enough:", rate, sigma, steps, delta, fine, coarse, file=sys.stderr, flush=True)
            continue
        row = {"rate": rate, "sigma": sigma, "steps": steps, "delta": delta, "interval": interval}
        rows.append({**row, "epsilon": fine, "coarse": coarse})
        print(len(rows), row, fine, f"{time.process_time() - begin:.1f} s", file=sys.stderr, flush=True)
        if len(rows) % 20 == 0 or len(rows) == WANTED:
            text = ",\n".join(json.dumps(row) for row in rows)
            Path(__file__).with_name("pld_grid.json").write_text(f"[\n{text}\n]\n")
        if len(rows) == WANTED:
            break


if __name__ == "__main__":
    main()
