"""Models with fixed features, which are computed once and cached, and fixed embeddings. No record shapes the fixed part.

The scattering transform has fixed wavelets, moduli and averages (Bruna and Mallat 2013).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from privet.errors import InputError
from privet.models.gans import SLOPE


class OnFeatures(nn.Module):
    """``head(standardise(features(x)))``: `features` is fixed, `standardise` has private releases, `head` is trained.

    `key` names the fixed part in the cache of features; two models with the same key have the same `features`. The name
    `standardise` is part of the keys of saved weights, so its spelling stays.
    """

    def __init__(self, features: nn.Module, key: str, standardise: Standardize, head: nn.Module) -> None:
        super().__init__()
        self.features, self.key, self.standardise, self.head = features, key, standardise, head

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.standardise(self.features(x)))
        return scores


class Standardize(nn.Module):
    """``channels @ (maps - mean) @ places`` for maps of shape ``(N, maps, height, width)``, flattened.

    It starts as the identity. Its buffers may only be filled with public or privately released values.
    """

    mean: Tensor
    channels: Tensor
    places: Tensor

    def __init__(self, maps: int, height: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(maps, height * width))
        self.register_buffer("channels", torch.eye(maps))
        self.register_buffer("places", torch.eye(height * width))

    @property
    def whitens(self) -> bool:
        return not (_is_identity(self.channels) and _is_identity(self.places))

    def forward(self, maps: Tensor) -> Tensor:
        centered = maps.flatten(2).to(self.mean.dtype) - self.mean
        if self.whitens:
            centered = self.channels @ centered @ self.places
        return centered.flatten(1)


def scattering_linear(
    channels: int = 1, height: int = 28, width: int = 28, classes: int = 10, groups: int = 27, mirrored: bool = False
) -> OnFeatures:
    """A linear classifier of normalized scattering coefficients (Tramèr and Boneh 2021); its weights start at zero.

    Colors are first converted to brightness and differences. With `mirrored`, an image and its mirror image get the same
    scores.
    """
    features, key, maps, size = _scattering(channels, height, width, groups, mirrored)
    head = nn.Linear(maps * size[0] * size[1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return OnFeatures(features, key, Standardize(maps, *size), head)


def _scattering(
    channels: int, height: int, width: int, groups: int, mirrored: bool
) -> tuple[nn.Module, str, int, tuple[int, int]]:
    """The fixed part of a model, its key, and the number and the size of its maps."""
    scattering = Scattering(height, width)
    maps = channels * scattering.coefficients
    if maps % groups:
        raise InputError(
            f"The {maps} scattering maps of an image cannot be divided into {groups} groups of equal size."
        )
    key = f"scattering-{scattering.scales}-{scattering.angles}-{groups}"
    layers: list[nn.Module] = [scattering, GroupNormalize(groups)]
    rows, columns = scattering.output_size
    if channels == 3:
        layers, key = [Opponent(), *layers], f"opponent-{key}"
    if mirrored:
        layers, key, columns = [*layers, Mirrored(channels)], f"{key}-mirrored", (columns + 1) // 2
    return nn.Sequential(*layers), key, maps, (rows, columns)


def _is_identity(matrix: Tensor) -> bool:
    return bool(torch.equal(matrix, torch.eye(len(matrix))))


class FixedProjection(nn.Module):
    """``(x - mean) @ directions.T / scale`` of flat records; its buffers must be public or privately released."""

    mean: Tensor
    directions: Tensor

    def __init__(self, mean: Tensor, directions: Tensor, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("mean", mean.flatten())
        self.register_buffer("directions", directions)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - self.mean) @ self.directions.mT / self.scale


def random_convolutions(shape: tuple[int, int, int], dimension: int, width: int = 16) -> nn.Module:
    """Three random convolutions, like those before the noise of the noise-layer GAN, and a random projection."""
    channels, height, columns = shape
    maps = (channels, width, 2 * width, 4 * width)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(maps):
        layers += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE)]
    size = maps[-1] * (height // 8) * (columns // 8)
    return _frozen(nn.Sequential(*layers, nn.Flatten(), projection(size, dimension)))


def scattering_projection(shape: tuple[int, int, int], dimension: int) -> nn.Module:
    """A random projection of normalized scattering coefficients, scaled to a norm of about 1."""
    channels, height, columns = shape
    scattering = Scattering(height, columns)
    maps, (rows, across) = channels * scattering.coefficients, scattering.output_size
    size = maps * rows * across
    project = projection(size, dimension)
    with torch.no_grad():
        project.weight.div_(math.sqrt(dimension))  # the coefficients have norm sqrt(size)
    return _frozen(nn.Sequential(scattering, GroupNormalize(maps), nn.Flatten(), project))


def projection(size: int, dimension: int) -> nn.Linear:
    """A projection onto random orthonormal directions."""
    layer = nn.Linear(size, dimension, bias=False)
    nn.init.orthogonal_(layer.weight)
    return layer


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval()


class Scattering(nn.Module):
    """Second-order scattering coefficients of images, with Morlet wavelets at `scales` scales and `angles` angles.

    ``(N, C, H, W)`` becomes ``(N, C * K, H // 2**scales, W // 2**scales)``, K = 1 + J L + L^2 J (J - 1) / 2: for each
    channel the average, the averages of |x * psi_1|, then those of ||x * psi_1| * psi_2| with a coarser psi_2.
    Nothing is learned and each image is transformed by itself, so the transform costs no privacy.

    Convolutions are circular on the image padded by reflection. The filters are Gaussians and Morlets of width 0.8 * 2^j.
    """

    def __init__(self, height: int, width: int, scales: int = 2, angles: int = 8) -> None:
        super().__init__()
        coarsest = 2**scales
        if scales < 1 or angles < 1:
            raise InputError(f"Scattering needs at least one scale and one angle, not {scales} and {angles}.")
        if min(height, width) <= coarsest:
            raise InputError(f"Images of {height}x{width} are too small for scattering at {scales} scales.")
        self.scales, self.angles = scales, angles
        self.size = (height, width)
        padded = [_padded(length, coarsest) for length in self.size]
        right, bottom = padded[1] - width - coarsest, padded[0] - height - coarsest
        self.padding = (coarsest, right, coarsest, bottom)
        for scale in range(scales):
            turns = [math.pi * (angles // 2 - 1 - angle) / angles for angle in range(angles)]
            bank = torch.stack([_morlet(padded, scale, turn, 4 / angles) for turn in turns])
            for level in range(scale + 1):
                # A coarser grid has only the low frequencies, so the filter is cropped to that band.
                self._keep(f"wavelets_{scale}_{level}", _cropped(bank, 2**level).float())
        for level in range(scales):
            for axis in (0, 1):
                average = _averaging(padded[axis], self.size[axis], coarsest, level)
                self._keep(f"average_{level}_{axis}", average.float())

    @property
    def coefficients(self) -> int:
        """The number of maps for each channel."""
        first = self.scales * self.angles
        return 1 + first + self.angles * self.angles * self.scales * (self.scales - 1) // 2

    @property
    def output_size(self) -> tuple[int, int]:
        return self.size[0] // 2**self.scales, self.size[1] // 2**self.scales

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[-2:]) != self.size:
            raise InputError(f"This scattering is for images of {self.size}, not {tuple(images.shape[-2:])}.")
        x = nn.functional.pad(images, self.padding, mode="reflect")
        spectrum = torch.fft.fft2(x)
        maps = [self._average(x, 0).unsqueeze(2)]
        second = []
        for scale in range(self.scales):
            u = self._modulus(spectrum, scale, 0)
            maps.append(self._average(u, scale))
            if scale + 1 < self.scales:
                inner = torch.fft.fft2(u)
                coarser = [
                    self._average(self._modulus(inner, s, scale), s) for s in range(scale + 1, self.scales)
                ]  # each (N, C, angle of the first wavelet, angle of the second, h, w)
                second.append(torch.cat(coarser, 3).flatten(2, 3))
        return torch.cat([*maps, *second], 2).flatten(1, 2)

    def _modulus(self, spectrum: Tensor, scale: int, level: int) -> Tensor:
        """|x * psi| for every angle on the grid of `scale`, for a signal on the grid of `level`."""
        wavelets = getattr(self, f"wavelets_{scale}_{level}")
        modulus: Tensor = torch.fft.ifft2(_filtered(spectrum.unsqueeze(-3), wavelets, 2 ** (scale - level))).abs()
        return modulus

    def _average(self, u: Tensor, level: int) -> Tensor:
        rows, columns = getattr(self, f"average_{level}_0"), getattr(self, f"average_{level}_1")
        averaged: Tensor = rows @ (u @ columns.mT)
        return averaged

    def _keep(self, name: str, tensor: Tensor) -> None:
        # Not in the state_dict, because the filters follow from the arguments.
        self.register_buffer(name, tensor, persistent=False)


class GroupNormalize(nn.Module):
    """Normalize `groups` groups of consecutive maps of each image to mean 0 and variance 1; nothing is learned.

    Formal guarantees: each image is normalized by itself. The Euclidean norm of the result is at most the square root of
    its size, for every image, which bounds the sensitivity of sums over images.
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, maps: Tensor) -> Tensor:
        return nn.functional.group_norm(maps, self.groups)


