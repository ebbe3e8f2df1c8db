"""Traps that begin with the second step, where no self-check runs: only what follows every operation can find them.

Most are ways around whoever watches torch's functions: hooks, modes, classes, names of the same memory, and draws.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tests.zoo.harness import SAFE, SOUND, Batch, Outcome, Run, Trap, step_on
from tests.zoo.parts import (
    CLASSES,
    FEATURES,
    WIDTH,
    Operation,
    around,
    cross_entropy,
    perceptron,
    rows,
    sequences,
    straight,
)

_TABLE = 3 * torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1))


class Kept:
    """Constants that exist before the loop, new for every run: one that an earlier run wrote into would be refused for that."""

    real = torch.zeros(FEATURES)
    complex = torch.zeros(FEATURES, dtype=torch.complex64)

    @classmethod
    def renew(cls) -> None:
        cls.real, cls.complex = torch.zeros_like(cls.real), torch.zeros_like(cls.complex)


class Switch:
    """Whether the trap is on: after the first step."""

    on = False


Change = Callable[[Run, Batch], Any]


def late(
    before: Change | None = None, after: Change | None = None, between: Change | None = None, around_it: Any = None
) -> Callable[[Run], None]:
    """A loop that changes the batch, something before the backward pass, or something after the step, from the second step on."""

    def body(run: Run) -> None:
        Kept.renew()
        for batch in run.private.batches():
            Switch.on = run.private.steps_done >= 1
            run.optimizer.zero_grad()
            given = before(run, batch) if before is not None and Switch.on else batch
            loss = run.loss(given)
            if between is not None and Switch.on:
                between(run, batch)
            loss.backward()
            run.optimizer.step()
            if after is not None and Switch.on:
                after(run, batch)
            Switch.on = False

    def wrapped(run: Run) -> None:
        with around_it():
            body(run)

    return body if around_it is None else wrapped


# --- hooks, modes and classes ----------------------------------------------------------------------------------------------


def _node_hook(h: Tensor) -> Tensor:
    h = h * 1.0
    assert h.grad_fn is not None
    h.grad_fn.register_hook(lambda given, _: tuple(g if g is None or g.ndim != 2 else g + g.sum(0) for g in given))
    return h


def _node_prehook(h: Tensor) -> Tensor:
    h = h * 1.0
    assert h.grad_fn is not None
    h.grad_fn.register_prehook(lambda got: (got[0] + got[0].sum(0),))
    return h


def _hook_of_several(h: Tensor) -> Tensor:
    torch.autograd.graph.register_multi_grad_hook([h], lambda grads: grads[0].add_(grads[0].sum(0)))
    return h * 1.0


def _packed(h: Tensor) -> Tensor:
    """Activations that are compressed with a scale of the batch."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t + t.mean(0) if t.ndim == 2 else t, lambda t: t):
        return torch.tanh(h)


class _Repeated:
    """A part that does something else when it is run again for the backward pass."""

    def __call__(self, h: Tensor) -> Tensor:
        calls = []

        def part(h: Tensor) -> Tensor:
            calls.append(1)
            return torch.tanh(h + h.sum(0) if len(calls) > 1 else h + 0)

        out: Tensor = checkpoint(part, h, use_reentrant=False)
        return out


class _RepeatedByItem(_Repeated):
    def __call__(self, h: Tensor) -> Tensor:
        calls = []

        def part(h: Tensor) -> Tensor:
            calls.append(1)
            return torch.tanh(h + float(h.detach().sum()) if len(calls) > 1 else h + 0)

        out: Tensor = checkpoint(part, h, use_reentrant=False)
        return out


@cache
def _operators() -> Any:
    """Custom operators that have the names of operations of torch."""

    @torch.library.custom_op("zoo_late::tanh", mutates_args=())
    def tanh(h: Tensor) -> Tensor:
        return h - h.mean(0)

    tanh.register_autograd(lambda ctx, gradient: gradient - gradient.mean(0))

    @torch.library.custom_op("zoo_late::add_", mutates_args={"h"})
    def add_(h: Tensor) -> None:
        h.add_(h.mean(0))

    return torch.ops.zoo_late


def _in_place_operator(h: Tensor) -> Tensor:
    h = h.detach().clone()
    _operators().add_(h)
    return h


