"""Losses that couple records, and ordinary losses that a private run must take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.harness import SOUND, Batch, Loss, Run, Trap, step_on, with_vector
from tests.zoo.parts import (
    CLASSES,
    FEATURES,
    OUTLIER,
    aligned,
    alike,
    cross_entropy,
    masked,
    numbers,
    of_outputs,
    perceptron,
    rows,
    straight,
)

Simple = Callable[[Tensor, Tensor], Tensor]


def _each(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(o, y, reduction="none")


def _pairs(o: Tensor) -> Tensor:
    z = F.normalize(o, dim=1)
    return z @ z.T


def _info_nce(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(_pairs(o) * 5, torch.arange(len(o)))


def _clip(o: Tensor, y: Tensor) -> Tensor:
    scores = o @ torch.sin(o * 3).T
    labels = torch.arange(len(o))
    return F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)


def _nt_xent(o: Tensor, y: Tensor) -> Tensor:
    scores = _pairs(torch.cat([o, o * torch.linspace(0.5, 1.5, CLASSES)])) * 3
    scores = scores.masked_fill(torch.eye(len(scores), dtype=torch.bool), -1e4)
    half = len(o)
    return F.cross_entropy(scores, torch.cat([torch.arange(half) + half, torch.arange(half)]))


def _supervised_contrastive(o: Tensor, y: Tensor) -> Tensor:
    logits = (_pairs(o) * 3).log_softmax(1)
    same = (y[:, None] == y[None]).float()
    return -(logits * same).sum(1).div(same.sum(1)).mean()


def _triplet(o: Tensor, y: Tensor) -> Tensor:
    """Batch-hard triplets."""
    far = torch.cdist(o, o)
    same = y[:, None] == y[None]
    return (far.masked_fill(~same, 0).amax(1) - far.masked_fill(same, 1e4).amin(1) + 1).relu().mean()


def _triplet_neighbors(o: Tensor, y: Tensor) -> Tensor:
    return F.triplet_margin_loss(o, o.roll(1, 0), o.roll(2, 0))


def _center_loss(o: Tensor, y: Tensor) -> Tensor:
    hot = F.one_hot(y, CLASSES).to(o.dtype)
    centers = (hot.T @ o) / (hot.sum(0)[:, None] + 1)
    return (o - centers[y]).square().sum(1).mean()


def _ranking(o: Tensor, y: Tensor) -> Tensor:
    return F.softplus(o[:, :1] - o[:, :1].T).square().mean()


def _barlow(o: Tensor, y: Tensor) -> Tensor:
    z = (o - o.mean(0)) / (o.std(0, correction=0) + 0.1)
    return (z.T @ z / len(o) - torch.eye(CLASSES)).square().sum()


def _vicreg(o: Tensor, y: Tensor) -> Tensor:
    return (1 - (o.var(0, correction=0) + 1e-3).sqrt()).abs().mean() + F.cross_entropy(o, y)


def _mmd(o: Tensor, y: Tensor) -> Tensor:
    return (-torch.cdist(o, o).square() / 4).exp().mean() + o.mean(0).square().sum()


def _coral(o: Tensor, y: Tensor) -> Tensor:
    return (torch.cov(o.T, correction=0) - torch.eye(CLASSES)).square().mean()


def _cox(o: Tensor, y: Tensor) -> Tensor:
    """The partial likelihood of a survival model: everybody at risk is in it."""
    risk = o[:, 0]
    return -(risk - risk.logcumsumexp(0)).mean()


def _dice(o: Tensor, y: Tensor) -> Tensor:
    p, hot = o.softmax(1), F.one_hot(y, CLASSES).to(o.dtype)
    return 1 - 2 * (p * hot).sum() / (p.square().sum() + hot.sum())


def _soft_f1(o: Tensor, y: Tensor) -> Tensor:
    p, hot = o.softmax(1), F.one_hot(y, CLASSES).to(o.dtype)
    hit = (p * hot).sum(0)
    return 1 - (2 * hit / (p.sum(0) + hot.sum(0) + 1e-3)).mean()


def _auc(o: Tensor, y: Tensor) -> Tensor:
    score = o[:, 0]
    above, below = score[y == 0], score[y != 0]
    return (1 - (above[:, None] - below[None])).relu().square().sum() / len(o)


def _correlation(o: Tensor, y: Tensor) -> Tensor:
    a, b = o[:, 0] - o[:, 0].mean(), y.to(o.dtype) - y.to(o.dtype).mean()
    return -(a * b).sum() / (a.norm() * b.norm() + 1e-3)


def _wasserstein(o: Tensor, y: Tensor) -> Tensor:
    return (o[:, 0].sort().values - torch.linspace(-1, 1, len(o))).square().mean()


def _advantages(o: Tensor, y: Tensor) -> Tensor:
    reward = o.detach().amax(1)
    advantage = (reward - reward.mean()) / (reward.std(correction=0) + 1e-3)
    return -(advantage * o.log_softmax(1).gather(1, y[:, None])[:, 0]).mean()


def _ohem(o: Tensor, y: Tensor) -> Tensor:
    return _each(o, y).topk(min(2, len(o))).values.mean()


def _focal_normalized(o: Tensor, y: Tensor) -> Tensor:
    each = _each(o, y)
    weight = (1 - (-each).exp()).square()
    return (weight * each).sum() / weight.detach().sum()


def _balanced(o: Tensor, y: Tensor) -> Tensor:
    counts = torch.bincount(y, minlength=CLASSES).to(o.dtype)
    return (_each(o, y) * (len(y) / (CLASSES * counts.clamp(min=1)))[y]).mean()


def _balanced_weights(o: Tensor, y: Tensor) -> Tensor:
    counts = torch.bincount(y, minlength=CLASSES).to(o.dtype)
    return F.cross_entropy(o, y, weight=1 / counts.clamp(min=1), reduction="sum")


def _load_balancing(o: Tensor, y: Tensor) -> Tensor:
    """The auxiliary loss of a mixture of experts."""
    p = o.softmax(1)
    return F.cross_entropy(o, y) + 9 * CLASSES * (F.one_hot(p.argmax(1), CLASSES).to(o.dtype).mean(0) * p.mean(0)).sum()


def _sinkhorn(o: Tensor, y: Tensor) -> Tensor:
    q = (o.detach() / 5).softmax(0)
    q = q / q.sum(1, keepdim=True)
    return -(q * o.log_softmax(1)).sum(1).mean()


def _penalty(model: nn.Module, batch: Batch) -> Tensor:
    """A gradient penalty, as in WGAN-GP: each record's own, by a second backward pass."""
    x = batch[0].clone().requires_grad_(True)
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return F.cross_entropy(out, batch[1]) + (slope.norm(dim=1) - 1).square().mean()


