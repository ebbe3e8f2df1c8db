"""An ensemble of ResNet8 in ways that the library does not have, and the convolutions of its members in even more."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from privet.models import resnet

LAYERS = ((16, 16, 1, 1), (16, 16, 1, 1), (16, 32, 2, 1), (32, 32, 1, 2), (32, 64, 2, 2), (64, 64, 1, 4))
"""Of ResNet8 after its first: maps before and after, stride, and by how much the side of the image has shrunk."""

Convolve = Callable[..., Tensor]


class SharedStem(nn.Module):
    """The first layers of all members as one convolution, for they have one input; the rest in turn."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16 * members, 3, 1, 1, bias=False)
        self.members = nn.ModuleList(nn.Sequential(*list(resnet())[2:]) for _ in range(members))

    def forward(self, x: Tensor) -> Tensor:
        streams = self.stem(4 * (x - 0.5)).chunk(len(self.members), 1)
        pairs = zip(self.members, streams, strict=True)
        return torch.stack([m(s.contiguous(memory_format=torch.channels_last)) for m, s in pairs]).mean(0)


class Mapped(nn.Module):
    """The members' parameters stacked, and `torch.func.vmap` over them."""

    def __init__(self, members: int) -> None:
        super().__init__()
        made = [resnet().to(memory_format=torch.channels_last) for _ in range(members)]
        parameters, self._buffers_of_all = stack_module_state(made)
        self.names = list(parameters)
        self.stacked = nn.ParameterList(parameters.values())
        self._skeleton = [copy.deepcopy(made[0]).to("meta")]  # in a list: its parameters are not this module's

    def train(self, mode: bool = True) -> Mapped:
        self._skeleton[0].train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        given = dict(zip(self.names, self.stacked, strict=True))
        one = lambda p, b: functional_call(self._skeleton[0], (p, b), (x,))  # noqa: E731
        return vmap(one)(given, self._buffers_of_all).mean(0)


def convolutions(batch: int, side: int, members: int) -> dict[str, Callable[[], Any]]:
    """All convolutions of ResNet8 but the first, there and back, for one member and in several ways for all."""
    last = torch.channels_last
    ways: dict[str, list[Callable[[], Any]]] = {}
    for inputs, outputs, stride, shrunk in LAYERS:
        h = side // shrunk
        images, kernels = (batch, inputs, h, h), (outputs, inputs, 3, 3)
        alone = [(_leaf(*images, layout=last), _leaf(*kernels, layout=last)) for _ in range(members)]
        groups = (batch, members * inputs, h, h), (members * outputs, inputs, 3, 3)
        stacked, products = _leaf(members, batch, h, h, inputs), _leaf(members, 9, inputs, outputs)
        plain, grouped = _library(stride, 1), _library(stride, members)
        given: dict[str, tuple[Convolve, list[tuple[Tensor, Tensor]]]] = {
            "one member": (plain, alone[:1]),
            "one after the other": (plain, alone),
            "grouped, channels last": (grouped, [tuple(_leaf(*size, layout=last) for size in groups)]),  # type: ignore[list-item]
            "grouped, channels first": (grouped, [tuple(_leaf(*size) for size in groups)]),  # type: ignore[list-item]
            "unfolded, one batched product": (_unfolded(stride), [(stacked, products)]),
            "nine batched products of shifted images": (_shifted(stride), [(stacked, products)]),
        }
        for name, (convolve, pairs) in given.items():
            ways.setdefault(name, []).append(_there_and_back(convolve, pairs))
    return {name: lambda parts=parts: [part() for part in parts] for name, parts in ways.items()}  # type: ignore[misc]


def operations(batch: int, side: int) -> float:
    """Floating-point operations of `convolutions` for one member: a product and a sum, three times as many there and back."""
    outputs = ((i * o, side // shrunk // stride) for i, o, stride, shrunk in LAYERS)
    return 6.0 * batch * sum(9 * maps * rows**2 for maps, rows in outputs)


def _library(stride: int, groups: int) -> Convolve:
    return lambda x, w: F.conv2d(x, w, stride=stride, padding=1, groups=groups)


def _unfolded(stride: int) -> Convolve:
    def convolve(x: Tensor, w: Tensor) -> Tensor:
        k, batch, h, _, c = x.shape
        padded, rows = F.pad(x, (0, 0, 1, 1, 1, 1)), (h - 1) // stride + 1
        a, b, line, pixel, one = padded.stride()
        windows = padded.as_strided(
            (k, batch, rows, rows, 3, 3, c), (a, b, stride * line, stride * pixel, line, pixel, one)
        )
        return torch.bmm(windows.reshape(k, batch * rows**2, 9 * c), w.flatten(1, 2))

    return convolve


def _shifted(stride: int) -> Convolve:
    def convolve(x: Tensor, w: Tensor) -> Tensor:
        k, batch, h, _, c = x.shape
        padded, rows = F.pad(x, (0, 0, 1, 1, 1, 1)), (h - 1) // stride + 1
        reach = stride * (rows - 1) + 1
        parts = (padded[:, :, i : i + reach : stride, j : j + reach : stride] for i in range(3) for j in range(3))
        out = torch.zeros(k, batch * rows**2, w.shape[-1])
        for number, part in enumerate(parts):
            out = torch.baddbmm(out, part.reshape(k, batch * rows**2, c), w[:, number])
        return out

    return convolve


def _there_and_back(convolve: Convolve, pairs: list[tuple[Tensor, Tensor]]) -> Callable[[], Any]:
    with torch.no_grad():
        back = torch.randn_like(convolve(*pairs[0]))

    def run() -> None:
        for x, w in pairs:
            torch.autograd.grad(convolve(x, w), (x, w), back)

    return run


def _leaf(*size: int, layout: torch.memory_format = torch.contiguous_format) -> Tensor:
    return torch.randn(*size).contiguous(memory_format=layout).requires_grad_()