class _Duck:
    """No tensor, but something that torch's functions take."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(args[0].tensor, *args[1:], **(kwargs or {}))


class _Own(Tensor):
    """A class of tensors whose relu centers."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = function(*args, **(kwargs or {}))
            if not isinstance(out, Tensor):
                return out
            return (out - out.mean(0) if function is torch.relu and Switch.on else out).as_subclass(cls)


def relu(h: Any) -> Any:
    """A function that is overridable and has the name of one of torch's."""
    if torch.overrides.has_torch_function_unary(h):
        return torch.overrides.handle_torch_function(relu, (h,), h)
    return h - h.mean(0)


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        return out - out.mean(0) if function is torch.tanh and Switch.on else out


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        return out - out.mean(0) if function is torch.ops.aten.tanh.default and Switch.on else out


def _inside(mode: Any) -> Operation:
    def operation(h: Tensor) -> Tensor:
        with mode():
            return torch.tanh(h)

    return operation


def _old_hook(run: Run) -> None:
    run.model[1].register_backward_hook(lambda m, given, got: (given[0] + given[0].sum(0),) if Switch.on else None)  # type: ignore[index]
    late()(run)


class _Rectified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(x))
        return out


# --- names of the same memory, and places ------------------------------------------------------------------------------------


def _real(h: Tensor) -> Tensor:
    z = torch.complex(h, h)
    z.real = h.flip(0) * 1.0
    return z.real


def _imag(h: Tensor) -> Tensor:
    z = torch.complex(h, h)
    z.imag = h.flip(0) * 1.0
    return z.imag


def _complex_constant(run: Run, batch: Batch) -> Batch:
    Kept.complex.real = batch[0].mean(0)
    return batch[0] - Kept.complex.real, batch[1]


def _through_data(run: Run, batch: Batch) -> None:
    batch[0].data.copy_(batch[0].flip(0))


WRITTEN: dict[str, Change] = {
    "itself": lambda run, batch: Kept.real.copy_(batch[0].mean(0)),
    ".data": lambda run, batch: Kept.real.data.copy_(batch[0].mean(0)),
    "detach": lambda run, batch: Kept.real.detach().copy_(batch[0].mean(0)),
    "a view": lambda run, batch: Kept.real.view(-1).copy_(batch[0].mean(0)),
    "a view of .data": lambda run, batch: Kept.real.data.view(-1)[:].add_(batch[0].mean(0)),
    "_foreach": lambda run, batch: torch._foreach_add_([Kept.real.detach()], [batch[0].mean(0)]),
    "setitem": lambda run, batch: Kept.real.__setitem__(slice(None), batch[0].mean(0)),
}
"""Ways to write a statistic of the batch into a constant."""


