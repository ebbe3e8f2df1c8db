"""The weights of a run's model in its folder, as data that never runs code when it is read."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from privet import models
from privet.errors import InputError
from privet.io import write_whole
from privet.report.record import RunRecord

FILE = "model.safetensors"


def save_weights(model: nn.Module, folder: Path) -> str:
    """Write the model's parameters and buffers; gives the file's name, for the record."""
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    write_whole(folder / FILE, save(weights), mode=0o644)  # the release: everybody may read it
    return FILE


def load_model(record: RunRecord, folder: Path) -> nn.Module:
    """The run's model as it was when it was saved, with noise where its answers have noise.

    Only a model of `privet.models` can be named.
    """
    if not record.model.weights:
        raise InputError(f"{folder}: this run kept no weights, so there is no model to load; run the command again.")
    if record.model.name not in models.MODELS:
        known = ", ".join(models.MODELS)
        raise InputError(
            f"{folder}: there is no model {record.model.name!r} in this version of Privet; it has {known}."
        )
    path = folder / record.model.weights
    try:
        model: nn.Module = models.MODELS[record.model.name](**record.model.arguments)
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise InputError(f"{path}: the weights of the run are missing; run the command again.") from None
    except (SafetensorError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: the weights do not fit the record ({reason}); run the command again.") from None
    if record.model.perturbation is not None:
        record.model.perturbation.apply(model)
    return model
