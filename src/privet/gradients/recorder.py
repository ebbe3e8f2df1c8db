"""The recorder sees every torch operation from the batch to its loss, and taps those that combine records with parameters.

It is a torch function mode and not a set of layer hooks, so that it sees *every* use of a parameter: a weight tied by
``F.linear(x, embedding.weight)``, a bare ``nn.Parameter``, a layer called twice, a weight that is recomputed from others.
A gradient that it cannot see (from a custom ``autograd.Function``) arrives in ``parameter.grad``, where the engine refuses it.

The recorder also follows where the records are. The result of an operation that is not known to keep records apart is
unknown, and so is everything computed from it. A loss that is unknown is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from privet.errors import PrivetError
from privet.gradients import packed
from privet.gradients.following import is_known
from privet.gradients.knowledge import RAGGED, UnsupportedModelError, is_called_by, version_of
from privet.gradients.marking import Marking
from privet.gradients.marks import (
    FREE,
    RANDOM_ROWS,
    STARTS,
    UNKNOWN,
    Mark,
    Pass,
    mark_of,
    note_version,
    random_mark,
    set_mark,
)
from privet.gradients.operation import REFUSED, RULES, Operation, Receive, copies, tap
from privet.gradients.substitutes import (
    LOSSES,
    NAN_INSTEAD,
    WITHOUT_RAISING,
    answer,
    as_linear,
    attention,
    bags_of_records,
    has_learned_bias,
    with_own_rows,
)
from privet.gradients.use import Use
from privet.gradients.vocabulary import (
    AS_IT_IS,
    CONSTANTS,
    DROPOUTS,
    ESCAPES,
    EXPOSING,
    FROM_OUTSIDE,
    HOOKING,
    LIKE_ANOTHER,
    SILENT,
    SIZES,
    TAKEN_APART,
    UNINITIALIZED,
    is_collective,
    is_dispatching,
    is_from_outside,
    is_plain,
    is_silent_getter,
    name_of_function,
    tells_numbers,
    tensors_in,
    unguarded,
    written_by,
)

OUTSIDE = (
    "it uses a tensor that was made of a NumPy array or of other memory while a batch was out, which may hold records: create "
    "constants before the first loop"
)
TELLING_NOTHING = frozenset("type _fused_sdp_choice _use_cudnn_ctc_loss _has_compatible_shallow_copy_type".split())
"""Operations that return a number or text that no value of the records decides."""
NOT_PUBLIC = (
    "private.public(function) was given a private batch, or something computed from one: in the function, nothing may come "
    "from a record."
)

SCALER = "torch.amp.grad_scaler"
"""Its scale would multiply every gradient before it is clipped, and grows and falls with values of single records."""

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
        self._stances: list[Any] = []
        self._lengths: list[Tensor] = []
        """The lengths of the records in the recurrent layers that are running and were given packed sequences."""

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

    def enter_packed(self, lengths: Tensor) -> None:
        """Until `leave_packed`, recurrent layers stop each record at its own length."""
        self._lengths.append(lengths)

    def leave_packed(self) -> None:
        self._lengths.pop()

    # --- listening --------------------------------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        return any(
            torch._C._get_function_stack_at(place) is self for place in range(torch._C._len_torch_function_stack())
        )

    def listen(self) -> None:
        _push_mode(self)
        self._stances.append(_run_uncompiled())

    def stop(self) -> None:
        """Leave the stack of modes, at whatever depth this mode is."""
        stance = self._stances.pop()
        if stance is not None:
            stance.__exit__(None, None, None)
        above = []
        while torch._C._len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def _look_beneath(self, tensors: list[Tensor]) -> None:
        """Note what computes an operation or its backward pass in another way than torch does, where it cannot be seen."""
        current = self.current
        assert current is not None
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        if hooks is not None:
            self._hear_repetition()
            if not _is_of_torch(hooks[0]):
                self._escape("saved_tensors_hooks change the tensors that the backward pass uses")
        for place in range(torch._C._len_torch_dispatch_stack()):
            if not _is_of_torch(type(torch._C._get_dispatch_stack_at(place))):
                self._escape("a TorchDispatchMode computes operations in a way that is not followed")
        if any(type(tensor) is not Tensor and is_dispatching(type(tensor)) for tensor in tensors):
            self._escape("a class of tensors with a __torch_dispatch__ of its own is not followed")

    def _escape(self, why: str) -> None:
        assert self.current is not None
        if not self.current.trusting:
            self.current.escaped = self.current.escaped or why

    def _hear_repetition(self) -> None:
        """Activation checkpointing runs a part of the forward pass again in the backward pass: listen to that, too."""
        frame = checkpoint_frame()
        if frame is not None and not isinstance(frame.recompute_fn, Heard):
            frame.recompute_fn = Heard(self, frame.recompute_fn)

    def _differentiated(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], roots: Any
    ) -> Any:
        """Gradients of records depend on records. Outside a private pass, a tensor without a mark would count as public.

        In the backward pass of a record that is evaluated alone, hooks are listened to: they must not use earlier records.
        """
        current = self.current
        if current is None or not current.alone or current.public or torch._C._current_graph_task_id() != -1:
            out = func(*args, **kwargs)
        else:
            with self:
                out = (unguarded(func) if isinstance(func, FunctionType) else func)(*args, **kwargs)
        if current is not None and current.public and any(self.stride(root) is not None for root in tensors_in(roots)):
            for tensor in tensors_in(out):
                set_mark(tensor, current.unknown("it is a gradient of records"))
        return out

    def _refuse_gradient_of_records(self, args: tuple[Any, ...]) -> None:
        """``parameter.grad = value`` with a value that depends on records."""
        name = self._names.get(id(args[0]))
        if name is not None and any(self._look(tensor) is not None for tensor in tensors_in(args[1:])):
            raise self.refusal(f"the gradient of '{name}' is set to something that depends on records")

    # --- interception -----------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of_function(func)
        if self._suspended or self.current is None or name in SILENT or is_silent_getter(func, name):
            if self.current is not None and self.current.ragged and name in SIZES:
                self._note_size(name, args[0])
            return func(*args, **kwargs)
        if name == "backward" or (name == "grad" and func.__name__ == "grad"):
            roots = args[0] if args else next(iter(kwargs.values()))
            self.before_backward(roots, 1 + (name == "grad"), args, kwargs)
            return self._differentiated(func, args, kwargs, roots)
        if name == "grad_":
            self._refuse_gradient_of_records(args)
            return func(*args, **kwargs)
        if types and not all(map(is_plain, types)):
            return self._as_its_class_does(func, types, args, kwargs)
        if is_collective(func):
            return self._sent(name, func, args, kwargs)
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
        if self.current.alone and batched and torch._C._current_graph_task_id() != -1:
            self._refuse_earlier(tensors)
        if name == "grad" and tracked:
            if is_called_by(SCALER):
                return args[0].new_empty(0)  # it looks for overflows, of which a private gradient has none
            self.before_reading_gradient(args[0])
        if batched and name in CONSTANTS and not self._holds_records(args[1:], kwargs):
            batched = False
        if batched and name in LIKE_ANOTHER and known[0][1] is None and args and args[0] is known[0][0]:
            batched, known = False, known[:1]
        if not batched:
            return self._without_records(name, func, args, kwargs, tensors, tracked)
        alone = self.current.alone
        if self.current.public and tracked and not alone:
            raise PrivetError(NOT_PUBLIC)
        if name in packed.NAMES and not alone:
            out = packed.handled(self, name, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if self._lengths and name in packed.RECURRENT:
            with self:
                return packed.recurrent(name, self._lengths[-1], args)
        if self.current.ragged and not isinstance(func, FunctionType):
            own = bags_of_records(self.current, name, args, kwargs)
            if own is not None:
                with self:
                    return func(*own[0], **own[1])
            if any(id(tensor) in self.current.ragged for tensor in tensors):
                return self._ragged(name, func, args, kwargs)
        if not self.current.trusting and torch.is_grad_enabled() and not self.current.public:
            self._refuse_trained_elsewhere(known)
        if not alone:
            self._look_beneath(tensors)
        if name == "batch_norm" and (kwargs.get("training") or (len(args) > 5 and args[5])):
            raise self.refusal(
                "batch normalization in training mode normalizes each record by the others; privet.fix(model) returns the "
                "model with GroupNorm instead, and a pretrained one can be put in eval mode"
            )
        if name in ("mul", "__mul__") and is_called_by(SCALER):
            return args[0]  # the loss as it is: gradients of records are clipped in their own scale
        if name in REFUSED:
            raise self.refusal(REFUSED[name])
        if name in ESCAPES or name in HOOKING:
            return self._let_out(name, func, args, kwargs)
        if self.still and name in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if isinstance(func, FunctionType) and (name in NAN_INSTEAD or (name in LOSSES and not alone)):
            out = (NAN_INSTEAD if name in NAN_INSTEAD else LOSSES)[name](self, args, kwargs)
            if out is not NotImplemented:
                return out
        if name in WITHOUT_RAISING and "out" not in kwargs:
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
            versions = [version_of(tensor) for tensor in tensors]
            out = func(*args, **kwargs)
            for tensor, version in zip(tensors, versions, strict=True):
                if version_of(tensor) != version and tensor is not written:
                    if tensor is out:  # F.relu(x, inplace=True)
                        self._refuse_guarded(tensor)
                        written = tensor
                    else:
                        self._note_hidden_writing(name, tensor)
            if not alone and tells_numbers(out) and name not in TELLING_NOTHING:
                self._note_escape(name)
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
            linear = as_linear(operation)
            if linear is not None:
                with self:
                    return linear()
            out = RULES[name](operation) if name in RULES else operation.generic()
        self._follow(name, args, kwargs, known, out if written is None else written, written is not None)
        return out

    def _note_size(self, name: str, tensor: Any) -> None:
        """The number of rows of all records together is a number that they decide: in Python it cannot be followed."""
        assert self.current is not None
        held = self.current.ragged.get(id(tensor)) if isinstance(tensor, Tensor) else None
        if held is not None and held[1] != STARTS and not self.current.escaped and not is_called_by("torch."):
            self.current.escaped = (
                f"`{name.strip('_')}` tells how many rows all records have together{self._where()}, and the loss is computed "
                f"after it"
            )

    def _ragged(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation on rows of which each record has another number: unless it only moves them, its result is unknown."""
        current = self.current
        assert current is not None
        out = func(*args, **kwargs)
        if name in AS_IT_IS and args and id(args[0]) in current.ragged and isinstance(out, Tensor):
            current.ragged[id(out)] = (out, current.ragged[id(args[0])][1])
        elif not current.escaped:
            current.escaped = f"{RAGGED}{self._where()}"
        for tensor in tensors_in(out):
            set_mark(tensor, current.unknown(RAGGED))
        return out

    def _sent(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A communication with other processes, which have other records: whatever it reads or writes is unknown afterwards."""
        out = func(*args, **kwargs)
        for tensor in tensors_in((args, kwargs, out)):
            self._note_hidden_writing(name, tensor)
        return out

    def _as_its_class_does(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation on objects with a ``__torch_function__`` of their own. What it does is seen, operation by operation."""
        with self:
            for kind in types:
                out = kind.__torch_function__(func, types, args, kwargs)
                if out is not NotImplemented:
                    return out
        raise TypeError(f"no implementation found for {func} on types that implement __torch_function__: {list(types)}")

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
        if name == "data":
            self.current.aliased.add(tensors[0].untyped_storage()._cdata)
        if name in EXPOSING and tensors:
            self._expose(tensors[0])
            if random_mark(tensors[0]) is not None:
                self.current.aliased.add(tensors[0].untyped_storage()._cdata)
        known = [(tensor, self.random_mark(tensor)) for tensor in tensors]
        out = func(*args, **kwargs)
        if name == "data_":
            self._guard_again(args[0])
        if self._exposed:
            changed = written_by(name, func, args, kwargs)
            if changed is not None and changed.untyped_storage()._cdata in self._exposed:
                self.copy_exposed()  # torch wrote, without records
        if self.current_trusts():
            pass
        elif name in UNINITIALIZED and isinstance(out, Tensor):
            with torch.no_grad(), torch._C.DisableTorchFunction():
                out.zero_()  # what was left in the memory may be values of records
        elif name in ("resize_", "resize_as_") and isinstance(out, Tensor):
            set_mark(
                out, self.current.unknown(f"`{name}` shows what was left in the memory, perhaps values of records")
            )
            return out
        elif name in FROM_OUTSIDE and not self.current.public and is_from_outside((args, *kwargs.values())):
            set_mark(out, self.current.unknown(OUTSIDE))
            return out
        if tracked and torch.is_grad_enabled() and name not in CONSTANTS:
            self._note_derived(name, tensors, out)
        elif not self.current_trusts() and not self.current.public:
            for tensor in tensors_in(out):
                if tensor.is_complex():
                    note_version(tensor)
                if id(tensor) not in self._names and not self._is_constant(tensor):
                    set_mark(tensor, self._mark_of_constant(name, args, kwargs, known, tensor))
            if name == "__setitem__" and known[0][1] is not None and _is_alike_for_rows(args):
                set_mark(args[0], RANDOM_ROWS)
        return out

    def _holds_records(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an argument depends on records, other than the tensor whose shape and dtype are copied."""
        others = {key: value for key, value in kwargs.items() if key != "input"}
        return any(self._look(tensor) is not None for tensor in tensors_in((args, others)))

    def _note_derived(self, name: str, tensors: list[Tensor], out: Any) -> None:
        sources = tuple(t for t in tensors if self.tracks(t))
        expanded = sources[0] if name in {"expand", "expand_as", "broadcast_to", "repeat"} else None
        if expanded is not None and name == "repeat" and not _only_repeats_single(expanded, out):
            expanded = None
        assert self.current is not None
        for tensor in tensors_in(out):
            if tensor.requires_grad and not self.tracks(tensor):
                self.note_derived(tensor, sources, expanded)
            elif (
                not self.current_trusts()
                and not self.current.public
                and mark_of(tensor) is None
                and id(tensor) not in self._names
            ):
                set_mark(tensor, FREE)

    def _let_out(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle an operation that turns values of the records into Python numbers, or hooks a function to their gradient."""
        assert self.current is not None
        if self.current.alone:
            self.current.read = self.current.read or name in ESCAPES
            if self.current.over and name in ESCAPES:
                self._note_escape(name)
            return func(*args, **kwargs)
        if name == "__bool__" and (answered := answer()) is not None:
            return answered
        if name in HOOKING:
            asked_here = str(sys._getframe(2).f_globals.get("__name__", "")).startswith("privet.gradients.")
            if name == "grad_fn" and (asked_here or not args[0].requires_grad or is_called_by("torch._tensor")):
                return func(*args, **kwargs)
            set_mark(args[0], self.current.unknown("a hook on a tensor of the records may change their gradients"))
        else:
            self._note_escape(name)
        return func(*args, **kwargs)

    def _note_escape(self, name: str) -> None:
        """Note that an operation has turned values of the records into Python numbers."""
        current = self.current
        assert current is not None
        current.read = True
        if not current.escaped and not current.trusting:
            follows = "a write comes after it" if current.over else "the loss is computed after it"
            after = f"{self._where()}, and {follows}"
            if is_called_by("torch.distributions"):
                current.escaped = VALIDATED
            elif name == "untyped_storage" and is_called_by("torch."):  # torch.save, torch.load and copy.deepcopy
                what = "a tensor of the records, the optimizer or a file is saved, loaded or copied"
                current.escaped = f"{what}{after}: do that after optimizer.step()"
            else:
                current.escaped = f"`{name.strip('_')}` reads a value of the records{after}"
            if self.repeating:
                raise self.refusal(current.escaped)

    def _refuse_earlier(self, tensors: list[Tensor]) -> None:
        """Refuse tensors of earlier records in the backward pass of a record that is evaluated alone."""
        for tensor in tensors:
            mark = mark_of(tensor)
            if mark is not None and mark.stride is not None and not self._is_current(mark):
                raise self.refusal("a tensor of an earlier batch is used in the backward pass, for instance by a hook")

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
                f"record. For a penalty use the optimizer's weight_decay, or private.public(function). If it weighs a loss, "
                f"multiply the loss of each record by it, before the mean."
            )


def _run_uncompiled() -> Any:
    """Let `torch.compile` run modules and functions as they are, whose operations are then seen, until the result is exited."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else None


class Heard:
    """A function during which the recorder listens."""

    def __init__(self, recorder: Recorder, function: Callable[..., Any]) -> None:
        self._recorder, self._function = recorder, function

    def __call__(self, *args: Any) -> Any:
        listening, self._recorder.repeating = self._recorder.is_listening, True
        if not listening:
            self._recorder.listen()
        try:
            return self._function(*args)
        finally:
            self._recorder.repeating = False
            if not listening:
                self._recorder.stop()


def checkpoint_frame() -> Any:
    """What torch keeps of the part of the forward pass that is being checkpointed with use_reentrant=False; None outside one."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    pack = hooks[0] if hooks is not None else None
    if getattr(pack, "__qualname__", "") != "_checkpoint_hook.__init__.<locals>.pack_hook" or pack is None:
        return None
    held = dict(zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True))
    return held["frame"].cell_contents if "frame" in held else None


