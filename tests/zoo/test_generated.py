"""Random models of known layers, known operations, rare ones and mixing ones, with random losses: never silently wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from privet.training import Performance
from tests.zoo.harness import SAFE, Outcome, Trap, classic, judge, with_vector
from tests.zoo.losses import COUPLED, VECTORS
from tests.zoo.losses import ORDINARY as LOSSES
from tests.zoo.operations import DETOURS, LAYERS, MOVES, PRODUCTS, REDUCTIONS, SOUND_ROWS
from tests.zoo.parts import CLASSES, FEATURES, OUTLIER, RECORDS, WIDTH, Operation, of_outputs

MIXING: dict[str, Operation] = {**REDUCTIONS, **PRODUCTS, **MOVES, **LAYERS, **DETOURS}
LAYER_KINDS: dict[str, Any] = {
    "Linear": lambda: nn.Linear(WIDTH, WIDTH),
    "Linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "GroupNorm": lambda: nn.GroupNorm(2, WIDTH),
    "RMSNorm": lambda: nn.RMSNorm(WIDTH),
    "Tanh": nn.Tanh,
    "GELU": nn.GELU,
    "PReLU": nn.PReLU,
    "Bilinear": lambda: Squared(),
    "scale": lambda: Scaled(),
}


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.inner(h.tanh(), h.sigmoid())
        return out


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.scale


class Functional(nn.Module):
    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, h: Tensor) -> Tensor:
        return self.operation(h)


@dataclass(frozen=True)
class Recipe:
    """A random model and loop, as names, so that a failure can be read."""

    parts: tuple[tuple[str, str], ...]
    residual: bool
    loss: tuple[str, str]
    vector: bool
    physical: int | None
    steps: int

    @property
    def mixes(self) -> bool:
        return self.loss[0] == "mixing" or any(kind == "mixing" for kind, _ in self.parts)

    def model(self) -> nn.Module:
        made = [self._part(kind, name) for kind, name in self.parts]
        return Stack(made, self.residual)

    @staticmethod
    def _part(kind: str, name: str) -> nn.Module:
        if kind == "layer":
            layer: nn.Module = LAYER_KINDS[name]()
            return layer
        return Functional(SOUND_ROWS[name] if kind == "sound" else MIXING[name])

    def trap(self) -> Trap:
        kind, name = self.loss
        table = VECTORS if self.vector else LOSSES if kind == "sound" else COUPLED
        loss = of_outputs(table[name])
        return Trap(
            str(self), "generated", self.model, loss, mild, body=with_vector if self.vector else classic, allowed=SAFE,
            norm=0.01 if self.mixes else None, oracle=None if self.mixes else loss, steps=self.steps,
            settings={"performance": Performance(physical_batch_size=self.physical)} if self.physical else {},
        )  # fmt: skip


class Stack(nn.Module):
    def __init__(self, parts: list[nn.Module], residual: bool) -> None:
        super().__init__()
        self.first, self.parts, self.residual = nn.Linear(FEATURES, WIDTH), nn.ModuleList(parts), residual
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for part in self.parts:
            h = h + 0.5 * part(h) if self.residual else part(h)
        out: Tensor = self.head(h.tanh())
        return out


def mild() -> tuple[Tensor, Tensor]:
    x = torch.randn(RECORDS, FEATURES)
    x[OUTLIER] = 8 * x[OUTLIER]
    return x, torch.arange(RECORDS) % CLASSES


def _named(kind: str, table: dict[str, Any]) -> st.SearchStrategy[tuple[str, str]]:
    return st.sampled_from(sorted(table)).map(lambda name: (kind, name))


def recipes(mixing: bool) -> st.SearchStrategy[Recipe]:
    layer, sound, mixes = _named("layer", LAYER_KINDS), _named("sound", SOUND_ROWS), _named("mixing", MIXING)
    parts = st.lists(st.one_of(layer, sound, mixes) if mixing else st.one_of(layer, sound), min_size=1, max_size=4)
    losses = st.one_of(_named("sound", LOSSES), _named("mixing", COUPLED)) if mixing else _named("sound", LOSSES)

    def build(parts: list[tuple[str, str]], residual: bool, loss: tuple[str, str], which: int, extra: int) -> Recipe:
        vector = which == 0
        chosen = ("sound", sorted(VECTORS)[extra % len(VECTORS)]) if vector else loss
        return Recipe(tuple(parts), residual, chosen, vector, 3 if which == 1 else None, 2 if which == 2 else 1)

    return st.builds(build, parts, st.booleans(), losses, st.integers(0, 7), st.integers(0, 99))


PROFILE: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate),
}


@settings(max_examples=60, **PROFILE)
@given(recipes(mixing=True))
def test_no_random_model_is_silently_wrong(recipe: Recipe) -> None:
    verdict = judge(recipe.trap())
    event(verdict.outcome)
    assert verdict.outcome is not Outcome.WRONG, f"{verdict.reason}"


@settings(max_examples=40, **PROFILE)
@given(recipes(mixing=False))
def test_random_sound_models_are_right_or_refused(recipe: Recipe) -> None:
    verdict = judge(recipe.trap())
    event(verdict.outcome)
    assert verdict.outcome in SAFE, f"{verdict.outcome}: {verdict.reason}"
