"""Modules that mix the records of a batch: no per-example gradient exists for them."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from privet.gradients.recorder import UnsupportedModelError


def refuse_mixing_modules(model: nn.Module) -> None:
    """Raise, naming the module and the way out, where the model mixes records."""
    for name, module in model.named_modules():
        named = f"module '{name}' ({type(module).__name__})" if name else type(module).__name__
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            raise UnsupportedModelError(
                f"The {named} normalises each record by the others of its batch, so no record has a gradient of its own. "
                f"privet.fix(model) returns the model with GroupNorm in its place; a pretrained one can be put in eval mode."
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.scale_grad_by_freq:
            raise UnsupportedModelError(
                f"The {named} divides gradients by how often a token occurs in the batch (scale_grad_by_freq), which mixes "
                f"records. Build it with scale_grad_by_freq=False."
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise UnsupportedModelError(
                f"The {named} changes the rows of its table in place as the records use them (max_norm), outside the clipped "
                f"gradient. Build it without max_norm."
            )
        if isinstance(module, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)) and module.track_running_stats:
            raise UnsupportedModelError(
                f"The {named} keeps running statistics of the records outside the clipped gradient. "
                f"Build it with track_running_stats=False."
            )