def _scaled(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that uses the constant."""
    return F.cross_entropy(model(batch[0] * (1 + Kept.real)), batch[1])


def _random_rows(h: Tensor) -> Tensor:
    drawn = torch.randn(len(h), WIDTH)
    return drawn / drawn.norm(dim=1, keepdim=True)


OPERATIONS: dict[str, Operation] = {
    "grad_fn.register_hook": _node_hook,
    "grad_fn.register_prehook": _node_prehook,
    "register_multi_grad_hook": _hook_of_several,
    "saved_tensors_hooks": _packed,
    "checkpointing that repeats something else": _Repeated(),
    "checkpointing that reads a number when it repeats": _RepeatedByItem(),
    "a custom operator named tanh": lambda h: _operators().tanh(h),
    "a custom operator named tanh, detached": lambda h: h + _operators().tanh(h.detach()),
    "a custom operator that writes": lambda h: h + _in_place_operator(h),
    "an object with __torch_function__": lambda h: h - torch.mean(_Duck(h.detach()), 0),  # type: ignore[call-overload]
    "an overridable function named relu": lambda h: h + relu(h.detach()),
    "a TorchFunctionMode in the model": _inside(_FunctionMode),
    "a TorchDispatchMode in the model": _inside(_DispatchMode),
    "z.real = h.flip(0)": _real,
    "z.imag = h.flip(0)": _imag,
    "aten.copy": lambda h: h - torch.ops.aten.copy(torch.zeros(WIDTH), h.detach().mean(0)),
    "torch.add with three tensors": lambda h: h + torch.add(h.detach(), h.detach().flip(0)),
    "random numbers in order": lambda h: h * torch.rand(len(h), 1).sort(0).values,
    "random numbers, summed up": lambda h: h * torch.rand(len(h), 1).cumsum(0),
    "a random order": lambda h: h * torch.rand(len(h)).argsort()[:, None],
    "a random order by multinomial": lambda h: h * torch.multinomial(torch.ones(len(h)), len(h))[:, None],
    "random numbers in order, transposed": lambda h: h * torch.rand(WIDTH, len(h)).sort(1).values.T,
    "coins with a probability for each place": lambda h: h * (1 + torch.bernoulli(torch.linspace(0, 1, len(h)))[:, None]),
    "dropout of a range": lambda h: h * F.dropout(torch.arange(len(h)) + 1.0, 0.1)[:, None],
    "normal numbers with a mean for each place": lambda h: h * torch.normal(torch.arange(len(h)) + 1.0, 0.1)[:, None],
    "einsum with the diagonal of a constant": lambda h: torch.einsum(
        "bi,bb->bi", h, (torch.arange(len(h)) + 1.0).expand(len(h), len(h)).contiguous()
    ),
    "linear with a constant bias for each place": lambda h: F.linear(h, torch.eye(WIDTH), _TABLE[: len(h)]),
    "linear in three dimensions, a bias for each place": lambda h: F.linear(
        h[:, None], torch.eye(WIDTH), _TABLE[: len(h), None]
    )[:, 0],
    "nested tensors": lambda h: torch.nested.to_padded_tensor(
        torch.nested.as_nested_tensor([r[: 1 + int(r[0] > 0)] for r in h]), 0.0
    ).sum(1, keepdim=True).expand(-1, WIDTH),
    "sparse rows": lambda h: h + (h.detach().to_sparse().sum(0).to_dense()),
    "as_strided over rows": lambda h: h.as_strided(h.shape, (1, len(h))),
    "unfold over records": lambda h: h + h.unfold(0, 2, 1).sum(2).sum(0),
    "masked_scatter": lambda h: h.masked_scatter(torch.eye(len(h), WIDTH).bool(), h.flip(0)),
    "index_copy along records": lambda h: h.index_copy(0, torch.arange(len(h)).flip(0), h),
    "histc": lambda h: h + torch.histc(h.detach(), WIDTH),
    "bucketize by the batch": lambda h: h + torch.bucketize(h.detach(), h.detach()[:, 0].sort().values),
    "searchsorted in the batch": lambda h: h + torch.searchsorted(h.detach()[:, 0].sort().values, h.detach()),
    "unique": lambda h: h + len(torch.unique(h.detach() > 20)),
    "fake quantization by the batch": lambda h: torch.fake_quantize_per_tensor_affine(
        h, float(h.detach().abs().max()) / 127, 0, -128, 127
    ),
    "functional_call with weights of the batch": lambda h: torch.func.functional_call(
        nn.Linear(WIDTH, WIDTH, bias=False), {"weight": h.detach()[:WIDTH].T @ h.detach()[:WIDTH]}, (h,)
    ),
    "torch.func.vmap over columns": lambda h: torch.func.vmap(lambda c: c - c.mean(), in_dims=1, out_dims=1)(h),
    "torch.func.grad of the batch": lambda h: h + torch.func.grad(lambda t: t.square().mean())(h.detach()).sum(0),
    "attention over records": lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None])[0],
    "convolution over records": lambda h: F.conv1d(h.T[:, None], torch.ones(1, 1, 3), padding=1)[:, 0].T,
    "Dropout1d transposed": lambda h: F.dropout1d(h.T[None], 0.5, True)[0].T,
    "autocast and a mean": lambda h: _autocast(h),
    "inference mode and a write": lambda h: _inferred(h),
    "out= of a constant": lambda h: h - torch.mean(h.detach(), 0, out=torch.zeros(WIDTH)),
}  # fmt: skip


DRAWN = {
    "random numbers in order", "random numbers, summed up", "a random order", "a random order by multinomial",
    "random numbers in order, transposed", "coins with a probability for each place", "dropout of a range",
    "normal numbers with a mean for each place", "Dropout1d transposed",
}  # fmt: skip
"""The operations that draw random numbers for the records."""


def _autocast(h: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return h - (h @ torch.eye(WIDTH)).float().mean(0)


def _inferred(h: Tensor) -> Tensor:
    kept = torch.zeros(WIDTH)
    with torch.inference_mode():
        kept.copy_(h.mean(0))
    return h - kept


SOUND_OPERATIONS: dict[str, Operation] = {
    "random directions": lambda h: h + 0 * _random_rows(h),
    "random numbers, softmax of each row": lambda h: h * (1 + 0 * torch.rand(len(h), WIDTH).softmax(1)),
    "random numbers in order, in each row": lambda h: h * (1 + 0 * torch.rand(len(h), WIDTH).sort(1).values),
    "a random mask": lambda h: h * (1 + 0 * (torch.rand(len(h), 1) < 0.5).to(h.dtype)),
    "a coin for each record": lambda h: h * (1 + 0 * torch.bernoulli(torch.full((len(h), 1), 0.5)).to(h.dtype)),
    "dropout of ones": lambda h: h * (1 + 0 * F.dropout(torch.ones(len(h), 1), 0.5).to(h.dtype)),
    "random numbers, transposed": lambda h: h + 0 * torch.randn(WIDTH, len(h)).T,
    "checkpointing": lambda h: checkpoint(torch.tanh, h, use_reentrant=False),
    "saved on the CPU": lambda h: _saved_on_cpu(h),
    "complex numbers": lambda h: torch.view_as_real(torch.view_as_complex(h.view(len(h), 3, 2)) * (1 + 0.5j)).flatten(
        1
    ),
    "a constant bias": lambda h: F.linear(h, torch.eye(WIDTH, dtype=h.dtype), torch.ones(WIDTH, dtype=h.dtype)),
    "in place through .data": lambda h: _scaled_through_data(h),
}


def _saved_on_cpu(h: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return torch.tanh(h)


def _scaled_through_data(h: Tensor) -> Tensor:
    h = h.clone()
    h.data.clamp_(-1, 1)
    return h


# --- trained layers beside constants ----------------------------------------------------------------------------------------


class _Recurrent(nn.Module):
    """A recurrent layer whose first state is a constant with a row for each place in the batch."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(FEATURES, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = _TABLE[: len(x)].unsqueeze(0) if Switch.on else torch.zeros(1, len(x), WIDTH)
        given = (state, state) if isinstance(self.layer, nn.LSTM) else state
        out: Tensor = self.head(self.layer(x, given)[0][:, -1])
        return out


class _Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRUCell(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x, _TABLE[: len(x)] if Switch.on else torch.zeros(len(x), WIDTH)))
        return out


