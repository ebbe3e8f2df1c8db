"""Recurrent layers: torch's own LSTM, GRU and RNN, whole sequences and single steps.

Under autocast they run in the precision of their weights: torch itself has no LSTM of half precision on many machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from privet.gradients.layout import Position, position, stride_at
from privet.gradients.operation import Operation, operation
from privet.gradients.rules.cells import RELU, TANH, Gru, Lstm
from privet.gradients.rules.elementwise import own_copy
from privet.gradients.rules.linear import PASSING_BYTES, Linear, products
from privet.gradients.rules.recurrence import Cell, Direction, run
from privet.gradients.tap import Receive
from privet.gradients.use import Budget, Use
from privet.gradients.weighing import add_weighed

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
    """The records among the rows that the layer treats one by one, counted from the right as dimension -2."""
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


class Gates(Linear):
    """A weight of a recurrent layer: a linear map on the sequence of its inputs or its states."""

    operation: str
    shared: dict[str, Any]
    """What depends on the gates' gradient alone, for the two weights whose gates add up, and the inputs of both. It holds
    tensors and no uses: a cycle would keep all of them until the garbage collector comes."""

    @property
    def kind(self) -> str:
        return f"Linear ({self.operation})"

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: Budget) -> None:
        super().receive(saved, grad, budget)
        if self.method == "gram" and not self._sums_at_once():
            self.shared.setdefault("inputs", {})[id(self)] = self.x

    def _weight_sum(self, weights: Tensor) -> Tensor:
        """Where both weights of a layer are weighed alike, their gradients are formed in one product, which takes less time."""
        by, waiting = self.shared.pop("weighed", (None, {}))
        if by is weights and id(self) in waiting:
            known: Tensor = waiting[id(self)]
            return known
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

    def join(self, others: Sequence[Use], budget: Budget) -> Use | None:
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