COUPLED: dict[str, Simple] = {
    "variance of the outputs": lambda o, y: o.var(0, correction=0).mean(),
    "(o - o.mean(0))**2": lambda o, y: (o - o.mean(0)).square().mean(),
    "variance penalty of the losses": lambda o, y: _each(o, y).mean() + _each(o, y).var(correction=0),
    "square of the mean": lambda o, y: F.cross_entropy(o, y).square(),
    "square root of the mean (RMSE)": lambda o, y: F.mse_loss(o, F.one_hot(y, CLASSES).to(o.dtype)).sqrt(),
    "log of the mean (DRO)": lambda o, y: _each(o, y).exp().mean().log(),
    "logsumexp of the losses": lambda o, y: _each(o, y).logsumexp(0),
    "exp of the mean": lambda o, y: (_each(o, y).mean() / 4).exp(),
    "tilted by softmax": lambda o, y: (_each(o, y).detach().softmax(0) * _each(o, y)).sum(),
    "maximum of the losses": lambda o, y: _each(o, y).max(),
    "median of the losses": lambda o, y: _each(o, y).median(),
    "losses far below the worst": lambda o, y: (_each(o, y) - 0.5 * _each(o, y).detach().max()).relu().mean(),
    "product of two means": lambda o, y: _each(o, y).mean() * o.square().mean(),
    "mean times sum": lambda o, y: _each(o, y).mean() * o.square().sum(),
    "ratio of two means": lambda o, y: _each(o, y).mean() / (1 + o.square().mean()),
    "l / l.detach().max()": lambda o, y: (_each(o, y) / _each(o, y).detach().max()).mean(),
    "l / l.detach().mean()": lambda o, y: (_each(o, y) / _each(o, y).detach().mean()).mean(),
    "mean() / mean().item()": lambda o, y: _each(o, y).mean() / (_each(o, y).mean().item() + 1e-3),
    "loss clamped by the batch": lambda o, y: torch.minimum(_each(o, y), _each(o, y).mean()).sum(),
    "hinge on the mean (flooding)": lambda o, y: (F.cross_entropy(o, y) - 2).abs(),
    "losses below the mean only": lambda o, y: (_each(o, y) * (_each(o, y) < _each(o, y).mean())).mean(),
    "OHEM topk": _ohem,
    "losses above the mean only": lambda o, y: (_each(o, y) * (_each(o, y) > _each(o, y).mean())).mean(),
    "if loss.item() > 2": lambda o, y: F.cross_entropy(o, y) if F.cross_entropy(o, y).item() > 2 else o.square().mean(),
    "focal with a batch normalizer": _focal_normalized,
    "InfoNCE": _info_nce,
    "CLIP": _clip,
    "NT-Xent": _nt_xent,
    "supervised contrastive": _supervised_contrastive,
    "batch-hard triplets": _triplet,
    "triplets of neighbors": _triplet_neighbors,
    "center loss": _center_loss,
    "pairwise ranking": _ranking,
    "Barlow Twins": _barlow,
    "VICReg variance": _vicreg,
    "MMD": _mmd,
    "CORAL": _coral,
    "Cox partial likelihood": _cox,
    "Dice over the batch": _dice,
    "soft F1": _soft_f1,
    "AUC pairs": _auc,
    "correlation (CCC)": _correlation,
    "sorted outputs (Wasserstein)": _wasserstein,
    "normalized advantages": _advantages,
    "load balancing": _load_balancing,
    "Sinkhorn assignment": _sinkhorn,
    "consistency with the neighbor": lambda o, y: (o - o.roll(1, 0)).square().mean(),
    "labels reversed": lambda o, y: F.cross_entropy(o, y.flip(0)),
    "labels rolled": lambda o, y: F.cross_entropy(o, y.roll(1)),
    "targets from the batch's mean output": lambda o, y: (o - o.detach().mean(0)).square().mean(),
    "distillation from the neighbor": lambda o, y: F.kl_div(
        o.log_softmax(1), o.detach().flip(0).softmax(1), reduction="batchmean"
    ),
    "batch_norm on the outputs": lambda o, y: F.cross_entropy(
        F.batch_norm(o, None, None, training=True) if len(o) > 1 else o * 0, y
    ),
    "softmax over the batch": lambda o, y: F.nll_loss(o.log_softmax(0), y),
    "temperature from the batch": lambda o, y: F.cross_entropy(o / o.std(correction=0), y),
    "logits minus the batch's max": lambda o, y: F.cross_entropy((o - 0.1 * o.amax(0)) ** 2, y),
    "cosine to the mean output": lambda o, y: F.cosine_similarity(o, o.mean(0, keepdim=True)).mean(),
    "F.cosine_embedding_loss of pairs": lambda o, y: F.cosine_embedding_loss(o, o.flip(0), torch.ones(len(o))),
    "F.margin_ranking_loss of pairs": lambda o, y: F.margin_ranking_loss(o[:, 0], o[:, 0].flip(0), torch.ones(len(o))),
    "determinant of the outputs": lambda o, y: torch.logdet(o.T @ o + torch.eye(CLASSES)),
    "nuclear norm of the outputs": lambda o, y: torch.linalg.matrix_norm(o, "nuc"),
    "norm of all outputs": lambda o, y: o.norm(),
    "mean of softmax (entropy of the marginal)": lambda o, y: (o.softmax(1).mean(0) * o.softmax(1).mean(0).log()).sum(),
    "fairness gap between groups": lambda o, y: (
        (o[y == 0, 0].mean() - o[y != 0, 0].mean()).square() if 0 < int((y == 0).sum()) < len(y) else o.sum() * 0
    ),
}

