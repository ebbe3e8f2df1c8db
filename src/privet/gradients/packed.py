"""Packed sequences: records of different lengths that torch lays out by time are followed as the padded tensors they come from.

A packed sequence has no dimension for the records. But it is made of a padded tensor, in which the records are known, and of
their lengths. The recurrent layers of torch get these instead, and stop each record at its own length. Whatever else is done
with a packed sequence is not followed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import rnn

from privet.gradients.knowledge import UnsupportedModelError
from privet.gradients.marks import FREE, PACKED, set_mark

if TYPE_CHECKING:
    from privet.gradients.recorder import Recorder

NAMES = frozenset("sort index_select __getitem__ _pack_padded_sequence _pad_packed_sequence".split())
"""The operations of ``pack_padded_sequence`` and ``pad_packed_sequence``."""
RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())
_PACK, _PAD = rnn.pack_padded_sequence.__code__, rnn.pad_packed_sequence.__code__
_WHY = (
    "a packed sequence is only followed into the recurrent layers of torch and into pad_packed_sequence; use the padded tensor, "
    "and mask each record by its own length"
)


@dataclass(eq=False)
class Packing:
    """What a packed sequence was made of, with the records in their order."""

    data: Tensor
    padded: Tensor
    lengths: Tensor
    batch_first: bool
    versions: tuple[int, int]

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was written into the padded tensor since it was packed, or into the lengths."""
        return (self.padded._version, self.lengths._version) == self.versions

    def turned(self, batch_first: bool) -> Tensor:
        return self.padded if batch_first == self.batch_first else self.padded.transpose(0, 1)


def handled(recorder: Recorder, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """The result of an operation that packs or pads; NotImplemented if it does neither."""
    frame = sys._getframe(2)
    code = frame.f_code
    if code is _PACK:
        return _packing(recorder, name, func, args, kwargs, frame.f_locals.get("sorted_indices"))
    if code is not _PAD:
        return NotImplemented
    if name == "_pad_packed_sequence":
        return _padded(recorder, args, frame.f_locals["total_length"])
    # pad_packed_sequence puts the records into their order, in which `_padded` has left them
    held = _current(recorder).reordered.get(id(args[0]))
    return NotImplemented if held is None else held[1]


def _current(recorder: Recorder) -> Any:
    assert recorder.current is not None
    return recorder.current


def _packing(
    recorder: Recorder, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, order: Tensor | None
) -> Any:
    current = _current(recorder)
    source = args[0]
    if name != "_pack_padded_sequence":  # the records are sorted by their lengths
        out = func(*args, **kwargs)
        first = out if isinstance(out, Tensor) else out[0]
        for tensor in (out,) if isinstance(out, Tensor) else out:
            set_mark(tensor, current.unknown(_WHY))
        current.reordered[id(first)] = (first, source)
        return out
    x, lengths, batch_first = args
    steps = x.shape[1 if batch_first else 0]
    # torch raises for a length of zero, so that one record could end the run.
    data, sizes = func(x, lengths.clamp(1, steps), batch_first)
    padded, own = (current.reordered.get(id(tensor), (tensor, tensor))[1] for tensor in (x, lengths))
    if own is lengths and order is not None:  # constants: their sorting was not seen
        own = torch.empty_like(lengths).scatter_(0, order.to(lengths.device), lengths)
        set_mark(own, FREE)
    for tensor in (data, sizes):
        set_mark(tensor, current.unknown(_WHY))
        current.ragged[id(tensor)] = (tensor, PACKED)
    current.packed[id(data)] = Packing(data, padded, own, batch_first, (padded._version, own._version))
    return data, sizes


def _padded(recorder: Recorder, args: tuple[Any, ...], total: int | None) -> Any:
    """The padded tensor, as long as it was before it was packed: the longest record of the batch does not decide its length."""
    data, _, batch_first, filling = args[:4]
    current = _current(recorder)
    packing = current.packed.get(id(data))
    if packing is None or not packing.is_fresh:
        return NotImplemented
    with recorder:
        x = packing.turned(True)
        if total is not None:
            x = functional.pad(x, [0, 0] * (x.ndim - 2) + [0, max(total - x.shape[1], 0)])[:, :total]
        inside = _before_the_end(packing.lengths, x.shape[1], x.device)
        x = torch.where(inside.reshape(*inside.shape, *(1,) * (x.ndim - 2)), x, filling)
        x = x if batch_first else x.transpose(0, 1)
    for tensor in (x, packing.lengths):
        current.reordered[id(tensor)] = (tensor, tensor)
    return x, packing.lengths


def _before_the_end(lengths: Tensor, steps: int, device: torch.device) -> Tensor:
    """Of each record, the steps that belong to it."""
    return torch.arange(steps, device=device) < lengths.to(device).unsqueeze(1)


def packing_of(recorder: Recorder, args: tuple[Any, ...]) -> Packing | None:
    """What the packed sequence was made of that a layer is given; None if it is given none, or an unknown one."""
    if not args or not isinstance(args[0], rnn.PackedSequence) or recorder.current is None:
        return None
    packing: Packing | None = recorder.current.packed.get(id(args[0].data))
    return packing if packing is not None and packing.is_fresh else None


def packed_again(out: Any, packing: Packing, module: nn.RNNBase) -> Any:
    """The results of a layer that was given the padded tensor, as it gives them for a packed sequence."""
    steps, final = out
    return rnn.pack_padded_sequence(steps, packing.lengths, module.batch_first, enforce_sorted=False), final


def recurrent(name: str, lengths: Tensor, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """A recurrent layer that stops each record at its own length: after its end a record keeps its state."""
    x, initial, weights, _, layers, dropout, training, bidirectional, batch_first = args
    initial = initial if isinstance(initial, (tuple, list)) else (initial,)
    x = x.transpose(0, 1) if batch_first else x
    inside = _before_the_end(lengths, len(x), x.device)
    each = len(weights) // (layers * (2 if bidirectional else 1))
    if each % 2:
        raise UnsupportedModelError(
            "A packed sequence in an LSTM with proj_size is not followed: give it the padded tensor."
        )
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        outputs = []
        for reverse in (False, True) if bidirectional else (False,):
            own = weights[len(finals) * each : (len(finals) + 1) * each]
            states = tuple(state[len(finals)] for state in initial)
            steps, states = _one_direction(f"{name}_cell", x, states, own, inside, reverse)
            outputs.append(torch.stack(steps))
            finals.append(states)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and training and layer < layers - 1:
            x = functional.dropout(x, dropout)
    return x.transpose(0, 1) if batch_first else x, *(torch.stack(each) for each in zip(*finals, strict=True))


def _one_direction(
    cell: str, x: Tensor, states: tuple[Tensor, ...], weights: Any, inside: Tensor, reverse: bool
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    steps: list[Tensor] = []
    for t in range(len(x) - 1, -1, -1) if reverse else range(len(x)):
        goes_on = inside[:, t].unsqueeze(1)
        found = getattr(torch, cell)(x[t], states if len(states) > 1 else states[0], *weights)
        new = found if isinstance(found, tuple) else (found,)
        states = tuple(torch.where(goes_on, after, before) for after, before in zip(new, states, strict=True))
        steps.append(states[0])
    return steps[::-1] if reverse else steps, states