class Mirrored(nn.Module):
    """The common part of the scattering maps of an image and its mirror image: half as many numbers of the same norm.

    Mirroring an image mirrors its maps and exchanges the angles t and -t. Only sums over such pairs are kept, so a model
    gives an image and its mirror image the same scores, and half as many numbers get noise.
    """

    partner: Tensor

    def __init__(self, channels: int, scales: int = 2, angles: int = 8) -> None:
        super().__init__()
        turned = [(angles - 2 - angle) % angles for angle in range(angles)]
        first = [scale * angles + angle for scale in range(scales) for angle in turned]
        # In the order of the transform: for each first wavelet, the coarser second ones.
        second: dict[tuple[int, int, int, int], int] = {}
        for scale in range(scales):
            for angle in range(angles):
                for coarser in range(scale + 1, scales):
                    for other in range(angles):
                        second[scale, angle, coarser, other] = len(second)
        pairs = [second[s, turned[a], c, turned[o]] for s, a, c, o in second]
        count = 1 + len(first) + len(second)
        partner = [0, *(1 + i for i in first), *(1 + len(first) + i for i in pairs)]
        whole = [channel * count + i for channel in range(channels) for i in partner]
        self.register_buffer("partner", torch.tensor(whole), persistent=False)

    def forward(self, maps: Tensor) -> Tensor:
        half = maps.shape[-1] // 2
        both = maps + maps.index_select(1, self.partner).flip(-1)
        # A column and its mirror image become one of the same norm; the middle column of an odd number stays.
        return torch.cat([both[..., :half] / math.sqrt(2), both[..., half : maps.shape[-1] - half] / 2], -1)


