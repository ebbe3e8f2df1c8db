"""Further traps: random numbers that are written into, inputs of recurrent cells for each place, memory that was replaced,
numbers that are read after the step, and communication with other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional as F

import privet
from tests.zoo.harness import NOISE, SOUND, Batch, Outcome, Run, Trap, Watching
from tests.zoo.late import Switch, late
from tests.zoo.parts import RECORDS, WIDTH, Operation, around, cross_entropy, perceptron, rows

_TABLE = 3 * torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1))
_WEIGHT = torch.randn(4 * WIDTH, WIDTH, generator=torch.Generator().manual_seed(3))
_PLACES = torch.rand(64, 1, 2, generator=torch.Generator().manual_seed(4))


# --- random numbers that were drawn, and then written into -------------------------------------------------------------------


def _ones(h: Tensor) -> Tensor:
    """Random numbers that are all the same, so that only what is written into them counts."""
    return torch.rand(len(h), 1) * 0 + 1


def _first(r: Tensor) -> None:
    r[0] = 5.0


def _row(r: Tensor) -> None:
    r[:1].fill_(5.0)


def _alias(r: Tensor) -> None:
    r.view(-1).copy_(torch.arange(len(r)))


def _data(r: Tensor) -> None:
    r.data.copy_(torch.arange(len(r)).unsqueeze(1))


def _numpy(r: Tensor) -> None:
    r.numpy()[0] = 5.0


def _foreach(r: Tensor) -> None:
    torch._foreach_mul_([r], [torch.arange(len(r)).float().unsqueeze(1)])


def _some_rows(r: Tensor) -> None:
    r[torch.arange(len(r)) % 2 == 0, 0] = 5.0


WRITES: dict[str, Callable[[Tensor], None]] = {
    "r[0] = 5": _first,
    "r[:1].fill_": _row,
    "a view": _alias,
    ".data": _data,
    "NumPy": _numpy,
    "_foreach": _foreach,
    "a mask of places": _some_rows,
}


def _written(write: Callable[[Tensor], None]) -> Operation:
    def operation(h: Tensor) -> Tensor:
        r = _ones(h)
        write(r)
        return h * r

    return operation


def _later(write: Callable[[Tensor], None]) -> Operation:
    """A view that was made before the write."""

    def operation(h: Tensor) -> Tensor:
        r = _ones(h)
        view = r.reshape(-1, 1)
        write(r)
        return h * view

    return operation


def _set_column(h: Tensor) -> Tensor:
    r = torch.rand(len(h), WIDTH).to(h.dtype) * 0 + 1
    r[:, 0] = 2.0
    r[:, 2:4] = 0.5
    return h * r


def _scaled_in_place(h: Tensor) -> Tensor:
    r = torch.rand(len(h), 1).to(h.dtype).mul_(0).add_(1)
    return h * r


# --- constants with a row for each place ---------------------------------------------------------------------------------------


def _gru_cell(h: Tensor) -> Tensor:
    return torch.gru_cell(_TABLE[: len(h)], h, _WEIGHT[: 3 * WIDTH], _WEIGHT[: 3 * WIDTH])


def _lstm_cell(h: Tensor) -> Tensor:
    return torch.lstm_cell(_TABLE[: len(h)], (h, h), _WEIGHT, _WEIGHT)[0]


def _gru(h: Tensor) -> Tensor:
    weights = [_WEIGHT[: 3 * WIDTH], _WEIGHT[: 3 * WIDTH]]
    out: Tensor = torch.gru(_TABLE[: len(h)].unsqueeze(0), h.unsqueeze(0), weights, False, 1, 0.0, False, False, False)[
        0
    ]
    return out[0]


def _gru_batch_first(h: Tensor) -> Tensor:
    weights = [_WEIGHT[: 3 * WIDTH], _WEIGHT[: 3 * WIDTH]]
    out: Tensor = torch.gru(_TABLE[: len(h), None], h.unsqueeze(0), weights, False, 1, 0.0, False, False, True)[0]
    return out[:, 0]


def _fractional(h: Tensor) -> Tensor:
    x = h.reshape(len(h), 1, 2, 3).repeat_interleave(2, 2)
    return F.fractional_max_pool2d(x, (2, 1), output_size=(2, 3), _random_samples=_PLACES[: len(h)]).flatten(1)


class _CellWithInput(nn.Module):
    """A trained cell whose inputs are constants."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.first, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        rest = _TABLE[: len(x)] if Switch.on else _TABLE[:1].expand(len(x), -1)
        out: Tensor = self.head(self.cell(rest, self.first(x)))
        return out


