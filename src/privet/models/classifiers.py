"""Small classifiers for vectors, images and text, and layers that help under noise."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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


class TemperedSigmoid(nn.Module):
    """``scale * sigmoid(temperature * x) - offset`` (Papernot et al. 2021): bounded, so gradients need less clipping.

    With the defaults it is tanh.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset


class StandardizedConv2d(nn.Conv2d):
    """A convolution whose kernels are standardized before use (Qiao et al. 2019; under noise, De et al. 2022).

    The kernel of each output map gets mean 0 and variance 1 over its fan-in, and is divided by the root of the fan-in.
    Together with group norm it replaces batch norm, without mixing records.
    """

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        fan_in = self.weight[0].numel()
        weight = (self.weight - mean) * torch.rsqrt(spread * fan_in + 1e-4)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
