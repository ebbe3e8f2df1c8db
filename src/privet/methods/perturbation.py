"""Noise in the residual blocks, streams and last layers of a network, or of several networks joined into one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from privet.clipping.bounded import clipped_rows, clipping_factors
from privet.errors import InputError
from privet.models.classifiers import LastLayers, ResidualBlock
from privet.noise import GaussianNoise
from privet.privacy import Event, NotPrivate
from privet.privacy.residual import input_event, query_event, stream_event
from privet.randomness import Source

BLOCKS = ("ResidualBlock", "BasicBlock", "Bottleneck", "PreActBlock", "PreActBottleneck")
"""Classes of blocks that are known by name: those of this library, of torchvision and of well-known scripts."""
SHORTCUTS = ("shortcut", "downsample", "skip")
"""Names of the part of a block that converts the stream to the shape of the output."""


def members_in(part: nn.Module) -> int:
    """The number of members of a joined ensemble in a block or a last layer."""
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


CHUNK = 2**16
"""Number of values that are processed in one call."""
PUBLISHED_BOUND = 30.0
"""The default of G if nothing enforces a bound, from the paper."""


@dataclass(frozen=True)
class ResidualPerturbation:
    """Strategy I adds ``gamma n`` to the output of each residual block, strategy II ``gamma max(|x|, eta) n`` for a stream x.

    Formal guarantees: noise is drawn afresh in every call, in training mode and in evaluation mode. `radius`, `bound` and
    `weight_norm` are enforced by scaling down, record by record. The events state the guarantee of each epsilon.

    Attributes:
        gamma: the scale of the noise in the stream.
        strategy: "I" (additive) or "II" (multiplicative).
        eta: the floor of the stream's magnitude under strategy II.
        pi: strategy I: the deviation of the noise on the input, which needs `radius`. Strategy II: that of the noise on the last
            layer's scores, relative to the norm of that layer's input, which needs `weight_norm`.
        radius: R, the norm to which each input is clipped.
        bound: G, or B under strategy II, the norm to which each residual mapping's output is clipped.
        weight_norm: a, to which the last layer's weights and biases are scaled down together.
    """

    gamma: float
    strategy: str = "I"
    eta: float = 0.1
    pi: float = 0.0
    radius: float | None = None
    bound: float | None = None
    weight_norm: float | None = None

    def __post_init__(self) -> None:
        if self.strategy not in ("I", "II"):
            raise InputError(f"The strategy of residual perturbation is 'I' or 'II', not {self.strategy!r}.")
        for name in ("gamma", "pi"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is a number of at least 0, and is {getattr(self, name)!r}.")
        for name in ("eta", "radius", "bound", "weight_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be a positive number, and is {value!r}.")
        if self.multiplicative and self.radius is not None:
            raise InputError("Under strategy II there is no noise on the input: leave radius out.")
        if not self.multiplicative and self.weight_norm is not None:
            raise InputError("Under strategy I there is no noise on the last layer: leave weight_norm out.")
        if self.pi and (self.weight_norm if self.multiplicative else self.radius) is None:
            needed = "weight_norm" if self.multiplicative else "radius"
            raise InputError(f"Noise of deviation pi hides only bounded values: give {needed}, too.")

    @property
    def multiplicative(self) -> bool:
        return self.strategy == "II"

    @property
    def needs_stream(self) -> bool:
        """Whether the noise or the bound of a block needs the stream in addition to its residual mapping."""
        return self.multiplicative or self.bound is not None

    def apply(
        self,
        model: nn.Module,
        *,
        blocks: Sequence[str] | None = None,
        source: Source | None = None,
        at_test: bool = True,
    ) -> AppliedPerturbation:
        """Add the noise to a network until `remove` is called or the ``with`` block ends.

        Args:
            model: any network with residual blocks.
            blocks: the names of its residual blocks, as in ``model.named_modules()``; by default those of known classes.
                source: the source of the noise; by default torch's own generator. A secure source is used for the noise on the
            input, on which proofs rest; the noise in the stream then comes from torch's own generator.
                at_test: add the noise in evaluation mode, too, as published. Otherwise the noise is only a regularizer.
        """
        return AppliedPerturbation(self, model, blocks, source, at_test)

    def epoch(self, blocks: int, members: int = 1) -> Event:
        """The event of an epoch of training, which uses each record once; for replacing the input of a record.

        `blocks` are those of one network; the `members` of an ensemble share the input and its noise, and each pays for its own
        stream.

        Formal guarantees: with `pi`, it is proved for public labels, and gamma adds nothing. Without it, strategy I is only
        claimed. Strategy II protects answers, not weights: weights trained by it are not private.
        """
        if self.multiplicative or not (self.pi or self.gamma):
            return NotPrivate()
        if self.pi and self.radius is not None:
            return input_event(self.pi, self.radius)
        return stream_event(self.gamma, self.bound or PUBLISHED_BOUND, blocks) * members

    def query(self, blocks: int, heads: int = 1) -> Event:
        """The event of one answer under strategy II, whose weights stay secret."""
        if not self.multiplicative:
            raise InputError(
                "Only strategy II protects answers; strategy I protects the weights, which may be released."
            )
        if not (self.gamma and self.pi) or self.bound is None or self.weight_norm is None:
            raise InputError("An answer is protected by gamma, bound, pi and weight_norm together: give all four.")
        return query_event(
            self.gamma,
            self.pi,
            bound=self.bound,
            floor=self.eta,
            weight_norm=self.weight_norm,
            blocks=blocks,
            heads=heads,
        )


class AppliedPerturbation:
    """The noise in a network, until it is removed."""

    def __init__(
        self,
        perturbation: ResidualPerturbation,
        model: nn.Module,
        blocks: Sequence[str] | None,
        source: Source | None,
        at_test: bool = True,
    ) -> None:
        self.perturbation, self.at_test = perturbation, at_test
        self._blocks = found_blocks(model, blocks)
        self._heads = last_layers(model, self._blocks) if perturbation.multiplicative and perturbation.pi else {}
        self._input_source: Source | None = source
        self._generator = source if isinstance(source, torch.Generator) else None
        self._streams: dict[nn.Module | None, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        if perturbation.radius is not None:
            self._handles.append(model.register_forward_pre_hook(self._noisy_input))
        for block in self._blocks.values():
            if perturbation.needs_stream and (shortcut := shortcut_of(block)) is not None:
                self._handles.append(shortcut.register_forward_hook(self._remember))
            self._handles.append(block.register_forward_hook(self._noisy_block))
        for head in self._heads.values():
            self._handles.append(head.register_forward_hook(self._noisy_scores))

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks that have noise."""
        return tuple(self._blocks)

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the last layers that have noise: under strategy II with pi."""
        return tuple(self._heads)

    @property
    def members(self) -> int:
        """Number of networks: more than one in an ensemble, whether or not its members are joined into one."""
        return sum(networks(self._blocks).values())

    @property
    def epoch(self) -> Event:
        """The event of an epoch of training of this network with all its members."""
        return self.perturbation.epoch(_counted(self._blocks) // self.members, self.members)

    @property
    def query(self) -> Event:
        """The event of one answer of this network with all its members."""
        return self.perturbation.query(_counted(self._blocks), _counted(self._heads))

    def seen(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The inputs that the network receives: under strategy I with pi, clipped and with fresh noise."""
        if self.perturbation.radius is None:
            return inputs
        noisy: Tensor = self._noisy_input(model, (inputs,))[0]
        return noisy

    def is_in(self, model: nn.Module) -> bool:
        """Whether the noise is in this network: False for a copy, and after `remove`."""
        parts = dict(model.named_modules())
        return bool(self._handles) and all(parts.get(name) is block for name, block in self._blocks.items())

    def remove(self) -> None:
        """Remove the noise."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> AppliedPerturbation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _noisy_input(self, model: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self.perturbation.radius is not None
        if not (self.at_test or model.training):
            return args
        if not args:
            raise InputError("Noise on the input needs the input as the first argument of the call, not by its name.")
        x, noise = args[0], self.perturbation.pi / self.perturbation.radius
        bounded = clipped_rows(x, torch.arange(len(x)), len(x), self.perturbation.radius)
        rows = bounded.tensors["rows"]
        if noise:
            rows = GaussianNoise(noise).add(bounded, self._input_source or torch.default_generator)["rows"]
        return (rows.view(x.shape).to(x.dtype), *args[1:])

    def _remember(self, shortcut: nn.Module, _: tuple[Any, ...], stream: Tensor) -> None:
        self._streams[shortcut] = stream

    def _noisy_block(self, block: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        how = self.perturbation
        if not (self.at_test or block.training):
            return out
        stream = self._stream(block, args[0], out) if how.needs_stream else None
        if how.bound is not None:
            # Without a skip connection, the output of a block is its residual mapping.
            skipped: Tensor | float = 0.0 if stream is None or not skips(block) else stream
            out = skipped + _clipped(out - skipped, how.bound, members_in(block))
        if not how.gamma:
            return out
        if how.multiplicative and stream is not None:
            return out + stream.abs().clamp(min=how.eta) * self._noise(out, how.gamma)
        return self._plus_noise(out, how.gamma)

    def _stream(self, block: nn.Module, x: Tensor, out: Tensor) -> Tensor | None:
        """The stream in the shape of the output of the block; None if strategy I has no skip connection."""
        if (shortcut := shortcut_of(block)) in self._streams:
            return self._streams.pop(shortcut)
        if x.shape == out.shape:
            return x
        if not self.perturbation.multiplicative and not skips(block):
            return None
        raise InputError(
            f"A {type(block).__name__} turns {tuple(x.shape[1:])} into {tuple(out.shape[1:])}, and has no part named "
            f"{', '.join(SHORTCUTS)} that does so to the stream: strategy II and bounds need one."
        )

    def _noisy_scores(self, head: nn.Module, args: tuple[Any, ...], scores: Tensor) -> Tensor:
        assert isinstance(head, nn.Linear) and self.perturbation.weight_norm is not None
        if not (self.at_test or head.training):
            return scores
        members = members_in(head)
        squares = head.weight.square().view(members, -1).sum(1, keepdim=True)
        lengths = args[0].square().sum(-1, keepdim=True)
        if head.bias is not None:  # the bias is the weight of an input that is always 1
            squares = squares + head.bias.square().view(members, -1).sum(1, keepdim=True)
            lengths = lengths + 1
        scaled = scores * clipping_factors(squares.sqrt(), self.perturbation.weight_norm)
        noisy: Tensor = scaled + lengths.sqrt() * self._noise(scores, self.perturbation.pi)
        return noisy

    def _plus_noise(self, out: Tensor, deviation: float) -> Tensor:
        if _is_followed() or type(out.grad_fn).__name__ != "AddBackward0" or not _is_dense(out):
            return out + self._noise(out, deviation)
        # The backward pass of a sum does not need its result: noise is added in place, in chunks that stay in the cache.
        for chunk in out.detach().as_strided((out.numel(),), (1,)).split(CHUNK):
            chunk.add_(self._normal(chunk, deviation))
        return out

    def _noise(self, like: Tensor, deviation: float) -> Tensor:
        # Normal numbers are drawn four times as fast into a vector as into a tensor of another layout.
        flat = self._normal(like, deviation)
        as_it_lies = _is_dense(like) and not _is_followed()
        return flat.as_strided(like.shape, like.stride()) if as_it_lies else flat.view(like.shape)

    def _normal(self, like: Tensor, deviation: float) -> Tensor:
        flat = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
        return flat.normal_(0.0, deviation, generator=self._generator)


def _counted(parts: dict[str, nn.Module]) -> int:
    """The number of parts; a part of a joined ensemble counts once for each member."""
    return sum(members_in(part) for part in parts.values())


def _is_followed() -> bool:
    """Whether an engine listens, which can follow neither records nor random numbers through memory."""
    return torch._C._len_torch_function_stack() > 0


def _is_dense(x: Tensor) -> bool:
    """Whether the tensor is dense in memory."""
    return x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last))


def _clipped(rows: Tensor, bound: float, members: int) -> Tensor:
    """Each member's part of each row scaled down to a norm of at most `bound`; gradients flow through the factor, too."""
    parts: Tensor = rows.unflatten(1, (members, -1))
    factors = clipping_factors(parts.flatten(2).norm(dim=2, dtype=torch.float64), bound).to(rows.dtype)
    return (parts * factors.view(*factors.shape, *[1] * (parts.ndim - 2))).flatten(1, 2)
