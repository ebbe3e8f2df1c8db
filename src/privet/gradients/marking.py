"""Marks the results of operations on records: a mark follows from the marks of the arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from privet.gradients.following import (
    Moved,
    aligned,
    dim_beside_records,
    follow,
    is_entrywise,
    is_known,
    is_rearranging,
    joined_shape,
    takes_entries,
)
from privet.gradients.knowledge import Knowledge
from privet.gradients.marks import (
    FREE,
    MEAN,
    RANDOM,
    RANDOM_ROWS,
    SUM,
    UNKNOWN,
    Mark,
    Position,
    mark_of,
    position,
    random_mark,
    set_mark,
    stride_at,
)
from privet.gradients.vocabulary import DIVIDING, DRAWING, DRAWING_FROM, MULTIPLYING, tensors_in


class Marking(Knowledge):
    """Marks the results of operations on records, and the tensors that they write into."""

    def _follow(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: list[tuple[Tensor, Mark | None]],
        out: Any,
        in_place: bool,
    ) -> None:
        """Mark what an operation on records has returned, or written into."""
        current = self.current
        assert current is not None
        why, strides, source, first = "", [], None, 0
        for tensor, mark in known:
            stride = None if mark is None else mark.stride
            strides.append((tensor, stride))
            if mark is not None and stride is not None:
                why = why or mark.why
                if source is None or (first < 0 and stride >= 0):
                    source, first = tensor, stride
        assert source is not None
        if name == "data":
            current.aliased.add(source.untyped_storage()._cdata)
        for index, tensor in enumerate(tensors_in(out)):
            noted = mark_of(tensor)
            if not in_place and noted is not None and noted.stride is not None and self._is_current(noted):
                if noted.stride >= 0 and not noted.why and first >= 0 and not current.trusting and not current.alone:
                    moved = Moved(args, kwargs, source, first, strides, tensor, current.records, index)
                    if doubt := self._place_of_constants(name, moved, noted.stride):
                        set_mark(tensor, Mark(current.token, noted.stride if current.assume else UNKNOWN, doubt))
                continue  # a rule has stated it
            if current.alone:
                set_mark(tensor, Mark(current.token, UNKNOWN if why else 0, why))
                if in_place:
                    self._note_writing(tensor, 0, why)
                continue
            if (
                not in_place
                and not why
                and _is_empty(name, args, kwargs, known, tensor, source, first, current.records)
            ):
                set_mark(tensor, FREE)
                continue
            moved = Moved(args, kwargs, source, first, strides, tensor, current.records, index)
            if in_place:
                self._note_node(tensor)
            stride = self._place_of_writing(name, moved) if in_place else follow(name, moved)
            doubt = why
            # Only a loss needs a gradient: an accuracy may be divided by the size of the batch.
            if stride == SUM and first == SUM and tensor.requires_grad and self._divides_by_size(name, args):
                stride = MEAN
            if stride == UNKNOWN:
                doubt = doubt or f"`{name}` is not known to keep records apart{self._where()}"
                shaped = not in_place and _has_shape_of_records(name, args, kwargs, known)
                if shaped and not current.escaped and not current.trusting:
                    current.escaped = (
                        f"the shape of the result of `{name}` depends on the records{self._where()}, and the loss is computed "
                        f"after it"
                    )
            if stride != UNKNOWN and first >= 0 and not current.trusting and not doubt:
                doubt = self._place_of_constants(name, moved, stride)
            doubt = doubt or self.doubt_of_mean(tensor, stride)
            if self.repeating and doubt and tensor.requires_grad and not current.assume:
                raise self.refusal(doubt)
            if (
                current.escaped
                and tensor.requires_grad
                and not self.repeating
                and not _is_unchanged(name, args, kwargs)
            ):
                doubt = doubt or current.escaped
            if doubt and current.assume and stride == UNKNOWN:
                stride = _guessed(moved)
            elif doubt and not current.assume:
                stride = UNKNOWN
            set_mark(tensor, Mark(current.token, stride, doubt))
            if in_place:
                self._note_writing(tensor, stride, doubt)
            elif not doubt and tensor._base is None:
                self._note_node(tensor)  # circular padding writes into parts of its own result

    def _divides_by_size(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether a sum over the records is divided by their number, according to a self-check: then it is a mean."""
        current = self.current
        assert current is not None
        number = next((a for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)), None)
        if number is None or name not in DIVIDING | MULTIPLYING:
            return False
        divisor = number if name in DIVIDING else 1 / number if number else 0.0
        current.divisors.append(divisor)
        rows = current.records * current.each
        return any(math.isclose(divisor, each * rows, rel_tol=1e-9) for each in self.size_divisors)

    def _place_of_constants(self, name: str, moved: Moved, stride: int) -> str:
        """Why a constant is not harmless: with a different row for each place in the batch it makes a record's result depend on
        its place, which other records decide. It must be the same for all records, or random."""
        shape: Sequence[int] = moved.out.shape
        joined = stride < UNKNOWN
        if joined:  # a loss that has combined its records: use the shape before that
            shape = joined_shape(name, moved)
            stride = aligned(moved, shape) if shape else UNKNOWN
        at = position(shape, stride, moved.records)
        if moved.records == 1 or at is None:
            return ""
        for tensor, own in moved.tensors:
            if own is None and tensor.ndim:
                beside = at.dim + tensor.ndim - len(shape)
                dim = beside if joined else dim_beside_records(name, moved, tensor, at)
                if dim is None or not 0 <= dim < tensor.ndim or tensor.shape[dim] != shape[at.dim]:
                    continue
                if why := self.doubt_of_constant(tensor, Position(dim, at.outer, at.inner)):
                    return why
        return ""

    def doubt_of_constant(self, tensor: Tensor, at: Position) -> str:
        """Why a constant with a row for each place in the batch makes results depend on the place; empty if it does not."""
        if self.current_trusts() or self.tracks(tensor) or not tensor.stride(at.dim):
            return ""
        if (noted := self.random_mark(tensor)) is RANDOM or (noted is RANDOM_ROWS and at.dim == 0):
            return ""
        if tensor.shape[at.dim] % (at.outer * at.inner) or _same_for_all(tensor, at):
            return ""
        return (
            f"a constant with a row for each place in the batch is used{self._where()}, so that a record's result depends on "
            f"its place"
        )

    def random_mark(self, tensor: Tensor) -> Mark | None:
        """The random mark of a tensor. Writes through ``.data`` and NumPy are not counted, and may come at any time."""
        mark = random_mark(tensor)
        if mark is None or self.current is None or not self.current.aliased:
            return mark
        return None if tensor.untyped_storage()._cdata in self.current.aliased else mark

    def _mark_of_constant(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: list[tuple[Tensor, Mark | None]],
        out: Tensor,
    ) -> Mark:
        """The mark of a tensor that depends on no record: whether its numbers are random and independent of their places.
        The arguments are given with their random marks before the operation.
        """
        if name in DRAWING:
            return RANDOM
        known = [(tensor, mark) for tensor, mark in known[name == "bernoulli_" :] if tensor.numel() > 1]
        given, noted = [tensor for tensor, _ in known], {mark for _, mark in known}
        if name in DRAWING_FROM:
            return RANDOM if all(mark is RANDOM or _all_equal(t) for t, mark in known) else FREE
        if not given or not noted <= {RANDOM, RANDOM_ROWS}:
            return FREE
        if is_entrywise(name) or (RANDOM_ROWS not in noted and is_rearranging(name)):
            return RANDOM_ROWS if RANDOM_ROWS in noted else RANDOM
        # Anything else must keep rows apart, as it must keep records apart.
        assert self.current is not None
        strides = [(tensor, stride_at(tensor.shape, 0)) for tensor in given]
        if any(not t.ndim or not self.records or t.shape[0] % self.records for t in (*given, out)):
            return FREE
        after = follow(name, Moved(args, kwargs, given[0], strides[0][1], strides, out, self.records))
        at = position(out.shape, after, self.records)
        return RANDOM_ROWS if at is not None and at.dim == 0 else FREE

    def _place_of_writing(self, name: str, moved: Moved) -> int:
        """Where the records are after something was written into ``moved.out``: where they were before, or unknown."""
        before = self.stride(moved.out)
        if name in ("__setitem__", "index_put_"):
            return self._place_of_assignment(moved, before)
        after = follow(name, moved)
        return after if before is None or before == after else UNKNOWN

    def _place_of_assignment(self, moved: Moved, before: int | None) -> int:
        """``x[index] = values``: the index depends on no records, and each record's values go to its own place in `x`."""
        if len(moved.args) < 3 or moved.args[0] is not moved.out:
            return UNKNOWN
        strides = {id(tensor): stride for tensor, stride in moved.tensors}
        index, values = moved.args[1], moved.args[2]
        if any(strides.get(id(t)) is not None for t in tensors_in(index)):
            number = isinstance(values, (bool, int, float, complex))
            return self._place_of_number(moved, before, strides) if number else UNKNOWN
        # Apply the index to x itself: that tells where the records of the selected part are.
        if moved.records == 1:
            return before if before is not None else 0
        own = strides.get(id(values)) if isinstance(values, Tensor) else None
        with torch._C.DisableTorchFunction():
            target = moved.out.detach()[index]
        candidates = (
            [before] if before is not None else [stride_at(moved.out.shape, dim) for dim in range(moved.out.ndim)]
        )
        for stride in candidates:
            sliced = Moved((moved.out, index), {}, moved.out, stride, ((moved.out, stride),), target, moved.records)
            after = follow("__getitem__", sliced) if position(moved.out.shape, stride, moved.records) else UNKNOWN
            if after < 0:
                continue
            if own is None:
                return stride if before is not None else UNKNOWN
            given = Moved((values,), {}, values, own, ((values, own),), target, moved.records)
            if aligned(given, target.shape) == after:
                return stride
        return UNKNOWN

    @staticmethod
    def _place_of_number(moved: Moved, before: int | None, strides: dict[int, int | None]) -> int:
        """``x[mask] = 0`` and ``x[arange(records), positions] = 1``: the index of a record selects entries of its own."""
        out, index = moved.args[:2]
        if isinstance(index, Tensor) and index.dtype == torch.bool:
            with torch._C.DisableTorchFunction():
                mask = index.detach().reshape(*index.shape, *(1,) * (out.ndim - index.ndim))
            given = [(mask, strides.get(id(index))), *([(out, before)] if before is not None else [])]
            return aligned(replace(moved, tensors=given), out.shape)
        front = stride_at(out.shape, 0)
        if before not in (None, front):
            return UNKNOWN
        with torch._C.DisableTorchFunction():
            target = out.detach()[index]
        given = [(out, front), *((t, strides.get(id(t))) for t in tensors_in(index))]
        picked = Moved((out, index), {}, out, front, given, target, moved.records)
        return front if follow("__getitem__", picked) >= 0 else UNKNOWN

    def _note_node(self, tensor: Tensor) -> None:
        """Note that an operation that is followed has made the node behind a tensor, if it stands for a write into a part."""
        made = tensor.grad_fn if tensor._base is None else tensor._base.grad_fn
        if type(made).__name__ == "CopySlices":
            assert self.current is not None
            self.current.copied.append(made)

    def _note_writing(self, tensor: Tensor, stride: int, doubt: str) -> None:
        """Note that everything that shares memory with a tensor now holds records."""
        assert self.current is not None
        if not self.current.trusting:
            storage = tensor.untyped_storage()
            self._written[storage._cdata] = StorageWeakRef(storage)
            if doubt:
                self.current.tainted[tensor.untyped_storage()._cdata] = doubt
                if tensor.untyped_storage()._cdata in self.current.aliased:
                    self.current.overwritten = doubt
        base = tensor._base
        if base is not None:
            mark = mark_of(base)
            if mark is None or not self._is_current(mark) or stride < 0 or mark.stride is None:
                doubt = doubt or ("" if mark is None or not self._is_current(mark) else mark.why)
                if self.current.alone and not doubt:  # all of it belongs to the one record
                    set_mark(base, Mark(self.current.token, 0))
                else:
                    set_mark(base, self.current.unknown(doubt or "records were written into a part of a tensor"))

    def _note_hidden_writing(self, name: str, tensor: Tensor) -> None:
        """Handle an operation that has changed an argument although neither its name nor ``out`` says so."""
        assert self.current is not None
        if self.current.trusting:
            return
        self._refuse_guarded(tensor)
        why = f"`{name}` changes a tensor in place in a way that is not followed{self._where()}"
        set_mark(tensor, self.current.unknown(why))
        self._note_writing(tensor, UNKNOWN, why)

    def _save(self, written: Tensor) -> None:
        """In a rehearsal, save a constant before it is written into."""
        if self.still and id(written) not in self.saved and self._is_constant(written):
            with torch._C.DisableTorchFunction():
                self.saved[id(written)] = (written, written.detach().clone())