class Opponent(nn.Module):
    """Red, green and blue converted to brightness and two color differences, by an orthogonal map of each pixel."""

    turn: Tensor

    def __init__(self) -> None:
        super().__init__()
        rows = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
        self.register_buffer("turn", nn.functional.normalize(rows), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return torch.einsum("oc,nchw->nohw", self.turn, images)


def _padded(length: int, multiple: int) -> int:
    return ((length + multiple) // multiple + 1) * multiple


def _morlet(size: list[int], scale: int, angle: float, slant: float) -> Tensor:
    """The spectrum of a Morlet wavelet, periodic on the grid: a wave under a Gaussian, corrected to mean zero."""
    wave, envelope = (_gabor(size, 0.8 * 2**scale, angle, xi, slant) for xi in (0.75 * math.pi / 2**scale, 0.0))
    spectrum: Tensor = torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real
    return spectrum


def _gabor(size: list[int], sigma: float, angle: float, xi: float, slant: float) -> Tensor:
    """A complex wave of frequency `xi` under a Gaussian that is 1/`slant` times as long across the wave, made periodic."""
    periods = range(-2, 3)
    y, x = (torch.cat([torch.arange(n, dtype=torch.float64) + period * n for period in periods]) for n in size)
    y, x = y[:, None], x[None, :]
    along = y * math.cos(angle) + x * math.sin(angle)
    across = -y * math.sin(angle) + x * math.cos(angle)
    gaussian = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    whole = gaussian * torch.exp(1j * xi * along)
    periodic: Tensor = whole.unflatten(1, (len(periods), size[1])).unflatten(0, (len(periods), size[0])).sum((0, 2))
    return periodic * (slant / (2 * math.pi * sigma**2))


def _averaging(padded: int, length: int, coarsest: int, level: int) -> Tensor:
    """The matrix that averages one axis of the grid of `level` with a Gaussian, samples it, and drops the padding."""
    sigma = 0.8 * coarsest / 2
    where = torch.cat([torch.arange(padded, dtype=torch.float64) + period * padded for period in range(-2, 3)])
    gaussian = torch.exp(-(where**2) / (2 * sigma**2)).unflatten(0, (5, padded)).sum(0) / math.sqrt(2 * math.pi) / sigma
    spectrum = _cropped(torch.fft.fft(gaussian).real[None, :, None].expand(1, padded, 1), 2**level, (1,))[0, :, 0]
    kernel = torch.fft.ifft(spectrum).real
    cells = len(kernel)
    step = coarsest // 2**level
    outputs = torch.arange(1, 1 + length // coarsest) * step
    averaging: Tensor = kernel[(outputs[:, None] - torch.arange(cells)[None, :]) % cells]
    return averaging


def _cropped(spectra: Tensor, factor: int, dims: tuple[int, ...] = (-2, -1)) -> Tensor:
    """The low frequencies of a grid that is coarser by `factor`."""
    for dim in dims:
        kept = spectra.shape[dim] // factor
        indices = torch.arange(spectra.shape[dim])
        low = (indices < kept // 2) | (indices >= spectra.shape[dim] - (kept - kept // 2))
        spectra = spectra.index_select(dim, indices[low])
    return spectra


def _filtered(spectrum: Tensor, wavelets: Tensor, factor: int) -> Tensor:
    """The spectrum of the filtered signal at every `factor`-th place: the mean of its aliases.

    Computed in real numbers, alias by alias, which is four times as fast as the complex product and its mean.
    """
    rows, columns = spectrum.shape[-2] // factor, spectrum.shape[-1] // factor
    parts = torch.view_as_real(spectrum).flatten(-2).unflatten(-1, (factor, 2 * columns)).unflatten(-3, (factor, rows))
    filters = wavelets.unflatten(-1, (factor, columns)).unflatten(-3, (factor, rows)).repeat_interleave(2, -1)
    summed = torch.zeros(())
    for i in range(factor):
        for k in range(factor):
            alias, band = parts[..., i, :, k, :], filters[..., i, :, k, :]
            summed = alias * band if (i, k) == (0, 0) else summed.addcmul_(alias, band)
    return torch.view_as_complex(summed.div_(factor**2).unflatten(-1, (columns, 2)))