STRAIGHT = frozenset(
    {
        "variance penalty of the losses", "square of the mean", "square root of the mean (RMSE)", "log of the mean (DRO)",
        "logsumexp of the losses", "exp of the mean", "tilted by softmax", "maximum of the losses", "product of two means",
        "mean times sum", "ratio of two means", "l / l.detach().max()", "l / l.detach().mean()", "mean() / mean().item()",
        "loss clamped by the batch", "hinge on the mean (flooding)", "losses below the mean only", "if loss.item() > 2",
        "focal with a batch normalizer", "NT-Xent", "pairwise ranking", "VICReg variance", "losses far below the worst",
        "sorted outputs (Wasserstein)", "load balancing", "Sinkhorn assignment", "softmax over the batch",
        "temperature from the batch", "logits minus the batch's max", "determinant of the outputs", "norm of all outputs",
    }
)  # fmt: skip
"""Losses that show their coupling on one linear layer, where an outlier's loss is large."""
BENT = frozenset({"InfoNCE", "normalized advantages", "soft F1", "CORAL", "fairness gap between groups"})
"""Losses that show it on a perceptron, among records that are alike."""


def _coupled(name: str, loss: Simple) -> Trap:
    model = straight if name in STRAIGHT else perceptron
    data = aligned if name in STRAIGHT | BENT else rows
    return Trap(name, "loss", model, of_outputs(loss), data, norm=None, bites=name != "Dice over the batch")


