"""What every generative adversarial network here has in common: the game's losses, the labels, the artificial examples."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_CHUNK = 500


def called_real(logits: Tensor) -> Tensor:
    """The loss of logits that ought to say "real": cross-entropy of the sigmoid."""
    return F.softplus(-logits).mean()


def called_made(logits: Tensor) -> Tensor:
    """The loss of logits that ought to say "made"."""
    return F.softplus(logits).mean()


@contextmanager
def game_randomness(seed: int | None) -> Iterator[None]:
    """Inside, torch's own generator is that of the game: first weights, latent noise, labels of made examples.

    None of it protects anything; with a seed the game can be repeated.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        yield


def draw_labels(frequencies: Tensor, count: int) -> Tensor:
    """Labels of made examples, each with its frequency."""
    return torch.multinomial(frequencies, count, replacement=True)


def balanced_labels(frequencies: Tensor, count: int) -> Tensor:
    """`count` labels in proportion to the frequencies, at least one of each class, in random order."""
    shares = frequencies / frequencies.sum() * (count - len(frequencies))
    counts = 1 + shares.floor().long()
    most = (shares - shares.floor()).argsort(descending=True)
    counts[most[: count - int(counts.sum())]] += 1
    return torch.arange(len(frequencies)).repeat_interleave(counts)[torch.randperm(count)]


@torch.no_grad()
def generate(generator: nn.Module, labels: Tensor, latent: int) -> Tensor:
    """An example for each label, in [0, 1]; the generator's are in [-1, 1]."""
    generator.eval()
    parts = [generator(torch.randn(len(some), latent), some) for some in labels.split(_CHUNK)]
    generator.train()
    return torch.cat(parts).add_(1).div_(2).clamp_(0, 1)