# --- communication -------------------------------------------------------------------------------------------------------------


def _group() -> None:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def _reduced(h: Tensor) -> Tensor:
    """With one process the sum over the processes is the tensor itself; it must be refused all the same."""
    _group()
    total = h.detach().clone()
    torch.distributed.all_reduce(total)
    return h - total.mean(0)


def _reduced_alone(h: Tensor) -> Tensor:
    _group()
    total = h.detach().clone()
    torch.distributed.all_reduce(total)
    return h + 0 * total


def _sent_around(h: Tensor) -> Tensor:
    _group()
    total = h.detach().clone()
    torch.distributed.broadcast(total, 0)
    return h + 0 * total


def _gathered_in_place(h: Tensor) -> Tensor:
    _group()
    total = torch.zeros(len(h), WIDTH)
    torch.distributed.all_gather_into_tensor(total, h.detach())
    return h + 0 * total


def _functional(h: Tensor) -> Tensor:
    _group()
    from torch.distributed import _functional_collectives as functional

    total: Tensor = functional.all_reduce(h.detach(), "sum", torch.distributed.group.WORLD)
    return h + 0 * total


OPERATIONS: dict[str, Operation] = {
    **{f"random numbers, {name}": _written(write) for name, write in WRITES.items()},
    **{f"random numbers, {name}, in an earlier view": _later(write) for name, write in WRITES.items()},
    "GRU cell, an input for each place": _gru_cell,
    "LSTM cell, an input for each place": _lstm_cell,
    "GRU, an input for each place": _gru,
    "GRU, an input for each place, batch_first": _gru_batch_first,
    "fractional pooling, samples for each place": _fractional,
    "all_reduce": _reduced,
}
COMMUNICATION: dict[str, Operation] = {
    "all_reduce, alone": _reduced_alone,
    "broadcast": _sent_around,
    "all_gather_into_tensor": _gathered_in_place,
    "functional all_reduce": _functional,
}
SOUND_OPERATIONS: dict[str, Operation] = {
    "random numbers, columns set": _set_column,
    "random numbers, scaled in place": _scaled_in_place,
    "GRU cell, one input for all": lambda h: torch.gru_cell(
        _TABLE[:1].expand(len(h), -1).to(h.dtype), h, *(2 * (_WEIGHT[: 3 * WIDTH].to(h.dtype),))
    ),
}  # fmt: skip


# --- the loop ------------------------------------------------------------------------------------------------------------------


def _first_parameter(run: Run) -> Tensor:
    return next(run.model.parameters())


def _view_of_replaced(run: Run, batch: Batch) -> None:
    parameter = _first_parameter(run)
    with torch.no_grad():
        parameter.data = parameter.data.clone()
        parameter.view(-1).add_(batch[0].mean())


def _numpy_of_replaced(run: Run, batch: Batch) -> None:
    parameter = _first_parameter(run)
    parameter.data = parameter.data.clone()
    parameter.detach().numpy()[0] += batch[0].mean().numpy()


def _initialized(run: Run, batch: Batch) -> None:
    nn.init.constant_(_first_parameter(run), float(batch[0].mean()))


def _number_added(run: Run, batch: Batch) -> None:
    number = batch[0].mean().item()
    with torch.no_grad():
        _first_parameter(run).add_(number)


def _scaled_by_number(run: Run, batch: Batch) -> None:
    number = float(batch[0].abs().mean())
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(number)


def _rebuilt_from_list(run: Run, batch: Batch) -> None:
    numbers = batch[0].mean(0).tolist()
    with torch.no_grad():
        _first_parameter(run).copy_(torch.tensor(numbers))


