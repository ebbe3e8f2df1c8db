"""The recorder: sees every torch operation from the batch to its loss, and taps those that combine records with parameters.

It is a torch function mode and not a set of layer hooks, because then it sees *every* use of a parameter: a weight tied
by ``F.linear(x, embedding.weight)``, a bare ``nn.Parameter``, a layer called twice, a weight that is recomputed from
others. What it cannot see (a custom ``autograd.Function``) autograd delivers to ``parameter.grad``, where the engine
stands guard and refuses.

It also follows where the records are. An operation that is not known to keep records apart makes its result unknown, and
unknown is everything that is computed from it. A loss that is unknown is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from privet.errors import PrivetError
from privet.gradients.following import Moved, aligned, dim_beside_records, follow, is_known, joined_shape
from privet.gradients.layout import MEAN, SUM, UNKNOWN, Position, position, stride_at
from privet.gradients.losses import LOSSES
from privet.gradients.marks import FREE, RANDOM, Derived, Mark, Pass, mark_of, set_mark
from privet.gradients.operation import REFUSED, RULES, Operation
from privet.gradients.source_line import source_line
from privet.gradients.tap import Receive, copies, tap
from privet.gradients.use import Use
from privet.gradients.vocabulary import (
    CONSTANTS,
    DIVIDING,
    DRAWING,
    DROPOUTS,
    ESCAPES,
    LIKE_ANOTHER,
    MULTIPLYING,
    SILENT,
    TAKEN_APART,
    is_custom,
    is_silent_getter,
    name_of_function,
    tensors_in,
    unguarded,
    written_by,
)


class UnsupportedModelError(PrivetError):
    """Per-example gradients of this model cannot be formed; the message names the module and the way out."""


NOT_PUBLIC = (
    "private.public(function) was given a private batch, or what was computed from one: in the function, nothing may come "
    "from a record."
)


class Recorder(TorchFunctionMode):
    """Active from the batch to its backward pass; see the module's docstring."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.parameters = parameters
        self._names = {id(p): name for name, p in parameters.items()}
        self._guarded: dict[int, str] = {p.untyped_storage()._cdata: name for name, p in parameters.items()}
        self.modules: list[str] = []
        """The dotted names of the modules whose forward pass is running, outermost first."""
        self.current: Pass | None = None
        self.still = False
        """Whether dropout lets everything through, so that two runs can be compared."""
        self.size_divisors: frozenset[float] = frozenset()
        """By what a sum over the records is divided for each record, where a self-check has found that it is: a mean."""
        self._suspended: list[list[nn.Parameter]] = []
        self._constants: dict[int, ref[Tensor]] = {}
        self._written: dict[int, Tensor] = {}
        self._versions: dict[int, int] = {}
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}
        """Constants that a rehearsal has written into, with what they held."""
        self.generators: dict[int, tuple[torch.Generator, Tensor]] = {}
        """Generators of the user's that a rehearsal has drawn from, with their first state."""
        self._taken_apart: list[Any] = []
        """Functions of torch whose parts are looked at, outermost first; one that calls itself again is looked at whole."""

    # --- what rules ask ---------------------------------------------------------------------------------------------

    @property
    def module(self) -> str:
        return self.modules[-1] if self.modules else ""

    @property
    def records(self) -> int:
        assert self.current is not None
        return self.current.records

    def tracks(self, tensor: Tensor) -> bool:
        if id(tensor) in self._names:
            return True
        mark = mark_of(tensor)
        return mark is not None and mark.derived is not None and self._is_current(mark)

    def expanded_from(self, tensor: Tensor) -> Tensor | None:
        mark = mark_of(tensor)
        return mark.derived.expanded if mark is not None and mark.derived is not None else None

    def stride(self, tensor: Tensor) -> int | None:
        """Where the records are, None if the tensor does not depend on the batch."""
        mark = self._look(tensor)
        return None if mark is None else mark.stride

    def doubt_of(self, tensor: Tensor) -> str:
        """Why the tensor is not known to keep records apart; empty where it is."""
        mark = self._look(tensor)
        return "" if mark is None else mark.why

    def known_stride(self, tensor: Tensor, operation: str) -> int:
        mark = self._look(tensor)
        if mark is None or mark.stride is None or mark.stride < 0:
            why = mark.why if mark is not None and mark.why else ""
            because = f": {why}" if why else ""
            raise self.refusal(
                f"it is not known which part of the input of `{operation}` belongs to which record{because}"
            )
        if mark.why:
            self._go_on(mark.why)
        return mark.stride

    def refusal(self, why: str) -> UnsupportedModelError:
        where = f"module '{self.module}'" if self.module else "the model"
        return UnsupportedModelError(
            f"Per-example gradients of {where} cannot be formed: {why}. If the module treats each record on its own, "
            f"keep the records in one dimension, or register a rule for its class with @privet.gradients.rule. "
            f"make_private(..., isolation='each') trains it as it is, one record at a time."
        )

    def _is_current(self, mark: Mark) -> bool:
        return self.current is not None and mark.token is self.current.token

    def _look(self, tensor: Tensor) -> Mark | None:
        """The mark of a tensor in this pass; None for a constant or a parameter. What is not known is not a constant."""
        mark, current = mark_of(tensor), self.current
        if mark is not None and mark.token is not None and mark.token.owner is not self:
            mark = None  # of another engine
        if mark is not None and (mark.stride is None or (current is not None and mark.token is current.token)):
            if mark.stride is None:
                return self._if_written(tensor)
            if current is not None and current.tainted and not mark.why:
                mark = self._if_tainted(tensor, mark)
            return self._if_customized(tensor, mark) if tensor.requires_grad else mark
        if current is None or current.trusting:
            return None
        if mark is not None:
            return current.unknown("a tensor of an earlier batch is used")
        if current.public or current.strangers:
            return None
        if id(tensor) in self._names or self._is_constant(tensor):
            return self._if_written(tensor)
        return current.unknown(
            "it uses a tensor of unknown origin: make constants before the first loop, and tensors of records in the data "
            "set or its collate function"
        )

    def _if_written(self, tensor: Tensor) -> Mark | None:
        if self._written and not self.current_trusts() and tensor.untyped_storage()._cdata in self._written:
            assert self.current is not None
            return self.current.unknown("records were written into a tensor that was there before")
        return None

    def _if_tainted(self, tensor: Tensor, mark: Mark) -> Mark:
        """What shares memory with a tensor in which records may have met is as little known as that one."""
        current = self.current
        assert current is not None
        why = current.tainted.get(tensor.untyped_storage()._cdata, "") if tensor.layout is torch.strided else ""
        return Mark(mark.token, mark.stride if current.assume else UNKNOWN, why) if why else mark

    def current_trusts(self) -> bool:
        return self.current is None or self.current.trusting

    def _if_customized(self, tensor: Tensor, mark: Mark) -> Mark:
        """A custom ``autograd.Function`` has a backward pass of its own, which nobody has followed."""
        node = tensor.grad_fn
        if node is None or not is_custom(type(node)) or self.current is None or mark.why or self.current.alone:
            return mark
        name = type(node).__name__.removesuffix("Backward")
        why = f"the backward pass of the autograd.Function {name} is not followed"
        if name == "CheckpointFunction":
            why = (
                "a part is checkpointed with use_reentrant=True, which hides its forward pass; use use_reentrant=False"
            )
        return Mark(mark.token, mark.stride if self.current.assume else UNKNOWN, why)

    def _is_constant(self, tensor: Tensor) -> bool:
        known = self._constants.get(id(tensor))
        return known is not None and known() is tensor

    # --- what rules do ----------------------------------------------------------------------------------------------

    def record(self, out: Tensor, use: Use, saved: tuple[Tensor, ...]) -> Tensor:
        return tap(out, self.receiver(use), *saved)

    def copies(self, tensor: Tensor, shape: tuple[int, ...], use: Use) -> Tensor:
        return copies(tensor, shape, self.receiver(use))

    def receiver(self, use: Use) -> Receive:
        current = self.current
        assert current is not None
        current.uses.append(use)
        waiting = [use]  # left when it has received: the graph, which may live longer, then keeps nothing of it

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
            # Without its history: what a use keeps would keep the graph alive, and the graph the use.
            waiting[0].receive(tuple(t.detach() for t in saved), grad, current.budget)
            current.received.append(waiting.pop())

        return receive

    @staticmethod
    def _join(current: Pass) -> None:
        """A backward pass has reached the model: how its loss joins the records must be known, and be one way for all."""
        if isinstance(current.pending, PrivetError):
            raise current.pending
        if current.pending is None:
            raise PrivetError(
                "The call of backward was not seen: call loss.backward() in the body of the loop, in its own thread."
            )
        if current.reduction not in (None, current.pending):
            raise PrivetError(
                "One loss is a mean over the records, another one a sum: make both a mean, or both a sum."
            )
        current.reduction = current.pending

    def note(self, out: Tensor, stride: int, why: str, like: Tensor) -> None:
        """State where the records are in a result that was computed here, and what speaks against it."""
        assert self.current is not None
        if self.current.escaped and like.requires_grad:
            why = why or self.current.escaped
        if self.records == 1 and stride < UNKNOWN:
            stride = 0  # one record owns everything
        if why and not self.current.assume:
            stride = UNKNOWN
        set_mark(out, Mark(self.current.token, stride, why))

    def note_derived(self, out: Tensor, sources: tuple[Tensor, ...], expanded: Tensor | None = None) -> None:
        assert self.current is not None
        set_mark(out, Mark(self.current.token, None, derived=Derived(sources, expanded)))
        # A slot refers to it after the forward pass is over, when nothing else may.
        self.current.derived.append(out)

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a tensor that is a parameter itself."""
        return self._names.get(id(tensor))

    def sources(self, tensor: Tensor) -> list[str]:
        """The names of the parameters that a tracked tensor depends on."""
        if id(tensor) in self._names:
            return [self._names[id(tensor)]]
        mark = mark_of(tensor)  # of a pass that may be over
        assert mark is not None and mark.derived is not None
        return list(dict.fromkeys(name for source in mark.derived.sources for name in self.sources(source)))

    # --- listening --------------------------------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        return any(
            torch._C._get_function_stack_at(place) is self for place in range(torch._C._len_torch_function_stack())
        )

    def listen(self) -> None:
        _push_mode(self)

    def stop(self) -> None:
        """Leave the stack of modes, wherever in it this one is."""
        above = []
        while torch._C._len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def take(self, current: Pass) -> None:
        """From now on, everything belongs to this pass."""
        self.current = current
        current.token.owner = self

    def begin(self, current: Pass, inputs: Any, batch_dim: int, views: int) -> None:
        """Mark the inputs of a model that this library calls: all that have as many rows, the first one for certain."""
        self.take(current)
        rows = current.records * views
        for index, tensor in enumerate(tensors_in(inputs)):
            if tensor.ndim <= batch_dim or tensor.shape[batch_dim] != rows:
                continue
            square = tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]
            if index and square and tensor.dtype != torch.long:
                continue  # as like an attention mask as a batch; as a constant it is right either way
            set_mark(tensor, Mark(current.token, stride_at(tensor.shape, batch_dim, views)))

    def hand_out(self, current: Pass, batch: Iterable[tuple[Tensor, int | None]]) -> None:
        """Mark the very tensors of a batch: each with the dimension that holds its records, None where none does."""
        self.take(current)
        self._written = {key: tensor for key, tensor in self._written.items() if self._is_constant(tensor)}
        for tensor, dim in batch:
            if dim is None:
                set_mark(tensor, current.unknown("a part of the batch has no dimension for the records"))
            else:
                set_mark(tensor, Mark(current.token, stride_at(tensor.shape, dim, current.each)))

    def know(self, constants: Iterable[Tensor]) -> None:
        """Tensors that were there before the first batch, and hold none of its records."""
        self._constants.update((id(tensor), ref(tensor)) for tensor in constants)

    def watch(self, buffers: Iterable[tuple[str, Tensor]]) -> None:
        """Buffers of the model, which records must not change."""
        for name, buffer in buffers:
            self._guarded[buffer.untyped_storage()._cdata] = name
            self._versions[id(buffer)] = buffer._version
            self.know([buffer])

    def is_changed(self, buffer: Tensor) -> bool:
        """Whether a buffer was changed by anything but an operation without records."""
        return self._versions.get(id(buffer)) != buffer._version

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
        if name in CONSTANTS and all(mark is None for _, mark in known[1:]):
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
                "model with GroupNorm in its place, and a pretrained one can be put in eval mode"
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
            out = RULES[name](operation) if name in RULES else operation.generic()
        self._follow(name, args, kwargs, known, out if written is None else written, written is not None)
        return out

    def before_backward(self, roots: Any, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called when a backward pass begins; the engine looks at the loss here."""

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

    @staticmethod
    def _all_random(tensors: list[Tensor]) -> bool:
        """Whether what is computed from these constants is as random as they are."""
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
        """A value of the records becomes a number of Python, or their gradient is given to a function."""
        assert self.current is not None
        if self.current.alone:
            return func(*args, **kwargs)
        if name == "register_hook":
            set_mark(args[0], self.current.unknown("a hook on a tensor of the records may change their gradients"))
        elif not self.current.escaped and not self.current.trusting:
            self.current.escaped = (
                f"`{name.strip('_')}` reads a value of the records{self._where()}, and the loss is computed after it"
            )
        return func(*args, **kwargs)

    def _follow(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: list[tuple[Tensor, Mark | None]],
        out: Any,
        in_place: bool,
    ) -> None:
        """Mark what an operation on records has made, or written."""
        current = self.current
        assert current is not None
        why, strides, source, first = "", [], None, 0
        for tensor, mark in known:
            stride = None if mark is None else mark.stride
            strides.append((tensor, stride))
            if mark is not None and stride is not None:
                why = why or mark.why
                if source is None or (first < 0 and stride >= 0):
                    source, first = tensor, stride
        assert source is not None
        for index, tensor in enumerate(tensors_in(out)):
            noted = mark_of(tensor)
            if not in_place and noted is not None and noted.stride is not None and self._is_current(noted):
                continue  # a rule has stated it
            if current.alone:
                set_mark(tensor, Mark(current.token, UNKNOWN if why else 0, why))
                if in_place:
                    self._note_writing(tensor, 0, why)
                continue
            moved = Moved(args, kwargs, source, first, strides, tensor, current.records, index)
            stride = self._place_of_writing(name, moved) if in_place else follow(name, moved)
            doubt = why
            if stride == SUM and first == SUM and self._divides_by_size(name, args):
                stride = MEAN
            if stride == UNKNOWN and not doubt:
                doubt = f"`{name}` is not known to keep records apart{self._where()}"
                shaped = not in_place and _has_shape_of_records(name, args, known)
                if shaped and not current.escaped and not current.trusting:
                    current.escaped = f"the shape of the result of `{name}` depends on the records{self._where()}"
            if stride != UNKNOWN and first >= 0 and not current.trusting and not doubt:
                doubt = self._place_of_constants(name, moved, stride)
            if current.escaped and tensor.requires_grad:
                doubt = doubt or current.escaped
            if doubt and current.assume and stride == UNKNOWN:
                stride = _guessed(moved)
            elif doubt and not current.assume:
                stride = UNKNOWN
            set_mark(tensor, Mark(current.token, stride, doubt))
            if in_place:
                self._note_writing(tensor, stride, doubt)

    def _divides_by_size(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether a sum over the records is divided by their number: then it is a mean, if a self-check says so."""
        current = self.current
        assert current is not None
        number = next((a for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)), None)
        if number is None or name not in DIVIDING | MULTIPLYING:
            return False
        divisor = number if name in DIVIDING else 1 / number if number else 0.0
        current.divisors.append(divisor)
        rows = current.records * current.each
        return any(math.isclose(divisor, each * rows, rel_tol=1e-9) for each in self.size_divisors)

    def _place_of_constants(self, name: str, moved: Moved, stride: int) -> str:
        """A constant with a row for each record ties a record to its place in the batch, which others decide; it must be the
        same for all records, or random."""
        shape: Sequence[int] = moved.out.shape
        joined = stride < UNKNOWN
        if joined:  # a loss that has joined its records: as it was before
            shape = joined_shape(name, moved)
            stride = aligned(moved, shape) if shape else UNKNOWN
        at = position(shape, stride, moved.records)
        if moved.records == 1 or at is None:
            return ""
        for tensor, own in moved.tensors:
            if own is None and tensor.ndim:
                beside = at.dim + tensor.ndim - len(shape)
                dim = beside if joined else dim_beside_records(name, moved, tensor, at)
                if dim is None or not 0 <= dim < tensor.ndim or tensor.shape[dim] != shape[at.dim]:
                    continue
                if why := self.doubt_of_constant(tensor, Position(dim, at.outer, at.inner)):
                    return why
        return ""

    def doubt_of_constant(self, tensor: Tensor, at: Position) -> str:
        """Why a constant with a row for each place in the batch ties a record to its place; empty where it does not."""
        if self.current_trusts() or mark_of(tensor) is RANDOM or self.tracks(tensor) or not tensor.stride(at.dim):
            return ""
        if tensor.shape[at.dim] % (at.outer * at.inner) or _same_for_all(tensor, at):
            return ""
        return (
            f"a constant with a row for each place in the batch is used{self._where()}, so that a record's result depends on "
            f"its place"
        )

    def _place_of_writing(self, name: str, moved: Moved) -> int:
        """Where the records are after something was written into ``moved.out``: where they were before, or nowhere."""
        before = self.stride(moved.out)
        if name in ("__setitem__", "index_put_"):
            return self._place_of_assignment(moved, before)
        after = follow(name, moved)
        return after if before is None or before == after else UNKNOWN

    def _place_of_assignment(self, moved: Moved, before: int | None) -> int:
        """``x[index] = values``: the index holds no records, and a place of `values` goes to the same place of `x`."""
        if len(moved.args) < 3 or moved.args[0] is not moved.out:
            return UNKNOWN
        strides = {id(tensor): stride for tensor, stride in moved.tensors}
        index, values = moved.args[1], moved.args[2]
        if any(strides.get(id(t)) is not None for t in tensors_in(index)):
            return UNKNOWN
        # Numbers in the place of x: what the index takes of them says where each one is.
        if moved.records == 1:
            return before if before is not None else 0
        own = strides.get(id(values)) if isinstance(values, Tensor) else None
        with torch._C.DisableTorchFunction():
            target = moved.out.detach()[index]
        candidates = (
            [before] if before is not None else [stride_at(moved.out.shape, dim) for dim in range(moved.out.ndim)]
        )
        for stride in candidates:
            sliced = Moved((moved.out, index), {}, moved.out, stride, ((moved.out, stride),), target, moved.records)
            after = follow("__getitem__", sliced) if position(moved.out.shape, stride, moved.records) else UNKNOWN
            if after < 0:
                continue
            if own is None:
                return stride if before is not None else UNKNOWN
            given = Moved((values,), {}, values, own, ((values, own),), target, moved.records)
            if aligned(given, target.shape) == after:
                return stride
        return UNKNOWN

    def _note_writing(self, tensor: Tensor, stride: int, doubt: str) -> None:
        """What shares memory with a tensor that records were written into holds records, too."""
        assert self.current is not None
        if not self.current.trusting:
            self._written[tensor.untyped_storage()._cdata] = tensor
            if doubt:
                self.current.tainted[tensor.untyped_storage()._cdata] = doubt
        base = tensor._base
        if base is not None:
            mark = mark_of(base)
            if mark is None or not self._is_current(mark) or stride < 0 or mark.stride is None:
                why = doubt or "records were written into a part of a tensor"
                set_mark(base, self.current.unknown(why))

    def _note_hidden_writing(self, name: str, tensor: Tensor) -> None:
        """An operation has changed an argument, and neither its name nor ``out`` has said so."""
        assert self.current is not None
        if self.current.trusting or self.current.alone:
            return
        self._refuse_guarded(tensor)
        why = f"`{name}` changes a tensor in place in a way that is not followed{self._where()}"
        set_mark(tensor, self.current.unknown(why))
        self._note_writing(tensor, UNKNOWN, why)

    def _save(self, written: Tensor) -> None:
        """In a rehearsal, keep what a constant held before it is written into."""
        if self.still and id(written) not in self.saved and self._is_constant(written):
            with torch._C.DisableTorchFunction():
                self.saved[id(written)] = (written, written.detach().clone())

    def _refuse_trained_elsewhere(self, known: list[tuple[Tensor, Mark | None]]) -> None:
        """A tensor that is trained, and of which the plan knows nothing, would have the raw gradient of the records."""
        for tensor, mark in known:
            if mark is None and tensor.requires_grad and tensor.is_leaf and id(tensor) not in self._names:
                raise UnsupportedModelError(
                    f"A tensor of shape {tuple(tensor.shape)} that requires a gradient meets the records, and is not among the "
                    f"parameters that make_private was given: give it all models that learn from the records, as "
                    f"make_private([model, head], ...), or freeze it with requires_grad_(False)."
                )

    def _refuse_penalty(self, known: list[tuple[Tensor, Mark | None]]) -> None:
        """A parameter meets what is left of the records after they were joined: that gradient would belong to no record."""
        if any(mark is not None and mark.stride is not None and mark.stride < UNKNOWN for _, mark in known):
            name = next(name for tensor, _ in known if self.tracks(tensor) for name in self.sources(tensor))
            raise UnsupportedModelError(
                f"Parameter '{name}' is used in the loss after the records were joined, so that its gradient belongs to no "
                f"record. For a penalty use the optimizer's weight_decay, or private.public(function)."
            )

    def _refuse_guarded(self, written: Tensor, why: str = "") -> None:
        name = self._guarded.get(written.untyped_storage()._cdata)
        if name is not None:
            because = f" ({why})" if why else ""
            raise self.refusal(
                f"'{name}' is changed by the records, outside the clipped gradient{because}. Keep statistics of records out "
                f"of the model, or put the module that keeps them in eval mode"
            )

    def _where(self) -> str:
        module = f" in module '{self.module}'" if self.module else ""
        line = source_line()
        return f"{module} ({line})" if line else module

    def _go_on(self, why: str) -> None:
        assert self.current is not None
        self.current.doubts[why] = None

    # --- modules with a rule of their own ---------------------------------------------------------------------------

    def suspend(self, module: nn.Module) -> None:
        """A module with a rule of its own begins: its operations are not looked at, its parameters are constants."""
        own = [p for p in module.parameters() if p.requires_grad]
        for parameter in own:
            parameter.requires_grad_(False)
        self._suspended.append(own)

    def resume(self) -> None:
        for parameter in self._suspended.pop():
            parameter.requires_grad_(True)

    def set_stride_like(self, out: Tensor, inputs: tuple[Tensor, ...]) -> None:
        """The records are in front, as they must be in the first input of a module with a rule of its own."""
        for tensor in inputs:
            if self._look(tensor) is not None:
                self.known_stride(tensor, "forward")
        front = inputs[0].shape[0] // self.records if inputs and self.records else 1
        if front * self.records != out.shape[0]:
            raise self.refusal("its own rule needs the records in the first dimension of its input and its output")
        self.set_stride(out, stride_at(out.shape, 0, front))

    def set_stride(self, tensor: Tensor, stride: int) -> None:
        """State where the records are in the result of a rule that knows better than `follow`."""
        assert self.current is not None
        place = stride if position(tensor.shape, stride, self.records) else UNKNOWN
        self.note(tensor, place, "", tensor)


def _has_shape_of_records(name: str, args: tuple[Any, ...], known: list[tuple[Tensor, Mark | None]]) -> bool:
    """Whether values of the records decide the shape of a result; of an operation that is not known, they may."""
    if not is_known(name):
        return True
    masks = {id(t) for t, mark in known if mark is not None and t.dtype in (torch.bool, torch.uint8)}
    indexed = name in ("__getitem__", "getitem") and any(id(t) in masks for t in tensors_in(args[1:]))
    return indexed or name in ("where", "repeat_interleave", "one_hot")


def _same_for_all(tensor: Tensor, at: Position) -> bool:
    """Whether a constant holds the same for every record."""
    with torch._C.DisableTorchFunction():
        records = tensor.shape[at.dim] // (at.outer * at.inner)
        rows = tensor.detach().unflatten(at.dim, (at.outer, records, at.inner)).movedim(at.dim + 1, 0)
        return bool((rows == rows[:1]).all())


def _version(tensor: Tensor) -> int:
    """How often a tensor was written into; tensors of inference mode do not count it."""
    return -1 if tensor.is_inference() else tensor._version


def _before(written: Tensor, mark: Mark | None) -> Tensor:
    """What a constant held before it is written into."""
    if mark is not None or not written.ndim:
        return written
    with torch._C.DisableTorchFunction():
        before = written.detach().clone()
    if mark_of(written) is RANDOM:
        set_mark(before, RANDOM)
    return before


def _guessed(moved: Moved) -> int:
    """Where the records would be if the operation kept them apart, for a run that goes on under this assumption."""
    known = [(t, s) for t, s in moved.tensors if s is not None and s >= 0]
    if not known:
        return UNKNOWN
    source, stride = known[0]
    rest = Moved(moved.args, moved.kwargs, source, stride, known, moved.out, moved.records, moved.index)
    found = aligned(rest, moved.out.shape)
    if found >= 0 and position(moved.out.shape, found, moved.records):
        return found
    at = rest.at
    if at is not None and at.dim < moved.out.ndim and moved.out.shape[at.dim] == source.shape[at.dim]:
        return stride_at(moved.out.shape, at.dim, at.inner)
    return UNKNOWN


def _only_repeats_single(source: Tensor, out: Tensor) -> bool:
    padded = [1] * (out.ndim - source.ndim) + list(source.shape)
    return all(size in (1, grown) for size, grown in zip(padded, out.shape, strict=True))