def _has_shape_of_records(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], known: list[tuple[Tensor, Mark | None]]
) -> bool:
    """Whether values of the records decide the shape of a result. For an operation that is not known, they may."""
    if not is_known(name):
        return True
    if _has_size_of_records(name, args, kwargs, known):
        return True
    masks = {id(t) for t, mark in known if mark is not None and t.dtype in (torch.bool, torch.uint8)}
    indexed = name in ("__getitem__", "getitem") and any(id(t) in masks for t in tensors_in(args[1:]))
    return indexed or name in ("where", "repeat_interleave", "one_hot")


def _has_size_of_records(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], known: list[tuple[Tensor, Mark | None]]
) -> bool:
    """Whether an integer of the records is used as a length: ``x[:, :n]``, ``x.narrow(1, 0, n)``."""
    given: Any = (args[1:], kwargs)
    if name in ("__getitem__", "getitem"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        given = [i for i in index if isinstance(i, slice)]
    elif takes_entries(name):
        return False
    marked = {id(tensor) for tensor, mark in known if mark is not None}
    return any(id(t) in marked and t.numel() == 1 and not t.is_floating_point() for t in tensors_in(given))


def _is_empty(
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: list[tuple[Tensor, Mark | None]],
    out: Tensor,
    source: Tensor,
    stride: int,
    records: int,
) -> bool:
    """Whether a result has a place for each record but no entries: then it holds no value of theirs."""
    at = position(source.shape, stride, records) if not out.numel() else None
    if at is None or out.ndim != source.ndim or out.shape[at.dim] != source.shape[at.dim]:
        return False
    return not _has_shape_of_records(name, args, kwargs, known)


def _is_unchanged(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a result is its argument, divided or multiplied by 1: Lightning and accelerate do this to each loss."""
    number = args[1] if len(args) == 2 and not kwargs and name in DIVIDING | MULTIPLYING else None
    return isinstance(number, (int, float)) and not isinstance(number, bool) and number == 1


def _all_equal(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        flat = tensor.detach().reshape(-1)
        return bool((flat == flat[:1]).all())


def _same_for_all(tensor: Tensor, at: Position) -> bool:
    """Whether a constant has the same values for every record."""
    with torch._C.DisableTorchFunction():
        records = tensor.shape[at.dim] // (at.outer * at.inner)
        rows = tensor.detach().unflatten(at.dim, (at.outer, records, at.inner)).movedim(at.dim + 1, 0)
        return bool((rows == rows[:1]).all())


def _guessed(moved: Moved) -> int:
    """Where the records would be if the operation kept them apart; used in a run that assumes so."""
    known = [(t, s) for t, s in moved.tensors if s is not None and s >= 0]
    if not known:
        return UNKNOWN
    source, stride = known[0]
    rest = Moved(moved.args, moved.kwargs, source, stride, known, moved.out, moved.records, moved.index)
    found = aligned(rest, moved.out.shape)
    if found >= 0 and position(moved.out.shape, found, moved.records):
        return found
    at = rest.at
    if at is not None and at.dim < moved.out.ndim and moved.out.shape[at.dim] == source.shape[at.dim]:
        return stride_at(moved.out.shape, at.dim, at.inner)
    return UNKNOWN
