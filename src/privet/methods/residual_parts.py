"""Where a network has its residual blocks, its streams and its last layers, and how many networks lie in each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from privet.errors import InputError
from privet.models.resnet import LastLayers, ResidualBlock

BLOCKS = ("ResidualBlock", "BasicBlock", "Bottleneck", "PreActBlock", "PreActBottleneck")
"""Classes of blocks that are known by name: those of this library, of torchvision and of well-known scripts."""
SHORTCUTS = ("shortcut", "downsample", "skip")
"""What a block calls the part that brings the stream to the shape of its output."""


def members_in(part: nn.Module) -> int:
    """How many members of a joined ensemble lie beside one another in a block or a last layer."""
    return part.members if isinstance(part, ResidualBlock | LastLayers) else 1


def found_blocks(model: nn.Module, named: Sequence[str] | None) -> dict[str, nn.Module]:
    """The residual blocks: those that are named, or all of a known class."""
    modules = dict(model.named_modules())
    if named is not None:
        for name in named:
            if name not in modules:
                raise InputError(f"The model has no part named {name!r}: name its residual blocks.")
        return {name: modules[name] for name in named}
    found = {name: module for name, module in modules.items() if type(module).__name__ in BLOCKS}
    if not found:
        raise InputError(
            f"No part of the {type(model).__name__} is a {' or a '.join(BLOCKS[:3])}: name its residual blocks with blocks=."
        )
    return found


def networks(blocks: dict[str, nn.Module]) -> dict[str, int]:
    """How the names of each network's parts begin, with the number of members that are joined in it."""
    found: dict[str, int] = {}
    for name, block in blocks.items():
        member = re.match(r"(.*\.)?members\.\d+\.", name)
        beginning = member[0] if member else ""
        found[beginning] = max(found.get(beginning, 1), members_in(block))
    return found


def last_layers(model: nn.Module, blocks: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The last linear layer of each network."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    layers = {}
    for beginning in networks(blocks):
        own = [name for name in linear if name.startswith(beginning)]
        if not own:
            raise InputError("Strategy II with pi puts noise on a last linear layer, and the model has none.")
        layers[own[-1]] = model.get_submodule(own[-1])
    return layers


def shortcut_of(block: nn.Module) -> nn.Module | None:
    parts = (getattr(block, name, None) for name in SHORTCUTS)
    return next((part for part in parts if isinstance(part, nn.Module)), None)


def skips(block: nn.Module) -> bool:
    return getattr(block, "shortcut", block) is not None
