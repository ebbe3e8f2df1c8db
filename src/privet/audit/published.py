"""An audit of the optimised noise as published, by its own code: the shape of the noise tells of the records."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from privet.audit.black_box import mechanism
from privet.audit.result import Audit
from privet.clipping import BoundedSum, FlatClipping
from privet.data import Progress, Split
from privet.gradients import Engine
from privet.methods.optimized_noise import CostSensitivity
from privet.noise import PublishedShapeNoise

WIDTH, FIRST = 20, 11
RECORD = (torch.arange(WIDTH) < FIRST)[None] / math.sqrt(FIRST)
CANARY = (torch.arange(WIDTH) >= FIRST)[None] / math.sqrt(WIDTH - FIRST)
"""A record lies in the first coordinates, and the canary in the others: without it they cost nothing, and get the most noise."""


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
        name="One step, optimised noise as published",
        setting="20 coordinates; a record of the first 11, and a canary of the others",
        seed=seed,
        progress=progress,
    )


def _side(model: nn.Linear, rows: Tensor, epsilon: float) -> tuple[PublishedShapeNoise, BoundedSum]:
    """The noise and the clipped sum of one of the two data sets."""
    records = Split(rows, torch.zeros(len(rows), dtype=torch.int64))
    sensitivity = CostSensitivity(model, records, lambda outputs, _: outputs.mean())
    with Engine(model, loss_reduction="sum") as engine:
        model(rows).sum().backward()
        return PublishedShapeNoise(1 / epsilon, sensitivity), FlatClipping(1.0).clip(engine.gradients())
