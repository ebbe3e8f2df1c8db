"""Operations that ordinary models use: along a record's own dimensions they are right, along the batch they are traps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributions as D
from torch.nn import functional as F

from tests.zoo.harness import SOUND, Trap
from tests.zoo.parts import (
    CLASSES,
    FEATURES,
    LENGTH,
    OUTLIER,
    WIDTH,
    Operation,
    around,
    cross_entropy,
    of_outputs,
    perceptron,
    rows,
    sequences,
    square,
)

Loss = Callable[[Tensor, Tensor], Tensor]


def _images(h: Tensor) -> Tensor:
    """Sequences as images of four channels."""
    return h.reshape(len(h), LENGTH, 2, 3)


def _batch_as_image(h: Tensor) -> Tensor:
    """All records in one image."""
    return h.reshape(1, 1, -1, WIDTH)


def _wide(h: Tensor) -> Tensor:
    """What an operation made of a record, as so many numbers as a row has."""
    return h.flatten(1).sum(1, keepdim=True).expand(-1, WIDTH)


def _square(h: Tensor) -> Tensor:
    """A well-conditioned matrix of each record's own."""
    return h @ h.mT / (1 + (h @ h.mT).diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]) + torch.eye(h.shape[-2]).to(
        h
    )


ALONG: dict[str, tuple[Operation, Operation]] = {
    # name: (along positions or features, along the batch); h has the shape (records, positions, features)
    "linalg.norm": (lambda h: h / torch.linalg.norm(h, dim=1, keepdim=True), lambda h: h / torch.linalg.norm(h, dim=0)),
    "linalg.vector_norm": (
        lambda h: h / torch.linalg.vector_norm(h, 2, -1, True),
        lambda h: h / torch.linalg.vector_norm(h, 2, (0, 1), True),
    ),
    "linalg.matrix_norm": (
        lambda h: h / torch.linalg.matrix_norm(h, keepdim=True),
        lambda h: h / torch.linalg.matrix_norm(h, dim=(0, 1), keepdim=True),
    ),
    "linalg.solve": (
        lambda h: torch.linalg.solve(_square(h), h),
        lambda h: torch.linalg.solve(_square(h.transpose(0, 1)), h.transpose(0, 1)).transpose(0, 1),
    ),
    "linalg.inv": (
        lambda h: torch.linalg.inv(_square(h)) @ h,
        lambda h: (torch.linalg.inv(_square(h.transpose(0, 1))) @ h.transpose(0, 1)).transpose(0, 1),
    ),
    "linalg.det": (
        lambda h: h * torch.linalg.det(_square(h))[:, None, None],
        lambda h: h * torch.linalg.det(_square(h.transpose(0, 1)))[None, :, None],
    ),
    "linalg.cholesky": (
        lambda h: torch.linalg.cholesky(_square(h)) @ h,
        lambda h: (torch.linalg.cholesky(_square(h.transpose(0, 1))) @ h.transpose(0, 1)).transpose(0, 1),
    ),
    "logdet": (
        lambda h: h * torch.logdet(_square(h))[:, None, None],
        lambda h: h * torch.logdet(_square(h.transpose(0, 1)))[None, :, None],
    ),
    "hstack": (lambda h: torch.hstack([h, h.tanh()]), lambda h: torch.hstack([h, h.mean(0).expand_as(h)])),
    "hstack of rows": (
        lambda h: torch.hstack([h[:, 0, :3], h[:, 1, :3]]),
        lambda h: torch.hstack([h[:, 0, 0], h[:, 1, 0]])[1 : len(h) + 1, None].expand(-1, WIDTH),
    ),
    "column_stack": (
        lambda h: torch.column_stack([h[:, 0, :5], h[:, 1, 0]]),
        lambda h: torch.column_stack([h[:, 0, :5], h[:, 1, 0].flip(0)]),
    ),
    "dstack": (
        lambda h: torch.dstack([h[..., :3], h[..., 3:]]),
        lambda h: torch.dstack([h[..., :3], h[..., 3:].flip(0)]),
    ),
    "vstack": (
        lambda h: torch.vstack([h.transpose(0, 1), h.transpose(0, 1)]).transpose(0, 1),
        lambda h: torch.vstack([h[1:], h[:1]]),
    ),
    "hsplit": (lambda h: torch.hsplit(h, 2)[1], lambda h: torch.hsplit(h.transpose(0, 1), [1])[0].transpose(0, 1) + h),
    "vsplit": (lambda h: torch.vsplit(h.transpose(0, 1), 2)[1].transpose(0, 1), lambda h: torch.vsplit(h, [1])[0] + h),
    "dsplit": (
        lambda h: torch.dsplit(h, 2)[1].repeat(1, 1, 2),
        lambda h: torch.dsplit(h.permute(1, 2, 0), [1])[0].permute(2, 0, 1) + h,
    ),
    "diagonal": (lambda h: _wide(h.diagonal(dim1=1, dim2=2)), lambda h: h + h.diagonal(dim1=0, dim2=1).sum(-1)),
    "diag_embed": (
        lambda h: _wide(torch.diag_embed(h) * 0.3),
        lambda h: torch.diag_embed(h.permute(1, 2, 0)).sum(-1).permute(2, 0, 1).flip(0),
    ),
    "diag_embed with dims": (
        lambda h: torch.diag_embed(h[:, 0], dim1=0, dim2=2).sum(0),
        lambda h: torch.diag_embed(h[:, 0].mT, dim1=0, dim2=1).cumsum(0).sum(1),
    ),
    "rot90": (lambda h: torch.rot90(_images(h), 1, (2, 3)).reshape(h.shape), lambda h: torch.rot90(h, 2, (0, 2))),
    "fliplr": (lambda h: torch.fliplr(h), lambda h: torch.fliplr(h.transpose(0, 1)).transpose(0, 1)),
    "flip": (lambda h: torch.flip(h, (1, 2)), lambda h: torch.flip(h, (0, 2))),
    "roll": (lambda h: torch.roll(h, (1, 2), (1, 2)), lambda h: torch.roll(h, (1, 1), (0, 2))),
    "cross": (
        lambda h: (
            torch.cross(h.reshape(len(h), -1, 3), h.reshape(len(h), -1, 3).roll(1, 1), dim=-1).reshape(h.shape) / 9
        ),
        lambda h: torch.cross(h.reshape(-1, 3), h.reshape(-1, 3).roll(1, 0), dim=1).reshape(h.shape) / 9,
    ),
    "linalg.cross": (
        lambda h: torch.linalg.cross(h.reshape(len(h), -1, 3), torch.tensor([[[1.0, 0.0, 2.0]]]).to(h)).reshape(
            h.shape
        ),
        lambda h: (
            torch.linalg.cross(h[:3], h[:3].roll(1, 0), dim=0).repeat(3, 1, 1)[: len(h)] / 9 if len(h) > 2 else h * 0
        ),
    ),
    "trapezoid": (lambda h: h + torch.trapezoid(h, dim=1)[:, None], lambda h: h + torch.trapezoid(h, dim=0)),
    "cumulative_trapezoid": (
        lambda h: torch.cumulative_trapezoid(h, dx=0.5, dim=1),
        lambda h: F.pad(torch.cumulative_trapezoid(h, dim=0), (0, 0, 0, 0, 1, 0)),
    ),
    "cumsum": (lambda h: torch.cumsum(h, 1), lambda h: torch.cumsum(h, 0)),
    "cumprod": (lambda h: (1 + 0.1 * h.tanh()).cumprod(dim=1) * h, lambda h: (1 + 0.1 * h.tanh()).cumprod(dim=0) * h),
    "cummax": (lambda h: h.cummax(1).values, lambda h: h.cummax(0)[0]),
    "logcumsumexp": (lambda h: h.logcumsumexp(-1), lambda h: h.logcumsumexp(0)),
    "searchsorted": (
        lambda h: h * torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]).to(h), h.detach()),
        lambda h: h * torch.searchsorted(h.detach()[:, 0, 0].sort().values, torch.zeros_like(h)),
    ),
    "searchsorted in each record": (
        lambda h: h * torch.searchsorted(h.detach().sort(-1).values, h.detach() / 2),
        lambda h: h * torch.searchsorted(h.detach().flatten().sort().values, h.detach()),
    ),
    "bucketize": (
        lambda h: h * torch.bucketize(h.detach(), torch.tensor([-1.0, 0.0, 1.0]).to(h)),
        lambda h: h * torch.bucketize(torch.zeros_like(h), h.detach()[:, 0, 0].sort().values),
    ),
    "cat with nothing": (lambda h: torch.cat([h[:, :0], h], 1), lambda h: torch.cat([h[:0], h.flip(0)])),
    "cat with torch.empty(0)": (
        lambda h: torch.cat([torch.empty(0).to(h), h], 1),
        lambda h: torch.cat([torch.empty(0).to(h), h.roll(1, 0)]),
    ),
    "records in two steps of a view": (
        lambda h: h.reshape(-1, WIDTH).tanh().reshape(len(h), -1, WIDTH),
        lambda h: h.reshape(-1, WIDTH).mT.reshape(h.shape),
    ),
    "movedim": (lambda h: h.movedim(0, 2).tanh().movedim(2, 0), lambda h: h.movedim(0, 1).reshape(h.shape)),
    "swapaxes": (lambda h: h.swapaxes(0, 1).tanh().swapaxes(0, 1), lambda h: h.swapaxes(0, 1).reshape(h.shape)),
    "unflatten": (
        lambda h: h.unflatten(2, (2, 3)).sum(2).repeat(1, 1, 2),
        lambda h: h.flatten(0, 1).unflatten(0, (LENGTH, len(h))).transpose(0, 1),
    ),
    "view_as": (lambda h: h.flatten(1).view_as(h), lambda h: h.transpose(0, 1).contiguous().view_as(h)),
    "tensor_split": (lambda h: torch.cat(h.tensor_split(3, 1)[::-1], 1), lambda h: torch.cat(h.tensor_split(3)[::-1])),
    "chunk": (lambda h: torch.cat(h.chunk(2, -1)[::-1], -1), lambda h: torch.cat(h.chunk(2)[::-1])),
    "unbind": (lambda h: torch.stack(h.unbind(1)[::-1], 1), lambda h: torch.stack(h.unbind(0)[::-1])),
    "unfold": (lambda h: h.unfold(1, 2, 1).sum(-1), lambda h: F.pad(h, (0, 0, 0, 0, 1, 0)).unfold(0, 2, 1).sum(-1)),
    "F.unfold and fold": (
        lambda h: F.fold(F.unfold(_images(h), 2, padding=1), (2, 3), 2, padding=1).reshape(h.shape),
        lambda h: F.unfold(_batch_as_image(h), (3, 1), padding=(1, 0)).sum(1).reshape(h.shape),
    ),
    "interpolate, nearest": (
        lambda h: F.interpolate(h.mT, 7).mT,
        lambda h: F.interpolate(h.permute(1, 2, 0), scale_factor=2).permute(2, 0, 1)[: len(h)],
    ),
    "interpolate, bilinear": (
        lambda h: _wide(F.interpolate(_images(h), (3, 5), mode="bilinear")),
        lambda h: F.interpolate(_batch_as_image(h), scale_factor=2, mode="bilinear").reshape(-1, LENGTH, WIDTH)[
            : len(h)
        ],
    ),
    "interpolate, bicubic": (
        lambda h: _wide(F.interpolate(_images(h), (3, 5), mode="bicubic", antialias=True)),
        lambda h: F.interpolate(_batch_as_image(h), scale_factor=2, mode="bicubic").reshape(-1, LENGTH, WIDTH)[
            : len(h)
        ],
    ),
    "interpolate, area": (
        lambda h: _wide(F.interpolate(_images(h), (1, 2), mode="area")),
        lambda h: h + F.interpolate(_batch_as_image(h), (1, WIDTH), mode="area").reshape(1, 1, WIDTH),
    ),
    "grid_sample": (
        lambda h: _wide(F.grid_sample(_images(h), torch.zeros(len(h), 2, 2, 2).to(h), align_corners=False)),
        lambda h: h + F.grid_sample(_batch_as_image(h), torch.zeros(1, 1, WIDTH, 2).to(h), align_corners=False)[0],
    ),
    "pixel_shuffle": (
        lambda h: F.pixel_unshuffle(F.pixel_shuffle(_images(h), 2), 2).reshape(h.shape),
        lambda h: F.pixel_shuffle(h.reshape(1, -1, 1, WIDTH), 2).reshape(h.shape),
    ),
    "F.normalize": (lambda h: F.normalize(h, dim=-1), lambda h: F.normalize(h, dim=0)),
    "cosine_similarity": (
        lambda h: h * F.cosine_similarity(h[:, :1], h, dim=-1)[..., None],
        lambda h: h * F.cosine_similarity(h, h.roll(1, 1), dim=0),
    ),
    "pairwise_distance": (
        lambda h: h * F.pairwise_distance(h, h.roll(1, 1))[..., None] / 9,
        lambda h: h * F.pairwise_distance(h, h.roll(1, 0))[..., None] / 9,
    ),
    "cdist": (
        lambda h: torch.cdist(h, h) @ h / 9,
        lambda h: (torch.cdist(h.transpose(0, 1), h.transpose(0, 1)) @ h.transpose(0, 1)).transpose(0, 1) / 9,
    ),
    "bilinear": (
        lambda h: F.bilinear(h, h.roll(1, 1), torch.ones(WIDTH, WIDTH, WIDTH).to(h) / 99),
        lambda h: F.bilinear(h, h.roll(1, 0), torch.ones(WIDTH, WIDTH, WIDTH).to(h) / 99),
    ),
    "attention with a mask": (
        lambda h: F.scaled_dot_product_attention(h, h, h, attn_mask=torch.ones(LENGTH, LENGTH).tril().bool()),
        lambda h: F.scaled_dot_product_attention(
            *[h.transpose(0, 1)] * 3, attn_mask=torch.zeros(len(h), len(h)).to(h)
        ).transpose(0, 1),
    ),
    "attention with a mask of the record": (
        lambda h: F.scaled_dot_product_attention(
            h[:, None], h[:, None], h[:, None], attn_mask=(h[..., 0] > -9)[:, None, None]
        )[:, 0],
        lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None], attn_mask=(h[None, ..., :1].mT > h.mean()))[
            0
        ],
    ),
    "complex numbers": (
        lambda h: (torch.complex(h, h.tanh()) * torch.polar(torch.ones(WIDTH).to(h), torch.arange(6.0).to(h))).abs(),
        lambda h: torch.complex(h, h.flip(0)).abs(),
    ),
    "rotation by view_as_complex": (
        lambda h: torch.view_as_real(
            torch.view_as_complex(h.reshape(len(h), LENGTH, 3, 2))
            * torch.polar(torch.ones(LENGTH, 3).to(h), torch.arange(12.0).view(LENGTH, 3).to(h))
        ).flatten(2),
        lambda h: torch.view_as_real(torch.view_as_complex(torch.stack([h, h.roll(1, 0)], -1)) * 1j).sum(-1),
    ),
    "fft": (lambda h: torch.fft.fft(h, dim=1).real, lambda h: torch.fft.fft(h, dim=0).real),
    "rfft and irfft": (
        lambda h: torch.fft.irfft(torch.fft.rfft(h, dim=-1) * 2, n=WIDTH),
        lambda h: torch.fft.irfft(torch.fft.rfft(h, dim=0) * 1j, n=len(h), dim=0),
    ),
    "rfft2 and irfft2": (
        lambda h: torch.fft.irfft2(torch.fft.rfft2(h) * 2j, s=(LENGTH, WIDTH)),
        lambda h: torch.fft.irfft2(torch.fft.rfft2(h, dim=(0, 2)) * 2j, s=(len(h), WIDTH), dim=(0, 2)),
    ),
    "fftshift": (lambda h: torch.fft.fftshift(h, dim=(1, 2)), lambda h: torch.fft.fftshift(h)),
    "rfftn": (
        lambda h: torch.fft.irfftn(torch.fft.rfftn(h, dim=(1, 2)) * 2j, s=(LENGTH, WIDTH), dim=(1, 2)),
        lambda h: torch.fft.rfftn(h).real[:, :, :1] + h,
    ),
    "stft": (
        lambda h: _wide(torch.stft(h.flatten(1), 8, window=torch.ones(8).to(h), return_complex=True).abs()),
        lambda h: h + torch.stft(h.flatten(), 8, window=torch.ones(8).to(h), return_complex=True).abs().mean(),
    ),
    "sort": (lambda h: h.sort(dim=1, descending=True).values, lambda h: h.sort(dim=0).values),
    "topk": (lambda h: h.topk(2, dim=1).values, lambda h: h + h.topk(1, dim=0).values),
    "argmax as a mask": (
        lambda h: h * F.one_hot(h.argmax(-1), WIDTH),
        lambda h: h * F.one_hot(h.argmax(0), 64)[..., : len(h)].movedim(-1, 0),
    ),
    "gather": (lambda h: h.gather(1, h.argsort(1)), lambda h: h.gather(0, h.argsort(0))),
    "scatter": (
        lambda h: torch.zeros_like(h).scatter(-1, h.topk(2, -1).indices, h.topk(2, -1).values),
        lambda h: torch.zeros_like(h).scatter(0, h.argsort(0), h),
    ),
    "scatter_add of constants' places": (
        lambda h: torch.zeros_like(h).scatter_add(1, torch.tensor([0, 0, 1, 1]).view(1, -1, 1).expand_as(h), h),
        lambda h: torch.zeros_like(h).scatter_add(0, torch.zeros_like(h, dtype=torch.long), h),
    ),
    "masked_fill": (
        lambda h: h.masked_fill(h > h.mean(1, keepdim=True), 0.0),
        lambda h: h.masked_fill(h > h.mean(0), 0.0),
    ),
    "where": (lambda h: torch.where(h > 0, h, h.new_tensor(-0.5)), lambda h: torch.where(h > h.mean(), h, -h)),
    "index_select": (
        lambda h: h.index_select(1, torch.tensor([3, 0])),
        lambda h: h.index_select(0, torch.arange(len(h) - 1, -1, -1)),
    ),
    "embedding of buckets": (
        lambda h: F.embedding((h[..., 0] > 0).long(), torch.arange(12.0).view(2, WIDTH).to(h)) + h,
        lambda h: F.embedding(torch.arange(len(h) - 1, -1, -1), h.flatten(1)).view_as(h),
    ),
    "tril": (
        lambda h: (h @ h.mT).tril() @ h / 99,
        lambda h: (h.transpose(0, 1) @ h.permute(1, 2, 0)).tril().matmul(h.transpose(0, 1)).transpose(0, 1) / 99,
    ),
    "vmap": (
        lambda h: torch.func.vmap(lambda row: row - row.mean(0))(h),
        lambda h: torch.func.vmap(lambda column: column - column.mean(0), 1, 1)(h),
    ),
    "einsum with dots": (
        lambda h: torch.einsum("b...d,de->b...e", h, torch.eye(WIDTH).flip(0).to(h)),
        lambda h: h - torch.einsum("b...->...", h) / 3,
    ),
    "einsum without an arrow": (
        lambda h: torch.einsum("abc,cd", h, torch.eye(WIDTH).flip(0).to(h)),
        lambda h: h + torch.einsum("cab,cd", h, h[:, 0]).sum((0, 1)) / 9,
    ),
    "einsum of sublists": (
        lambda h: torch.einsum(h, [0, 1, 2], torch.eye(WIDTH).flip(0).to(h), [2, 3], [0, 1, 3]),
        lambda h: h - torch.einsum(h, [0, 1, 2], [1, 2]) / 3,
    ),
    "tensordot": (
        lambda h: torch.tensordot(h, torch.eye(WIDTH).flip(0).to(h), dims=([2], [0])),
        lambda h: h + torch.tensordot(h, h, dims=([0, 1], [0, 1])).sum(0) / 9,
    ),
    "inner": (
        lambda h: torch.inner(h, torch.eye(WIDTH).flip(0).to(h)),
        lambda h: h + torch.inner(h, h).sum((1, 2, 3))[:, None, None] / 99,
    ),
    "linalg.vecdot": (
        lambda h: h * torch.linalg.vecdot(h, h.roll(1, 1))[..., None] / 9,
        lambda h: h * torch.linalg.vecdot(h, h.roll(1, 1), dim=0) / 9,
    ),
    "logsumexp": (lambda h: h - h.logsumexp(-1, keepdim=True), lambda h: h - h.logsumexp(0, keepdim=True)),
    "softmin": (lambda h: F.softmin(h, dim=1) * 4, lambda h: F.softmin(-h, dim=0) * 4),
    "softmax of torch.special": (lambda h: torch.special.softmax(h, -1) * 4, lambda h: torch.special.softmax(h, 0) * 4),
    "renorm": (lambda h: h.renorm(2, 0, 1.0), lambda h: h.renorm(2, 1, 0.5) * 4),
    "local_response_norm": (
        lambda h: F.local_response_norm(h, 3, alpha=1.0),
        lambda h: F.local_response_norm(h.transpose(0, 1), 3, alpha=1.0).transpose(0, 1),
    ),
    "meshgrid of constants": (
        lambda h: h + torch.meshgrid(torch.arange(LENGTH), torch.arange(WIDTH), indexing="ij")[0].to(h),
        lambda h: h - torch.meshgrid(h[:, 0, 0], h[:, 0, 1], indexing="ij")[0].mean(),
    ),
    "outer sum by None": (
        lambda h: (h[:, :, None] - h[:, None]).tanh().sum(2),
        lambda h: (h[:, None] - h[None]).tanh().sum(1),
    ),
    "addcdiv": (lambda h: torch.addcdiv(h, h, h.square() + 1), lambda h: torch.addcdiv(h, h, h.square().sum(0) + 1)),
    "select_scatter": (
        lambda h: h.select_scatter(h[:, 0] * 2, 1, 3),
        lambda h: h.select_scatter(h.sum(0), 0, len(h) - 1),
    ),
    "slice_scatter": (
        lambda h: h.slice_scatter(h[:, 1:], 1, 0, LENGTH - 1),
        lambda h: h.slice_scatter(h[1:], 0, 0, len(h) - 1),
    ),
    "index_add": (
        lambda h: h.index_add(1, torch.tensor([0, 0]), h[:, :2]),
        lambda h: h.index_add(0, torch.zeros(len(h), dtype=torch.long), h),
    ),
    "slice writes": (lambda h: _with_slices(h, 1), lambda h: _with_slices(h, 0)),
    "take_along_dim": (
        lambda h: torch.take_along_dim(h, h.argsort(-1), -1),
        lambda h: torch.take_along_dim(h, h.argsort(0), 0),
    ),
    "msort": (lambda h: torch.msort(h.transpose(0, 1)).transpose(0, 1), lambda h: torch.msort(h)),
    "nanmean": (lambda h: h - h.nanmean(1, keepdim=True), lambda h: h - h.nanmean(0)),
    "std": (
        lambda h: h / (h.std(dim=-1, keepdim=True) + 1),
        lambda h: h / (h.std(dim=0, correction=0, keepdim=True) + 1),
    ),
    "quantile": (lambda h: h - h.quantile(0.5, dim=1, keepdim=True), lambda h: h - h.quantile(0.9, dim=0)),
    "pad by reflection": (
        lambda h: F.pad(h, (1, 1), mode="reflect")[..., :WIDTH],
        lambda h: F.pad(h.permute(1, 2, 0), (1, 0), mode="replicate").permute(2, 0, 1)[: len(h)],
    ),
    "pad circular": (
        lambda h: F.pad(h.mT, (1, 1), mode="circular").mT,
        lambda h: F.pad(h.permute(1, 2, 0), (1, 0), mode="circular").permute(2, 0, 1)[: len(h)],
    ),
    "gumbel_softmax": (lambda h: F.gumbel_softmax(h * 0, dim=-1) * 0 + h, lambda h: F.gumbel_softmax(h, dim=0) * 4),
    "threshold and glu": (lambda h: F.glu(h.repeat(1, 1, 2)), lambda h: F.glu(torch.cat([h, h.flip(0)]), 0)),
    "avg_pool2d": (
        lambda h: _wide(F.avg_pool2d(_images(h), 2)),
        lambda h: F.avg_pool2d(_batch_as_image(h), (3, 1), 1, (1, 0)).reshape(h.shape),
    ),
    "count_nonzero": (
        lambda h: h * torch.count_nonzero(h > 0, dim=2)[..., None],
        lambda h: h * (torch.count_nonzero(h > 20, dim=0) - 0.5),
    ),
    "repeat_interleave": (lambda h: h.repeat_interleave(2, dim=1), lambda h: h.repeat_interleave(2, dim=0)[: len(h)]),
    "isin": (
        lambda h: h * torch.isin((h > 0).long(), torch.tensor([1])),
        lambda h: h * torch.isin((h > 20).long(), (h > 20).long().max()),
    ),
    "batched matrix times vector": (
        lambda h: h + (h @ h[:, 0, :, None]).mT.sum(2, keepdim=True) / 99,
        lambda h: h + (h @ h[0, 0])[..., None] / 99,
    ),
    "where of a range": (
        lambda h: torch.where(torch.arange(LENGTH)[:, None] > 1, h, -h),
        lambda h: torch.where(torch.arange(len(h))[:, None, None] > 1, h, -h),
    ),
}


