"""What the steps of a run have moved, as a checkpoint holds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from privet.clipping import Clipping
from privet.errors import InputError
from privet.noise import NoisePlan

if TYPE_CHECKING:
    from privet.training.private import Private


class Stateful(Protocol):
    """What can be saved and continued, as torch's own parts can."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def state_of(private: Private) -> dict[str, Any]:
    """The state of a run. Of a release, nothing from which its noise could be computed."""
    streams = private.randomness.state()
    if private.stream is not None:
        streams["sampling"] = private.stream  # the generator itself may be ahead, drawing for workers
    return {
        "identity": private.identity,
        "clipping": _moved(private.plan.clipping, private.clipping),
        "noise": _moved(private.plan.noise, private.noise),
        "streams": streams,
        "torch": torch.get_rng_state() if private.randomness.reproducible else None,
        **{name: part.state_dict() for name, part in _parts(private).items()},
    }


def restore(private: Private, path: Path, state: dict[str, Any]) -> None:
    """Put a run where `state` was taken."""
    for name, part in _parts(private).items():
        try:
            part.load_state_dict(state[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise InputError(f"The run in {path} had another {name}: {str(error).splitlines()[0]}") from None
    private.steps_done = state["step"]
    if state["clipping"]:
        private.clipping = dataclasses.replace(private.plan.clipping, **state["clipping"])  # type: ignore[type-var]
    if state.get("noise"):
        private.noise = dataclasses.replace(private.plan.noise, **state["noise"])  # type: ignore[type-var]
    private.randomness.restore(state["streams"])
    private.stream, private.torch_state = state["streams"].get("sampling"), state["torch"]


def _parts(private: Private) -> dict[str, Stateful]:
    parts: dict[str, Stateful] = {"model": private.engine.model}
    parts |= {f"optimizer {place}": optimizer for place, optimizer in enumerate(private.optimizers)}
    parts |= {"average": private.average} if private.average is not None else {}
    parts |= {"scheduler": private.scheduler} if private.scheduler is not None else {}
    return parts | {f"own {name}": part for name, part in private.stateful.items()}


def _moved(planned: Clipping | NoisePlan, now: Clipping | NoisePlan) -> dict[str, Any]:
    """The fields of a moving clipping or noise that are not as planned."""
    if now is planned:
        return {}
    values = {field.name: getattr(now, field.name) for field in dataclasses.fields(planned)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if _differs(value, getattr(planned, name))}


def _differs(now: Any, planned: Any) -> bool:
    """Whether a field has moved; of tensors by name it is enough that they are others."""
    return now is not planned if isinstance(now, Mapping) else bool(now != planned)
