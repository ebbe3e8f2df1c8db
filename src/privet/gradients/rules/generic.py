"""Everything that no other rule covers, through ``torch.func``: one vector-Jacobian product for each record."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privet.gradients.layout import Position, position
from privet.gradients.operation import Operation
from privet.gradients.use import Budget, Use


class SlowPathWarning(UserWarning):
    """An operation without a rule of its own; right, but slower than one with a rule."""


_said: set[str] = set()


def generic(op: Operation) -> Tensor:
    if op.name not in _said:
        _said.add(op.name)
        where = f" in module '{op.module}'" if op.module else ""
        warnings.warn(
            f"`{op.name}`{where} has no rule of its own; its per-example gradients go through torch.func, which is "
            f"right but slower. A rule can be registered with @privet.gradients.rule.",
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

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: Budget) -> None:
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
    """``(records, inner, *rest)``: for each record, its own rows, moved to the front."""
    split: Tensor = tensor.unflatten(at.dim, (records, at.inner))
    return split.movedim((at.dim, at.dim + 1), (0, 1))
