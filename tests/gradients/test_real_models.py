"""Models and losses as users write them: the clipped sum of one step is that of a float64 loop over single records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import privet
from privet.errors import InputError, PrivetError
from privet.training.drawing import COLLATED

RECORDS, CLIP, CLOSE = 6, 0.02, 1e-3
LENGTH, WIDTH, CLASSES, WORDS = 5, 4, 3, 12
Loss = Callable[..., Tensor]
Columns = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A model, its records and its loss; `loss(model, *columns)` of one record is what the oracle takes."""

    name: str
    make: Callable[[], nn.Module]
    columns: Callable[[], Columns]
    loss: Loss
    single: Loss | None = None
    """The loss of one record, where it is not the loss of a batch of one."""
    collate: Callable[[Any], Any] | None = None
    isolation: Literal["follow", "each"] = "follow"
    close: float = CLOSE


def oracle(case: Case, columns: Columns) -> Tensor:
    double = made(case).double()
    parameters = [p for p in double.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    loss = case.single or case.loss
    for row in range(RECORDS):
        one = tuple(c[row : row + 1] for c in columns)
        given = case.collate([tuple(c[0] for c in one)]) if case.collate and case.single is None else one
        double.zero_grad(set_to_none=True)
        loss(double, *(c.double() if c.is_floating_point() else c for c in given)).backward()
        found = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        assert found.norm() > CLIP, "a record that is not clipped tests nothing"
        total += found * (CLIP / found.norm())
    return total


def step(case: Case, model: nn.Module, columns: Columns) -> tuple[Tensor, str]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    data: Any = TensorDataset(*columns)
    if case.collate:
        data = DataLoader(data, batch_size=RECORDS, collate_fn=case.collate)
    private = privet.make_private(
        model,
        optimizer,
        data,
        batch_size=RECORDS,
        steps=1,
        noise_multiplier=1e-6,
        delta=1e-5,
        max_grad_norm=CLIP,
        seed=0,
        isolation=case.isolation,
    )
    for batch in private.batches():
        optimizer.zero_grad()
        case.loss(model, *batch).backward()
        optimizer.step()
    guarantee = str(private.spent().guarantee)
    private.close()
    moved = [(was - p.detach()).flatten() for was, p in zip(before, parameters, strict=True)]
    return RECORDS * torch.cat(moved).double(), guarantee


def columns_of(case: Case) -> Columns:
    torch.manual_seed(1)
    return case.columns()


def made(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make()


# --- records ------------------------------------------------------------------------------------------------------------


def labels() -> Tensor:
    return torch.arange(RECORDS) % CLASSES


def rows() -> Columns:
    return torch.randn(RECORDS, WIDTH), labels()


def regression() -> Columns:
    return torch.randn(RECORDS, WIDTH), torch.randn(RECORDS, CLASSES)


def sequences() -> Columns:
    return torch.randn(RECORDS, LENGTH, WIDTH), labels()


def images() -> Columns:
    return torch.randn(RECORDS, 3, 6, 6), labels()


def ragged() -> Columns:
    """Padded words of different lengths; zero is padding."""
    lengths = torch.tensor([5, 2, 4, 1, 3, 5])
    words = torch.randint(1, WORDS, (RECORDS, LENGTH))
    return torch.where(torch.arange(LENGTH) < lengths[:, None], words, 0), lengths, labels()


def soft() -> Columns:
    return torch.randn(RECORDS, WIDTH), torch.rand(RECORDS, CLASSES).softmax(1)


# --- models -------------------------------------------------------------------------------------------------------------


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def old_spectral() -> nn.Module:
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, CLASSES), n_power_iterations=9))
    model(torch.ones(1, WIDTH))  # the power iteration begins at random vectors
    return model.eval()


