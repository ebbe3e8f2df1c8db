"""Audits of a run: of its own plan and model where they can be rebuilt, and otherwise of the steps in its ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from privet.audit.one_step import noises, stand_in_for, step
from privet.audit.rebuilt import Course, Loss, cross_entropy, own_model
from privet.audit.result import Audit
from privet.audit.whole_run import training
from privet.clipping import FlatClipping
from privet.data import Progress
from privet.errors import InputError, PrivetError
from privet.noise import GaussianNoise, Noise
from privet.privacy import Claimed, Event, Gaussian, Ledger, PoissonSampled
from privet.privacy.events import GroupedL2, IsotropicL2, PureEpsilon, Under
from privet.randomness import Randomness
from privet.sampling import PoissonSampling
from privet.training import Plan

FEWER, MUCH_FEWER = 4, 10
"""Releases that are drawn one by one are this many times fewer: with Gaussian noise, and with another one."""
WORK, FEWEST = 10**9, 200
"""The noise of an audit on a run's model: about this many numbers, for at least this many draws on each side."""
MODEL = "the run's model"

LedgerAudit = Callable[..., tuple[Audit, ...]]
"""From a ledger and the settings of `recorded` to audits of what the ledger holds; none, if it holds nothing of that kind."""


def audit_plan(
    plan: Plan,
    *,
    model: nn.Module | None = None,
    records: tuple[Tensor, Tensor] | None = None,
    loss: Loss = cross_entropy,
    delta: float = 1e-5,
    draws: int = 20_000,
    steps: int | None = None,
    canaries: int = 1000,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
    name: str = "DP-SGD",
) -> tuple[Audit, ...]:
    """Audit what a run did, by its own plan: sampling, clipping, noise and steps, and its own model if it is given.

    There are up to three audits, in this order:

    - one step on a stand-in model of two layers, where a canary chooses its gradient;
    - one step on the run's model, with the weights it has, where a canary is searched for: left out without `model`, and
      where the model has no gradients for each record;
    - the whole training on a stand-in model, if there are several steps of Gaussian noise.

    Each says in `setting` and `audited` which parts were the run's own, and in `not_audited` which were replaced. Its verdict
    covers the audited parts only.

    Formal guarantees: each bound holds with `confidence` by itself; see `step` and `training`.

    Args:
        plan: of the run.
        model: of the run. It is copied, and used in evaluation mode.
        records: a few inputs with their labels that the model takes. They should be public or made up: the run's own records
            are not needed.
        loss: of the run, from outputs and labels to a loss for each record (reduction='none').
        delta: of the audits.
        draws: releases of one step with the canary, and as many without it. There are fewer on a large model, and where
            releases are drawn one by one: a quarter where clipping changes from step to step, a tenth where the noise is not
            Gaussian.
        steps: of the whole training; at most those of the plan, and by default all of them.
        canaries: of the whole training.
        confidence: of each audit.
        seed: of the audits.
        progress: called with a description, the work that is done and all of it.
        name: of the mechanism, in words.
    """
    if model is not None and records is None:
        raise InputError(
            "An audit of a model needs a few made-up records that it takes: give records=(inputs, labels)."
        )
    course = Course(plan, Randomness.of(seed))
    gaussian = course.noise_multiplier > 0
    draws = draws if course.copies else max(40, draws // (FEWER if gaussian else MUCH_FEWER))
    common: dict[str, Any] = {"delta": delta, "confidence": confidence, "seed": seed, "progress": progress}
    run, left_out, found = "the run's sampling, clipping and noise", MODEL, []
    own: tuple[Audit, ...] = ()
    if model is not None and records is not None:
        try:
            few = min(draws, max(FEWEST, WORK // (2 * _numel(model))))
            on = partial(_own_model, model=model, records=records, loss=loss, seed=seed)
            audit = step(plan, on=on, draws=few, name=f"One step of {name}, on the run's model", **common)
            own = (replace(audit, audited=f"{run}, and its model with its weights"),)
        except PrivetError as error:
            left_out = f"{MODEL}: {error}".rstrip(".")
    try:
        on = partial(stand_in_for, model=model)
        audit = step(plan, on=on, draws=draws, name=f"One step of {name}", **common)
        found.append(replace(audit, audited=run, not_audited=left_out))
    except InputError:
        if not own:
            raise
    found += own
    done = min(steps or plan.steps, plan.steps)
    if gaussian and done > 1 and course.independent:
        part = "all its steps" if done == plan.steps else f"its first {done:,} steps"
        left = left_out if done == plan.steps else f"the other {plan.steps - done:,} steps, and {left_out}"
        # Left out where sampling or clipping takes no stand-in model; the audits of a step say what they cover.
        with suppress(InputError):
            audit = training(plan, steps=done, model=model, canaries=canaries, name=f"{name}, {done:,} steps", **common)
            found.append(replace(audit, audited=f"{run}, in {part}", not_audited=left))
    return tuple(found)


def _own_model(course: Course, model: nn.Module, records: tuple[Tensor, Tensor], loss: Loss, seed: int) -> Any:
    return own_model(model, records, loss, course.scale(model), seed)


def _numel(model: nn.Module) -> int:
    return max(1, sum(p.numel() for p in model.parameters() if p.requires_grad))


# --- a ledger alone ---------------------------------------------------------------------------------------------------


def recorded(
    ledger: Ledger,
    delta: float,
    *,
    draws: int = 20_000,
    canaries: int = 1000,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
    contributed: Sequence[LedgerAudit] = (),
) -> tuple[Audit, ...]:
    """Audit a run of which only the ledger can be read: its noise, sampling rate and number of steps, by the code that trains.

    The most frequent step is audited with flat clipping on a stand-in model, and a whole training of such steps if the noise
    is Gaussian. The run's own clipping, model and records take no part: each audit says so, and its verdict does not cover
    them. Use `audit_plan` where the plan of the run is known.

    A ledger that holds an unproved claim is refused: the run did something else than the code that would be audited in its
    place.

    Args:
        ledger: of the run.
        delta: of the audits.
        draws, canaries, confidence, seed, progress: as for `audit_plan`.
        contributed: audits of methods, which are asked first, for example those of `privet.methods`: the first that returns
            an audit is taken.
    """
    common: dict[str, Any] = {"delta": delta, "confidence": confidence, "seed": seed, "progress": progress}
    for audits in contributed:
        if own := audits(ledger, draws=draws, **common):
            return own
    if isinstance(ledger.guarantee, Claimed):
        raise InputError(
            f"the ledger holds a step that is {ledger.guarantee}: an audit of the code that trains by a proof would say nothing "
            "about it."
        )
    rate, event, count = _step(ledger)
    title, noise = _noise(event)
    gaussian = isinstance(event, Gaussian)
    if gaussian and rate == 1 and count == 1:
        title = "One noisy sum"
    plan = Plan(PoissonSampling(rate), FlatClipping(1.0), noise, count, max(1, round(100 / rate)))
    one = step(plan, draws=draws if gaussian else max(40, draws // MUCH_FEWER), name=title, **common)
    replaced = "the run's clipping and model"
    found = [replace(one, audited="the noise and the sampling rate in the ledger", not_audited=replaced)]
    if gaussian and count > 1:
        whole = training(plan, canaries=canaries, name=f"DP-SGD, {count:,} steps", **common)
        parts = "the noise, the sampling rate and the number of steps in the ledger"
        found.append(replace(whole, audited=parts, not_audited=replaced))
    return tuple(found)


def _step(ledger: Ledger) -> tuple[float, Event, int]:
    """The rate, noise and number of the most frequent step that can be audited again; of several, the one with least noise."""
    counts = Counter[Event]()
    for event, count in ledger.event.leaves():
        counts[event] += count
    found = []
    for event, count in counts.items():
        rate, inner = (event.rate, event.event) if isinstance(event, PoissonSampled) else (1.0, event)
        inner = inner.event if isinstance(inner, Under) else inner
        if isinstance(inner, Gaussian | PureEpsilon | GroupedL2 | IsotropicL2):
            found.append((rate, inner, count))
    if found:
        return max(found, key=lambda step: (step[2], -getattr(step[1], "noise_multiplier", 0.0)))
    raise InputError(
        "the ledger holds no steps of (sampled) Gaussian or optimized noise and no votes, and only these can be audited "
        "again; audit other mechanisms from Python with privet.audit.mechanism or privet.audit.trainer."
    )


def _noise(event: Event) -> tuple[str, Noise]:
    """The name of a step and its noise; of a pure epsilon, a noise of the same cost that hides the canary least."""
    if isinstance(event, Gaussian):
        return "One step of DP-SGD, flat clipping", GaussianNoise(event.noise_multiplier)
    if isinstance(event, IsotropicL2):
        return "One step, isotropic L2 noise", noises(1 / event.noise_multiplier)["isotropic L2"]
    assert isinstance(event, PureEpsilon | GroupedL2)
    return "One step, grouped L2 noise", noises(event.epsilon)["grouped L2"]
