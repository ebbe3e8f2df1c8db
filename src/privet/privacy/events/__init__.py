"""The vocabulary of what can happen to data: frozen, serialisable values that compose with `+` and `*`."""

from privet.privacy.events._base import NOTHING, Adaptive, Composed, Event, Nothing, Repeated, Under, composed, tally
from privet.privacy.events._noise import (
    CovarianceRelease,
    Gaussian,
    GroupedL2,
    IsotropicL2,
    Laplace,
    NoisyTopCount,
    NoisyVotes,
)
from privet.privacy.events._sampling import FixedSizeSampled, PaddedPoisson, PoissonSampled, ShuffledEpoch
from privet.privacy.events._stated import (
    ApproximateDP,
    NotPrivate,
    PublicRecords,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
)

__all__ = [
    "NOTHING",
    "Adaptive",
    "ApproximateDP",
    "Composed",
    "CovarianceRelease",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "GroupedL2",
    "IsotropicL2",
    "Laplace",
    "NoisyTopCount",
    "NoisyVotes",
    "NotPrivate",
    "Nothing",
    "PaddedPoisson",
    "PoissonSampled",
    "PublicRecords",
    "PublishedClaim",
    "PureEpsilon",
    "RandomizedResponse",
    "Repeated",
    "ShuffledEpoch",
    "Under",
    "composed",
    "tally",
]
