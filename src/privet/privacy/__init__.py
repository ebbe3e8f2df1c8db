"""What was done to the data, what it cost, and by whose theorem."""

from privet.privacy.accountants import Accountant, UnsupportedEventError, accountant_named, accountant_names
from privet.privacy.accountants.filters import Filter
from privet.privacy.budget import Budget, steps_of
from privet.privacy.calibration import calibrate_batch_size, calibrate_noise, calibrate_schedule, calibrate_steps
from privet.privacy.deltas import delta_warning, usual_delta, warn_of_delta
from privet.privacy.events import (
    Adaptive,
    ApproximateDP,
    CovarianceRelease,
    Event,
    FixedSizeSampled,
    Gaussian,
    GroupedL2,
    IsotropicL2,
    Laplace,
    NoisyTopCount,
    NoisyVotes,
    Nothing,
    NotPrivate,
    PaddedPoisson,
    PoissonSampled,
    PublicRecords,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
    ShuffledEpoch,
)
from privet.privacy.guarantees import Assumed, Claimed, Guarantee, Proved, weakest
from privet.privacy.ledger import Ledger, LedgerError
from privet.privacy.meaning import Meaning
from privet.privacy.relations import Relation
from privet.privacy.schedules import Schedule
from privet.privacy.spent import Spent
from privet.privacy.together import Part, Together, spent_together
from privet.privacy.tradeoff import TradeOff

__all__ = [
    "Accountant",
    "Adaptive",
    "ApproximateDP",
    "Assumed",
    "Budget",
    "Claimed",
    "CovarianceRelease",
    "Event",
    "Filter",
    "FixedSizeSampled",
    "Gaussian",
    "GroupedL2",
    "Guarantee",
    "IsotropicL2",
    "Laplace",
    "Ledger",
    "LedgerError",
    "Meaning",
    "NoisyTopCount",
    "NoisyVotes",
    "NotPrivate",
    "Nothing",
    "PaddedPoisson",
    "Part",
    "PoissonSampled",
    "Proved",
    "PublicRecords",
    "PublishedClaim",
    "PureEpsilon",
    "RandomizedResponse",
    "Relation",
    "Schedule",
    "ShuffledEpoch",
    "Spent",
    "Together",
    "TradeOff",
    "UnsupportedEventError",
    "accountant_named",
    "accountant_names",
    "calibrate_batch_size",
    "calibrate_noise",
    "calibrate_schedule",
    "calibrate_steps",
    "delta_warning",
    "spent_together",
    "steps_of",
    "usual_delta",
    "warn_of_delta",
    "weakest",
]
