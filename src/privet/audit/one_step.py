"""White-box audits of one private step, by the code that training uses and on the records that tell the most."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.audit.bounds import ClopperPearson, GaussianTradeOff, TwoSampleBound
from privet.audit.claim import Claim
from privet.audit.result import Audit
from privet.audit.threshold import audit_scores
from privet.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    BoundedSum,
    Clipping,
    EllipticalClipping,
    FlatClipping,
    PerLayerClipping,
)
from privet.data import Progress
from privet.errors import InputError
from privet.gradients import Engine
from privet.noise import GaussianNoise, GroupedL2Noise, IsotropicL2Noise, Noise, ProductLaplaceNoise
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.sampling import PoissonSampling
from privet.training import Plan
from privet.training.plan import PlanState
from privet.training.step import Step

WIDTH = 4
"""Coordinates of each of the model's two layers."""
MANY = 10_000
"""Releases that are drawn in one call."""
PUBLIC_RECORDS = 1000
"""The public size of the data in the plan; it only scales what is released."""
CANARY_LAST = torch.zeros(4, 2 * WIDTH)
"""Three short records and a canary in directions of its own, far above the clipping norm in both layers."""
CANARY_LAST[:3, 1:WIDTH] = 0.4 * torch.eye(3)
CANARY_LAST[3, [0, WIDTH]] = 1e4


class Directions(nn.Module):
    """A model whose gradient is the record itself, in two layers: the canary chooses its gradient."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Linear(width, 1, bias=False)
        self.second = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, dim=1)
        total: Tensor = self.first(one) + self.second(other)
        return total.squeeze(1)


def clippings() -> dict[str, Clipping]:
    """Every way of clipping that the library has, on the model of the audit."""
    generator = torch.Generator().manual_seed(0)
    names = [name for name, _ in Directions().named_parameters()]
    diagonal = {name: torch.rand(1, WIDTH, generator=generator) * 3 + 0.2 for name in names}
    return {
        "flat": FlatClipping(1.0),
        "per-layer": PerLayerClipping(1.0),
        "automatic": AutomaticClipping(1.0),
        "adaptive": AdaptiveClipping(1.0),
        "elliptical": EllipticalClipping(diagonal),
    }


def noises(epsilon: float) -> dict[str, Noise]:
    """Every optimised noise of a pure epsilon, with the weights that give the canary's directions the least noise."""
    weights = torch.tensor([1.0, *[1e-3] * (WIDTH - 1)] * 2)
    return {
        "product Laplace": ProductLaplaceNoise.solve(weights, epsilon),
        "isotropic L2": IsotropicL2Noise.solve(weights, epsilon),
        "grouped L2": GroupedL2Noise.solve(weights, epsilon),
    }


