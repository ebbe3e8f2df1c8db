"""The zoo's harness: run a trap through `make_private` and say whether it was right, refused, assumed or wrong.

A trap is a model, a loss or a loop, and data with an outlier. It runs on a data set D and on D without one record, from one
seed, at sampling rate 1 and with next to no noise, so that the gradient that reaches the optimizer is the clipped sum. One
record may change that sum by at most C, may change no other state, and may not decide whether the run goes on. Where each
record has a loss of its own, the sum must also be that of a float64 loop over single records.

Only the public interface is used, and only `start`, `step_on` and `add_public` know its spelling.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import TensorDataset

import privet
from privet.errors import PrivetError
from privet.privacy.guarantees import Proved
from privet.sampling import PoissonSampling

Batch = Sequence[Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]
SLACK = 1e-4
"""How far above C the change by one record may be, in C: float32 rounding and the noise that is left."""
NOISE = 1e-6
DIFFERENCE = 1e-3
"""How far the clipped sum may be from the oracle's, in C."""
STEPS = 1


class Outcome(StrEnum):
    RIGHT = "right"
    REFUSED = "refused"
    ASSUMED = "assumed"
    WRONG = "WRONG"
    CRASHED = "crashed"


SAFE = frozenset({Outcome.RIGHT, Outcome.REFUSED, Outcome.ASSUMED})
"""What a trap that mixes records may end in."""
SOUND = frozenset({Outcome.RIGHT})
"""What an ordinary model and loop must end in."""


class Watching(Optimizer):
    """An optimizer that moves nothing and keeps every gradient that it is given: all that a run releases."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.seen: list[list[Tensor | None]] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen.append(_gradients(self))


def _gradients(optimizer: Optimizer) -> list[Tensor | None]:
    held = [p.grad for group in optimizer.param_groups for p in group["params"]]
    return [None if g is None else g.detach().clone() for g in held]


@dataclass(eq=False)
class Run:
    """What the body of a trap works with."""

    trap: Trap
    model: nn.Module
    optimizer: Optimizer
    dataset: Any
    private: Any = None
    notes: dict[str, Any] = field(default_factory=dict)
    """For bodies that keep something, and for `Trap.verify`."""

    def loss(self, batch: Batch) -> Tensor:
        assert self.trap.loss is not None
        return self.trap.loss(self.model, batch)

    def batches(self) -> Iterator[Batch]:
        yield from self.private.batches()


def classic(run: Run) -> None:
    """The loop that everybody writes."""
    add_public(run)
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        add_public_now(run)
        run.optimizer.step()


def with_vector(run: Run) -> None:
    """The loop that gives one loss for each record; the trap's loss returns a vector."""
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        step_on(run, run.loss(batch))


@dataclass(frozen=True, eq=False)
class Trap:
    """One way of being wrong, or (with ``allowed=SOUND``) one that must be right.

    Attributes:
        name, kind: what it is.
        model: makes the model; called with the same seed for every run.
        loss: the loss of a batch; the body calls it through `Run.loss`.
        data: makes the tensors of the data set, one row for each record.
        body: the training loop.
        allowed: the outcomes that pass.
        norm: C. None takes the median norm of the oracle, so that half of the records are clipped; without an oracle, the
            one at which a naive engine is most wrong.
        oracle: the loss of a batch with one record; the clipped sum must be the sum over it. None: only the change counts.
        left_out: records that are removed, one at a time.
        replace: change each of them into something else instead: rows of random numbers stay where they are. It costs 2 C.
        steps, settings: arguments of `make_private`.
        optimizer, holds_all: makes the optimizer; whether it holds frozen parameters, too.
        public: a loss that uses no record.
        wrap: makes of the records what `make_private` is given.
        verify: looks at a finished run on all data, and returns what is wrong with it or "".
        bites: whether a naive engine is wrong by more than C (checked); False where only other things are wrong.
        fate: whether a refusal that one record decides counts as wrong.
        alone: the batch that is drawn holds this record only; its neighbor holds nobody.
        slack: how far above C the change may be, in C, where gradients are kept in half precision.
        draws: it draws random numbers for the records in order. Without one record the others get other numbers, which is no
            leak: where each record is evaluated alone, neighbors are compared by `replace`.
    """

    name: str
    kind: str
    model: Callable[[], nn.Module]
    loss: Loss | None
    data: Callable[[], tuple[Tensor, ...]]
    body: Callable[[Run], None] = classic
    allowed: frozenset[Outcome] = SAFE
    norm: float | None = 0.01
    oracle: Loss | None = None
    left_out: tuple[int, ...] = (3, 0)
    replace: bool = False
    steps: int = STEPS
    settings: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Callable[[Any], Optimizer] = Watching
    holds_all: bool = False
    public: Callable[[nn.Module], Tensor] | None = None
    wrap: Callable[[TensorDataset], Any] | None = None
    verify: Callable[[Run], str] | None = None
    bites: bool = True
    fate: bool = True
    alone: int | None = None
    slack: float = SLACK
    draws: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


