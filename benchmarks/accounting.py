"""Accounting: Privet's PLD against Opacus' PRV and dp-accounting's PLD, in one interleaved run, by CPU time on one thread.

Writes results/accounting.json and results/accounting.md. The others take minutes; Privet is measured before and after each.
Every measurement of Privet starts with empty caches.
"""

# ruff: noqa: E402 - the number of threads has to be set before NumPy is imported

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import dp_accounting
from dp_accounting.pld import PLDAccountant

from privet.privacy import Gaussian, Ledger, PoissonSampled, Schedule, accountant_named, calibrate_noise
from privet.privacy.accountants import pld as own
from privet.privacy.pld import composition, engine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from opacus.accountants import PRVAccountant
    from opacus.accountants.utils import get_noise_multiplier

RATE, STEPS, DELTA = 0.01, 1500, 1e-5
SIGMAS = [0.8 + 0.4 * i / 300 for i in range(300)]
PLD = accountant_named("pld")
REPEATS = 5


def cold(call: Callable[[], float]) -> Callable[[], float]:
    def run() -> float:
        own._cached_epsilon.cache_clear()
        engine._curve.cache_clear()
        composition._cells.cache_clear()
        composition.span_of.cache_clear()
        return call()

    return run


def timed(call: Callable[[], float]) -> tuple[float, float]:
    begin = time.process_time()
    value = call()
    return value, time.process_time() - begin


def google_epsilon(parts: list[tuple[float, int]]) -> float:
    accountant = PLDAccountant()
    for sigma, count in parts:
        event = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(event, count)
    return float(accountant.get_epsilon(DELTA))


def google_calibrate(epsilon: float) -> float:
    def event(sigma: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, STEPS)

    return float(dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, DELTA))


def opacus_epsilon(parts: list[tuple[float, int]]) -> float:
    accountant = PRVAccountant()
    accountant.history = [(sigma, RATE, count) for sigma, count in parts]
    return float(accountant.get_epsilon(DELTA))


def opacus_calibrate(epsilon: float) -> float:
    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=RATE,
            steps=STEPS,
            accountant="prv",
            epsilon_tolerance=1e-3 * epsilon,
        )
    )


def own_epsilon(parts: list[tuple[float, int]]) -> float:
    return PLD.epsilon(Schedule(tuple(parts)).event(RATE), DELTA)


def cases() -> list[tuple[str, Callable[[], float], Callable[[], float], Callable[[], float]]]:
    one = [(1.1, STEPS)]
    many = [(sigma, 1) for sigma in SIGMAS]
    return [
        ("epsilon of 1,500 steps", lambda: own_epsilon(one), lambda: google_epsilon(one), lambda: opacus_epsilon(one)),
        ("noise for epsilon 1", *(lambda f=f: f(1.0) for f in (own_calibrate, google_calibrate, opacus_calibrate))),
        ("noise for epsilon 50", *(lambda f=f: f(50.0) for f in (own_calibrate, google_calibrate, opacus_calibrate))),
        (
            "epsilon of 300 different sigmas",
            *(lambda f=f: f(many) for f in (own_epsilon, google_epsilon, opacus_epsilon)),
        ),
    ]


def own_calibrate(epsilon: float) -> float:
    return calibrate_noise(epsilon, DELTA, RATE, STEPS)


def guarded(call: Callable[[], float]) -> tuple[float, float]:
    """The others may raise (Opacus' PRV does for large budgets): then the time until then counts for nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return timed(call)
    except Exception as error:
        print(f"  raised {type(error).__name__}: {error}")
        return math.nan, math.nan


def progress_bar() -> dict[str, float]:
    """The epsilon so far, every ten steps of a run."""
    ledger, times = Ledger(), []
    for step in range(STEPS):
        ledger.record(PoissonSampled(RATE, Gaussian(1.1)))
        if step % 10 == 9:
            times.append(timed(lambda: ledger.spent(DELTA).epsilon)[1])
    return {"median": statistics.median(times), "largest": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Privet only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rows = []
    for name, mine, google, opacus in cases():
        mine = cold(mine)
        mine()  # imports and first calls are nobody's cost
        ours = [timed(mine) for _ in range(REPEATS)]
        others = [(math.nan, math.nan)] * 2 if quick else [guarded(google)]
        ours += [timed(mine) for _ in range(REPEATS)]
        if not quick:
            others.append(guarded(opacus))
            ours += [timed(mine) for _ in range(REPEATS)]
        seconds = statistics.median(one for _, one in ours)
        row = {
            "case": name,
            "privet": {"value": ours[0][0], "seconds": seconds, "slowest": max(one for _, one in ours)},
            "dp-accounting PLD": {"value": others[0][0], "seconds": others[0][1], "ratio": others[0][1] / seconds},
            "Opacus PRV": {"value": others[1][0], "seconds": others[1][1], "ratio": others[1][1] / seconds},
        }
        if name.startswith("noise") and not quick:
            # By dp-accounting's PLD, what the noise that each found really costs.
            for key in ("privet", "dp-accounting PLD", "Opacus PRV"):
                row[key]["epsilon"] = (
                    google_epsilon([(row[key]["value"], STEPS)]) if row[key]["value"] > 0 else math.nan
                )
        rows.append(row)
        print(json.dumps(row), flush=True)
    result = {
        "setting": {"rate": RATE, "steps": STEPS, "delta": DELTA, "sigmas": [SIGMAS[0], SIGMAS[-1]]},
        "rows": rows,
        "progress bar, seconds a query": progress_bar(),
        "versions": {name: version(name) for name in ("dp-accounting", "opacus", "numpy", "scipy", "torch")},
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one thread, CPU time",
    }
    print(json.dumps(result["progress bar, seconds a query"]))
    if quick:
        return
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / "accounting.json").write_text(json.dumps(result, indent=2) + "\n")
    (folder / "accounting.md").write_text(table(result))


def table(result: dict) -> str:
    lines = [
        "| | Privet | dp-accounting PLD | Opacus PRV |",
        "|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = [f"{row['privet']['value']:.4f} in {row['privet']['seconds'] * 1000:.0f} ms"]
        for key in ("dp-accounting PLD", "Opacus PRV"):
            other = row[key]
            said = f"{other['value']:.4f} in {other['seconds']:.1f} s: **{other['ratio']:.0f}x**"
            cells.append(said if math.isfinite(other["seconds"]) else "raises")
        lines.append(f"| {row['case']} | " + " | ".join(cells) + " |")
    query = result["progress bar, seconds a query"]
    lines += ["", f"Epsilon so far, every ten steps of a run: {query['median'] * 1000:.1f} ms a query (median).", ""]
    lines += [
        f"{result['machine']}. " + ", ".join(f"{k} {v}" for k, v in result["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