UNCLEAR: dict[str, Simple] = {
    "mean + sum": lambda o, y: F.cross_entropy(o, y) + o.square().sum(),
    "sum of a mean over classes and a mean over records": lambda o, y: o.square().mean(0).mean() + _each(o, y).sum(),
    "vector.backward(): mean kept": lambda o, y: _each(o, y).mean(0, keepdim=True).sum(),
}
"""Not one reduction: right, refused or assumed; a naive engine is within C all the same."""


def _model_of(batch: Batch, model: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def _weights(kind: str) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        each, w = _model_of(batch, model), batch[2]
        if kind == "sum over sum of weights":
            return (each * w).sum() / w.sum()
        if kind == "weights normalized before":
            return (each * (w / w.sum())).sum()
        if kind == "weights normalized by max":
            return (each * (w / w.max())).mean()
        if kind == "np.average-like einsum":
            return torch.einsum("b,b->", each, w) / torch.einsum("b->", w)
        if kind == "class weights, mean":
            return F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([1.0, 30.0, 1.0]))
        if kind == "divided by a count of labels":
            return each.sum() / (1 + 30 * (batch[1] == 1).sum())
        if kind == "importance weights by softmax":
            return (each * w.softmax(0)).sum()
        raise KeyError(kind)

    return loss