def refuse_other_modes() -> None:
    """Refuse a torch function mode around the loop: it would change operations after the recorder has seen them."""
    for place in range(torch._C._len_torch_function_stack()):
        kind = type(torch._C._get_function_stack_at(place))
        if issubclass(kind, Recorder):
            raise PrivetError("Another private loop is still open: finish it, or end it with private.close().")
        if not _is_of_torch(kind):
            raise PrivetError(
                f"The torch function mode {kind.__name__} is active around the loop, and what it does is not followed: enter it "
                f"inside the body of the loop, or leave it before the loop."
            )


def _is_of_torch(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("torch.")


def _before(written: Tensor, mark: Mark | None) -> Tensor:
    """A copy of a constant before it is written into."""
    if mark is not None or not written.ndim:
        return written
    with torch._C.DisableTorchFunction():
        before = written.detach().clone()
    if (noted := random_mark(written)) is not None:
        set_mark(before, noted)
    return before


def _is_alike_for_rows(args: tuple[Any, ...]) -> bool:
    """Whether ``x[:, 0] = 1.0`` writes one number into the same places of all rows."""
    _, index, value = args
    if not isinstance(index, tuple) or not all(isinstance(i, (int, slice)) for i in index):
        return False
    return index[0] == slice(None) and isinstance(value, (bool, int, float))


def _only_repeats_single(source: Tensor, out: Tensor) -> bool:
    padded = [1] * (out.ndim - source.ndim) + list(source.shape)
    return all(size in (1, grown) for size, grown in zip(padded, out.shape, strict=True))
