"""Embeddings and bags of embeddings against the loop over single examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.gradients import Engine, UnsupportedModelError
from tests.gradients.oracle import check, loop, projected

VOCABULARY = 11


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("shape", [(5, 6), (6, 6), (5,), (1, 4), (4, 2, 3), (1,), (3, 20)])
@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("budget", [0, None])
def test_embedding(shape: tuple[int, ...], padding: int | None, budget: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 4, padding_idx=padding), nn.Linear(4, 3), nn.Tanh())
    engine = check(model, tokens(*shape), memory_budget=budget)
    assert "segments" in engine.explain()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_embedding_has_dense_sums(kind: type[nn.Embedding]) -> None:
    sums = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(kind(VOCABULARY, 4, sparse=sparse), nn.Linear(4, 3))
        with Engine(model) as engine:
            projected(model(tokens(5, 6))).sum().backward()
            sums.append(engine.gradients().weighted_sum(torch.ones(5))["0.weight"])
    assert not sums[0].is_sparse
    assert torch.equal(*sums)


def test_records_in_the_second_dimension() -> None:
    class SequenceFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(VOCABULARY, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.embedding(x.t()))).transpose(0, 1)

    check(SequenceFirst(), tokens(5, 6))
    check(SequenceFirst(), tokens(6, 6))


class WithPositions(nn.Module):
    def __init__(self, length: int, style: str) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, 4), nn.Embedding(length + 2, 4)
        self.out, self.style = nn.Linear(4, 3), style

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        if self.style == "row":
            places = places.unsqueeze(0)
        if self.style == "expanded":
            places = places.unsqueeze(0).expand_as(x)
        return self.out(torch.tanh(self.embedding(x) + self.positions(places)))


@pytest.mark.parametrize("style", ["plain", "row", "expanded"])
@pytest.mark.parametrize(("batch", "length"), [(5, 6), (6, 6), (1, 4), (1, 1)])
@pytest.mark.parametrize("budget", [0, None])
def test_positions_that_do_not_depend_on_the_batch(style: str, batch: int, length: int, budget: int | None) -> None:
    torch.manual_seed(0)
    check(WithPositions(length, style), tokens(batch, length), memory_budget=budget)


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(VOCABULARY, 4, padding_idx=0), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.hidden(self.embedding(x))), self.embedding.weight)


@pytest.mark.parametrize("budget", [0, None])
@pytest.mark.parametrize("shape", [(5, 6), (6, 6), (1, 4)])
def test_tied_language_model(shape: tuple[int, int], budget: int | None) -> None:
    torch.manual_seed(0)
    check(TiedLanguageModel(), tokens(*shape), memory_budget=budget)


def test_embedding_called_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(VOCABULARY, 4), nn.Linear(8, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.out(torch.cat([self.embedding(x).mean(1), self.embedding(y).sum(1)], 1))

    torch.manual_seed(0)
    check(Twice(), tokens(5, 6), tokens(5, 3))


def test_table_computed_from_parameters() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.gain = nn.Parameter(torch.randn(VOCABULARY, 4)), nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(F.embedding(x, self.table * self.gain)).sum(1)

    torch.manual_seed(0)
    check(Masked(), tokens(5, 6))


def views_of(model: nn.Module, inputs: tuple[Tensor, ...], views: int) -> dict[str, Tensor]:
    """The oracle for views: each record's loss is the sum of those of its views."""
    return {name: g.unflatten(0, (-1, views)).sum(1) for name, g in loop(model, inputs).items()}


def check_views(model: nn.Module, *inputs: Tensor, views: int = 2) -> None:
    expected = views_of(model, inputs, views)
    with Engine(model, views=views) as engine:
        projected(model(*inputs)).sum().backward()
        found = engine.gradients()
    for name, oracle in expected.items():
        torch.testing.assert_close(found.instantiate()[name].double(), oracle, atol=1e-5, rtol=1e-3)
        norms = oracle.flatten(1).norm(dim=1)
        torch.testing.assert_close(found.squared_norms()[name].sqrt(), norms, atol=1e-5, rtol=1e-3)
        ones = found.weighted_sum(torch.ones(len(norms)))[name]
        torch.testing.assert_close(ones.double(), oracle.sum(0), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("mode", ["lookup", "sum", "mean", "max"])
def test_views(mode: str) -> None:
    torch.manual_seed(0)
    if mode == "lookup":
        check_views(WithPositions(3, "plain"), tokens(6, 3))
        check_views(WithPositions(6, "row"), tokens(6, 6))
    else:
        check_views(nn.Sequential(nn.EmbeddingBag(VOCABULARY, 4, mode=mode), nn.Linear(4, 3)), tokens(6, 3))


# --- bags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("shape", [(5, 6), (6, 6), (1, 4), (5, 1), (1, 1), (4, 30)])
def test_bags_of_equal_length(mode: str, padding: int | None, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 4, mode=mode, padding_idx=padding), nn.Linear(4, 3), nn.Tanh())
    check(model, tokens(*shape))


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("batch", [1, 5])
def test_weighted_bags(batch: int, padding: int | None) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(6, 6)
            self.bag, self.out = nn.EmbeddingBag(VOCABULARY, 4, mode="sum", padding_idx=padding), nn.Linear(4, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.out(torch.tanh(self.bag(x, per_sample_weights=torch.sigmoid(self.score(y)))))

    torch.manual_seed(0)
    check(Weighted(), tokens(batch, 6), torch.randn(batch, 6))


class Ragged(nn.Module):
    """Bags of different lengths in one long list; the starts of the bags are what has one entry for each record."""

    def __init__(self, mode: str, padding: int | None, features: bool = False, last: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCABULARY, 4, mode=mode, padding_idx=padding, include_last_offset=last)
        self.out = nn.Linear(5 if features else 4, 3)
        self.features = features

    def forward(self, first: Tensor, words: Tensor, offsets: Tensor | None = None) -> Tensor:
        bags = self.bag(words, first if offsets is None else offsets)
        return self.out(torch.tanh(torch.cat([bags, first], 1) if self.features else bags))


def ragged_oracle(model: nn.Module, words: Tensor, starts: list[int], first: Tensor | None) -> dict[str, Tensor]:
    rows = []
    for i, (start, end) in enumerate(zip(starts, [*starts[1:], len(words)], strict=True)):
        if first is None:
            out = model(torch.tensor([0]), words[start:end])
        else:
            out = model(first[i : i + 1], words[start:end], torch.tensor([0, end - start]))
        found = torch.autograd.grad(projected(out).sum(), list(model.parameters()))
        rows.append(dict(zip(dict(model.named_parameters()), found, strict=True)))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("starts", [[0, 3, 3, 9, 12], [0], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]])
