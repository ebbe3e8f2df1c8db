"""The two streams of a run: sampling and noise, separate and explicit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.randomness.secure import SecureSource

Source = torch.Generator | SecureSource
"""A torch generator makes a run repeatable; a secure source makes it fit for release."""


SEEDED, SECRET = "reproducible, not for release", "secret keys"
"""What is to be said of a run's randomness."""


@dataclass(frozen=True, eq=False)
class Randomness:
    """The streams of one run.

    Formal guarantees: the streams are independent of each other and of torch's own generator. With a seed the run can be
    repeated, and must not be released: who knows the seed can subtract the noise (and torch's generator is no
    cryptographic one: it can be recovered from what it put out). Without one, both streams have secret keys.
    """

    sampling: Source
    noise: Source
    seed: int | None

    @classmethod
    def of(cls, seed: int | None) -> Randomness:
        if seed is None:
            return cls(SecureSource(), SecureSource(), None)
        return cls(_seeded("sampling", seed), _seeded("noise", seed), seed)

    @classmethod
    def apart(cls, purpose: str, seed: int | None) -> Randomness:
        """Streams of their own for one purpose of a run: with one seed, no two purposes draw the same noise."""
        if seed is None:
            return cls.of(None)
        return cls.of(int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:4], "big"))

    @property
    def reproducible(self) -> bool:
        return self.seed is not None

    @property
    def mark(self) -> str:
        """What is to be said of the run beside its epsilon."""
        return SEEDED if self.reproducible else SECRET

    def state(self) -> dict[str, Tensor]:
        """Where the streams of a seeded run are; of secret keys nothing is ever written."""
        streams = {"sampling": self.sampling, "noise": self.noise}
        return {name: stream.get_state() for name, stream in streams.items() if isinstance(stream, torch.Generator)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue a seeded run's streams where `state` was taken."""
        for name, stream in (("sampling", self.sampling), ("noise", self.noise)):
            if isinstance(stream, torch.Generator):
                stream.set_state(state[name])


def before_training(seed: int | None) -> Randomness:
    """Streams of their own: noise that was drawn before training must not be drawn again in a step."""
    return Randomness.apart("before training", seed)


def _seeded(name: str, seed: int) -> torch.Generator:
    """Hashed, so that the streams of neighbouring seeds, and those of torch.manual_seed(seed), have nothing in common."""
    digest = hashlib.sha256(f"privet {name} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
