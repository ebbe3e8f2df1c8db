"""Recurrent layers in every configuration against the loop over single examples, and against torch's own forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

from privet.gradients import Engine, UnsupportedModelError
from tests.gradients.oracle import check, projected
from tests.gradients.test_embedding import check_views

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
KINDS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm-projected": (nn.LSTM, {"proj_size": 3}),
    "gru": (nn.GRU, {}),
    "rnn-tanh": (nn.RNN, {}),
    "rnn-relu": (nn.RNN, {"nonlinearity": "relu"}),
}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}


class Recurrent(nn.Module):
    """The records come in front; `uses` says what the model makes of the results."""

    def __init__(self, kind: str, uses: str = "output", initial: str = "default", **options: Any) -> None:
        super().__init__()
        make, own = KINDS[kind]
        self.rnn = make(4, 5, **own, **options)
        self.uses, self.initial = uses, initial
        width = self.rnn.proj_size or 5
        states = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
        if initial == "learned":
            self.first = nn.ParameterList([nn.Parameter(torch.randn(states, 1, w)) for w in (width, 5)])
        self.out = nn.Linear(width, 3)

    def first_states(self, x: Tensor) -> Any:
        lstm = isinstance(self.rnn, nn.LSTM)
        states = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
        if self.initial == "default":
            return None
        if self.initial == "learned":
            found = [p.expand(-1, x.shape[0], -1) for p in self.first]
        elif self.initial == "given":
            widths = (self.rnn.proj_size or 5, 5)
            found = [torch.full((states, x.shape[0], w), 0.3, dtype=x.dtype) for w in widths]
        else:
            width = self.rnn.proj_size or 5
            seen = torch.cat([x.mean(1), x[:, -1]], 1).unsqueeze(0).expand(states, -1, -1)
            found = [seen[..., :width].contiguous(), seen[..., :5].contiguous()]
        return tuple(found) if lstm else found[0]

    def forward(self, x: Tensor) -> Tensor:
        first = self.first_states(x)
        out, final = self.rnn(x if self.rnn.batch_first else x.transpose(0, 1), first)
        out = out if self.rnn.batch_first else out.transpose(0, 1)
        hidden, cell = final if isinstance(final, tuple) else (final, final)
        if self.uses == "output":
            return self.out(out.unflatten(-1, (-1, self.out.in_features)))
        if self.uses == "last":
            return self.out(out[:, -1, : self.out.in_features])
        if self.uses == "hidden":
            return self.out(hidden).transpose(0, 1)
        if self.uses == "cell":
            return torch.tanh(cell).transpose(0, 1)
        mixed = torch.cat([out.flatten(1), hidden.transpose(0, 1).flatten(1), cell.transpose(0, 1).flatten(1)], 1)
        return mixed * self.out.weight.sum() + self.out.bias.sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("budget", [0, None])
def test_configurations(
    kind: str, layers: int, bidirectional: bool, batch_first: bool, bias: bool, budget: int | None
) -> None:
    torch.manual_seed(0)
    model = Recurrent(
        kind, uses="all", num_layers=layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias
    )
    check(model, torch.randn(3, 6, 4), memory_budget=budget)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 6, 4), (6, 6, 4), (5, 1, 4), (1, 1, 4), (2, 3, 4), (2, 2, 4)])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("budget", [0, None])
def test_shapes(kind: str, shape: tuple[int, ...], batch_first: bool, budget: int | None) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind, uses="all", num_layers=2, batch_first=batch_first)
    check(model, torch.randn(shape), memory_budget=budget)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("uses", ["output", "last", "hidden", "cell"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_results_that_are_used(kind: str, uses: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    check(Recurrent(kind, uses=uses, bidirectional=True, batch_first=batch_first), torch.randn(4, 6, 4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("initial", ["given", "seen", "learned"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("batch_first", [False, True])
def test_initial_states(kind: str, initial: str, batch: int, batch_first: bool) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind, uses="all", initial=initial, num_layers=2, bidirectional=True, batch_first=batch_first)
    if kind != "lstm" and kind != "lstm-projected" and initial == "learned":
        model.first = model.first[:1]
    check(model, torch.randn(batch, 4, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_views(kind: str) -> None:
    torch.manual_seed(0)
    for initial in ("default", "learned", "seen"):
        check_views(Recurrent(kind, uses="all", initial=initial, batch_first=True), torch.randn(6, 4, 4))
        check_views(Recurrent(kind, uses="all", initial=initial), torch.randn(6, 4, 4), views=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 6, 4), (2, 2, 4), (6, 6, 4)])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("uses", ["last", "hidden"])
def test_frozen_layers(kind: str, shape: tuple[int, ...], batch_first: bool, uses: str) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind, uses=uses, num_layers=2, batch_first=batch_first)
    model.rnn.requires_grad_(False)
    check(model, torch.randn(shape))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen", ["weight_ih", "weight_hh", "bias", "weight"])
def test_frozen_weights(kind: str, frozen: str) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind, uses="all", num_layers=2)
    for name, parameter in model.rnn.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    check(model, torch.randn(4, 6, 4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_and_dropout_are_those_of_torch(kind: str, dropout: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind, uses="all", num_layers=3, dropout=dropout, bidirectional=True, batch_first=True).to(dtype)
    x = torch.randn(3, 7, 4, dtype=dtype)

    def losses() -> Tensor:
        torch.manual_seed(1)
        return projected(model(x))

    expected = losses()
    rows = [torch.autograd.grad(losses()[i], list(model.parameters())) for i in range(3)]
    with Engine(model) as engine:
        found = losses()
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        instances = engine.gradients().instantiate()
    for index, (name, instance) in enumerate(instances.items()):
        oracle = torch.stack([row[index] for row in rows])
        torch.testing.assert_close(instance, oracle, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", KINDS)
def test_results_look_like_those_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    make, own = KINDS[kind]
    rnn = make(4, 5, num_layers=2, batch_first=True, **own)
    x = torch.randn(3, 7, 4)
    expected = rnn(x)
    with Engine(rnn):
        found = rnn(x)
    assert type(found) is type(expected)
    for ours, theirs in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        torch.testing.assert_close(ours, theirs, check_stride=True)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_leaves_recurrent_layers_in_the_precision_of_their_weights(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Recurrent(kind, uses="last", batch_first=True), torch.randn(3, 7, 4)
    norms = []
    for enabled in (False, True):
        with Engine(model) as engine:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                out = model(x)
            projected(out.float()).sum().backward()
            norms.append(engine.gradients().squared_norms()["rnn.weight_hh_l0"].sqrt())
    torch.testing.assert_close(norms[1], norms[0], rtol=0.1, atol=0)


class Stepwise(nn.Module):
    def __init__(self, kind: str, bias: bool, give: bool) -> None:
        super().__init__()
        self.cell, self.out, self.give = CELLS[kind](4, 5, bias=bias), nn.Linear(5, 3), give

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        if self.give:
            state = torch.tanh(x.sum(1)) @ torch.ones(4, 5, dtype=x.dtype)
            state = (state, state * 0.5) if isinstance(self.cell, nn.LSTMCell) else state
        outputs = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return self.out(torch.stack(outputs, 1))


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("give", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 4), (1, 3, 4), (3, 3, 4), (5, 1, 4)])
def test_cells(kind: str, bias: bool, give: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    check(Stepwise(kind, bias, give), torch.randn(shape))


def test_frozen_cell() -> None:
    torch.manual_seed(0)
    model = Stepwise("lstm", True, True)
    model.cell.requires_grad_(False)
    check(model, torch.randn(4, 3, 4))


class TiedLanguageModel(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        make, own = KINDS[kind]
        self.embedding = nn.Embedding(11, own.get("proj_size", 5), padding_idx=0)
        self.rnn = make(self.embedding.embedding_dim, 5, num_layers=2, batch_first=True, **own)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.rnn(self.embedding(x))[0], self.embedding.weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [0, None])
def test_tied_language_model(kind: str, budget: int | None) -> None:
    torch.manual_seed(0)
    check(TiedLanguageModel(kind), torch.randint(0, 11, (4, 6)), memory_budget=budget)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [0, None])
def test_layer_called_twice(kind: str, budget: int | None) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make, own = KINDS[kind]
            self.rnn = make(own.get("proj_size", 4), 4, batch_first=True, **own)

        def forward(self, x: Tensor) -> Tensor:
            x = x[..., : self.rnn.input_size]
            first, state = self.rnn(x)
            return self.rnn(torch.sin(first), state)[0]

    torch.manual_seed(0)
    check(Twice(), torch.randn(4, 6, 4), memory_budget=budget)


def test_attention_over_outputs_in_time_order() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.score, self.out = nn.GRU(4, 5), nn.Linear(5, 1), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            out, _ = self.rnn(x.transpose(0, 1))
            return self.out((out * self.score(out).softmax(0)).sum(0))

    torch.manual_seed(0)
    check(Attending(), torch.randn(4, 6, 4))
    check(Attending(), torch.randn(6, 6, 4))


@pytest.mark.parametrize("kind", ["lstm", "rnn-tanh", "gru"])
@pytest.mark.parametrize("bias", [False, True])
def test_both_weights_of_long_sequences(kind: str, bias: bool) -> None:
    """Where norms come from Gram matrices, the weights whose gates add up are summed in one product."""
    torch.manual_seed(0)
    make, own = KINDS[kind]
    model, x = make(60, 64, batch_first=True, bias=bias, **own), torch.randn(7, 20, 60)
    with Engine(model, memory_budget=0) as engine:
        projected(model(x)[0]).sum().backward()
        gradients = engine.gradients()
    assert {use.method for use in gradients.uses} == {"gram"}
    each = gradients.instantiate()
    generator = torch.Generator().manual_seed(1)
    flat, other = (torch.rand(7, dtype=torch.float64, generator=generator) for _ in range(2))
    unlike = {name: torch.rand(7, dtype=torch.float64, generator=generator) for name in each}
    for given in (flat, other, unlike, flat, unlike):
        summed = gradients.weighted_sum(given)
        for name, rows in each.items():
            weights = given if isinstance(given, Tensor) else given[name]
            expected = torch.einsum("b,b...->...", weights, rows.double())
            torch.testing.assert_close(summed[name], expected, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_a_bad_record_of_a_long_sequence_contributes_nothing_to_either_weight() -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(60, 64, batch_first=True), torch.randn(5, 20, 60)
    bad = x.clone()
    bad[1, 2] = float("nan")
    sums = []
    for rows in (bad, x[torch.tensor([0, 2, 3, 4])]):
        with Engine(model, memory_budget=0) as engine:
            projected(model(rows)[0]).sum().backward()
            sums.append(engine.gradients().weighted_sum(torch.ones(len(rows))))
    for name in sums[0]:
        torch.testing.assert_close(sums[0][name], sums[1][name], rtol=1e-5, atol=1e-6)


def test_explain_names_the_layer() -> None:
    engine = check(Recurrent("lstm"), torch.randn(4, 6, 4))
    assert "Linear (lstm)" in engine.explain()


# --- refusals ---------------------------------------------------------------------------------------------------------


class Packed(nn.Module):
    def __init__(self, **settings: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True, **settings)
        self.lengths = torch.tensor([6, 3, 2, 5])

    def forward(self, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, self.lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def test_packed_sequences_stop_at_their_own_lengths() -> None:
    torch.manual_seed(0)
    model, x = Packed(), torch.randn(4, 6, 4)
    with Engine(model) as engine:
        out = model(x)
        projected(out).sum().backward()
        found = engine.gradients().instantiate()
    torch.testing.assert_close(out.detach(), model(x))
    for record, length in enumerate(model.lengths.tolist()):
        model.zero_grad()
        steps, _ = model.rnn(x[record : record + 1, :length])
        projected(F.pad(steps, (0, 0, 0, 6 - length))).sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name][record], parameter.grad, rtol=1e-3, atol=1e-5)


def test_a_projected_packed_sequence_is_refused() -> None:
    model = Packed(proj_size=2)
    with pytest.raises(UnsupportedModelError, match="proj_size"), Engine(model):
        model(torch.randn(4, 6, 4))


def test_time_taken_for_the_batch_is_refused() -> None:
    model = nn.LSTM(4, 5)
    with pytest.raises(UnsupportedModelError, match="batch dimension"), Engine(model):
        model(torch.randn(6, 3, 4))
    with Engine(model, batch_dim=1) as engine:
        model(torch.randn(6, 3, 4))[0].sum().backward()
        assert len(engine.gradients().squared_norms()["weight_hh_l0"]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_not_finite_contributes_nothing(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Recurrent(kind, batch_first=True), torch.randn(4, 6, 4)
    bad = x.clone()
    bad[1, 2] = float("nan")
    sums = []
    for rows in (bad, x[torch.tensor([0, 2, 3])]):
        with Engine(model) as engine:
            projected(model(rows)).sum().backward()
            sums.append(engine.gradients().weighted_sum(torch.ones(len(rows))))
    for name in sums[0]:
        torch.testing.assert_close(sums[0][name], sums[1][name], rtol=1e-5, atol=1e-6)
