"""What is known of each tensor in a pass: whether it depends on records, where the records are in it, and where it comes from."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from privet.errors import PrivetError
from privet.gradients.marks import (
    MEAN,
    UNKNOWN,
    Derived,
    Mark,
    Pass,
    is_written_unseen,
    mark_of,
    note_version,
    position,
    set_mark,
    set_starts,
    stride_at,
)
from privet.gradients.vocabulary import is_custom, tensors_in

RAGGED = (
    "a tensor of the batch has a different number of rows for each record, which only `embedding_bag` with the records' offsets "
    "keeps apart; pad the records to one length"
)
_OURS = str(Path(__file__).parent.parent)
_TORCH = str(Path(torch.__file__).parent)
_BETWEEN = tuple(str(Path(torch.__file__).parent / name) for name in ("overrides.py", "_tensor.py"))
"""Files of torch through which a call of a method of a tensor, such as ``len(x)``, comes to a mode."""


def source_line() -> str:
    """File name and line of the innermost call outside torch and this library; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_OURS, _TORCH, "<")):
            return f"{Path(path).name}, line {frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def is_called_by(package: str) -> bool:
    """Whether the innermost call outside this library is in the given package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, *_BETWEEN)):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith(package)


def _share_memory(one: Tensor, other: Tensor) -> bool:
    return one.layout is torch.strided and one.untyped_storage()._cdata == other.untyped_storage()._cdata


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written into; -1 in inference mode, where torch does not count."""
    return -1 if tensor.is_inference() else tensor._version


class UnsupportedModelError(PrivetError):
    """Per-example gradients of this model cannot be computed; the message names the module and a way out."""


