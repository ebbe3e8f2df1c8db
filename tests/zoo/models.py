"""Whole models: those that keep state of the records, those that meet coincidences of sizes or numbers, and ordinary ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.harness import SAFE, SOUND, Batch, Loss, Outcome, Run, Trap, classic
from tests.zoo.parts import (
    CLASSES,
    FEATURES,
    LENGTH,
    RECORDS,
    WIDTH,
    cross_entropy,
    images,
    rows,
    sequences,
    square,
    tokens,
)

# --- state that records change -------------------------------------------------------------------------------------------


class Keeping(nn.Module):
    """Two layers, and in between something is kept of the records."""

    def __init__(self, keep: Callable[[Keeping, Tensor], Tensor | None]) -> None:
        super().__init__()
        self.first, self.head, self.keep = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES), keep
        self.register_buffer("kept", torch.zeros(WIDTH))
        self.register_buffer("queue", torch.zeros(4, WIDTH))
        self.register_buffer("hidden", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("count", torch.zeros(()))
        self.bank: list[Tensor] = []
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x)) * 3
        out = self.keep(self, h)
        result: Tensor = self.head(h if out is None else out)
        return result


def _kept(keep: Callable[[Any, Tensor], Tensor | None]) -> Callable[[], nn.Module]:
    return lambda: Keeping(keep)


def _ema(self: Any, h: Tensor) -> None:
    with torch.no_grad():
        self.kept.mul_(0.9).add_(h.mean(0), alpha=0.1)


def _copy(self: Any, h: Tensor) -> None:
    self.kept.copy_(h.detach().mean(0))


def _assign(self: Any, h: Tensor) -> None:
    self.kept = h.detach().amax(0)


def _data(self: Any, h: Tensor) -> None:
    self.kept.data = h.data.mean(0)


def _hidden(self: Any, h: Tensor) -> None:
    self.hidden.copy_(h.detach().sum(0))


def _out(self: Any, h: Tensor) -> None:
    torch.mean(h.detach(), 0, out=self.kept)


def _observer(self: Any, h: Tensor) -> Tensor:
    """Quantization-aware training: the range of the activations is kept, and used."""
    self.kept.copy_(torch.maximum(self.kept, h.detach().abs().amax(0)))
    scale = self.kept.amax() / 7 + 1e-3
    return h + ((h / scale).round() * scale - h).detach()


def _queue(self: Any, h: Tensor) -> Tensor:
    """A MoCo queue: keys of earlier records."""
    keys = self.queue.clone()
    out = h + 3 * (h @ keys.T).softmax(1) @ keys
    self.queue.copy_(h.detach()[-4:] if len(h) >= 4 else self.queue)
    return out


def _bank(self: Any, h: Tensor) -> Tensor:
    out = h + (torch.stack(self.bank).mean(0) * 5 if self.bank else 0)
    self.bank.append(h.detach().mean(0))
    return out


def _attribute(self: Any, h: Tensor) -> Tensor:
    out = h if self.last is None else h - self.last
    self.last = h.detach().mean(0) * 5
    return out


_GLOBAL: dict[str, Tensor] = {}


def _global(self: Any, h: Tensor) -> Tensor:
    if self.last is None:
        _GLOBAL.clear()
        self.last = True
    out = h + _GLOBAL.get("mean", torch.zeros(WIDTH))
    _GLOBAL["mean"] = h.detach().mean(0) * 5
    return out


def _codebook(self: Any, h: Tensor) -> Tensor:
    """A vector quantizer whose codes follow the records."""
    near = torch.cdist(h.detach(), self.queue).argmin(1)
    hot = F.one_hot(near, 4).float()
    self.queue.mul_(0.9).add_(0.1 * hot.T @ h.detach())
    return h + (self.queue[near] - h).detach()


def _data_init(self: Any, h: Tensor) -> Tensor:
    """ActNorm: the first batch sets the scale."""
    if not bool(self.count):
        self.kept.copy_(h.detach().abs().amax(0))
        self.count.fill_(1)
    return h / (self.kept + 0.1)


def _count_records(self: Any, h: Tensor) -> None:
    self.count.add_(len(h))


def _first_weight(self: Any, h: Tensor) -> None:
    with torch.no_grad():
        self.first.bias.add_(h.mean(0), alpha=0.01)


KEPT: dict[str, tuple[Callable[[Any, Tensor], Tensor | None], int]] = {
    "a moving average in a buffer": (_ema, 1),
    "a buffer that copies the mean": (_copy, 1),
    "a buffer that is assigned": (_assign, 1),
    "a buffer through .data": (_data, 1),
    "a buffer that is not saved": (_hidden, 1),
    "a buffer as out=": (_out, 1),
    "a QAT observer": (_observer, 2),
    "a MoCo queue": (_queue, 2),
    "a memory bank in a list": (_bank, 2),
    "an attribute of the module": (_attribute, 2),
    "a global variable": (_global, 2),
    "a codebook of a vector quantizer": (_codebook, 2),
    "data-dependent initialization": (_data_init, 1),
    "a counter of records": (_count_records, 1),
    "a bias that follows the records": (_first_weight, 1),
}


def _norm(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(FEATURES, WIDTH), layer(), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


def _norm_on_channels(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 3), layer(), nn.Flatten(), nn.Linear(64, CLASSES))


class OwnBatchNorm(nn.Module):
    """A batch norm that is not torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return self.scale * (h - h.mean(0)) / (h.var(0, correction=0) + 1e-3).sqrt()


