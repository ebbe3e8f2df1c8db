"""The engine: gradients of every record from one forward and one backward pass over an untouched model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import is_not
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privet.errors import InputError, PrivetError
from privet.gradients.fix import refuse_mixing_modules
from privet.gradients.knowledge import UnsupportedModelError
from privet.gradients.marks import MEAN, UNKNOWN, Pass, mark_of, position
from privet.gradients.operation import Own, OwnRule, rule_for, trusted_rules
from privet.gradients.packed import Packing, packed_again, packing_of
from privet.gradients.per_example import PerExampleGradients
from privet.gradients.recorder import NOT_PUBLIC, Recorder, refuse_other_modes
from privet.gradients.use import MemoryBudget, Use
from privet.gradients.vocabulary import tensors_in

DEFAULT_MEMORY_BUDGET = 256 * 2**20
Reduction = Literal["mean", "sum"]
PER_RECORD = "Give a vector with one loss for each record to private.step(losses) or private.backward(losses)."


class UnknownReductionError(PrivetError):
    """The loss is not known to be a sum or a mean of each record's own loss."""


class Whole(Use):
    """All parameters at once, for a batch that is one record."""


class OwnHook:
    """A hook of the engine on a module of the user. A copy of the module, also one in a file, has a hook that does nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes any arguments, and needs no Privet where the file is read


class Engine:
    """Per-example gradients of a model, in ordinary training code.

            with Engine(model) as engine:
                loss = criterion(model(x), y)
                loss.backward()
                gradients = engine.gradients()

    While the engine is attached (inside ``with``, or between `attach` and `detach`) it listens to every forward pass of the
    model that runs with gradients enabled. It changes nothing: the model keeps its type, parameters, ``state_dict`` and
    results, and the hooks are removed by `detach`. ``parameter.grad`` is not filled.

    Formal guarantees: `gradients` returns the gradient of each record's own loss for every trainable parameter, or the
    engine raises. It never ignores a use of a parameter silently.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss_reduction: Literal["auto", "mean", "sum"] = "auto",
        memory_budget: int | None = None,
        batch_dim: int = 0,
        views: int = 1,
    ) -> None:
        """Args:
        model: any module; parameters with ``requires_grad`` are trained.
        loss_reduction: how the loss combines its records; "auto" finds out from the loss and raises if it cannot.
        memory_budget: bytes of per-example gradients that may be kept; beyond that, slower methods are used that need less.
        batch_dim: the dimension of the model's inputs that holds the records.
        views: how many consecutive rows of the batch are views of one record (augmentation multiplicity). They count as one
            record, whose loss is their mean or their sum, whichever the loss takes.
        """
        if loss_reduction not in ("auto", "mean", "sum"):
            raise InputError(f"loss_reduction is 'auto', 'mean' or 'sum', not {loss_reduction!r}.")
        self.model = model
        self.memory_budget = memory_budget
        self.batch_dim = batch_dim
        self.views = views
        self.loss_reduction = loss_reduction
        self._handles: list[Any] = []
        self._recorder = Recorder({})
        self._depth = 0
        self._pass: Pass | None = None
        self._doubts: tuple[str, ...] = ()
        self._buffers: list[tuple[str, nn.Module, str]] = []
        self._extra_modules: list[tuple[str, nn.Module]] = []
        self._extra: dict[str, list[Any]] = {}
        self._all_modules: list[tuple[str, nn.Module]] = []
        self._entries: list[tuple[Any, ...]] = []
        self._explained: list[tuple[str, str, str, int, str]] | None = None
        self._raised: list[Any] = []
        self._packings: list[Packing | None] = []
        self.trusted: tuple[str, ...] = ()
        """What is assumed of the rules of other packages that the model uses; known when the engine is attached."""

    # --- attaching --------------------------------------------------------------------------------------------------

    def attach(self) -> Engine:
        if self._handles:
            raise PrivetError("The engine is attached already.")
        refuse_mixing_modules(self.model)
        self.trusted = trusted_rules(self.model)
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not parameters:
            raise InputError("The model has no parameter that requires a gradient: nothing can be trained.")
        for name, parameter in parameters.items():
            if parameter.is_complex():
                raise InputError(
                    f"Parameter '{name}' is complex: train its real and imaginary parts as two parameters."
                )
        self._recorder = Recorder(parameters)
        self._recorder.frozen = {p.untyped_storage()._cdata: p for p in self.model.parameters() if not p.requires_grad}
        self._recorder.before_backward = self._look_at_loss  # type: ignore[method-assign]
        self._recorder.before_reading_gradient = self._refuse_reading  # type: ignore[method-assign]
        self._buffers = [
            (name, module, key)
            for name, module in self.model.named_modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._all_modules = list(self.model.named_modules())
        self._extra_modules = [
            (name, module)
            for name, module in self.model.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        ]
        for name, module in self.model.named_modules():
            own = rule_for(module)
            before = self._enter_own(name, module) if own else self._enter(name)
            after = self._leave_own(module, own) if own else self._leave()
            if isinstance(module, nn.RNNBase) and not own:
                before, after = self._enter_packed(name, module), self._leave_packed(module)
            self._handles.append(module.register_forward_pre_hook(OwnHook(before), with_kwargs=True))
            self._handles.append(module.register_forward_hook(OwnHook(after), with_kwargs=True, always_call=True))
        for name, parameter in parameters.items():
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._guard(name)))
        return self

    def detach(self) -> None:
        self._stop()
        self._strict = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._pass = None

    def __enter__(self) -> Engine:
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, the model is an ordinary model: for evaluation, or for a generator's step through a discriminator.

        While a batch is out, a backward pass on its records is refused, and so is writing them into the model.
        """
        handles, paused, listening = self._handles, self._paused, self._recorder.is_listening
        before = self._pass, self._recorder.current
        self._paused = True
        self._stop()
        if listening and self._strict:
            self._pass = Pass(1, MemoryBudget(0), trusting=False, public=True, alone=True)
            self._recorder.take(self._pass)
            self._listen()
        try:
            yield
        finally:
            self._stop()
            read = self.has_read
            self._pass, self._recorder.current = before
            if self._recorder.current is not None:
                self._recorder.current.read = self._recorder.current.read or read
            self._paused = paused
            assert handles is self._handles
            if listening:
                self._recorder.watch((name, module._buffers[key]) for name, module, key in self._buffers)  # type: ignore[misc]
                self._listen()

    _paused = False

    @contextmanager
    def watching(self, data: set[int | None]) -> Iterator[None]:
        """Outside of a loop, refuse a backward pass on the memory of the data set, and writing it into the model."""
        if self._handles or not data:
            yield
            return
        recorder, opened = self._recorder, self._pass
        self._recorder = Recorder({name: p for name, p in self.model.named_parameters() if p.requires_grad})
        self._recorder.before_backward = self._look_at_loss  # type: ignore[method-assign]
        self._recorder.data.update(data)
        self._pass, self._paused = Pass(1, MemoryBudget(0), trusting=False, public=True, alone=True), True
        self._recorder.take(self._pass)
        self._listen()
        try:
            yield
        finally:
            self._stop()
            self._recorder, self._pass, self._paused = recorder, opened, False

    # --- results ----------------------------------------------------------------------------------------------------

    def gradients(self) -> PerExampleGradients:
        """The gradients of the physical batch whose backward pass has just run."""
        if self._pass is not None and self._pass.alone:
            self._take_whole()
        if self._pass is None or (not self._pass.received and self._pass.records):
            raise PrivetError(
                "There are no gradients yet: run the model and loss.backward() while the engine is attached."
            )
        with torch._C.DisableTorchFunction():  # no operation in here needs to be followed
            return self._close()

    def _take_whole(self) -> None:
        """Take the gradient of a batch of one record from the parameters, where autograd has put it."""
        assert self._pass is not None
        given = {name: p for name, p in self._recorder.parameters.items() if p.grad is not None}
        if isinstance(self._pass.pending, PrivetError):
            raise self._pass.pending
        if self._pass.pending is not None and given:
            whole = Whole("", 1, dict(given))
            whole.hold({name: p.grad.unsqueeze(0) for name, p in given.items() if p.grad is not None}, "alone")
            self._pass.received.append(whole)
            for parameter in given.values():
                parameter.grad = None

    def empty(self) -> PerExampleGradients:
        """The gradients of an empty batch."""
        return PerExampleGradients(self._recorder, Pass(0, MemoryBudget(0)), 1.0)

    def _close(self) -> PerExampleGradients:
        assert self._pass is not None
        if not self._pass.trusting:
            if not self._recorder.is_listening:
                raise PrivetError(
                    "The engine was stopped from listening in the middle of a batch: leave contexts such as "
                    "`with torch.device(...)` in the reverse order in which they were entered."
                )
            self.refuse_changed_buffers()
        finished, self._pass = self._pass, None
        if finished.trusting:
            self._stop()
        else:
            # The loop's body may go on using the batch, but must not write records into the model.
            self._recorder.current = replace(finished, alone=True, over=True)
            self.divisors = tuple(finished.divisors)
        finished.closed = True
        self._doubts = tuple(finished.doubts)
        divided = finished.reduction == "mean" and not self._is_raised(finished)
        scale = float(finished.records) if divided and finished.records else 1.0
        gradients = PerExampleGradients(self._recorder, finished, scale)
        grade = "alone" if finished.alone else "assumed" if finished.doubts else "followed"
        self._explained = [
            (use.module or "(model)", use.kind, use.method, use.kept_bytes(), "assumed" if type(use) is Own else grade)
            for use in gradients.uses
        ]
        # The autograd graph refers to the pass, and lives as long as somebody keeps the loss.
        finished.uses.clear()
        finished.received.clear()
        return gradients

    # --- listening --------------------------------------------------------------------------------------------------

    def hand_out(
        self,
        batch: Iterable[tuple[Tensor, int | None]],
        records: int,
        *,
        each: int = 1,
        assume: bool = False,
        alone: bool = False,
        strangers: bool = False,
        unseen: str = "",
        guarded: Iterable[tuple[str, Tensor]] = (),
    ) -> None:
        """Start listening to what is done with a batch, until `gradients` is called.

        Args:
            batch: the tensors of the batch, each with the dimension that holds the records (None if none does).
            records: the number of records.
            each: the number of consecutive examples of each record: more than one where a record is a user.
            assume: go on where records are not known to be kept apart; `doubts` says why they are not.
            alone: the batch is one record, and its gradient is the one that autograd computes.
            strangers: treat a tensor of unknown origin as a constant.
            unseen: describes the part of the batch that cannot be followed; empty if there is none.
            guarded: further tensors that records must not change, with their names.
        """
        if alone and records > 1:
            raise InputError(f"With alone=True a batch holds one record, not {records}.")
        if not self._handles:
            raise PrivetError("The engine is not attached: attach it before you hand out a batch.")
        self._strict = True
        self._refuse_gradient_hooks()
        self._stop()
        refuse_other_modes()
        budget = self._new_budget()
        self._open(Pass(records, budget, each, trusting=False, strangers=strangers, assume=assume, alone=alone))
        frozen = [(name, p) for name, p in self.model.named_parameters() if not p.requires_grad]
        self._recorder.guard((*guarded, *frozen))
        self._recorder.watch((name, module._buffers[key]) for name, module, key in self._buffers)  # type: ignore[misc]
        self._extra, self._entries = self._extra_state(), self._held()
        self.refuse_records_in((f"'{name}'", tensor) for name, tensor in (*frozen, *self.model.named_buffers()))
        self._recorder.copy_exposed()
        assert self._pass is not None
        self._pass.escaped = unseen
        self._recorder.hand_out(self._pass, batch)
        self._recorder.still, self._recorder.size_divisors = self._still, self.size_divisors
        self._listen()

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass of a vector of losses: one for each example of the batch, or several, which add up.

        The loss of a user with several examples is the mean over these examples.
        """
        if self._pass is None:
            raise PrivetError("There is no batch that these losses could belong to: take one from private.batches().")
        stride, why = self._recorder.stride(losses), self._recorder.doubt_of(losses)
        at = position(losses.shape, stride, self._pass.records) if stride is not None else None
        if at is None and not self._pass.alone and self._pass.records > 1:
            because = why or "it is not a vector with one entry for each record, as reduction='none' returns it"
            raise UnknownReductionError(f"This is not a loss for each record: {because}.")
        self._as_vector = True
        try:
            whole = losses.sum()
            whole.backward(None if self._pass.each == 1 else torch.full_like(whole, 1 / self._pass.each))
        finally:
            self._as_vector = False

    _as_vector = False

    @contextmanager
    def still(self) -> Iterator[None]:
        """Inside, dropout is off, so that two passes can be compared; afterwards, `put_back` undoes their side effects."""
        self._still = True
        try:
            yield
        finally:
            self._stop()
            self._still = self._recorder.still = False
            self.put_back()
            self._recorder.saved.clear()
            self._recorder.generators.clear()

    def put_back(self) -> None:
        """Restore the constants and generators that passes inside `still` have changed."""
        for generator, state in self._recorder.generators.values():
            generator.set_state(state)
        with torch.no_grad():
            for tensor, value in self._recorder.saved.values():
                tensor.copy_(value)

    @property
    def uses_generators(self) -> bool:
        """Whether the last pass has drawn from a generator of the user."""
        return bool(self._recorder.generators)

    _still = False

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the records of the last pass may have been mixed, where it went on in spite of that."""
        return self._doubts

    def set_quiet(self, quiet: bool) -> None:
        """Stop listening while this library works or the optimizer steps, and start again afterwards."""
        if quiet:
            self._stop()
        elif self._strict:
            self._listen()

    def refuse_later_writes(self) -> None:
        """From now on, a body that has read values of the records must not write into the model or its optimizers."""
        current = self._recorder.current
        if current is not None and current.over and current.read and not current.escaped:
            current.escaped = "the body has read a value of the records, and a write comes after it"

    @contextmanager
    def without_numbers(self) -> Iterator[None]:
        """Inside, this library writes into the model: tensors are followed, and no number that the body has read is used."""
        current = self._recorder.current
        escaped = current.escaped if current is not None else ""
        if current is not None:
            current.escaped = ""
        try:
            yield
        finally:
            if current is not None:
                current.escaped = current.escaped or escaped

    size_divisors: frozenset[float] = frozenset()
    """Divisors that are proportional to the number of records, divided by it: a sum that is divided by one of them is a mean.
    """
    divisors: tuple[float, ...] = ()
    """The numbers by which sums over the records were divided in the last pass, in order."""
    _strict = False

    def know(self, constants: Iterable[Tensor], data: Iterable[int | None] = ()) -> None:
        """Declare tensors that existed before the first batch as constants, and the memory of the data set as that of records."""
        self._recorder.know(constants)
        self._recorder.data.update(data)

    @contextmanager
    def public(self) -> Iterator[None]:
        """Inside, gradients reach the parameters as usual, and a loss that depends on a private batch is refused."""
        with self.paused():
            before = self._pass, self._recorder.current
            self._pass = Pass(0, MemoryBudget(0), trusting=False, public=True)
            self._recorder.take(self._pass)
            self._listen()
            try:
                yield
            finally:
                self._stop()
                self._pass, self._recorder.current = before

    def _new_budget(self) -> MemoryBudget:
        return MemoryBudget(DEFAULT_MEMORY_BUDGET if self.memory_budget is None else self.memory_budget)

    def _open(self, opened: Pass) -> None:
        if self._pass is not None:
            self._pass.closed = True  # there was a forward pass without a backward pass
        self._pass = opened

    def _listen(self) -> None:
        if not self._recorder.is_listening:
            self._recorder.listen()

    def _stop(self) -> None:
        if self._recorder.is_listening:
            self._recorder.stop()

    def _enter(self, name: str) -> Callable[..., None]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._push(name, (args, kwargs))

        return before

    def _push(self, name: str, inputs: Any) -> None:
        if self._depth == 0 and (self._paused or not torch.is_grad_enabled()):
            self._depth = -1  # an ordinary forward pass: ignore it until it is over
        if self._depth < 0:
            self._ordinary += 1
            return
        self._depth += 1
        self._recorder.modules.append(name)
        if self._depth == 1:
            self._begin(inputs)

    _ordinary = 0

    def _leave(self) -> Callable[..., None]:
        def after(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            self._pop()

        return after

    def _pop(self) -> None:
        if self._depth < 0:
            self._ordinary -= 1
            if self._ordinary == 0:
                self._depth = 0
            return
        if self._depth == 0:
            return  # another hook raised before this module was entered
        self._depth -= 1
        self._recorder.modules.pop()
        if self._depth == 0 and self._repeating:
            self._repeating = False
            self._recorder.stop()

    _repeating = False

    def _begin(self, inputs: Any) -> None:
        """Called when the model's outermost forward pass begins."""
        if self._is_recomputing() and self._pass is not None:
            if self._pass.alone:
                return  # one record: its gradient is what autograd makes of it
            # Activation checkpointing runs part of the forward pass again; its inputs are known from the first time.
            if any(
                t.requires_grad and t.is_leaf and self._recorder.stride(t) in (None, UNKNOWN)
                for t in tensors_in(inputs)
            ):
                raise self._recorder.refusal(
                    "it is checkpointed with use_reentrant=True, which hides the forward pass; use use_reentrant=False"
                )
            if not self._recorder.is_listening:
                self._recorder.listen()
                self._repeating = True
            return
        if self._pass is not None and self._pass.received:
            raise PrivetError(
                "The model runs again before the gradients of its last backward pass were taken. One batch has one backward "
                "pass (add up its losses first), then optimizer.step(); use engine.paused() for passes that train nothing."
            )
        if self._strict:
            return  # a batch was handed out, and the recorder is listening already
        first = next(iter(tensors_in(inputs)), None)
        if first is None or first.ndim <= self.batch_dim:
            raise UnsupportedModelError(
                f"The model's first input has no dimension {self.batch_dim} that could hold the records; "
                f"state it with batch_dim=..."
            )
        rows = first.shape[self.batch_dim]
        if rows % self.views:
            raise InputError(f"A batch of {rows} rows cannot hold {self.views} views of each record.")
        if self._pass is None or self._pass.records != rows // self.views:
            self._open(Pass(rows // self.views, self._new_budget()))
        if rows:
            assert self._pass is not None
            self._recorder.begin(self._pass, inputs, self.batch_dim, self.views)
            self._listen()

    @staticmethod
    def _is_recomputing() -> bool:
        """Whether a backward pass is running. Then a forward pass is a repetition for activation checkpointing."""
        return torch._C._current_graph_task_id() != -1

    def _look_at_loss(self, roots: Any, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called when a backward pass begins. The weights of the roots, if any are given, are the argument at `place`."""
        if self._pass is None:
            return
        if self._pass.public and any(self._recorder.stride(root) is not None for root in tensors_in(roots)):
            if not self._pass.alone:
                raise PrivetError(NOT_PUBLIC)
            if place == 1:
                raise PrivetError(
                    "A backward pass on records inside private.paused() would train without privacy: there, train on public data "
                    "only."
                )
        if self._paused or (self._pass.alone and self._is_recomputing()):
            return
        self._pass.pending = None
        try:
            self._pass.pending = self._how_it_joins(tensors_in(roots), place, args, kwargs)
        except UnknownReductionError as error:
            self._pass.pending = error  # only an error if the backward pass reaches this model
        while self._raised:
            self._raised.pop().remove()
        if self._pass.pending == "mean" and self._is_raised(self._pass) and place == 1:
            means = [root for root in tensors_in(roots) if root.requires_grad]
            self._raise(means, self._pass.records)

    @staticmethod
    def _is_raised(given: Pass) -> bool:
        """Whether the gradient of a mean is multiplied by the number of records before it flows back. Then each record gets the
        gradient of its own loss.

        A mean divides by the size of the batch. In half precision, the size would then decide how all gradients are rounded.
        """
        return not given.trusting and not given.public

    def _raise(self, means: list[Tensor], records: int) -> None:
        def raised(gradient: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                return gradient * records

        with torch._C.DisableTorchFunction():
            self._raised += [mean.register_hook(raised) for mean in means]

    def _how_it_joins(
        self, roots: list[Tensor], place: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Reduction | None:
        assert self._pass is not None
        found = {self._reduction_of(root) for root in roots} - {None}
        if len(found) > 1:
            raise UnknownReductionError(f"One loss is a mean over the records, another one a sum. {PER_RECORD}")
        if not found:
            return None  # it depends on no record; the guard refuses any gradient that it gives to a parameter
        given = ("gradient", "grad_tensors", "grad_outputs")
        weights = tensors_in((args[place : place + 1], *(kwargs.get(name) for name in given)))
        if any(self._recorder.stride(tensor) is not None for tensor in weights):
            raise UnknownReductionError(f"backward is given weights that depend on the records. {PER_RECORD}")
        for root, weight in zip(roots, weights, strict=False):
            at = position(root.shape, self._recorder.stride(root) or 0, self._pass.records)
            if at is not None and weight.shape == root.shape and self._recorder.doubt_of_constant(weight, at):
                raise UnknownReductionError(
                    f"backward is given a different weight for each place in the batch. {PER_RECORD}"
                )
        if self._pass.overwritten and not self._pass.alone:
            self._pass.doubts[self._pass.overwritten] = None
            if not self._pass.assume:
                raise UnknownReductionError(
                    f"A tensor that the backward pass may use was overwritten through `.data`: {self._pass.overwritten}. Write "
                    f"into a copy of it."
                )
        (reduction,) = found
        stated = "auto" if self._as_vector else self.loss_reduction
        if stated not in ("auto", reduction) and self._pass.records > 1:
            raise UnknownReductionError(
                f"loss_reduction='{self.loss_reduction}' was stated, and the loss is a {reduction} over the "
                f"records: state what it is, or leave loss_reduction out."
            )
        return reduction

    def _reduction_of(self, loss: Tensor) -> Reduction | None:
        """How a loss combines its records. Its mark says so, because it was followed from the batch."""
        stride, why = self._recorder.stride(loss), self._recorder.doubt_of(loss)
        if stride is None:
            return None
        assert self._pass is not None
        if why:
            self._pass.doubts[why] = None
        if stride == UNKNOWN and self._pass.assume and self.loss_reduction != "auto":
            return self.loss_reduction
        if stride == UNKNOWN:
            if self._pass.alone:
                raise UnknownReductionError(
                    f"The loss of one record may hold something of others: {why}. If it does not, "
                    f"make_private(..., isolation='assume') goes on with a statement that says so."
                )
            raise UnknownReductionError(
                f"The loss does not keep the records apart: {why}. {PER_RECORD} If it does keep them apart, "
                f"make_private(..., isolation='each') computes it for one record at a time, and isolation='assume' goes on "
                f"with a statement that says so."
            )
        return "mean" if stride == MEAN else "sum"

    def _refuse_reading(self, parameter: Tensor) -> None:
        if self._pass is not None and self._pass.received and not self._paused and not self._pass.trusting:
            raise PrivetError(
                "The gradient of a parameter is read before optimizer.step(), which is when the private gradient is made: "
                "clipping is done by max_grad_norm, and the private gradient is there after optimizer.step()."
            )

    def _guard(self, name: str) -> Callable[[Tensor], None]:
        def refuse(parameter: Tensor) -> None:
            if self._paused or (self._pass is not None and not self._pass.records):
                return
            if self._pass is not None and self._pass.alone and self._pass.pending in ("mean", "sum"):
                return
            parameter.grad = None
            if self._pass is not None and isinstance(self._pass.pending, PrivetError):
                raise self._pass.pending  # the loss is refused in any case, and this says why
            raise UnsupportedModelError(
                f"Parameter '{name}' receives a gradient that belongs to no record: it is used outside the model's forward "
                f"pass (a penalty in the loss: use the optimizer's weight_decay, or private.public(function)) or by a custom "
                f"autograd.Function (register a rule for the module that calls it with @privet.gradients.rule)."
            )

        return refuse

    def _refuse_gradient_hooks(self) -> None:
        for name, parameter in self._recorder.parameters.items():
            if parameter._backward_hooks or len(parameter._post_accumulate_grad_hooks or ()) > 1:
                raise UnsupportedModelError(
                    f"Parameter '{name}' has a hook on its gradient, which would see something else than the private "
                    f"gradient: remove the hook, and look at parameter.grad after optimizer.step()."
                )

    def drop(self) -> None:
        """Forget the batch that was handed out and everything that was done with it."""
        if self._pass is not None:
            self._pass.closed, self._pass = True, None

    def refuse_records_in(self, kept: Iterable[tuple[str, Tensor]]) -> None:
        """Raise if one of these tensors, which are given with their names, depends on records."""
        for name, tensor in kept:
            mark = mark_of(tensor)
            if mark is not None and mark.stride is not None:
                raise UnsupportedModelError(
                    f"{name} depends on records, outside the clipped gradient. Keep statistics of records out of the optimizer."
                )

    def refuse_changed_buffers(self) -> None:
        """Raise if the body has changed a buffer, or what the model consists of: both are released as they are."""
        self._recorder.refuse_unseen_writes()
        for name, module, key in self._buffers:
            buffer = module._buffers.get(key)
            if buffer is None or self._recorder.is_changed(buffer):
                where = f"{name}.{key}" if name else key
                raise UnsupportedModelError(
                    f"The buffer '{where}' was changed while a private batch was out, outside the clipped gradient. Keep "
                    f"statistics of records out of the model, put the module that changes the buffer in eval mode (spectral "
                    f"normalization, for instance), or change it inside private.paused()."
                )
        for (name, _), before, now in zip(self._all_modules, self._entries, self._held(), strict=True):
            if any(len(a) != len(b) or any(map(is_not, a, b)) for a, b in zip(before, now, strict=True)):
                raise UnsupportedModelError(
                    f"A parameter, buffer or module of {f'module {name!r}' if name else 'the model'} was added or replaced while "
                    f"a private batch was out. It is released with the model, and may hold records: change the model before "
                    f"make_private, and keep what depends on records elsewhere."
                )
        for name, state in self._extra_state().items():
            if state != self._extra.get(name):
                raise UnsupportedModelError(
                    f"The extra state of module '{name}' was changed while a private batch was out, outside the clipped "
                    f"gradient. Keep statistics of records out of the model."
                )

    def _held(self) -> list[tuple[Any, ...]]:
        """The parameters, buffers and children of each module."""
        return [
            (tuple(m._parameters.values()), tuple(m._buffers.values()), tuple(m._modules.values()))
            for _, m in self._all_modules
        ]

    def copy_exposed(self) -> None:
        """The optimizer has changed the parameters: from now on, only torch may."""
        self._recorder.copy_exposed()

    @property
    def has_read(self) -> bool:
        """Whether the body of the loop has read a value of the records of the last batch."""
        return self._recorder.current is not None and self._recorder.current.read

    def _extra_state(self) -> dict[str, list[Any]]:
        """What modules add to the ``state_dict`` with a ``get_extra_state`` of their own; tensors as shape, sum and squares."""
        found = {}
        for name, module in self._extra_modules:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                leaves = tree_leaves(module.get_extra_state())
                found[name] = [
                    (tuple(leaf.shape), float(leaf.double().sum()), float(leaf.double().square().sum()))
                    if isinstance(leaf, Tensor)
                    else leaf
                    for leaf in leaves
                    if isinstance(leaf, (Tensor, int, float, str, bytes))
                ]
        return found

    # --- modules with a rule of their own ---------------------------------------------------------------------------

    @property
    def _is_alone(self) -> bool:
        """Whether the batch is one record, whose gradient autograd computes without any rule."""
        return self._pass is not None and self._pass.alone

    def _enter_own(self, name: str, module: nn.Module) -> Callable[..., None]:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._push(name, (args, kwargs))
            if self._depth > 0 and not self._is_alone:
                self._recorder.suspend(module)

        return before

    def _leave_own(self, module: nn.Module, own: OwnRule) -> Callable[..., Any]:
        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            try:
                if self._depth > 0 and not self._is_alone:
                    self._recorder.resume()
                    if isinstance(out, Tensor):
                        return own.record(self._recorder, module, args, out)
            finally:
                self._pop()
            return out

        return after

    # --- recurrent layers, which may be given packed sequences -------------------------------------------------------

    def _enter_packed(self, name: str, module: nn.RNNBase) -> Callable[..., Any]:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._push(name, (args, kwargs))
            packing = packing_of(self._recorder, args) if self._recorder.is_listening else None
            self._packings.append(packing)
            if packing is None:
                return None
            self._recorder.enter_packed(packing.lengths)
            return (packing.turned(module.batch_first), *args[1:]), kwargs

        return before

    def _leave_packed(self, module: nn.RNNBase) -> Callable[..., Any]:
        def after(_: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
            packing = self._packings.pop() if self._packings else None
            try:
                if packing is not None:
                    self._recorder.leave_packed()
                    return out if out is None else packed_again(out, packing, module)
            finally:
                self._pop()
            return out

        return after

    # --- explaining -------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """A table of the last physical batch. For each layer: its rule, how its norms were computed, the memory it kept, and
        how it is known that a record's gradient is its own: followed, alone, or assumed (`doubts` says why)."""
        if self._explained is None:
            raise PrivetError("Nothing to explain yet: run one batch through the engine first.")
        rows = [("layer", "rule", "norms", "kept", "records")]
        rows += [
            (layer, rule, norms, f"{kept / 2**20:.2f} MiB", grade)
            for layer, rule, norms, kept, grade in self._explained
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
