"""An audit of the optimized noise as published, by its own code: the shape of the noise reveals the records."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from privet.audit import Audit, mechanism
from privet.clipping import BoundedSum, FlatClipping
from privet.data import Progress, Split
from privet.gradients import Engine
from privet.methods.optimized_noise import CostSensitivity
from privet.noise import PublishedShapeNoise
from privet.noise.shaped import CLAIM
from privet.privacy import Ledger, PureEpsilon
from privet.privacy.events import PoissonSampled, Under

WIDTH, FIRST = 20, 11
FEWER = 10
"""Noise that is drawn release by release gets this many times fewer draws."""
RECORD = (torch.arange(WIDTH) < FIRST)[None] / math.sqrt(FIRST)
CANARY = (torch.arange(WIDTH) >= FIRST)[None] / math.sqrt(WIDTH - FIRST)
"""The record lies in the first coordinates and the canary in the others, which cost nothing without it and get the most noise."""


def published_noise(
    epsilon: float = 1.0,
    *,
    delta: float = 1e-5,
    draws: int = 2000,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit one step whose noise is shaped by the derivative of the cost over the private records, at a claimed epsilon.

    Formal guarantees: those of Clopper-Pearson, which assumes nothing. The claim is the event of `PublishedShapeNoise`.
    """
    model = nn.Linear(WIDTH, 1, bias=False)  # the gradient of its output is the record itself
    sides = {len(rows): _side(model, rows, epsilon) for rows in (torch.cat([RECORD, CANARY]), RECORD)}

    def one_step(count: int, generator: torch.Generator) -> Tensor:
        noise, bounded = sides[count]
        return noise.add(bounded, generator)["weight"]

    return mechanism(
        one_step,
        2,
        1,
        claimed=sides[1][0].event(),
        delta=delta,
        score=lambda released: -float(released[0, FIRST:].norm()),
        draws=draws,
        confidence=confidence,
        name="One step, optimized noise as published",
        setting="20 coordinates; a record of the first 11, and a canary of the others",
        seed=seed,
        progress=progress,
    )


def published_noise_in(ledger: Ledger, *, draws: int, **settings: Any) -> tuple[Audit, ...]:
    """The audit of a ledger that holds optimized noise as published; nothing for any other ledger."""
    if ledger.guarantee != CLAIM:
        return ()
    for event, _ in ledger.event.leaves():
        inner = event.event if isinstance(event, PoissonSampled) else event
        inner = inner.event if isinstance(inner, Under) else inner
        if isinstance(inner, PureEpsilon):
            return (published_noise(inner.epsilon, draws=max(40, draws // FEWER), **settings),)
    return ()


def _side(model: nn.Linear, rows: Tensor, epsilon: float) -> tuple[PublishedShapeNoise, BoundedSum]:
    """The noise and the clipped sum of one of the two data sets."""
    records = Split(rows, torch.zeros(len(rows), dtype=torch.int64))
    sensitivity = CostSensitivity(model, records, lambda outputs, _: outputs.mean())
    with Engine(model, loss_reduction="sum") as engine:
        model(rows).sum().backward()
        return PublishedShapeNoise(1 / epsilon, sensitivity), FlatClipping(1.0).clip(engine.gradients())
