"""Audits of a run: of its own plan and model if they can be rebuilt, and otherwise of the steps in its ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from privet.audit.result import Audit, Claim, contradicted
from privet.audit.white_box import Course, RecordLoss, cross_entropy, noises, own_model, stand_in_for, step, training
from privet.clipping import Clipping, FlatClipping
from privet.data import Progress
from privet.errors import InputError, PrivetError
from privet.noise import GaussianNoise, Noise
from privet.privacy import Assumed, Claimed, Event, Gaussian, Ledger, PoissonSampled
from privet.privacy.events import NOTHING, GroupedL2, IsotropicL2, PureEpsilon, Under, tally
from privet.randomness import Randomness
from privet.sampling import PoissonSampling, Sampling
from privet.training import Plan
from privet.training.identity import NotRebuilt, rebuild

FEWER, MUCH_FEWER = 4, 10
"""Releases that are drawn one by one are this many times fewer: with Gaussian noise, and with another one."""
WORK, FEWEST = 10**9, 200
"""The noise of an audit on a run's model: about this many numbers, for at least this many draws on each side."""

MODEL = "model"
PARTS = ("sampling", "clipping", "noise")
"""The parts of a plan, each of which can be somebody else's."""

LedgerAudit = Callable[..., tuple[Audit, ...]]
"""Takes a ledger and the settings of `recorded`; returns audits of its events, or none if none are of the right kind."""


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run, as far as it could be rebuilt; parts of Privet stand in for the missing ones.

    Attributes:
        plan: what is audited.
        missing: the parts of the run that were not rebuilt ("sampling", "clipping", "noise", "model", or another word), each with
            the reason.
        done: how many steps of the plan were done; 0 for all of them.
        of: whose plan it is, in a word: that of a "run", or of a "method" that is audited without a run.
    """

    plan: Plan
    missing: Mapping[str, str] = field(default_factory=dict)
    done: int = 0
    of: str = "run"

    @classmethod
    def rebuilt(cls, plain: Any, ledger: Ledger) -> RunPlan:
        """Rebuild a plan from the plain data of a record. Privet's own parts, as the ledger states them, replace missing ones.

        Raises:
            InputError: a part is missing, and the ledger holds no step that could replace it.
        """
        parts: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for name, kind in zip(PARTS, (Sampling, Clipping, Noise), strict=True):
            try:
                parts[name] = rebuild(plain[name] if isinstance(plain, Mapping) else None, part=f"the {name}")
                if not isinstance(parts[name], kind):
                    raise NotRebuilt(f"the {name}", "the record does not say what it was")
            except (NotRebuilt, KeyError) as error:
                missing[name] = error.why if isinstance(error, NotRebuilt) else "the record does not say what it was"
        if not missing:
            try:
                whole = rebuild(plain, part="the plan")
            except NotRebuilt as error:
                raise InputError(f"{error} Run the command again.") from None
            if not isinstance(whole, Plan):
                raise InputError("the record holds no plan; run the command again.")
            return cls(whole)
        rate, event, count = _step(ledger)
        stand_ins = {"sampling": PoissonSampling(rate), "clipping": FlatClipping(1.0), "noise": _noise(event)[1]}
        parts |= {name: stand_ins[name] for name in missing}
        basis = ledger.guarantee  # the stand-ins are proved, and the run may not be
        assumed = basis.assumptions if isinstance(basis, Assumed) else ()
        return cls(Plan(**parts, steps=count, records=max(1, round(100 / rate)), assumptions=assumed), missing)

    @property
    def steps(self) -> int:
        """The number of steps that were done."""
        return min(self.done or self.plan.steps, self.plan.steps)

    @property
    def event(self) -> Event:
        """The event of the steps that were done."""
        return self.plan.events(0, self.steps)

    @property
    def audited(self) -> str:
        """The parts that are the run's own, in words."""
        own = [part for part in PARTS if part not in self.missing]
        if not own:
            return "Privet's own step with the noise and the sampling rate that the ledger states"
        return f"the {self.of}'s {' and '.join(filter(None, (', '.join(own[:-1]), own[-1])))}"

    @property
    def left_out(self) -> str:
        """The parts that no audit of a plan covers, in words."""
        parts = [f"the {self.of}'s {part}: {why}" for part, why in self.missing.items() if part != MODEL]
        if (unit := self.plan.sampling.unit) != "record":
            parts.append(f"how the examples of one {unit} are joined: a {unit} of the audit has one")
        return "; ".join(parts)

    def without_model(self, found: str = "") -> str:
        """The parts that an audit without the run's model does not cover, in words; `found` is why the model was not audited."""
        if self.of != "run":
            return self.left_out
        why = found or self.missing.get(MODEL, "")
        return "; ".join(filter(None, (self.left_out, f"the run's model{': ' if why else ''}{why}")))


