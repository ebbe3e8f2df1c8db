"""Recurrent layers: torch's LSTM, GRU and RNN, whole sequences and single steps.

Under autocast they run in the precision of their weights, because torch has no half-precision LSTM on many machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from privet.gradients.marks import Position, position, stride_at
from privet.gradients.numerics import add_weighed, squared_norms
from privet.gradients.operation import Operation, Receive, operation
from privet.gradients.rules.generic import own_copy
from privet.gradients.rules.linear import PASSING_BYTES, Linear, products
from privet.gradients.use import MemoryBudget, Use


@dataclass(frozen=True)
class Direction:
    """The detached weights of one direction of one layer, and the receivers of their inputs and gradients."""

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
        """Of all states, those before each step."""
        return states[1:] if self.reverse else states[:-1]

    def after(self, states: Tensor) -> Tensor:
        """Of all states, those after each step."""
        return states[:-1] if self.reverse else states[1:]

    def between_steps(self, initial: Tensor, length: int) -> Tensor:
        """Memory for the states before and after all steps, with the initial one filled in."""
        states = initial.new_empty(length + 1, *initial.shape)
        states[length if self.reverse else 0] = initial
        return states

    def final(self, states: Tensor) -> Tensor:
        return states[0 if self.reverse else -1].clone()


@dataclass
class Gradients:
    """The results of a cell's backward pass."""

    input_gates: Tensor
    hidden_gates: Tensor
    """With respect to the contributions of the input and of the previous state to the gates; one tensor if they are equal."""
    state: Tensor
    """With respect to the initial state, except through the hidden gates of the first step."""
    cell: Tensor | None = None
    projection: tuple[Tensor, Tensor] | None = None
    """The inputs and the output gradients of the projection of an LSTM."""


class Cell(Protocol):
    """A kind of recurrent cell. `forward` overwrites the gates of the input and returns the tensors that `backward` needs."""

    gates_add_up: bool
    """Whether the contributions of the input and of the previous state to the gates are simply added."""

    def forward(self, gates: Tensor, states: Tensor, cell: Tensor | None, way: Direction) -> tuple[Tensor, ...]:
        """Run all steps and fill `states`. The last tensor returned holds the states of the cell, if it has any."""

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
    """The gradient of each step's output, without what comes from later steps."""
    grad_out, grad_final = grads[:2]
    if grad_final is None and grad_out is not None:
        return grad_out.unbind(0)
    zero = torch.zeros_like(outputs[0])
    steps = list((zero.expand_as(outputs) if grad_out is None else grad_out).unbind(0))
    if grad_final is not None:
        last = 0 if way.reverse else -1
        steps[last] = steps[last] + grad_final
    return tuple(steps)


# The overloads are named here: choosing one at each call would take longer than the call.
_through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
_through_tanh = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True)
class Simple:
    """``h' = f(x W_ih + h W_hh)`` with f = tanh or ReLU."""

    activate: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    """The derivative of f, as a function of f's value."""
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
    """Gates i, f, g, o; ``c' = f c + i g`` and ``h' = o tanh(c')``, with a projection of h' if the layer has one."""

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
            torch.mul(state, keep[t], out=part)  # the part that goes directly to the previous state
            _through_tanh(state.sub_(part), new[t], grad_input=of_new[t])
            state, part = part, state
            torch.mul(of_new[t], of_hidden[t], out=part)
            _through_sigmoid(part, reset[t], grad_input=of_reset[t])
            torch.mul(of_new[t], reset[t], out=of_hidden_new[t])
            later = steps[t]
            later[:, : 2 * width] = grad_input[t, :, : 2 * width]
        return Gradients(grad_input, grad_hidden, state)


_KINDS: dict[str, Cell] = {"lstm": Lstm(), "gru": Gru(), "rnn_tanh": TANH, "rnn_relu": RELU}


