"""Classifiers for vectors, images and text, the residual networks of He et al. 2016, and layers that help under noise.

Several residual networks can be joined into one: the channels of a layer with `members` are those of the first member, then
those of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.errors import InputError


def softmax_regression(features: int, classes: int = 10) -> nn.Sequential:
    """One score per class, linear in the flattened record; all weights start at zero."""
    layer = nn.Linear(features, classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def pca_mlp(inputs: int = 784, components: int = 60, hidden: int = 1000, classes: int = 10) -> nn.Sequential:
    """The MNIST network of Abadi et al. 2016: a frozen projection, `hidden` ReLU units and class scores, without biases.

    The projection is random until DP-PCA (`privet.methods.dp_pca`) sets it. Weights start as in the paper's published code:
    normal with a variance of one over the number of inputs, truncated at two standard deviations.
    """
    projection = nn.Linear(inputs, components, bias=False).requires_grad_(False)
    layers = nn.Linear(components, hidden, bias=False), nn.Linear(hidden, classes, bias=False)
    for layer in layers:
        std = layer.in_features**-0.5
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    return nn.Sequential(nn.Flatten(), projection, layers[0], nn.ReLU(), layers[1])


def tanh_cnn(channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Two strided convolutions and two dense layers for images of 28x28, with tanh, which trains well under noise.

    26,010 parameters (Papernot et al. 2021, as in Tramèr and Boneh).
    """
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


class CenterCrop(nn.Module):
    """The square in the middle of each image. Random crops are an augmentation instead, see `dpsgd.train`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        top, left = (images.shape[-2] - self.size) // 2, (images.shape[-1] - self.size) // 2
        return images[..., top : top + self.size, left : left + self.size]


def crop_cnn(channels: int = 3, crop: int = 24, classes: int = 10, frozen: bool = False) -> nn.Sequential:
    """The CIFAR-10 network of Abadi et al. 2016, on 24x24 crops.

    Two 5x5 convolutions of 64 maps, each with ReLU and 2x2 max pooling, and two dense layers of 384 units. The paper
    pretrained the convolutions on CIFAR-100 as public data and then kept them fixed: load such weights, and use `frozen`.
    """
    side = crop // 4
    model = nn.Sequential(
        CenterCrop(crop),
        nn.Conv2d(channels, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side * side, 384),
        nn.ReLU(),
        nn.Linear(384, 384),
        nn.ReLU(),
        nn.Linear(384, classes),
    )
    if frozen:
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                layer.requires_grad_(False)
    return model


def conv_student(channels: int = 1, height: int = 28, width: int = 28, classes: int = 10) -> nn.Sequential:
    """The student of "Generating differentially private datasets using GANs", for synthetic data, without noise.

    Two 5x5 convolutions with batch normalization and max pooling, then two dense layers; the paper gives the layers but not
    their sizes. Batch normalization mixes records, so this network is for data that may be published, and
    `privet.make_private` refuses it.
    """
    # Without padding nothing would be left of small images.
    padding, lost = (0, 3) if min(height, width) >= 16 else (2, 0)
    rows, columns = height // 4 - lost, width // 4 - lost
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5, padding=padding),
        nn.ReLU(),
        nn.BatchNorm2d(20),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 40, 5, padding=padding),
        nn.ReLU(),
        nn.BatchNorm2d(40),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(40 * rows * columns, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


class LSTMClassifier(nn.Module):
    """One score per class for each sequence of tokens ``[records, length]``, from the mean of the LSTM's outputs.

    The mean depends on every step. The last output alone depends little on the start of a long sequence, especially under
    noise.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        embedding: int = 32,
        hidden: int = 64,
        layers: int = 1,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=padding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        if self.padding is None:
            return cast(Tensor, self.head(outputs.mean(1)))
        present = (tokens != self.padding).unsqueeze(2).to(outputs.dtype)
        return cast(Tensor, self.head((outputs * present).sum(1) / present.sum(1).clamp(min=1)))


class LSTMLanguageModel(nn.Module):
    """The scores of the next token at each place of a sequence: ``[records, length]`` to ``[records, length, vocabulary]``.

    Its loss: ``cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())``.
    """

    def __init__(self, vocabulary: int, embedding: int = 32, hidden: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        return cast(Tensor, self.head(outputs))


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
        network.load_state_dict(
            {name: _concatenated([state[name] for state in states]) for name in states[0]}, assign=True
        )
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


def _concatenated(tensors: list[Tensor]) -> Tensor:
    """One parameter or buffer of all members, concatenated; a counter is the same for all."""
    return torch.cat(tensors) if tensors[0].ndim else tensors[0].clone()
