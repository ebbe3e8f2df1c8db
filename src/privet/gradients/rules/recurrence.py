"""One direction of one recurrent layer, by hand: forward without a graph of its steps, backward from what it kept.

Sequences are time-major, ``(time, rows, features)``. The backward pass ends in the gradients of the gates at all times
at once; from there on each weight is a linear map on sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from privet.gradients.tap import Receive


@dataclass(frozen=True)
class Direction:
    """The weights of one direction of one layer, detached, and who receives their inputs and gradients."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    weight_hr: Tensor | None
    reverse: bool
    receive_input: Receive | None
    receive_hidden: Receive | None
    receive_projection: Receive | None

    def times(self, length: int) -> range:
        return range(length - 1, -1, -1) if self.reverse else range(length)

    def before(self, states: Tensor) -> Tensor:
        """Of the states between all steps, those that the steps begin with."""
        return states[1:] if self.reverse else states[:-1]

    def after(self, states: Tensor) -> Tensor:
        """Of the states between all steps, those that the steps end with."""
        return states[:-1] if self.reverse else states[1:]

    def between_steps(self, initial: Tensor, length: int) -> Tensor:
        """Room for the states between all steps, the initial one filled in."""
        states = initial.new_empty(length + 1, *initial.shape)
        states[length if self.reverse else 0] = initial
        return states

    def final(self, states: Tensor) -> Tensor:
        return states[0 if self.reverse else -1].clone()


@dataclass
class Gradients:
    """What the backward pass of a cell finds."""

    input_gates: Tensor
    hidden_gates: Tensor
    """With respect to what the input and the previous state add to the gates; one tensor where they are the same."""
    state: Tensor
    """With respect to the initial state, except through the hidden gates of the first step."""
    cell: Tensor | None = None
    projection: tuple[Tensor, Tensor] | None = None
    """The inputs and the output gradients of the projection of an LSTM."""


class Cell(Protocol):
    """A kind of recurrent cell: `forward` overwrites the gates of the input and returns what `backward` needs."""

    gates_add_up: bool
    """Whether what the previous state adds to the gates is simply added to what the input adds."""

    def forward(self, gates: Tensor, states: Tensor, cell: Tensor | None, way: Direction) -> tuple[Tensor, ...]:
        """Run all steps, filling `states`; the last tensor returned is the states of the cell, if it has any."""

    def backward(
        self, kept: tuple[Tensor, ...], states: Tensor, grads: tuple[Tensor | None, ...], way: Direction
    ) -> Gradients: ...


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _anchor: Tensor, x: Tensor, state: Tensor, cell: Tensor | None, kind: Cell, way: Direction
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        bias = way.bias_ih
        if bias is not None and way.bias_hh is not None and kind.gates_add_up:
            bias = bias + way.bias_hh
        gates = torch.nn.functional.linear(x, way.weight_ih, bias)
        states = way.between_steps(state, len(x))
        kept = kind.forward(gates, states, cell, way)
        ctx.save_for_backward(x, states, *kept)
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.way = kind, way
        return way.after(states), way.final(states), None if cell is None else way.final(kept[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, states, *kept = ctx.saved_tensors
        way: Direction = ctx.way
        found: Gradients = ctx.kind.backward(tuple(kept), states, grads, way)
        if way.receive_projection is not None and found.projection is not None:
            way.receive_projection((found.projection[0],), found.projection[1])
        if way.receive_hidden is not None:
            way.receive_hidden((way.before(states),), found.hidden_gates)
        if way.receive_input is not None:
            way.receive_input((x,), found.input_gates)
        _, of_x, of_state, of_cell, *_ = ctx.needs_input_grad
        grad_state = None
        if of_state:
            first = found.hidden_gates[-1 if way.reverse else 0]
            grad_state = torch.addmm(found.state, first, way.weight_hh)
        return (
            None,
            found.input_gates @ way.weight_ih if of_x else None,
            grad_state,
            found.cell if of_cell else None,
            None,
            None,
        )


def run(
    x: Tensor, state: Tensor, cell: Tensor | None, kind: Cell, way: Direction
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All outputs, the final state and the final state of the cell."""
    anchor = torch.empty((), requires_grad=True)
    result: tuple[Tensor, Tensor, Tensor | None] = _Run.apply(  # type: ignore[no-untyped-call]
        anchor, x.contiguous(), state, cell, kind, way
    )
    return result


def output_gradients(grads: tuple[Tensor | None, ...], outputs: Tensor, way: Direction) -> tuple[Tensor, ...]:
    """The gradient that comes to each step's output from outside."""
    grad_out, grad_final = grads[:2]
    if grad_final is None and grad_out is not None:
        return grad_out.unbind(0)
    zero = torch.zeros_like(outputs[0])
    steps = list((zero.expand_as(outputs) if grad_out is None else grad_out).unbind(0))
    if grad_final is not None:
        last = 0 if way.reverse else -1
        steps[last] = steps[last] + grad_final
    return tuple(steps)
