"""The recorder: sees every torch operation of a forward pass and taps those that combine records with parameters.

It is a torch function mode and not a set of layer hooks, because then it sees *every* use of a parameter: a weight tied
by ``F.linear(x, embedding.weight)``, a bare ``nn.Parameter``, a layer called twice, a weight that is recomputed from
others. What it cannot see (a custom ``autograd.Function``) autograd delivers to ``parameter.grad``, where the engine
stands guard and refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from privet.errors import PrivetError
from privet.gradients.following import Moved, follow
from privet.gradients.layout import UNKNOWN, position, stride_at
from privet.gradients.operation import REFUSED, RULES, Operation
from privet.gradients.tap import Receive, copies, tap
from privet.gradients.use import Budget, Use


class UnsupportedModelError(PrivetError):
    """Per-example gradients of this model cannot be formed; the message names the module and the way out."""


@dataclass(eq=False)
class Pass:
    """What one forward and one backward pass over one physical batch recorded."""

    records: int
    budget: Budget
    uses: list[Use] = field(default_factory=list)
    received: list[Use] = field(default_factory=list)
    derived: list[Tensor] = field(default_factory=list)
    closed: bool = False
    token: object = field(default_factory=object)
    """What marks the tensors of this pass."""


@dataclass(frozen=True)
class Derived:
    """A tensor computed from parameters alone."""

    sources: tuple[Tensor, ...]
    """The tracked tensors that it was computed from, in one step."""
    expanded: Tensor | None = None
    """The tracked tensor that it repeats along new or single dimensions, if it only does that."""


_SILENT = frozenset(
    "size dim stride numel nelement __len__ is_floating_point is_complex is_contiguous element_size data_ptr get_device "
    "ndimension storage_offset __bool__ __format__ __repr__ item tolist type is_nested _is_view requires_grad_ "
    "register_hook _set_grad_enabled new_zeros new_ones new_full new_empty new_tensor __hash__ is_same_size".split()
)
"""What says nothing of the records, or makes a constant."""
_MARK = "_privet_mark"
_GETTERS_THAT_MOVE = frozenset({"T", "mT", "mH", "H", "real", "imag"})


class Recorder(TorchFunctionMode):
    """Active while the model's forward pass runs; see the module's docstring."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.parameters = parameters
        self._names = {id(p): name for name, p in parameters.items()}
        self.modules: list[str] = []
        """The dotted names of the modules whose forward pass is running, outermost first."""
        self.current: Pass | None = None
        self._suspended: list[list[nn.Parameter]] = []

    # --- what rules ask ---------------------------------------------------------------------------------------------

    @property
    def module(self) -> str:
        return self.modules[-1] if self.modules else ""

    @property
    def records(self) -> int:
        assert self.current is not None
        return self.current.records

    def tracks(self, tensor: Tensor) -> bool:
        return id(tensor) in self._names or isinstance(self._mark_of(tensor), Derived)

    def expanded_from(self, tensor: Tensor) -> Tensor | None:
        mark = self._mark_of(tensor)
        return mark.expanded if isinstance(mark, Derived) else None

    def stride(self, tensor: Tensor) -> int | None:
        """Where the records are, None if the tensor does not depend on the batch."""
        mark = self._mark_of(tensor)
        return mark if isinstance(mark, int) else None

    def _mark_of(self, tensor: Tensor) -> int | Derived | None:
        """What this pass noted on a tensor: a stride, or how it was derived from parameters.

        An attribute of the tensor, because every operation of the forward pass asks for it; a dictionary with weak keys
        takes twenty times as long. The token tells this pass's marks from older ones on a tensor that is used again.
        """
        mark = getattr(tensor, _MARK, None)
        return mark[1] if mark is not None and self.current is not None and mark[0] is self.current.token else None

    def _set_mark(self, tensor: Tensor, mark: int | Derived) -> None:
        assert self.current is not None
        setattr(tensor, _MARK, (self.current.token, mark))

    def known_stride(self, tensor: Tensor, operation: str) -> int:
        stride = self.stride(tensor)
        if stride is None or stride == UNKNOWN:
            raise self.refusal(f"it is not known which part of the input of `{operation}` belongs to which record")
        return stride

    def refusal(self, why: str) -> UnsupportedModelError:
        where = f"module '{self.module}'" if self.module else "the model"
        return UnsupportedModelError(
            f"Per-example gradients of {where} cannot be formed: {why}. If the module treats each record on its own, "
            f"keep the records in one dimension, or register a rule for its class with @privet.gradients.rule."
        )

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
            self.before_receive(current)
            # Without its history: what a use keeps would keep the graph alive, and the graph the use.
            waiting[0].receive(tuple(t.detach() for t in saved), grad, current.budget)
            current.received.append(waiting.pop())

        return receive

    def before_receive(self, current: Pass) -> None:
        """Called in the backward pass before each use takes its gradient; the engine looks at the loss here."""

    def note_derived(self, out: Tensor, sources: tuple[Tensor, ...], expanded: Tensor | None = None) -> None:
        self._set_mark(out, Derived(sources, expanded))
        assert self.current is not None
        # A slot refers to it after the forward pass is over, when nothing else may.
        self.current.derived.append(out)

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a tensor that is a parameter itself."""
        return self._names.get(id(tensor))

    def sources(self, tensor: Tensor) -> list[str]:
        """The names of the parameters that a tracked tensor depends on."""
        if id(tensor) in self._names:
            return [self._names[id(tensor)]]
        derived = getattr(tensor, _MARK)[1]  # of a pass that may be over
        return list(dict.fromkeys(name for source in derived.sources for name in self.sources(source)))

    def listen(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    # --- interception -----------------------------------------------------------------------------------------------

    def begin(self, current: Pass, inputs: Any, batch_dim: int, views: int) -> None:
        """Mark the tensors that hold the batch: all inputs with as many rows, the first one for certain."""
        self.current = current
        rows = current.records * views
        for index, tensor in enumerate(_tensors(inputs)):
            if tensor.ndim <= batch_dim or tensor.shape[batch_dim] != rows:
                continue
            square = tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]
            if index and square and tensor.dtype != torch.long:
                continue  # as like an attention mask as a batch; as a constant it is right either way
            self._set_mark(tensor, stride_at(tensor.shape, batch_dim, views))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        if self._suspended or name in _SILENT or (name not in _GETTERS_THAT_MOVE and func.__name__ == "__get__"):
            return func(*args, **kwargs)
        tensors = _tensors((args, kwargs) if kwargs else args)
        batched = tracked = False
        known: list[tuple[Tensor, int | None]] = []
        for tensor in tensors:
            mark = self._mark_of(tensor)
            stride = mark if isinstance(mark, int) else None
            known.append((tensor, stride))
            batched = batched or stride is not None
            tracked = tracked or id(tensor) in self._names or isinstance(mark, Derived)
        if batched and name in REFUSED:
            raise self.refusal(REFUSED[name])
        if not (tracked and torch.is_grad_enabled()):
            out = func(*args, **kwargs)
            if batched:
                self._follow(name, args, kwargs, known, out)
            return out
        if not batched:
            return self._from_parameters_alone(name, func, args, kwargs, tensors)
        if isinstance(func, FunctionType):
            with self:
                return _unguarded(func)(*args, **kwargs)
        operation = Operation(self, name, func, args, kwargs)
        out = RULES[name](operation) if name in RULES else operation.generic()
        self._follow(name, args, kwargs, known, out)
        return out

    def _from_parameters_alone(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        out = func(*args, **kwargs)
        sources = tuple(t for t in tensors if self.tracks(t))
        expanded = sources[0] if name in {"expand", "expand_as", "broadcast_to", "repeat"} else None
        if expanded is not None and name == "repeat" and not _only_repeats_single(expanded, out):
            expanded = None
        for tensor in _tensors(out):
            if tensor.requires_grad and not self.tracks(tensor):
                self.note_derived(tensor, sources, expanded)
        return out

    def _follow(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: list[tuple[Tensor, int | None]],
        out: Any,
    ) -> None:
        if isinstance(out, Tensor) and self.stride(out) is not None and not name.endswith("_"):
            return
        source, stride = next((t, s) for t, s in known if s is not None)
        if any(s == UNKNOWN for _, s in known):
            stride = UNKNOWN
        for index, tensor in enumerate(_tensors(out)):
            if (tensor.ndim and self.stride(tensor) is None) or name.endswith("_"):
                moved = Moved(args, kwargs, source, stride, known, tensor, self.records, index)
                self._set_mark(tensor, follow(name, moved))

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
        front = inputs[0].shape[0] // self.records if inputs and self.records else 1
        if front * self.records != out.shape[0]:
            raise self.refusal("its own rule needs the records in the first dimension of its input and its output")
        self.set_stride(out, stride_at(out.shape, 0, front))

    def set_stride(self, tensor: Tensor, stride: int) -> None:
        """State where the records are in the result of a rule that knows better than `follow`."""
        self._set_mark(tensor, stride if position(tensor.shape, stride, self.records) else UNKNOWN)


def _name(func: Callable[..., Any]) -> str:
    name: str = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", name)
    return name


_ATOMS = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device, slice})
"""What is neither a tensor nor holds one. Asked first: ``isinstance(1, Tensor)`` is slow."""


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a value, in order; a tensor alone is its own list."""
    found: list[Tensor] = []
    _gather((value,), found)
    return found


def _gather(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        if type(value) in _ATOMS:
            continue
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _gather(value, found)
        elif isinstance(value, dict):
            _gather(value.values(), found)


def _only_repeats_single(source: Tensor, out: Tensor) -> bool:
    padded = [1] * (out.ndim - source.ndim) + list(source.shape)
    return all(size in (1, grown) for size, grown in zip(padded, out.shape, strict=True))


@cache
def _unguarded(func: FunctionType) -> Callable[..., Any]:
    """torch's own Python function without its first question, "is a mode active?", so that its parts are seen one by
    one: multi-head attention becomes the linear maps it consists of, in torch's own words."""
    never = {name: _never for name in func.__globals__ if name.startswith("has_torch_function")}
    clone = FunctionType(
        func.__code__, {**func.__globals__, **never}, func.__name__, func.__defaults__, func.__closure__
    )
    clone.__kwdefaults__ = func.__kwdefaults__
    return clone


def _never(*_: Any) -> bool:
    return False