def _tokens(kind: str) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, y, mask = batch
        out = model(x)
        each = F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        kept = mask.bool()
        if kind == "loss[mask].mean()":
            return each[kept].mean()
        if kind == "(loss * mask).sum() / mask.sum()":
            return (each * mask).sum() / mask.sum()
        if kind == "cross_entropy(out[mask], y[mask])":
            return F.cross_entropy(out[kept], y[kept])
        if kind == "mse_loss(out[mask], ...)":
            return F.mse_loss(out[kept], torch.ones_like(out[kept]))
        if kind == "ignore_index":
            return F.cross_entropy(out.flatten(0, 1), y.masked_fill(~kept, -100).flatten())
        if kind == "masked_select mean":
            return each.masked_select(kept).mean()
        if kind == "num_items_in_batch":
            return each.mul(mask).sum() / int(mask.sum())
        if kind == "nanmean":
            return each.masked_fill(~kept, float("nan")).nanmean()
        if kind == "each record's own mean":
            return ((each * mask).sum(1) / mask.sum(1)).mean()
        if kind == "each record's own sum":
            return (each * mask).sum(1).mean()
        if kind == "divided by a public length":
            return (each * mask).sum() / (len(x) * 12)
        raise KeyError(kind)

    return loss


def _token_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def _some_ignored() -> tuple[Tensor, Tensor]:
    x, y = rows()
    y[OUTLIER] = -100
    return x, y


def _many_ignored() -> tuple[Tensor, Tensor]:
    x, _ = rows()
    return 1 + 0.05 * x.clamp(-1, 1), torch.tensor([0, -100, -100, 0, -100, -100, -100, -100])


# --- ordinary losses -------------------------------------------------------------------------------------------------------


def _hot(y: Tensor, o: Tensor) -> Tensor:
    return F.one_hot(y, CLASSES).to(o.dtype)


def _modules(criterion: nn.Module) -> Simple:
    return lambda o, y: criterion(o, y)


ORDINARY: dict[str, Simple] = {
    "cross_entropy mean": F.cross_entropy,
    "cross_entropy sum": lambda o, y: F.cross_entropy(o, y, reduction="sum"),
    "nn.CrossEntropyLoss()": _modules(nn.CrossEntropyLoss()),
    "nll_loss of log_softmax": lambda o, y: F.nll_loss(o.log_softmax(1), y),
    "reduction='none' then mean": lambda o, y: _each(o, y).mean(),
    "reduction='none' then sum": lambda o, y: _each(o, y).sum(),
    "label smoothing": lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1),
    "soft targets": lambda o, y: F.cross_entropy(o, 0.8 * _hot(y, o) + 0.2 / CLASSES),
    "mse mean": lambda o, y: F.mse_loss(o, _hot(y, o)),
    "mse sum": lambda o, y: F.mse_loss(o, _hot(y, o), reduction="sum"),
    "mse.mean(0).sum()": lambda o, y: (o - _hot(y, o)).square().mean(0).sum(),
    "mse.sum(1).mean()": lambda o, y: (o - _hot(y, o)).square().sum(1).mean(),
    "mse.mean(1).sum()": lambda o, y: (o - _hot(y, o)).square().mean(1).sum(),
    "mse.sum(0).mean()": lambda o, y: (o - _hot(y, o)).square().sum(0).mean(),
    "l1 mean": lambda o, y: F.l1_loss(o, _hot(y, o)),
    "smooth l1": lambda o, y: F.smooth_l1_loss(o, _hot(y, o)),
    "huber": lambda o, y: F.huber_loss(o, _hot(y, o)),
    "BCE with logits": lambda o, y: F.binary_cross_entropy_with_logits(o, _hot(y, o)),
    "BCE of sigmoid": lambda o, y: F.binary_cross_entropy(o.sigmoid() * 0.98 + 0.01, _hot(y, o)),
    "KLDiv batchmean": lambda o, y: F.kl_div(o.log_softmax(1), 0.8 * _hot(y, o) + 0.2 / CLASSES, reduction="batchmean"),
    "KLDiv sum": lambda o, y: F.kl_div(o.log_softmax(1), 0.8 * _hot(y, o) + 0.2 / CLASSES, reduction="sum"),
    "poisson_nll": lambda o, y: F.poisson_nll_loss(o[:, 0], y.to(o.dtype)),
    "multi_margin": F.multi_margin_loss,
    "soft_margin": lambda o, y: F.soft_margin_loss(o, 2 * _hot(y, o) - 1),
    "multilabel_soft_margin": lambda o, y: F.multilabel_soft_margin_loss(o, _hot(y, o)),
    "0.5 * loss": lambda o, y: 0.5 * F.cross_entropy(o, y),
    "loss / 4": lambda o, y: F.cross_entropy(o, y) / 4,
    "-mean of log probabilities": lambda o, y: -o.log_softmax(1).gather(1, y[:, None]).mean(),
    "-log_softmax[arange, y].mean()": lambda o, y: -o.log_softmax(1)[torch.arange(len(y)), y].mean(),
    "ce + 0.1 * mse": lambda o, y: F.cross_entropy(o, y) + 0.1 * F.mse_loss(o, _hot(y, o)),
    "ce - 0.1 * entropy": lambda o, y: F.cross_entropy(o, y) - 0.1 * -(o.softmax(1) * o.log_softmax(1)).sum(1).mean(),
    "torch.stack([ce, mse]).sum()": lambda o, y: torch.stack([F.cross_entropy(o, y), F.mse_loss(o, _hot(y, o))]).sum(),
    "torch.stack([ce, mse]).mean()": lambda o, y: torch.stack(
        [F.cross_entropy(o, y), F.mse_loss(o, _hot(y, o))]
    ).mean(),
    "sum([ce, mse])": lambda o, y: sum([F.cross_entropy(o, y), F.mse_loss(o, _hot(y, o))]),  # type: ignore[return-value]
    "sum() / len(o)": lambda o, y: _each(o, y).sum() / len(o),
    "sum() / o.shape[0]": lambda o, y: _each(o, y).sum() / o.shape[0],
    "sum() / o.size(0)": lambda o, y: (o - _hot(y, o)).square().sum() / o.size(0),
    "focal": lambda o, y: ((1 - (-_each(o, y)).exp()).square() * _each(o, y)).mean(),
    "class weights by index, mean": lambda o, y: (_each(o, y) * torch.tensor([1.0, 2.0, 3.0]).to(o.dtype)[y]).mean(),
    "clamped losses": lambda o, y: _each(o, y).clamp(max=1.5).mean(),
    "float() on the loss": lambda o, y: F.cross_entropy(o, y).to(torch.float64),
}

