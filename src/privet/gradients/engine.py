"""The engine: gradients of every record from one forward and one backward pass over an untouched model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privet.errors import InputError, PrivetError
from privet.gradients.module_rules import MODULE_RULES, OwnRule
from privet.gradients.per_example import PerExampleGradients
from privet.gradients.recorder import Pass, Recorder, UnsupportedModelError, _tensors
from privet.gradients.reduction import SampledOutput, loss_being_differentiated, reduction_of
from privet.gradients.refused import refuse_mixing_modules
from privet.gradients.use import Budget

DEFAULT_MEMORY_BUDGET = 256 * 2**20


class Engine:
    """Per-example gradients of a model, taken in ordinary training code.

        with Engine(model) as engine:
            loss = criterion(model(x), y)
            loss.backward()
            gradients = engine.gradients()

    While the engine is attached (inside ``with``, or between `attach` and `detach`) it listens to the forward passes of
    the model that run with gradients enabled. It changes nothing: the type, the parameters, the ``state_dict`` and the
    results of the model are what they were, and its hooks are gone after `detach`. ``parameter.grad`` is not filled.

    Formal guarantees: `gradients` returns the gradient of each record's own loss for every trainable parameter, or the
    engine raises; it never leaves out a use of a parameter in silence.
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
        """
        Args:
            model: any module; parameters with ``requires_grad`` are trained.
            loss_reduction: how the loss joins its records; "auto" reads it off the loss and raises where it cannot.
            memory_budget: bytes of per-example gradients that may be kept; beyond it slower ways need less.
            batch_dim: the dimension of the model's inputs that holds the records.
            views: consecutive rows of the batch that are views of one record (augmentation multiplicity): they count as
                one record, whose loss is their mean or sum as the loss says.
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
        self._reduction: Literal["mean", "sum"] | None = None
        self._output: SampledOutput | None = None
        self._explained: list[tuple[str, str, str, int]] | None = None

    # --- attaching --------------------------------------------------------------------------------------------------

    def attach(self) -> Engine:
        if self._handles:
            raise PrivetError("The engine is attached already.")
        refuse_mixing_modules(self.model)
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not parameters:
            raise InputError("The model has no parameter that requires a gradient: nothing can be trained.")
        self._recorder = Recorder(parameters)
        self._recorder.before_receive = self._look_at_loss  # type: ignore[method-assign]
        for name, module in self.model.named_modules():
            own = next((MODULE_RULES[c] for c in type(module).__mro__ if c in MODULE_RULES), None)
            before = self._enter_own(name, module) if own else self._enter(name)
            after = self._leave_own(module, own) if own else self._leave
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
        for name, parameter in parameters.items():
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._guard(name)))
        return self

    def detach(self) -> None:
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
        """Inside, the model is an ordinary model: for evaluation, or a generator's step through a discriminator."""
        handles, self._paused = self._handles, True
        try:
            yield
        finally:
            self._paused = False
            assert handles is self._handles

    _paused = False

    # --- results ----------------------------------------------------------------------------------------------------

    def gradients(self) -> PerExampleGradients:
        """The gradients of the physical batch whose backward pass has just run."""
        if self._pass is None or (not self._pass.received and self._pass.records):
            raise PrivetError(
                "There are no gradients yet: run the model and loss.backward() while the engine is attached."
            )
        return self._close()

    def empty(self) -> PerExampleGradients:
        """The gradients of a batch without records."""
        return PerExampleGradients(self._recorder, Pass(0, Budget(0)), 1.0)

    def _close(self) -> PerExampleGradients:
        assert self._pass is not None
        finished, self._pass = self._pass, None
        finished.closed = True
        scale = float(finished.records) if self._reduction == "mean" and finished.records else 1.0
        gradients = PerExampleGradients(self._recorder, finished, scale)
        self._explained = [(use.module or "(model)", use.kind, use.method, use.kept_bytes()) for use in gradients.uses]
        # The graph of the forward pass knows the pass, and lives as long as somebody keeps the loss.
        finished.uses.clear()
        finished.received.clear()
        return gradients

    # --- listening --------------------------------------------------------------------------------------------------

    def _enter(self, name: str) -> Callable[..., None]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._push(name, (args, kwargs))

        return before

    def _push(self, name: str, inputs: Any) -> None:
        if self._depth == 0 and (self._paused or not torch.is_grad_enabled()):
            self._depth = -1  # an ordinary forward pass: listen to nothing until it is over
        if self._depth < 0:
            self._ordinary += 1
            return
        self._depth += 1
        self._recorder.modules.append(name)
        if self._depth == 1:
            self._open(inputs)

    _ordinary = 0

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        self._pop()
        if self._depth == 0 and self._pass is not None and self._watches(out):
            self._output = SampledOutput.of(out)
            out.register_hook(self._output.receive)
        return None

    def _watches(self, out: Any) -> bool:
        """Whether the loss may be a cross-entropy of this output, whose divisor has to be seen."""
        if self.loss_reduction != "auto" or self._is_recomputing() or not torch.is_grad_enabled():
            return False
        return (
            isinstance(out, Tensor) and out.requires_grad and out.ndim >= 2 and out.is_floating_point() and len(out) > 0
        )

    def _pop(self) -> None:
        if self._depth < 0:
            self._ordinary -= 1
            if self._ordinary == 0:
                self._depth = 0
            return
        self._depth -= 1
        self._recorder.modules.pop()
        if self._depth == 0 and self._listening:
            self._listening = False
            self._recorder.stop()

    _listening = False

    def _open(self, inputs: Any) -> None:
        if self._is_recomputing() and self._pass is not None:
            # Activation checkpointing runs part of the forward pass again; its inputs are known from the first time.
            if any(t.requires_grad and t.is_leaf and self._recorder.stride(t) is None for t in _tensors(inputs)):
                raise self._recorder.refusal(
                    "it is checkpointed with use_reentrant=True, which hides the forward pass; use use_reentrant=False"
                )
            self._recorder.listen()
            self._listening = True
            return
        first = next(iter(_tensors(inputs)), None)
        if first is None or first.ndim <= self.batch_dim:
            raise UnsupportedModelError(
                f"The model's first input has no dimension {self.batch_dim} that could hold the records; "
                f"state it with batch_dim=..."
            )
        rows = first.shape[self.batch_dim]
        if rows % self.views:
            raise InputError(f"A batch of {rows} rows cannot hold {self.views} views of each record.")
        if self._pass is not None and self._pass.received:
            raise PrivetError(
                "The model runs again before the gradients of its last backward pass were taken. One batch has one backward "
                "pass (add up its losses first), then optimizer.step(); use engine.paused() for passes that train nothing."
            )
        if self._pass is not None and self._pass.records != rows // self.views:
            self._pass.closed = True  # a forward pass that was left without a backward pass
            self._pass = None
        if self._pass is None:
            budget = DEFAULT_MEMORY_BUDGET if self.memory_budget is None else self.memory_budget
            self._pass = Pass(rows // self.views, Budget(budget))
            self._reduction = None if self.loss_reduction == "auto" else self.loss_reduction
        if rows:
            self._recorder.begin(self._pass, inputs, self.batch_dim, self.views)
            self._recorder.listen()
            self._listening = True

    @staticmethod
    def _is_recomputing() -> bool:
        """Whether a backward pass is running: then a forward pass is one that activation checkpointing repeats."""
        return torch._C._current_graph_task_id() != -1

    def _look_at_loss(self, current: Pass) -> None:
        if self._reduction is None:
            self._reduction = reduction_of(loss_being_differentiated(), current.records, self._output)

    def _guard(self, name: str) -> Callable[[Tensor], None]:
        def refuse(parameter: Tensor) -> None:
            if self._paused or self._pass is None or not self._pass.records:
                return
            parameter.grad = None
            raise UnsupportedModelError(
                f"Parameter '{name}' receives a gradient that belongs to no record: it is used outside the model's forward "
                f"pass (a penalty in the loss: use the optimizer's weight_decay) or by a custom autograd.Function (register "
                f"a rule for the module that calls it with @privet.gradients.rule)."
            )

        return refuse

    # --- modules with a rule of their own ---------------------------------------------------------------------------

    def _enter_own(self, name: str, module: nn.Module) -> Callable[..., None]:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._push(name, (args, kwargs))
            if self._depth > 0:
                self._recorder.suspend(module)

        return before

    def _leave_own(self, module: nn.Module, own: OwnRule) -> Callable[..., Any]:
        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            try:
                if self._depth > 0:
                    self._recorder.resume()
                    if isinstance(out, Tensor):
                        return own.record(self._recorder, module, args, out)
            finally:
                self._pop()
            return out

        return after

    # --- explaining -------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """A table of the last physical batch: layer, rule, how its norms were computed, what was kept in memory."""
        if self._explained is None:
            raise PrivetError("Nothing to explain yet: run one batch through the engine first.")
        rows = [("layer", "rule", "norms", "kept")]
        rows += [(layer, rule, norms, f"{kept / 2**20:.2f} MiB") for layer, rule, norms, kept in self._explained]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
