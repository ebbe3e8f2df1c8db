"""Modules that mix the records of a batch: `refuse_mixing_modules` refuses them, `fix` replaces them."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from privet.gradients.knowledge import UnsupportedModelError


def refuse_mixing_modules(model: nn.Module) -> None:
    """Raise if the model mixes records or hides its operations; the message names the module and a way out."""
    for name, module in model.named_modules():
        named = f"module '{name}' ({type(module).__name__})" if name else type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"The {named} was made by torch.jit, which hides its operations: train the model itself, and script it "
                f"afterward."
            )
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            raise UnsupportedModelError(
                f"The {named} normalizes each record by the others of its batch, so no record has a gradient of its own. "
                f"privet.fix(model) returns the model with GroupNorm instead; a pretrained one can be put in eval mode."
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


def fix(model: nn.Module) -> nn.Module:
    """A copy of `model` that can be trained privately: layers that mix records are replaced by layers that do not.

    - BatchNorm becomes GroupNorm with up to 32 groups and the same affine parameters;
    - InstanceNorm keeps no running statistics;
    - Embedding and EmbeddingBag no longer scale gradients by a token's frequency in the batch.

    The copy is ready to use, in-place activations included. Parameters keep their names and values; give the optimizer the
    copy's parameters.
    """
    fixed = copy.deepcopy(model)
    if isinstance(fixed, _BatchNorm):
        return _group_norm(fixed)
    for parent in list(fixed.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, _BatchNorm):
                setattr(parent, name, _group_norm(module))
            elif isinstance(module, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
            elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                module.scale_grad_by_freq = False
    return fixed


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    groups = math.gcd(norm.num_features, 32)
    replacement = nn.GroupNorm(groups, norm.num_features, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        replacement.weight, replacement.bias = norm.weight, norm.bias
    return replacement.train(norm.training)