def step(
    clipping: Clipping,
    noise_multiplier: float = 1.0,
    *,
    noise: Noise | None = None,
    rate: float = 1.0,
    delta: float = 1e-5,
    draws: int = 20_000,
    confidence: float = 0.99,
    bound: TwoSampleBound | None = None,
    name: str = "One step of DP-SGD",
    seed: int | None = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit one step: sampling, per-example gradients, clipping, noise and release, as training runs them.

    The attacker sees the released gradient (and the clipping norm, where it moves), knows every record but one and chose
    that one: its gradient is far above the clipping norm and orthogonal to all others. The score is how far the release
    lies in the canary's direction, which under Gaussian noise is the exact log-likelihood ratio.

    Formal guarantees: the claim is the event that the step itself wrote to its ledger. The bound is that of a (sampled)
    Gaussian trade-off under Gaussian noise, because that is what its event claims, and Clopper-Pearson under any other
    `noise`. Without a seed the streams have secret keys, as in a release.
    """
    if draws < 40:
        raise InputError(f"An audit needs at least 40 draws, and {draws} were asked for.")
    plan = Plan(PoissonSampling(rate), clipping, noise or GaussianNoise(noise_multiplier), 1, PUBLIC_RECORDS)
    laboratory = _Laboratory.of(plan, seed)
    ledger = Ledger()

    def tell(before: int, done: int) -> None:
        if progress is not None:
            progress(f"Auditing: {name}", before + done, 2 * draws)

    members, others = (
        laboratory.scores(len(CANARY_LAST) - side, draws, ledger, partial(tell, side * draws)) for side in (0, 1)
    )
    ((event, _),) = ledger  # every draw recorded the same event
    return audit_scores(
        members,
        others,
        claim=Claim.of(event, delta, ledger.relation),
        bound=bound or _bound(plan, delta, confidence),
        name=name,
        setting="the released gradient of one step, with and without a record whose gradient is clipped",
    )


def _bound(plan: Plan, delta: float, confidence: float) -> TwoSampleBound:
    if isinstance(plan.noise, GaussianNoise):
        return GaussianTradeOff(delta, confidence, plan.sampling.rate)
    return ClopperPearson(delta, confidence)


@dataclass(frozen=True, eq=False)
class _Laboratory:
    """One step of a plan on a few records; the sum of each batch is computed once, its noise for every draw."""

    plan: Plan
    randomness: Randomness
    change: dict[str, Tensor]
    """What the canary adds to the bounded sum, over the squared scale of the noise."""
    sums: dict[tuple[int, ...], BoundedSum]
    state: PlanState

    @classmethod
    def of(cls, plan: Plan, seed: int | None) -> _Laboratory:
        laboratory = cls(plan, Randomness.of(seed), {}, {}, plan.init(dict(Directions().named_parameters())))
        alone, nothing = laboratory._sum((len(CANARY_LAST) - 1,)), laboratory._sum(())
        for key, tensor in alone.tensors.items():
            scale = alone.scales[key]
            laboratory.change[key] = (tensor - nothing.tensors[key]).double() / (scale * scale)
        return laboratory

    def scores(
        self, records: int, draws: int, ledger: Ledger, tell: Callable[[int], None] = lambda done: None
    ) -> NDArray[np.float64]:
        """The log-likelihood ratio of as many releases, up to a constant and a rising function."""
        # A clipping that moves looks at what one release holds, and other noise may depend on how many coordinates
        # there are: these are drawn one by one.
        together = isinstance(self.plan.noise, GaussianNoise) and type(self.plan.clipping).update is Clipping.update
        most = MANY if together else 1
        found: list[Tensor] = []
        done = 0
        for batch, count in self._batches(records, draws).items():
            for start in range(0, count, most):
                found.append(self._released(batch, min(most, count - start), ledger))
                done += len(found[-1])
                tell(done)
        # The draws came batch by batch; in random order, every part of them is a sample.
        return np.random.default_rng(draws).permutation(torch.cat(found).numpy())

    def _batches(self, records: int, draws: int) -> Counter[tuple[int, ...]]:
        if self.plan.sampling.rate == 1:
            return Counter({tuple(range(records)): draws})
        return Counter(tuple(self._step().sample(records).tolist()) for _ in range(draws))

    def _released(self, batch: tuple[int, ...], copies: int, ledger: Ledger) -> Tensor:
        """Scores of independent releases of one sum: copies of it, each of whose coordinates gets noise of its own."""
        step, bounded = self._step(), self._sum(batch)
        step.state, step.bounded = self.state, bounded
        if copies > 1:
            stacked = {key: tensor.expand(copies, *tensor.shape) for key, tensor in bounded.tensors.items()}
            step.bounded = dataclasses.replace(bounded, tensors=stacked)
        released = step.release(lambda event, _: ledger.record(event)).gradients
        scores = torch.zeros(copies, dtype=torch.float64)
        for key, change in self.change.items():
            scores += (released[key].double() * change).view(copies, -1).sum(1)
        return scores

    def _sum(self, batch: tuple[int, ...]) -> BoundedSum:
        if batch not in self.sums:
            model, step = Directions(), self._step()
            with Engine(model, loss_reduction="sum") as engine:
                if batch:
                    model(CANARY_LAST[list(batch)]).sum().backward()
                step.add(engine.gradients() if batch else engine.empty(), self.state)
            assert step.bounded is not None
            self.sums[batch] = step.bounded
        return self.sums[batch]

    def _step(self) -> Step:
        return Step(self.plan, 0, self.randomness)
