"""Parameters outside of known layers: each record gets its own copy of them, or its gradient by ``torch.func``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privet.gradients.marks import Position, canonical, position, stride_at
from privet.gradients.operation import Operation, operation
from privet.gradients.use import MemoryBudget, Use

_BROADCASTING = (
    "add sub mul div true_divide subtract multiply divide rsub pow rpow maximum minimum where lerp addcmul addcdiv "
    "atan2 fmod remainder hypot logaddexp masked_fill __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ "
    "__rtruediv__ __pow__ __rpow__ add_ sub_ mul_ div_ __iadd__ __isub__ __imul__ __itruediv__"
).split()
_JOINING = ("cat", "concat", "concatenate")


@operation(*_BROADCASTING, *_JOINING)
def elementwise(op: Operation) -> Any:
    joining = op.name in _JOINING
    tensors = list(op.args[0]) if joining else [t for t in (*op.args, *op.kwargs.values()) if isinstance(t, Tensor)]
    ndim = max(t.ndim for t in tensors)
    batched = max((t for t in tensors if op.recorder.stride(t) is not None), key=lambda t: t.ndim)
    at = position(batched.shape, op.stride(batched), op.records)
    if at is None or (joining and at.dim == op.argument(1, "dim", 0) % ndim):
        raise op.recorder.refusal(f"`{op.name}` joins a parameter to the records themselves")
    # Counted from the right, as in broadcasting.
    place = Position(at.dim - batched.ndim, at.outer, at.inner)
    replaced = {id(t): own_copy(op, t, place) for t in tensors if op.tracks(t)}

    def swap(value: Any) -> Any:
        if isinstance(value, Tensor):
            return replaced.get(id(value), value)
        if isinstance(value, (tuple, list)):
            return type(value)(swap(item) for item in value)
        return value

    return op.func(*swap(op.args), **{key: swap(value) for key, value in op.kwargs.items()})


def own_copy(op: Operation, tensor: Tensor, place: Position) -> Tensor:
    """A copy of a tracked tensor for each record. `place` says where the records are; its dimension counts from the right."""
    size = place.outer * op.records * place.inner
    if tensor.ndim >= -place.dim and tensor.shape[place.dim] == size and size > 1:
        source = op.recorder.expanded_from(tensor)
        if source is None or (source.ndim >= -place.dim and source.shape[place.dim] != 1):
            if not op.recorder.current_trusts():
                _require_equal_rows(op, tensor, place)
            rows = Rows(op.module, op.records, {"parameter": tensor})
            rows.stride = stride_at(tensor.shape, tensor.ndim + place.dim, place.inner)
            return op.record(tensor.detach(), rows)
        shape = tensor.shape
        tensor = source
    else:
        shape = torch.Size([1] * (max(-place.dim, tensor.ndim) - tensor.ndim) + list(tensor.shape))
    grown = list(shape)
    if grown[place.dim] not in (1, size):
        raise op.recorder.refusal(f"a parameter of shape {tuple(tensor.shape)} does not fit the records in `{op.name}`")
    grown[place.dim] = size
    use = Parameter(op.module, op.records, {"parameter": tensor})
    use.place = Position(len(grown) + place.dim, place.outer, place.inner)
    return op.copies(tensor, tuple(grown), use)


def _require_equal_rows(op: Operation, tensor: Tensor, place: Position) -> None:
    """Raise unless all rows of a tensor are the same function of the parameters.

    Otherwise a record's gradient would depend on its place in the batch, which other records decide.
    """
    if tensor.is_leaf or tensor.grad_fn is None:
        raise op.recorder.refusal(
            f"a parameter of shape {tuple(tensor.shape)} has a row for each place in the batch, so that a record's gradient "
            f"depends on its place"
        )
    parameters = list(op.recorder.parameters.values())
    with torch.enable_grad(), torch._C.DisableTorchFunction():
        split = tensor.unflatten(place.dim, (place.outer, op.records, place.inner)).movedim(place.dim - 1, 0)
        rows = split.detach()
        if not torch.allclose(rows, rows[:1].expand_as(rows), rtol=1e-4, atol=1e-6, equal_nan=True):
            raise op.recorder.refusal(
                "a tensor of parameters holds different numbers for each place in the batch, so that a record's result depends "
                "on its place"
            )
        device = rows[0].device
        direction = torch.sin(torch.arange(1, rows[0].numel() + 1, dtype=torch.float64, device=device)).view_as(rows[0])
        # With weights that sum to zero, values that are the same in all rows vanish, and others do not.
        weights = torch.cos(torch.arange(op.records, dtype=torch.float64, device=device) ** 2)
        weights -= weights.mean()
        every = weights.view(-1, *[1] * direction.ndim) * direction
        one, differences = (
            torch.autograd.grad(of, parameters, along.to(of), retain_graph=True, allow_unused=True)
            for of, along in ((split[0], direction), (split, every))
        )
    for own, difference in zip(one, differences, strict=True):
        size = 0.0 if own is None else float(own.abs().max())
        if difference is not None and float(difference.abs().max()) > 1e-4 * size + 1e-7:
            raise op.recorder.refusal(
                "it uses different parameters for each place in the batch, so that a record's gradient depends on its place"
            )


class Parameter(Use):
    """A parameter that every record uses as a whole: the gradient of a record's copy is its gradient."""

    place: Position

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        tensor, at = self.slots["parameter"], self.place
        split = grad.unflatten(at.dim, (at.outer, self.records, at.inner)).movedim(at.dim + 1, 0)
        # Keep the record's dimension with size 1, so that broadcasting is undone dimension by dimension.
        own = split.sum((at.dim + 1, at.dim + 2), keepdim=False).unsqueeze(at.dim + 1)
        budget.take(self.instance_bytes())
        self.hold({"parameter": _summed_to(own, tensor.shape).to(tensor.dtype)})


