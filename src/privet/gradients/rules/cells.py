"""The three kinds of recurrent cells, forward and backward over all steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.gradients.rules.recurrence import Direction, Gradients, output_gradients

# The overloads by name: choosing among them at each call would cost more than the call.
_through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
_through_tanh = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True)
class Simple:
    """``h' = f(x W_ih + h W_hh)`` with f the hyperbolic tangent or the positive part."""

    activate: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    """The derivative of f where its value is given."""
    gates_add_up = True

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


TANH = Simple(torch.tanh_, lambda h: 1 - h.square())
RELU = Simple(torch.relu_, lambda h: (h > 0).to(h.dtype))


class Lstm:
    """Gates i, f, g, o; ``c' = f c + i g`` and ``h' = o tanh(c')``, projected where the layer projects."""

    gates_add_up = True

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
        outputs = way.after(states)
        outer = output_gradients(grads, outputs, way)
        grad_gates = torch.empty_like(gates)
        enter, forget, new, leave = (part.unbind(0) for part in gates.chunk(4, -1))
        of_enter, of_forget, of_new, of_leave = (part.unbind(0) for part in grad_gates.chunk(4, -1))
        cell_before, squashed_steps, steps = way.before(cells).unbind(0), squashed.unbind(0), grad_gates.unbind(0)
        cell = torch.zeros_like(cells[0]) if grads[2] is None else grads[2].clone()
        part, state, later = torch.empty_like(cell), torch.empty_like(outputs[0]), None
        projected = torch.empty_like(outputs) if way.weight_hr is not None else None
        for t in reversed(way.times(len(outputs))):
            if later is None:
                state.copy_(outer[t])
            else:
                torch.addmm(outer[t], later, way.weight_hh, out=state)
            full = state
            if projected is not None and way.weight_hr is not None:
                projected[t] = state
                full = state @ way.weight_hr
            _through_sigmoid(torch.mul(full, squashed_steps[t], out=part), leave[t], grad_input=of_leave[t])
            cell.add_(_through_tanh(torch.mul(full, leave[t], out=part), squashed_steps[t], grad_input=part))
            _through_sigmoid(torch.mul(cell, new[t], out=part), enter[t], grad_input=of_enter[t])
            _through_tanh(torch.mul(cell, enter[t], out=part), new[t], grad_input=of_new[t])
            _through_sigmoid(torch.mul(cell, cell_before[t], out=part), forget[t], grad_input=of_forget[t])
            cell.mul_(forget[t])
            later = steps[t]
        projection = None if projected is None else (gates.chunk(4, -1)[3] * squashed, projected)
        return Gradients(grad_gates, grad_gates, torch.zeros_like(state), cell, projection)


class Gru:
    """Gates r, z, n; ``n = tanh(x_n + r h_n)`` and ``h' = n + z (h - n)``."""

    gates_add_up = False

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
        width = states.shape[-1]
        outputs = way.after(states)
        outer = output_gradients(grads, outputs, way)
        grad_input, grad_hidden = torch.empty_like(gates), torch.empty_like(gates)
        reset, keep, new = (part.unbind(0) for part in gates.chunk(3, -1))
        of_reset, of_keep, of_new = (part.unbind(0) for part in grad_input.chunk(3, -1))
        of_hidden_new = grad_hidden[..., 2 * width :].unbind(0)
        before, of_hidden, steps = way.before(states).unbind(0), hidden_new.unbind(0), grad_hidden.unbind(0)
        state, part, later = torch.empty_like(outputs[0]), torch.empty_like(outputs[0]), None
        for t in reversed(way.times(len(outputs))):
            if later is None:
                state.copy_(outer[t])
            else:
                state.add_(outer[t]).addmm_(later, way.weight_hh)
            torch.sub(before[t], new[t], out=part)
            _through_sigmoid(part.mul_(state), keep[t], grad_input=of_keep[t])
            torch.mul(state, keep[t], out=part)  # what goes on to the previous state by itself
            _through_tanh(state.sub_(part), new[t], grad_input=of_new[t])
            state, part = part, state
            torch.mul(of_new[t], of_hidden[t], out=part)
            _through_sigmoid(part, reset[t], grad_input=of_reset[t])
            torch.mul(of_new[t], reset[t], out=of_hidden_new[t])
            later = steps[t]
            later[:, : 2 * width] = grad_input[t, :, : 2 * width]
        return Gradients(grad_input, grad_hidden, state)