def audit_plan(
    plan: Plan | RunPlan,
    *,
    model: nn.Module | None = None,
    records: tuple[Tensor, Tensor] | None = None,
    loss: RecordLoss = cross_entropy,
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
    - one step on the run's model, with its weights and a canary that is searched for; left out without `model`, or if the model
      has no gradients for single records;
    - the whole training on a stand-in model, if there are several steps of Gaussian noise.

    Each says in `setting` and `audited` which parts were the run's own, and in `not_audited` which were replaced. Its verdict
    covers the audited parts only.

    Formal guarantees: each bound holds with `confidence` by itself; see `step` and `training`.

    Args:
        plan: of the run; a `RunPlan` says which of its parts are the run's own.
        model: of the run. It is copied, and used in evaluation mode.
        records: a few inputs with their labels that the model takes. They should be public or made up: the run's own records
            are not needed.
        loss: of the run, from outputs and labels to a loss for each record (reduction='none').
        delta: of the audits.
        draws: releases of one step with the canary, and as many without it. There are fewer on a large model, and if releases
            are drawn one by one: a quarter if clipping changes from step to step, a tenth if the noise is not Gaussian.
        steps: of the whole training; at most those that were done, and by default all of them.
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
    run = plan if isinstance(plan, RunPlan) else RunPlan(plan)
    plan, left_out, found = run.plan, run.without_model(), []
    course = Course(plan, Randomness.of(seed))
    gaussian = course.noise_multiplier > 0
    draws = draws if course.copies else max(40, draws // (FEWER if gaussian else MUCH_FEWER))
    common: dict[str, Any] = {"delta": delta, "confidence": confidence, "seed": seed, "progress": progress}
    own: tuple[Audit, ...] = ()
    if model is not None and records is not None:
        try:
            few = min(draws, max(FEWEST, WORK // (2 * _numel(model))))
            on = partial(_own_model, model=model, records=records, loss=loss, seed=seed)
            audit = step(plan, on=on, draws=few, name=f"One step of {name}, on the run's model", **common)
            parts = f"{run.audited}, and its model with its weights"
            own = (replace(audit, audited=parts, not_audited=run.left_out),)
        except PrivetError as error:
            left_out = run.without_model(str(error).rstrip("."))
    try:
        on = partial(stand_in_for, model=model)
        audit = step(plan, on=on, draws=draws, name=f"One step of {name}", **common)
        found.append(replace(audit, audited=run.audited, not_audited=left_out))
    except InputError:
        if not own:
            raise
    found += own
    done = min(steps or run.steps, run.steps)
    if gaussian and done > 1 and course.independent:
        part = "all its steps" if done == run.steps else f"its first {done:,} steps"
        left = "" if done == run.steps else f"the other {run.steps - done:,} steps"
        # Left out if sampling or clipping cannot use a stand-in model; the audits of a step say what they cover.
        with suppress(InputError):
            title = f"{name[:1].upper()}{name[1:]}, {done:,} steps"
            audit = training(plan, steps=done, model=model, canaries=canaries, name=title, **common)
            found.append(replace(audit, audited=f"{run.audited}, in {part}", not_audited=left).leaving_out(left_out))
    return tuple(found)


def _own_model(course: Course, model: nn.Module, records: tuple[Tensor, Tensor], loss: RecordLoss, seed: int) -> Any:
    return own_model(model, records, loss, course.scale(model), seed)


def _numel(model: nn.Module) -> int:
    return max(1, sum(p.numel() for p in model.parameters() if p.requires_grad))


def beside(found: Sequence[Audit], ledger: Ledger, covered: Event) -> tuple[Audit, ...]:
    """The audits of a run, each with a note on the ledger's other releases: the audits cover only `covered`."""
    events = {event for event, _ in tally(covered)}
    others = Counter[str]()
    for event, count in tally(ledger.event):
        if event not in events:
            others[type(event).__name__] += count
    if not others:
        return tuple(found)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in others.items())
    return tuple(one.leaving_out(f"the other releases in the ledger ({kinds})") for one in found)


def audit_run_plan(
    run: RunPlan,
    ledger: Ledger,
    delta: float,
    *,
    others: Sequence[Audit] = (),
    covered: Event = NOTHING,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Audit, ...]:
    """Audit the plan of a run against its ledger: the ledger must hold every step, and its other releases are named.

    Args:
        run: the plan, as far as it could be rebuilt.
        ledger: of the run.
        delta: of the audits.
        others: audits of other releases of the run.
        covered: the events that the others cover.
        settings: of `audit_plan`.
    """
    asked = dict(settings or {})
    if run.of != "run":
        return (*audit_plan(run, delta=delta, **asked), *others)
    refuted = unrecorded(run, ledger, delta, asked.get("confidence", 0.99))
    if refuted is not None:
        return (refuted,)
    return beside((*audit_plan(run, delta=delta, **asked), *others), ledger, run.event + covered)


def unrecorded(run: RunPlan, ledger: Ledger, delta: float, confidence: float) -> Audit | None:
    """The refutation of a run whose ledger does not hold all the steps that were done; None if it does."""
    held = Counter(dict(tally(ledger.event)))
    lacking = run.steps - held.total()
    if lacking <= 0 and not {"sampling", "noise"} & run.missing.keys():
        lacking = (Counter(dict(tally(run.event))) - held).total()
    if lacking <= 0:
        return None
    said = f"{lacking:,} of the {run.steps:,} steps that the run made by its plan are not in its ledger"
    claim = Claim.of(ledger, delta)
    return contradicted("The ledger of the run", claim, confidence, said, setting="the run's plan and its ledger")


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
    """Audit a run from its ledger alone: its noise, sampling rate and number of steps, with the training code.

    The most frequent step is audited with flat clipping on a stand-in model, and a whole training of such steps if the noise
    is Gaussian. The audit does not use the run's own sampling, clipping, noise, model and records, nor the other releases in the
    ledger: each audit says so, and its verdict does not cover them. Use `audit_plan` if the plan of the run is known.

    A ledger with an unproved claim is refused, because the run did not do what the audited code does.

    Args:
        ledger: of the run.
        delta: of the audits.
        draws, canaries, confidence, seed, progress: as for `audit_plan`.
        contributed: audits of methods, for example those of `privet.methods`, which are tried first; the first that returns an
            audit is used.
    """
    common: dict[str, Any] = {"delta": delta, "confidence": confidence, "seed": seed, "progress": progress}
    for audits in contributed:
        if own := audits(ledger, draws=draws, **common):
            return own
    if isinstance(ledger.guarantee, Claimed):
        raise InputError(
            f"the ledger holds a step that is {ledger.guarantee}: an audit of code that has a proof would say nothing about it."
        )
    rate, event, count = _step(ledger)
    title, noise = _noise(event)
    gaussian = isinstance(event, Gaussian)
    if gaussian and rate == 1 and count == 1:
        title = "One noisy sum"
    plan = Plan(PoissonSampling(rate), FlatClipping(1.0), noise, count, max(1, round(100 / rate)))
    one = step(plan, draws=draws if gaussian else max(40, draws // MUCH_FEWER), name=title, **common)
    replaced = "the run's own sampling, clipping, noise and model"
    parts = "Privet's own step with the noise and the sampling rate that the ledger states"
    found = [replace(one, audited=parts, not_audited=replaced)]
    if gaussian and count > 1:
        whole = training(plan, canaries=canaries, name=f"DP-SGD, {count:,} steps", **common)
        found.append(replace(whole, audited=f"{parts}, as often as it states", not_audited=replaced))
    return beside(found, ledger, _sampled(rate, event))


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


def _sampled(rate: float, event: Event) -> Event:
    return PoissonSampled(rate, event) if rate < 1 else event


def _noise(event: Event) -> tuple[str, Noise]:
    """The name of a step and its noise; of a pure epsilon, a noise of the same cost that hides the canary least."""
    if isinstance(event, Gaussian):
        return "One step of DP-SGD, flat clipping", GaussianNoise(event.noise_multiplier)
    if isinstance(event, IsotropicL2):
        return "One step, isotropic L2 noise", noises(1 / event.noise_multiplier)["isotropic L2"]
    assert isinstance(event, PureEpsilon | GroupedL2)
    return "One step, grouped L2 noise", noises(event.epsilon)["grouped L2"]
