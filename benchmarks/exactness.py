"""How exact epsilon(delta) and delta(epsilon) are, from 1e-12 to .9 and near delta(0).

Against closed forms, mpmath integrals and dp-accounting. Writes results/exactness.json and results/exactness.md.

    PYTHONPATH=src python benchmarks/exactness.py

For each setting and delta: the true delta at the epsilon that is stated must not be above delta; epsilon must be at most 0.1 %
above the truth, or the truth's delta there at most 0.1 % below delta (near delta(0), where epsilon goes to 0). And
delta(epsilon) at that epsilon must be between the truth and 0.1 % (or 1e-14) above it.
"""

# ruff: noqa: E402 - the number of threads has to be set before NumPy is imported

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mpmath as mp
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as google

from privet.privacy import Event, Gaussian, Laplace, PoissonSampled, PureEpsilon, RandomizedResponse, accountant_named
from privet.privacy.accountants import pld as own
from privet.privacy.pld import composition, engine

PLD = accountant_named("pld")
DELTAS = (1e-12, 1e-9, 1e-7, 1e-5, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9)
NEAR = (0.3, 0.7, 0.9, 0.99, 0.999, 1.001)
"""Deltas relative to delta(0)."""
TOLERANCE = 1e-3
ROUNDING = 1e-14
"""The absolute error that delta may have besides: the rounding of an FFT, seen next to the largest of bounded losses."""

mp.mp.dps = 40
Truth = Callable[[float], "mp.mpf"]


@dataclass(frozen=True)
class Setting:
    family: str
    said: str
    event: Event
    truth: Truth
    relation: str = "add-remove"
    slack: float = 1e-9
    """The error of the truth itself, relative to delta: 0 for formulas."""