class Query(nn.Module):
    """A learned query reads the sequence of each record."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.q = nn.Parameter(torch.randn(2, LENGTH if kind == "left" else WIDTH))
        self.attention = nn.MultiheadAttention(
            WIDTH, 2, batch_first=kind != "time first", add_bias_kv="bias" in kind, add_zero_attn="zero" in kind
        )
        self.out = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "left":
            found = self.q @ x
        elif self.kind == "bmm":
            weights = torch.bmm(self.q.expand(len(x), -1, -1), x.transpose(1, 2)).softmax(-1)
            found = torch.bmm(weights, x)
        elif self.kind == "einsum":
            found = torch.einsum("bqt,btd->bqd", torch.einsum("qd,btd->bqt", self.q, x).softmax(-1), x)
        elif self.kind == "sdpa":
            found = F.scaled_dot_product_attention(self.q.expand(len(x), -1, -1), x, x)
        elif self.kind == "time first":
            query = self.q.unsqueeze(1).expand(-1, len(x), -1)
            found = self.attention(query, x.transpose(0, 1), x.transpose(0, 1))[0].transpose(0, 1)
        else:
            found = self.attention(self.q.repeat(len(x), 1, 1), x, x, need_weights="weights" in self.kind)[0]
        return self.out(found.flatten(1))


@dataclass
class Answer:
    scores: Tensor
    hidden: Tensor


class Shaped(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        scores = self.last(hidden)
        if self.kind is tuple:
            return scores, hidden
        if self.kind is dict:
            return {"scores": scores, "hidden": hidden}
        return Answer(scores, hidden)


def scores_of(out: Any) -> Tensor:
    if isinstance(out, tuple):
        return out[0]
    return out["scores"] if isinstance(out, dict) else out.scores


class TimeFirst(nn.Module):
    """Everything with `batch_first=False`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "transformer":
            self.body: Any = nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.0)
        else:
            self.body = getattr(nn, kind)(WIDTH, WIDTH, bidirectional=True)
        self.out = nn.Linear(WIDTH if kind == "transformer" else 2 * WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        found = found if self.kind == "transformer" else found[0]
        return self.out(found.mean(0))


class Packed(nn.Module):
    def __init__(self, kind: str, padded: bool = False, **settings: Any) -> None:
        super().__init__()
        self.table, self.padded = nn.Embedding(WORDS, WIDTH), padded
        self.cell = getattr(nn, kind)(WIDTH, WIDTH, batch_first=True, **settings)
        self.out = nn.Linear(WIDTH * (2 if settings.get("bidirectional") else 1), CLASSES)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.table(words), lengths, batch_first=True, enforce_sorted=False)
        found, hidden = self.cell(packed)
        if self.padded:
            return self.out(pad_packed_sequence(found, batch_first=True, total_length=words.shape[1])[0].sum(1))
        last = hidden[0] if isinstance(hidden, tuple) else hidden
        return self.out(torch.cat([last[-2], last[-1]], 1) if self.cell.bidirectional else last[-1])


