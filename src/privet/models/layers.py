"""Layers that practice has found to help under noise; each looks at one record at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TemperedSigmoid(nn.Module):
    """``scale * sigmoid(temperature * x) - offset`` (Papernot et al. 2021): bounded, so gradients need less clipping.

    As it stands it is tanh: scale 2, temperature 2, offset 1.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose kernels are standardised before use (Qiao et al. 2019; under noise, De et al. 2022).

    Each output map's kernel gets mean 0 and variance 1 over its fan-in, which is then divided out. Together with group norm
    it does what batch norm does for training, without mixing records.
    """

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        fan_in = self.weight[0].numel()
        weight = (self.weight - mean) * torch.rsqrt(spread * fan_in + 1e-4)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
