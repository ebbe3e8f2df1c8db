"""The three kinds of recurrent cells, forward and backward over all steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.gradients.rules.recurrence import Direction, Gradients, output_gradients

_through_sigmoid = torch.ops.aten.sigmoid_backward
_through_tanh = torch.ops.aten.tanh_backward


@dataclass(frozen=True)
class Simple:
    """``h' = f(x W_ih + h W_hh)`` with f the hyperbolic tangent or the positive part."""

    activate: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    """The derivative of f where its value is given."""
    adds_hidden_bias = True

    def forward(self, gates: Tensor, states: Tensor, cell: Tensor | None, way: Direction) -> tuple[Tensor, ...]:
        before, after, inputs = way.before(states).unbind(0), way.after(states).unbind(0), gates.unbind(0)
        weight = way.weight_hh.t()
        for t in way.times(len(gates)):
            self.activate(torch.addmm(inputs[t], before[t], weight, out=after[t]))
        return ()

    def backward(
        self, kept: tuple[Tensor, ...], states: Tensor, grads: tuple[Tensor | None, ...], way: Direction
    ) -> Gradients:
        outputs = way.after(states)
        outer = output_gradients(grads, outputs, way)
        gates = self.slope(outputs)
        steps = gates.unbind(0)
        state, later = torch.empty_like(outputs[0]), None
        for t in reversed(way.times(len(outputs))):
            if later is None:
                state.copy_(outer[t])
            else:
                torch.addmm(outer[t], later, way.weight_hh, out=state)
            later = steps[t].mul_(state)
        return Gradients(gates, gates, torch.zeros_like(state))


TANH = Simple(torch.tanh_, lambda h: _through_tanh(torch.ones_like(h), h))
RELU = Simple(torch.relu_, lambda h: (h > 0).to(h.dtype))


class Lstm:
    """Gates i, f, g, o; ``c' = f c + i g`` and ``h' = o tanh(c')``, projected where the layer projects."""

    adds_hidden_bias = True

    def forward(self, gates: Tensor, states: Tensor, cell: Tensor | None, way: Direction) -> tuple[Tensor, ...]:
        assert cell is not None
        length, width = len(gates), cell.shape[-1]
        cells = way.between_steps(cell, length)
        squashed = torch.empty_like(way.after(cells))
        before, after = way.before(states).unbind(0), way.after(states).unbind(0)
        cell_before, cell_after, squashed_steps = (
            way.before(cells).unbind(0),
            way.after(cells).unbind(0),
            squashed.unbind(0),
        )
        steps, opening = gates.unbind(0), gates[..., : 2 * width].unbind(0)
        enter, forget, new, leave = (part.unbind(0) for part in gates.chunk(4, -1))
        weight = way.weight_hh.t()
        for t in way.times(length):
            torch.addmm(steps[t], before[t], weight, out=steps[t])
            opening[t].sigmoid_()
            new[t].tanh_()
            leave[t].sigmoid_()
            torch.mul(forget[t], cell_before[t], out=cell_after[t]).addcmul_(enter[t], new[t])
            torch.tanh(cell_after[t], out=squashed_steps[t])
            if way.weight_hr is None:
                torch.mul(leave[t], squashed_steps[t], out=after[t])
            else:
                torch.mm(leave[t] * squashed_steps[t], way.weight_hr.t(), out=after[t])
        return gates, squashed, cells

    def backward(
        self, kept: tuple[Tensor, ...], states: Tensor, grads: tuple[Tensor | None, ...], way: Direction
    ) -> Gradients:
        gates, squashed, cells = kept
        enter, forget, new, leave = gates.chunk(4, -1)
        width = forget.shape[-1]
        outputs = way.after(states)
        outer = output_gradients(grads, outputs, way)
        # First what each gate's gradient is per unit of the cell's (i, f, g) or the state's (o); the loop multiplies.
        grad_gates = torch.empty_like(gates)
        of_enter, of_forget, of_new, of_leave = grad_gates.chunk(4, -1)
        _through_sigmoid(new, enter, grad_input=of_enter)
        _through_sigmoid(way.before(cells), forget, grad_input=of_forget)
        _through_tanh(enter, new, grad_input=of_new)
        _through_sigmoid(squashed, leave, grad_input=of_leave)
        to_cell, forgets = _through_tanh(leave, squashed).unbind(0), forget.unbind(0)
        steps, leaves = grad_gates.unbind(0), of_leave.unbind(0)
        by_cell = grad_gates[..., : 3 * width].unflatten(-1, (3, width)).unbind(0)
        cell = torch.zeros_like(cells[0]) if grads[2] is None else grads[2].clone()
        state, later = torch.empty_like(outputs[0]), None
        projected = torch.empty_like(outputs) if way.weight_hr is not None else None
        for t in reversed(way.times(len(outputs))):
            if later is None:
                state.copy_(outer[t])
            else:
                torch.addmm(outer[t], later, way.weight_hh, out=state)
            unprojected = state
            if projected is not None and way.weight_hr is not None:
                projected[t] = state
                unprojected = state @ way.weight_hr
            cell.addcmul_(unprojected, to_cell[t])
            by_cell[t].mul_(cell.unsqueeze(1))
            leaves[t].mul_(unprojected)
            cell.mul_(forgets[t])
            later = steps[t]
        projection = None if projected is None else (leave * squashed, projected)
        return Gradients(grad_gates, grad_gates, torch.zeros_like(state), cell, projection)


