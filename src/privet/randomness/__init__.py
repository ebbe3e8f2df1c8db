"""Where random numbers come from: seeded generators for experiments, a secret key for releases."""

from privet.randomness.secure import SecureSource
from privet.randomness.streams import Randomness, Source, before_training

__all__ = ["Randomness", "SecureSource", "Source", "before_training"]