class Rows(Use):
    """A tensor computed from parameters alone, with rows of its own for each record."""

    stride: int
    grad: Tensor | None = None
    per_record = ("grad",)

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        self.grad = canonical(grad, self.stride, self.records).contiguous()
        self.method = "chunks"

    def form(self, rows: slice) -> dict[str, Tensor]:
        assert self.grad is not None
        indices = torch.arange(self.records, device=self.grad.device)[rows]
        formed = self.grad.new_zeros(len(indices), *self.slots["parameter"].shape)
        for number, index in enumerate(indices):
            own = canonical(formed[number], self.stride, self.records)
            own[index] = self.grad[index]
        return {"parameter": formed}


def _summed_to(rows: Tensor, shape: torch.Size) -> Tensor:
    """Undo broadcasting: sum each row of `rows` to `shape`."""
    while rows.ndim - 1 > len(shape):
        rows = rows.sum(1)
    for dim, size in enumerate(shape):
        if size == 1 and rows.shape[dim + 1] != 1:
            rows = rows.sum(dim + 1, keepdim=True)
    return rows


class SlowPathWarning(UserWarning):
    """Handle an operation that has no rule: correct, but slower than a rule."""


_said: set[str] = set()


def generic(op: Operation) -> Tensor:
    if op.name not in _said:
        _said.add(op.name)
        where = f" in module '{op.module}'" if op.module else ""
        warnings.warn(
            f"`{op.name}`{where} has no rule of its own; its per-example gradients go through torch.func, which is "
            f"correct but slower. A rule can be registered with @privet.gradients.rule.",
            SlowPathWarning,
            stacklevel=2,
        )
    leaves, rebuild = _flatten(op.args, op.kwargs)
    slots = {str(i): t for i, t in enumerate(leaves) if op.tracks(t)}
    batched = {i: t for i, t in enumerate(leaves) if isinstance(t, Tensor) and op.recorder.stride(t) is not None}
    if set(batched) & {int(i) for i in slots}:
        raise op.recorder.refusal(f"`{op.name}` uses one tensor both as data and as a parameter")
    detached = [t.detach() if str(i) in slots else t for i, t in enumerate(leaves)]
    args, kwargs = rebuild(detached)
    out = op.func(*args, **kwargs)
    if not isinstance(out, Tensor):
        raise op.recorder.refusal(f"`{op.name}` returns several tensors")
    places = {i: _plain(op, t, op.stride(t)) for i, t in batched.items()}
    use = Generic(op.module, op.records, slots)
    use.operation = op.name
    use.call = lambda values: _called(op.func, rebuild, values)
    use.leaves, use.places = [None if i in batched else t for i, t in enumerate(detached)], places
    use.out_place = _plain(op, out, op.stride_after(next(iter(batched.values())), out))
    return op.record(out, use, *batched.values())


def _called(func: Callable[..., Any], rebuild: Callable[[list[Any]], Any], values: list[Any]) -> Tensor:
    args, kwargs = rebuild(values)
    result: Tensor = func(*args, **kwargs)
    return result


def _plain(op: Operation, tensor: Tensor, stride: int) -> Position:
    at = position(tensor.shape, stride, op.records)
    if at is None or at.outer != 1:
        raise op.recorder.refusal(f"the records of an input of `{op.name}` are not in one piece")
    return at


def _flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, spec = tree_flatten((args, kwargs))
    return leaves, lambda values: tree_unflatten(values, spec)


class Generic(Use):
    per_record = ("grad",)
    operation: str
    call: Callable[[list[Any]], Tensor]
    leaves: list[Any]
    places: dict[int, Position]
    out_place: Position
    inputs: list[Tensor]
    grad: Tensor | None = None

    @property
    def kind(self) -> str:
        return f"torch.func ({self.operation})"

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        self.inputs = [_front(t.detach(), at, self.records) for t, at in zip(saved, self.places.values(), strict=True)]
        self.grad = _front(grad, self.out_place, self.records)
        self.method = "chunks"
        if budget.take(self.instance_bytes()):
            parts = [self.form(rows) for rows in self.chunks()]
            self.hold({name: torch.cat([part[name] for part in parts]) for name in self.slots})
            self.grad, self.inputs = None, []

    def drop(self, bad: Tensor) -> None:
        super().drop(bad)
        self.inputs = [torch.where(bad.view(-1, *[1] * (t.ndim - 1)), torch.zeros_like(t), t) for t in self.inputs]

    def form(self, rows: slice) -> dict[str, Tensor]:
        assert self.grad is not None
        tracked = {name: tensor.detach() for name, tensor in self.slots.items()}

        def one(grad: Tensor, *inputs: Tensor) -> dict[str, Tensor]:
            def forward(slots: dict[str, Tensor]) -> Tensor:
                values = list(self.leaves)
                for name, tensor in slots.items():
                    values[int(name)] = tensor
                for (index, at), tensor in zip(self.places.items(), inputs, strict=True):
                    values[index] = tensor.movedim(0, at.dim)
                return self.call(values)

            pull = torch.func.vjp(forward, tracked)[1]
            gradients: dict[str, Tensor] = pull(grad.movedim(0, self.out_place.dim))[0]
            return gradients

        formed: dict[str, Tensor] = torch.func.vmap(one)(self.grad[rows], *(t[rows] for t in self.inputs))
        return formed


def _front(tensor: Tensor, at: Position, records: int) -> Tensor:
    """``(records, inner, *rest)``: the rows of each record, moved to the front."""
    split: Tensor = tensor.unflatten(at.dim, (records, at.inner))
    return split.movedim((at.dim, at.dim + 1), (0, 1))
