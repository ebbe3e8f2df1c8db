"""The recorder sees every torch operation from the batch to its loss, and taps those that combine records with parameters.

It is a torch function mode and not a set of layer hooks, so that it sees *every* use of a parameter: a weight tied by
``F.linear(x, embedding.weight)``, a bare ``nn.Parameter``, a layer called twice, a weight that is recomputed from others.
A gradient that it cannot see (from a custom ``autograd.Function``) arrives in ``parameter.grad``, where the engine refuses it.

The recorder also follows where the records are. The result of an operation that is not known to keep records apart is
unknown, and so is everything computed from it. A loss that is unknown is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from privet.errors import PrivetError
from privet.gradients.following import is_known
from privet.gradients.knowledge import UnsupportedModelError, is_called_by
from privet.gradients.marking import Marking
from privet.gradients.marks import FREE, RANDOM, UNKNOWN, Mark, Pass, mark_of, set_mark
from privet.gradients.operation import REFUSED, RULES, Operation, Receive, copies, tap
from privet.gradients.substitutes import LOSSES, WITHOUT_RAISING, answer, attention, has_learned_bias, with_own_rows
from privet.gradients.use import Use
from privet.gradients.vocabulary import (
    CONSTANTS,
    DRAWING,
    DROPOUTS,
    ESCAPES,
    LIKE_ANOTHER,
    SILENT,
    TAKEN_APART,
    is_silent_getter,
    name_of_function,
    tensors_in,
    unguarded,
    written_by,
)

NOT_PUBLIC = (
    "private.public(function) was given a private batch, or something computed from one: in the function, nothing may come "
    "from a record."
)

VALIDATED = (
    "torch.distributions checks values of the records and raises because of a single one: build the distribution with "
    "validate_args=False, or call torch.distributions.Distribution.set_default_validate_args(False)"
)


class Recorder(Marking, TorchFunctionMode):
    """The torch function mode that is active from the batch to its backward pass."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(parameters)
        self._suspended: list[list[nn.Parameter]] = []
        self._taken_apart: list[Any] = []
        """Functions of torch that are being run part by part, outermost first. One that calls itself is not taken apart again.
        """

    # --- what rules do ----------------------------------------------------------------------------------------------

    def record(self, out: Tensor, use: Use, saved: tuple[Tensor, ...]) -> Tensor:
        return tap(out, self.receiver(use), *saved)

    def copies(self, tensor: Tensor, shape: tuple[int, ...], use: Use) -> Tensor:
        return copies(tensor, shape, self.receiver(use))

    def receiver(self, use: Use) -> Receive:
        current = self.current
        assert current is not None
        current.uses.append(use)
        waiting = [use]  # emptied on receiving: the autograd graph may live longer than the use

        def receive(saved: tuple[Tensor, ...], grad: Tensor) -> None:
            if current.closed:
                raise PrivetError(
                    "A backward pass went through a forward pass whose gradients were taken already: call backward "
                    "once for each batch, before optimizer.step() and before the next batch."
                )
            if not waiting:
                raise PrivetError(
                    "A second backward pass went through the same forward pass: add the losses up and call backward once."
                )
            self._join(current)
            # Detached: otherwise the use would keep the graph alive, and the graph the use.
            waiting[0].receive(tuple(t.detach() for t in saved), grad, current.budget)
            current.received.append(waiting.pop())

        return receive

    @staticmethod
    def _join(current: Pass) -> None:
        """Called when a backward pass reaches the model: how its loss combines the records must be known, and the same for all
        losses."""
        if isinstance(current.pending, PrivetError):
            raise current.pending
        if current.pending is None:
            raise PrivetError(
                "The call of backward was not seen: call loss.backward() in the body of the loop, in the thread of the loop."
            )
        if current.reduction not in (None, current.pending):
            raise PrivetError(
                "One loss is a mean over the records and another one is a sum: make both a mean, or both a sum."
            )
        current.reduction = current.pending

    # --- modules with a rule of their own ---------------------------------------------------------------------------

    def suspend(self, module: nn.Module) -> None:
        """Ignore the operations of a module with a rule of its own, and treat its parameters as constants."""
        own = [p for p in module.parameters() if p.requires_grad]
        for parameter in own:
            parameter.requires_grad_(False)
        self._suspended.append(own)

    def resume(self) -> None:
        for parameter in self._suspended.pop():
            parameter.requires_grad_(True)

    # --- listening --------------------------------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        return any(
            torch._C._get_function_stack_at(place) is self for place in range(torch._C._len_torch_function_stack())
        )

    def listen(self) -> None:
        _push_mode(self)

    def stop(self) -> None:
        """Leave the stack of modes, at whatever depth this mode is."""
        above = []
        while torch._C._len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    # --- interception -----------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of_function(func)
        if self._suspended or self.current is None or name in SILENT or is_silent_getter(func, name):
            return func(*args, **kwargs)
        if name == "backward" or (name == "grad" and func.__name__ == "grad"):
            self.before_backward(args[0] if args else next(iter(kwargs.values())), 1 + (name == "grad"), args, kwargs)
            return func(*args, **kwargs)
        if self.still and isinstance(generator := kwargs.get("generator"), torch.Generator):
            self.generators.setdefault(id(generator), (generator, generator.get_state()))
        tensors = tensors_in((args, kwargs) if kwargs else args)
        batched = tracked = False
        known: list[tuple[Tensor, Mark | None]] = []
        for tensor in tensors:
            mark = self._look(tensor)
            known.append((tensor, mark))
            batched = batched or mark is not None
            tracked = tracked or self.tracks(tensor)
        if name == "grad" and tracked:
            self.before_reading_gradient(args[0])
        if batched and name in CONSTANTS and not self._holds_records(args[1:], kwargs):
            batched = False
        if batched and name in LIKE_ANOTHER and known[0][1] is None and args and args[0] is known[0][0]:
            batched, known = False, known[:1]
        if not batched:
            return self._without_records(name, func, args, kwargs, tensors, tracked)
        if self.current.public and tracked:
            raise PrivetError(NOT_PUBLIC)
        if not self.current.trusting and torch.is_grad_enabled():
            self._refuse_trained_elsewhere(known)
        if name == "batch_norm" and (kwargs.get("training") or (len(args) > 5 and args[5])):
            raise self.refusal(
                "batch normalization in training mode normalizes each record by the others; privet.fix(model) returns the "
                "model with GroupNorm instead, and a pretrained one can be put in eval mode"
            )
        if name in REFUSED:
            raise self.refusal(REFUSED[name])
        if name in ESCAPES or name == "register_hook":
            return self._let_out(name, func, args, kwargs)
        if self.still and name in DROPOUTS:
            return args[0] if args else kwargs["input"]
        alone = self.current.alone
        if isinstance(func, FunctionType) and name in LOSSES and not alone:
            out = LOSSES[name](self, args, kwargs)
            if out is not NotImplemented:
                return out
        if name in WITHOUT_RAISING and not alone and "out" not in kwargs:
            with self:
                return WITHOUT_RAISING[name](*args, **kwargs)
        combines = tracked and torch.is_grad_enabled() and not alone
        apart = combines or name in TAKEN_APART or not is_known(name)
        if isinstance(func, FunctionType) and not alone and apart and func not in self._taken_apart:
            self._taken_apart.append(func)
            try:
                with self:
                    return unguarded(func)(*args, **kwargs)
            finally:
                self._taken_apart.pop()
        written = written_by(name, func, args, kwargs)
        if written is not None:
            self._refuse_guarded(written)
            self._save(written)
            if not self.current.trusting:
                known = [(_before(t, mark) if t is written else t, mark) for t, mark in known]
        if not combines:
            versions = [_version(tensor) for tensor in tensors]
            out = func(*args, **kwargs)
            for tensor, version in zip(tensors, versions, strict=True):
                if _version(tensor) != version and tensor is not written:
                    if tensor is out:  # F.relu(x, inplace=True)
                        self._refuse_guarded(tensor)
                        written = tensor
                    else:
                        self._note_hidden_writing(name, tensor)
        else:
            self._refuse_penalty(known)
            operation = Operation(self, name, func, args, kwargs)
            if has_learned_bias(operation):
                with self:
                    return attention(*args, **kwargs)
            own = with_own_rows(operation)
            if own is not None:
                with self:
                    return func(*own[0], **own[1])
            out = RULES[name](operation) if name in RULES else operation.generic()
        self._follow(name, args, kwargs, known, out if written is None else written, written is not None)
        return out

    def before_backward(self, roots: Any, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called when a backward pass begins; the engine inspects the loss here."""

    def before_reading_gradient(self, parameter: Tensor) -> None:
        """Called when somebody reads ``parameter.grad``."""

    def _without_records(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        tracked: bool,
    ) -> Any:
        assert self.current is not None
        if self.still or (self.current.escaped and not self.current.trusting):
            written = written_by(name, func, args, kwargs)
            if written is not None:
                self._save(written)
                if self.current.escaped:
                    self._refuse_guarded(written, self.current.escaped)
        out = func(*args, **kwargs)
        if tracked and torch.is_grad_enabled() and name not in CONSTANTS:
            self._note_derived(name, tensors, out)
        elif not self.current_trusts():
            constant = RANDOM if name in DRAWING or self._all_random(tensors) else FREE
            for tensor in tensors_in(out):
                if id(tensor) not in self._names and not self._is_constant(tensor):
                    set_mark(tensor, constant)
        return out

    def _holds_records(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an argument depends on records, other than the tensor whose shape and dtype are copied."""
        others = {key: value for key, value in kwargs.items() if key != "input"}
        return any(self._look(tensor) is not None for tensor in tensors_in((args, others)))

    @staticmethod
    def _all_random(tensors: list[Tensor]) -> bool:
        """Whether all of these constants are random, so that what is computed from them is random, too."""
        given = [tensor for tensor in tensors if tensor.numel() > 1]
        return bool(given) and all(mark_of(tensor) is RANDOM for tensor in given)

    def _note_derived(self, name: str, tensors: list[Tensor], out: Any) -> None:
        sources = tuple(t for t in tensors if self.tracks(t))
        expanded = sources[0] if name in {"expand", "expand_as", "broadcast_to", "repeat"} else None
        if expanded is not None and name == "repeat" and not _only_repeats_single(expanded, out):
            expanded = None
        for tensor in tensors_in(out):
            if tensor.requires_grad and not self.tracks(tensor):
                self.note_derived(tensor, sources, expanded)
            elif not self.current_trusts() and mark_of(tensor) is None and id(tensor) not in self._names:
                set_mark(tensor, FREE)

    def _let_out(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle an operation that turns values of the records into Python numbers, or hooks a function to their gradient."""
        assert self.current is not None
        if self.current.alone:
            return func(*args, **kwargs)
        if name == "__bool__" and (answered := answer()) is not None:
            return answered
        if name == "register_hook":
            set_mark(args[0], self.current.unknown("a hook on a tensor of the records may change their gradients"))
        elif not self.current.escaped and not self.current.trusting:
            self.current.escaped = (
                VALIDATED
                if is_called_by("torch.distributions")
                else f"`{name.strip('_')}` reads a value of the records{self._where()}, and the loss is computed after it"
            )
        return func(*args, **kwargs)

    def _refuse_trained_elsewhere(self, known: list[tuple[Tensor, Mark | None]]) -> None:
        """Refuse a trainable tensor that the plan does not know: it would get the raw gradient of the records."""
        for tensor, mark in known:
            if mark is None and tensor.requires_grad and tensor.is_leaf and id(tensor) not in self._names:
                raise UnsupportedModelError(
                    f"A tensor of shape {tuple(tensor.shape)} that requires a gradient meets the records, and is not among the "
                    f"parameters that make_private was given: give it all models that learn from the records, as "
                    f"make_private([model, head], ...), or freeze it with requires_grad_(False)."
                )

    def _refuse_penalty(self, known: list[tuple[Tensor, Mark | None]]) -> None:
        """Refuse a parameter that is combined with a sum or mean over the records: its gradient would belong to no record."""
        if any(mark is not None and mark.stride is not None and mark.stride < UNKNOWN for _, mark in known):
            name = next(name for tensor, _ in known if self.tracks(tensor) for name in self.sources(tensor))
            raise UnsupportedModelError(
                f"Parameter '{name}' is used in the loss after the records were joined, so that its gradient belongs to no "
                f"record. For a penalty use the optimizer's weight_decay, or private.public(function)."
            )


def _version(tensor: Tensor) -> int:
    """How often a tensor was written into; -1 in inference mode, where torch does not count."""
    return -1 if tensor.is_inference() else tensor._version


def _before(written: Tensor, mark: Mark | None) -> Tensor:
    """A copy of a constant before it is written into."""
    if mark is not None or not written.ndim:
        return written
    with torch._C.DisableTorchFunction():
        before = written.detach().clone()
    if mark_of(written) is RANDOM:
        set_mark(before, RANDOM)
    return before


def _only_repeats_single(source: Tensor, out: Tensor) -> bool:
    padded = [1] * (out.ndim - source.ndim) + list(source.shape)
    return all(size in (1, grown) for size, grown in zip(padded, out.shape, strict=True))