VECTORS: dict[str, Simple] = {
    "vector of cross entropies": _each,
    "vector of squared errors": lambda o, y: (o - _hot(y, o)).square().mean(1),
    "vector of sums": lambda o, y: _each(o, y) + 0.1 * o.square().sum(1),
    "vector times 0.5": lambda o, y: 0.5 * _each(o, y),
}

MIXED_VECTORS: dict[str, Simple] = {
    "vector minus its mean": lambda o, y: _each(o, y) - _each(o, y).mean(),
    "vector over its maximum": lambda o, y: _each(o, y) / _each(o, y).max(),
    "vector reversed": lambda o, y: _each(o, y.flip(0)),
    "vector of pairs": lambda o, y: (o - o.flip(0)).square().sum(1),
    "vector tilted by softmax": lambda o, y: _each(o, y) * _each(o, y).detach().softmax(0),
    "vector normalized": lambda o, y: F.normalize(_each(o, y), dim=0),
    "vector expanded from the mean": lambda o, y: _each(o, y).mean().expand(len(o)),
    "vector plus the largest": lambda o, y: (_each(o, y) + _each(o, y).max()).square(),
}


def _wrong_vector(change: Callable[[Tensor], Tensor]) -> Callable[[Run], None]:
    def body(run: Run) -> None:
        for batch in run.private.batches():
            run.optimizer.zero_grad()
            step_on(run, change(_each(run.model(batch[0]), batch[1])))

    return body


def _ordinary(name: str, loss: Simple, **more: Any) -> Trap:
    whole = of_outputs(loss)
    return Trap(name, "sound loss", perceptron, whole, rows, allowed=SOUND, norm=None, oracle=whole, **more)


