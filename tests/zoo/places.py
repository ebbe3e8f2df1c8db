"""Traps that tie a record to its place in the batch or to the size of the batch, or write through another name of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.disguises import cross_entropy, perceptron, rows
from tests.zoo.harness import SOUND, Batch, Loss, Trap
from tests.zoo.operations import around
from tests.zoo.parts import CLASSES, FEATURES

_ROWS = 3 * torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
_SCORES = torch.randn(64, 3, generator=torch.Generator().manual_seed(2))
_PICKED = torch.tensor([0, 0, 1, *[0] * 61])
_LABELS = torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(3))


def _through(write: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    def written(h: Tensor) -> Tensor:
        h = h.clone()
        write(h)
        return h

    return written


def _view_kept(h: Tensor) -> Tensor:
    h = h.clone()
    view = h.unsqueeze(1)
    h.mul_(_ROWS[: len(h)])
    return view[:, 0]


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "h.detach().mul_(rows)": _through(lambda h: h.detach().mul_(_ROWS[: len(h)])),
    "h.data.mul_(rows)": _through(lambda h: h.data.mul_(_ROWS[: len(h)])),
    "torch._foreach_mul_": _through(lambda h: torch._foreach_mul_([h], [_ROWS[: len(h)]])),
    "torch.ops.aten.mul_": _through(lambda h: torch.ops.aten.mul_.Tensor(h.detach(), _ROWS[: len(h)])),
    "a view that is kept": _view_kept,
    "sort with out=": _through(
        lambda h: torch.sort(h.detach() * 3, dim=0, out=(h.detach(), torch.zeros_like(h).long()))
    ),
}

SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "h + len(h)": lambda h: h + 0.3 * len(h),
    "h * len(h)": lambda h: h * (1 + 0.2 * len(h)),
    "columns by len(h)": lambda h: h + h[:, : max(1, len(h) - 2)].sum(1, keepdim=True),
}

CONSTANT_TARGETS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binary cross-entropy": lambda o, y: F.binary_cross_entropy_with_logits(o, _SCORES[: len(o)].sigmoid()),
    "cross-entropy of arange": lambda o, y: F.cross_entropy(o, torch.arange(len(o)) % 3),
    "cross-entropy of a list": lambda o, y: F.cross_entropy(o, _LABELS[: len(o)]),
    "nll_loss": lambda o, y: F.nll_loss(o.log_softmax(1), _LABELS[: len(o)]),
    "kl_div, batchmean": lambda o, y: F.kl_div(o.log_softmax(1), _SCORES[: len(o)].softmax(1), reduction="batchmean"),
    "kl_div, sum": lambda o, y: F.kl_div(o.log_softmax(1), _SCORES[: len(o)].softmax(1), reduction="sum"),
    "cosine embedding": lambda o, y: F.cosine_embedding_loss(o, _SCORES[: len(o)], torch.ones(len(o))),
    "mean squares": lambda o, y: F.mse_loss(o, _SCORES[: len(o)]),
    "class weights of the batch": lambda o, y: F.cross_entropy(o, y, weight=o.detach().mean(0).exp(), reduction="sum"),
}


def _with_accuracy(o: Tensor, y: Tensor) -> Tensor:
    _ = (o.argmax(1) == y).sum() / len(y)
    return F.cross_entropy(o, y)


SOUND_TARGETS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "all ones": lambda o, y: F.binary_cross_entropy_with_logits(o, torch.ones_like(o)),
    "an accuracy beside the mean": _with_accuracy,
    "class weights that are constant": lambda o, y: F.cross_entropy(
        o, y, weight=torch.tensor([1.0, 2.0, 3.0], dtype=o.dtype), reduction="none"
    ).mean(),
}


class _Rows(nn.Module):
    """A tensor of parameters that has a row for each place in the batch."""

    def __init__(self, meet: Callable[[Tensor, Tensor], Tensor], picked: bool = False) -> None:
        super().__init__()
        self.meet, self.picked = meet, picked
        self.learned = nn.Parameter(torch.ones(2, FEATURES))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.learned[_PICKED[: len(x)]] if self.picked else self.learned[0] + _ROWS[: len(x), :FEATURES]
        return self.head(torch.tanh(self.meet(x, rows)))


MEETINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows * x": lambda x, rows: rows * x,
    "bmm": lambda x, rows: torch.bmm(x[:, None], torch.diag_embed(rows))[:, 0],
    "einsum": lambda x, rows: torch.einsum("bi,bi->bi", x, rows),
}


def _loss(of: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return of(model(batch[0]), batch[1])

    return loss


PLACES: list[Trap] = [
    *(
        Trap(name, "place: written through an alias", around(f), cross_entropy, rows, norm=None, bites=False)
        for name, f in WRITES.items()
    ),
    *(
        Trap(name, "place: size of the batch", around(f), cross_entropy, rows, norm=None, bites=False)
        for name, f in SIZES.items()
    ),
    *(
        Trap(name, "place: rows of parameters", partial(_Rows, f), cross_entropy, rows, norm=None, bites=False)
        for name, f in MEETINGS.items()
    ),
    Trap(
        "other parameters in the third place",
        "place: rows of parameters",
        partial(_Rows, MEETINGS["rows * x"], picked=True),
        cross_entropy,
        rows,
        norm=None,
        bites=False,
    ),
    *(
        Trap(name, "place: constant targets", perceptron, _loss(f), rows, norm=None, bites=False)
        for name, f in CONSTANT_TARGETS.items()
    ),
    *(
        Trap(name, "sound loss", perceptron, _loss(f), rows, allowed=SOUND, norm=None, oracle=_loss(f))
        for name, f in SOUND_TARGETS.items()
    ),
]