class GhostNorm(nn.Module):
    """Batch norm over groups of records."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([(part - part.mean(0)) / (part.std(0, correction=0) + 0.1) for part in h.split(4)])


class MinibatchDeviation(nn.Module):
    """The feature of a GAN's discriminator that tells how varied the batch is."""

    def forward(self, h: Tensor) -> Tensor:
        return h * h.std(0, correction=0).mean()


class ExpertChoice(nn.Module):
    """Experts choose their records: each takes the best of the batch."""

    def forward(self, h: Tensor) -> Tensor:
        scores = h[:, :2].softmax(0)
        chosen = scores >= scores.topk(max(len(h) // 2, 1), 0).values[-1]
        return h * (chosen.float() @ torch.tensor([[1.0], [-2.0]]))


class Capacity(nn.Module):
    """Experts that take only the first records that come to them."""

    def forward(self, h: Tensor) -> Tensor:
        to = (h[:, 0] > h[:, 1]).long()
        place = F.one_hot(to, 2).cumsum(0).gather(1, to[:, None])[:, 0]
        return h * (place <= 2).float()[:, None]


def _batch_norm_in_eval() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)).eval()


def _train_mode(run: Run) -> None:
    for batch in run.private.batches():
        run.model.train()
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()


def _train_mode_without_gradient(run: Run) -> None:
    """The running statistics move in a forward pass that trains nothing."""
    for batch in run.private.batches():
        run.model.train()
        with torch.no_grad():
            run.model(batch[0])
        run.model.eval()
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()


def _one_layer_trains(run: Run) -> None:
    run.model[1].train()  # type: ignore[index]
    classic(run)


def _swap_layer(run: Run) -> None:
    for batch in run.private.batches():
        run.model[1] = nn.BatchNorm1d(WIDTH)  # type: ignore[index]
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()


# --- models that mix, by mistake --------------------------------------------------------------------------------------------


class WrongLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(x)[0][:, -1])
        return out


class WrongAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.attention = nn.Linear(FEATURES, WIDTH), nn.MultiheadAttention(WIDTH, 2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        out: Tensor = self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))
        return out


class WrongTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(FEATURES, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.into(x)).mean(1))
        return out


