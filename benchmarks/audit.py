"""Audits and attacks: what the audit catches, what it clears, how near it comes, and what membership attacks see.

Writes results/audit.json and results/audit.md, from which docs/audit.md has its tables. `--quick` takes fewer draws, leaves
out the networks, and writes nothing; `--only` renews half of the results.
"""

# ruff: noqa: E402 - the number of threads has to be set before NumPy is imported

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import dataclasses
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the planted bugs are those of the tests

import privet
from privet import audit
from privet.attacks import Fitting, Roc, lira, membership, quarters
from privet.audit import Audit, Claim, ClopperPearson, OneRun
from privet.audit.white_box import noises
from privet.methods import audit_release
from privet.privacy import Ledger
from tests.audit.broken import BUGS, clippings

torch.set_num_threads(1)
DELTA = 1e-5


def row(found: Audit, seconds: float, bug: str | None = None, mechanism: str | None = None) -> dict[str, Any]:
    plain = found.to_dict()
    kept = (
        "claimed_epsilon",
        "lower_bound",
        "ceiling",
        "confidence",
        "refuted",
        "delta",
        "method",
        "evidence",
        "setting",
    )
    first = {"mechanism": mechanism or found.name, "planted_bug": bug}
    return first | {key: plain[key] for key in kept} | {"seconds": round(seconds, 2)}


def timed(call: Callable[[], Audit]) -> tuple[Audit, float]:
    begin = time.process_time()
    found = call()
    return found, time.process_time() - begin


