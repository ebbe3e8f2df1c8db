"""Norms of weight gradients from Gram matrices, enlarged by a bound on rounding.

A weight gradient is a sum over positions of outer products ``g_t x_t``. Its squared norm is the sum over all pairs of
positions of ``(x_s . x_t) (g_s . g_t)``, a product of two Gram matrices, so no gradient is formed. If the terms cancel, the
result can be far too small because of rounding. The error is at most a few roundings of ``A^2``, where ``A`` is the sum of
``|x_t| |g_t|``, which the diagonals give.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_DEPTH = 64
"""Dot products are computed for this many numbers at a time and then added up, so that fewer roundings accumulate; this takes
no extra time."""

_TOLERATED, _NEGLIGIBLE = 2e-3, 1e-24
"""If the bound on rounding exceeds the first number times the squared norm, and the second number, the record is measured again
in float64."""

_LARGEST = 3e38
_LEAST = 2.0**-28
"""At least this fraction of the sum of |x_t| |g_t| is added to a norm. If the terms cancel, intermediate values of a record's
float64 sum are far larger than the result, and their rounding affects everything in the sum."""
_UNITS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
_TINY = {torch.float32: 1.2e-38, torch.float64: 2.3e-308}
"""The smallest normal numbers: an underflow changes a product by less than this."""


@dataclass
class GramSums:
    """Sums over the Gram matrices of each record, as float64."""

    products: Tensor
    """Sums of the products over all pairs of positions."""
    lengths: Tensor
    """Sums of the roots of the products on the diagonal: ``|x_t| |g_t|``."""
    of_x: Tensor
    of_grad: Tensor
    """Sums of the diagonals: the squared norms of all inputs and of all output gradients."""

    @classmethod
    def of(cls, blocks: list[Tensor], grad_blocks: list[Tensor]) -> GramSums:
        """From blocks of Gram matrices, each of which covers its own rows and the later columns. Overwrites `blocks`."""
        parts = [_block_sums(block, of_grad) for block, of_grad in zip(blocks, grad_blocks, strict=True)]
        return cls(
            *(torch.stack(values).sum(0) if len(values) > 1 else values[0] for values in zip(*parts, strict=True))
        )


@dataclass(frozen=True)
class Rounding:
    """The number of roundings that a result has accumulated, and their size."""

    positions: int
    width: int
    height: int
    further: int
    """The number of dot products of this width that are added up for one entry of the Gram matrix of x; 0 for one."""
    formed: torch.dtype
    """The dtype in which the products are added up when the gradients are summed; that rounds them, too."""

    def squared_norms(self, sums: GramSums, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Upper bounds of the squared norms from sums in this dtype, and which of them are too loose."""
        lost = sums.of_grad.mul(self._columns).add_(sums.of_x, alpha=self.height).add_(self.positions)
        lost.mul_(_TINY[dtype] * self.positions)
        lengths = sums.lengths * (1 + 1e-3) + lost.sqrt()
        slack = lengths.square().mul_(self._roundings(dtype) * _UNITS[dtype]).add_(lost)
        squared = sums.products.clamp(min=0).add_(slack)
        doubtful = ~(slack <= _TOLERATED * squared + _NEGLIGIBLE)
        squared = squared.sqrt_().add_(self.of_forming(lengths)).square_()
        if self.formed == torch.float32:
            squared[lengths > _LARGEST] = math.inf  # its gradient may be infinite
        return squared, doubtful

    def of_forming(self, lengths: Tensor) -> Tensor:
        """A bound on the error of a formed gradient; `lengths` are sums of |x_t| |g_t|."""
        lost = _TINY[self.formed] * self.positions * math.sqrt(self._columns * self.height)
        return lengths * max((self.positions + 1) * _UNITS[self.formed], _LEAST) + lost

    @property
    def _columns(self) -> int:
        return self.width * max(self.further, 1)

    def _roundings(self, dtype: torch.dtype) -> int:
        """The number of roundings in a product of two entries."""
        each = [_passed(n) if dtype == torch.float32 else n for n in (self.width, self.height)]
        return sum(each) + self.further + 4


def _passed(width: int) -> int:
    """The number of roundings in an entry of a Gram matrix that `product_of` computes."""
    return min(width, _DEPTH) + -(-width // _DEPTH)


def bounded_squared_norms(
    x: Tensor, grad: Tensor, rounding: Rounding, sums: Callable[[Tensor, Tensor], GramSums]
) -> Tensor:
    """Squared norms that are never too small; those that rounding would enlarge by more than 0.2 % are computed in float64."""
    squared, doubtful = rounding.squared_norms(sums(x, grad), x.dtype)
    if x.dtype == torch.float32 and bool(doubtful.any()):
        chosen = doubtful.nonzero().squeeze(1)
        again = sums(x[chosen].double(), grad[chosen].double())
        squared[chosen] = rounding.squared_norms(again, torch.float64)[0]
    return squared


def product_of(rows: Tensor, columns: Tensor) -> Tensor:
    """``rows @ columns.mT`` for each record, a part of the dot products at a time."""
    width = rows.shape[2]
    if width <= _DEPTH or rows.dtype != torch.float32:
        return torch.bmm(rows, columns.mT)
    total = torch.bmm(rows[:, :, :_DEPTH], columns[:, :, :_DEPTH].mT)
    part = torch.empty_like(total)
    for start in range(_DEPTH, width, _DEPTH):
        taken = slice(start, start + _DEPTH)
        total += torch.bmm(rows[:, :, taken], columns[:, :, taken].mT, out=part)
    return total


def _block_sums(block: Tensor, of_grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = block.shape[1]
    traces = [_diagonal(gram[:, :, :rows]).sum(1, dtype=torch.float64) for gram in (block, of_grad)]
    products = block.mul_(of_grad)
    # The part outside the first square also counts for its mirror image.
    square = products[:, :, :rows]
    total = products.sum((1, 2), dtype=torch.float64).mul_(2) - square.sum((1, 2), dtype=torch.float64)
    return total, _diagonal(square).double().clamp(min=0).sqrt_().sum(1), traces[0], traces[1]


def _diagonal(square: Tensor) -> Tensor:
    return square.diagonal(dim1=1, dim2=2)