@pytest.mark.parametrize("last", [False, True])
def test_ragged_bags(mode: str, padding: int | None, starts: list[int], last: bool) -> None:
    torch.manual_seed(0)
    words = tokens(15)
    model = Ragged(mode, padding, features=last, last=last).double()
    if last:
        features = torch.randn(len(starts), 1, dtype=torch.float64)
        inputs = (features, words, torch.tensor([*starts, 15]))
        expected = ragged_oracle(model, words, starts, features)
    else:
        inputs = (torch.tensor(starts), words)
        expected = ragged_oracle(model, words, starts, None)
    with Engine(model) as engine:
        projected(model(*inputs)).sum().backward()
        found = engine.gradients()
        weights = torch.linspace(0.5, 1, len(starts), dtype=torch.float64)
        summed, norms, instances = found.weighted_sum(weights), found.squared_norms(), found.instantiate()
    for name, oracle in expected.items():
        torch.testing.assert_close(instances[name], oracle)
        torch.testing.assert_close(norms[name], oracle.flatten(1).square().sum(1))
        torch.testing.assert_close(summed[name], torch.einsum("b,b...->...", weights, oracle))


def test_tokens_first_with_offsets_are_refused_by_name() -> None:
    model = nn.EmbeddingBag(VOCABULARY, 4)
    with pytest.raises(UnsupportedModelError, match="embedding_bag"), Engine(model):
        model(tokens(15), torch.tensor([0, 3, 9]))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("shape", [(5, 6), (6, 6), (1, 4)])
def test_frozen(kind: type[nn.Embedding], shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(VOCABULARY, 4), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    check(model, tokens(*shape))


def test_frozen_ragged_bags() -> None:
    model = Ragged("mean", None)
    model.bag.weight.requires_grad_(False)
    with Engine(model) as engine:
        projected(model(torch.tensor([0, 3, 3, 9, 12]), tokens(15))).sum().backward()
        assert engine.gradients().squared_norms()["out.weight"].count_nonzero() == 4  # one bag is empty


def test_max_norm_is_refused_in_functions_too() -> None:
    class Renormed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(VOCABULARY, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.embedding(x, self.table, max_norm=1.0)

    model = Renormed()
    with pytest.raises(UnsupportedModelError, match="max_norm"), Engine(model):
        model(tokens(5, 6))


# --- refusals, and one bad record --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("frozen", [False, True])
def test_max_norm_is_refused_by_name(kind: type[nn.Embedding], frozen: bool) -> None:
    model = nn.Sequential(kind(VOCABULARY, 4, max_norm=1.0), nn.Linear(4, 3))
    model[0].weight.requires_grad_(not frozen)
    before = model[0].weight.detach().clone()
    with pytest.raises(UnsupportedModelError, match=r"'0'.*max_norm"), Engine(model):
        model(tokens(5, 6))
    assert torch.equal(before, model[0].weight)


@pytest.mark.parametrize("function", [F.embedding, F.embedding_bag])
def test_scale_grad_by_freq_is_refused_in_functions_too(function: object) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(VOCABULARY, 4))

        def forward(self, x: Tensor) -> Tensor:
            return function(x, self.table, scale_grad_by_freq=True)  # type: ignore[operator]

    model = Scaled()
    with pytest.raises(UnsupportedModelError, match="scale_grad_by_freq"), Engine(model):
        model(tokens(5, 6))


@pytest.mark.parametrize("mode", ["lookup", "sum"])
def test_a_record_that_is_not_finite_contributes_nothing(mode: str) -> None:
    class Divided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.lookup = nn.EmbeddingBag(VOCABULARY, 4, mode="sum"), nn.Embedding(VOCABULARY, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            if mode == "lookup":
                return self.lookup(x).sum(1) * y.sum(1, keepdim=True)
            return self.bag(x, per_sample_weights=y)

    torch.manual_seed(0)
    model, x, y = Divided(), tokens(4, 3), torch.randn(4, 3)
    bad = y.clone()
    bad[1] = float("nan")
    kept = torch.tensor([0, 2, 3])
    sums = []
    for inputs in ((x, bad), (x[kept], y[kept])):
        with Engine(model) as engine:
            projected(model(*inputs)).sum().backward()
            found = engine.gradients()
            sums.append(found.weighted_sum(torch.ones(len(inputs[0]))))
    for name in sums[0]:
        torch.testing.assert_close(sums[0][name], sums[1][name])
