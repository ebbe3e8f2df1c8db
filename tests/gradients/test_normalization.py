"""Normalisations and PReLU against the loop over single examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.gradients import Engine, UnsupportedModelError
from tests.gradients.oracle import check, loop, projected
from tests.gradients.views import check_views

IMAGES = torch.contiguous_format, torch.channels_last


def _shaken(model: nn.Module) -> nn.Module:
    """Parameters that are neither zero nor one."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("shape", [(5, 8, 6, 6), (1, 8, 6, 6), (5, 8), (5, 8, 7), (5, 8, 3, 4, 5), (5, 8, 1, 1)])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    if shape[2:] in ((), (1, 1)) and groups == 8:
        pytest.skip("a group of one value is a constant")
    before = nn.Linear(shape[-1], shape[-1])
    after = {2: nn.Linear(8, 8), 3: nn.Conv1d(8, 8, 1), 4: nn.Conv2d(8, 8, 1), 5: nn.Conv3d(8, 8, 1)}[len(shape)]
    check(_shaken(nn.Sequential(before, nn.GroupNorm(groups, 8), after)), torch.randn(shape), tolerance=1e-4)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("records", [1, 5])
def test_group_norm_between_convolutions(groups: int, layout: torch.memory_format, records: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(groups, 8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))
    model = _shaken(model).to(memory_format=layout)
    check(model, torch.randn(records, 3, 9, 9).contiguous(memory_format=layout), tolerance=1e-4)


def test_group_norm_of_channels_last_volumes() -> None:
    model = _shaken(nn.Sequential(nn.Conv3d(3, 8, 2), nn.GroupNorm(4, 8), nn.Conv3d(8, 4, 2)))
    x = torch.randn(4, 3, 5, 5, 5).contiguous(memory_format=torch.channels_last_3d)
    check(model.to(memory_format=torch.channels_last_3d), x, tolerance=1e-4)


@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True), nn.BatchNorm2d(8).eval()])
def test_several_views_of_a_record(norm: nn.Module, layout: torch.memory_format) -> None:
    model = _shaken(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU())).to(memory_format=layout)
    check_views(model, torch.randn(6, 3, 9, 9).contiguous(memory_format=layout), 3, tolerance=1e-4)


class _Sliced(nn.Module):
    """Normalises a tensor that is dense in no memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x)[:, :, ::2])


@pytest.mark.parametrize("layout", IMAGES)
def test_group_norm_of_a_slice(layout: torch.memory_format) -> None:
    model = _shaken(_Sliced()).to(memory_format=layout)
    check(model, torch.randn(5, 3, 9, 9).contiguous(memory_format=layout), tolerance=1e-4)


@pytest.mark.parametrize("shape", [(5, 6), (5, 4, 6), (5, 2, 3, 6), (1, 4, 6)])
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_norms_of_the_last_dimension(shape: tuple[int, ...], kind: type[nn.Module]) -> None:
    check(_shaken(nn.Sequential(nn.Linear(6, 6), kind(6), nn.Linear(6, 3))), torch.randn(shape), tolerance=1e-4)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_norms_of_several_dimensions(kind: type[nn.Module]) -> None:
    check(_shaken(nn.Sequential(nn.Linear(6, 6), kind((4, 6)))), torch.randn(5, 3, 4, 6), tolerance=1e-4)
    check_views(_shaken(nn.Sequential(nn.Linear(6, 6), kind((4, 6)))), torch.randn(6, 3, 4, 6), 2, tolerance=1e-4)


def test_layer_norm_without_bias() -> None:
    check(_shaken(nn.LayerNorm(6, bias=False)), torch.randn(5, 4, 6))


def test_sequence_first() -> None:
    class SequenceFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.other = nn.LayerNorm(6), nn.RMSNorm(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.norm(x.transpose(0, 1)).tanh()).transpose(0, 1)

    check(_shaken(SequenceFirst()), torch.randn(5, 4, 6), tolerance=1e-4)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.InstanceNorm1d(8, affine=True), (5, 8, 7)),
        (nn.InstanceNorm2d(8, affine=True), (5, 8, 6, 6)),
        (nn.InstanceNorm3d(8, affine=True), (5, 8, 3, 4, 5)),
        (nn.BatchNorm1d(8), (5, 8)),
        (nn.BatchNorm1d(8), (5, 8, 7)),
        (nn.BatchNorm2d(8), (5, 8, 6, 6)),
        (nn.BatchNorm2d(8), (1, 8, 6, 6)),
        (nn.BatchNorm3d(8), (5, 8, 3, 4, 5)),
        (nn.PReLU(), (5, 8)),
        (nn.PReLU(8), (5, 8)),
        (nn.PReLU(8), (5, 8, 6, 6)),
        (nn.PReLU(), (5, 8, 7)),
        (nn.PReLU(), (1, 8, 7)),
    ],
)
def test_other_channel_wise_layers(norm: nn.Module, shape: tuple[int, ...]) -> None:
    if hasattr(norm, "running_var") and norm.running_var is not None:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    model = _shaken(nn.Sequential(nn.Linear(shape[-1], shape[-1]), norm, nn.Tanh())).eval()
    check(model, torch.randn(shape), tolerance=1e-4)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.PReLU(8)])
def test_channels_last(norm: nn.Module) -> None:
    model = _shaken(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 4, 3))).eval()
    x = torch.randn(5, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    check(model.to(memory_format=torch.channels_last), x, tolerance=1e-4)


@pytest.mark.parametrize("records", [1, 5])
def test_instance_norm_of_channels_last(records: int) -> None:
    """The oracle is the row-major model: torch's own gradient of a single channels-last image is wrong."""
    model = _shaken(nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.Conv2d(8, 4, 3))).double()
    x = torch.randn(records, 3, 9, 9).double()
    expected = loop(model, (x,))
    with Engine(model.to(memory_format=torch.channels_last)) as engine:
        projected(model(x.contiguous(memory_format=torch.channels_last))).sum().backward()
        found = engine.gradients().instantiate()
    for name, oracle in expected.items():
        torch.testing.assert_close(found[name], oracle, msg=name)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("norm", [nn.GroupNorm, nn.InstanceNorm2d, nn.LayerNorm])
