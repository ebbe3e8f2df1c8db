"""Audits of what a ledger says was done: its most frequent step, once and as often as it happened."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeGuard

from privet.audit.one_step import noises, step
from privet.audit.published import published_noise
from privet.audit.result import Audit
from privet.audit.voting import votes
from privet.audit.whole_run import training
from privet.clipping import FlatClipping
from privet.data import Progress
from privet.errors import InputError
from privet.noise import Noise
from privet.noise.grouped import CLAIM
from privet.privacy import Claimed, Event, Gaussian, Ledger, NoisyVotes, PoissonSampled
from privet.privacy.events import GroupedL2, IsotropicL2, PureEpsilon, Under, tally

FEWER = 10
"""Noise that is drawn release by release gets so many times fewer draws."""


def recorded(
    ledger: Ledger,
    delta: float,
    *,
    draws: int = 20_000,
    canaries: int = 1000,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Audit, ...]:
    """Audit the mechanism that a run used, by the code that trains: its step, and a whole training of such steps; or its votes.

    The records of the run take no part. The whole training is audited where its noise is Gaussian. Where a ledger holds what is
    only claimed, what the run did is not what the ledger says, and auditing the latter would clear the former: refused, but
    for optimised noise as published, whose step has an audit of its own.
    """
    common: dict[str, Any] = {"delta": delta, "confidence": confidence, "seed": seed, "progress": progress}
    if ledger.guarantee == CLAIM:
        _, noise, _ = _step(ledger)
        assert isinstance(noise, PureEpsilon)
        return (published_noise(noise.epsilon, draws=max(40, draws // FEWER), **common),)
    if isinstance(ledger.guarantee, Claimed):
        raise InputError(
            f"the ledger holds what is {ledger.guarantee}: the code that trains by a proof would be audited in its stead."
        )
    if voted := _voted(ledger):
        return (votes(*voted, draws=draws, **common),)
    rate, noise, count = _step(ledger)
    settings = {"rate": rate, **common}
    if not isinstance(noise, Gaussian):
        name, plan = _other(noise)
        return (
            step(FlatClipping(1.0), noise=plan, draws=max(40, draws // FEWER), name=f"One step, {name}", **settings),
        )
    one = "One noisy sum" if rate == 1 and count == 1 else "One step of DP-SGD, flat clipping"
    found = [step(FlatClipping(1.0), noise.noise_multiplier, draws=draws, name=one, **settings)]
    if count > 1:
        whole = f"DP-SGD, {count:,} steps"
        found.append(
            training(noise_multiplier=noise.noise_multiplier, steps=count, canaries=canaries, name=whole, **settings)
        )
    return tuple(found)


def _voted(ledger: Ledger) -> tuple[float, int] | None:
    """The noise of the votes and the number of answers, of a ledger that holds any; of several the loudest."""
    found = [(event.noise_multiplier, count) for event, count in tally(ledger.event) if _is_vote(event)]
    return min(found, default=None)


def _is_vote(event: Event) -> TypeGuard[NoisyVotes]:
    return isinstance(event, NoisyVotes) and event.noise == "gaussian"


def _step(ledger: Ledger) -> tuple[float, Event, int]:
    """The rate, the noise and the number of the most frequent step that can be audited again; of several the loudest."""
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
        "the ledger holds no votes and no steps of (sampled) Gaussian or optimised noise, and only these can be audited "
        "again; audit other mechanisms from Python with privet.audit.mechanism or privet.audit.trainer."
    )


def _other(noise: Event) -> tuple[str, Noise]:
    """A pure-epsilon noise of the same cost, with the weights that hide the canary least."""
    if isinstance(noise, IsotropicL2):
        return "isotropic L2 noise", noises(1 / noise.noise_multiplier)["isotropic L2"]
    assert isinstance(noise, PureEpsilon | GroupedL2)
    return "grouped L2 noise", noises(noise.epsilon)["grouped L2"]
