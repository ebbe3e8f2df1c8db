"""Bounded sums, the protocol of everything that makes one from gradients, and bounded sums of other values of records.

Clipping makes a `BoundedSum`: a sum over records that one record can change only by a known amount. Noise accepts nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from privet.distributed import Segment
from privet.errors import InputError, PrivetError
from privet.gradients import PerExampleGradients
from privet.gradients.numerics import squared_norms, weigh

State = Any
"""The state of a clipping or of a noise: None, numbers, text, tensors, and mappings, tuples and lists of these.

A checkpoint saves it as it is."""

Deviations = Callable[[], Mapping[str, Tensor | float]]
"""Computes the standard deviation of the noise in each tensor of a release, by name. It is public."""

ROUNDING = 1 + 1e-5
"""Computed norms are multiplied by this before they are compared with a bound: rounding may have made them too small."""


@dataclass(frozen=True, eq=False)
class BoundedSum:
    """A sum of clipped per-example gradients, with a bound on the influence of one record.

    Formal guarantees: adding or removing one record changes ``tensors`` by at most `sensitivity` in Euclidean norm, all
    tensors together, and changes ``tensors[name] / scales[name]`` by at most 1, all tensors together, up to a relative
    error of 1e-5 for rounding; tensors are float64. Sums over disjoint records add up to a sum with the same bounds.
    """

    tensors: Mapping[str, Tensor]
    sensitivity: float
    scales: Mapping[str, Tensor | float]
    """Noise of standard deviation ``multiplier * scales[name]`` protects the sum with that noise multiplier."""
    records: int
    """The number of records in the sum. Do not publish it."""
    bad: int = 0
    """The number of records whose gradient was not finite; they contributed zero."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """The dtype to which a tensor is rounded after noise was added, where it is not the tensor's own."""
    pieces: Mapping[str, Segment] = field(default_factory=dict)
    """Where each tensor lies in its whole tensor, if this process holds pieces of the sum. The bounds are those of the whole."""

    @property
    def coordinates(self) -> int:
        """The number of coordinates of the whole sum."""
        return sum(self.piece(name).size for name in self.tensors)

    def piece(self, name: str) -> Segment:
        """Where a tensor lies in its whole tensor."""
        size = self.tensors[name].numel()
        return self.pieces.get(name) or Segment(0, size, size)

    def divided(self, tensors: Mapping[str, Tensor], pieces: Mapping[str, Segment]) -> BoundedSum:
        """The pieces of the sum over several processes that this process holds."""
        scales = {
            name: pieces[name].of(scale.expand_as(self.tensors[name])) if isinstance(scale, Tensor) else scale
            for name, scale in self.scales.items()
        }
        return replace(self, tensors=tensors, scales=scales, pieces=pieces)

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype to which a tensor is rounded after noise was added."""
        return self.dtypes.get(name, self.tensors[name].dtype)

    def drawn_in(self, name: str) -> torch.dtype:
        """The dtype in which seeded noise for a tensor is drawn: float64 for a float64 parameter, otherwise float32."""
        dtype = self.dtype_of(name)
        return dtype if dtype == torch.float64 else torch.float32

    def __add__(self, other: BoundedSum) -> BoundedSum:
        if self.scales.keys() != other.scales.keys() or not all(
            _same(self.scales[n], other.scales[n]) for n in self.scales
        ):
            raise PrivetError("Sums that were clipped differently cannot be added: their sensitivity would be unknown.")
        tensors = {name: tensor + other.tensors[name] for name, tensor in self.tensors.items()}
        return replace(self, tensors=tensors, records=self.records + other.records, bad=self.bad + other.bad)


@dataclass(frozen=True, eq=False)
class Released:
    """The release of one step, from which the state of clipping and noise may be updated at no cost.

    Attributes:
        noisy: the noisy sum, by name.
        expected_records: the public expected number of records in a batch.
        deviations: computes the standard deviations of the noise in `noisy`.
    """

    noisy: Mapping[str, Tensor]
    expected_records: float
    deviations: Deviations = dict


@runtime_checkable
class Clipping(Protocol):
    """Bounds the contribution of each record to the sum of gradients.

    A clipping is a frozen dataclass of settings. Everything that changes from step to step is in its state, which `init` makes
    before the first step and `update` replaces after every step. Inherit from this class and write `clip` for a clipping
    without state: the other methods have defaults, and the state is None.

    Formal guarantees, which every implementation must keep: `clip` returns a sum that is bounded as `BoundedSum` says, whatever
    the records are. Settings and state depend on the records through earlier releases only, so that the event of a step depends
    on neither.
    """

    def init(self, parameters: Mapping[str, Tensor]) -> State:
        """The state before the first step, for a model with these trainable parameters."""
        return None

    @abstractmethod
    def clip(self, gradients: PerExampleGradients, state: State = None) -> BoundedSum:
        """Clip the gradient of each record of a physical batch, and add them up."""

    def update(self, state: State, released: Released) -> State:
        """The state of the next step. It is computed from the noisy release only."""
        return state

    def metric(self, state: State) -> Mapping[str, Tensor]:
        """Factors by which the released gradients are multiplied elementwise, by name; tensors without a factor stay.

        This is post-processing: it lets a clipping in a norm of its own take the step in that norm, too.
        """
        return {}


def clipping_factors(norms: Tensor, bound: float) -> Tensor:
    """``min(1, bound / norm)`` for each record; 1 where the norm is zero."""
    return (bound / ROUNDING / norms).clamp(max=1.0)


def check_bound(bound: float, what: str = "The clipping norm") -> None:
    """Raise unless `bound` is a positive, finite number."""
    if not (bound > 0 and bound < float("inf")):
        raise InputError(f"{what} must be a positive number, not {bound}.")


def _same(one: Tensor | float, other: Tensor | float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


_SMALLEST = 1e-30
"""Records shorter than this count as zero."""


def clipped_sum(rows: Tensor, bound: float, shares: Tensor | None = None) -> BoundedSum:
    """The sum of the rows, each scaled down to a Euclidean norm of at most `bound`, as float64.

    Here and below `shares` gives the weight of each row, so that the rows of one user have a total weight of 1; without it
    each row has weight 1.

    Formal guarantees: one record changes the sum by at most `bound`, whatever it holds; a row that is not finite
    contributes zero. With shares this holds for one user: a sum of rows is not longer than the sum of their lengths.
    """
    flat, factors, bad = _finite(rows, bound)
    factors = factors if shares is None else factors * shares
    total = weigh(flat, factors).reshape(rows.shape[1:])
    return BoundedSum({"sum": total}, bound, {"sum": bound}, len(rows), bad)


def clipped_rows(rows: Tensor, places: Tensor, count: int, bound: float) -> BoundedSum:
    """A matrix of `count` rows: each record's row, scaled down to a norm of at most `bound`, in its place; zero elsewhere.

    Formal guarantees: with the places of the others fixed, one record changes the matrix by at most `bound`, whatever it
    holds; a record that is not finite leaves its place empty.
    """
    flat, factors, bad = _finite(rows, bound)
    placed = torch.zeros(count, flat.shape[1], dtype=torch.float64, device=flat.device).index_add_(
        0, places, flat * factors[:, None]
    )
    return BoundedSum({"rows": placed}, bound, {"rows": bound}, len(rows), bad, {"rows": rows.dtype})


def _finite(rows: Tensor, bound: float) -> tuple[Tensor, Tensor, int]:
    """Flat rows (zero for rows that are not finite), their clipping factors, and the number of rows that are not finite."""
    check_bound(bound)
    flat = rows.flatten(1)
    norms = squared_norms(flat).sqrt_()
    bad = ~norms.isfinite()
    if bad.any():
        flat = torch.where(bad[:, None], 0.0, flat)
    factors = clipping_factors(torch.where(bad, 0.0, norms), bound)
    return flat, factors, int(bad.sum())


def normalized_second_moment(records: Tensor, shares: Tensor | None = None) -> BoundedSum:
    """The upper triangle of the sum of X_i^T X_i, each record X_i scaled to Frobenius norm 1, as float64.

    `records` is ``(N, d)``, or ``(N, k, d)`` where a record has k rows. Names "diagonal" and "above" hold the triangle.

    Formal guarantees: adding or removing a record changes the triangle by at most 1, since |X^T X|_F <= |X|_F^2; a record
    that is zero or not finite contributes zero.
    """
    rows = records[:, None, :] if records.ndim == 2 else records
    norms = squared_norms(rows).sqrt_()
    bad = ~norms.isfinite()
    usable = ~bad & (norms > _SMALLEST)
    if not usable.all():
        rows = torch.where(usable[:, None, None], rows, 0.0)
    # As in clipping, norms are enlarged a little, so that rounding never gives a record a weight above 1.
    factors = torch.where(usable, 1 / (norms * ROUNDING), 0.0)
    flat = (rows * factors[:, None, None]).flatten(0, 1)
    moment = flat.mT @ (flat if shares is None else flat * shares.repeat_interleave(rows.shape[1])[:, None])
    above = torch.triu_indices(len(moment), len(moment), offset=1)
    tensors = {"diagonal": moment.diagonal().clone(), "above": moment[above[0], above[1]]}
    return BoundedSum(tensors, 1.0, dict.fromkeys(tensors, 1.0), len(records), int(bad.sum()))


def grouped_count(groups: Tensor, count: int, shares: Tensor | None = None) -> BoundedSum:
    """The number of records in each group, as float64.

    Formal guarantees: each record is in one group, so it changes one count by 1. With shares, a user changes all counts
    together by at most 1.
    """
    return BoundedSum({"sum": _one_hot(groups, count, shares).sum(0)}, 1.0, {"sum": 1.0}, len(groups))


def grouped_sum(rows: Tensor, groups: Tensor, count: int, bound: float, shares: Tensor | None = None) -> BoundedSum:
    """``(count, d)``: for each group the sum of its rows, each clipped to a Euclidean norm of at most `bound`.

    Formal guarantees: those of `clipped_sum`; each record is in one group, so all sums together change by at most `bound`.
    """
    flat, bad = _clipped(rows.flatten(1), bound)
    total = _one_hot(groups, count, shares).mT @ flat
    return BoundedSum({"sum": total}, bound, {"sum": bound}, len(rows), bad)


def grouped_second_moment(
    rows: Tensor, groups: Tensor, count: int, bound: float, shares: Tensor | None = None
) -> BoundedSum:
    """For each group the upper triangle of the sum of x^T x over its rows, each clipped to a norm of at most `bound`.

    Formal guarantees: a record changes the triangles of its group, and so all of them, by at most ``bound**2``.
    """
    flat, bad = _clipped(rows.flatten(1), bound)
    weighed = flat if shares is None else flat * shares[:, None]
    moments = torch.stack([flat[groups == group].mT @ weighed[groups == group] for group in range(count)])
    above = torch.triu_indices(flat.shape[1], flat.shape[1], offset=1)
    tensors = {"diagonal": moments.diagonal(dim1=1, dim2=2).clone(), "above": moments[:, above[0], above[1]]}
    return BoundedSum(tensors, bound**2, dict.fromkeys(tensors, bound**2), len(rows), bad)


def symmetric(triangle: dict[str, Tensor]) -> Tensor:
    """The symmetric matrix, or one for each group, with this diagonal and upper triangle."""
    matrix = torch.diag_embed(triangle["diagonal"])
    above = torch.triu_indices(matrix.shape[-1], matrix.shape[-1], offset=1)
    matrix[..., above[0], above[1]] = triangle["above"]
    return matrix + matrix.triu(1).mT


def _clipped(flat: Tensor, bound: float) -> tuple[Tensor, int]:
    """The rows clipped to a norm of at most `bound`, as float64, and the number of rows that are not finite and became zero."""
    flat, factors, bad = _finite(flat, bound)
    return flat * factors[:, None], bad


def _one_hot(groups: Tensor, count: int, shares: Tensor | None = None) -> Tensor:
    hot = torch.nn.functional.one_hot(groups, count).to(torch.float64)
    return hot if shares is None else hot * shares[:, None]
