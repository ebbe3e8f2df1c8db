"""Operations inside a model that mix the records of a batch, and as many that look like them and do not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.zoo.harness import SOUND, Trap
from tests.zoo.parts import (
    WIDTH,
    Operation,
    around,
    cross_entropy,
    rows,
    sequences,
    square,
)


def _like(h: Tensor, seed: int = 0) -> Tensor:
    """A matrix over the batch, the same in each run."""
    size = len(h)
    return torch.sin(torch.arange(size * size, dtype=torch.float64) + seed).reshape(size, size).to(h.dtype)


def _constant(value: Tensor, h: Tensor) -> Tensor:
    return value.to(h.dtype)


def _backwards(h: Tensor) -> Tensor:
    return torch.arange(len(h) - 1, -1, -1)


# --- reductions over the batch, in every spelling ------------------------------------------------------------------------

REDUCTIONS: dict[str, Operation] = {
    "h - h.mean()": lambda h: h - h.mean(),
    "h - h.mean(0)": lambda h: h - h.mean(0),
    "h - torch.mean(h, dim=-2)": lambda h: h - torch.mean(h, dim=-2),
    "h - h.mean(axis=0, keepdim=True)": lambda h: h - h.mean(axis=0, keepdim=True),
    "h - h.sum() / h.numel()": lambda h: h - h.sum() / h.numel(),
    "h - h.sum((0, 1))": lambda h: h - 0.1 * h.sum((0, 1)),
    "h / h.norm()": lambda h: h / h.norm(),
    "h / h.norm(dim=0)": lambda h: h / h.norm(dim=0),
    "h / torch.linalg.norm(h)": lambda h: h / torch.linalg.norm(h),
    "h / torch.linalg.vector_norm(h)": lambda h: h / torch.linalg.vector_norm(h),
    "h / torch.linalg.matrix_norm(h)": lambda h: h / torch.linalg.matrix_norm(h),
    "h / torch.linalg.svdvals(h)[0]": lambda h: h / torch.linalg.svdvals(h)[0],
    "h / torch.frobenius_norm": lambda h: h / torch.norm(h, p="fro", dim=(0, 1)),
    "h / h.std(0).mean()": lambda h: h / (h.std(0, correction=0).mean() + 0.1),
    "torch.var_mean(h, 0)": lambda h: h - torch.var_mean(h, 0, correction=0)[1],
    "torch.std_mean(h)": lambda h: h / (torch.std_mean(h, correction=0)[0] + 0.1),
    "h - h.logsumexp(0)": lambda h: h - 0.1 * h.logsumexp(0),
    "h - h.amax(0)": lambda h: h - h.amax(0),
    "h / h.abs().max()": lambda h: h / h.abs().max(),
    "torch.aminmax(h, dim=0)": lambda h: h - torch.aminmax(h, dim=0).max,
    "torch.maximum(h, h[0])": lambda h: torch.maximum(h, 2 * h[0]),
    "h.cummax(0)": lambda h: h.cummax(0).values,
    "h.cummin(0)": lambda h: h.cummin(0).values,
    "h.cumsum(0)": lambda h: h.cumsum(0),
    "torch.cumsum(h, dim=-2)": lambda h: torch.cumsum(h, dim=-2),
    "h.cumprod(0)": lambda h: (1 + 0.5 * h.tanh()).cumprod(0) * h,
    "h.logcumsumexp(0)": lambda h: h.logcumsumexp(0),
    "torch.cumulative_trapezoid": lambda h: F.pad(torch.cumulative_trapezoid(h, dim=0), (0, 0, 1, 0)),
    "torch.trapezoid(h, dim=0)": lambda h: h - torch.trapezoid(h, dim=0),
    "h.sort(0)": lambda h: h.sort(0).values,
    "torch.msort(h)": lambda h: torch.msort(h),
    "h[h[:, 0].argsort()]": lambda h: h[h[:, 0].argsort()],
    "h.topk(1, 0)": lambda h: h - h.topk(1, 0).values,
    "h.topk(1, dim=0) by index": lambda h: h * h[h[:, 0].topk(1, dim=0).indices],
    "h.quantile(0.9, 0)": lambda h: h - h.quantile(0.9, 0),
    "h.nanquantile(0.9)": lambda h: h - h.nanquantile(0.99),
    "h.median(0)": lambda h: h - 3 * h.median(0).values,
    "h.nanmedian()": lambda h: h / h.nanmedian(),
    "h.mode(0)": lambda h: h * (h.abs() > 20).long().flatten().sort().values[-3:].mode(0).values,
    "h.kthvalue(len, 0)": lambda h: h - h.kthvalue(len(h), 0).values,
    "h.prod(0)": lambda h: h * h.prod(0).tanh(),
    "h.nansum(0)": lambda h: h - h.nansum(0),
    "h.nanmean()": lambda h: h - h.nanmean(),
    "torch.histc(h)": lambda h: h * (torch.histc(h.detach(), 1, 20, 1e4) - 0.5),
    "torch.bincount": lambda h: h * (torch.bincount((h.abs().sum(1) > 40).long(), minlength=2)[1] - 0.5),
    "torch.unique(h).numel()": lambda h: h * (torch.unique(h.detach().abs() > 20).numel() - 1.5),
    "torch.count_nonzero(h > 0)": lambda h: h * (torch.count_nonzero(h.abs() > 20) - 0.5),
    "torch.cov(h.T)": lambda h: h @ torch.cov(h.T, correction=0) / 10,
    "torch.corrcoef(h)": lambda h: h @ torch.nan_to_num(torch.corrcoef(h.T)),
    "torch.where(mask.any(), ...)": lambda h: torch.where((h > 20).any(), -h, h),
    "(h > 20).all(0)": lambda h: h * (2 * (h.abs() < 20).all(0) - 1),
    "torch.dist from the mean row": lambda h: h * torch.dist(h, torch.zeros_like(h)) / 10,
    "h.trace()": lambda h: h * (h.T @ h).trace() / 100,
    "torch.logdet of the Gram matrix": lambda h: h * (torch.logdet(h.T @ h + torch.eye(WIDTH)) - 15),
    "F.normalize(h, dim=0)": lambda h: F.normalize(h, dim=0) * 3,
    "h.softmax(0)": lambda h: h.softmax(0) * 4,
    "F.log_softmax(h, dim=-2)": lambda h: 0.2 * F.log_softmax(h, dim=-2),
    "F.softmin(h, 0)": lambda h: F.softmin(-h, 0) * 4,
    "F.gumbel_softmax(h, dim=0)": lambda h: F.gumbel_softmax(h, dim=0) * 4,
    "F.cosine_similarity(dim=0)": lambda h: h * F.cosine_similarity(h, torch.ones_like(h), dim=0),
    "h.renorm(2, 1, 1)": lambda h: h.renorm(2, 1, 0.5) * 4,
    "h.std() as noise scale": lambda h: h + h.std(correction=0) * torch.sin(h),
    "torch.special.logsumexp": lambda h: h - 0.1 * torch.special.logsumexp(h, (0, 1)),
    "torch.addmv with the batch": lambda h: h - torch.mv(h.T, torch.ones(len(h))) / 3,
    "torch.ones @ h": lambda h: h - torch.ones(1, len(h)) @ h / 3,
    "torch.dot of flat": lambda h: h / (torch.dot(h.flatten(), h.flatten()).sqrt() / 4 + 1),
    "torch.inner over transposed": lambda h: h @ torch.inner(h.T, h.T) / 30,
    "torch.vdot": lambda h: h / (1 + torch.vdot(h.flatten(), h.flatten()).sqrt()),
}

# --- products over the batch ----------------------------------------------------------------------------------------------

PRODUCTS: dict[str, Operation] = {
    "h @ h.T @ h": lambda h: h @ h.T @ h / 30,
    "(h @ h.T).softmax(1) @ h": lambda h: (h @ h.T).softmax(1) @ h,
    "matrix over the batch @ h": lambda h: _like(h) @ h,
    "torch.mm(A, h)": lambda h: torch.mm(_like(h), h),
    "torch.addmm(h, A, h)": lambda h: torch.addmm(h, _like(h), h),
    "torch.sparse.mm(A, h)": lambda h: torch.sparse.mm(_like(h).to_sparse(), h),
    "einsum 'bi,bj->ij'": lambda h: h @ torch.einsum("bi,bj->ij", h, h) / 30,
    "einsum 'bi,bi->i'": lambda h: h - torch.einsum("bi,bi->i", h, h) / 9,
    "einsum with ellipsis": lambda h: h - torch.einsum("b...->...", h),
    "einsum 'bi,ci->bc' then @": lambda h: torch.einsum("bc,ci->bi", torch.einsum("bi,ci->bc", h, h).softmax(1), h),
    "einsum of the diagonal": lambda h: h * torch.einsum("ii->", h @ h.T).sqrt() / 9,
    "torch.tensordot over the batch": lambda h: h @ torch.tensordot(h, h, dims=([0], [0])) / 30,
    "torch.outer of flat": lambda h: h * torch.outer(h.flatten(), h.flatten()).mean(),
    "torch.kron": lambda h: h * torch.kron(h, h).mean(),
    "torch.cdist(h, h)": lambda h: h * torch.cdist(h, h).mean(1, keepdim=True) / 5,
    "F.pdist(h)": lambda h: h * (F.pdist(h).mean() / 5 if len(h) > 1 else h.mean()),
    "torch.bmm of permuted": lambda h: torch.bmm(
        h[None].expand(2, -1, -1), torch.bmm(h[None].expand(2, -1, -1).mT, h[None].expand(2, -1, -1))
    )[0]
    / 30,
    "torch.baddbmm": lambda h: torch.baddbmm(h[None], _like(h)[None], h[None])[0],
    "F.linear with the batch as weight": lambda h: F.linear(h, h)[:, :1] / 9 * h,
    "F.bilinear with the batch mean": lambda h: F.bilinear(h, h, h.mean(0).expand(WIDTH, WIDTH, WIDTH)),
    "attention over the batch": lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None])[0],
    "torch.linalg.multi_dot": lambda h: torch.linalg.multi_dot([h, h.T, h]) / 30,
    "torch.linalg.qr": lambda h: torch.linalg.qr(h.detach())[0][:, :1] * h * 3,
    "torch.linalg.svd": lambda h: torch.linalg.svd(h, full_matrices=False)[0][:, :1] * h,
    "torch.linalg.pinv": lambda h: torch.linalg.pinv(h).T * 3,
    "torch.linalg.lstsq": lambda h: h @ torch.linalg.lstsq(h.detach(), h.tanh().detach()).solution * 5,
    "torch.linalg.solve": lambda h: torch.linalg.solve(_like(h) @ _like(h).T + torch.eye(len(h)), h) * 3,
    "torch.linalg.matrix_power of the Gram": lambda h: torch.linalg.matrix_power(h @ h.T / 60, 2) @ h,
    "torch.matrix_exp of the Gram": lambda h: torch.matrix_exp((h @ h.T).tanh() / 3) @ h,
    "torch.chain_matmul": lambda h: torch.linalg.multi_dot([_like(h), _like(h, 1), h]),
    "torch.cross over flat": lambda h: torch.cross(
        h.reshape(-1, 3), h.reshape(-1, 3).roll(1, 0), dim=1
    ).reshape_as(h) / 3,
    "torch.cartesian_prod": lambda h: h * torch.cartesian_prod(h[:, 0], h[:, 1]).mean(),
    "torch.block_diag": lambda h: h * torch.block_diag(*h).sum() / 20,
}  # fmt: skip

# --- rows that move -------------------------------------------------------------------------------------------------------


def _written(h: Tensor, write: Any) -> Tensor:
    out = h.clone()
    write(out)
    return out


MOVES: dict[str, Operation] = {
    "h.roll(1, 0)": lambda h: h.roll(1, 0),
    "torch.roll(h, 3)": lambda h: torch.roll(h, 3),
    "torch.roll(h, shifts=(1, 1), dims=(1, 0))": lambda h: torch.roll(h, shifts=(1, 1), dims=(1, 0)),
    "h.flip(0)": lambda h: h.flip(0),
    "h.flip(1, 0)": lambda h: h.flip(1, 0),
    "torch.flipud(h)": lambda h: torch.flipud(h),
    "torch.rot90 twice": lambda h: torch.rot90(h, 2),
    "h[::-1] by index": lambda h: h[_backwards(h)],
    "h[list]": lambda h: h[[*range(1, len(h)), 0]],
    "h[1:] after h[:1]": lambda h: torch.cat([h[1:], h[:1]]),
    "torch.cat of shifted slices": lambda h: torch.cat([h[-2:], h[:-2]]) + h,
    "torch.vstack of rows": lambda h: torch.vstack([h[1:], h[:1]]),
    "torch.stack of shuffled rows": lambda h: torch.stack([*h.unbind(0)[1:], h[0]]),
    "torch.split and cat": lambda h: torch.cat(h.split(3)[::-1]),
    "torch.chunk and swap": lambda h: torch.cat(h.chunk(2)[::-1]),
    "h.index_select(0, perm)": lambda h: h.index_select(0, _backwards(h)),
    "h.gather(0, index)": lambda h: h.gather(0, _backwards(h)[:, None].expand_as(h)),
    "torch.take_along_dim(0)": lambda h: torch.take_along_dim(h, _backwards(h)[:, None], 0),
    "torch.take": lambda h: torch.take(h, torch.arange(h.numel() - 1, -1, -1)).reshape_as(h),
    "h.scatter(0, ...)": lambda h: h.scatter(0, _backwards(h)[:, None].expand_as(h), h),
    "h.scatter_add(0, ...)": lambda h: h.scatter_add(0, _backwards(h)[:, None].expand_as(h), h),
    "scatter_reduce": lambda h: h.scatter_reduce(0, torch.zeros_like(h, dtype=torch.long), h, "amax"),
    "h.index_add(0, ...)": lambda h: h.index_add(0, _backwards(h), h),
    "torch.zeros.index_add with h": lambda h: torch.zeros_like(h).index_add(0, _backwards(h), h),
    "h.index_copy(0, ...)": lambda h: h.index_copy(0, _backwards(h), h),
    "h.index_reduce": lambda h: h.index_reduce(0, torch.zeros(len(h), dtype=torch.long), h, "amax"),
    "h.index_put": lambda h: h.index_put((_backwards(h),), h),
    "h.index_put accumulate": lambda h: h.index_put((torch.zeros(len(h), dtype=torch.long),), h, True),
    "h.put": lambda h: h.put(torch.arange(h.numel() - 1, -1, -1), h.flatten()),
    "masked_select": lambda h: h - 0.1 * h.masked_select(h > 0).max(),
    "masked_scatter": lambda h: h.masked_scatter(torch.ones_like(h, dtype=torch.bool), h.flip(0)),
    "h[mask] compacts rows": lambda h: torch.cat([h[h[:, 0] > 0], h[h[:, 0] <= 0]]),
    "boolean write": lambda h: _written(h, lambda o: o.__setitem__(h[:, 0] < 1e9, h.flip(0))),
    "slice write": lambda h: _written(h, lambda o: o.__setitem__(slice(0, len(h) - 1), h[1:])),
    "row write": lambda h: _written(h, lambda o: o.__setitem__(slice(None), h.sum(0))),
    "in-place sub_ of the mean": lambda h: h.clone().sub_(h.mean(0)),
    "in-place index_fill of a neighbor": lambda h: _written(h, lambda o: o[:-1].copy_(h[1:])),
    "in-place add_ through a view": lambda h: _written(h, lambda o: o.view(-1).add_(h.view(-1).roll(WIDTH))),
    "out= argument": lambda h: h - torch.mean(h.detach(), 0, out=torch.empty(WIDTH)),
    "torch.add out= of rolled": lambda h: h + torch.add(h.detach().roll(1, 0), 0, out=torch.empty_like(h)),
    "select_scatter": lambda h: h.select_scatter(h.sum(0), 0, len(h) - 1),
    "slice_scatter": lambda h: h.slice_scatter(h[1:], 0, 0, len(h) - 1),
    "diagonal_scatter": lambda h: 3 * h.diagonal_scatter(h.diagonal().flip(0)),
    "view(-1) then roll": lambda h: h.reshape(-1).roll(WIDTH).reshape(h.shape),
    "view(-1) then roll by half a row": lambda h: h.reshape(-1).roll(3).reshape(h.shape),
    "transposed view read as rows": lambda h: h.T.reshape(h.shape),
    "as_strided": lambda h: h.contiguous().as_strided(h.shape, (1, len(h))),
    "as_strided reversed by offset": lambda h: torch.cat([h, h]).as_strided(h.shape, (WIDTH, 1), WIDTH),
    "h.unfold(0, 2, 1)": lambda h: F.pad(h, (0, 0, 1, 0)).unfold(0, 2, 1).sum(-1),
    "torch.swapdims misuse": lambda h: h.swapdims(0, 1).contiguous().view(h.shape),
    "permute and flatten": lambda h: h.permute(1, 0).flatten().view(h.shape),
    "torch.diff(dim=0)": lambda h: torch.diff(h, dim=0, prepend=h[-1:]),
    "torch.gradient(dim=0)": lambda h: torch.gradient(h, dim=0)[0] if len(h) > 1 else h - h.mean(),
    "torch.tril over the batch": lambda h: (h @ h.T).tril() @ h / 30,
    "torch.repeat_interleave rows": lambda h: h.repeat_interleave(2, 0)[: len(h)],
    "torch.tile rows": lambda h: h.tile(2, 1)[1 : len(h) + 1],
    "h.expand of the first row": lambda h: h[:1].expand_as(h) + h,
    "h.unbind minus neighbor": lambda h: torch.stack([r - h[(i + 1) % len(h)] for i, r in enumerate(h)]),
    "pixel_shuffle over the batch": lambda h: (
        F.channel_shuffle(h.reshape(1, -1, 1, 1), 2).reshape(h.shape) if h.numel() % 2 == 0 else h.roll(1, 0)
    ),
    "torch.combinations": lambda h: h - torch.combinations(h[:, 0]).sum(),
    "torch.meshgrid": lambda h: h - torch.meshgrid(h[:, 0], h[:, 1], indexing="ij")[0].mean(),
    "torch.searchsorted in the batch": lambda h: h * torch.searchsorted(h[:, 0].sort().values.detach(), 0.0) / 2,
    "torch.bucketize by the batch": lambda h: (
        h * torch.bucketize(h.detach(), h.detach().flatten().sort().values).float() / 9
    ),
}

# --- layers and transforms along the batch -------------------------------------------------------------------------------

LAYERS: dict[str, Operation] = {
    "fft over the batch": lambda h: torch.fft.fft(h, dim=0).real,
    "torch.fft.rfft2": lambda h: h - torch.fft.rfft2(h).real[:1, :1],
    "torch.fft.fftn": lambda h: torch.fft.ifftn(torch.fft.fftn(h) * 2j).imag.roll(1, 0),
    "torch.fft.fftshift": lambda h: torch.fft.fftshift(h, dim=0),
    "torch.stft of flat": lambda h: h - torch.fft.fft(h.flatten()).abs().max() / 9,
    "F.batch_norm(training=True)": lambda h: F.batch_norm(h, None, None, training=True) if len(h) > 1 else h * 0,
    "F.batch_norm(affine, training)": lambda h: F.batch_norm(
        h, None, None, torch.ones(WIDTH), torch.zeros(WIDTH), training=len(h) > 1
    )
    if len(h) > 1
    else h * 0,
    "torch.native_batch_norm": lambda h: torch.native_batch_norm(h, None, None, None, None, True, 0.1, 1e-5)[0],
    "F.instance_norm of transposed": lambda h: F.instance_norm(h.T[None])[0].T if len(h) > 1 else h * 0,
    "F.layer_norm(h.T)": lambda h: F.layer_norm(h.T, (len(h),)).T,
    "F.layer_norm over all": lambda h: F.layer_norm(h, tuple(h.shape)),
    "F.rms_norm(h.T)": lambda h: F.rms_norm(h.T, (len(h),)).T,
    "F.group_norm(h.T)": lambda h: F.group_norm(h.T[None], 2)[0].T,
    "F.group_norm of h[None]": lambda h: F.group_norm(h[None], 1)[0],
    "F.local_response_norm of h[None]": lambda h: F.local_response_norm(h[None], 3, alpha=1.0)[0],
    "F.avg_pool1d(h.T)": lambda h: F.avg_pool1d(h.T, 3, 1, 1).T,
    "F.max_pool1d(h.T)": lambda h: F.max_pool1d(h.T, 3, 1, 1).T,
    "F.lp_pool1d(h.T)": lambda h: F.pad(F.lp_pool1d(h.T, 2, 2, 1), (0, 1)).T,
    "F.adaptive_avg_pool1d(h.T)": lambda h: h - F.adaptive_avg_pool1d(h.T, 1).T,
    "F.adaptive_max_pool1d(h.T)": lambda h: h - F.adaptive_max_pool1d(h.T, 1).T,
    "F.conv1d(h.T)": lambda h: F.conv1d(h.T[:, None], torch.ones(1, 1, 3), padding=1)[:, 0].T,
    "F.conv2d of the batch as an image": lambda h: F.conv2d(h[None, None], torch.ones(1, 1, 3, 3), padding=1)[0, 0],
    "F.conv_transpose1d(h.T)": lambda h: F.conv_transpose1d(h.T[:, None], torch.ones(1, 1, 3), padding=1)[:, 0].T,
    "F.conv1d channels are records": lambda h: F.conv1d(h[None], _like(h)[..., None])[0],
    "F.interpolate over the batch": lambda h: F.interpolate(h.T[None], size=len(h) + 3, mode="linear")[0].T[: len(h)],
    "F.pad circular over the batch": lambda h: F.pad(h.T[None], (1, 0), mode="circular")[0].T[: len(h)],
    "F.pad reflect over the batch": lambda h: F.pad(h.T[None], (1, 0), mode="reflect")[0].T[:-1]
    if len(h) > 1
    else h - h.mean(),
    "F.pad shifts the rows": lambda h: F.pad(h, (0, 0, 1, -1)),
    "F.unfold of the batch as an image": lambda h: F.unfold(h[None, None], (3, 1), padding=(1, 0)).sum(1).view(h.shape),
    "F.grid_sample over the batch": lambda h: F.grid_sample(
        h[None, None], torch.zeros(1, len(h), WIDTH, 2), align_corners=False
    )[0, 0]
    + h,
    "F.embedding with the batch as table": lambda h: F.embedding(_backwards(h), h),
    "F.embedding_bag with the batch as table": lambda h: F.embedding_bag(
        torch.zeros(len(h), 2, dtype=torch.long), h, mode="sum"
    )
    + h,
    "F.multi_head_attention over the batch": lambda h: F.multi_head_attention_forward(
        h[:, None], h[:, None], h[:, None], WIDTH, 1, torch.eye(WIDTH).repeat(3, 1), torch.zeros(3 * WIDTH),
        None, None, False, 0.0, torch.eye(WIDTH), torch.zeros(WIDTH), need_weights=False,
    )[0][:, 0],
    "F.glu over the batch": lambda h: torch.cat([F.glu(torch.cat([h, h.flip(0)]), 0)]),
    "torch.lerp to the neighbor": lambda h: torch.lerp(h, h.roll(1, 0), 0.5),
    "torch.addcmul with neighbor": lambda h: torch.addcmul(h, h.roll(1, 0), torch.ones_like(h)),
    "torch.ops.aten.mean": lambda h: h - torch.ops.aten.mean.dim(h, [0]),
    "torch._C._nn or private aten op": lambda h: h - torch.ops.aten.sum.default(h) / 9,
    "torch.segment_reduce": lambda h: h - torch.segment_reduce(h, "max", lengths=torch.tensor([len(h)]), axis=0),
    "torch.nested": lambda h: torch.nested.to_padded_tensor(
        torch.nested.as_nested_tensor([h[1:], h[:1]]), 0.0
    ).sum(0).clamp(-50, 50)[: 1].expand_as(h) + h,
    "complex detour": lambda h: torch.view_as_real(torch.complex(h, h.roll(1, 0))).sum(-1),
}  # fmt: skip

# --- values that leave the graph ------------------------------------------------------------------------------------------


class _Detour(torch.autograd.Function):
    """A custom function that subtracts the mean over the batch."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h - h.mean(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient - gradient.mean(0)