class _Biased(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, FEATURES)), nn.Parameter(torch.zeros(WIDTH))
        self.head, self.kind = nn.Linear(WIDTH, CLASSES), kind

    def forward(self, x: Tensor) -> Tensor:
        added = _TABLE[: len(x)] if Switch.on else torch.zeros(WIDTH)
        if self.kind == "addmm":
            h = torch.addmm(added, x, self.weight.T) + self.bias
        elif self.kind == "trained bias":
            h = F.linear(x, self.weight, self.bias + added)
        else:
            h = F.linear(x, self.weight, added) + self.bias
        out: Tensor = self.head(torch.tanh(h))
        return out


MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "LSTM, a first state for each place": (partial(_Recurrent, nn.LSTM), sequences),
    "GRU, a first state for each place": (partial(_Recurrent, nn.GRU), sequences),
    "RNN, a first state for each place": (partial(_Recurrent, nn.RNN), sequences),
    "GRUCell, a state for each place": (_Cell, rows),
    "a trained linear map, a constant bias for each place": (partial(_Biased, "constant"), rows),
    "a trained linear map, a trained bias for each place": (partial(_Biased, "trained bias"), rows),
    "addmm, constant rows": (partial(_Biased, "addmm"), rows),
    "data of a class of its own": (_Rectified, lambda: (rows()[0].as_subclass(_Own), rows()[1])),
}


# --- the loop ---------------------------------------------------------------------------------------------------------------


def _paused_constant(run: Run, batch: Batch) -> Batch:
    with run.private.paused():
        Kept.real.copy_(batch[0].mean(0))
    return batch[0] - Kept.real, batch[1]


def _paused_training(run: Run, batch: Batch) -> None:
    with run.private.paused():
        run.loss(batch).backward()
        run.optimizer.step()


def _paused_by_hand(run: Run, batch: Batch) -> None:
    with run.private.paused():
        parameters = list(run.model.parameters())
        gradients = torch.autograd.grad(run.loss(batch), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient)