class Positioned(nn.Module):
    """Each row gets a code by its place in the batch, so that all records before it have a say."""

    def __init__(self, learned: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.table = nn.Embedding(64, WIDTH) if learned else None
        self.start = 0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        place = torch.arange(len(x))
        if self.table is not None:
            place = place + self.start
            self.start = (self.start + len(x)) % 32
            h = h * self.table(place) * 3
        else:
            h = h * torch.sin(place.to(h.dtype) * 2)[:, None] * 3
        out: Tensor = self.head(h)
        return out


class Prototypes(nn.Module):
    """As many prototypes as the batch has rows: by chance, a coincidence, or by mistake, one for each row."""

    def __init__(self, number: int, by_row: bool) -> None:
        super().__init__()
        self.first, self.head, self.by_row = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES), by_row
        self.table = nn.Parameter(torch.randn(number, WIDTH))
        self.register_buffer("fixed", torch.randn(number, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        out: Tensor = self.head(self._by_row(h) if self.by_row else self._looked_up(h))
        return out

    def _by_row(self, h: Tensor) -> Tensor:
        return h * self.fixed[: len(h)] * 3

    def _looked_up(self, h: Tensor) -> Tensor:
        return (h @ self.table.T).softmax(1) @ (self.table * self.fixed)


class TwoInputs(nn.Module):
    """The second input is a constant with its own number of rows, handed over by the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.t, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(2, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        keys = self.t(times)
        h = self.x(x)
        out: Tensor = self.head((h @ keys.T).softmax(1) @ keys + h)
        return out


def _two_inputs(number: int) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        times = torch.linspace(0, 1, 2 * number).reshape(number, 2).to(batch[0].dtype)
        return F.cross_entropy(model(batch[0], times), batch[1])

    return loss


class Buffered(nn.Module):
    """Positions of a sequence from a table with as many rows as positions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.into, self.head, self.kind = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES), kind
        self.table = nn.Embedding(LENGTH, WIDTH)
        self.mix = nn.Linear(LENGTH, LENGTH)
        self.bare = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.query = nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.into(x))
        if self.kind == "position embedding":
            h = h + self.table(torch.arange(h.shape[1]))
        elif self.kind == "mixing positions":
            h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        elif self.kind == "bare position parameter":
            h = h + self.bare
        elif self.kind == "learned queries":
            h = (self.query @ h.transpose(1, 2)).softmax(-1) @ h
        elif self.kind == "records in dimension 1":
            h = (h.transpose(0, 1) + self.bare[:, None]).transpose(0, 1)
        out: Tensor = self.head(h.mean(1))
        return out


SIZES: dict[str, tuple[Callable[[], nn.Module], Loss, Any]] = {
    **{
        f"{kind}, {name}": ((lambda kind=kind: Buffered(kind)), cross_entropy, data)
        for kind in (
            "position embedding", "mixing positions", "bare position parameter", "learned queries", "records in dimension 1"
        )
        for name, data in (("T != B", sequences), ("T == B", square))
    },
    **{
        f"{number} prototypes for {RECORDS} records": ((lambda number=number: Prototypes(number, False)), cross_entropy, rows)
        for number in (RECORDS - 1, RECORDS, RECORDS + 1)
    },
    **{
        f"a second input of {number} rows": (TwoInputs, _two_inputs(number), rows)
        for number in (RECORDS - 1, RECORDS, RECORDS + 1)
    },
}  # fmt: skip

# --- numerics ------------------------------------------------------------------------------------------------------------


def _near_constant(records: int, positions: int, width: int, size: float) -> Callable[[], tuple[Tensor, ...]]:
    """Inputs that are nearly the same at all positions: norms from products of inputs cancel."""
    return lambda: (size * (1 + 1e-4 * torch.randn(records, positions, width)),)


def _alternating(model: nn.Module, batch: Batch) -> Tensor:
    """Output gradients that sum to zero over the positions."""
    out = model(batch[0])
    sign = 1.0 - 2.0 * (torch.arange(out.shape[1]) % 2)
    return (out * sign.to(out.dtype)[None, :, None]).sum((1, 2)).mean()


def _alternating_pixels(model: nn.Module, batch: Batch) -> Tensor:
    out = model(batch[0]).flatten(2)
    sign = 1.0 - 2.0 * (torch.arange(out.shape[2]) % 2)
    sign[-1] = 0.0
    return (out * sign.to(out.dtype)).sum((1, 2)).mean()


def _steep(scale: float) -> Loss:
    return lambda model, batch: (scale * model(batch[0])).sum(1).mean()


