"""The two theorems of the residual-perturbation paper, from noise to epsilon and back, and their guarantees.

Both bound a Renyi divergence of order a by c a, for every a > 1, and convert it to epsilon at delta:
epsilon = c a + ln(1/delta)/(a - 1). The paper splits epsilon into a share lambda for the first term and the rest for the
second; the best split gives c + 2 sqrt(c ln(1/delta)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privet.errors import InputError
from privet.privacy.events import Event, Gaussian
from privet.privacy.guarantees import Assumed, Claimed

PAPER = "the residual-perturbation paper"

STREAM_CLAIM = Claimed(
    f"Theorem 1 of {PAPER}",
    "without noise on the input the gradient of the first layers holds the records themselves, whatever gamma is",
)
"""The guarantee of noise in the residual stream alone."""

QUERY_ASSUMPTION = Assumed(
    "the weights stay hidden",
    "the layers before the first block hold nothing of the records",
)
"""The guarantee of an answer under Theorem 2, which has no layer before the first block."""


def epsilon_of_cost(cost: float, delta: float, share: float | None = None) -> float:
    """Epsilon at `delta` if the divergence of order a is at most `cost` times a; `share` is lambda, None for the best."""
    _require(delta=delta, share=share)
    if not cost >= 0:
        raise InputError(f"A cost must be a number of at least 0, and is {cost!r}.")
    if math.isinf(cost):
        return math.inf
    logarithm = math.log(1 / delta)
    if share is None:
        return cost + 2 * math.sqrt(cost * logarithm)
    # lambda epsilon = c a with a = ln(1/delta)/((1 - lambda) epsilon) + 1: a quadratic equation.
    return (cost + math.sqrt(cost**2 + 4 * share * cost * logarithm / (1 - share))) / (2 * share)


def cost_of_epsilon(epsilon: float, delta: float, share: float | None = None) -> float:
    """The largest cost whose epsilon at `delta` is not above `epsilon`."""
    _require(delta=delta, share=share)
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon must be a positive number, and is {epsilon!r}.")
    logarithm = math.log(1 / delta)
    if share is None:
        return (math.sqrt(epsilon + logarithm) - math.sqrt(logarithm)) ** 2
    order = logarithm / ((1 - share) * epsilon) + 1
    return share * epsilon / order


@dataclass(frozen=True)
class Theorem1:
    """A whole training with noise of deviation gamma in every residual mapping and pi on the input.

    Formal guarantees: `epsilon_by_input` holds if the training sees each record only as its input of norm at most `radius`
    plus fresh noise, and labels are public; the rest is post-processing, to which gamma adds nothing. `epsilon_by_stream`
    is the paper's and is not proved: see `STREAM_CLAIM`.

    Attributes:
        steps, batch_size, records: T, b and N; only the number of epochs T b / N matters.
        blocks: M, the number of residual mappings.
        delta: the delta of the statement.
        bound: G, a bound of the output of each residual mapping.
        radius: R, a bound of the input.
        share: lambda; None for the best.
    """

    steps: int
    batch_size: int
    records: int
    blocks: int
    delta: float
    bound: float = 30.0
    radius: float = 30.0
    share: float | None = None

    def __post_init__(self) -> None:
        _require(
            delta=self.delta,
            share=self.share,
            positive={
                name: getattr(self, name) for name in ("steps", "batch_size", "records", "blocks", "bound", "radius")
            },
        )

    @property
    def epochs(self) -> float:
        return self.steps * self.batch_size / self.records

    def epsilon(self, gamma: float, pi: float) -> float:
        """The epsilon of the theorem for both: each of the two must be large enough."""
        return max(self.epsilon_by_stream(gamma), self.epsilon_by_input(pi))

    def epsilon_by_stream(self, gamma: float) -> float:
        return epsilon_of_cost(_ratio(2 * self.epochs * self.bound**2 / self.blocks, gamma), self.delta, self.share)

    def epsilon_by_input(self, pi: float) -> float:
        return epsilon_of_cost(_ratio(2 * self.epochs * self.radius**2, pi), self.delta, self.share)

    def gamma(self, epsilon: float) -> float:
        """The smallest gamma for a budget."""
        cost = cost_of_epsilon(epsilon, self.delta, self.share)
        return self.bound * math.sqrt(2 * self.epochs / (self.blocks * cost))

    def pi(self, epsilon: float) -> float:
        """The smallest pi for a budget."""
        return self.radius * math.sqrt(2 * self.epochs / cost_of_epsilon(epsilon, self.delta, self.share))


@dataclass(frozen=True)
class Theorem2:
    """Multiplicative noise: one answer of a network whose weights stay hidden.

    Attributes:
        blocks: M, the number of residual mappings.
        delta: the delta of the statement.
        bound: B, a bound of the output of each residual mapping.
        floor: eta, the least magnitude of the stream by which noise is scaled.
        weight_norm: a, the norm of the last layer's weights.
        share: lambda; None for the best.
    """

    blocks: int
    delta: float
    bound: float
    floor: float
    weight_norm: float
    share: float | None = None

    def __post_init__(self) -> None:
        names = ("blocks", "bound", "floor", "weight_norm")
        _require(delta=self.delta, share=self.share, positive={name: getattr(self, name) for name in names})

    def epsilon(self, gamma: float, pi: float, queries: int = 1) -> float:
        """The epsilon of the theorem for `queries` answers, whose divergences add up."""
        stream = _ratio(2 * self.blocks * (self.bound / self.floor) ** 2, gamma)
        last = _ratio(2 * self.blocks * self.weight_norm**2, pi)
        return epsilon_of_cost(queries * max(stream, last), self.delta, self.share)

    def gamma(self, epsilon: float, queries: int = 1) -> float:
        """The smallest gamma for a budget."""
        cost = cost_of_epsilon(epsilon, self.delta, self.share) / queries
        return self.bound / self.floor * math.sqrt(2 * self.blocks / cost)

    def pi(self, epsilon: float, queries: int = 1) -> float:
        """The smallest pi for a budget."""
        cost = cost_of_epsilon(epsilon, self.delta, self.share) / queries
        return self.weight_norm * math.sqrt(2 * self.blocks / cost)


def stream_event(gamma: float, bound: float, blocks: int) -> Event:
    """One epoch with noise in the residual stream alone, counted as in Theorem 1, and only claimed.

    For replacing a record, a Gaussian release of noise multiplier z has the divergence 2 a / z^2, which is 2 a G^2 /
    (M gamma^2) in the theorem.
    """
    return Gaussian(gamma * math.sqrt(blocks) / bound).under(STREAM_CLAIM)


def input_event(pi: float, radius: float) -> Event:
    """One epoch that sees each record once, as its input of norm at most `radius` plus noise of deviation `pi`."""
    return Gaussian(pi / radius)


def query_event(
    gamma: float, pi: float, *, bound: float, floor: float, weight_norm: float, blocks: int, heads: int = 1
) -> Event:
    """One answer under Theorem 2: the sum of the divergences of all blocks and all last layers.

    The paper gives each of the M blocks and the last layer 1/M of epsilon, which makes M + 1 parts; here they are added.
    """
    cost = 2 * blocks * (bound / (floor * gamma)) ** 2 + 2 * heads * (weight_norm / pi) ** 2
    return Gaussian(math.sqrt(2 / cost)).under(QUERY_ASSUMPTION)


def _ratio(numerator: float, noise: float) -> float:
    if not noise >= 0:
        raise InputError(f"Noise must be a number of at least 0, and is {noise!r}.")
    return numerator / noise**2 if noise else math.inf


def _require(*, delta: float, share: float | None, positive: dict[str, float] | None = None) -> None:
    if not 0 < delta < 1:
        raise InputError(f"delta must be between 0 and 1, and is {delta!r}.")
    if share is not None and not 0 < share < 1:
        raise InputError(f"lambda, the share of epsilon, must be between 0 and 1, and is {share!r}.")
    for name, value in (positive or {}).items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be a positive number, and is {value!r}.")
