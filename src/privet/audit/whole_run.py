"""A white-box audit of a whole training: every step of a plan, on many canaries whose gradients do not meet."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from privet.audit.bounds import ClaimedForm
from privet.audit.rebuilt import LONG, Course, Directions, Subject, find_shapes, output_is_loss, words
from privet.audit.result import Audit, Claim
from privet.audit.scores import audit_scores
from privet.clipping import FlatClipping
from privet.data import Progress
from privet.errors import InputError
from privet.noise import GaussianNoise
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.sampling import PoissonSampling
from privet.training import Plan
from privet.training.step import StepResult

FILLERS = 6
"""Records without a gradient for each canary, where clipping changes: an adaptive norm falls by them."""
MOST_NUMBERS = 2**26
"""The canaries of a stand-in model with a run's own parameters take no more numbers than this."""


def training(
    plan: Plan | None = None,
    *,
    rate: float = 1.0,
    noise_multiplier: float = 1.0,
    steps: int | None = None,
    model: nn.Module | None = None,
    delta: float = 1e-5,
    canaries: int = 1000,
    confidence: float = 0.99,
    name: str = "DP-SGD, a whole training",
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit sampling, clipping, noise and accounting of a whole training in one run.

    Each canary is in the data with probability one half. Canaries have gradients far above the clipping norm, and no two of
    them share a coordinate: the attacker sees every release and scores each canary by its exact log-likelihood ratio. The
    claim is the event in the run's ledger.

    Formal guarantees: each canary is one draw, with the record if it is in the data and without it otherwise. These draws are
    independent if records are sampled independently, if the noise of the coordinates is independent, and if the clipped
    gradient of a canary, relative to its noise, does not depend on other records. A plan with Poisson sampling and Gaussian
    noise claims all of it, so that a refutation of such a plan is right with the stated confidence; see `ClaimedForm`.

    Args:
        plan: of a run; without it, flat clipping with the three arguments that follow.
        rate, noise_multiplier: the sampling rate and the Gaussian noise.
        steps: of the training; at most those of the plan, and by default all of them.
        model: of the run. It is needed where clipping was made for its parameters; its weights take no part.
        delta: of the audit.
        canaries: how many there are, half of them in the data on average.
        confidence: of the bound.
        name: of the training, in words.
        seed: of the coins, sampling and noise.
        progress: called with a description, the steps so far and all steps.
    """
    if canaries < 40:
        raise InputError(f"An audit of a whole training needs at least 40 canaries, not {canaries}.")
    if plan is None:
        plan = Plan(PoissonSampling(rate), FlatClipping(1.0), GaussianNoise(noise_multiplier), steps or 1, canaries)
    steps = min(steps or plan.steps, plan.steps)
    subject, course = _rebuilt(plan, model, canaries, seed)
    canaries = len(subject.inputs) - 1
    coins = torch.rand(canaries, generator=torch.Generator().manual_seed(seed)) < 0.5
    data = [*coins.nonzero().flatten().tolist(), *[canaries] * _fillers(course, canaries)]
    ledger = Ledger()
    scores = torch.zeros(canaries, dtype=torch.float64)
    shifts: dict[str, Tensor] = {}
    for number in range(steps):
        if course.moves or not shifts:
            shifts = _shifts(course, subject, canaries)
        sigma, stated = course.noise_multiplier, course.rate
        batch = [data[place] for place in course.sample(len(data))]
        released = course.advance(course.sum(subject, batch), ledger)
        scores += _log_likelihood_ratios(released, shifts, sigma, stated, canaries)
        if progress is not None:
            progress(f"Auditing: {name}", number + 1, steps)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(canaries))
    scores, coins = scores[order], coins[order]
    return audit_scores(
        scores[coins].numpy(),
        scores[~coins].numpy(),
        claim=Claim.of(ledger, delta),
        bound=ClaimedForm(ledger.event, delta, confidence),
        name=name,
        setting=f"{steps:,} steps, all seen; {canaries:,} canaries with orthogonal gradients above the clipping norm; "
        f"{subject.words}",
    )


def _rebuilt(plan: Plan, model: nn.Module | None, canaries: int, seed: int) -> tuple[Subject, Course]:
    """The stand-in model with its canaries, and a record without a gradient after them; and the steps."""
    course = Course(plan, Randomness.of(seed))
    if course.noise_multiplier == 0:
        raise InputError("A whole training is audited where its noise is Gaussian: audit one step of another noise.")
    if not course.independent:
        raise InputError("A whole training is audited where each record is sampled by itself: audit one step.")
    stand_in = Directions(find_shapes(plan, canaries, model))
    canaries = min(canaries, max(stand_in.sizes), max(40, MOST_NUMBERS // sum(stand_in.sizes)))
    inputs = torch.cat([stand_in.directions(canaries), torch.zeros(1, sum(stand_in.sizes))])
    weights = torch.full((len(inputs),), LONG * course.scale(stand_in))
    labels = torch.zeros(len(inputs))
    subject = Subject(stand_in, inputs, labels, weights, output_is_loss, f"a stand-in model with {words(stand_in)}")
    return subject, Course(plan, Randomness.of(seed), canaries // 2 + _fillers(course, canaries))


def _fillers(course: Course, canaries: int) -> int:
    return FILLERS * canaries if course.moves else 0


def _shifts(course: Course, subject: Subject, canaries: int) -> dict[str, Tensor]:
    """The clipped gradient of each canary in units of the clipping norm: canary n has coordinate n of the parameters.

    No gradient is taken to be longer than clipping promises: an attacker who relies on more would miss what varies.
    """
    bounded = course.sum(subject, range(canaries))
    found, squares = {}, torch.zeros(canaries, dtype=torch.float64)
    for name, _ in subject.model.named_parameters():
        scaled = bounded.tensors[name].double() / bounded.scales[name]
        found[name] = scaled.flatten()[:canaries]
        squares[: len(found[name])] += found[name].square()
    lengths = squares.sqrt().clamp(min=1.0)
    return {name: part / lengths[: len(part)] for name, part in found.items()}


def _log_likelihood_ratios(
    released: StepResult, shifts: dict[str, Tensor], noise_multiplier: float, rate: float, canaries: int
) -> Tensor:
    """For each canary, how much more likely this release is with it in the data."""
    ratios = torch.zeros(canaries, dtype=torch.float64)
    deviations = released.deviations()
    for name, shift in shifts.items():
        seen = (released.gradients[name].double() / deviations[name]).flatten()[: len(shift)]
        moved = shift / noise_multiplier
        ratios[: len(shift)] += seen * moved - moved.square() / 2
    # ln(1 - rate + rate e^ratio), safe where the ratio is large.
    return torch.logaddexp(torch.tensor(1 - rate).double().log(), ratios + math.log(rate))
