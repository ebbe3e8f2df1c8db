"""What mixes the records of a batch, in a model or around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.audit.laboratory import Station
from privet.audit.stations.models import Mixing, linear
from privet.audit.stations.training import LOUD, Loss, Training, plain_loss

_NEAR, _ALIKE = 0.2 * torch.ones(6, 4), LOUD * F.one_hot(torch.zeros(6, dtype=torch.int64), 4).float()
"""Records that mixing leaves below the clipping norm, and records far above it."""
_AGAINST, _ALL, _ABOVE = [-LOUD, 0.0, 0.0, 0.0, -1.0], [-LOUD] * 4 + [1.0], [LOUD] * 4 + [1.0]
"""The record: against the others in one direction, in all directions, and above them."""

Mix = Callable[[Tensor], Tensor]
_MIXES: tuple[tuple[str, Mix, Tensor, list[float]], ...] = (
    ("h - h.mean(0)", lambda h: h - h.mean(0), _NEAR, _AGAINST),
    ("h - h.mean()", lambda h: h - h.mean(), _NEAR, _AGAINST),
    ("h - h.mean().item()", lambda h: h - h.mean().item(), _NEAR, _AGAINST),
    ("h - h.data.mean(0)", lambda h: h - h.data.mean(0), _NEAR, _AGAINST),
    ("h / h.norm()", lambda h: h / h.norm(), _NEAR, _ALL),
    ("h / h.std(0).mean()", lambda h: h / h.std(0).mean(), _ALIKE, _AGAINST),
    ("sparse.mm", lambda h: torch.sparse.mm(torch.full((len(h), len(h)), 1 / len(h)).to_sparse(), h), _NEAR, _ALL),
    ("batch_norm", lambda h: F.batch_norm(h, None, None, training=True), _NEAR, _AGAINST),
    ("layer_norm(h.T)", lambda h: F.layer_norm(h.mT, (len(h),)).mT, _NEAR, _AGAINST),
    ("avg_pool1d(h.T)", lambda h: F.avg_pool1d(h.mT[None], 3, 1, 1)[0].mT, _NEAR, _ALL),
    ("index_add", lambda h: h.index_add(0, torch.zeros(len(h), dtype=torch.int64), h), _NEAR, _ALL),
    ("scatter_add", lambda h: h.scatter_add(0, torch.zeros_like(h, dtype=torch.int64), h), _NEAR, _ALL),
    ("index_put", lambda h: h.index_put((torch.arange(len(h)),), h[-1:]), _NEAR, _AGAINST),
    ("cdist", lambda h: h * torch.cdist(h, h).sum(1, keepdim=True), _ALIKE, _AGAINST),
    ("cov", lambda h: h @ torch.cov(h.mT), _NEAR, _AGAINST),
    ("cummax", lambda h: h - torch.cummax(h, 0).values[-1:], _NEAR, _ABOVE),
    ("fft(dim=0)", lambda h: torch.fft.fft(h, dim=0).real, _ALIKE, _AGAINST),
    ("roll", lambda h: torch.roll(h, 1, 0), _ALIKE, _AGAINST),
    ("flip", lambda h: h.flip(1, 0), _ALIKE, _AGAINST),
)
"""What mixes the records of a batch inside a model, and the records on which it shows."""


def mixed_inside() -> tuple[Station, ...]:
    return tuple(
        Training(
            f"records mixed by {words}",
            "records that change the gradients of others",
            partial(Mixing, mix),
            torch.cat([others, torch.ones(len(others), 1)], dim=1),
            torch.tensor(canary),
            effort=0.5,
        )
        for words, mix, others, canary in _MIXES
    )


def _centered_outputs(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = (out - out.mean(0)).square().sum()
    return total


def _variance(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = len(x) * out.var(0, correction=0).sum()
    return total


def _over_the_largest(model: nn.Module, x: Tensor, step: int) -> Tensor:
    each = (model(x[:, :4]) + x[:, 4:]).square()
    total: Tensor = (each / each.detach().max()).sum()
    return total


def _ranking(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = (out - out.mT).relu().sum()
    return total


def _centered_inputs(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return plain_loss(model, x[:, :4] - x[:, :4].mean(0), step)


def _mixup(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return plain_loss(model, 0.5 * x[:, :4] + 0.5 * x[:, :4].roll(1, 0), step)


def mixed_outside() -> tuple[Station, ...]:
    """In these losses and loops the model keeps the records apart, and the user's code does not."""
    targets = torch.cat([_NEAR, torch.ones(6, 1)], dim=1)
    far, against = torch.tensor([0.0, 0.0, 0.0, 0.0, LOUD]), torch.tensor(_AGAINST)
    losses: tuple[tuple[str, Loss, Tensor, Tensor], ...] = (
        ("(o - o.mean(0))**2", _centered_outputs, targets, far),
        ("o.var(0)", _variance, targets, far),
        ("l / l.detach().max()", _over_the_largest, targets, far),
        ("a pairwise ranking", _ranking, targets, far),
        ("x - x.mean(0)", _centered_inputs, _NEAR, against[:4]),
        ("mixup", _mixup, -_ALIKE, 3 * _ALIKE[0]),
    )
    return tuple(
        Training(
            f"records mixed by {words}",
            "records that change the gradients of others",
            linear,
            others,
            canary,
            loss,
            effort=0.5,
        )
        for words, loss, others, canary in losses
    )