def gaussian(mu: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.e**epsilon * mp.ncdf(-mu / 2 - epsilon / mu)


def anywhere(mu: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    """The same formula for negative epsilons too."""
    return gaussian(mu, epsilon) if epsilon >= 0 else 1 - mp.e**epsilon + mp.e**epsilon * gaussian(mu, -epsilon)


def gaussians() -> Iterator[Setting]:
    for sigma, steps in ((0.3, 1), (1.0, 1), (5.0, 1), (1000.0, 10**6), (3.0, 50), (100.0, 10), (1e4, 100), (0.1, 3)):
        mu = mp.sqrt(steps) / mp.mpf(sigma)
        yield Setting(
            "Gaussian (formula)",
            f"sigma {sigma:g}, {steps:,} times",
            Gaussian(sigma) * steps,
            lambda epsilon, mu=mu: gaussian(mu, mp.mpf(epsilon)),
        )


def laplaces() -> Iterator[Setting]:
    for scale in (0.05, 0.3, 1.0, 4.0, 300.0):
        yield Setting(
            "Laplace (formula)",
            f"scale {scale:g}",
            Laplace(scale),
            lambda epsilon, scale=scale: max(mp.mpf(0), -mp.expm1((mp.mpf(epsilon) - 1 / mp.mpf(scale)) / 2)),
        )


def binomial(each: float, right: mp.mpf, steps: int, epsilon: float) -> mp.mpf:
    total, target = mp.mpf(0), mp.mpf(epsilon)
    for wins in range(steps + 1):
        loss = (2 * wins - steps) * mp.mpf(each)
        if loss > target:
            total += mp.binomial(steps, wins) * right**wins * (1 - right) ** (steps - wins) * -mp.expm1(target - loss)
    return total


def responses() -> Iterator[Setting]:
    for each, steps in ((1.0, 1), (0.1, 20), (0.5, 100), (0.01, 300), (5.0, 4), (1e-4, 100), (2.0, 30)):
        right = 1 / (1 + mp.e ** (-mp.mpf(each)))
        yield Setting(
            "randomized response (binomial sum)",
            f"epsilon {each:g}, {steps} times",
            PureEpsilon(each) * steps,
            lambda epsilon, each=each, right=right, steps=steps: binomial(each, right, steps, epsilon),
        )
    for noise, steps in ((0.5, 100), (0.9, 200), (0.1, 5)):
        each = math.log1p((1 - noise) * 2 / noise)
        right = 1 - mp.mpf(noise) / 2
        yield Setting(
            "randomized response (binomial sum)",
            f"2 buckets, noise {noise:g}, {steps} times, replace one",
            RandomizedResponse(noise, 2) * steps,
            lambda epsilon, each=each, right=right, steps=steps: binomial(each, right, steps, epsilon),
            "replace-one",
        )


def sampled_once() -> Iterator[Setting]:
    def truth(epsilon: float, rate: mp.mpf, mu: mp.mpf) -> mp.mpf:
        grown = mp.e ** mp.mpf(epsilon)
        removed = rate * gaussian(mu, mp.log1p((grown - 1) / rate))
        left = 1 - grown * (1 - rate)
        return max(removed, left * gaussian(mu, mp.log(grown * rate / left)) if left > 0 else mp.mpf(0))

    for rate in (1e-4, 0.01, 0.3, 0.9):
        for sigma in (0.4, 1.0, 10.0):
            yield Setting(
                "Poisson-sampled Gaussian, once (formula)",
                f"rate {rate:g}, sigma {sigma:g}",
                PoissonSampled(rate, Gaussian(sigma)),
                lambda epsilon, rate=rate, sigma=sigma: truth(epsilon, mp.mpf(rate), 1 / mp.mpf(sigma)),
            )


def mixed() -> Iterator[Setting]:
    """A Laplace and a Gaussian release: E[delta_Gaussian(epsilon - L)] over the Laplace release's loss."""

    def truth(epsilon: float, each: float, mu: float) -> mp.mpf:
        e, m, target = mp.mpf(each), mp.mpf(mu), mp.mpf(epsilon)

        def inner(loss: mp.mpf) -> mp.mpf:
            # On (-e, e) the loss has density e^((loss - e)/2) / 4.
            return mp.e ** ((loss - e) / 2) / 4 * anywhere(m, target - loss)

        ends = anywhere(m, target - e) / 2 + mp.e ** (-e) / 2 * anywhere(m, target + e)
        return ends + mp.quad(inner, [-e, -e / 2, 0, e / 2, e])

    for each, mu in ((0.5, 0.5), (1.0, 0.2), (0.05, 1.0), (3.0, 1.0)):
        yield Setting(
            "Laplace and Gaussian (mpmath integral)",
            f"epsilon {each:g}, mu {mu:g}",
            Laplace(1 / each) + Gaussian(1 / mu),
            lambda epsilon, each=each, mu=mu: truth(epsilon, each, mu),
        )


def composed() -> Iterator[Setting]:
    """dp-accounting, whose own error is told by halving its interval."""
    for rate, sigma, steps, interval in (
        (0.01, 1.1, 1500, 2e-4),
        (0.01, 4.0, 1000, 5e-5),
        (0.001, 0.7, 1000, 1e-4),
        (0.1, 2.0, 100, 5e-4),
        (0.5, 5.0, 300, 1e-3),
        (0.02, 0.8, 30, 5e-4),
        (0.3, 1.0, 10, 2e-3),
    ):
        fine, coarse = (
            google.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=size).self_compose(
                steps
            )
            for size in (interval, 2 * interval)
        )
        probe = fine.get_epsilon_for_delta(1e-6)
        error = 2 * abs(coarse.get_delta_for_epsilon(probe) / fine.get_delta_for_epsilon(probe) - 1) + 2e-5
        yield Setting(
            "Poisson-sampled Gaussian, composed (dp-accounting)",
            f"rate {rate:g}, sigma {sigma:g}, {steps:,} times",
            PoissonSampled(rate, Gaussian(sigma)) * steps,
            lambda epsilon, fine=fine: mp.mpf(float(fine.get_delta_for_epsilon(epsilon))),
            slack=error,
        )


def cold() -> None:
    own._cached_epsilon.cache_clear()
    engine._curve.cache_clear()
    composition._cells.cache_clear()
    composition.span_of.cache_clear()


def timed(call: Callable[[], float]) -> tuple[float, float]:
    cold()
    begin = time.process_time()
    value = call()
    return value, time.process_time() - begin


def rows_of(setting: Setting) -> Iterator[dict[str, float | str]]:
    start = float(setting.truth(0.0))
    wanted = [delta for delta in DELTAS if delta < start or delta in (0.9,)]
    wanted += [share * start for share in NEAR if share * start <= 1]
    # The oracle's rounding is about 1e-16 for each of its steps: smaller deltas are not asked of it.
    if setting.slack > 1e-8:
        wanted = [delta for delta in wanted if delta >= 1e-9]
    for delta in wanted:
        epsilon, first = timed(lambda delta=delta: PLD.epsilon(setting.event, delta, setting.relation))
        there = setting.truth(epsilon)
        loose = float(setting.truth(epsilon / (1 + TOLERANCE)))
        row: dict[str, float | str] = {
            "family": setting.family,
            "setting": setting.said,
            "delta": delta,
            "epsilon": epsilon,
        }
        row["seconds of epsilon"] = first
        row["never below"] = bool(there <= delta * (1 + setting.slack))
        tight = epsilon == 0 or loose > delta * (1 - setting.slack) or there >= delta / (1 + TOLERANCE + setting.slack)
        row["within 0.1 %"] = bool(tight)
        if there > 1e-13:
            value, second = timed(lambda epsilon=epsilon: PLD.delta(setting.event, epsilon, setting.relation))
            row["delta above the truth by"] = float(value / there - 1)
            row["seconds of delta"] = second
            row["never below"] &= bool(value >= there * (1 - setting.slack))
            row["within 0.1 %"] &= bool(value <= there * (1 + TOLERANCE + setting.slack) + ROUNDING)
        yield row
    value, _ = timed(lambda: PLD.delta(setting.event, 0.0, setting.relation))
    yield {
        "family": setting.family,
        "setting": setting.said,
        "delta": start,
        "epsilon": 0.0,
        "delta above the truth by": value / start - 1,
        "never below": bool(value >= start * (1 - setting.slack)),
        "within 0.1 %": bool(value <= start * (1 + TOLERANCE + setting.slack)),
    }


def curves() -> list[dict[str, float | str]]:
    """A thousand epsilons at once against single calls."""
    found = []
    for rate, sigma, steps in ((0.01, 1.1, 1500), (0.001, 0.7, 10_000), (0.3, 5.0, 1000)):
        event = PoissonSampled(rate, Gaussian(sigma)) * steps
        top = PLD.epsilon(event, 1e-12)
        points = np.linspace(0.0, top, 1000)
        cold()
        begin = time.process_time()
        curve = PLD.deltas(event, points)
        whole = time.process_time() - begin
        singles = [timed(lambda event=event, point=point: PLD.delta(event, float(point))) for point in points[::111]]
        apart = max(abs(one / curve[111 * i] - 1) for i, (one, _) in enumerate(singles))
        found.append(
            {
                "setting": f"rate {rate:g}, sigma {sigma:g}, {steps:,} times",
                "seconds of 1,000": whole,
                "seconds of one": statistics.median(seconds for _, seconds in singles),
                "apart by": apart,
                "falling": bool((np.diff(curve) <= 0).all()),
            }
        )
    return found


def main() -> None:
    rows = []
    for family in (gaussians, laplaces, responses, sampled_once, mixed, composed):
        for setting in family():
            rows += rows_of(setting)
        print(family.__name__, len(rows), flush=True)
    result = {
        "rows": rows,
        "curves": curves(),
        "versions": {one: version(one) for one in ("dp-accounting", "mpmath", "numpy", "scipy")},
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one thread, CPU time, empty caches",
    }
    folder = Path(__file__).parent / "results"
    text = json.dumps(result, indent=None, separators=(",", ":")).replace('{"family"', '\n{"family"')
    (folder / "exactness.json").write_text(text + "\n")
    (folder / "exactness.md").write_text(table(result))
    print(table(result))


def table(result: dict) -> str:
    lines = [
        "| truth | values | below the truth | over 0.1 % above | largest excess of delta | slowest epsilon | slowest delta |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(row["family"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["family"] == family]
        excess = max(row.get("delta above the truth by", 0.0) for row in rows)
        slow = [max(row.get(f"seconds of {what}", 0.0) for row in rows) for what in ("epsilon", "delta")]
        below = sum(not row["never below"] for row in rows)
        above = sum(not row["within 0.1 %"] for row in rows)
        lines.append(
            f"| {family} | {len(rows)} | {below} | {above} | {excess:.1e} | {slow[0]:.2f} s | {slow[1]:.2f} s |"
        )
    total = len(result["rows"])
    lines += [
        f"| all | {total} | {sum(not row['never below'] for row in result['rows'])} | "
        f"{sum(not row['within 0.1 %'] for row in result['rows'])} | | | |",
        "",
    ]
    lines += [
        "| a whole curve | 1,000 epsilons | one epsilon | they differ by | falls everywhere |",
        "|---|---|---|---|---|",
    ]
    for one in result["curves"]:
        lines.append(
            f"| {one['setting']} | {one['seconds of 1,000']:.2f} s | {one['seconds of one']:.2f} s | {one['apart by']:.1e} | "
            f"{'yes' if one['falling'] else 'no'} |"
        )
    lines += ["", f"{result['machine']}. " + ", ".join(f"{k} {v}" for k, v in result["versions"].items()) + ".", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