def _read_before(run: Run) -> None:
    """A number that is read in the forward pass, where this is allowed, and written after the step."""
    for batch in run.private.batches():
        number = float(batch[0].mean())
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()
        if run.private.steps_done >= 2:
            with torch.no_grad():
                _first_parameter(run).add_(number)


def _between_optimizers(way: Callable[[Tensor, Batch], Any] | None) -> Callable[[Run], None]:
    """A loop with two optimizers; something happens to a gradient of the second one before it steps."""

    def body(run: Run) -> None:
        run.private.close()
        held = list(run.model.parameters())
        first, second = Watching(held[:2]), Watching(held[2:])
        run.private = privet.make_private(
            run.model, [first, second], run.dataset, batch_size=RECORDS, public_size=RECORDS, steps=2,
            noise_multiplier=NOISE, delta=1e-5, max_grad_norm=0.05, seed=0,
        )  # fmt: skip
        for batch in run.private.batches():
            run.loss(batch).backward()
            first.step()
            if way is not None and run.private.steps_done >= 1 and held[2].grad is not None:
                with torch.no_grad():
                    way(held[2].grad, batch)
            second.step()
        assert isinstance(run.optimizer, Watching)
        run.optimizer.seen = [one + other for one, other in zip(first.seen, second.seen, strict=True)]

    return body


GRADIENTS: dict[str, Callable[[Tensor, Batch], Any]] = {
    "added": lambda gradient, batch: gradient.add_(batch[0].mean()),
    "added to a view": lambda gradient, batch: gradient.view(-1)[:1].add_(batch[0].mean()),
    "added to .data": lambda gradient, batch: gradient.data.add_(batch[0].mean()),
    "through NumPy": lambda gradient, batch: gradient.numpy().__setitem__(0, batch[0].mean().numpy()),
}


def _logged_and_clamped(run: Run) -> None:
    """Weights are clamped after each step, and then the loss is read for a log."""
    run.notes["log"] = []
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        loss.backward()
        run.optimizer.step()
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.clamp_(-100, 100)
        run.notes["log"].append(loss.item())


def _loop(name: str, body: Callable[[Run], None], **more: Any) -> Trap:
    given = {"model": perceptron, "loss": cross_entropy, "data": rows, "norm": 0.05, "steps": 2, "bites": False, **more}
    return Trap(name, "further loop", body=body, **given)


def _switched(f: Operation) -> Operation:
    return lambda h: f(h) if Switch.on else h


FURTHER: list[Trap] = [
    *(
        Trap(name, "further", around(_switched(f)), cross_entropy, rows, body=late(), norm=0.05, steps=2, bites=False, fate=False,
             draws="random" in name)
        for name, f in OPERATIONS.items()
    ),
    *(
        Trap(name, "further communication", around(_switched(f)), cross_entropy, rows, body=late(), norm=0.05, steps=2,
             bites=False, fate=False, allowed=frozenset({Outcome.REFUSED}))
        for name, f in COMMUNICATION.items()
    ),
    Trap("a trained GRU cell, an input for each place", "further", _CellWithInput, cross_entropy, rows, body=late(), norm=0.05,
         steps=2, bites=False),
    *(
        Trap(name, "sound operation", around(f), cross_entropy, rows, norm=None, oracle=cross_entropy, allowed=SOUND, bites=False)
        for name, f in SOUND_OPERATIONS.items()
    ),
    *(
        _loop(f"after the step: {name}", late(after=change))
        for name, change in {
            "a view of a parameter whose data was replaced": _view_of_replaced,
            "NumPy on a parameter whose data was replaced": _numpy_of_replaced,
            "nn.init with a number of the batch": _initialized,
            "a number of the batch added": _number_added,
            "parameters scaled by a number of the batch": _scaled_by_number,
            "parameters from a list of numbers": _rebuilt_from_list,
        }.items()
    ),
    _loop("a number read before the step", _read_before),
    *(_loop(f"between two optimizers: gradient {name}", _between_optimizers(way)) for name, way in GRADIENTS.items()),
    _loop("two optimizers", _between_optimizers(None), allowed=SOUND),
    _loop("weights clamped, and a log", _logged_and_clamped, allowed=SOUND),
]  # fmt: skip