def steps(draws: int) -> Iterator[dict[str, Any]]:
    """One step of every mechanism: the whole released gradient, a sampled one, and one with secret keys."""
    for rate in (1.0, 0.1):
        for kind, clipping in clippings().items():
            many = draws // 10 if kind == "adaptive" else draws // 2 if rate < 1 else draws
            name = f"DP-SGD step, {kind} clipping, sampling rate {rate:g}"
            yield row(*timed(lambda c=clipping, r=rate, n=many, s=name: audit.step(c, rate=r, draws=n, name=s)))
    name = "DP-SGD step, flat clipping, secret keys"
    yield row(*timed(lambda: audit.step(clippings()["flat"], draws=draws // 4, name=name, seed=None)))
    for kind, noise in noises(2.0).items():
        name = f"Optimised noise step, {kind}"
        flat = clippings()["flat"]
        yield row(*timed(lambda n=noise, s=name, f=flat: audit.step(f, noise=n, draws=draws // 20, name=s)))
    for kind in ("mean", "second-moment"):
        yield row(*timed(lambda k=kind: audit_release(k, draws=draws // 20)))
    # No assumption on the shape of the trade-off: counting, at a delta that counting can see.
    name = "DP-SGD step, flat clipping, counted"
    yield row(
        *timed(
            lambda: audit.step(clippings()["flat"], delta=0.01, bound=ClopperPearson(0.01), draws=5 * draws, name=name)
        )
    )


def bugs(times: int) -> Iterator[dict[str, Any]]:
    """Each planted bug, and the same step done right."""
    for bug in BUGS:
        larger = dataclasses.replace(bug, draws=times * bug.draws)
        yield row(*timed(larger.audit), bug=bug.name, mechanism=bug.mechanism)
        if bug.mended is not None:
            found, seconds = timed(lambda one=larger: one.audit(one.mended, seed=1))
            yield row(found, seconds, mechanism=f"{bug.mechanism} done right, where the bug was: {bug.name}")


def trainings() -> Iterator[dict[str, Any]]:
    """Whole trainings in one run: white-box with gradient canaries, and end to end with records."""
    for rate, sigma, count in ((1.0, 2.0, 10), (0.1, 0.8, 100), (0.03, 0.9, 300)):
        name = f"DP-SGD training, {count} steps at rate {rate:g}, noise {sigma:g}, white-box"
        yield row(
            *timed(lambda r=rate, s=sigma, c=count, n=name: audit.training(rate=r, noise_multiplier=s, steps=c, name=n))
        )
    x, y = privet.data.load("digits").train.tensors
    data = x[:700].flatten(1), y[:700]
    generator = torch.Generator().manual_seed(0)
    canaries = audit.mislabelled(x[700:].flatten(1), y[700:], 700, 10, generator)
    ledger = Ledger()

    def private(records: tuple[Tensor, Tensor], generator: torch.Generator) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        run = privet.make_private(
            model,
            optimizer,
            TensorDataset(*records),
            batch_size=140,
            epochs=10,
            public_size=1400,
            epsilon=2.0,
            delta=DELTA,
            max_grad_norm=1.0,
            seed=0,
            ledger=ledger,
        )
        for a, b in run.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
        return model

    found, seconds = timed(lambda: audit.trainer(private, data, canaries, claimed=2.0, delta=DELTA))
    found = dataclasses.replace(found, claim=Claim.of(ledger, DELTA))
    yield row(found, seconds, mechanism="DP-SGD on digits, end to end, mislabelled canaries")
    plain = Fitting(lambda: nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10)), 150, 50, 5e-3)
    found, seconds = timed(lambda: audit.trainer(plain, data, canaries, claimed=2.0, delta=DELTA))
    yield row(found, seconds, bug="no privacy at all", mechanism="Adam on digits, end to end, mislabelled canaries")


def ceilings() -> dict[str, float]:
    """What a perfect attack reaches at delta 1e-5 and 95 %."""
    one = OneRun(DELTA, 0.95)
    return {
        "one run, 1000 of 1000 guessed": one.ceiling(1000, 1000),
        "one run, 100 of 1000 guessed": one.ceiling(100, 1000),
        "one run, 20 of 1000 guessed": one.ceiling(20, 1000),
        "1000 runs on each side": audit.ceiling(ClopperPearson(DELTA, 0.95), 1000, 1000),
    }


def false_alarms(audits: int = 1000) -> dict[str, Any]:
    """How many audits of scores that hold nothing end with a bound above zero."""
    rng = np.random.default_rng(0)
    claim = Claim.of(0.0, DELTA)
    counts: dict[str, Any] = {"audits": audits}
    for confidence in (0.95, 0.99):
        two, one = ClopperPearson(DELTA, confidence), OneRun(DELTA, confidence)
        drawn = sum(
            audit.audit_scores(*rng.normal(size=(2, 1000)), claim=claim, bound=two, name="").refuted
            for _ in range(audits)
        )
        guessed = sum(
            audit.audit_guesses(
                rng.normal(size=1000), rng.random(1000) < 0.5, claim=claim, bound=one, name="", seed=k
            ).refuted
            for k in range(audits)
        )
        counts[f"at {100 * confidence:g} %"] = {
            "allowed": round(audits * (1 - confidence)),
            "Clopper-Pearson": drawn,
            "one run": guessed,
        }
    return counts


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, outside), nn.GroupNorm(4, outside)])
        self.skip = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.skip(x) + self.norms[1](self.second(inner)))


class ResNet8(nn.Module):
    """Three residual blocks with group normalisation, for CIFAR-10."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(4, width), nn.ReLU())
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.last = nn.Linear(16 * 4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.avg_pool2d(self.blocks(self.stem(x)), 2).flatten(1))


def private_twin(epsilon: float, epochs: int) -> Callable[[tuple[Tensor, Tensor], torch.Generator], nn.Module]:
    def train(records: tuple[Tensor, Tensor], generator: torch.Generator) -> nn.Module:
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        model = ResNet8()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        run = privet.make_private(
            model,
            optimizer,
            TensorDataset(*records),
            batch_size=len(records[0]) // 10,
            epochs=epochs,
            epsilon=epsilon,
            delta=DELTA,
            max_grad_norm=1.0,
            loss_reduction="mean",
            seed=1,
        )
        for a, b in run.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
        return model

    return train


def roc_facts(name: str, roc: Roc, seconds: float, **more: Any) -> dict[str, Any]:
    interval = roc.auc_interval()
    return {
        "attack": name,
        "auc": roc.auc,
        "low": interval.low,
        "high": interval.high,
        "tpr_at_0.1_percent": roc.tpr_at(0.001),
        "tpr_at_1_percent": roc.tpr_at(0.01),
        "members": roc.members.size,
        "non_members": roc.non_members.size,
        "seconds": round(seconds, 1),
        **more,
    }


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def members(records: int, epochs: int) -> Iterator[dict[str, Any]]:
    """The shadow-model protocol in quarters and the loss attack, on an overfitted ResNet and on its private twin."""
    x, y = privet.data.load("cifar10").train.batch(torch.arange(4 * records))
    for name, train in (
        ("overfitted ResNet8", Fitting(ResNet8, epochs=epochs, batch_size=50, learning_rate=2e-3)),
        ("its DP-SGD twin, epsilon 3", private_twin(3.0, epochs)),
    ):
        begin = time.process_time()
        found = quarters(train, x, y, torch.Generator().manual_seed(0))
        seconds = time.process_time() - begin
        sides = [(x[part], y[part]) for part in (found.target_in, found.target_out)]
        right = {
            "training_accuracy": accuracy(found.target, *sides[0]),
            "test_accuracy": accuracy(found.target, *sides[1]),
        }
        yield roc_facts(f"shadow model, {name}", found.roc, seconds, **right)
        yield roc_facts(f"loss threshold, {name}", membership(found.target, *sides), 0.0, **right)


def likelihood(records: int = 1000, shadows: int = 32) -> Iterator[dict[str, Any]]:
    """LiRA on a dense network, its shadow models in one pass and one by one."""
    x, y = privet.data.load("cifar10").train.batch(torch.arange(2 * records))
    x = F.avg_pool2d(x, 4).flatten(1)
    fit = Fitting(lambda: nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10)), 40, 50, 3e-3)
    sides = (x[:records], y[:records]), (x[records:], y[records:])
    target = fit(sides[0], torch.Generator().manual_seed(0))
    yield roc_facts("loss threshold, overfitted MLP", membership(target, *sides), 0.0)
    for train in (fit, lambda given, generator: fit(given, generator)):
        begin = time.process_time()
        found = lira(target, *sides, train, torch.Generator().manual_seed(1), shadows=shadows)
        seconds = time.process_time() - begin
        yield roc_facts(f"LiRA, {shadows} shadow models, {found.how.split(':')[0]}, overfitted MLP", found.roc, seconds)


def shown(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    for one in rows:
        print(json.dumps(one), flush=True)
        kept.append(one)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("audits", "members"), help="renew only this half of the results")
    asked = parser.parse_args()
    file = Path(__file__).parent / "results" / "audit.json"
    result: dict[str, Any] = json.loads(file.read_text()) if asked.only and file.exists() else {}
    command = " ".join(["python benchmarks/audit.py", *sys.argv[1:]])
    if asked.only != "members":
        result |= audits(asked.quick) | {"audits_command": command}
    if asked.only != "audits" and not asked.quick:
        result |= {"membership": shown(likelihood()) + shown(members(1000, 20)), "members_command": command}
    result |= {
        "versions": {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")},
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one thread, CPU time",
    }
    if not asked.quick:
        file.write_text(json.dumps(result, indent=1) + "\n")
        file.with_suffix(".md").write_text(tables(result))


def audits(quick: bool) -> dict[str, Any]:
    one_step = shown(steps(20_000 if quick else 200_000))
    found = {
        "rows": one_step + shown(bugs(1 if quick else 2)) + shown(trainings()),
        "one_step_seconds": round(sum(one["seconds"] for one in one_step), 1),
        "ceilings": ceilings(),
        "false_alarms": false_alarms(100 if quick else 1000),
    }
    print(json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1), flush=True)
    return found


def tables(result: dict[str, Any]) -> str:
    lines = [
        "| mechanism | planted bug | claimed | lower bound | ceiling | delta | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in result.get("rows", []):
        verdict = f"**refuted at {100 * one['confidence']:g} %**" if one["refuted"] else "consistent"
        numbers = " | ".join(f"{one[key]:.2f}" for key in ("claimed_epsilon", "lower_bound", "ceiling"))
        bug = f"{one['planted_bug']} ({one['setting']})" if one["planted_bug"] else ""
        lines.append(f"| {one['mechanism']} | {bug} | {numbers} | {one['delta']:g} | {verdict} |")
    lines += ["", f"One step of every mechanism: {result.get('one_step_seconds', 0):.0f} s in total.", ""]
    lines += [
        "| attack | AUC (95 %) | TPR at 0.1 % / 1 % FPR | accuracy on members / others | seconds |",
        "|---|---|---|---|---|",
    ]
    for one in result.get("membership", []):
        right = "" if "test_accuracy" not in one else f"{one['training_accuracy']:.3f} / {one['test_accuracy']:.3f}"
        area = f"{one['auc']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
        rates = f"{100 * one['tpr_at_0.1_percent']:.1f} % / {100 * one['tpr_at_1_percent']:.1f} %"
        lines.append(f"| {one['attack']} | {area} | {rates} | {right} | {one['seconds'] or ''} |")
    lines += [
        "",
        f"CPU time, {result['machine']}. " + ", ".join(f"{k} {v}" for k, v in result["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
