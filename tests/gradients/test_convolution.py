"""Convolutions with every option against the loop over single examples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from privet.gradients import Engine, UnsupportedModelError
from tests.gradients.oracle import check, projected
from tests.gradients.views import check_views

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
BUDGETS = pytest.mark.parametrize("budget", [0, None])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": 2},
    {"groups": 2},
    {"groups": 4, "stride": 2, "padding": 1, "dilation": 2},
    {"kernel_size": 4, "padding": 2},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": 1},
    {"kernel_size": 1, "stride": 2},
    {"padding": "same"},
    {"padding": "same", "kernel_size": 4},
    {"padding": "same", "kernel_size": 4, "dilation": 3},
    {"padding": "valid"},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": 1, "padding_mode": "replicate"},
    {"padding": 2, "padding_mode": "circular", "stride": 2},
    {"padding": "same", "padding_mode": "circular", "kernel_size": 4},
]
TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": 2, "dilation": 3, "output_padding": 2},
    {"groups": 2, "stride": 2},
    {"groups": 4, "kernel_size": 4, "padding": 1},
    {"kernel_size": 1},
]


def _id(options: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in options.items()) or "plain"


def _built(kind: type[nn.Module], options: dict[str, Any]) -> nn.Module:
    return kind(4, 8, **{"kernel_size": 3, **options})


def _batch(dimensions: int, size: int, records: int = 5) -> Tensor:
    return torch.randn(records, 4, *[size] * dimensions)


@BUDGETS
@pytest.mark.parametrize("options", OPTIONS, ids=_id)
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_options(kind: type[nn.Module], options: dict[str, Any], budget: int | None) -> None:
    dimensions = int(kind.__name__[4])
    check(_built(kind, options), _batch(dimensions, 13 if dimensions < 3 else 9), memory_budget=budget)


@BUDGETS
@pytest.mark.parametrize("options", TRANSPOSED, ids=_id)
@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_transposed(kind: type[nn.Module], options: dict[str, Any], budget: int | None) -> None:
    check(_built(kind, options), _batch(int(kind.__name__[-2]), 5), memory_budget=budget)


@BUDGETS
@pytest.mark.parametrize("options", OPTIONS[:12], ids=_id)
@pytest.mark.parametrize("records", [1, 5])
def test_channels_last(options: dict[str, Any], records: int, budget: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_built(nn.Conv2d, options), nn.ReLU(inplace=True), nn.Conv2d(8, 3, 2))
    x = _batch(2, 13, records)
    check(
        model.to(memory_format=torch.channels_last),
        x.contiguous(memory_format=torch.channels_last),
        memory_budget=budget,
    )


@BUDGETS
@pytest.mark.parametrize("options", [*OPTIONS[:12], *OPTIONS[14:16]], ids=_id)
def test_several_views_of_a_record(options: dict[str, Any], budget: int | None) -> None:
    check_views(_built(nn.Conv2d, options), _batch(2, 13, 6), 3, memory_budget=budget)


@BUDGETS
@pytest.mark.parametrize("options", TRANSPOSED, ids=_id)
def test_several_views_of_a_record_transposed(options: dict[str, Any], budget: int | None) -> None:
    check_views(_built(nn.ConvTranspose2d, options), _batch(2, 5, 6), 3, memory_budget=budget)


@BUDGETS
@pytest.mark.parametrize("shape", [(1, 4, 9, 9), (2, 4, 3, 3)])
def test_small_batches_and_one_position(shape: tuple[int, ...], budget: int | None) -> None:
    check(_built(nn.Conv2d, {}), torch.randn(shape), memory_budget=budget)


@BUDGETS
@pytest.mark.parametrize(("channels", "size"), [((3, 64), 12), ((64, 3), 12), ((32, 32), 4), ((64, 96), 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_shapes_that_choose_every_method(
    channels: tuple[int, int], size: int, layout: torch.memory_format, budget: int | None
) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(*channels, 3, padding=1).to(memory_format=layout)
    check(model, torch.randn(4, channels[0], size, size).contiguous(memory_format=layout), memory_budget=budget)


class _Windows(nn.Module):
    """Folds windows of each record into the batch, on either side of it."""

    def __init__(self, outer: bool) -> None:
        super().__init__()
        self.outer = outer
        self.convolution = nn.Conv1d(4, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unflatten(2, (3, -1)).movedim(2, 0 if self.outer else 1)
        out = self.convolution(windows.flatten(0, 1)).flatten(1).unflatten(0, windows.shape[:2])
        return out.transpose(0, 1) if self.outer else out


@BUDGETS
@pytest.mark.parametrize("outer", [True, False])
def test_windows_folded_into_the_batch(outer: bool, budget: int | None) -> None:
    check(_Windows(outer), torch.randn(5, 4, 21), memory_budget=budget)


class _Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        return functional.conv2d(x, (self.weight - mean) / (variance + 1e-5).sqrt(), self.bias, padding=1)


@BUDGETS
def test_weights_computed_from_parameters(budget: int | None) -> None:
    torch.manual_seed(0)
    check(_Standardised(4, 8, 3), _batch(2, 7), memory_budget=budget)
    check(parametrizations.weight_norm(nn.Conv2d(4, 8, 3)), _batch(2, 7), memory_budget=budget)


@BUDGETS
def test_spectral_norm(budget: int | None) -> None:
    torch.manual_seed(0)
    model = parametrizations.spectral_norm(nn.Conv2d(4, 8, 3)).eval()
    check(model, _batch(2, 7), memory_budget=budget)


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(functional.relu(self.convolution(x)))


@BUDGETS
def test_a_layer_called_twice(budget: int | None) -> None:
    check(_Twice(), _batch(2, 7), memory_budget=budget)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_frozen_parts(frozen: str) -> None:
    model = nn.Conv2d(4, 8, 3)
    getattr(model, frozen).requires_grad_(False)
    check(model, _batch(2, 7))


@BUDGETS
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_record_that_is_not_finite_contributes_zero(layout: torch.memory_format, budget: int | None) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    x = _batch(2, 7).contiguous(memory_format=layout)
    broken = x.clone(memory_format=torch.preserve_format)
    broken[2, 1, 3, 3] = float("nan")
    found = []
    for batch in (x, broken):
        with Engine(model, memory_budget=budget) as engine:
            projected(model(batch)).sum().backward()
            gradients = engine.gradients()
            weights = torch.tensor([1.0, 0.5, 0.0, 0.25, 1.0])
            found.append(gradients.weighted_sum(weights))
    assert gradients.bad.tolist() == [False, False, True, False, False]
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, msg=name)


@BUDGETS
def test_autocast_computes_in_the_type_of_the_parameter(budget: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2))
    x = _batch(2, 9)
    sums = []
    for enabled in (False, True):
        with Engine(model, memory_budget=budget) as engine:
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                out = model(x)
            projected(out.float()).sum().backward()
            gradients = engine.gradients()
            sums.append(gradients.weighted_sum(torch.ones(5)))
    for name, expected in sums[0].items():
        assert gradients.instantiate()[name].dtype == torch.float32
        assert sums[1][name].dtype == torch.float64
        torch.testing.assert_close(sums[1][name], expected, rtol=0.05, atol=0.03 * float(expected.abs().max()))


def test_the_forward_pass_is_the_same_to_the_bit() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding="same"), nn.ReLU(inplace=True), nn.ConvTranspose2d(8, 4, 3))
    x = _batch(2, 9)
    plain = model(x)
    with Engine(model):
        assert torch.equal(model(x), plain)


def test_records_that_are_not_in_front_are_refused() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv1d(5, 5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.convolution(x.transpose(0, 1))

    with Engine(Mixing()) as engine, pytest.raises(UnsupportedModelError, match="first dimension"):
        engine.model(torch.randn(5, 5, 9))
    with Engine(nn.Conv1d(5, 5, 3)) as engine, pytest.raises(UnsupportedModelError, match="first dimension"):
        engine.model(torch.randn(5, 9))