def _many(records: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (1 + 0.01 * torch.randn(records, 2),)


def _sized(size: float) -> Callable[[], tuple[Tensor, Tensor]]:
    def data() -> tuple[Tensor, Tensor]:
        x, y = rows()
        return x * size, y

    return data


EXACT = frozenset({Outcome.RIGHT, Outcome.REFUSED})

NUMERICS: list[Trap] = [
    *(
        Trap(
            f"near-constant inputs of {size:g}, Linear({width}, {width})", "numerics",
            (lambda width=width: nn.Linear(width, width)), _alternating, _near_constant(3, 16, width, size), left_out=(0, 1, 2),
            norm=1.0, allowed=EXACT, bites=False,
        )
        for width in (64, 512)
        for size in (1.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7)
    ),
    *(
        Trap(
            f"near-constant inputs of {size:g}, Conv2d(512, 512, 1)", "numerics", (lambda: nn.Conv2d(512, 512, 1)),
            _alternating_pixels, (lambda size=size: (size * (1 + 1e-4 * torch.randn(2, 512, 7, 7)),)), left_out=(0, 1), norm=1.0,
            allowed=EXACT, bites=False,
        )
        for size in (100.0, 1e4, 1e6)
    ),
    *(
        Trap(
            f"gradients of {scale:g}, inputs of {size:g}", "numerics", (lambda: nn.Linear(FEATURES, CLASSES)), _steep(scale),
            _sized(size), norm=1.0, allowed=EXACT, bites=False,
        )
        for scale, size in ((1e19, 1.0), (1e30, 1e-20), (1e-30, 1.0), (1e30, 1e5), (1e-20, 1e25), (1e15, 1e-18))
    ),
    Trap("16,000 records", "numerics", lambda: nn.Linear(2, 2), _steep(1.0), _many(16_000), norm=0.1, allowed=EXACT, bites=False,
         left_out=(5,)),
    Trap("a model in float64", "numerics", lambda: nn.Linear(FEATURES, CLASSES).double(),
         lambda m, b: F.cross_entropy(m(b[0].double()), b[1]), rows, norm=None, oracle=cross_entropy, allowed=SOUND, bites=False),
    Trap("logits of 1e4", "numerics", lambda: nn.Linear(FEATURES, CLASSES),
         lambda m, b: F.cross_entropy(1e4 * m(b[0]), b[1]), rows, norm=1.0, allowed=EXACT, bites=False),
    Trap("a model in bfloat16", "numerics", lambda: nn.Linear(FEATURES, CLASSES).bfloat16(),
         lambda m, b: F.cross_entropy(m(b[0].bfloat16()).float(), b[1]), rows, norm=1.0, bites=False, slack=0.02),
    Trap("a model in float16", "numerics", lambda: nn.Linear(FEATURES, CLASSES).half(),
         lambda m, b: F.cross_entropy(m(b[0].half()).float(), b[1]), rows, norm=1.0, bites=False, slack=0.01),
]  # fmt: skip


def _autocast(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(model(batch[0]), batch[1])


# --- ordinary models -----------------------------------------------------------------------------------------------------


class Lstm(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], start: bool = False) -> None:
        super().__init__()
        self.cell, self.head, self.start = kind(FEATURES, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES), start

    def forward(self, x: Tensor) -> Tensor:
        if self.start:
            zero = torch.zeros(1, len(x), WIDTH, dtype=x.dtype)
            h = self.cell(x, (zero, zero) if isinstance(self.cell, nn.LSTM) else zero)[0]
        else:
            h = self.cell(x)[0]
        out: Tensor = self.head(h[:, -1])
        return out


class Encoder(nn.Module):
    """A transformer over padded tokens: positions, a mask of its own for each record, dropout that is off."""

    def __init__(self, pool: str = "masked mean", mask: bool = True) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.token, self.head = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, CLASSES)
        self.pool, self.mask = pool, mask

    def forward(self, x: Tensor) -> Tensor:
        kept = (x != 0) if self.mask else torch.ones_like(x, dtype=torch.bool)
        h = self.table(x) + self.places(torch.arange(x.shape[1]))
        if self.pool == "class token":
            h = torch.cat([self.token.expand(len(x), -1, -1), h], 1)
            kept = torch.cat([torch.ones(len(x), 1, dtype=torch.bool), kept], 1)
        h = self.layer(h, src_key_padding_mask=~kept)
        if self.pool == "class token":
            h = h[:, 0]
        elif self.pool == "last token":
            h = h[torch.arange(len(x)), kept.sum(1) - 1]
        else:
            h = (h * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)
        out: Tensor = self.head(h)
        return out


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.inner = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        h = h + F.relu(self.norm(self.inner(h)))
        out: Tensor = self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))
        return out


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(self.table(x))).mean(1)
        return F.linear(h, self.table.weight)[:, :CLASSES]


