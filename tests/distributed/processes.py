"""Trainings on 1, 2 and 4 processes, for `test_processes.py`. A program of its own, so that it has one thread and can be forked.

Every case is run in every process of a team; the results are one dictionary for each process, by the name of the case.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import privet
from privet.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    Clipping,
    EllipticalClipping,
    FlatClipping,
    MovingEllipticalClipping,
    PerLayerClipping,
)
from privet.distributed import Segment, Team, whole
from privet.errors import PrivetError
from privet.io.names import MODEL
from privet.noise import GaussianNoise, ShapedNoise
from privet.randomness import Randomness, SecureSource
from privet.sampling import FixedSizeSampling, Sampling
from privet.training import Performance
from privet.training.drawing import Records
from privet.training.optimizers import CorrectedAdam

RECORDS, STEPS = 60, 5


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 5, generator=generator)
    x[7] = torch.nan  # contributes nothing, in whichever process it is
    return TensorDataset(x, (x.sum(1) > 0).long(), torch.arange(RECORDS))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([whole(p.detach()).flatten() for p in model.parameters()])


def in_shards(model: nn.Module, **how: Any) -> nn.Module:
    """The model with each layer, and the model itself, given to `fully_shard`; plain without a process group."""
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.children():
            fully_shard(layer, mesh=mesh, **how)
        fully_shard(model, mesh=mesh, **how)
    return model


@dataclass
class Case:
    """One training: how it is made, and what its body does in some process."""

    clipping: Clipping = field(default_factory=lambda: FlatClipping(0.5))
    ddp: bool = False
    fsdp: bool = False
    how: dict[str, Any] = field(default_factory=dict)
    """Arguments of DistributedDataParallel or of `fully_shard`."""
    release: bool = False
    sampling: Sampling | None = None
    rate: float = 0.4
    optimizer: Callable[..., Any] = torch.optim.SGD
    more: dict[str, Any] = field(default_factory=dict)
    steps: int = STEPS
    also: Callable[[Any, nn.Module], None] | None = None
    """Called in the body of each batch of a step, before the gradients are taken."""
    stop_after: int = 0

    def run(self) -> dict[str, Any]:
        model = network()
        start = model
        if self.ddp and dist.is_initialized():
            model = DistributedDataParallel(model, **self.how)
        if self.fsdp:
            model = in_shards(model, **self.how)
        optimizer = self.optimizer(model.parameters(), lr=0.5)
        drawn = {"sampling": self.sampling} if self.sampling else {"batch_size": round(self.rate * RECORDS)}
        settings = {"steps": self.steps, "noise_multiplier": 1.0, "delta": 1e-5, "clipping": self.clipping}
        seed = None if self.release else 3
        private = privet.make_private(model, optimizer, dataset(), **{**drawn, **settings, "seed": seed, **self.more})
        if self.release:
            # Known keys, so that two teams can be compared. Another process than 0 has no use for the key of the noise.
            keys = (b"a" * 32, b"b" * 32 if rank() == 0 or self.fsdp else None)
            private.randomness = Randomness(SecureSource(keys[0]), SecureSource(keys[1]), None)
        seen: dict[int, list[int]] = {step: [] for step in range(self.steps)}
        try:
            self._loop(private, model, optimizer, seen)
        finally:
            private.close()
        return {
            "parameters": flat(start),
            "drawn": seen,
            "epsilon": private.spent().epsilon,
            "events": len(private.ledger),
            "state": repr(private.state.clipping) if isinstance(private.state.clipping, float) else "",
            "bad": private.bad_records,
        }

    def _loop(self, private: Any, model: nn.Module, optimizer: Any, seen: dict[int, list[int]]) -> None:
        for x, y, places in private.batches() if private.steps_done < private.plan.steps else ():
            step, is_step = private.steps_done, not private.rehearsing
            if is_step and self.also is not None:
                self.also(private, model)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if is_step:  # before the gradients are taken, nothing may read a value of the records
                seen[step] += places.tolist()
            if self.stop_after and private.steps_done == self.stop_after and is_step:
                break


def diagonal() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.rand(p.shape, generator=generator) + 0.5 for name, p in network().named_parameters()}


EQUAL: dict[str, Case] = {
    "plain": Case(),
    "ddp": Case(ddp=True),
    "per layer": Case(PerLayerClipping(0.5), ddp=True),
    "adaptive": Case(AdaptiveClipping(0.5), ddp=True),
    "elliptical": Case(EllipticalClipping(diagonal(), 0.5), ddp=True),
    "moving ellipse": Case(MovingEllipticalClipping(0.5, warmup=2)),
    "release": Case(release=True),
    "fixed size": Case(sampling=FixedSizeSampling(11, RECORDS)),
    "empty shares": Case(rate=0.03, steps=12, ddp=True),
    "parts": Case(more={"performance": Performance(physical_batch_size=5)}, ddp=True),
    "users": Case(more={"users": [place % 17 for place in range(RECORDS)], "batch_size": 6}),
    "one by one": Case(more={"isolation": "each"}, rate=0.1, steps=2),
    "adam": Case(optimizer=CorrectedAdam, more={"average": 0.9}),
    "shards": Case(fsdp=True),
    "shards per layer": Case(PerLayerClipping(0.5), fsdp=True),
    "shards adaptive": Case(AdaptiveClipping(0.5), fsdp=True),
    "shards elliptical": Case(EllipticalClipping(diagonal(), 0.5), fsdp=True),
    "shards automatic": Case(AutomaticClipping(0.5), fsdp=True),
    "shards release": Case(release=True, fsdp=True),
    "shards empty shares": Case(rate=0.03, steps=12, fsdp=True),
    "shards parts": Case(more={"performance": Performance(physical_batch_size=5)}, fsdp=True),
    "shards adam": Case(optimizer=torch.optim.Adam, more={"average": 0.9}, fsdp=True),
    "shards one by one": Case(more={"isolation": "each"}, rate=0.1, steps=2, fsdp=True),
    "workers": Case(more={"performance": Performance(workers=1, physical_batch_size=5)}, steps=3),
}
"""Trainings whose result must not depend on the number of processes."""


def told(case: Case) -> dict[str, Any]:
    """What a training that must fail says."""
    try:
        case.run()
    except Exception as error:
        return {"kind": type(error).__name__, "says": str(error)}
    return {"kind": "", "says": ""}


def only(process: int, do: Callable[[Any, nn.Module], None], step: int = 2) -> Callable[[Any, nn.Module], None]:
    def also(private: Any, model: nn.Module) -> None:
        if rank() == process and private.steps_done == step:
            do(private, model)

    return also


def nudge(private: Any, model: nn.Module) -> None:
    with private.paused(), torch.no_grad():
        next(model.parameters()).add_(1e-3)


def own_model() -> dict[str, Any]:
    with patch(f"{__name__}.network", lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))):
        torch.manual_seed(rank())
        return told(Case())


def own_records() -> dict[str, Any]:
    whole = dataset()
    part = TensorDataset(*(tensor[rank() :: dist.get_world_size()] for tensor in whole.tensors))
    with patch(f"{__name__}.dataset", lambda: part):
        return told(Case())


def failing_ledger(*, fsdp: bool = False) -> dict[str, Any]:
    before: list[Tensor] = []

    def fail(private: Any, model: nn.Module) -> None:
        before[:] = [own(private)]
        if private.steps_done == 2:
            private.ledger.on_record = lambda head: (_ for _ in ()).throw(PrivetError("The disk is full."))

    def also(private: Any, model: nn.Module) -> None:
        runs[:] = [private]
        fail(private, model)

    def own(private: Any) -> Tensor:
        held = [p for optimizer in private.optimizers for p in optimizer.param_groups[0]["params"]]
        return torch.cat([(p.to_local() if isinstance(p, DTensor) else p).detach().flatten().clone() for p in held])

    runs: list[Any] = []
    found = told(Case(also=also, fsdp=fsdp))
    return found | {"unchanged": torch.equal(before[0], own(runs[0]))}


def clipping_that_fails() -> dict[str, Any]:
    original = FlatClipping.clip

    def clip(self: Any, gradients: Any, state: Any = None) -> Any:
        if rank() == 1 and clip.count == 2:  # type: ignore[attr-defined]
            raise PrivetError("Process 1 does not like this batch.")
        clip.count += 1  # type: ignore[attr-defined]
        return original(self, gradients, state)

    clip.count = 0  # type: ignore[attr-defined]
    with patch.object(FlatClipping, "clip", clip):
        return told(Case(more={"self_check": False}))


def body_that_fails() -> dict[str, Any]:
    def stop(private: Any, model: nn.Module) -> None:
        raise ValueError("a mistake in the body of process 1")

    return told(Case(also=only(1, stop)))


def one_leaves() -> dict[str, Any]:
    return told(Case(stop_after=2 if rank() == 1 else 0))


def wrapped_later() -> dict[str, Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = privet.make_private(
        model, optimizer, dataset(), batch_size=20, steps=3, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0, seed=0
    )
    wrapper = DistributedDataParallel(model)
    try:
        next(iter(private.batches()))
    except PrivetError as error:
        return {"kind": type(error).__name__, "says": str(error)}
    return {"kind": "", "says": "", "wrapper": type(wrapper).__name__}


def shards(**how: Any) -> dict[str, Any]:
    return told(Case(fsdp=True, how=how))


def sharded_in_columns() -> dict[str, Any]:
    return shards(shard_placement_fn=lambda p: Shard(1) if p.shape == (2, 8) else Shard(0))


def tensor_parallel() -> dict[str, Any]:
    def network_in_columns() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    with patch(f"{__name__}.network", network_in_columns):
        return told(Case())


def used_after_training() -> dict[str, Any]:
    """A model in shards is evaluated between two steps and after the last one, as `fully_shard` does it."""
    model = in_shards(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = dataset().tensors[0][:5]
    private = privet.make_private(
        model, optimizer, TensorDataset(*dataset().tensors[:2]), batch_size=20, steps=3, noise_multiplier=1.0, delta=1e-5,
        max_grad_norm=1.0, seed=0,
    )  # fmt: skip
    seen: list[Tensor] = []

    def look(_: Any) -> None:
        with torch.no_grad():
            seen.append(model(x))

    for inputs, labels in private.batches(on_step=look):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    private.close()
    look(None)
    sharded = all(isinstance(p, DTensor) for p in model.parameters())
    F.cross_entropy(model(x), torch.zeros(5, dtype=torch.int64)).backward()
    trained = all(p.grad is not None and isinstance(p.grad, DTensor) for p in model.parameters())
    plain = network()
    plain.load_state_dict({name: whole(tensor) for name, tensor in model.state_dict().items()})
    return {
        "seen": torch.stack(seen),
        "plain": plain(x).detach(),
        "ordinary": (sharded and trained) or not dist.is_initialized(),
    }


def all_leave_and_go_on() -> dict[str, Any]:
    """Every process leaves the loop after two steps, and enters it again."""
    case = Case()
    first = Case._loop

    def twice(self: Case, *args: Any) -> None:
        first(replace(self, stop_after=2), *args)
        first(self, *args)

    with patch.object(Case, "_loop", twice):
        return case.run()


REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "settings": lambda: told(Case(FlatClipping(0.5 + rank()))),
    "seeds": lambda: told(Case(more={"seed": rank()})),
    "model": own_model,
    "records": own_records,
    "diverged": lambda: told(Case(also=only(1, nudge))),
    "ledger": failing_ledger,
    "clipping": clipping_that_fails,
    "body": body_that_fails,
    "leaving": one_leaves,
    "wrapped later": wrapped_later,
    "unused parameters": lambda: told(Case(ddp=True, how={"find_unused_parameters": True})),
    "ledger in shards": lambda: failing_ledger(fsdp=True),
    "diverged in shards": lambda: told(Case(also=only(1, nudge), fsdp=True)),
    "low precision": lambda: shards(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)),
    "low parameters": lambda: shards(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "columns": sharded_in_columns,
    "tensor parallel": tensor_parallel,
    "ellipse in shards": lambda: told(Case(MovingEllipticalClipping(0.5), fsdp=True)),
    "noise in shards": lambda: told(Case(fsdp=True, more={"noise": ShapedNoise, "noise_multiplier": 1.0})),
    "budget": lambda: told(Case(more={"epsilon": 2.2})),
}
"""Trainings that must end in every process, with the same sentence."""


# --- defects, as they were seen elsewhere -----------------------------------------------------------------------------


@contextmanager
def same_positions() -> Iterator[None]:
    """Every process uses the whole batch, because all have the same seed."""
    with patch.object(Records, "_share", lambda self, drawn: drawn):
        yield


@contextmanager
def keys_of_their_own() -> Iterator[None]:
    """Every process draws its batches from a key of its own."""
    with patch.object(Team, "key", lambda self: None):
        yield


@contextmanager
def dropped_empty_batches() -> Iterator[None]:
    """A process whose share of a batch is empty passes the step over."""
    original = Records.batches

    def batches(self: Records, plan: Any, randomness: Any, steps: range) -> Iterator[Any]:
        for part, batch in original(self, plan, randomness, steps):
            if part.records:
                yield part, batch

    with patch.object(Records, "batches", batches):
        yield


@contextmanager
def averaged() -> Iterator[None]:
    """The sum is divided by the number of processes, as DistributedDataParallel does."""
    original = Team.summed

    def summed(self: Team, *args: Any) -> dict[str, Tensor]:
        return {name: tensor / self.size for name, tensor in original(self, *args).items()}

    with patch.object(Team, "summed", summed):
        yield


@contextmanager
def averaged_shards() -> Iterator[None]:
    """Each shard of the sum is divided by the number of processes, as FSDP does."""
    original = Team.scattered

    def scattered(self: Team, *args: Any) -> dict[str, Tensor]:
        return {name: tensor / self.size for name, tensor in original(self, *args).items()}

    with patch.object(Team, "scattered", scattered):
        yield


@contextmanager
def equal_noise_in_shards() -> Iterator[None]:
    """Every shard gets the noise of the first one."""
    original = Team.own_pieces

    def own_pieces(self: Team, tensors: Any) -> dict[str, Segment]:
        found = original(self, tensors)
        return {name: Segment(0, each.stop - each.start, each.size) for name, each in found.items()}

    with patch.object(Team, "own_pieces", own_pieces):
        yield


@contextmanager
def unseeded_noise() -> Iterator[None]:
    """Every process draws its noise from a generator that nobody has seeded, and all of them are equal."""
    original = GaussianNoise.add

    def add(self: GaussianNoise, bounded: Any, source: Any) -> dict[str, Tensor]:
        return original(self, bounded, torch.Generator())

    with patch.object(GaussianNoise, "add", add):
        yield


@contextmanager
def only_own_sum() -> Iterator[None]:
    """No process hears of the records of another: each trains on its share, with the noise of the whole."""

    def summed(self: Team, tensors: Any, *args: Any) -> dict[str, Tensor]:
        return dict(tensors)

    def released(self: Team, make: Any, like: Any) -> dict[str, Tensor]:
        return dict(make())

    with patch.object(Team, "summed", summed), patch.object(Team, "released", released):
        yield


@contextmanager
def applied_before_the_ledger() -> Iterator[None]:
    """The noisy shards are used before process 0 has written anything down."""

    def acknowledged(self: Team, made: Any, sign: bytes, record: Any, like: Any) -> dict[str, Tensor]:
        if self.leads:
            record({"shard": torch.zeros(1)})
        return dict(made)

    with patch.object(Team, "acknowledged", acknowledged):
        yield


@contextmanager
def less_noise() -> Iterator[None]:
    """The noise is divided by the root of the number of processes, as if each added noise of its own."""
    original = GaussianNoise.add

    def add(self: GaussianNoise, bounded: Any, source: Any) -> dict[str, Tensor]:
        return original(GaussianNoise(self.multiplier / dist.get_world_size() ** 0.5), bounded, source)

    with patch.object(GaussianNoise, "add", add):
        yield


PLANTED: dict[str, tuple[Callable[[], Any], Case]] = {
    "same positions": (same_positions, EQUAL["plain"]),
    "keys of their own": (keys_of_their_own, replace(EQUAL["plain"], more={"seed": None})),
    "dropped empty batches": (dropped_empty_batches, EQUAL["empty shares"]),
    "averaged": (averaged, EQUAL["plain"]),
    "less noise": (less_noise, EQUAL["plain"]),
    "averaged shards": (averaged_shards, EQUAL["shards"]),
    "less noise in shards": (less_noise, EQUAL["shards"]),
    "equal noise in shards": (equal_noise_in_shards, EQUAL["shards"]),
    "unseeded noise": (unseeded_noise, EQUAL["shards"]),
    "same positions in shards": (same_positions, EQUAL["shards"]),
    "dropped empty batches in shards": (dropped_empty_batches, EQUAL["shards empty shares"]),
    "only its own sum": (only_own_sum, EQUAL["plain"]),
}
"""Defects, each with a training in which it must be found: by an error, or by a result that is not that of one process."""


def planted(name: str) -> dict[str, Any]:
    defect, case = PLANTED[name]
    try:
        with defect():
            return case.run()
    except PrivetError as error:
        return {"says": str(error)}


# --- running it -------------------------------------------------------------------------------------------------------


def every_case(folder: Path, world: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: case.run() for name, case in EQUAL.items()}
    if world == 2:
        found |= {f"refused {name}": run() for name, run in REFUSED.items()}
        found |= {f"planted {name}": planted(name) for name in PLANTED}
    found["left and entered again"] = all_leave_and_go_on()
    found["used"] = used_after_training()
    if world == 2:
        with applied_before_the_ledger():
            found["applied too early"] = failing_ledger(fsdp=True)
    where = {"folder": folder / "resumed", "resume": True, "performance": Performance(save_every=1)}
    in_parts = Case(more=where | {"folder": folder / "shards", "average": 0.9}, fsdp=True, optimizer=torch.optim.Adam)
    if world == 2:
        found["stopped"] = Case(more=where, stop_after=3).run()
        found["stopped in shards"] = replace(in_parts, stop_after=3).run()
    elif world == 4:
        found["resumed"] = Case(more=where).run()
        found["resumed in shards"] = in_parts.run()
        found["weights"] = load_file(folder / "shards" / MODEL)
    else:
        found["whole"] = replace(in_parts, more={"average": 0.9}).run()
    found["report"] = reported(folder / f"report-{world}")
    return found


def reported(folder: Path) -> str:
    """The first line of the card that a loop in a folder leaves; all processes run the same script."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = TensorDataset(*dataset().tensors[:2])
    with privet_loop(model, optimizer, data, folder) as private:
        page = private.report()
    return page.name


@contextmanager
def privet_loop(model: nn.Module, optimizer: Any, data: Any, folder: Path) -> Iterator[Any]:
    private = privet.make_private(
        model,
        optimizer,
        data,
        batch_size=20,
        steps=3,
        noise_multiplier=1.0,
        delta=1e-5,
        max_grad_norm=1.0,
        folder=folder,
    )
    for x, y in private.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    yield private
    private.close()


def child(folder: Path, world: int, place: int) -> None:
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{world}", rank=place, world_size=world)
    torch.save(every_case(folder, world), folder / f"{world}-{place}.pt")


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    failed = 0
    for world in (1, 2, 4):
        begun, children = time.monotonic(), []
        for place in range(world):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    child(folder, world, place)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(pid)
        failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
        print(f"{world} processes: {time.monotonic() - begun:.1f} s", flush=True)
        if failed:
            break
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
