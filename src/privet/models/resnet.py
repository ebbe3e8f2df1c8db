"""The residual networks of He et al. 2016 for small images: 8, 14, 20, ... layers, with or without skip connections.

Several of them can be joined into one network: the channels of a layer with `members` are those of the first member, then
those of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.errors import InputError

WIDTHS = (16, 32, 64)


class Centered(nn.Module):
    """Shift pixels between 0 and 1 to numbers around zero, by constants that do not depend on data."""

    def forward(self, x: Tensor) -> Tensor:
        return 4 * (x - 0.5)


class Shortcut(nn.Module):
    """The stream on a coarser grid with more maps: every other pixel, and additional maps of zeros. Nothing is learned."""

    def __init__(self, inputs: int, outputs: int, stride: int, members: int = 1) -> None:
        super().__init__()
        self.added, self.stride, self.members = outputs - inputs, stride, members

    def forward(self, x: Tensor) -> Tensor:
        kept = x[:, :, :: self.stride, :: self.stride]
        if self.members == 1:
            return F.pad(kept, (0, 0, 0, 0, 0, self.added))
        maps = kept.unflatten(1, (self.members, -1))
        return F.pad(maps, (0, 0, 0, 0, 0, self.added)).flatten(1, 2)


class ResidualBlock(nn.Module):
    """``x + F(x)``, where F is two 3x3 convolutions, each after a normalization and ReLU.

    Nothing follows the sum (He et al., "Identity mappings", 2016): the output of a block is the x of the equations. Without
    a skip connection the output is ``F(x)``, and `shortcut` is None. `inputs`, `outputs` and `groups` are those of one
    member.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, skip: bool, groups: int, members: int = 1) -> None:
        super().__init__()
        self.members = members
        changes = inputs != outputs or stride != 1
        self.shortcut = (Shortcut(inputs, outputs, stride, members) if changes else nn.Identity()) if skip else None
        self.residual = nn.Sequential(
            _normalization(inputs, groups, members),
            nn.ReLU(),
            nn.Conv2d(members * inputs, members * outputs, 3, stride, 1, bias=False, groups=members),
            _normalization(outputs, groups, members),
            nn.ReLU(),
            nn.Conv2d(members * outputs, members * outputs, 3, 1, 1, bias=False, groups=members),
        )

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = self.residual(x)
        return mapped if self.shortcut is None else self.shortcut(x) + mapped


class LastLayers(nn.Linear):
    """The last layers of all members, each on the maps of its own member: rows by members by classes."""

    def __init__(self, inputs: int, outputs: int, members: int) -> None:
        super().__init__(inputs, members * outputs)
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        weights, biases = (parts.unflatten(0, (self.members, -1)) for parts in (self.weight, self.bias))
        scores: Tensor = torch.einsum("nki,koi->nko", x, weights) + biases
        return scores


class MemberMean(nn.Module):
    """The mean of the members' class scores."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.mean(1)


class Ensemble(nn.Module):
    """Networks whose class scores are averaged; they are trained with the loss of the average.

    Args:
        members: the networks.
        build: builds one untrained network with the given number of `members`; `joined` needs it.
    """

    def __init__(self, members: list[nn.Module], build: Callable[..., nn.Module] | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._build = build

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)

    def joined(self) -> nn.Module:
        """The same ensemble as one network with grouped convolutions and copies of the weights and buffers.

        It needs fewer calls, so it is faster than the members in turn for few rows (on one core, up to four of 32x32 or
        sixteen of 16x16), and slower for many: see `benchmarks/residual.py`. It has no noise from the members:
        `ResidualPerturbation.apply` adds noise again, and counts every member.
        """
        if self._build is None:
            raise InputError("Only an ensemble built by `resnet(members=...)` can be joined into one network.")
        with torch.device("meta"):  # nothing is drawn
            one, network = self._build(), self._build(members=len(self.members))
        if any(str(member) != str(one) for member in self.members):
            raise InputError("A member has other layers than `resnet` gave it, so the ensemble cannot be joined.")
        states = [member.state_dict() for member in self.members]
        network.load_state_dict({name: _beside([state[name] for state in states]) for name in states[0]}, assign=True)
        return network.train(self.training)


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
        channels, classes: the number of channels and classes of the records.
        depth: 6 n + 2, where n is the number of blocks of a stage: 8, 14, 20, ...
        members: the number of members; more than one makes an ensemble.
        skips: whether blocks have skip connections.
        groups: the groups of group norm, which looks at one record at a time; 0 means batch norm, which mixes records.
        shrink: the side of the squares of pixels that are averaged first, for networks that train in a minute.
    """
    if depth < 8 or (depth - 2) % 6:
        raise InputError(f"A residual network of this family has 8, 14, 20, ... layers, not {depth}.")
    if members < 1:
        raise InputError(f"An ensemble has at least one member, not {members}.")
    if groups < 0 or (groups and WIDTHS[0] % groups):
        raise InputError(
            f"The {WIDTHS[0]} maps of the first stage cannot be divided into {groups} groups of equal size."
        )
    if shrink < 1:
        raise InputError(f"Images are averaged over squares of at least one pixel a side, not {shrink}.")
    build = partial(_network, channels, classes, (depth - 2) // 6, skips, groups, shrink)
    return build() if members == 1 else Ensemble([build() for _ in range(members)], build)


def _network(
    channels: int, classes: int, blocks: int, skips: bool, groups: int, shrink: int, members: int = 1
) -> nn.Module:
    layers: list[nn.Module] = [nn.AvgPool2d(shrink)] if shrink > 1 else []
    layers += [Centered(), nn.Conv2d(channels, members * WIDTHS[0], 3, 1, 1, bias=False)]
    width = WIDTHS[0]
    for stage, outputs in enumerate(WIDTHS):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            layers.append(ResidualBlock(width, outputs, stride, skip=bool(skips), groups=groups, members=members))
            width = outputs
    layers += [_normalization(width, groups, members), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    if members == 1:
        layers += [nn.Flatten(), nn.Linear(width, classes)]
    else:
        apart = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (members, width)))
        layers += [apart, LastLayers(width, classes, members), MemberMean()]
    network = nn.Sequential(*layers)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return network


def _normalization(width: int, groups: int, members: int) -> nn.Module:
    return nn.GroupNorm(members * groups, members * width) if groups else nn.BatchNorm2d(members * width)


def _beside(tensors: list[Tensor]) -> Tensor:
    """One parameter or buffer of all members, concatenated; a counter is the same for all."""
    return torch.cat(tensors) if tensors[0].ndim else tensors[0].clone()