@dataclass(eq=False)
class Trace:
    """What one run gave away."""

    releases: list[list[Tensor | None]]
    state: dict[str, Tensor]
    error: BaseException | None
    proved: bool
    guarantee: str
    recorded: int
    """How many steps the ledger holds."""
    complaint: str = ""


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str
    change: float
    """The largest change of a released sum by one record, in C; NaN where nothing was released."""


# --- the interface of Privet ---------------------------------------------------------------------------------------------


def accepts(argument: str) -> bool:
    """Whether this version's `make_private` has an argument."""
    return argument in inspect.signature(inspect.unwrap(privet.make_private)).parameters


def start(run: Run, bound: float, records: int, isolation: str | None) -> Any:
    settings = {"isolation": isolation, **run.trap.settings}
    settings = {key: value for key, value in settings.items() if value is not None and accepts(key)}
    wanted = {
        "batch_size": records,
        "public_size": records,
        "steps": run.trap.steps,
        "noise_multiplier": NOISE,
        "delta": 1e-5,
        "max_grad_norm": bound,
        "seed": 0,
    }
    return privet.make_private(run.model, run.optimizer, run.dataset, **{**wanted, **settings})


@contextmanager
def drawing(indices: list[int] | None) -> Iterator[None]:
    """Inside, every batch that is drawn holds these records; None leaves the draws alone."""
    if indices is None:
        yield
        return
    own = PoissonSampling.draw
    PoissonSampling.draw = lambda *_: torch.tensor(indices, dtype=torch.int64)  # type: ignore[method-assign]
    try:
        yield
    finally:
        PoissonSampling.draw = own  # type: ignore[method-assign]


def step_on(run: Run, losses: Tensor) -> None:
    """A step on one loss for each record."""
    if hasattr(run.private, "step"):
        run.private.step(losses)
    else:
        losses.sum().backward()
        run.optimizer.step()


def _registers_public(run: Run) -> bool:
    return bool(inspect.signature(run.private.public).parameters)


def add_public(run: Run) -> None:
    """State the trap's public loss once, where this version takes it as a function."""
    public = run.trap.public
    if public is not None and _registers_public(run):
        run.private.public(lambda: public(run.model))


def add_public_now(run: Run) -> None:
    """Add the trap's public loss to this batch, where this version takes it as a block."""
    if run.trap.public is not None and not _registers_public(run):
        with run.private.public():
            run.trap.public(run.model).backward()


def freeze() -> None:
    """Keep everything that exists out of later garbage collections, because there are thousands of short runs.

    A run looks for the tensors that exist before its first batch among the objects that are not frozen, so tensors stay.
    """
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    gc.freeze()
    for tensor in tensors:
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(tensor))
        ctypes.pythonapi.PyObject_GC_Track(ctypes.py_object(tensor))


# --- running -------------------------------------------------------------------------------------------------------------


def fresh(trap: Trap) -> nn.Module:
    torch.manual_seed(7)
    return trap.model()


def tensors_of(trap: Trap, changed: int | None = None) -> tuple[Tensor, ...]:
    """The records: all of them, or without (or with another) record `changed`."""
    torch.manual_seed(3)
    data = trap.data()
    if changed is None or trap.alone is not None:
        return data
    if trap.replace:
        other = tuple(t.clone() for t in data)
        for t in other:
            t[changed] = -3 * t[changed] if t.is_floating_point() else t[(changed + 1) % len(t)]
        return other
    kept = [i for i in range(len(data[0])) if i != changed]
    return tuple(t[kept] for t in data)


