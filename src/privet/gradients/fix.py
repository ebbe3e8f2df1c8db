"""`fix`: a model whose records no longer see each other."""

from __future__ import annotations

import copy
import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def fix(model: nn.Module) -> nn.Module:
    """A copy of `model` that can be trained privately: what mixes records is replaced by what does not.

    - BatchNorm becomes GroupNorm with up to 32 groups, with the same affine parameters;
    - InstanceNorm keeps no running statistics;
    - Embedding and EmbeddingBag no longer scale gradients by a token's frequency in the batch.

    The copy runs as it is, in-place activations included. Parameters keep their names and values; give the optimizer the
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