def _with_slices(h: Tensor, dim: int) -> Tensor:
    """Written as older code writes it: a new tensor, filled slice by slice."""
    out = torch.zeros_like(h)
    first, rest = (slice(None),) * dim + (slice(0, 1),), (slice(None),) * dim + (slice(1, None),)
    shorter = (slice(None),) * dim + (slice(0, -1),)
    out[first] = h[first]
    out[rest] = h[rest] - h[shorter]
    return out


NOT_BITING = frozenset(
    {
        "linalg.det", "logdet", "cumprod", "searchsorted in each record", "pixel_shuffle", "bilinear", "rfft2 and irfft2",
        "logsumexp", "softmin", "addcdiv", "batched matrix times vector", "softmax of torch.special", "hstack",
    }
)  # fmt: skip
"""Along the batch these mix records by less than the clipping norm shows."""


# --- writes into new tensors ----------------------------------------------------------------------------------------------


def _last(h: Tensor) -> Tensor:
    """A mask that ends at a place of each record's own."""
    mask = torch.zeros(len(h), LENGTH)
    mask[torch.arange(len(h)), (h[..., 0] > 0).sum(1) % LENGTH] = 1
    return h * mask.flip(-1).cumsum(-1).flip(-1)[..., None].to(h)


def _last_of_a_neighbor(h: Tensor) -> Tensor:
    mask = torch.zeros(len(h), LENGTH)
    mask[torch.arange(len(h)), (h.flip(0)[..., 0] > 0).sum(1) % LENGTH] = 1
    return h * mask[..., None].to(h)