class Noisy(nn.Module):
    """A variational layer: noise of its own for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(FEATURES, 2 * WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.into(x).chunk(2, 1)
        out: Tensor = self.head(mean + torch.randn_like(mean) * (0.1 * spread).clamp(-2, 2).exp())
        return out


class Experts(nn.Module):
    """A dense mixture of experts: each record is weighed by its own gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES, 2)
        self.experts = nn.ModuleList([nn.Linear(FEATURES, CLASSES) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return (self.gate(x).softmax(1)[:, None] * torch.stack([e(x) for e in self.experts], 2)).sum(2)


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
    )  # fmt: skip


def _in_place() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, CLASSES))


MODELS_SOUND: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "linear": (lambda: nn.Linear(FEATURES, CLASSES), rows),
    "CNN": (_cnn, images),
    "CNN with in-place ReLU": (_in_place, images),
    "residual CNN with GroupNorm": (Residual, images),
    "CNN with InstanceNorm": (_norm_on_channels(lambda: nn.InstanceNorm2d(4, affine=True)), images),
    "CNN with reflected padding": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(144, CLASSES)
        ),
        images,
    ),
    "CNN with a transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Flatten(), nn.Linear(147, CLASSES)),
        images,
    ),
    "depthwise CNN": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)),
        images,
    ),
    "LayerNorm": (_norm(lambda: nn.LayerNorm(WIDTH)), rows),
    "RMSNorm": (_norm(lambda: nn.RMSNorm(WIDTH)), rows),
    "GroupNorm": (_norm(lambda: nn.GroupNorm(2, WIDTH)), rows),
    "PReLU": (_norm(nn.PReLU), rows),
    "BatchNorm in eval mode": (_batch_norm_in_eval, rows),
    "LSTM": (lambda: Lstm(nn.LSTM), sequences),
    "LSTM, T == B": (lambda: Lstm(nn.LSTM), square),
    "GRU": (lambda: Lstm(nn.GRU), sequences),
    "RNN": (lambda: Lstm(nn.RNN), sequences),
    "LSTM with a start of zeros": (lambda: Lstm(nn.LSTM, True), sequences),
    "GRU with a start of zeros": (lambda: Lstm(nn.GRU, True), sequences),
    "transformer, padded": (Encoder, tokens),
    "transformer without a mask": (lambda: Encoder(mask=False), tokens),
    "transformer with a class token": (lambda: Encoder("class token"), tokens),
    "transformer, last token": (lambda: Encoder("last token"), tokens),
    "tied weights": (Tied, tokens),
    "dense experts": (Experts, rows),
    "prelude of bare parameters": (lambda: Prototypes(5, False), rows),
}

LOSSES_OF_NOISE: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, CLASSES)),
    "variational noise": Noisy,
    "alpha dropout": lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.AlphaDropout(0.3), nn.Linear(8, CLASSES)),
}


def _views(run: Run) -> None:
    for x, y in run.private.batches():
        run.optimizer.zero_grad()
        many = x.repeat_interleave(2, 0) * torch.tensor([1.0, 0.9]).repeat(len(x))[:, None]
        F.cross_entropy(run.model(many), y.repeat_interleave(2, 0)).backward()
        run.optimizer.step()


def _views_oracle(model: nn.Module, batch: Batch) -> Tensor:
    many = batch[0].repeat_interleave(2, 0) * torch.tensor([[1.0], [0.9]]).to(batch[0].dtype)
    return F.cross_entropy(model(many), batch[1].repeat_interleave(2, 0))


def _views_mixed(run: Run) -> None:
    """The views of one record are those of its neighbor."""
    for x, y in run.private.batches():
        run.optimizer.zero_grad()
        many = x.repeat(2, 1)
        F.cross_entropy(run.model(many), y.repeat(2)).backward()
        run.optimizer.step()


def _embedded(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Embedding(11, 4, **options), nn.Flatten(), nn.Linear(24, CLASSES))


def _state(name: str, model: Callable[[], nn.Module], **more: Any) -> Trap:
    settings: dict[str, Any] = {"norm": 0.05, "bites": False, **more}
    return Trap(name, "state", model, cross_entropy, settings.pop("data", rows), **settings)


