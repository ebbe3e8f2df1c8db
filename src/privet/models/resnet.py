"""The residual networks of He et al. 2016 for small images: 8, 14, 20, ... layers, with or without skip connections."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.errors import InputError

WIDTHS = (16, 32, 64)


class Centred(nn.Module):
    """Pixels between 0 and 1 become numbers about zero, by constants that nobody's data chose."""

    def forward(self, x: Tensor) -> Tensor:
        return 4 * (x - 0.5)


class Shortcut(nn.Module):
    """The stream on a coarser grid with more maps: every other pixel, and maps of zeros behind. Nothing is learnt."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.added, self.stride = outputs - inputs, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


class ResidualBlock(nn.Module):
    """``x + F(x)``, F being two 3x3 convolutions, each after a normalisation and ReLU.

    Nothing comes after the sum (He et al., "Identity mappings", 2016): what leaves a block is the x of the equations.
    Without a skip connection it is ``F(x)``, and `shortcut` is None.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, skip: bool, groups: int) -> None:
        super().__init__()
        changes = inputs != outputs or stride != 1
        self.shortcut = (Shortcut(inputs, outputs, stride) if changes else nn.Identity()) if skip else None
        self.residual = nn.Sequential(
            _normalisation(inputs, groups),
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            _normalisation(outputs, groups),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = self.residual(x)
        return mapped if self.shortcut is None else self.shortcut(x) + mapped


class Ensemble(nn.Module):
    """Networks whose class scores are averaged, and which are trained by that average's loss."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


def resnet(
    channels: int = 3,
    classes: int = 10,
    depth: int = 8,
    members: int = 1,
    skips: bool = True,
    groups: int = 0,
    shrink: int = 1,
) -> nn.Module:
    """A residual network of `depth` layers for small images: three stages of 16, 32 and 64 maps.

    Args:
        channels, classes: of the records.
        depth: 6 n + 2, where n is the number of blocks of a stage: 8, 14, 20, ...
        members: more than one makes an ensemble.
        skips: whether blocks have skip connections.
        groups: of group norm, which looks at one record at a time; 0 means batch norm, which mixes records.
        shrink: images are averaged over squares of so many pixels a side first, for networks that train in a minute.
    """
    if depth < 8 or (depth - 2) % 6:
        raise InputError(f"A residual network of this family has 8, 14, 20, ... layers, not {depth}.")
    if members < 1:
        raise InputError(f"An ensemble has at least one member, not {members}.")
    if groups < 0 or (groups and WIDTHS[0] % groups):
        raise InputError(f"The {WIDTHS[0]} maps of the first stage cannot be put into {groups} groups of equal size.")
    if shrink < 1:
        raise InputError(f"Images are averaged over squares of at least one pixel a side, not {shrink}.")
    made = [_network(channels, classes, (depth - 2) // 6, skips, groups, shrink) for _ in range(members)]
    return made[0] if members == 1 else Ensemble(made)


def _network(channels: int, classes: int, blocks: int, skips: bool, groups: int, shrink: int) -> nn.Module:
    layers: list[nn.Module] = [nn.AvgPool2d(shrink)] if shrink > 1 else []
    layers += [Centred(), nn.Conv2d(channels, WIDTHS[0], 3, 1, 1, bias=False)]
    width = WIDTHS[0]
    for stage, outputs in enumerate(WIDTHS):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            layers.append(ResidualBlock(width, outputs, stride, skip=bool(skips), groups=groups))
            width = outputs
    layers += [_normalisation(width, groups), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Linear(width, classes))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return network


def _normalisation(width: int, groups: int) -> nn.Module:
    return nn.GroupNorm(groups, width) if groups else nn.BatchNorm2d(width)