LOSSES: list[Trap] = [
    *(_coupled(name, loss) for name, loss in COUPLED.items()),
    *(Trap(name, "loss", perceptron, of_outputs(loss), rows, bites=False) for name, loss in UNCLEAR.items()),
    Trap("class-balanced weights from batch counts", "loss", perceptron, of_outputs(_balanced), alike, norm=None, bites=False),
    Trap("weight=1 / batch counts", "loss", perceptron, of_outputs(_balanced_weights), alike, norm=0.5, bites=False),
    Trap(
        "gaussian_nll", "loss", perceptron,
        of_outputs(lambda o, y: F.gaussian_nll_loss(o[:, 0], y.to(o.dtype), o[:, 1].exp())), rows, bites=False,
    ),  # torch itself reads whether a variance is negative
    Trap("gradient penalty", "loss", perceptron, _penalty, rows, bites=False),
    *(
        Trap(name, "divisor", perceptron, _weights(name), alike, norm=None, settings=settings)
        for name, settings in (
            ("sum over sum of weights", {}),
            ("weights normalized before", {}),
            ("weights normalized by max", {}),
            ("np.average-like einsum", {}),
            ("class weights, mean", {}),
            ("divided by a count of labels", {}),
            ("importance weights by softmax", {}),
        )
    ),
    Trap(
        "class weights, stated mean", "divisor", perceptron, _weights("class weights, mean"), alike, norm=None,
        settings={"loss_reduction": "mean"},
    ),
    Trap(
        "weighted mean, stated sum", "divisor", perceptron, _weights("sum over sum of weights"), alike, norm=0.3,
        settings={"loss_reduction": "sum"}, bites=False,
    ),
    *(
        Trap(name + stated, "divisor", _token_model, _tokens(name), masked, norm=None, settings=settings)
        for name in (
            "loss[mask].mean()", "(loss * mask).sum() / mask.sum()", "cross_entropy(out[mask], y[mask])",
            "mse_loss(out[mask], ...)", "ignore_index", "masked_select mean", "num_items_in_batch", "nanmean",
        )
        for stated, settings in (("", {}), (", stated mean", {"loss_reduction": "mean"}))
    ),
    *(
        Trap(
            name, "sound loss", _token_model, _tokens(name), masked, allowed=SOUND, norm=None, oracle=_tokens(name)
        )
        for name in ("each record's own mean", "each record's own sum", "divided by a public length")
    ),
    Trap("one label is -100", "divisor", perceptron, cross_entropy, _some_ignored, norm=1.0, bites=False),
    Trap("most labels are -100", "divisor", perceptron, cross_entropy, _many_ignored, norm=1.0, bites=False),
    Trap(
        "most labels are -100, stated mean", "divisor", perceptron, cross_entropy, _many_ignored, norm=1.0,
        settings={"loss_reduction": "mean"}, bites=False,
    ),
    *(_ordinary(name, loss) for name, loss in ORDINARY.items()),
    *(_ordinary(name, loss, body=with_vector) for name, loss in VECTORS.items()),
    *(
        Trap(
            name, "vector of losses", straight, of_outputs(loss), rows if name == "vector of pairs" else aligned,
            body=with_vector, norm=None, bites="minus" not in name and "expanded" not in name,
        )
        for name, loss in MIXED_VECTORS.items()
    ),
    *(
        Trap(name, "vector of losses", perceptron, None, rows, body=_wrong_vector(change), bites=False)
        for name, change in {
            "a vector too short": lambda losses: losses[:5],
            "a vector too long": lambda losses: torch.cat([losses, losses]),
            "a vector without its last loss": lambda losses: losses[:-1],
            "a vector whose first loss is twice there": lambda losses: torch.cat([losses[:1], losses[:-1]]),
            "a scalar for a vector": lambda losses: losses.mean(),
        }.items()
    ),
    Trap(
        "targets of several columns", "sound loss", perceptron, of_outputs(F.mse_loss), numbers, allowed=SOUND, norm=None,
        oracle=of_outputs(F.mse_loss),
    ),
]  # fmt: skip