def _paused_gradient(run: Run, batch: Batch) -> None:
    with run.private.paused():
        for parameter in run.model.parameters():
            parameter.grad = torch.ones_like(parameter) * batch[0].mean()
        run.optimizer.step()


def _paused_data(run: Run, batch: Batch) -> None:
    """Training on the data set itself, inside `paused`."""
    with run.private.paused():
        run.loss(run.dataset.tensors).backward()
        run.optimizer.step()


def _paused_write(run: Run, batch: Batch) -> None:
    with run.private.paused(), torch.no_grad():
        next(run.model.parameters()).add_(batch[0].mean())


def _foreach(run: Run, batch: Batch) -> None:
    parameters = list(run.model.parameters())
    with torch.no_grad():
        torch._foreach_add_(parameters, [torch.ones_like(p) * batch[0].mean() for p in parameters])


def _swapped_data(run: Run, batch: Batch) -> None:
    parameter = next(run.model.parameters())
    with torch.no_grad():
        parameter.data = parameter.data.clone()
        parameter.add_(batch[0].mean())


def _optimizer_state(run: Run, batch: Batch) -> None:
    state = run.optimizer.state[next(run.model.parameters())]
    state.setdefault("moment", torch.zeros(1)).add_(batch[0].mean())


class _Extra(nn.Module):
    """A module that adds something of its own to its state."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.head, self.inside, self.kept = nn.Linear(FEATURES, CLASSES), inside, torch.zeros(FEATURES)

    def get_extra_state(self) -> Tensor:
        return self.kept

    def set_extra_state(self, state: Tensor) -> None:
        self.kept = state

    def forward(self, x: Tensor) -> Tensor:
        if self.inside and Switch.on:
            self.kept = x.detach().mean(0)
        out: Tensor = self.head(x)
        return out


def _extra_after(run: Run, batch: Batch) -> None:
    run.model.kept = batch[0].mean(0).clone()  # type: ignore[assignment]


def _weights_of_places(run: Run) -> None:
    for batch in run.private.batches():
        losses = F.cross_entropy(run.model(batch[0]), batch[1], reduction="none")
        run.optimizer.zero_grad()
        losses.backward(torch.ones(len(losses)) if run.private.steps_done < 1 else torch.arange(len(losses)) + 1.0)
        run.optimizer.step()


def _public_data(run: Run) -> None:
    run.private.public(lambda: run.loss(run.dataset.tensors))
    late()(run)


def _kept_from_public(run: Run) -> None:
    """A public function that leaves a tensor of the data set for the body."""
    run.notes["kept"] = torch.zeros(FEATURES)
    run.private.public(lambda: run.notes.update(kept=run.dataset[0][0] * 1.0))
    late(before=lambda run, batch: (batch[0] - run.notes["kept"], batch[1]))(run)


def _with_state(run: Run) -> None:
    """A state that exists from the beginning, and that one record changes in the last step."""
    run.optimizer.state[next(run.model.parameters())]["moment"] = torch.zeros(1)
    late(after=_optimizer_state)(run)


class _Nested(Dataset[Any]):
    """A data set around another one."""

    def __init__(self, inner: TensorDataset) -> None:
        self.parts = [{"inner": inner}]

    def __len__(self) -> int:
        return len(self.parts[0]["inner"])

    def __getitem__(self, place: int) -> Any:
        return self.parts[0]["inner"][place]


def _several_rows(items: list[Any]) -> Any:
    times = [int(item[2]) for item in items]
    return (
        torch.cat([item[0].expand(n, -1) for item, n in zip(items, times, strict=True)]),
        torch.cat([item[1].expand(n) for item, n in zip(items, times, strict=True)]),
    )


def _cut(items: list[Any]) -> Any:
    shortest = min(int(item[2]) for item in items)
    return torch.stack([item[0][:shortest] for item in items]), torch.stack([item[1] for item in items])


def _lengths(other: int, usual: int, data: Any) -> Any:
    def made() -> tuple[Tensor, ...]:
        x, y = data()
        length = torch.full((len(x),), usual)
        length[3] = other
        return x, y, length

    return made


def _loader(collate: Any) -> Callable[[TensorDataset], Any]:
    return lambda dataset: DataLoader(dataset, batch_size=8, collate_fn=collate)


def _loop(name: str, body: Callable[[Run], None], **more: Any) -> Trap:
    given = {"model": perceptron, "loss": cross_entropy, "data": rows, "norm": 0.05, "steps": 2, "bites": False, **more}
    return Trap(name, "late loop", body=body, **given)


def _clamped(run: Run) -> None:
    """Weights that are replaced after each step, without records, in a model that writes activations in place."""
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()
        for parameter in run.model.parameters():
            parameter.data = parameter.data.clone()


def _evaluated_in_pause(run: Run) -> None:
    for batch in run.private.batches():
        step_on(run, run.loss(batch))
        with run.private.paused():
            run.notes["loss"] = float(run.loss(batch).mean())


def _in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES))


def _vector(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


LATE: list[Trap] = [
    *(
        Trap(
            name, "late", around(lambda h, f=f: f(h) if Switch.on else h), cross_entropy, rows, body=late(), norm=0.05, steps=2,
            bites=False, allowed=SAFE | {Outcome.CRASHED}, fate=False, draws=name in DRAWN,
        )
        for name, f in OPERATIONS.items()
    ),
    *(
        Trap(name, "sound operation", around(f), cross_entropy, rows, norm=None, oracle=cross_entropy, allowed=SOUND, bites=False)
        for name, f in SOUND_OPERATIONS.items()
    ),
    *(
        Trap(name, "late model", model, cross_entropy, data, body=late(), norm=0.05, steps=2, bites=False)
        for name, (model, data) in MODELS.items()
    ),
    _loop("register_backward_hook", _old_hook),
    _loop("a TorchFunctionMode around the loop", late(around_it=_FunctionMode)),
    _loop("a TorchDispatchMode around the loop", late(around_it=_DispatchMode)),
    _loop("a complex constant, by z.real", late(before=_complex_constant)),
    _loop("x.data overwritten after the forward pass", late(between=_through_data), model=straight),
    *(
        _loop(f"a constant overwritten through {name}, {when}", late(**{when: way}), loss=_scaled, steps=3)
        for name, way in WRITTEN.items()
        for when in ("between", "after")
    ),
    _loop("a constant written inside paused", late(before=_paused_constant)),
    _loop("training inside paused", late(after=_paused_training)),
    _loop("training by hand inside paused", late(after=_paused_by_hand)),
    _loop("parameter.grad set inside paused", late(after=_paused_gradient)),
    _loop("training on the data set inside paused", late(after=_paused_data)),
    _loop("a parameter written inside paused", late(after=_paused_write)),
    _loop("parameters by _foreach_add_ after the step", late(after=_foreach)),
    _loop("a parameter written after its data was replaced", late(after=_swapped_data)),
    _loop("new state of the optimizer", late(after=_optimizer_state)),
    _loop("old state of the optimizer", _with_state),
    _loop("get_extra_state, in the forward pass", late(), model=partial(_Extra, True)),
    _loop("get_extra_state, after the step", late(after=_extra_after), model=partial(_Extra, False)),
    _loop("losses.backward with a weight for each place", _weights_of_places, norm=0.5),
    _loop("private.public with the data set", _public_data),
    _loop("private.public that leaves a record", _kept_from_public),
    _loop(
        "the data set behind a Subset", late(before=lambda run, b: (b[0] - run.dataset.dataset.tensors[0].mean(0), b[1])),
        wrap=lambda dataset: Subset(dataset, range(len(dataset))),
    ),
    _loop(
        "the data set behind another one",
        late(before=lambda run, b: (b[0] - run.dataset.parts[0]["inner"].tensors[0].mean(0), b[1])), wrap=_Nested,
    ),
    # Here the self-check finds it, and so one record decides whether the run begins; docs/what-is-checked.md says so.
    _loop("a collate function with several rows", late(), data=_lengths(9, 1, rows), wrap=_loader(_several_rows), fate=False),
    _loop(
        "a collate function that cuts to the shortest", late(), data=_lengths(1, 4, sequences), wrap=_loader(_cut), fate=False,
        model=around(lambda h: h),
    ),
    _loop(
        "weights replaced without records", _clamped, model=_in_place, allowed=SOUND, norm=None, oracle=cross_entropy, steps=3
    ),
    _loop("evaluation inside paused", _evaluated_in_pause, loss=_vector, allowed=SOUND, norm=None, oracle=_vector),
]  # fmt: skip
