"""The processes that train one model together, what they tell each other, and the wrappers around the model.

Everything that the processes do together begins with `agree`: each says where it is, and whether it is well. Only when all are
at the same place, and all are well, does anything follow. A process that fails says so in the same way, at whatever place
the others are: they raise its sentence, and none waits for a process that will not come.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import unwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

T = TypeVar("T")

LATE = (
    "This process joined a process group after make_private, which planned for one process: call "
    "torch.distributed.init_process_group() first, then make_private."
)
DIVERGED = (
    "The processes have diverged: {0} has other parameters, another state of the clipping, or another batch than {1}. Nothing "
    "of this step was released. Let every process do the same to the model: train on public data with the same batches "
    "everywhere, and draw no random numbers in private.public(function)."
)
_OF_FSDP = "torch.distributed.fsdp."
_NAMES = ("bfloat16", "float16", "float32", "float64")
_DTYPES = tuple(getattr(torch, name) for name in _NAMES)


@dataclass(frozen=True)
class Segment:
    """The part of a tensor that a process holds: the coordinates from `start` to `stop` of the `size` of the flat tensor."""

    start: int
    stop: int
    size: int

    def of(self, whole: Tensor) -> Tensor:
        """These coordinates of the whole tensor, as whole rows of it."""
        if self.stop - self.start == self.size:
            return whole
        part = whole.reshape(-1)[self.start : self.stop]
        return part.view(len(part) * len(whole) // self.size, *whole.shape[1:]) if whole.ndim else part


class Team:
    """The processes of one training: this one alone, or all of a process group.

    Process 0 leads: it alone holds the noise, writes the ledger and the checkpoints, and decides how many steps the budget
    allows. All processes draw the same batches, each computes the clipped sum over its share of a batch, and the sums are
    added up in process 0.

    Where parameters are sharded, each process gets its own shard of the sum over all processes, and draws the noise of this
    shard: from one stream that all share, at the place of the shard in the whole parameter.

    Formal guarantees: the sum of a step is the sum over all processes, each added once, in float64. Each coordinate gets noise
    once, with the scale of the whole sum, and no two coordinates get the same numbers of the stream. Without shards, no
    process but 0 gets anything that depends on the records of others before `released` has written it down: what process 0
    sends is the noisy sum, after its event is in the ledger. With shards, no process uses or sends its noisy shard before
    process 0 has said that the event is in the ledger (`acknowledged`).
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.size = dist.get_world_size(group) if group is not None else 1
        self.word = 0
        """A number that process 0 sends along with each release: how many events its ledger holds."""
        self.pieces: Mapping[str, Sequence[Segment]] = {}
        """The pieces of each sharded parameter by its name, one for each process; empty where parameters are not sharded."""
        self._ended = ""
        """Why the team has ended; empty while it works."""
        self._answering = False
        """Whether process 0 is making what the others wait for: what it does for that, it does alone."""

    @classmethod
    def found(cls) -> Team:
        """The team of the process group that this process belongs to; a team of one where there is none."""
        if _world() > 1:
            # A group of its own: what the user's code sends cannot get between. Gloo works with and without a GPU.
            return cls(dist.new_group(backend="gloo"))
        started = (
            int(os.environ.get("WORLD_SIZE", "1")) if dist.is_available() and dist.is_torchelastic_launched() else 1
        )
        if started > 1:
            raise InputError(
                f"torchrun has started {started} processes, and this one belongs to no process group: call "
                f"torch.distributed.init_process_group() before make_private."
            )
        return cls()

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def named(self, rank: int) -> str:
        return f"process {rank}"

    # --- agreeing ---------------------------------------------------------------------------------------------------

    def agree(self, place: str, fact: int = 0) -> None:
        """Wait for all processes; raises unless all are at this place of the program, with the same fact, and none has failed."""
        if self.size == 1:
            if _world() > 1:
                raise PrivetError(LATE)
            return
        if not self._answering:
            self._exchange(place, fact, None)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this process cannot go on, wherever they are, unless the team has ended already."""
        if self.size > 1 and not self._ended and not self._answering and dist.is_initialized():
            with suppress(PrivetError):
                self._exchange("", 0, error)
            self._ended = self._ended or str(error)

    @contextmanager
    def telling(self, left: Callable[[], str] | None = None) -> Iterator[None]:
        """Inside, an error of this process is told to the others. `left` names the place of a generator that was closed."""
        try:
            yield
        except GeneratorExit:
            if left is not None and self.size > 1 and dist.is_initialized():
                with suppress(
                    PrivetError
                ):  # where the others have not left, they raise, and this process does at its next use
                    self.agree(left())
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def _exchange(self, place: str, fact: int, error: BaseException | None) -> None:
        if self._ended:
            raise PrivetError(self._ended)
        mine = torch.tensor([error is not None, _hash(place.encode()), fact], dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with self._reached():
            dist.all_gather(rows, mine, group=self._group)
            if error is None and all(torch.equal(row, mine) for row in rows):
                return
            told: list[Any] = [None] * self.size
            dist.all_gather_object(told, _told(place, fact, error), group=self._group)
        raise self._failure(told)

    def _failure(self, told: list[tuple[str, int, bytes | None, str]]) -> PrivetError:
        """The error of the first process that failed, or the first difference, as the error of all."""
        for rank, (_, _, kind, sentence) in enumerate(told):
            if kind is not None:
                self._ended = sentence
                return _made(kind, sentence, rank)
        places = [place for place, *_ in told]
        other = next((rank for rank, place in enumerate(places) if place != places[0]), 0)
        if other:
            self._ended = (
                f"The processes do not do the same: process {other} is at {places[other]}, and process 0 is at {places[0]}. "
                f"Let every process run the same loop with the same number of steps; what only one process does (logging, "
                f"evaluation) must not touch the loop."
            )
            return PrivetError(self._ended)
        other = next(rank for rank, row in enumerate(told) if row[1] != told[0][1])
        self._ended = DIVERGED.format(f"process {other}", "process 0")
        return PrivetError(self._ended)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Inside, a connection that breaks is explained: another process has died."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, PrivetError):
                raise
            self._ended = (
                f"Another process of this training has ended or cannot be reached, so this one stops, too; its own message "
                f"says why. The ledger of process 0 holds every step that was used. ({str(error).splitlines()[0]})"
            )
            raise PrivetError(self._ended) from None

    # --- doing something together -----------------------------------------------------------------------------------

    def asked(self, place: str, make: Callable[[], T]) -> T:
        """What `make` returns in process 0, for all processes: plain data. If it raises there, all processes raise its error."""
        if self.size == 1 or self._answering:
            return make()
        with self.telling():
            self.agree(place)
            value = self._alone(make) if self.leads else None
            self.agree(f"the result of {place}")
        given = [value]
        with self._reached():
            dist.broadcast_object_list(given, src=0, group=self._group)
        return given[0]  # type: ignore[return-value]

    def _alone(self, make: Callable[[], T]) -> T:
        self._answering = True
        try:
            return make()
        finally:
            self._answering = False

    def same(self, what: str, value: Mapping[str, Any], way_out: str) -> None:
        """Raise unless all processes have the same value; the message names the first field that differs."""
        if self.size == 1:
            return
        self.agree(what)
        found: list[Any] = [None] * self.size
        with self._reached():
            dist.all_gather_object(found, dict(value), group=self._group)
        for rank, other in enumerate(found):
            for name in found[0] | other:  # in order: every process names the same field
                if found[0].get(name) != other.get(name):
                    self._ended = f"Process {rank} has another {name} than process 0: {way_out}."
                    raise InputError(self._ended)

    def key(self) -> bytes | None:
        """A new secret key of 256 bits that all processes share and that is never written; None for one process.

        It goes over the network of the process group, as the sums without noise do: that network must be trusted.
        """
        return None if self.size == 1 else self.asked("the secret key", lambda: os.urandom(32))

    # --- a step -----------------------------------------------------------------------------------------------------

    def summed(self, tensors: Mapping[str, Tensor], place: str, replicas: Iterable[Tensor]) -> dict[str, Tensor]:
        """In process 0, the sums over all processes of these float64 tensors. In the others, zeros: they get the release.

        `replicas` are the tensors that must be the same in all processes, such as the parameters.
        """
        if self.size == 1:
            self.agree(place)
            return dict(tensors)
        # What can fail here comes before the agreement: after it, the others wait in the sum and cannot be told.
        total = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors.values()])
        if total.dtype != torch.float64:
            raise TypeError("Clipped sums are added up in float64.")
        self.agree(place, fingerprint(replicas))
        with self._reached():
            dist.reduce(total, dst=0, op=dist.ReduceOp.SUM, group=self._group)
        if not self.leads:
            total.zero_()  # partial sums of others may be left in it
        return {name: part.to(tensors[name].device) for name, part in _parts(total, tensors)}

    def scattered(self, tensors: Mapping[str, Tensor], place: str, replicas: Iterable[Tensor]) -> dict[str, Tensor]:
        """The piece of this process of the sums over all processes of these float64 tensors, in one reduce-scatter.

        Tensors that are not sharded belong to process 0, and are empty in the others.
        """
        divided = {name: self._divided(name, tensor) for name, tensor in tensors.items()}
        sizes = [sum(each[rank].stop - each[rank].start for each in divided.values()) for rank in range(self.size)]
        parts = [torch.zeros(max(sizes), dtype=torch.float64) for _ in sizes]
        for rank, part in enumerate(parts):
            start = 0
            for name, tensor in tensors.items():
                if tensor.dtype != torch.float64:
                    raise TypeError("Clipped sums are added up in float64.")
                piece = divided[name][rank]
                end = start + piece.stop - piece.start
                part[start:end] = tensor.detach().reshape(-1)[piece.start : piece.stop]
                start = end
        own = torch.empty(max(sizes), dtype=torch.float64)
        self.agree(place, fingerprint(replicas))
        with self._reached():
            if self.size > 1:
                dist.reduce_scatter(own, parts, op=dist.ReduceOp.SUM, group=self._group)
            else:
                own = parts[0]
        like = {name: divided[name][self.rank].of(tensor) for name, tensor in tensors.items()}
        return {name: part.to(tensors[name].device) for name, part in _parts(own[: sizes[self.rank]], like)}

    def _divided(self, name: str, tensor: Tensor) -> Sequence[Segment]:
        size = tensor.numel()
        return self.pieces.get(name) or [Segment(0, 0 if rank else size, size) for rank in range(self.size)]

    def own_pieces(self, tensors: Mapping[str, Tensor]) -> dict[str, Segment]:
        """The piece of each tensor that is this process's."""
        return {name: self._divided(name, tensor)[self.rank] for name, tensor in tensors.items()}

    def acknowledged(
        self,
        made: dict[str, Tensor],
        sign: bytes,
        record: Callable[[dict[str, Tensor]], None],
        like: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """`made`, the noisy pieces of this process, once process 0 has recorded all of them; it may not be used before.

        Args:
            made: the noisy pieces.
            sign: a digest of them, of the same length in all processes.
            record: called in process 0 with the digests of all; its event is on the disk when it returns.
            like: has the shapes of the whole tensors. Those that are not sharded are sent by process 0 in the end.
        """
        self.agree("the noise")
        signs = [torch.empty(len(sign), dtype=torch.uint8) for _ in range(self.size)]
        mine = torch.frombuffer(bytearray(sign), dtype=torch.uint8)
        with self._reached():
            if self.size > 1:
                dist.all_gather(signs, mine, group=self._group)
            else:
                signs = [mine]
        with self.telling():
            if self.leads:
                self._alone(lambda: record({f"shard {rank}": each for rank, each in enumerate(signs)}))
            self.agree("the ledger's answer")
        if self.size == 1:
            return made
        word = torch.tensor([self.word])
        with self._reached():
            dist.broadcast(word, src=0, group=self._group)
            self.word = int(word)
            for name in [name for name in made if name not in self.pieces]:
                tensor = made[name].cpu() if self.leads else torch.empty(like[name].shape, dtype=made[name].dtype)
                dist.broadcast(tensor, src=0, group=self._group)
                made[name] = tensor.to(like[name].device)
        return made

    def released(self, make: Callable[[], dict[str, Tensor]], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What `make` returns in process 0, for all processes. When it returns there, its event is in the ledger, on the disk.

        `like` has the names and shapes of what is made. An error of `make` ends all processes, and nothing was sent.
        """
        if self.size == 1:
            return make()
        with self.telling():
            made = self._alone(make) if self.leads else {}
            self.agree("the ledger's answer")
        kinds = torch.tensor([self.word, *(_DTYPES.index(made[n].dtype) if self.leads else 0 for n in like)])
        with self._reached():
            dist.broadcast(kinds, src=0, group=self._group)
            self.word, dtypes = int(kinds[0]), [_DTYPES[int(kind)] for kind in kinds[1:]]
            result: dict[str, Tensor] = {}
            for dtype in dict.fromkeys(dtypes):
                some = {name: like[name] for name, each in zip(like, dtypes, strict=True) if each == dtype}
                if self.leads:
                    flat = torch.cat([made[name].reshape(-1) for name in some]).cpu()
                else:
                    flat = torch.empty(sum(tensor.numel() for tensor in some.values()), dtype=dtype)
                dist.broadcast(flat, src=0, group=self._group)
                result |= {name: part.to(like[name].device) for name, part in _parts(flat, some)}
        return made if self.leads else {name: result[name] for name in like}


def fingerprint(tensors: Iterable[Tensor]) -> int:
    """A number of 63 bits from all bits of the tensors, for finding accidental differences: sums, and no hash."""
    total = 0
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1)
        if not flat.numel():
            continue
        size = min(flat.element_size(), 8)
        words = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
        total = (total * 1_000_003 + int(words.sum(dtype=torch.int64))) & (2**63 - 1)
    return total


def _world() -> int:
    """The number of processes in the process group that exists now."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _parts(flat: Tensor, like: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for name, tensor in like.items():
        yield name, flat[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)


def _told(place: str, fact: int, error: BaseException | None) -> tuple[str, int, bytes | None, str]:
    if error is None:
        return place, fact, None, ""
    known = isinstance(error, PrivetError)
    kind = type(error) if known else PrivetError
    sentence = str(error) if known else f"{type(error).__name__}: {error}"
    return place, fact, pickle.dumps(kind), sentence


def _made(kind: bytes, sentence: str, rank: int) -> PrivetError:
    """The error of another process, of the same class."""
    try:
        made = pickle.loads(kind)(sentence)
        return made if isinstance(made, PrivetError) else PrivetError(sentence)
    except Exception:  # a class of somebody else's may take other arguments, or be defined elsewhere
        return PrivetError(f"Process {rank} stopped: {sentence}")


class Unwrapped:
    """The modules of a training, without the wrappers that would join their gradients.

    The loop may go on calling the wrappers. While `set_apart`, `DistributedDataParallel` sends nothing: neither gradients, which
    it would average without clipping, nor buffers, for which it would wait for processes whose share of a batch is empty.
    """

    def __init__(self, models: Sequence[nn.Module], wrappers: Sequence[DistributedDataParallel]) -> None:
        self.models, self._wrappers = tuple(models), tuple(wrappers)
        self._gathered: list[tuple[dict[int, Any], list[tuple[int, Any]]]] | None = None
        """While parameters are gathered, the hooks of FSDP that were set aside, with the dictionaries that they come from."""

    @property
    def _sharded(self) -> list[Any]:
        return [module for model in self.models for module in model.modules() if _is_fsdp(module)]

    @property
    def is_gathered(self) -> bool:
        """Whether the modules have their whole parameters now, instead of this process's shards of them."""
        return self._gathered is not None

    def gather(self, team: Team, place: str) -> None:
        """Give the modules their whole parameters for one step, and set the hooks of `fully_shard` aside: in the step, the model
        is a plain one, and a process whose share is empty is not waited for. All processes call it."""
        sharded = self._sharded
        if not sharded:
            return
        self.scatter()
        team.agree(f"gathering the parameters for {place}")
        for module in sharded:
            module.reshard()  # what a pass between two steps has gathered may be old
            module.unshard()
        self._gathered = []
        for module in sharded:
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                aside = [(key, hook) for key, hook in hooks.items() if unwrap(hook).__module__.startswith(_OF_FSDP)]
                for key, _ in aside:
                    del hooks[key]
                self._gathered.append((hooks, aside))

    def scatter(self) -> None:
        """Undo `gather`: the modules have their shards again, as the last step of the optimizers has left them."""
        if self._gathered is None:
            return
        for hooks, aside in self._gathered:
            others = list(hooks.items())
            hooks.clear()
            hooks.update([*aside, *others])
        self._gathered = None
        for module in self._sharded:
            module.reshard()

    def refuse_later_wrappers(self) -> None:
        """Raise if a module was wrapped after `make_private`: such a wrapper would join gradients."""
        if _world() > 1:
            for thing in gc.get_objects():
                if (
                    type(thing) is DistributedDataParallel
                    and thing not in self._wrappers
                    and thing.module in self.models
                ):
                    raise PrivetError(
                        "The model was wrapped in DistributedDataParallel after make_private: wrap it first, and give "
                        "make_private the wrapper."
                    )

    def set_apart(self, apart: bool) -> None:
        for wrapper in self._wrappers:
            wrapper.require_backward_grad_sync = not apart
            wrapper.require_forward_param_sync = not apart

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Inside, the wrappers work as usual."""
        self.set_apart(False)
        try:
            yield
        finally:
            self.set_apart(True)


def unwrapped(models: Sequence[nn.Module], team: Team) -> Unwrapped:
    """The modules in their wrappers; raises for a wrapper or a kind of parameter whose sums would not be those of the plan."""
    inner, wrappers = [], []
    for model in models:
        if isinstance(model, DataParallel):
            raise InputError(
                "DataParallel joins gradients of several devices outside the plan: give the model that is in it (model.module), "
                "and start one process for each device with torchrun."
            )
        if isinstance(model, DistributedDataParallel):
            _check_wrapper(model, team)
            wrappers.append(model)
            model = model.module
        _check_parameters(model, team)
        inner.append(model)
    return Unwrapped(inner, wrappers)


def _check_wrapper(wrapper: DistributedDataParallel, team: Team) -> None:
    odd = next(
        (name for name in ("find_unused_parameters", "static_graph", "mixed_precision") if _has(wrapper, name)), ""
    )
    if odd:
        raise InputError(
            f"DistributedDataParallel({odd}=...) changes the passes of the model, and the plan needs none of it: leave it out."
        )
    processes = dist.get_world_size(wrapper.process_group)
    if processes != team.size:
        raise InputError(
            f"DistributedDataParallel was given a group of {processes} processes, and there are {team.size}: a plan is for all "
            f"processes of the default group."
        )


def _has(wrapper: DistributedDataParallel, name: str) -> bool:
    value: Any = getattr(wrapper, name, None)
    return value is not None and value is not False


def is_shard(tensor: object) -> TypeGuard[DTensor]:
    """Whether this is a tensor that is divided over the processes."""
    return isinstance(tensor, _imported("torch.distributed.tensor", "DTensor"))


def _is_fsdp(module: nn.Module) -> TypeGuard[FSDPModule]:
    return isinstance(module, _fsdp_class())


def _fsdp_class() -> Any:
    return _imported("torch.distributed.fsdp", "FSDPModule")


def _imported(module: str, name: str) -> Any:
    """A class if its module is imported; until then nothing can be an instance of it. The import takes about a second."""
    return getattr(sys.modules.get(module), name, ())


def _check_parameters(model: nn.Module, team: Team) -> None:
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if "FullyShardedDataParallel" in kinds:
        raise InputError(
            "FullyShardedDataParallel is not supported: shard the model with torch.distributed.fsdp.fully_shard, give the plain "
            "model, or one in DistributedDataParallel."
        )
    for module in model.modules():
        if _is_fsdp(module):
            _check_policies(module)
            module.reshard()
    for name, parameter in model.named_parameters():
        if is_shard(parameter):
            _check_shard(name, parameter, model, team)


def _check_policies(module: FSDPModule) -> None:
    """Refuse settings of `fully_shard` with which numbers would be rounded, or lie elsewhere."""
    state = module._get_fsdp_state()
    policy = state._mp_policy
    low = [name for name in ("param_dtype", "reduce_dtype", "output_dtype") if getattr(policy, name) is not None]
    if "reduce_dtype" in low and policy.reduce_dtype != torch.float64:
        raise InputError(
            f"fully_shard was given reduce_dtype={policy.reduce_dtype}: sums are added up in float64, because rounding between "
            f"the processes would change the bound on what a record contributes. Leave it out."
        )
    if low:
        raise InputError(
            f"fully_shard was given {low[0]}={getattr(policy, low[0])}, which is not supported: leave it out."
        )
    for group in state._fsdp_param_groups:
        if any(each.offload_to_cpu for each in group.fsdp_params):
            raise InputError("fully_shard was given an offload_policy, which is not supported: leave it out.")


def _check_shard(name: str, parameter: DTensor, model: nn.Module, team: Team) -> None:
    mesh, placements = parameter.device_mesh, parameter.placements
    if not any(_is_fsdp(module) for module in model.modules()) or mesh.ndim != 1:
        raise InputError(
            f"Parameter '{name}' is divided over the processes by something else than fully_shard over one dimension (tensor "
            f"parallelism, or a mesh with two dimensions). The norm of a record's gradient is not computed over several "
            f"processes: shard the model with fully_shard on a mesh of one dimension, or give the plain model."
        )
    if not (len(placements) == 1 and placements[0].is_shard(0)):
        raise InputError(
            f"Parameter '{name}' is sharded as {placements[0]}: fully_shard must shard the first dimension."
        )
    ranks = mesh.mesh.tolist()
    if ranks != list(range(team.size)):
        raise InputError(
            f"Parameter '{name}' is sharded over the processes {ranks}, and a plan is for all {team.size} processes of the "
            f"default group, in order."
        )


def pieces_of(model: nn.Module, team: Team) -> dict[str, list[Segment]]:
    """The pieces of each sharded parameter, one for each process."""
    found = {}
    for name, parameter in model.named_parameters():
        if is_shard(parameter):
            rows, row = len(parameter), parameter[:1].numel() if len(parameter) else 0
            each = -(-rows // team.size)  # as torch.chunk divides
            cuts = [min(rank * each, rows) * row for rank in range(team.size + 1)]
            found[name] = [Segment(*cut, rows * row) for cut in pairwise(cuts)]
            own = found[name][team.rank]
            if parameter.to_local().numel() != own.stop - own.start:
                raise PrivetError(f"Parameter '{name}' is not divided as torch.chunk divides: it cannot be trained.")
    return found


def own_class(model: nn.Module) -> type:
    """The class of a model, without the one that `fully_shard` puts before it."""
    kind = type(model)
    return next(base for base in kind.__bases__ if base is not _fsdp_class()) if _is_fsdp(model) else kind


def as_shard(local: Tensor, like: Tensor) -> Tensor:
    """A piece of this process as a shard like that of a parameter; other tensors as they are."""
    if not is_shard(like):
        return local
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def own_part(tensor: Tensor) -> Tensor:
    """The memory that this process holds of a tensor: its shard of a sharded one."""
    return tensor._local_tensor if is_shard(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor; all processes call this for a sharded one."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The whole tensor, sharded like a parameter of the same shape if that is sharded. Nothing is sent."""
    if not is_shard(like) or not isinstance(tensor, Tensor) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