def trace(trap: Trap, bound: float, changed: int | None = None, isolation: str | None = None) -> Trace:
    """Run the trap once, from one seed."""
    records = len(tensors_of(trap)[0])
    dataset = TensorDataset(*tensors_of(trap, changed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fresh(trap)
    held = [p for p in model.parameters() if p.requires_grad or trap.holds_all]
    run = Run(trap, model, trap.optimizer(held), dataset if trap.wrap is None else trap.wrap(dataset))
    elsewhere: list[list[Tensor | None]] = []

    def watch(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not isinstance(optimizer, Watching):
            elsewhere.append(_gradients(optimizer))

    error: BaseException | None = None
    handle = register_optimizer_step_post_hook(watch)
    drawn = None if trap.alone is None else [trap.alone] if changed is None else []
    torch.manual_seed(11)
    try:
        with warnings.catch_warnings(), drawing(drawn):
            warnings.simplefilter("ignore")
            run.private = start(run, bound, records, isolation)
            trap.body(run)
    except Exception as caught:
        error = caught
    finally:
        handle.remove()
        if run.private is not None:
            run.private.close()
    releases = [*(run.optimizer.seen if isinstance(run.optimizer, Watching) else []), *elsewhere]
    releases = [each for each in releases if any(g is not None for g in each)]
    proved, guarantee = False, ""
    if error is None:
        stands = run.private.spent().guarantee
        proved, guarantee = isinstance(stands, Proved), str(stands)
    recorded = 0 if run.private is None else len(run.private.ledger)
    found = Trace(releases, _state(run), error, proved, guarantee, recorded)
    if error is None and changed is None and trap.verify is not None:
        found.complaint = trap.verify(run)
    return found


def _state(run: Run) -> dict[str, Tensor]:
    """All that is left of the run beside the released gradients: buffers, parameters, the optimizer's state."""
    state = {f"buffer {name}": b.detach().clone() for name, b in run.model.named_buffers()}
    for name, b in run.model.state_dict().items():
        if isinstance(b, Tensor):
            state.setdefault(f"entry {name}", b.detach().clone())
    if not isinstance(run.optimizer, Watching):
        return {name: b for name, b in state.items() if name.startswith("buffer ")}
    for number, group in enumerate(run.optimizer.param_groups):
        numbers = {k: v for k, v in group.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        state |= {f"option {k} of group {number}": torch.tensor(float(v)) for k, v in numbers.items()}
    for number, kept in enumerate(run.optimizer.state.values()):
        state |= {f"optimizer {number} {k}": v.detach().clone() for k, v in kept.items() if isinstance(v, Tensor)}
    return state


# --- judging -------------------------------------------------------------------------------------------------------------


def judge(trap: Trap, isolation: str | None = None) -> Verdict:
    """Run the trap on all neighbors and say what came out."""
    bound = norm_of(trap)
    whole = trace(trap, bound, None, isolation)
    left_out = trap.left_out if trap.alone is None else (trap.alone,)
    others = [trace(trap, bound, i, isolation) for i in left_out]
    change, mismatch = _largest_change(whole, others, bound, len(tensors_of(trap)[0]))
    verdict = _fate(trap, whole, others, change)
    if verdict is not None and verdict.outcome is not Outcome.REFUSED:
        return verdict
    # A release is rounded to float32 once, after the noise: of a sum of n records that is n units in the last place.
    rounding = len(tensors_of(trap)[0]) * 2.0**-23
    allowed = (2 if trap.replace else 1) * (1 + trap.slack + rounding)
    wrong = mismatch
    if not wrong and change > allowed:
        wrong = f"one record changes the released sum by {change:.3g} C"
    if verdict is not None:  # refused: what was recorded before has to be right
        stated = isolation != "assume" and (whole.recorded or any(other.recorded for other in others))
        return Verdict(Outcome.WRONG, f"{wrong}, before it was refused", change) if wrong and stated else verdict
    wrong = wrong or whole.complaint or _moved(whole, others) or _unlike_oracle(trap, whole, bound)
    if not whole.proved:
        return Verdict(Outcome.ASSUMED, f"{whole.guarantee}; {wrong}" if wrong else whole.guarantee, change)
    if wrong:
        return Verdict(Outcome.WRONG, wrong, change)
    return Verdict(Outcome.RIGHT, "", change)


def _fate(trap: Trap, whole: Trace, others: Sequence[Trace], change: float) -> Verdict | None:
    """A verdict where a run raised; None where all went on to the end."""
    errors = [each.error for each in (whole, *others)]
    for error in errors:
        if error is not None and not isinstance(error, PrivetError):
            return Verdict(Outcome.CRASHED, f"{type(error).__name__}: {_short(str(error))}", change)
    if trap.fate and any(error is None for error in errors) and any(error is not None for error in errors):
        said = next(str(error) for error in errors if error is not None)
        return Verdict(Outcome.WRONG, f"one record decides whether the run raises: {_short(said)}", change)
    if whole.error is None:
        return None
    message = str(whole.error)
    if not message.strip():
        return Verdict(Outcome.WRONG, "it was refused without a word", change)
    if "tensor(" in message or len(message) > 1500:
        return Verdict(Outcome.WRONG, f"the message shows values: {_short(message)}", change)
    return Verdict(Outcome.REFUSED, f"{type(whole.error).__name__}: {_short(message)}", change)


def _largest_change(whole: Trace, others: Sequence[Trace], bound: float, records: int) -> tuple[float, str]:
    largest = math.nan
    for other in others:
        if len(whole.releases) != len(other.releases):
            if whole.error is None and other.error is None:
                return largest, "one record decides how many gradients are released"
            continue
        for one, two in zip(whole.releases, other.releases, strict=True):
            if len(one) != len(two) or [g is None for g in one] != [g is None for g in two]:
                return largest, "one record decides which parameters have a gradient"
            squared = 0.0
            for a, b in zip(one, two, strict=True):
                if a is not None and b is not None:
                    if a.shape != b.shape:
                        return largest, "one record decides the shape of a gradient"
                    if not (a.isfinite().all() and b.isfinite().all()):
                        return math.inf, "a released gradient is not finite"
                    squared += float((a.double() - b.double()).square().sum())
            changed = math.sqrt(squared) * records / bound
            largest = changed if math.isnan(largest) else max(largest, changed)
    return largest, ""


def _moved(whole: Trace, others: Sequence[Trace]) -> str:
    for other in others:
        if whole.state.keys() != other.state.keys():
            return "one record decides which state there is"
        for name, value in whole.state.items():
            if value.shape != other.state[name].shape or not torch.equal(
                value.nan_to_num(), other.state[name].nan_to_num()
            ):
                return f"{name} depends on a record, outside the released gradients"
    return ""


def _short(text: str) -> str:
    return " ".join(text.split())[:300]


# --- the oracle ----------------------------------------------------------------------------------------------------------


def record_gradients(trap: Trap, loss: Loss) -> list[Tensor]:
    """The gradient of each record's own loss, flat, one record at a time, in float64."""
    model = fresh(trap).double()
    data = tuple(t.double() if t.is_floating_point() else t for t in tensors_of(trap))
    rows = []
    for i in range(len(data[0])):
        alone = copy.deepcopy(model)
        torch.manual_seed(11)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss(alone, tuple(t[i : i + 1] for t in data)).sum().backward()
        trained = [p for p in alone.parameters() if p.requires_grad]
        rows.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained]))
    return rows


_NORMS: WeakKeyDictionary[Trap, float] = WeakKeyDictionary()


def norm_of(trap: Trap) -> float:
    """The trap's C."""
    if trap.norm is not None:
        return trap.norm
    if trap not in _NORMS:
        if trap.oracle is not None:
            norms = torch.stack([row.norm() for row in record_gradients(trap, trap.oracle)])
            _NORMS[trap] = float(norms[norms.isfinite()].median())
        else:
            from tests.zoo.naive import worst_norm

            _NORMS[trap] = worst_norm(trap)
    return _NORMS[trap]


def clipped_sum(rows: Sequence[Tensor], bound: float) -> Tensor:
    """The sum of the rows, each at most `bound` long; a row that is not finite counts as zero."""
    return torch.stack(
        [row * min(1.0, bound / max(float(row.norm()), 1e-300)) for row in rows if row.isfinite().all()]
        or [torch.zeros_like(rows[0])]
    ).sum(0)


def _unlike_oracle(trap: Trap, whole: Trace, bound: float) -> str:
    if trap.oracle is None or trap.optimizer is not Watching:
        return ""
    rows = record_gradients(trap, trap.oracle)
    expected = clipped_sum(rows if trap.alone is None else rows[trap.alone : trap.alone + 1], bound)
    sizes = [p.numel() for p in fresh(trap).parameters() if p.requires_grad]
    if len(whole.releases) < trap.steps:
        return f"{len(whole.releases)} gradients were released in {trap.steps} steps"
    for release in whole.releases[-trap.steps :]:
        if len(release) != len(sizes):
            return "a gradient was released for other parameters than the model's"
        flat = torch.cat(
            [
                (torch.zeros(n, dtype=torch.float64) if g is None else g.double().flatten())
                for g, n in zip(release, sizes, strict=True)
            ]
        )
        away = float((flat * len(rows) - expected).norm()) / bound
        if not away <= DIFFERENCE:
            return f"the clipped sum is {away:.3g} C away from that of single records"
    return ""