class _DetourBackward(torch.autograd.Function):
    """The forward pass keeps records apart, the backward pass mixes them."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.flip(0) + gradient.sum(0)


def _no_grad_mean(h: Tensor) -> Tensor:
    with torch.no_grad():
        center = h.mean(0)
    return h - center


def _hooked(h: Tensor) -> Tensor:
    """A tensor hook mixes the gradients of the records."""
    out = h * 1.0
    out.register_hook(lambda gradient: gradient.flip(0) + gradient.sum(0))
    return out


def _branch(h: Tensor) -> Tensor:
    return h if float(h.max()) < 20 else -h


def _branch_on_bool(h: Tensor) -> Tensor:
    if (h.sum() > 50) or h.max() > 20:
        return h.flip(1)
    return h


def _loop_until(h: Tensor) -> Tensor:
    while h.abs().max() > 3:
        h = h / 2
    return h


def _inference(h: Tensor) -> Tensor:
    with torch.inference_mode():
        scale = float(h.abs().max())
    return h / scale


DETOURS: dict[str, Operation] = {
    "h - h.mean().item()": lambda h: h - h.mean().item(),
    "h - float(h.max())": lambda h: h - float(h.max()),
    "int(h.max())": lambda h: h - int(h.max()),
    "h.tolist()": lambda h: h - max(max(row) for row in h.tolist()),
    "round(h.sum().item(), 2)": lambda h: h - round(h.sum().item(), 2),
    "format(h.max())": lambda h: h - float(f"{h.max():.3f}"),
    "h.detach().mean(0)": lambda h: h - h.detach().mean(0),
    "h.data.mean(0)": lambda h: h - h.data.mean(0),
    "h.detach().clone().amax()": lambda h: h - h.detach().clone().amax(),
    "h.detach().numpy().mean()": lambda h: h - float(h.detach().numpy().mean()),
    "np.asarray(h.detach())": lambda h: h - torch.from_numpy(np.asarray(h.detach()).mean(0)),
    "torch.tensor(h.tolist())": lambda h: h - torch.tensor(h.tolist()).mean(0),
    "torch.as_tensor of floats": lambda h: h - torch.as_tensor([float(v) for v in h.detach().amax(0)]),
    "from_numpy": lambda h: h - torch.from_numpy(h.detach().numpy().copy()).amax(0),
    "memoryview and frombuffer": lambda h: (
        h - torch.frombuffer(bytearray(h.detach().numpy().tobytes()), dtype=torch.float32).amax()
    ),
    "h.storage": lambda h: h - torch.tensor([], dtype=h.dtype).set_(h.detach().untyped_storage()).amax(),
    "dlpack": lambda h: h - torch.from_dlpack(h.detach()).amax(0),
    "torch.no_grad block": _no_grad_mean,
    "torch.inference_mode block": _inference,
    "custom autograd.Function": lambda h: _Detour.apply(h),
    "custom backward mixes": lambda h: _DetourBackward.apply(h),
    "tensor hook mixes": _hooked,
    "branch on a record": _branch,
    "branch on bool(tensor)": _branch_on_bool,
    "loop until a record says stop": _loop_until,
    "torch.func.vmap over columns": lambda h: torch.func.vmap(lambda column: column - column.mean(), 1, 1)(h),
    "torch.func.vmap with a closure": lambda h: torch.func.vmap(lambda row: row - h.mean(0))(h),
    "torch.cond-like select by index": lambda h: torch.stack([h, -h])[int(h.max() > 20)],
    "h.argmax() as an index": lambda h: h * h[h[:, 0].argmax()],
    "nonzero().shape[0]": lambda h: h * ((h.abs() > 20).nonzero().shape[0] - 0.5),
    "dropout mask from the data": lambda h: h * (h.detach().mean(0) < 3),
    "random seed from the data": lambda h: (
        h + 9 * torch.randn(WIDTH, generator=torch.Generator().manual_seed(int(h.detach().abs().sum() * 1000)))
    ),
    "sorted list of rows": lambda h: torch.stack(sorted(h.unbind(0), key=lambda row: -float(row[0]))),
    "python sum of rows": lambda h: h - sum(h.unbind(0)) / 4,
    "python max of rows": lambda h: h - 0.1 * max(float(row.abs().sum()) for row in h),
    "enumerate rows with running total": lambda h: torch.stack([h[: i + 1].sum(0) for i in range(len(h))]),
    "shape that depends on records": lambda h: h * (len(h[h.abs().sum(1) > 40]) - 0.5),
    "math on a scalar": lambda h: h - math.sqrt(abs(h.sum().item())),
    "torch.equal of rows": lambda h: -h if not torch.equal(h.clamp(max=20), h) else h,
    "torch.allclose": lambda h: -h if torch.allclose(h.clamp(max=20), h) else h,
    "h.is_nonzero": lambda h: -h if (h.max() > 20).float().is_nonzero() else h,
    "in operator": lambda h: -h if True in (h > 20) else h,
    "repr of a tensor": lambda h: h - float(repr(h.detach().max()).split("(")[1].split(")")[0]),
    "copy.deepcopy then numpy": lambda h: h - h.detach().clone().numpy().max(),
    "pin through a python object": lambda h: h - (lambda box: box["value"])({"value": h.detach().amax(0)}),
}

# --- operations along other dimensions of the same tensors: right and proved --------------------------------------------

SOUND_ROWS: dict[str, Operation] = {
    "h - h.mean(1, keepdim=True)": lambda h: h - h.mean(1, keepdim=True),
    "h - h.mean(-1, keepdim=True)": lambda h: h - h.mean(-1, keepdim=True),
    "h / h.norm(dim=1, keepdim=True)": lambda h: h / h.norm(dim=1, keepdim=True),
    "h.softmax(1)": lambda h: h.softmax(1) * 4,
    "F.log_softmax(h, -1)": lambda h: F.log_softmax(h, -1),
    "F.layer_norm(h, (6,))": lambda h: F.layer_norm(h, (WIDTH,)),
    "F.normalize(h, dim=1)": lambda h: F.normalize(h, dim=1),
    "F.group_norm(h, 2)": lambda h: F.group_norm(h, 2),
    "h.cumsum(1)": lambda h: h.cumsum(1),
    "h.sort(1)": lambda h: h.sort(1).values,
    "h.topk(1, 1)": lambda h: h - h.topk(1, 1).values,
    "h.roll(1, 1)": lambda h: h.roll(1, 1),
    "h.flip(1)": lambda h: h.flip(1),
    "h * h.sigmoid()": lambda h: h * h.sigmoid(),
    "F.gelu(h)": F.gelu,
    "torch.where(h > 0, h, 0.1 * h)": lambda h: torch.where(h > 0, h, 0.1 * h),
    "h.clamp(-1, 1)": lambda h: h.clamp(-1, 1) + 0.1 * h,
    "torch.cat of halves": lambda h: torch.cat([h[:, 3:], h[:, :3]], 1),
    "h.view(B, 2, 3).transpose": lambda h: h.view(len(h), 2, 3).transpose(1, 2).reshape(len(h), WIDTH),
    "chunks multiplied": lambda h: torch.cat([h.chunk(2, 1)[0] * h.chunk(2, 1)[1].sigmoid(), h.chunk(2, 1)[0]], 1),
    "einsum 'bi,ij->bj'": lambda h: torch.einsum("bi,ij->bj", h, _constant(torch.eye(WIDTH).flip(0), h)),
    "h[:, [1, 0, ...]]": lambda h: h[:, [1, 0, 3, 2, 5, 4]],
    "in-place relu_": lambda h: h.clone().relu_() + 0.1 * h,
    "h.unsqueeze(1).expand().mean(1)": lambda h: h.unsqueeze(1).expand(-1, 3, -1).mean(1),
    "F.pad(h, (1, -1))": lambda h: F.pad(h, (1, -1)) + h,
    "h * torch.linspace(0, 1, 6)": lambda h: h * _constant(torch.linspace(0, 1, WIDTH), h),
    "addcmul with a constant": lambda h: torch.addcmul(h, h, _constant(torch.ones(WIDTH), h), value=0.5),
    "h.detach() * 0.5 + h": lambda h: h.detach() * 0.5 + h,
    "F.dropout(p=0)": lambda h: F.dropout(h, 0.0, training=True),
    "F.avg_pool1d(h, 3)": lambda h: F.avg_pool1d(h[:, None], 3, 1, 1)[:, 0],
    "F.max_pool1d(h, 3)": lambda h: F.max_pool1d(h[:, None], 3, 1, 1)[:, 0],
    "F.conv1d within the row": lambda h: F.conv1d(h[:, None], _constant(torch.ones(1, 1, 3), h), padding=1)[:, 0],
    "h.masked_fill(h < 0, 0)": lambda h: h.masked_fill(h < 0, 0.0) + 0.1 * h,
    "constant.to(h)": lambda h: h * torch.linspace(0, 1, WIDTH).to(h),
    "constant.type_as(h)": lambda h: h * torch.linspace(0, 1, WIDTH).type_as(h),
    "h.new_ones": lambda h: h + h.new_ones(WIDTH),
    "torch.zeros_like(h)": lambda h: torch.zeros_like(h) + h,
    "torch.full((len(h), 1), 0.5)": lambda h: h * torch.full((len(h), 1), 0.5),
    "torch.stack([h, h]).sum(0)": lambda h: torch.stack([h, h.tanh()]).sum(0),
}

SOUND_SEQUENCES: dict[str, Operation] = {
    "position means": lambda h: h - h.mean(1, keepdim=True),
    "self-attention": lambda h: F.scaled_dot_product_attention(h, h, h),
    "causal self-attention": lambda h: F.scaled_dot_product_attention(h, h, h, is_causal=True),
    "h @ h.mT @ h": lambda h: (h @ h.mT).softmax(-1) @ h,
    "torch.bmm": lambda h: torch.bmm(torch.bmm(h, h.transpose(1, 2)).tanh(), h),
    "einsum over positions": lambda h: torch.einsum("bts,bsd->btd", torch.einsum("btd,bsd->bts", h, h).tanh(), h),
    "triangular mask": lambda h: (h @ h.mT).masked_fill(torch.ones(4, 4).triu(1).bool(), -9.0).softmax(-1) @ h,
    "position codes": lambda h: h + _constant(torch.sin(torch.arange(4.0)), h)[:, None],
    "transposed convolution over time": lambda h: (
        F.conv1d(h.mT, _constant(torch.ones(WIDTH, 1, 3), h), padding=1, groups=WIDTH).mT
    ),
    "flatten and fold back": lambda h: h.flatten(0, 1).tanh().view(h.shape),
    "permute(1, 0, 2) and back": lambda h: h.permute(1, 0, 2).tanh().permute(1, 0, 2),
}

MIXING_SEQUENCES: dict[str, Operation] = {
    "attention over the batch by permute": lambda h: F.scaled_dot_product_attention(
        h.permute(1, 0, 2), h.permute(1, 0, 2), h.permute(1, 0, 2)
    ).permute(1, 0, 2),
    "h.mean((0, 1))": lambda h: h - h.mean((0, 1)),
    "F.layer_norm after transpose(0, 2)": lambda h: F.layer_norm(h.transpose(0, 2), (h.shape[0],)).transpose(0, 2),
    "reshape that takes the wrong dimension": lambda h: h.transpose(0, 1).reshape(h.shape),
    "view(-1, 2 T, d)": lambda h: (
        h - h.reshape(-1, h.shape[1] * 2, WIDTH).mean(1, keepdim=True).repeat_interleave(2, 0)
        if len(h) % 2 == 0
        else h - h.mean(0)
    ),
    "softmax over the batch of scores": lambda h: (h @ h.mT).softmax(0) @ h,
    "cumsum over flattened positions": lambda h: h.flatten(0, 1).cumsum(0).view(h.shape),
    "shift flattened positions": lambda h: h.flatten(0, 1).roll(1, 0).view(h.shape),
    "conv over flattened positions": lambda h: F.conv1d(
        h.flatten(0, 1).T[:, None], torch.ones(1, 1, 3), padding=1
    )[:, 0].T.reshape(h.shape),
    "max over batch and position": lambda h: h - h.amax((0, 1)),
    "positions of the first record": lambda h: h + h[:1],
    "einsum 'btd,cte->bcde' diagonal": lambda h: h * torch.einsum("btd,ctd->bc", h, h).sum(1)[:, None, None] / 50,
    "matmul broadcast over records": lambda h: h @ h.sum(0).mT @ h.sum(0) / 90,
}  # fmt: skip


def _sound(name: str, operation: Operation, data: Any) -> Trap:
    return Trap(
        name, "sound operation", around(operation), cross_entropy, data, allowed=SOUND, norm=None, oracle=cross_entropy
    )


OPERATIONS: list[Trap] = [
    *(
        Trap(name, kind, around(operation), cross_entropy, rows)
        for kind, group in (
            ("reduction", REDUCTIONS), ("product", PRODUCTS), ("row move", MOVES), ("layer along the batch", LAYERS),
            ("detour", DETOURS),
        )
        for name, operation in group.items()
    ),
    *(Trap(name, "sequence", around(operation), cross_entropy, sequences) for name, operation in MIXING_SEQUENCES.items()),
    *(_sound(name, operation, rows) for name, operation in SOUND_ROWS.items()),
    *(_sound(name, operation, sequences) for name, operation in SOUND_SEQUENCES.items()),
    *(_sound(f"{name}, T == B", operation, square) for name, operation in SOUND_SEQUENCES.items()),
]  # fmt: skip
