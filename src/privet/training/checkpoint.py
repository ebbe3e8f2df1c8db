"""Checkpoints: everything that a run needs to continue, in one file that is either complete or absent."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.distributed import is_shard, sharded_like
from privet.errors import InputError, PrivetError
from privet.io import write_whole
from privet.io.names import MODEL
from privet.training.optimizers import Average
from privet.training.plan import PlanState

if TYPE_CHECKING:
    from privet.training.private import Private

_FORMAT = "2"
_KEPT = 2
"""The newest checkpoint, and the one before it in case the newest cannot be read."""
_PLAIN = (str, int, float, bool, type(None))


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint could not be read, and the one before it was taken."""


class Stateful(Protocol):
    """A part of a run that can be saved and continued, as torch's own parts can."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any], stage: str = "") -> Path:
    """Write the state after `step` steps. When this returns, it is on the disk, and all but two checkpoints are deleted.

    A run of several stages keeps the checkpoints of each. Checkpoints of later steps, left from before the run went back, are
    deleted first.

    Formal guarantees: if the process is killed at any moment, or the disk is full, the folder holds its earlier checkpoints.
    """
    path = folder / f"checkpoint-{stage}{'-' if stage else ''}{step:09d}.safetensors"
    try:
        write_state(path, state)
    except OSError as error:
        raise PrivetError(
            f"The checkpoint {path} cannot be written: {error.strerror}. The one before it is unchanged; make room and resume."
        ) from None
    found = _checkpoints(folder, stage)
    kept = [each for each in found if each.name <= path.name][-_KEPT:]
    for old in found:
        if old not in kept:
            old.unlink(missing_ok=True)
    return path


def load_checkpoint(folder: Path, stage: str = "", at: int | None = None) -> dict[str, Any] | None:
    """The newest state that can be read, or None if there is no checkpoint; warns when a newer one is damaged.

    With `at`, the state after that many steps; raises if it is not there.
    """
    found = _checkpoints(folder, stage)[::-1]
    if at is not None:
        steps = {int(path.stem.rpartition("-")[2]): path for path in found}
        if at not in steps:
            there = " and ".join(map(str, sorted(steps))) or "none"
            raise InputError(f"{folder} holds no state of the run after step {at} (there is: {there}).")
        found = [steps[at]]
    for path in found:
        try:
            return dict(read_state(path))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            warnings.warn(f"{path} cannot be read ({error}).", DamagedCheckpointWarning, stacklevel=2)
    if found:
        raise PrivetError(f"No checkpoint in {folder} can be read: start again in another folder.")
    return None


def remove_checkpoints(folder: Path, stage: str = "") -> None:
    """Delete the checkpoints of a stage that is done."""
    for path in _checkpoints(folder, stage):
        path.unlink(missing_ok=True)


def _checkpoints(folder: Path, stage: str) -> list[Path]:
    """The checkpoints of a stage, the oldest first."""
    return sorted(folder.glob(f"checkpoint-{stage}{'-' if stage else ''}{'[0-9]' * 9}.safetensors"))


def write_state(path: Path, state: Any, note: str = "") -> None:
    """Write plain data with tensors to a file that only its owner reads; `note` can be read without the rest.

    Raises `OSError`; then the file is as it was.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(pack(state, tensors, "state"))
    metadata = {"format": _FORMAT, "state": tree, "digest": digest(tensors, tree + note)}
    write_whole(path, save(tensors, metadata | ({"note": note} if note else {})))


def read_state(path: Path) -> Any:
    """Read the data of `write_state`; raises `ValueError` if the file was changed."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        # Copies: a tensor in the file lies at any address, and the last bits of a product depend on its alignment.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a mapping
    if metadata.get("format") != _FORMAT:
        raise PrivetError(
            f"{path} was written by another version of Privet, and its state has another layout (format "
            f"{metadata.get('format')}; this version reads {_FORMAT}): finish the run with that version, or start again in "
            f"another folder."
        )
    if digest(tensors, metadata["state"] + metadata.get("note", "")) != metadata["digest"]:
        raise ValueError("its content was changed")
    return unpack(json.loads(metadata["state"]), tensors)


def read_note(path: Path) -> str:
    """The note of a file of `write_state`, unchecked: `read_state` checks it."""
    with safe_open(path, framework="pt") as file:
        return str((file.metadata() or {}).get("note", ""))


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 in hex over names, types, shapes and contents."""
    summed = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        summed.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        summed.update(_bytes(tensor))
    return summed.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


# --- the state of a run -------------------------------------------------------------------------------------------------


