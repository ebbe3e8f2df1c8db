"""Every way of clipping: what one record can do to the sum is never more than the sum says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from privet.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    BoundedSum,
    Clipping,
    EllipticalClipping,
    FlatClipping,
    MovingEllipticalClipping,
    PerLayerClipping,
    Released,
    ScheduledClipping,
    State,
)
from privet.clipping.clippings import COUNT
from privet.errors import InputError, PrivetError
from privet.gradients import Engine, PerExampleGradients
from privet.noise import GaussianNoise
from privet.privacy import Schedule
from tests.gradients.oracle import loop, projected


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def gradients(network: nn.Module, x: torch.Tensor) -> PerExampleGradients:
    with Engine(network) as engine:
        (projected(network(x)) * torch.linspace(0.01, 30, len(x))).sum().backward()
        return engine.gradients()


def diagonal(network: nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {n: torch.rand(p.shape, generator=generator) * 3 + 0.1 for n, p in network.named_parameters()}


KINDS: dict[str, Clipping] = {
    "flat": FlatClipping(0.7),
    "automatic": AutomaticClipping(0.7),
    "per-layer": PerLayerClipping(0.7),
    "per-layer, own norms": PerLayerClipping(norms={"0": 0.2, "2": 1.3}),
    "adaptive": AdaptiveClipping(0.7),
    "elliptical": EllipticalClipping(diagonal(model()), 0.7),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_record_changes_the_sum_by_at_most_the_sensitivity(kind: str) -> None:
    network, clipping = model(), KINDS[kind]
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(2))
    whole = clipping.clip(gradients(network, x))
    weights = torch.linspace(0.01, 30, 12)
    for i in range(12):
        kept = [j for j in range(12) if j != i]
        with Engine(network) as engine:
            (projected(network(x[kept])) * weights[kept]).sum().backward()
            without = clipping.clip(engine.gradients())
        change = {n: (whole.tensors[n] - without.tensors[n]).double() for n in whole.tensors}
        scaled = sum(float((t / whole.scales[n]).square().sum()) for n, t in change.items())
        plain = sum(float(t.square().sum()) for t in change.values())
        assert math.sqrt(scaled) <= 1 + 1e-5
        assert math.sqrt(plain) <= whole.sensitivity * (1 + 1e-5)
        if i > 6 and kind != "elliptical":  # a long gradient uses the bound up: it is not needlessly small
            assert math.sqrt(scaled) > 0.5


def test_flat_clipping_is_the_paper_s() -> None:
    network = model()
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(2))
    weights = torch.linspace(0.01, 30, 8, dtype=torch.float64)
    expected = {n: g * weights.view(-1, *[1] * (g.ndim - 1)) for n, g in loop(network, (x,)).items()}
    norms = torch.stack([g.flatten(1).square().sum(1) for g in expected.values()]).sum(0).sqrt()
    assert (norms < 0.7).any() and (norms > 0.7).any()
    clipped = FlatClipping(0.7).clip(gradients(network, x))
    factors = 1 / (norms / 0.7).clamp(min=1)
    for name, g in expected.items():
        oracle = torch.einsum("b,b...->...", factors, g)
        torch.testing.assert_close(clipped.tensors[name].double(), oracle, atol=1e-4, rtol=1e-3)


def test_elliptical_clipping_against_the_loop() -> None:
    network = model()
    d = diagonal(network)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(2))
    weights = torch.linspace(0.01, 30, 8, dtype=torch.float64)
    expected = {n: g * weights.view(-1, *[1] * (g.ndim - 1)) for n, g in loop(network, (x,)).items()}
    norms = torch.stack([(g * d[n]).flatten(1).square().sum(1) for n, g in expected.items()]).sum(0).sqrt()
    factors = 1 / (norms / 0.7).clamp(min=1)
    clipped = EllipticalClipping(d, 0.7).clip(gradients(network, x))
    for name, g in expected.items():
        torch.testing.assert_close(
            clipped.tensors[name].double(), torch.einsum("b,b...->...", factors, g), atol=1e-4, rtol=1e-3
        )


def test_joint_sensitivity_of_layers() -> None:
    network = model()
    clipped = PerLayerClipping(norms={"0": 3.0, "2": 4.0}).clip(gradients(network, torch.randn(4, 6)))
    assert clipped.sensitivity == 5.0
    # Noise in proportion to each layer's norm: (3 / (3 sqrt 2))^2 + (4 / (4 sqrt 2))^2 = 1.
    assert clipped.scales["0.weight"] == pytest.approx(3 * math.sqrt(2))


def test_adaptive_clipping_moves_toward_the_quantile() -> None:
    network, clipping = model(), AdaptiveClipping(10.0, quantile=0.5, rate=0.5)
    norm = clipping.init(dict(network.named_parameters()))
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(3))
    with Engine(network) as engine:
        for _ in range(60):
            projected(network(x)).mean().backward()
            noisy = dict(clipping.clip(engine.gradients(), norm).tensors)
            assert COUNT in noisy
            norm = clipping.update(norm, Released(noisy, 200))
    norms = torch.stack([g.flatten(1).square().sum(1) for g in loop(network, (x,)).values()]).sum(0).sqrt()
    assert 0.4 < float((norms <= norm).double().mean()) < 0.6


def test_adaptive_clipping_survives_an_empty_batch() -> None:
    network, clipping = model(), AdaptiveClipping(1.0)
    with Engine(network) as engine:
        noisy = dict(clipping.clip(engine.empty()).tensors)
    assert math.isfinite(clipping.update(1.0, Released(noisy, 100)))


def test_sums_of_disjoint_batches_add_up() -> None:
    network = model()
    one, other = (FlatClipping(0.7).clip(gradients(network, torch.randn(n, 6))) for n in (3, 4))
    both = one + other
    assert (both.records, both.sensitivity) == (7, 0.7)
    torch.testing.assert_close(both.tensors["0.bias"], one.tensors["0.bias"] + other.tensors["0.bias"])
    with pytest.raises(PrivetError, match="clipped differently"):
        _ = one + FlatClipping(0.8).clip(gradients(network, torch.randn(3, 6)))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FlatClipping(0), "positive"),
        (lambda: FlatClipping(float("inf")), "positive"),
        (lambda: FlatClipping(float("nan")), "positive"),
        (lambda: PerLayerClipping(), "either"),
        (lambda: PerLayerClipping(1.0, {"0": 1.0}), "either"),
        (lambda: AdaptiveClipping(quantile=1.5), "between 0 and 1"),
        (lambda: EllipticalClipping({"a": torch.tensor([1.0, 0.0])}), "positive and finite"),
    ],
)
def test_impossible_clipping_is_refused(make: object, why: str) -> None:
    with pytest.raises(InputError, match=why):
        make()  # type: ignore[operator]


def test_layers_must_match() -> None:
    with pytest.raises(InputError, match="differ in: 2, x"):
        PerLayerClipping(norms={"0": 1.0, "x": 1.0}).clip(gradients(model(), torch.randn(3, 6)))


def test_only_clipping_makes_what_noise_takes() -> None:
    with pytest.raises(TypeError, match="BoundedSum"):
        GaussianNoise(1.0).add({"w": torch.zeros(3)}, torch.Generator())  # type: ignore[arg-type]
    assert isinstance(FlatClipping(1.0).clip(gradients(model(), torch.randn(3, 6))), BoundedSum)


class Halved(Clipping):
    """A plug-in without state: `clip` is all that it writes."""

    def clip(self, gradients: PerExampleGradients, state: State = None) -> BoundedSum:
        return FlatClipping(0.5).clip(gradients)


def test_a_clipping_without_state_writes_clip_alone() -> None:
    clipping, released = Halved(), Released({}, 1.0)
    assert isinstance(clipping, Clipping)
    assert clipping.init({}) is None and clipping.update(None, released) is None and not clipping.metric(None)
    assert clipping.clip(gradients(model(), torch.randn(3, 6))).sensitivity == 0.5
    with pytest.raises(TypeError, match="abstract"):
        type("Without", (Clipping,), {})()


@pytest.mark.parametrize("kind", [*KINDS, "scheduled", "moving elliptical"])
def test_settings_stay_and_state_moves(kind: str) -> None:
    """Three steps on noise: the settings are frozen, and the bound of each step is that of its state."""
    others: dict[str, Clipping] = {
        "scheduled": ScheduledClipping(Schedule.of([1.0, 0.5, 0.25])),
        "moving elliptical": MovingEllipticalClipping(0.7, warmup=2),
    }
    network, clipping = model(), {**KINDS, **others}[kind]
    before, state, bounds = repr(clipping), clipping.init(dict(network.named_parameters())), []
    for number in range(3):
        bounded = clipping.clip(gradients(network, torch.randn(4, 6)), state)
        noise = GaussianNoise(1.0)
        noisy = noise.add(bounded, torch.Generator().manual_seed(number))
        state = clipping.update(state, Released(noisy, 4.0, lambda b=bounded, n=noise: n.deviations(b)))
        bounds.append(bounded.sensitivity)
    assert repr(clipping) == before
    moves = {"adaptive", "scheduled", "moving elliptical"}
    assert (len(set(bounds)) > 1) is (kind in moves) and (state is not None) is (kind in moves)


def test_a_state_that_bounds_nothing_is_refused() -> None:
    for norm in (math.nan, math.inf, 0.0):
        with pytest.raises(InputError, match="positive"):
            AdaptiveClipping(1.0).clip(gradients(model(), torch.randn(3, 6)), norm)
