"""Random stacks of layers against the loop over single examples: flat and per-layer clipping, some records clipped."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from privet.clipping import FlatClipping, PerLayerClipping
from privet.gradients import Engine
from tests.gradients.oracle import check, loop, projected


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.gain = inner, nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.inner(x)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], width: int) -> None:
        super().__init__()
        self.cell = kind(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


def layers(width: int) -> st.SearchStrategy[nn.Module]:
    """Layers that take and give ``(records, length, width)``."""
    return st.sampled_from(
        [
            lambda: nn.Linear(width, width),
            lambda: nn.Linear(width, width, bias=False),
            lambda: nn.LayerNorm(width),
            lambda: nn.RMSNorm(width),
            lambda: nn.Tanh(),
            lambda: nn.SiLU(),
            lambda: Residual(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))),
            lambda: nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True),
            lambda: Recurrent(nn.LSTM, width),
            lambda: Recurrent(nn.GRU, width),
            lambda: _Transposed(nn.Conv1d(width, width, 3, padding=1, groups=2)),
            lambda: _Transposed(nn.GroupNorm(2, width)),
        ]
    ).map(lambda make: make())


class _Transposed(nn.Module):
    """A channels-first layer on a channels-last sequence."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


@st.composite
def models(draw: st.DrawFn) -> nn.Module:
    torch.manual_seed(draw(st.integers(0, 2**31)))
    parts = draw(st.lists(layers(4), min_size=1, max_size=4))
    if draw(st.booleans()):
        parts.append(parts[0])  # a layer used twice
    return nn.Sequential(*parts, nn.Linear(4, 2))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(models(), st.integers(1, 6), st.integers(1, 5), st.sampled_from([0, None]))
def test_any_stack_of_layers(model: nn.Module, records: int, length: int, budget: int | None) -> None:
    check(model, torch.randn(records, length, 4), memory_budget=budget, tolerance=2e-4)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(models(), st.integers(2, 6))
def test_clipped_sums_of_any_stack(model: nn.Module, records: int) -> None:
    x = torch.randn(records, 3, 4)
    expected = {name: g.reshape(records, -1) for name, g in loop(model, (x,)).items()}
    norms = torch.stack([g.square().sum(1) for g in expected.values()]).sum(0).sqrt()
    bound = float(norms.median())  # some are clipped and some are not
    for clipping in (FlatClipping(bound), PerLayerClipping(bound)):
        with Engine(model) as engine:
            projected(model(x)).mean().backward()
            clipped = clipping.clip(engine.gradients())
        for name, oracle in _clipped_by_loop(expected, norms, bound, per_layer=clipping != FlatClipping(bound)).items():
            found = clipped.tensors[name].double().reshape(-1)
            torch.testing.assert_close(found, oracle, atol=2e-4 * bound, rtol=1e-3)


def _clipped_by_loop(
    gradients: dict[str, Tensor], norms: Tensor, bound: float, *, per_layer: bool
) -> dict[str, Tensor]:
    owners = {name: name.rpartition(".")[0] for name in gradients}
    each = bound / len(set(owners.values())) ** 0.5
    summed = {name: torch.zeros(g.shape[1], dtype=torch.float64) for name, g in gradients.items()}
    for i in range(len(norms)):
        for name, g in gradients.items():
            norm, limit = norms[i], bound
            if per_layer:
                norm = sum(gradients[o][i].square().sum() for o in gradients if owners[o] == owners[name]) ** 0.5
                limit = each
            summed[name] += g[i] / max(1.0, float(norm) / limit)
    return summed