@operation(*_KINDS)
def recurrent(op: Operation) -> tuple[Tensor, ...]:
    if len(op.args) != 9 or not isinstance(op.args[3], bool):
        raise op.recorder.refusal(
            f"`{op.name}` is given a packed sequence, in which the records have no dimension of their own. Give it the "
            f"padded tensor, and take the output at each record's last step"
        )
    x, initial, parameters, _, layers, dropout, training, bidirectional, batch_first = op.args
    initial = initial if isinstance(initial, (tuple, list)) else (initial,)
    place = _place(op, x, 0 if batch_first else 1, initial, 1)
    initial = [_initial_state(op, state, place) for state in initial]
    x = x.transpose(0, 1) if batch_first else x
    per_layer = len(parameters) // layers
    finals: list[list[Tensor]] = []
    for layer in range(layers):
        own = parameters[layer * per_layer : (layer + 1) * per_layer]
        outputs = []
        for reverse in (False, True) if bidirectional else (False,):
            weights = own[len(own) // 2 :] if reverse else own[: len(own) // 2] if bidirectional else own
            out, *final = _one_direction(op, x, [state[len(finals)] for state in initial], weights, reverse, place)
            outputs.append(out)
            finals.append(final)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and training and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return tuple(
        _with_records(op, tensor, dim, place)
        for tensor, dim in (
            (x.transpose(0, 1) if batch_first else x, 0 if batch_first else 1),
            *((torch.stack(states), 1) for states in zip(*finals, strict=True)),
        )
    )


@operation(*(f"{name}_cell" for name in _KINDS))
def recurrent_cell(op: Operation) -> Any:
    x, initial, *weights = (*op.args, *op.kwargs.values())
    initial = initial if isinstance(initial, (tuple, list)) else (initial,)
    place = _place(op, x, 0, initial, 0)
    states = [_initial_state(op, state, place) for state in initial]
    _, *finals = _one_direction(op, x.unsqueeze(0), states, [w for w in weights if w is not None], False, place)
    results = tuple(_with_records(op, final, 0, place) for final in finals)
    return results if len(initial) > 1 else results[0]


def _place(op: Operation, x: Tensor, batch_dim: int, states: Sequence[Tensor], state_dim: int) -> Position:
    """The records among the rows that the layer processes independently; as dimension -2, counted from the right."""
    if op.tracks(x):
        raise op.recorder.refusal(f"the input of `{op.name}` is computed from parameters alone")
    found = set()
    for tensor, dim in ((x, batch_dim), *((state, state_dim) for state in states)):
        if op.recorder.stride(tensor) is not None:
            at = position(tensor.shape, op.stride(tensor), op.records)
            if op.records == 1:
                at = Position(dim, 1, tensor.shape[dim])
            if at is None or at.dim != dim:
                raise op.recorder.refusal(
                    f"the records of an input of `{op.name}` are not in its batch dimension {dim}"
                )
            found.add(Position(-2, at.outer, at.inner))
    if len(found) != 1:
        raise op.recorder.refusal(f"the weights of `{op.name}` depend on the records")
    return found.pop()


def _initial_state(op: Operation, state: Tensor, place: Position) -> Tensor:
    return own_copy(op, state, place) if op.tracks(state) else state


def _with_records(op: Operation, tensor: Tensor, dim: int, place: Position) -> Tensor:
    op.recorder.set_stride(tensor, stride_at(tensor.shape, dim, place.inner))
    return tensor


def _one_direction(
    op: Operation, x: Tensor, initial: list[Tensor], weights: Sequence[Tensor], reverse: bool, place: Position
) -> tuple[Tensor, ...]:
    """Outputs (time-major) and final states of one direction of one layer."""
    weight_ih, weight_hh, *others = weights
    bias_ih, bias_hh = others[:2] if len(others) > 1 else (None, None)
    weight_hr = others[-1] if len(others) % 2 else None
    kind, rows = _KINDS[op.name.removesuffix("_cell")], x.shape[:2]
    shared: dict[str, Any] = {}
    way = Direction(
        weight_ih=weight_ih.detach(),
        weight_hh=weight_hh.detach(),
        bias_ih=None if bias_ih is None else bias_ih.detach(),
        bias_hh=None if bias_hh is None else bias_hh.detach(),
        weight_hr=None if weight_hr is None else weight_hr.detach(),
        reverse=reverse,
        receive_input=_receiver(op, weight_ih, bias_ih, rows, place, shared),
        receive_hidden=_receiver(op, weight_hh, bias_hh, rows, place, shared if kind.gates_add_up else {}),
        receive_projection=None if weight_hr is None else _receiver(op, weight_hr, None, rows, place, {}),
    )
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x, initial = x.to(weight_ih.dtype), [state.to(weight_ih.dtype) for state in initial]
    with torch.autocast(device, enabled=False):
        results = run(x, initial[0], initial[1] if len(initial) > 1 else None, kind, way)
    return tuple(result for result in results if result is not None)


def _receiver(
    op: Operation,
    weight: Tensor,
    bias: Tensor | None,
    steps_and_rows: torch.Size,
    place: Position,
    shared: dict[str, Any],
) -> Receive | None:
    slots = {name: t for name, t in (("weight", weight), ("bias", bias)) if t is not None and op.tracks(t)}
    if not slots:
        return None
    use = Gates(op.module, op.records, slots)
    use.operation, use.shared = op.name, shared
    use.input_stride = stride_at((*steps_and_rows, weight.shape[1]), 1, place.inner)
    use.output_stride = stride_at((*steps_and_rows, weight.shape[0]), 1, place.inner)
    return op.receiver(use)


_LARGER, _SLOWER = 3.0, 16
"""The gradients of both weights are kept if that takes up to three times the memory of inputs and output gradients, and if Gram
matrices would take more than 16 multiplications for each of their numbers. An LSTM of width 128 on 64 steps has 2.7 and 24: it
takes three quarters of the time (AMD EPYC with AVX2, one thread, process time, torch 2.13)."""

_TOGETHER_BYTES = 2**23
"""Size of the pieces in which they are kept. Of 2 to 16 MiB it was the fastest, within noise (same machine)."""


class Gates(Linear):
    """A weight of a recurrent layer: a linear map on the sequence of its inputs or of its states."""

    operation: str
    shared: dict[str, Any]
    """For the two weights of a layer whose gates are added: results that depend only on the gradient of the gates, and the
    inputs of both. It holds tensors and no uses, because a reference cycle would keep them until the next garbage collection.
    """

    @property
    def kind(self) -> str:
        return f"Linear ({self.operation})"

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        super().receive(saved, grad, budget)
        if self.method == "gram" and not self._sums_at_once():
            self.shared.setdefault("inputs", {})[id(self)] = self.x
            first: Gates | None = self.shared.pop("first", lambda: None)()
            if first is None:
                self.shared["first"] = ref(self)
            elif first.x is not None and first._is_kept_with(self, budget):
                first._hold_both(self)

    def _is_kept_with(self, other: Gates, budget: MemoryBudget) -> bool:
        """Whether the gradients of both weights are formed once and kept; otherwise Gram matrices measure them."""
        assert self.x is not None and other.x is not None and self.grad is not None
        length, height = self.grad.shape[1:]
        width = self.x.shape[2] + other.x.shape[2]
        others, numbers = length * (width + height), width * height
        worthwhile = numbers <= _LARGER * others and _SLOWER * numbers <= length * others
        return worthwhile and budget.take(self.instance_bytes() + other.instance_bytes())

    def _hold_both(self, other: Gates) -> None:
        """Form and measure the gradients of both weights in one product, a few records at a time."""
        uses = (self, other)
        x, grad = torch.cat([use.x for use in uses if use.x is not None], 2), self.grad
        assert self.x is not None and grad is not None
        cut = self.x.shape[2]
        pieces: tuple[list[tuple[slice, Tensor]], ...] = ([], [])
        norms: tuple[list[Tensor], ...] = ([], [])
        for rows in self.chunks(_TOGETHER_BYTES * cut // x.shape[2]):
            # This order is faster, because a row of the result is as long as there are gates.
            formed = torch.bmm(x[rows].mT, grad[rows])
            for place, part in enumerate((formed[:, :cut], formed[:, cut:])):
                pieces[place].append((rows, part.mT))
                norms[place].append(squared_norms(part))
        for use, own, measured in zip(uses, pieces, norms, strict=True):
            use.pieces, use.norms, use.method = own, {"weight": torch.cat(measured)}, "instances"
            if "bias" in use.slots:
                use.summed_grad()
            use.x = use.grad = None
        self.shared.pop("inputs")

    def _weight_sum(self, weights: Tensor) -> Tensor:
        """If both weights of a layer have the same weights in the sum, form their gradients in one product, which is faster."""
        by, waiting = self.shared.pop("weighed", (None, {}))
        if by is weights and id(self) in waiting:
            known: Tensor = waiting[id(self)]
            return known
        if self.pieces is not None:
            total = torch.zeros(self.slots["weight"].mT.shape, dtype=torch.float64, device=weights.device)
            for rows, piece in self.pieces:
                add_weighed(total, piece.mT, weights[rows])
            return total.mT.contiguous()
        inputs: dict[int, Tensor] = self.shared.pop("inputs", {})
        if len(inputs) < 2 or id(self) not in inputs or not self.weighed_alike:
            return super()._weight_sum(weights)
        assert self.grad is not None
        x = torch.cat(list(inputs.values()), 2)
        total = torch.zeros(self.grad.shape[2], x.shape[2], dtype=torch.float64, device=x.device)
        step = max(PASSING_BYTES // (total.numel() * x.element_size()), 1)
        pieces = (slice(start, min(start + step, self.records)) for start in range(0, self.records, step))
        for rows, weight in products(self.grad, x, pieces):
            add_weighed(total, weight, weights[rows])
        ends = torch.tensor([t.shape[2] for t in inputs.values()]).cumsum(0)
        sums = dict(zip(inputs, (part.contiguous() for part in total.tensor_split(ends[:-1], 1)), strict=True))
        self.shared["weighed"] = weights, sums
        return sums.pop(id(self))

    def join(self, others: Sequence[Use], budget: MemoryBudget) -> Use | None:
        whole = super().join(others, budget)
        if isinstance(whole, Gates):
            whole.shared = {}
        return whole

    def summed_grad(self) -> Tensor:
        if self.sums is None:
            self.sums = self.shared.get("sums")
        self.shared["sums"] = sums = super().summed_grad()
        return sums

    def grad_gram(self) -> list[Tensor]:
        known: list[Tensor] | None = self.shared.pop("gram", None)
        if known is not None:
            return known
        self.shared["gram"] = gram = super().grad_gram()
        return gram

    def drop(self, bad: Tensor) -> None:
        super().drop(bad)
        self.shared.clear()
