"""Every trap in which a per-example gradient is easily wrong: right, or refused with the module's name."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import privet
from privet.errors import PrivetError
from privet.gradients import Engine, SlowPathWarning, UnsupportedModelError, rule
from privet.gradients.engine import UnknownReductionError
from tests.gradients.oracle import check, loop, projected


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Tied(nn.Module):
    """A language model whose output weight is its embedding, with a position embedding that has no batch dimension."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embedding, self.position, self.inner = nn.Embedding(11, 6), nn.Embedding(length, 6), nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        return F.linear(torch.tanh(self.inner(x)), self.embedding.weight)


@pytest.mark.parametrize("length", [4, 5])
def test_tied_weights_and_positions(length: int) -> None:
    check(Tied(length), torch.randint(11, (5, length)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


@pytest.mark.parametrize("shape", [(5, 6), (5, 3, 6)])
def test_a_layer_called_twice(shape: tuple[int, ...]) -> None:
    check(Twice(), torch.randn(shape))


class Bare(nn.Module):
    """A vision transformer's bare parameters: a class token, positions, a scale, and a matrix without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 5, 6))
        self.scale, self.matrix = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6, 3))
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return (torch.tanh(x * self.scale) @ self.matrix) / self.temperature


@pytest.mark.parametrize("records", [1, 4, 5, 7])
def test_bare_parameters(records: int) -> None:
    check(Bare(), torch.randn(records, 4, 6))


@pytest.mark.parametrize("records", [3, 4])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_layers_of_torch(records: int, batch_first: bool, norm_first: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x if batch_first else x.transpose(0, 1)
            x = self.head(self.encoder(x))
            return x if batch_first else x.transpose(0, 1)

    check(Model(), torch.randn(records, 4, 8))


@pytest.mark.parametrize("records", [3, 4])
def test_cross_attention_with_every_option(records: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 6)
            self.attention = nn.MultiheadAttention(
                8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True, kdim=6, vdim=6
            )
            self.packed = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            keys = self.project(x)
            out = self.attention(x, keys, keys, need_weights=False)[0]
            causal = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
            return self.packed(out, torch.flip(out, [1]), out, attn_mask=causal)[0]

    check(Model(), torch.randn(records, 4, 8))


def test_windows_folded_into_the_batch() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head, self.bias = nn.Linear(2, 6), nn.Linear(6, 3), nn.Parameter(torch.randn(1, 2, 6))

        def forward(self, x: Tensor) -> Tensor:
            records = x.shape[0]
            windows = x.reshape(records, 3, 2, 2).reshape(records * 3, 2, 2)
            windows = torch.tanh(self.embed(windows) + self.bias)
            return self.head(windows).view(records, 3, 2, 3).mean((1, 2))

    check(Windows(), torch.randn(5, 12))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_weights_computed_from_parameters(kind: str) -> None:
    parametrize = getattr(nn.utils.parametrizations, kind)
    model = nn.Sequential(parametrize(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3)).eval()
    check(model, torch.randn(5, 6))


def test_weight_standardisation() -> None:
    class Standardised(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            mean = self.weight.mean((1, 2, 3), keepdim=True)
            std = self.weight.std((1, 2, 3), keepdim=True)
            return F.conv2d(x, (self.weight - mean) / std, self.bias, padding=1)

    check(nn.Sequential(Standardised(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3)), torch.randn(5, 2, 6, 6))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(checkpoint(self.block, x, use_reentrant=self.reentrant))


def test_activation_checkpointing() -> None:
    check(Checkpointed(reentrant=False), torch.randn(5, 4, 6))


def test_reentrant_checkpointing_is_refused() -> None:
    model = Checkpointed(reentrant=True)
    with pytest.raises(UnsupportedModelError, match="use_reentrant=False"), Engine(model):
        model(torch.randn(5, 4, 6)).sum().backward()


def test_in_place_activations() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5), nn.SiLU(inplace=True)
    )
    check(model, torch.randn(5, 2, 6, 6))


def test_frozen_layers_and_lora() -> None:
    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(6, 6).requires_grad_(False)
            self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    check(nn.Sequential(nn.Linear(6, 6).requires_grad_(False), Lora(), nn.Linear(6, 2)), torch.randn(5, 3, 6))


def test_parameters_without_gradient_in_this_step() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.detached = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + self.detached(x).detach()

    model = Branch()
    check(model, torch.randn(5, 4))


def test_operations_without_a_rule_say_so_once_and_are_right() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bilinear = nn.Bilinear(4, 4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.bilinear(x, torch.tanh(x))
            return self.bilinear(y, torch.tanh(y))

    from privet.gradients.rules import generic

    generic._said.clear()
    model = Odd()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(model, torch.randn(5, 3, 4))
    said = [str(w.message) for w in caught if issubclass(w.category, SlowPathWarning)]
    assert len(said) == 1
    assert said[0].startswith("`bilinear` in module 'bilinear' has no rule of its own")


def test_own_rule_in_ten_lines() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
            ctx.save_for_backward(x, factor)
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            x, factor = ctx.saved_tensors
            return grad * factor, (grad * x).sum().reshape(1)

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor([1.5]))

        def forward(self, x: Tensor) -> Tensor:
            return Double.apply(x, self.factor)

    model = nn.Sequential(nn.Linear(4, 4), Scale(), nn.Linear(4, 2))
    with pytest.raises(UnsupportedModelError, match=r"autograd\.Function Double"), Engine(model):
        model(torch.randn(3, 4)).sum().backward()

    @rule(Scale)
    def scale(module: Scale, inputs: tuple[Tensor, ...], grad_output: Tensor) -> dict[str, Tensor]:
        return {"factor": (inputs[0] * grad_output).flatten(1).sum(1, keepdim=True)}

    check(model, torch.randn(3, 4))
    assert model[1].factor.requires_grad


def test_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x = torch.randn(5, 2, 6, 6)
    before, keys, kind = model(x), list(model.state_dict()), type(model)
    hooks = {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in model.named_modules()}
    with Engine(model) as engine:
        during = model(x)
        during.sum().backward()
        engine.gradients()
    assert torch.equal(before, during) and torch.equal(before, model(x))
    assert list(model.state_dict()) == keys and type(model) is kind
    assert hooks == {n: (len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()}
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_evaluation_in_between_is_ordinary() -> None:
    model = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    with Engine(model) as engine:
        with torch.no_grad():
            model(x)
        with engine.paused():
            model(x).sum().backward()
        assert model.weight.grad is not None
        model.weight.grad = model.bias.grad = None
        model(x).sum().backward()
        assert engine.gradients().records == 3


def test_several_models_with_several_optimizers() -> None:
    generator, discriminator = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    real, seed = torch.randn(5, 4), torch.randn(3, 2)
    expected = loop(discriminator, (real,))
    with Engine(discriminator) as engine:
        projected(discriminator(real)).sum().backward()
        gradients = engine.gradients().instantiate()
        with engine.paused():
            discriminator(generator(seed)).sum().backward()
    assert generator.weight.grad is not None
    for name, oracle in expected.items():
        torch.testing.assert_close(gradients[name].double(), oracle, atol=1e-5, rtol=1e-4)


def test_second_derivatives_are_refused_and_stay_possible_while_the_engine_is_paused() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), torch.randn(5, 4, requires_grad=True)
    with Engine(model) as engine:
        with pytest.raises(PrivetError, match=r"second derivatives.*engine\.paused"):
            torch.autograd.grad(model(x).sum(), x, create_graph=True)
        with engine.paused():
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope.square().sum(), x)
    assert bend.abs().sum() > 0


def test_two_forwards_before_one_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x, z = torch.randn(5, 4), torch.randn(5, 4)
    double = copy.deepcopy(model).double()
    with Engine(model) as engine:
        (projected(model(x)) + projected(model(z))).sum().backward()
        gradients = engine.gradients().instantiate()
    for i in range(5):
        rows = (projected(double(x[i : i + 1].double())) + projected(double(z[i : i + 1].double()))).sum()
        for (name, _), oracle in zip(
            model.named_parameters(), torch.autograd.grad(rows, double.parameters()), strict=True
        ):
            torch.testing.assert_close(gradients[name][i].double(), oracle, atol=1e-5, rtol=1e-4)


def test_the_same_batch_cannot_be_used_twice() -> None:
    model = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    with Engine(model) as engine:
        model(x).sum().backward()
        with pytest.raises(PrivetError, match="before the gradients of its last backward pass were taken"):
            model(x)
        engine.gradients()
        out = model(x)
        out.sum().backward(retain_graph=True)
        engine.gradients()
        with pytest.raises(PrivetError, match="whose gradients were taken already"):
            out.sum().backward()


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), r"'1' \(BatchNorm2d\).*privet\.fix"),
        (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), r"'1' \(BatchNorm1d\).*privet\.fix"),
        (nn.Embedding(5, 3, scale_grad_by_freq=True), r"Embedding.*scale_grad_by_freq=False"),
        (
            nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True, affine=True)),
            r"'0' .*track_running_stats=False",
        ),
    ],
)
def test_modules_that_mix_records_are_refused(model: nn.Module, named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        Engine(model).attach()


def test_fix_returns_a_working_model() -> None:
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(96, 3))
    fixed = privet.fix(model)
    assert isinstance(model[1], nn.BatchNorm2d) and isinstance(fixed[1], nn.GroupNorm)
    assert [n for n, _ in fixed.named_parameters()] == [n for n, _ in model.named_parameters()]
    check(fixed, torch.randn(5, 2, 6, 6))


def test_batch_norm_in_eval_mode_is_an_ordinary_layer() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    check(model, torch.randn(5, 2, 6, 6))


def test_a_penalty_in_the_loss_is_refused() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(UnsupportedModelError, match=r"'weight'.*weight_decay"), Engine(model):
        (model(torch.randn(3, 4)).sum() + model.weight.norm()).backward()


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x - x.mean(0),
        lambda x: torch.softmax(x, 0),
        lambda x: x.flatten().view(2, 2, 4)[:, 0],
        lambda x: x @ x.T,
        lambda x: x[torch.tensor([1, 0, 2, 3])],
    ],
)
def test_operations_that_mix_records_are_refused(mix: Any) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(mix(self.first(x)))

    with pytest.raises(UnsupportedModelError, match=r"the model|module"), Engine(model := Mixing()):
        model(torch.randn(4, 4))


def test_empty_batch() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    with Engine(model) as engine:
        F.cross_entropy(model(torch.empty(0, 4)), torch.empty(0, dtype=torch.long)).backward()
        summed = engine.gradients().weighted_sum(torch.empty(0, dtype=torch.float64))
    assert all(torch.equal(t, torch.zeros_like(t)) for t in summed.values()) and len(summed) == 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e38])
def test_one_bad_record_contributes_zero_and_is_counted(value: float) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 3)
    )
    x = torch.randn(5, 1, 4, 4)
    x[2, 0, 1, 1] = value
    good = torch.tensor([0, 1, 3, 4])
    expected = loop(model, (x[good],))
    with Engine(model) as engine:
        projected(model(x)).sum().backward()
        gradients = engine.gradients()
        gradients.squared_norms()
        summed = gradients.weighted_sum(torch.ones(5, dtype=torch.float64))
    if value != 1e38:
        assert gradients.bad.tolist() == [False, False, True, False, False]
        for name, oracle in expected.items():
            torch.testing.assert_close(summed[name].double(), oracle.sum(0), atol=1e-4, rtol=1e-3)
    assert all(bool(t.isfinite().all()) for t in summed.values())


def test_bfloat16_autocast() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    )
    x = torch.randn(5, 1, 6, 6)
    expected = loop(model, (x,))
    with Engine(model) as engine:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        projected(out.float()).sum().backward()
        instances = engine.gradients().instantiate()
    for name, oracle in expected.items():
        assert instances[name].dtype == torch.float32
        error = (instances[name].double() - oracle).norm() / oracle.norm()
        assert error < 0.05, f"{name}: {error}"


def test_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten())
    x = torch.randn(5, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    check(model.to(memory_format=torch.channels_last), x)


def test_mixed_dtypes() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.single, self.wide = nn.Linear(4, 4), nn.Linear(4, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.wide(self.single(x.to(self.single.weight.dtype)).double())

    check(Mixed(), torch.randn(5, 4))


# --- the reduction of the loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "criterion",
    [
        lambda out, y: F.cross_entropy(out, y),
        lambda out, y: F.cross_entropy(out, y, reduction="sum"),
        lambda out, y: F.cross_entropy(out, y, reduction="none").mean(),
        lambda out, y: F.mse_loss(out, F.one_hot(y, 3).to(out.dtype)),
        lambda out, y: F.mse_loss(out, F.one_hot(y, 3).to(out.dtype), reduction="sum"),
        lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, 3).to(out.dtype)),
        lambda out, y: F.mse_loss(out, F.one_hot(y, 3).to(out.dtype)) + out.square().mean(),
        lambda out, y: F.nll_loss(F.log_softmax(out, 1), y),
        lambda out, y: F.l1_loss(out, F.one_hot(y, 3).to(out.dtype)),
        lambda out, y: F.huber_loss(out, F.one_hot(y, 3).to(out.dtype), reduction="sum"),
        lambda out, y: F.cross_entropy(out, y) / 4,
        lambda out, y: F.cross_entropy(out, y, reduction="sum") * 0.2,
        lambda out, y: F.cross_entropy(out, y) + out.square().mean(),
        lambda out, y: out.square().mean(0).sum(),
        lambda out, y: torch.stack([F.cross_entropy(out, y), out.square().mean()]).sum(),
        lambda out, y: F.kl_div(F.log_softmax(out, 1), F.one_hot(y, 3).to(out.dtype), reduction="batchmean"),
        lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
        lambda out, y: F.cross_entropy(out, F.one_hot(y, 3).to(out.dtype)),
    ],
)
def test_reduction_is_detected(criterion: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])
    double = copy.deepcopy(model).double()
    with Engine(model) as engine:
        criterion(model(x), y).backward()
        instances = engine.gradients().instantiate()
    for i in range(5):
        oracle = torch.autograd.grad(criterion(double(x[i : i + 1].double()), y[i : i + 1]), double.parameters())
        for (name, _), expected in zip(model.named_parameters(), oracle, strict=True):
            torch.testing.assert_close(instances[name][i].double(), expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("criterion", "why"),
    [
        (lambda out, y: F.cross_entropy(out, y, weight=torch.tensor([1.0, 2.0, 3.0])), "class-weighted"),
        (lambda out, y: out.square().mean() + out.sum(), "`add`"),
        (lambda out, y: out.square().mean().sqrt(), "`sqrt`"),
        (lambda out, y: (out - out.mean(0)).square().mean(), "`sub`"),
        (lambda out, y: out.square().mean() * out.sum(), "`mul`"),
        (lambda out, y: F.mse_loss(out[:, :1].squeeze(1), y[:, None].float()), "mse_loss"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_loss_that_does_not_keep_records_apart_is_refused(criterion: Any, why: str) -> None:
    model = nn.Linear(4, 3)
    x, y = torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])
    with pytest.raises(UnknownReductionError, match=why), Engine(model) as engine:
        engine.hand_out([(x, 0), (y, 0)], 5)
        criterion(model(x), y).backward()


def test_token_losses() -> None:
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7))
    tokens, targets = torch.randint(7, (4, 6)), torch.randint(7, (4, 6))
    with Engine(model) as engine:
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        instances = engine.gradients().instantiate()
    double = copy.deepcopy(model).double()
    for i in range(4):
        oracle = torch.autograd.grad(F.cross_entropy(double(tokens[i]), targets[i]), double.parameters())
        for (name, _), expected in zip(model.named_parameters(), oracle, strict=True):
            torch.testing.assert_close(instances[name][i].double(), expected, atol=1e-5, rtol=1e-3)
    # Targets that are ignored count in no divisor but their own record's.
    targets[1, 2:] = -100
    targets[3] = -100
    with Engine(model) as engine:
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        instances = engine.gradients().instantiate()
    for i in range(3):
        oracle = torch.autograd.grad(F.cross_entropy(double(tokens[i]), targets[i]), double.parameters())
        for (name, _), expected in zip(model.named_parameters(), oracle, strict=True):
            torch.testing.assert_close(instances[name][i].double(), expected, atol=1e-5, rtol=1e-3)
    assert not any(instance[3].any() for instance in instances.values())


def test_explain_shows_the_choices() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    engine = check(model, torch.randn(5, 1, 6, 6))
    table = engine.explain().splitlines()
    assert table[0].split() == ["layer", "rule", "norms", "kept", "records"]
    assert {line.split()[0] for line in table[1:]} == {"0", "2"}
    assert "MiB" in table[1]


def test_norms_of_long_rows_do_not_shrink() -> None:
    from privet.gradients.numerics import squared_norms

    row = torch.full((1, 5_200_000), 0.1)
    exact = float(row.double().square().sum())
    assert abs(float(squared_norms(row)) / exact - 1) < 5e-6


def test_the_weight_of_an_absolute_loss_is_refused_and_not_lost() -> None:
    model, x, y = nn.Linear(4, 1), torch.randn(5, 4), torch.randn(5)
    with pytest.raises(UnsupportedModelError, match="multiply"), Engine(model):
        F.l1_loss(model(x)[:, 0], y, weight=torch.rand(5)).backward()
    with Engine(model) as engine:
        F.l1_loss(model(x)[:, 0], y).backward()
        assert engine.gradients().records == 5