def test_frozen_parts(norm: type[nn.Module], layout: torch.memory_format, frozen: str) -> None:
    built = {
        nn.GroupNorm: lambda: nn.GroupNorm(4, 8),
        nn.InstanceNorm2d: lambda: nn.InstanceNorm2d(8, affine=True),
        nn.LayerNorm: lambda: nn.LayerNorm((8, 7, 7)),
    }[norm]()
    getattr(built, frozen).requires_grad_(False)
    model = _shaken(nn.Sequential(nn.Conv2d(3, 8, 3), built)).to(memory_format=layout)
    check(model, torch.randn(5, 3, 9, 9).contiguous(memory_format=layout), tolerance=1e-4)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("autocast", [False, True])
def test_the_forward_pass_is_the_same_to_the_bit(layout: torch.memory_format, autocast: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.PReLU(8), nn.InstanceNorm2d(8, affine=True), nn.LayerNorm(7),
        nn.BatchNorm2d(8).eval(), nn.RMSNorm(7), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8),
    )  # fmt: skip
    model = _shaken(model).to(memory_format=layout)
    x = torch.randn(5, 3, 9, 9).contiguous(memory_format=layout)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain = model(x)
        with Engine(model):
            seen = model(x)
    assert torch.equal(seen, plain)
    assert seen.dtype == plain.dtype
    assert seen.stride() == plain.stride()


def test_autocast_computes_in_the_type_of_the_parameter() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.Tanh(), nn.Flatten(2), nn.Linear(49, 6))
    model = nn.Sequential(*model, nn.LayerNorm(6))
    x = torch.randn(5, 3, 9, 9)
    sums = []
    for enabled in (False, True):
        with Engine(model) as engine:
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                out = model(x)
            projected(out.float()).sum().backward()
            gradients = engine.gradients()
            sums.append(gradients.weighted_sum(torch.ones(5)))
    for name, expected in sums[0].items():
        assert gradients.instantiate()[name].dtype == torch.float32
        assert sums[1][name].dtype == torch.float64
        scale = float(expected.abs().max())
        torch.testing.assert_close(sums[1][name], expected, rtol=0.1, atol=0.1 * scale, msg=lambda m, n=name: n + m)


def test_a_record_that_is_not_finite_contributes_zero() -> None:
    model = nn.Sequential(nn.GroupNorm(4, 8), nn.Flatten(2), nn.LayerNorm(9))
    x = torch.randn(4, 8, 3, 3)
    x[1] = float("inf")
    with Engine(model) as engine:
        projected(model(x)).sum().backward()
        gradients = engine.gradients()
        summed = gradients.weighted_sum(torch.ones(4))
    assert gradients.bad.tolist() == [False, True, False, False]
    assert all(torch.isfinite(gradient).all() for gradient in summed.values())


def test_batch_norm_in_training_mode_is_refused() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return functional.batch_norm(x, None, None, self.weight, training=True)

    with Engine(Hidden()) as engine, pytest.raises(UnsupportedModelError, match=r"privet\.fix"):
        engine.model(torch.randn(5, 8))


def test_normalising_over_the_records_is_refused() -> None:
    class Across(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(5)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x.t())

    with Engine(Across()) as engine, pytest.raises(UnsupportedModelError, match="over the records"):
        engine.model(torch.randn(5, 8))
