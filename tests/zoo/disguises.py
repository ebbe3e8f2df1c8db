"""Mixing that hides: from a rehearsal, from whoever watches torch's functions, from whoever knows classes by name.

And ordinary models whose shape is unusual: outputs that are not tensors, losses inside the model, packed sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.zoo.harness import SOUND, Batch, Run, Trap, classic
from tests.zoo.models import Encoder, Lstm
from tests.zoo.parts import (
    CLASSES,
    FEATURES,
    WIDTH,
    Operation,
    around,
    cross_entropy,
    images,
    perceptron,
    rows,
    sequences,
    tokens,
)


def _center(h: Tensor) -> Tensor:
    return h - h.mean(0)


def _in_a_thread(h: Tensor) -> Tensor:
    """Modes and hooks of torch belong to one thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_center, h).result()


def _statistics_in_a_thread(h: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return h - pool.submit(lambda: float(h.detach().abs().max())).result() * 0.1


def _no_torch_function(h: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return _center(h)


def _no_torch_function_subclass(h: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return _center(h)


@cache
def _custom() -> Any:
    @torch.library.custom_op("zoo::center", mutates_args=())
    def center(h: Tensor) -> Tensor:
        return h - h.mean(0)

    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient - gradient.mean(0)

    center.register_autograd(backward)
    return center


class _Subclass(Tensor):
    """A tensor class of one's own, whose relu centers."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = function(*args, **(kwargs or {}))
            return out - out.mean(0) if function is torch.relu else out


class Every:
    """An operation that mixes from the second call on."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h if self.calls < 2 else _center(h)


def _by_coin(h: Tensor) -> Tensor:
    return _center(h) if float(torch.rand(())) < 0.9 else h


HIDDEN: dict[str, Operation] = {
    "only batches above 4": lambda h: h if len(h) <= 4 else _center(h),
    "only batches above 6": lambda h: h if len(h) <= 6 else h.flip(0),
    "only batches of an even size": lambda h: h if len(h) % 2 else h.flip(0),
    "only where a value is large": lambda h: h - (h - 20).relu().mean(0),
    "only where a record is large": lambda h: h * (h.abs().sum(1) < 60).all(),
    "only by a threshold, smooth": lambda h: h * torch.sigmoid(30 - h.abs().max()),
    "only the first record": lambda h: (
        torch.cat([h[:1] * h[1:].sum(0).tanh() if len(h) > 1 else h[:1], h[1:]]) * 3 + 2 * h[:1]
    ),
    "only the last two records": lambda h: torch.cat([h[:-2], h[-2:].flip(0)]) + h[-1:],
    "only with gradients": lambda h: _center(h) if torch.is_grad_enabled() else h,
    "only tensors that are not wrapped": lambda h: _center(h) if type(h) is Tensor else h,
    "only outside of vmap": lambda h: h if torch._C._functorch.is_functorch_wrapped_tensor(h) else _center(h),
    "only by a coin": _by_coin,
    "in another thread": _in_a_thread,
    "a statistic from another thread": _statistics_in_a_thread,
    "DisableTorchFunction": _no_torch_function,
    "DisableTorchFunctionSubclass": _no_torch_function_subclass,
    "a custom operator": lambda h: _custom()(h),
    "activation checkpointing": lambda h: checkpoint(_center, h, use_reentrant=False),
    "checkpointing, reentrant": lambda h: checkpoint(_center, h, use_reentrant=True),
    "a tensor class of one's own": lambda h: torch.relu(h.as_subclass(_Subclass)).as_subclass(Tensor),
    "tiny weight, huge effect": lambda h: h + 1e4 * (h * 1e-3).mean(0),
    "a change below float32 at first": lambda h: h + (h * 1e-8).mean(0).expand_as(h) * 3e8,
    "scaled dot of one query": lambda h: h + (h[:1] @ h.T).softmax(1) @ h,
    "gradient only: h + (g - g.detach())": lambda h: h + (h.mean(0) - h.mean(0).detach()) * 40,
    "value only: h + (g.detach() - h.detach())": lambda h: h + (h.flip(0) - h).detach(),
    "one column": lambda h: torch.cat([h[:, :5], 5 * h[:, 5:].flip(0)], 1),
    "one column by index": lambda h: h.index_put((torch.arange(len(h)), torch.full((len(h),), 5)), 5 * h[:, 5].flip(0)),
    "through complex numbers": lambda h: torch.fft.ifft(torch.fft.fft(h, dim=0).roll(1, 0), dim=0).real * 2,
    "through integers": lambda h: h - (h.detach() * 100).long().amax(0).float() / 1000,
    "through booleans": lambda h: h * (2 * (h.detach().abs() > 20).any() - 1),
    "through a string": lambda h: h - 0.1 * float(str(h.detach().abs().max().item())),
    "through an exception": lambda h: _raised(h),
    "through the shape of a result": lambda h: h * (h[h.abs() > 20].shape[0] - 0.5),
    "through a generator's state": lambda h: h + _seeded(h),
    "through sorting twice": lambda h: h.sort(0).values.sort(0, descending=True).values,
    "through a permutation and almost its inverse": lambda h: h.flip(0)[torch.arange(len(h) - 1, -1, -1).roll(1)],
}


def _raised(h: Tensor) -> Tensor:
    try:
        if h.abs().max() > 20:
            raise OverflowError
        return h
    except OverflowError:
        return -h


def _seeded(h: Tensor) -> Tensor:
    state = torch.get_rng_state()
    torch.manual_seed(int(h.detach().abs().max() * 100))
    noise = torch.randn(WIDTH)
    torch.set_rng_state(state)
    return 3 * noise


# --- classes that are known by name, and are not what they seem --------------------------------------------------------------


class CenteredLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class CenteredNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(0)


class CenteredTanh(nn.Tanh):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class CenteredIdentity(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class BatchDropout(nn.Dropout):
    """Drops the columns that are large in the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.detach().abs().amax(0) < 20)


class CenteredSequential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x)
            x = x - 0.5 * x.mean(0)
        return x


class Hyper(nn.Module):
    """Weights that are computed from the batch."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.first, self.maker, self.own = nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH * CLASSES), own

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if self.own:
            return torch.bmm(h[:, None], self.maker(x).tanh().view(-1, WIDTH, CLASSES))[:, 0]
        return h @ self.maker(x.mean(0)).tanh().view(WIDTH, CLASSES)


def _with(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(FEATURES, WIDTH), layer(), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


CLASSES_OF_ONES_OWN: dict[str, Callable[[], nn.Module]] = {
    "a subclass of Linear that centers": _with(lambda: CenteredLinear(WIDTH, WIDTH)),
    "a subclass of LayerNorm that adds the mean": _with(lambda: CenteredNorm(WIDTH)),
    "a subclass of Tanh that centers": _with(CenteredTanh),
    "a subclass of Identity that centers": _with(CenteredIdentity),
    "a subclass of Dropout that looks at the batch": _with(BatchDropout),
    "a subclass of Sequential that centers": lambda: CenteredSequential(
        nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
    ),
    "weights from the batch's mean": lambda: Hyper(False),
}


# --- what comes before the loop -------------------------------------------------------------------------------------------


def _collate_centered(items: list[Any]) -> Any:
    x, y = torch.stack([i[0] for i in items]), torch.stack([i[1] for i in items])
    return x - x.mean(0), y


def _collate_sorted(items: list[Any]) -> Any:
    items = sorted(items, key=lambda item: float(item[0][0]))
    labels = torch.stack([i[1] for i in items]).flip(0)
    return torch.stack([i[0] for i in items]), labels


def _collate_plain(items: list[Any]) -> Any:
    return torch.stack([i[0] for i in items]), torch.stack([i[1] for i in items])


def _loader(collate: Callable[[list[Any]], Any]) -> Callable[[TensorDataset], Any]:
    def wrap(dataset: TensorDataset) -> Any:
        return DataLoader(dataset, batch_size=8, collate_fn=collate)

    return wrap


# --- ordinary models of unusual shape ----------------------------------------------------------------------------------------


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Shaped(nn.Module):
    """A model whose output is a tuple, a dictionary or a dataclass, or whose loss is its output."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.head, self.kind = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES), kind

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        hidden = torch.tanh(self.first(x))
        logits = self.head(hidden)
        if self.kind == "tuple":
            return logits, hidden
        if self.kind == "dictionary":
            return {"logits": logits, "hidden": hidden}
        if self.kind == "dataclass":
            return Output(logits, hidden)
        assert labels is not None
        loss = F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits} if self.kind == "loss in a dictionary" else loss


def _shaped_loss(kind: str) -> Callable[[nn.Module, Batch], Tensor]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        if kind == "tuple":
            return F.cross_entropy(model(x)[0], y)
        if kind == "dictionary":
            return F.cross_entropy(model(x)["logits"], y)
        if kind == "dataclass":
            return F.cross_entropy(model(x).logits, y)
        if kind == "loss in a dictionary":
            out: Tensor = model(x=x, labels=y)["loss"]
            return out
        own: Tensor = model(x, labels=y)
        return own

    return loss


class Masked(nn.Module):
    """Attention with a mask that is gathered by broadcast positions, as in Hugging Face's models; rotary positions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.table, self.packed, self.head = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, CLASSES)
        self.kind = kind
        self.register_buffer("causal", torch.ones(16, 16, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        records, length = x.shape
        kept = x != 0
        q, k, v = self.packed(self.table(x)).view(records, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        if self.kind == "gathered mask":
            where = torch.arange(records)[:, None, None, None], torch.arange(length)[None, None, None, :]
            mask = kept[where] & self.causal[:length, :length]
        elif self.kind == "additive mask":
            mask = (1.0 - kept[:, None, None, :].to(q.dtype)) * -1e4
        else:
            mask = kept[:, None, None, :].expand(-1, 2, length, -1)
        if self.kind == "rotary positions":
            angle = torch.arange(length)[:, None] * torch.tensor([1.0, 0.1])
            q, k = (self._turned(t, angle.to(t.dtype)) for t in (q, k))
        if self.kind == "additive mask":
            scores = q @ k.transpose(-1, -2) / 2 + mask
            h = scores.softmax(-1) @ v
        else:
            h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        h = h.transpose(1, 2).reshape(records, length, 8)
        out: Tensor = self.head((h * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True).clamp(min=1))
        return out

    @staticmethod
    def _turned(t: Tensor, angle: Tensor) -> Tensor:
        one, two = t.chunk(2, -1)
        return torch.cat([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1)


class Packed(nn.Module):
    """Packed sequences: the records are laid out one after another, longest first."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(11, FEATURES), nn.GRU(FEATURES, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.table(x), (x != 0).sum(1).clamp(min=1), batch_first=True, enforce_sorted=False
        )
        out: Tensor = self.head(self.cell(packed)[1][-1])
        return out


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(11, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        kept = x != 0
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), kept.sum(1).cumsum(0)[:-1]])
        out: Tensor = self.head(self.bags(x[kept], offsets))
        return out


class Routed(nn.Module):
    """A mixture of experts, each of which sees only the records that are routed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES, 2)
        self.experts = nn.ModuleList([nn.Linear(FEATURES, CLASSES) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(1).max(1)
        out = torch.zeros(len(x), CLASSES, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            (where,) = torch.where(chosen == number)
            out = out.index_add(0, where, expert(x[where]) * weight[where, None])
        return out


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )  # fmt: skip


def _poisson(run: Run) -> None:
    """Sampling rate 1/8: many steps are empty."""
    classic(run)
    run.notes["steps"] = run.private.steps_done


def _ordinary(name: str, model: Callable[[], nn.Module], data: Any, **more: Any) -> Trap:
    loss = more.pop("loss", cross_entropy)
    return Trap(
        name,
        "sound model",
        model,
        loss,
        data,
        **{"norm": None, "oracle": loss, "allowed": SOUND, "bites": False, **more},
    )


SHAPES = ("tuple", "dictionary", "dataclass", "loss of the model", "loss in a dictionary")
MASKS = ("gathered mask", "additive mask", "expanded mask", "rotary positions")

DISGUISES: list[Trap] = [
    *(
        Trap(
            name, "disguise", around(operation), cross_entropy, rows, norm=None, fate="even size" not in name,
            draws="coin" in name,
        )
        for name, operation in HIDDEN.items()
    ),
    Trap("only from the second call on", "disguise", lambda: around(Every())(), cross_entropy, rows, steps=3, bites=False),
    *(Trap(name, "disguise", model, cross_entropy, rows, norm=None) for name, model in CLASSES_OF_ONES_OWN.items()),
    Trap(
        "a loader whose collate centers", "disguise", perceptron, cross_entropy, rows, wrap=_loader(_collate_centered),
        bites=False,
    ),
    Trap(
        "a loader whose collate sorts", "disguise", perceptron, cross_entropy, rows, wrap=_loader(_collate_sorted), bites=False
    ),
    Trap("a loader whose collate stacks", "loop", perceptron, cross_entropy, rows, wrap=_loader(_collate_plain), bites=False),
    *(_ordinary(f"output: {kind}", (lambda kind=kind: Shaped(kind)), rows, loss=_shaped_loss(kind)) for kind in SHAPES),
    *(_ordinary(kind, (lambda kind=kind: Masked(kind)), tokens) for kind in MASKS),
    _ordinary("weights from each record", lambda: Hyper(True), rows),
    *(
        _ordinary(f"one record alone: {name}", model, data, alone=1)
        for name, model, data in (
            ("CNN", _cnn, images), ("LSTM", lambda: Lstm(nn.LSTM), sequences), ("transformer", Encoder, tokens),
            ("linear", lambda: nn.Linear(FEATURES, CLASSES), rows),
        )
    ),
    _ordinary(
        "Poisson batches, many of them empty", perceptron, rows, body=_poisson, steps=12, left_out=(), norm=0.5, oracle=None,
        settings={"batch_size": 1}, verify=lambda run: "" if run.notes["steps"] == 12 else "not all steps were done",
    ),
    *(
        Trap(name, "needed", model, cross_entropy, data, norm=None, oracle=cross_entropy, bites=False)
        for name, model, data in (
            ("packed sequences", Packed, tokens), ("EmbeddingBag with offsets", Bags, tokens), ("routed experts", Routed, rows),
        )
    ),
]  # fmt: skip