class Bags(nn.Module):
    def __init__(self, mode: str, last: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(WORDS, WIDTH, mode=mode, include_last_offset=last)
        self.bags.weight.requires_grad_(not frozen)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, flat: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.out(torch.tanh(self.bags(flat, offsets, weights)))


def bagged(records: list[tuple[Tensor, Tensor, Tensor]]) -> Columns:
    """One long list of words and where each record begins, as torchtext's tutorials collate."""
    words = [words[: int(length)] for words, length, _ in records]
    starts = torch.tensor([0, *(len(w) for w in words)]).cumsum(0)[:-1]
    return torch.cat(words), starts, torch.stack([label for *_, label in records])


def bagged_with_end(records: list[tuple[Tensor, Tensor, Tensor]]) -> Columns:
    flat, starts, y = bagged(records)
    return flat, torch.cat([starts, torch.tensor([len(flat)])]), y


def bagged_with_weights(records: list[tuple[Tensor, Tensor, Tensor]]) -> Columns:
    flat, starts, y = bagged(records)
    return flat, starts, flat / WORDS, y


def time_first(records: list[tuple[Tensor, Tensor]]) -> Columns:
    return torch.stack([x for x, _ in records], 1), torch.stack([y for _, y in records])


# --- losses -------------------------------------------------------------------------------------------------------------


def ce(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def sound(name: str, loss: Loss, columns: Callable[[], Columns] = rows) -> Case:
    return Case(f"loss: {name}", perceptron, columns, loss)


def _halved(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ce(m, x, y)


def _with_auxiliary(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = m(x)
    return F.cross_entropy(out, y) + 0.1 * out.square().mean()


def _autocast(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    if next(m.parameters()).dtype == torch.float64:
        return ce(m, x, y)
    with torch.autocast("cpu", torch.bfloat16):
        return ce(m, x, y)


LOSSES = [
    sound("label smoothing", lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1)),
    sound("soft targets", ce, soft),
    sound("soft targets, smoothed", lambda m, x, y: nn.CrossEntropyLoss(label_smoothing=0.2)(m(x), y), soft),
    sound("halved", _halved),
    sound("divided", lambda m, x, y: ce(m, x, y) / 4),
    sound("accumulated", lambda m, x, y: (ce(m, x, y) + ce(m, x, y)) / 2),
    sound("negative mean", lambda m, x, y: -m(x).log_softmax(1).gather(1, y[:, None]).mean()),
    sound(
        "negative likelihood",
        lambda m, x, y: -torch.distributions.Categorical(logits=m(x), validate_args=False).log_prob(y).mean(),
    ),
    sound("with auxiliary", _with_auxiliary),
    sound("list of losses", lambda m, x, y: sum([ce(m, x, y), 0.3 * m(x).abs().mean()])),  # type: ignore[arg-type,return-value]
    sound("stacked losses", lambda m, x, y: torch.stack([ce(m, x, y), m(x).abs().mean()]).sum()),
    sound("KL batchmean", lambda m, x, y: F.kl_div(m(x).log_softmax(1), y, reduction="batchmean"), soft),
    sound("KL module", lambda m, x, y: nn.KLDivLoss(reduction="batchmean")(m(x).log_softmax(1), y), soft),
    sound("sum by length", lambda m, x, y: F.cross_entropy(m(x), y, reduction="none").sum() / len(x)),
    sound("sum by shape", lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") / x.shape[0]),
    sound("sum by size", lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") / y.size(0)),
    sound("squared", lambda m, x, y: F.mse_loss(m(x), y), regression),
    sound("squared by hand", lambda m, x, y: ((m(x) - y) ** 2).sum(1).mean(), regression),
    sound("huber", lambda m, x, y: nn.SmoothL1Loss()(m(x), y), regression),
    sound("binary", lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y), soft),
    sound(
        "binary with weights",
        lambda m, x, y: nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0]).to(x))(m(x), y),
        soft,
    ),
    sound(
        "focal",
        lambda m, x, y: (
            (1 - (-F.cross_entropy(m(x), y, reduction="none")).exp()) ** 2 * F.cross_entropy(m(x), y, reduction="none")
        ).mean(),
    ),
]

SHAPES = [
    Case(
        f"output: {kind.__name__}",
        lambda kind=kind: Shaped(kind),
        rows,
        lambda m, x, y: F.cross_entropy(scores_of(m(x)), y),
    )
    for kind in (tuple, dict, Answer)
]
QUERIES = [
    Case(f"query: {kind}", lambda kind=kind: Query(kind), sequences, ce)
    for kind in (
        "left",
        "bmm",
        "einsum",
        "sdpa",
        "attention",
        "attention weights",
        "attention bias",
        "attention bias zero",
        "time first",
    )
]
TIME_FIRST = [
    Case(f"time first: {kind}", lambda kind=kind: TimeFirst(kind), sequences, ce, collate=time_first)
    for kind in ("transformer", "LSTM", "GRU", "RNN")
]
NORMED = [
    Case("weight norm", lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, CLASSES))), rows, ce),
    Case(
        "weight norm of a convolution",
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Conv2d(3, 4, 3), dim=0), nn.Flatten(), nn.Linear(64, CLASSES)
        ),
        images,
        ce,
    ),
    Case(
        "spectral norm in eval mode",
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(WIDTH, CLASSES))).eval(),
        rows,
        ce,
    ),
    Case(
        "orthogonal",
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, CLASSES)),
        rows,
        ce,
    ),
]
OLD_NORMED = [
    Case("old weight norm", lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(WIDTH, CLASSES))), rows, ce),
    Case(
        "old weight norm of a convolution",
        lambda: nn.Sequential(nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), nn.Flatten(), nn.Linear(64, CLASSES)),
        images,
        ce,
    ),
    Case("old spectral norm in eval mode", old_spectral, rows, ce),
]
OTHERS = [
    Case(
        "channels last",
        lambda: cnn().to(memory_format=torch.channels_last),
        images,
        lambda m, x, y: ce(m, x.to(memory_format=torch.channels_last), y),
    ),
    Case("bfloat16 autocast", cnn, images, _autocast, close=0.05),
]
RAGGED = [
    *(
        Case(
            f"packed: {kind}{' padded' * padded}{' both ways' * both}",
            lambda kind=kind, padded=padded, both=both: Packed(kind, padded, bidirectional=both),
            ragged,
            lambda m, w, n, y: F.cross_entropy(m(w, n), y),
        )
        for kind in ("LSTM", "GRU", "RNN")
        for padded in (False, True)
        for both in (False, True)
    ),
    *(
        Case(
            f"bags: {mode}{' with the end' * last}, {isolation}",
            lambda mode=mode, last=last: Bags(mode, last),
            ragged,
            lambda m, f, o, y: F.cross_entropy(m(f, o), y),
            collate=bagged_with_end if last else bagged,
            isolation=isolation,
        )
        for mode in ("sum", "mean", "max")
        for last in (False, True)
        for isolation in ("follow", "each")
    ),
    Case(
        "bags: weighted words",
        lambda: Bags("sum"),
        ragged,
        lambda m, f, o, w, y: F.cross_entropy(m(f, o, w), y),
        collate=bagged_with_weights,
    ),
    Case(
        "bags: moved",
        lambda: Bags("mean"),
        ragged,
        lambda m, f, o, y: F.cross_entropy(m(f.to("cpu").int(), o.int()), y),
        collate=bagged,
    ),
    Case(
        "bags: frozen table",
        lambda: Bags("mean", frozen=True),
        ragged,
        lambda m, f, o, y: F.cross_entropy(m(f, o), y),
        collate=bagged,
    ),
]
CASES = [*LOSSES, *SHAPES, *QUERIES, *TIME_FIRST, *NORMED, *OLD_NORMED, *OTHERS, *RAGGED]


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_clipped_sum_is_that_of_single_records(case: Case) -> None:
    model, columns = made(case), columns_of(case)
    expected = oracle(case, columns)
    found, guarantee = step(case, model, columns)
    own_collate = case.collate is not None and case.isolation == "follow"
    assert guarantee == (f"assuming {COLLATED}" if own_collate else "proved")
    assert (found - expected).norm() < case.close * CLIP