def _zeroed(mask: Callable[[Tensor], Tensor]) -> Operation:
    def operation(h: Tensor) -> Tensor:
        h = h.clone()
        h[mask(h)] = 0
        return h

    return operation


WRITES: dict[str, tuple[Operation, Operation]] = {
    "h[arange, positions] = 1": (_last, _last_of_a_neighbor),
    "h[mask] = 0": (_zeroed(lambda h: h > 0.5), _zeroed(lambda h: h > h.mean(0))),
    "h[mask of positions] = 0": (_zeroed(lambda h: h[..., 0] > 0), _zeroed(lambda h: h.flip(0)[..., 0] > 0)),
}


# --- losses ---------------------------------------------------------------------------------------------------------------


def _hot(y: Tensor, o: Tensor) -> Tensor:
    return F.one_hot(y, CLASSES).to(o)


def _steps(o: Tensor) -> Tensor:
    """Log-probabilities of the shape (steps, records, classes)."""
    return torch.stack([o, o * 0.5, o.tanh(), o * 0.1]).log_softmax(-1)


def _lengths(o: Tensor, length: int) -> Tensor:
    return torch.full((len(o),), length)


OFF: dict[str, Any] = {"validate_args": False}

SOUND_LOSSES: dict[str, Loss] = {
    "Normal.log_prob": lambda o, y: -D.Normal(o[:, 0], F.softplus(o[:, 1]) + 0.1, **OFF).log_prob(y.to(o)).mean(),
    "Categorical.log_prob": lambda o, y: -D.Categorical(logits=o, **OFF).log_prob(y).mean(),
    "Bernoulli.log_prob": lambda o, y: -D.Bernoulli(logits=o, **OFF).log_prob(_hot(y, o)).sum(1).mean(),
    "Independent(Laplace).log_prob": lambda o, y: -D.Independent(D.Laplace(o, 1.0, **OFF), 1, **OFF).log_prob(_hot(y, o)).mean(),
    "Dirichlet.log_prob": lambda o, y: -D.Dirichlet(o.exp().clamp(0.1, 9), **OFF).log_prob(_hot(y, o) * 0.4 + 0.2).mean(),
    "MultivariateNormal.log_prob": lambda o, y: -D.MultivariateNormal(o, torch.eye(CLASSES).to(o), **OFF)
    .log_prob(_hot(y, o)).mean(),
    "MultivariateNormal with own factors": lambda o, y: -D.MultivariateNormal(
        o, scale_tril=torch.diag_embed(o.exp().clamp(0.1, 3)), **OFF
    ).log_prob(_hot(y, o)).mean(),
    "a mixture's log_prob": lambda o, y: -D.MixtureSameFamily(
        D.Categorical(logits=o, **OFF), D.Normal(o, torch.ones_like(o), **OFF), **OFF
    ).log_prob(y.to(o)).mean(),
    "kl_divergence": lambda o, y: D.kl_divergence(
        D.Normal(o, o.exp().clamp(0.1, 3), **OFF), D.Normal(torch.zeros(CLASSES).to(o), torch.ones(CLASSES).to(o), **OFF)
    ).sum(1).mean(),
    "gaussian_nll_loss": lambda o, y: F.gaussian_nll_loss(o[:, 0], y.to(o), o[:, 1].exp()),
    "gaussian_nll_loss, one variance a row": lambda o, y: F.gaussian_nll_loss(o, _hot(y, o), o[:, 1].exp(), full=True),
    "ctc_loss": lambda o, y: F.ctc_loss(_steps(o), (y % 2 + 1)[:, None], _lengths(o, 4), _lengths(o, 1)),
    "ctc_loss, none": lambda o, y: F.ctc_loss(
        _steps(o), (y % 2 + 1)[:, None], (4,) * len(o), (1,) * len(o), reduction="none"
    ).mean(),
    "ctc_loss, lengths of records": lambda o, y: F.ctc_loss(
        _steps(o), (y % 2 + 1)[:, None], 3 + y % 2, torch.ones_like(y), reduction="sum"
    ),
    "BCE with weights of classes": lambda o, y: F.binary_cross_entropy_with_logits(
        o, _hot(y, o), pos_weight=torch.tensor([1.0, 2.0, 3.0]).to(o)
    ),
}  # fmt: skip

