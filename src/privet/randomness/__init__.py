"""Random numbers: seeded generators for experiments, secret keys for releases."""

from privet.randomness.sources import Randomness, SecureSource, Source, before_training

__all__ = ["Randomness", "SecureSource", "Source", "before_training"]
