"""The weights of a run's model in its folder, in a format that cannot run code when it is read."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from privet.errors import InputError
from privet.models import recorded_model
from privet.report.record import RunRecord


def load_model(record: RunRecord, folder: Path, model: str = "") -> nn.Module:
    """The saved model of a run; if its answers have noise, with that noise.

    A record can only name a model of `privet.models`. The user names their own as `model`: py:package.module:Net.
    """
    if not record.model.weights:
        raise InputError(f"{folder}: this run kept no weights, so there is no model to load; run the command again.")
    try:
        builder = recorded_model(record.model.name, model)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    path = folder / record.model.weights
    try:
        made: nn.Module = builder(**record.model.arguments)
        made.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise InputError(f"{path}: the weights of the run are missing; run the command again.") from None
    except (SafetensorError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: the weights do not fit the record ({reason}); run the command again.") from None
    if record.model.perturbation is not None:
        record.model.perturbation.apply(made)
    return made