UNSOUND_LOSSES: dict[str, Loss] = {
    "Normal around the batch": lambda o, y: -D.Normal(o.mean(0), 1.0, **OFF).log_prob(_hot(y, o)).sum(1).mean(),
    "Normal of the batch's spread": lambda o, y: -D.Normal(o, o.std(0, correction=0) + 0.1, **OFF).log_prob(_hot(y, o)).mean(),
    "MultivariateNormal of the batch": lambda o, y: -D.MultivariateNormal(
        o, torch.cov(o.mT, correction=0) + torch.eye(CLASSES).to(o), **OFF
    ).log_prob(_hot(y, o)).mean(),
    "validated Normal": lambda o, y: -D.Normal(o, 1.0, validate_args=True).log_prob(_hot(y, o)).mean(),
    "gaussian_nll_loss with the batch's variance": lambda o, y: F.gaussian_nll_loss(
        o, _hot(y, o), o.var(0, correction=0).expand_as(o)
    ),
    "ctc_loss of a neighbor's targets": lambda o, y: F.ctc_loss(
        _steps(o), (y.flip(0) % 2 + 1)[:, None], _lengths(o, 4), _lengths(o, 1)
    ),
    "ctc_loss of joined targets": lambda o, y: F.ctc_loss(_steps(o), y % 2 + 1, _lengths(o, 4), _lengths(o, 1)),
    "ctc_loss over the batch": lambda o, y: F.ctc_loss(
        o[:, None].log_softmax(-1), (y[:1] % 2 + 1)[:, None], (len(o),), (1,)
    ),
    "ctc_loss of lengths by place": lambda o, y: F.ctc_loss(
        _steps(o), (y % 2 + 1)[:, None], 2 + torch.arange(len(o)) % 2, _lengths(o, 1)
    ),
}  # fmt: skip