def state_of(private: Private) -> dict[str, Any]:
    """The state of a run. For a release, it contains nothing from which the noise could be computed."""
    streams = private.randomness.state()
    if private.stream is not None:
        streams["sampling"] = private.stream  # the generator itself may be ahead, drawing for workers
    return {
        "identity": private.identity,
        "clipping": private.state.clipping,
        "noise": private.state.noise,
        "streams": streams,
        "torch": torch.get_rng_state() if private.randomness.reproducible else None,
        **{name: part.state_dict() for name, part in _parts(private).items()},
    }


def restore(private: Private, path: str, state: dict[str, Any]) -> None:
    """Restore a run to `state`."""
    shards = {name: p for name, p in private.engine.model.named_parameters() if is_shard(p)}
    for name, part in _parts(private).items():
        try:
            part.load_state_dict(_in_shards(part, state[name], shards) if shards else state[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise InputError(f"The run in {path} had another {name}: {str(error).splitlines()[0]}") from None
    private.steps_done = state["step"]
    private.state = PlanState(state["clipping"], state["noise"])
    private.randomness.restore(state["streams"])
    private.stream, private.torch_state = state["streams"].get("sampling"), state["torch"]


def _in_shards(part: Stateful, state: dict[str, Any], shards: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state that was saved whole, with the tensors of sharded parameters in shards of this number of processes."""
    if isinstance(part, Optimizer):
        held = [p for group in part.param_groups for p in group["params"]]
        each = {
            place: {key: sharded_like(value, held[place]) for key, value in values.items()}
            for place, values in state["state"].items()
        }
        return {**state, "state": each}
    if isinstance(part, Average):
        return {**state, "values": _in_shards(nn.Module(), state["values"], shards)}
    if isinstance(part, nn.Module):
        return {name: sharded_like(value, shards.get(name, value)) for name, value in state.items()}
    return state


def _parts(private: Private) -> dict[str, Stateful]:
    parts: dict[str, Stateful] = {"model": private.engine.model}
    parts |= {f"optimizer {place}": optimizer for place, optimizer in enumerate(private.optimizers)}
    parts |= {"average": private.average} if private.average is not None else {}
    parts |= {"scheduler": private.scheduler} if private.scheduler is not None else {}
    return parts | {f"own {name}": part for name, part in private.stateful.items()}


# --- plain data: a tree for JSON and tensors by name; reading it never runs code ----------------------------------------


def pack(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """The tree of `value`; its tensors go into `tensors`, under names that begin with `where`."""
    if isinstance(value, Tensor):
        # A copy: tied parameters share memory, and a file of tensors cannot. With the usual strides, because those of one
        # channel or one row are ambiguous, and convolutions choose their kernel by them.
        tensors[where] = value.detach().clone(memory_format=torch.contiguous_format)
        return {"tensor": where}
    if isinstance(value, Mapping):
        items = [[_key(key, where), pack(item, tensors, f"{where}.{key}")] for key, item in value.items()]
        return {"mapping": items}
    if isinstance(value, tuple):
        return {"tuple": [pack(item, tensors, f"{where}.{place}") for place, item in enumerate(value)]}
    if isinstance(value, list):
        return [pack(item, tensors, f"{where}.{place}") for place, item in enumerate(value)]
    if type(value) in _PLAIN:
        return value
    raise PrivetError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold: it holds tensors, numbers, text, and "
        f"mappings, tuples and lists of these."
    )


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `pack` was given."""
    if isinstance(tree, list):
        return [unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "tuple" in tree:
        return tuple(unpack(item, tensors) for item in tree["tuple"])
    return {key: unpack(item, tensors) for key, item in tree["mapping"]}


def as_read(value: Any) -> Any:
    """A value as `read_state` gives it back: what is computed from it has the same bits, whether it was read or not."""
    tensors: dict[str, Tensor] = {}
    return unpack(pack(value, tensors, "value"), tensors)


def _key(key: Any, where: str) -> str | int:
    if type(key) not in (str, int):
        raise PrivetError(f"{where} has the key {key!r}, and keys in a checkpoint are text or whole numbers.")
    return key  # type: ignore[no-any-return]


def save_weights(model: nn.Module, folder: Path) -> str:
    """Write the model's parameters and buffers; returns the file's name, for the record."""
    return write_weights(model.state_dict(), folder)


def write_weights(state: Mapping[str, Tensor], folder: Path) -> str:
    """Write parameters and buffers by name; returns the file's name."""
    # A copy: tied parameters share memory, and a file of tensors cannot.
    weights = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    write_whole(folder / MODEL, save(weights), mode=0o644)  # the release: everybody may read it
    return MODEL