MODELS: list[Trap] = [
    *(_state(name, _kept(keep), steps=steps) for name, (keep, steps) in KEPT.items()),
    _state("BatchNorm in training mode", _norm(lambda: nn.BatchNorm1d(WIDTH))),
    _state("BatchNorm2d in training mode", _norm_on_channels(lambda: nn.BatchNorm2d(4)), data=images),
    _state("SyncBatchNorm", _norm(lambda: nn.SyncBatchNorm(WIDTH))),
    _state(
        "BatchNorm without statistics, eval",
        lambda: _norm(lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False))().eval(),
    ),
    _state(
        "InstanceNorm with statistics", _norm_on_channels(lambda: nn.InstanceNorm2d(4, track_running_stats=True)), data=images
    ),
    _state("BatchNorm with a cumulative average", _norm_on_channels(lambda: nn.BatchNorm2d(4, momentum=None)), data=images),
    _state("BatchNorm in eval, then model.train()", _batch_norm_in_eval, body=_train_mode),
    _state(
        "BatchNorm trained without gradient", _batch_norm_in_eval, body=_train_mode_without_gradient,
        allowed=SAFE | {Outcome.CRASHED},
    ),
    _state("one layer put into training mode", _batch_norm_in_eval, body=_one_layer_trains),
    _state("a layer swapped for BatchNorm", _batch_norm_in_eval, body=_swap_layer),
    _state("Embedding with max_norm", _embedded(max_norm=0.5), data=tokens),
    _state("Embedding with scale_grad_by_freq", _embedded(scale_grad_by_freq=True), data=tokens),
    *(
        Trap(name, "mixing model", model, cross_entropy, data, norm=None if data is rows else 0.01, bites=bites)
        for name, model, data, bites in (
            ("a batch norm of one's own", _norm(OwnBatchNorm), rows, True),
            ("ghost batch norm", _norm(GhostNorm), rows, True),
            ("minibatch deviation", _norm(MinibatchDeviation), rows, True),
            ("experts that choose records", _norm(ExpertChoice), rows, True),
            ("experts with a capacity", _norm(Capacity), rows, True),
            ("codes by the place in the batch", lambda: Positioned(False), rows, True),
            ("an embedding with a running index", lambda: Positioned(True), rows, True),
            ("a table with a row for each row of the batch", lambda: Prototypes(RECORDS, True), rows, True),
            ("LSTM with batch_first forgotten", WrongLstm, sequences, False),
            ("attention with batch_first forgotten", WrongAttention, sequences, False),
            ("transformer with batch_first forgotten", WrongTransformer, sequences, False),
            ("LSTM with batch_first forgotten, T == B", WrongLstm, square, False),
            ("transformer with batch_first forgotten, T == B", WrongTransformer, square, False),
        )
    ),
    *(
        Trap(name, "size", model, loss, data, norm=None, oracle=loss, allowed=SOUND, bites=False)
        for name, (model, loss, data) in SIZES.items()
    ),
    *NUMERICS,
    Trap("autocast to bfloat16", "numerics", lambda: nn.Linear(FEATURES, CLASSES), _autocast, rows, norm=0.05, bites=False),
    *(
        Trap(name, "sound model", model, cross_entropy, data, norm=None, oracle=cross_entropy, allowed=SOUND)
        for name, (model, data) in MODELS_SOUND.items()
    ),
    *(
        Trap(name, "sound model", model, cross_entropy, rows, norm=0.05, allowed=SOUND, replace=True)
        for name, model in LOSSES_OF_NOISE.items()
    ),
    Trap(
        "two views of each record", "sound loop", lambda: nn.Linear(FEATURES, CLASSES), None, rows, body=_views, norm=None,
        oracle=_views_oracle, allowed=SOUND, settings={"views": 2},
    ),
    Trap(
        "views in the wrong order", "loop", lambda: nn.Linear(FEATURES, CLASSES), None, rows, body=_views_mixed, norm=0.05,
        settings={"views": 2}, bites=False,
    ),
    Trap(
        "views that were not stated", "loop", lambda: nn.Linear(FEATURES, CLASSES), None, rows, body=_views, norm=0.05,
        bites=False,
    ),
]  # fmt: skip