class Viewed(nn.Module):
    """A frozen weight is wrapped anew in each forward pass, as some adapters do; `write` puts records into its memory first."""

    def __init__(self, write: bool) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)
        self.out, self.write = nn.Linear(WIDTH, CLASSES), write

    def forward(self, x: Tensor) -> Tensor:
        if self.write:
            self.frozen.data[0] = x.detach().mean(0)
        scale = nn.Parameter(self.frozen.T, requires_grad=False).norm(dim=0)
        return self.out(x * scale)


def test_a_new_name_for_frozen_memory_is_a_constant() -> None:
    case = Case("viewed", lambda: Viewed(False), rows, ce)
    found, guarantee = step(case, made(case), columns_of(case))
    assert guarantee == "proved"
    assert (found - oracle(case, columns_of(case))).norm() < CLOSE * CLIP


def test_records_in_frozen_memory_are_refused() -> None:
    case = Case("written", lambda: Viewed(True), rows, ce)
    with pytest.raises(PrivetError, match="records"):
        step(case, made(case), columns_of(case))


def test_a_parameter_made_in_the_forward_pass_is_not_trained_on_the_records() -> None:
    class Made(Viewed):
        def forward(self, x: Tensor) -> Tensor:
            return self.out(x @ nn.Parameter(self.frozen.T))

    case = Case("made", lambda: Made(False), rows, ce)
    with pytest.raises(PrivetError, match="requires a gradient meets the records"):
        step(case, made(case), columns_of(case))


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.part, self.out = nn.Linear(WIDTH, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(checkpoint(lambda h: torch.tanh(self.part(h)), self.first(x), use_reentrant=True))


def test_a_reentrant_checkpoint_is_right_for_single_records() -> None:
    case = Case("reentrant", Reentrant, rows, ce, isolation="each")
    found, guarantee = step(case, made(case), columns_of(case))
    assert guarantee == "proved"
    assert (found - oracle(case, columns_of(case))).norm() < CLOSE * CLIP


class Filled(nn.Module):
    """A tensor whose parts are written by their views, as in DeepSeek's attention; `kept` is one that outlives a record."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, CLASSES)
        self.kept = torch.zeros(1, 2 * WIDTH) if kept else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is not None:
            seen = self.kept.clone()  # of the records before
            self.kept[..., :WIDTH].copy_(x.detach())
            return self.out(seen + torch.cat([x, x], -1))
        both = x.new_empty(*x.shape[:-1], 2 * WIDTH)
        both[..., :WIDTH].copy_(self.first(x))
        both[..., WIDTH:].copy_(x)
        return self.out(both)


def test_a_tensor_filled_through_its_views_is_right_for_single_records() -> None:
    case = Case("filled", lambda: Filled(False), rows, ce, isolation="each")
    found, guarantee = step(case, made(case), columns_of(case))
    assert guarantee == "proved"
    assert (found - oracle(case, columns_of(case))).norm() < CLOSE * CLIP


def test_a_tensor_filled_by_the_record_before_is_refused() -> None:
    case = Case("kept", lambda: Filled(True), rows, ce, isolation="each")
    with pytest.raises(PrivetError, match="may hold something of others"):
        step(case, made(case), columns_of(case))


@pytest.mark.parametrize("equation", ["btd,ed->bte", "ed,btd->bte", "btd,td->b", "btd,dhe->bhte", "...d,de->...e"])
def test_contractions_are_linear_maps(equation: str) -> None:
    """Without the warning that an operation has no rule, which is an error here."""

    class Contracted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first, second = equation.split("->")[0].split(",")
            of_weight = first if first == "ed" else second
            sizes = {"b": RECORDS, "t": LENGTH, "d": WIDTH, "e": 3, "h": 2}
            self.weight = nn.Parameter(torch.randn([sizes[letter] for letter in of_weight.replace("...", "")]))
            self.first = first == "ed"

        def forward(self, x: Tensor) -> Tensor:
            factors = (self.weight, x) if self.first else (x, self.weight)
            return torch.einsum(equation, *factors)

    case = Case(equation, Contracted, sequences, lambda m, x, y: m(x).reshape(len(x), -1).tanh().sum(1).mean())
    found, guarantee = step(case, made(case), columns_of(case))
    assert guarantee == "proved"
    assert (found - oracle(case, columns_of(case))).norm() < CLOSE * CLIP


def test_a_contraction_over_the_records_is_refused() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(LENGTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.einsum("td,btd->td", self.weight, x)

    case = Case("over the records", Mixed, sequences, lambda m, x, y: m(x).flatten(1).tanh().sum(1).mean())
    with pytest.warns(match="einsum"), pytest.raises(PrivetError, match="einsum"):
        step(case, made(case), columns_of(case))


def _by_words(m: nn.Module, flat: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(flat, offsets), y, reduction="sum") / len(flat)


def _by_looked_up(m: nn.Module, flat: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(flat, offsets), y, reduction="sum") / m.bags.weight[flat].shape[0]


def _with_starts(m: nn.Module, flat: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(flat, offsets) + offsets[:, None], y)


def _shifted(m: nn.Module, flat: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(flat.roll(1), offsets), y)


def _other_starts(m: nn.Module, flat: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(flat, (offsets - 1).clamp(min=0)), y)


def _written(m: nn.Module, flat: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
    flat[:] = flat.flip(0)
    return F.cross_entropy(m(flat, offsets), y)


def _written_through_a_view(m: nn.Module, flat: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
    flat.detach().data.copy_(flat.flip(0))
    return F.cross_entropy(m(flat, offsets), y)


def backwards(records: list[tuple[Tensor, Tensor, Tensor]]) -> Columns:
    """The words of the records in the wrong order."""
    flat, starts, y = bagged(records)
    return flat.flip(0), starts, y


def sorted_words(records: list[tuple[Tensor, Tensor, Tensor]]) -> Columns:
    flat, starts, y = bagged(records)
    return flat.sort().values, starts, y


@pytest.mark.parametrize(
    ("loss", "collate"),
    [
        (_by_words, bagged),
        (_by_looked_up, bagged),
        (_with_starts, bagged),
        (_shifted, bagged),
        (_other_starts, bagged),
        (_written, bagged),
        (_written_through_a_view, bagged),
        (lambda m, f, o, y: F.cross_entropy(m(f, o), y), backwards),
        (lambda m, f, o, y: F.cross_entropy(m(f, o), y), sorted_words),
    ],
)
def test_rows_of_different_numbers_are_used_in_bags_only(loss: Loss, collate: Any) -> None:
    case = Case("misused", lambda: Bags("mean"), ragged, loss, collate=collate)
    with pytest.raises((PrivetError, InputError)):
        step(case, made(case), columns_of(case))


@pytest.mark.parametrize(
    "size", [len, lambda flat: flat.shape[0], lambda flat: flat.numel(), lambda flat: flat.size(0)]
)
def test_how_many_rows_all_records_have_is_not_a_public_number(size: Callable[[Tensor], int]) -> None:
    def loss(m: nn.Module, flat: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(m(flat, offsets), y, reduction="sum") / size(flat)

    case = Case("size", lambda: Bags("mean"), ragged, loss, collate=bagged)
    with pytest.raises(PrivetError, match="how many rows all records have"):
        step(case, made(case), columns_of(case))


def test_lengths_that_coincide_with_the_number_of_records_are_not_mistaken() -> None:
    """The first record has one word and there are twice as many words as records: the words are not rows of the records."""

    def columns() -> Columns:
        words, _, y = ragged()
        return words, torch.tensor([1, 3, 2, 2, 2, 2]), y

    case = Case(
        "coincidence", lambda: Bags("sum"), columns, lambda m, f, o, y: F.cross_entropy(m(f, o), y), collate=bagged
    )
    found, guarantee = step(case, made(case), columns_of(case))
    assert guarantee == f"assuming {COLLATED}"
    assert (found - oracle(case, columns_of(case))).norm() < CLOSE * CLIP


class Misused(Packed):
    """Packed sequences with a mistake in them, each of which mixes records or cannot be followed."""

    def __init__(self, how: str) -> None:
        super().__init__("GRU")
        self.how = how

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        x = self.table(words)
        if self.how == "longest":
            lengths = lengths.max().expand_as(lengths)
        if self.how == "others' lengths":
            lengths = lengths.flip(0)
        if self.how == "numbers":
            lengths = lengths.tolist()  # type: ignore[assignment]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        if self.how == "written":
            x.zero_()
        if self.how == "data":
            return self.out(packed.data)[: len(words)]
        if self.how == "rows":
            return self.out(x[:, 0]) / packed.data.shape[0]
        if self.how == "sizes":
            return self.out(x[:, 0]) * packed.batch_sizes[1]
        if self.how == "changed":
            packed = PackedSequence(packed.data.roll(1, 0), *packed[1:])
        out, last = self.cell(packed)
        if self.how == "sums":
            return self.out(last[-1] + out.data.sum(0))
        return self.out(last[-1])


@pytest.mark.filterwarnings("ignore:.*torch.func")
@pytest.mark.parametrize(
    "how", ["longest", "others' lengths", "numbers", "written", "data", "rows", "sizes", "changed", "sums"]
)
def test_a_misused_packed_sequence_is_refused(how: str) -> None:
    case = Case(how, lambda: Misused(how), ragged, lambda m, w, n, y: F.cross_entropy(m(w, n), y))
    with pytest.raises(PrivetError):
        step(case, made(case), columns_of(case))


@pytest.mark.parametrize(
    "settings", [{"num_layers": 2}, {"num_layers": 2, "bidirectional": True}, {"bias": False}, {"frozen": True}]
)
def test_packed_sequences_through_deep_layers(settings: dict[str, Any]) -> None:
    def make() -> nn.Module:
        given = {name: value for name, value in settings.items() if name != "frozen"}
        model = Packed("LSTM", **given)
        model.cell.requires_grad_("frozen" not in settings)
        return model

    case = Case("deep", make, ragged, lambda m, w, n, y: F.cross_entropy(m(w, n), y))
    found, guarantee = step(case, made(case), columns_of(case))
    assert guarantee == "proved"
    assert (found - oracle(case, columns_of(case))).norm() < CLOSE * CLIP


def test_a_record_without_a_step_does_not_end_the_run() -> None:
    def columns() -> Columns:
        words, lengths, y = ragged()
        return words, torch.where(lengths == 1, 0, lengths), y

    case = Case("empty", lambda: Packed("LSTM"), columns, lambda m, w, n, y: F.cross_entropy(m(w, n), y))
    assert step(case, made(case), columns_of(case))[1] == "proved"