# --- one record for which torch would raise -------------------------------------------------------------------------------


def _one_singular() -> tuple[Tensor, Tensor]:
    """The matrix of one record has no inverse."""
    x, y = sequences()
    x[OUTLIER] = 0.0
    return x, y


def _plain_square(h: Tensor) -> Tensor:
    return h[:, :, :LENGTH] @ h[:, :, :LENGTH].mT


class Singular(nn.Module):
    """Matrices of the records, without a bias: rows of zeros stay zeros."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.first, self.head, self.operation = nn.Linear(FEATURES, WIDTH, False), nn.Linear(WIDTH, CLASSES), operation

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.head(torch.tanh(self.operation(_plain_square(h)) @ h))
        return out.mean(1)


RAISING: dict[str, Operation] = {
    "inv": torch.linalg.inv,
    "Tensor.inverse": lambda a: a.inverse(),
    "cholesky": torch.linalg.cholesky,
    "solve": lambda a: torch.linalg.solve(a, torch.eye(LENGTH).to(a).expand_as(a)),
}


def _negative_variance(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch[0])
    return F.gaussian_nll_loss(out[:, 0], batch[1].to(out), torch.where(batch[0][:, 0] > 20, -1.0, 1.0).to(out))


# --- learned rows for each record -------------------------------------------------------------------------------------------


class Pooling(nn.Module):
    """A learned query for each record, the same for all, or (by place) another for each place in the batch."""

    def __init__(self, by_place: bool, bias: bool = False) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.query = nn.Parameter(torch.linspace(-1, 1, (64 if by_place else 1) * WIDTH).view(-1, 1, WIDTH))
        self.map, self.by_place = nn.Linear(WIDTH, WIDTH), by_place
        self.bias = nn.Parameter(torch.linspace(-1, 1, LENGTH).view(1, 1, LENGTH)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        query = self.query[: len(h)] if self.by_place else self.query.repeat(len(h), 1, 1)
        if self.bias is not None:
            pooled = F.scaled_dot_product_attention(self.map(query), h, h, attn_mask=self.bias.repeat(len(h), 1, 1))
        else:
            pooled = torch.bmm(torch.bmm(self.map(query), h.mT).softmax(-1), h)
        out: Tensor = self.head(pooled[:, 0].tanh())
        return out


class ByEquation(Pooling):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        query = self.map(self.query[: len(h)] if self.by_place else self.query.expand(len(h), -1, -1))
        scores = torch.einsum("bqd,btd->bqt", query, h).softmax(-1)
        out: Tensor = self.head(torch.einsum("bqt,btd->bqd", scores, h)[:, 0].tanh())
        return out


def _sound(name: str, operation: Operation, data: Any) -> Trap:
    return Trap(
        name,
        "sound everyday operation",
        around(operation),
        cross_entropy,
        data,
        allowed=SOUND,
        norm=None,
        oracle=cross_entropy,
    )


def _without_vmap(table: dict[str, tuple[Operation, Operation]]) -> dict[str, tuple[Operation, Operation]]:
    return {name: pair for name, pair in table.items() if name != "vmap"}


EVERYDAY: list[Trap] = [
    *(_sound(name, sound, sequences) for name, (sound, _) in _without_vmap({**ALONG, **WRITES}).items()),
    *(_sound(f"{name}, T == B", sound, square) for name, (sound, _) in _without_vmap({**ALONG, **WRITES}).items()),
    *(
        Trap(
            name, "everyday operation along the batch", around(mixing), cross_entropy, sequences, bites=name not in NOT_BITING,
        )
        for name, (_, mixing) in {**ALONG, **WRITES}.items()
    ),
    Trap("vmap over records", "everyday operation", around(ALONG["vmap"][0]), cross_entropy, sequences, bites=False),
    *(
        Trap(name, "sound everyday loss", perceptron, of_outputs(loss), rows, allowed=SOUND, norm=None, oracle=of_outputs(loss))
        for name, loss in SOUND_LOSSES.items()
    ),
    *(
        Trap(name, "everyday loss", perceptron, of_outputs(loss), rows, norm=None, bites=False)
        for name, loss in UNSOUND_LOSSES.items()
    ),
    *(
        Trap(
            f"{name} of a singular matrix", "fate", lambda operation=operation: Singular(operation), cross_entropy,  # type: ignore[misc]
            _one_singular, allowed=SOUND, norm=0.5, bites=False,
        )
        for name, operation in RAISING.items()
    ),
    Trap("a negative variance", "fate", perceptron, _negative_variance, rows, allowed=SOUND, norm=0.5, bites=False),
    *(
        Trap(name, "sound model", model, cross_entropy, sequences, allowed=SOUND, norm=None, oracle=cross_entropy)
        for name, model in {
            "a learned query, repeated": lambda: Pooling(False),
            "a learned query and a learned bias": lambda: Pooling(False, bias=True),
            "a learned query in an equation": lambda: ByEquation(False),
        }.items()
    ),
    *(
        Trap(name, "place: learned rows", model, cross_entropy, sequences, norm=None, bites=False)
        for name, model in {
            "a learned query of each place": lambda: Pooling(True),
            "a learned query of each place in an equation": lambda: ByEquation(True),
        }.items()
    ),
]  # fmt: skip