class Knowledge:
    """The marks on the tensors of a pass, and the constants and parameters, which need no mark."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.parameters = parameters
        self._names = {id(p): name for name, p in parameters.items()}
        self._guarded: dict[int, str] = {}
        self._owners: dict[int, Tensor] = {}
        self._beside: dict[int, str] = {}
        """The names of guarded tensors that are not trained, by id."""
        self.guard(())
        self.data: set[int | None] = set()
        """The memory of the data set."""
        self.modules: list[str] = []
        """The dotted names of the modules whose forward pass is running, outermost first."""
        self.current: Pass | None = None
        self.repeating = False
        """Whether activation checkpointing runs a part of the forward pass again, during the backward pass."""
        self.still = False
        """Whether dropout is off, so that two runs can be compared."""
        self.size_divisors: frozenset[float] = frozenset()
        """Divisors that a self-check has found to be proportional to the number of records, divided by it: a sum that is
        divided by one of them is a mean."""
        self.frozen: dict[int, Tensor] = {}
        """The model's parameters that are not trained, by their memory."""
        self._constants: dict[int, ref[Tensor]] = {}
        self._written: dict[int, StorageWeakRef] = {}
        """Memory that records were written into, as long as anybody holds it."""
        self._exposed: dict[int, tuple[str, Tensor]] = {}
        """Tensors of the model and its optimizers whose memory was shown to others than torch, with their names."""
        self._copies: dict[int, tuple[int, Tensor]] = {}
        """Versions and values of these tensors, for `refuse_unseen_writes`."""
        self._versions: dict[int, int] = {}
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}
        """Constants that a rehearsal has written into, with their previous values."""
        self.generators: dict[int, tuple[torch.Generator, Tensor]] = {}
        """Generators of the user that a rehearsal has drawn from, with their first state."""

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
        """Where the records are in a tensor; None if it does not depend on the batch."""
        mark = self._look(tensor)
        return None if mark is None else mark.stride

    def doubt_of(self, tensor: Tensor) -> str:
        """Why the tensor is not known to keep records apart; empty if it is."""
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
        """The mark of a tensor in this pass; None for a constant or a parameter. A tensor of unknown origin is not a constant."""
        mark, current = mark_of(tensor), self.current
        if tensor.is_complex() and is_written_unseen(tensor) and current is not None and not current.trusting:
            return current.unknown("a complex tensor was written into in a way that is not seen, as with `z.real = x`")
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
        if current.public and tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self.data:
            return current.unknown("a tensor of the data set is used")
        if current.public or current.strangers:
            return None
        if id(tensor) in self._names or self._is_constant(tensor) or self._is_frozen(tensor):
            return self._if_written(tensor)
        return current.unknown(
            "it uses a tensor of unknown origin, for instance from NumPy, torch.func.vmap or code between two loops: create "
            "constants before the first loop, and tensors of records in the data set or its collate function"
        )

    def _if_written(self, tensor: Tensor) -> Mark | None:
        if self._written and not self.current_trusts() and tensor.untyped_storage()._cdata in self._written:
            assert self.current is not None
            return self.current.unknown("records were written into a tensor that existed before the batch")
        return None

    def _if_tainted(self, tensor: Tensor, mark: Mark) -> Mark:
        """The mark of a tensor that may share memory with one in which records may have been mixed: then it is unknown, too."""
        current = self.current
        assert current is not None
        why = current.tainted.get(tensor.untyped_storage()._cdata, "") if tensor.layout is torch.strided else ""
        return Mark(mark.token, mark.stride if current.assume else UNKNOWN, why) if why else mark

    def current_trusts(self) -> bool:
        return self.current is None or self.current.trusting

    def _if_customized(self, tensor: Tensor, mark: Mark) -> Mark:
        """The mark of a result of a custom ``autograd.Function``, whose backward pass is not followed."""
        if self.current is None or mark.why or self.current.alone:
            return mark
        root = tensor._base
        # First the node of the whole tensor: torch may hold a lock on that of its part.
        node = tensor.grad_fn if root is None else root.grad_fn
        hidden = type(node).__name__ == "CopySlices" and all(node is not each for each in self.current.copied)
        if not hidden and root is not None:
            node = tensor.grad_fn
        if not hidden and (node is None or not is_custom(type(node))):
            return mark
        name = "that has written into a part of a tensor" if hidden else type(node).__name__.removesuffix("Backward")
        why = f"the backward pass of the autograd.Function {name} is not followed"
        if name == "CheckpointFunction":
            why = (
                "a part is checkpointed with use_reentrant=True, which hides its forward pass; use use_reentrant=False"
            )
        return Mark(mark.token, mark.stride if self.current.assume else UNKNOWN, why)

    def _is_constant(self, tensor: Tensor) -> bool:
        known = self._constants.get(id(tensor))
        return known is not None and known() is tensor

    def _is_frozen(self, tensor: Tensor) -> bool:
        """Whether a tensor of unknown origin lives in the memory of a frozen parameter of the model, as
        ``nn.Parameter(weight.T)`` does: then it existed before the batch, and holds no records unless they were written there.
        """
        memory = tensor.untyped_storage()._cdata if self.frozen and tensor.layout is torch.strided else None
        owner = self.frozen.get(memory) if memory is not None else None
        return owner is not None and owner.untyped_storage()._cdata == memory

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of the parameter that a tensor is; None if it is none."""
        return self._names.get(id(tensor))

    def sources(self, tensor: Tensor) -> list[str]:
        """The names of the parameters that a tracked tensor depends on."""
        if id(tensor) in self._names:
            return [self._names[id(tensor)]]
        mark = mark_of(tensor)  # the pass may be over
        assert mark is not None and mark.derived is not None
        return list(dict.fromkeys(name for source in mark.derived.sources for name in self.sources(source)))

    def note(self, out: Tensor, stride: int, why: str, like: Tensor) -> None:
        """State where the records are in a result that was computed here, and why that may be wrong."""
        assert self.current is not None
        if self.current.escaped and like.requires_grad and not self.repeating:
            why = why or self.current.escaped
        if self.records == 1 and stride < UNKNOWN:
            stride = 0  # one record owns everything
        why = why or self.doubt_of_mean(out, stride)
        if why and not self.current.assume:
            stride = UNKNOWN
        set_mark(out, Mark(self.current.token, stride, why))

    def doubt_of_mean(self, out: Tensor, stride: int) -> str:
        """Why a mean over the records cannot be trusted: in half precision, even a division by their number rounds."""
        if stride != MEAN or self.current_trusts() or out.element_size() >= 4:
            return ""
        return (
            "a mean over the records in half precision makes the rounding of all gradients depend on the size of the batch; take "
            "the mean of losses.float()"
        )

    def note_derived(self, out: Tensor, sources: tuple[Tensor, ...], expanded: Tensor | None = None) -> None:
        assert self.current is not None
        set_mark(out, Mark(self.current.token, None, derived=Derived(sources, expanded)))
        # A slot refers to it after the forward pass, when perhaps nothing else does.
        self.current.derived.append(out)

    def set_stride(self, tensor: Tensor, stride: int) -> None:
        """State where the records are in a result whose rule knows more than `follow`."""
        assert self.current is not None
        place = stride if position(tensor.shape, stride, self.records) else UNKNOWN
        self.note(tensor, place, "", tensor)

    def set_stride_like(self, out: Tensor, inputs: tuple[Tensor, ...]) -> None:
        """State that the records are in front, as they must be in the input and output of a module with a rule of its own."""
        for tensor in inputs:
            if self._look(tensor) is not None:
                self.known_stride(tensor, "forward")
        front = inputs[0].shape[0] // self.records if inputs and self.records else 1
        if front * self.records != out.shape[0]:
            raise self.refusal("its own rule needs the records in the first dimension of its input and its output")
        self.set_stride(out, stride_at(out.shape, 0, front))

    # --- what is known at the start ---------------------------------------------------------------------------------

    def take(self, current: Pass) -> None:
        """Make a pass the current one."""
        self.current = current
        current.token.owner = self

    def begin(self, current: Pass, inputs: Any, batch_dim: int, views: int) -> None:
        """Mark the inputs of a model that this library calls: those with the expected number of rows."""
        self.take(current)
        rows = current.records * views
        for index, tensor in enumerate(tensors_in(inputs)):
            if tensor.ndim <= batch_dim or tensor.shape[batch_dim] != rows:
                continue
            square = tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]
            if index and square and tensor.dtype != torch.long:
                continue  # it may be an attention mask; treated as a constant it is right in both cases
            set_mark(tensor, Mark(current.token, stride_at(tensor.shape, batch_dim, views)))
            if tensor.ndim == 1 and not tensor.is_floating_point():
                set_starts(tensor)  # whoever calls the engine directly vouches for offsets

    def hand_out(self, current: Pass, batch: Iterable[tuple[Tensor, int | None]]) -> None:
        """Mark the tensors of a batch, each given with the dimension that holds its records, with `ROWS` or `STARTS`, or None."""
        self.take(current)
        self._written = {key: memory for key, memory in self._written.items() if not memory.expired()}
        for tensor, dim in batch:
            if current.alone:  # all of the batch is made of one record, whatever its shape
                set_mark(tensor, Mark(current.token, 0))
            elif dim is None:
                set_mark(tensor, current.unknown("a part of the batch has no dimension for the records"))
            elif dim < 0:
                current.ragged[id(tensor)] = (tensor, dim)
                set_mark(tensor, current.unknown(RAGGED))
            elif tensor.shape[dim] != current.records * current.each:
                set_mark(
                    tensor, current.unknown("a part of the batch has another number of rows than there are records")
                )
            else:
                set_mark(tensor, Mark(current.token, stride_at(tensor.shape, dim, current.each)))

    def know(self, constants: Iterable[Tensor]) -> None:
        """Declare constants: tensors that existed before the first batch, and hold none of its records."""
        for tensor in constants:
            self._constants[id(tensor)] = ref(tensor)
            if tensor.is_complex():
                note_version(tensor)

    def guard(self, others: Iterable[tuple[str, Tensor]]) -> None:
        """Guard the parameters, and other tensors with their names: records must not change them."""
        others = tuple(others)
        named = (*self.parameters.items(), *others)
        self._guarded = {t.untyped_storage()._cdata: name for name, t in named if t.layout is torch.strided}
        self._beside = {id(t): name for name, t in others}
        self._owners = {t.untyped_storage()._cdata: t for _, t in named if t.layout is torch.strided}

    def watch(self, buffers: Iterable[tuple[str, Tensor]]) -> None:
        """Guard buffers of the model, which records must not change."""
        for name, buffer in buffers:
            self._guarded[buffer.untyped_storage()._cdata] = name
            self._owners[buffer.untyped_storage()._cdata] = buffer
            self._versions[id(buffer)] = buffer._version
            self.know([buffer])

    def is_changed(self, buffer: Tensor) -> bool:
        """Whether a buffer was changed since it was guarded."""
        return self._versions.get(id(buffer)) != buffer._version

    def _refuse_guarded(self, written: Tensor, why: str = "") -> None:
        name = self._guarded.get(written.untyped_storage()._cdata) or self._names.get(id(written))
        name = name or self._beside.get(id(written))
        if name is None and self.current is not None and self.current.alone:
            owners = (
                key for key, p in self.parameters.items() if p.grad is not None and _share_memory(p.grad, written)
            )
            name = next((f"the gradient of {key}" for key in owners), None)
        if name is not None:
            because = f" ({why})" if why else ""
            raise self.refusal(
                f"'{name}' is changed by the records, outside the clipped gradient{because}. Keep statistics of records out "
                f"of the model, or put the module that keeps them in eval mode"
            )

    def _guard_again(self, tensor: Tensor) -> None:
        """Guard the new memory of a tensor whose ``data`` was replaced."""
        name = next((self._guarded[memory] for memory, owner in self._owners.items() if owner is tensor), None)
        if name is not None and tensor.layout is torch.strided:
            memory = tensor.untyped_storage()._cdata
            self._guarded[memory], self._owners[memory] = name, tensor

    def _expose(self, tensor: Tensor) -> None:
        """Note that the memory of a tensor was shown to others than torch, who can write into it without being seen."""
        memory = tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None
        if memory in self._guarded and memory not in self._exposed:
            owner = self._owners[memory]
            self._exposed[memory] = (self._guarded[memory], owner)
            self._copy(owner)

    def copy_exposed(self) -> None:
        """Keep the values of exposed tensors until `refuse_unseen_writes`."""
        for _, tensor in self._exposed.values():
            self._copy(tensor)

    def _copy(self, tensor: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            self._copies[id(tensor)] = (version_of(tensor), tensor.detach().clone())

    def refuse_unseen_writes(self) -> None:
        """Raise if an exposed tensor has other values, and torch has not written into it."""
        with torch._C.DisableTorchFunction():
            for name, tensor in self._exposed.values():
                version, value = self._copies[id(tensor)]
                if version == version_of(tensor) and not torch.equal(value.nan_to_num(), tensor.nan_to_num()):
                    raise UnsupportedModelError(
                        f"'{name}' was written into past torch, for instance through its NumPy array, while a private batch was "
                        f"out: such a write is not followed, and may hold records. Write with operations of torch."
                    )

    def _where(self) -> str:
        module = f" in module '{self.module}'" if self.module else ""
        line = source_line()
        return f"{module} ({line})" if line else module

    def _go_on(self, why: str) -> None:
        assert self.current is not None
        self.current.doubts[why] = None
