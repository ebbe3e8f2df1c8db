"""The CIFAR-10 network of Abadi et al. 2016: two convolutions and two dense layers on 24x24 crops."""

from __future__ import annotations

from torch import Tensor, nn


class CentreCrop(nn.Module):
    """The square in the middle of each image. Random crops are an augmentation, which `dpsgd.train` takes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        top, left = (images.shape[-2] - self.size) // 2, (images.shape[-1] - self.size) // 2
        return images[..., top : top + self.size, left : left + self.size]


def crop_cnn(channels: int = 3, crop: int = 24, classes: int = 10, frozen: bool = False) -> nn.Sequential:
    """Two 5x5 convolutions of 64 maps, each with ReLU and 2x2 max pooling, and two dense layers of 384 units.

    The paper pretrained the convolutions on CIFAR-100 as public data and kept them fixed: `frozen` does the latter, once
    weights from public data were loaded into them.
    """
    side = crop // 4
    model = nn.Sequential(
        CentreCrop(crop),
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