class Gru:
    """Gates r, z, n; ``n = tanh(x_n + r h_n)`` and ``h' = n + z (h - n)``."""

    adds_hidden_bias = False

    def forward(self, gates: Tensor, states: Tensor, cell: Tensor | None, way: Direction) -> tuple[Tensor, ...]:
        width = states.shape[-1]
        before, after = way.before(states).unbind(0), way.after(states).unbind(0)
        hidden_new = torch.empty_like(way.after(states))
        reset, keep, new = (part.unbind(0) for part in gates.chunk(3, -1))
        opening, of_hidden = gates[..., : 2 * width].unbind(0), hidden_new.unbind(0)
        weight = way.weight_hh.t()
        for t in way.times(len(gates)):
            hidden = before[t] @ weight if way.bias_hh is None else torch.addmm(way.bias_hh, before[t], weight)
            opening[t].add_(hidden[:, : 2 * width]).sigmoid_()
            of_hidden[t].copy_(hidden[:, 2 * width :])
            new[t].addcmul_(reset[t], of_hidden[t]).tanh_()
            torch.lerp(new[t], before[t], keep[t], out=after[t])
        return gates, hidden_new

    def backward(
        self, kept: tuple[Tensor, ...], states: Tensor, grads: tuple[Tensor | None, ...], way: Direction
    ) -> Gradients:
        gates, hidden_new = kept
        reset, keep, new = gates.chunk(3, -1)
        outputs = way.after(states)
        outer = output_gradients(grads, outputs, way)
        # First what each gate's gradient is per unit of the state's; the loop multiplies.
        grad_hidden = torch.empty_like(gates)
        of_reset, of_keep, of_hidden_new = grad_hidden.chunk(3, -1)
        of_new = _through_tanh(1 - keep, new)
        _through_sigmoid(way.before(states) - new, keep, grad_input=of_keep)
        _through_sigmoid(hidden_new, reset, grad_input=of_reset).mul_(of_new)
        torch.mul(of_new, reset, out=of_hidden_new)
        steps, keeps = grad_hidden.unbind(0), keep.unbind(0)
        by_state = grad_hidden.unflatten(-1, (3, -1)).unbind(0)
        state, later = torch.empty_like(outputs[0]), None
        new_steps = of_new.unbind(0)
        for t in reversed(way.times(len(outputs))):
            if later is None:
                state.copy_(outer[t])
            else:
                state.add_(outer[t]).addmm_(later, way.weight_hh)
            by_state[t].mul_(state.unsqueeze(1))
            new_steps[t].mul_(state)
            state.mul_(keeps[t])
            later = steps[t]
        return Gradients(torch.cat([of_reset, of_keep, of_new], -1), grad_hidden, state)
