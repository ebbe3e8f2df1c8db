"""Events and numbers in words for readers who do not program."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privet.privacy import events
from privet.privacy.guarantees import Assumed, Claimed, Guarantee
from privet.privacy.meaning import VACUOUS_FALSE_POSITIVES, VACUOUS_TRUE_POSITIVES
from privet.privacy.spent import round_up


@dataclass(frozen=True)
class Standing:
    """How a statement is shown: the kind of its guarantee, and whether it is `vacuous`."""

    kind: str
    title: str
    mark: str
    explanation: str
    vacuous: bool = False

    @property
    def look(self) -> str:
        """The style of the frame and the colors: the kind, or "vacuous" for a proved statement that promises nothing."""
        if self.kind == "refuted":
            return "open"
        return "vacuous" if self.vacuous and self.kind in ("proved", "assumed") else self.kind

    @property
    def protects(self) -> bool:
        """Whether the statement is more than a claim and promises something."""
        return self.kind in ("proved", "assumed") and not self.vacuous


UNPROTECTED = Standing("open", "No protection", "!", "At least one use of the data has no finite cost.", vacuous=True)
REFUTED = Standing(
    "refuted",
    "Refuted by an audit",
    "✗",
    "An audit of this run shows a larger epsilon than its statement allows: the statement is wrong, even if it has a proof.",
)
VACUOUS = (
    f"It is vacuous: it allows an attack that finds {100 * VACUOUS_TRUE_POSITIVES:g} % or more of the records that were used, "
    f"while it wrongly names 1 in {round(1 / VACUOUS_FALSE_POSITIVES):,} of those that were not."
)


def standing(guarantee: Guarantee, *, vacuous: bool = False) -> Standing:
    """The kind of a guarantee with its mark and words, so that it can be read without color; and whether it is vacuous."""
    match guarantee:
        case Claimed(by=by, because=because):
            found = Standing("claimed", "Claimed, not proved", "✗", f"Claimed by {by}, but {because}.")
        case Assumed(assumptions=assumptions):
            said = "; ".join(assumptions)
            found = Standing("assumed", "Proved under assumptions", "≈", f"It holds if: {said}.")
        case _:
            found = Standing("proved", "Proved", "✓", "A theorem covers exactly what was run.")
    if not vacuous:
        return found
    word, mark = ("and", found.mark) if found.kind == "claimed" else ("but", "∅")
    title, explanation = f"{found.title}, {word} vacuous", f"{found.explanation} {VACUOUS}"
    return Standing(found.kind, title, mark, explanation, vacuous=True)


def describe(event: events.Event, unit: str = "record") -> str:
    """What was done to the data, as the rest of a sentence; `unit` is what is protected: a record, a user."""
    match event:
        case events.PoissonSampled(rate=rate, event=inner):
            return (
                f"from a random sample that holds each {unit} with probability {share(rate)}, {describe(inner, unit)}"
            )
        case events.PaddedPoisson(rate=rate, rows=rows, event=inner):
            sample = f"each {unit} with probability {share(rate)}, filled up with dummies to {rows:,} rows"
            return f"from a random sample that holds {sample}, {describe(inner, unit)}"
        case events.FixedSizeSampled(size=size, examples=examples, event=inner):
            return f"from {size:,} of {examples:,} {unit}s drawn at random, {describe(inner, unit)}"
        case events.ShuffledEpoch(batches=batches, event=inner):
            return f"from each of {batches:,} disjoint shuffled batches, {describe(inner, unit)}"
        case events.RepeatAndSelect(events=ways):
            said = "; or ".join(describe(inner, unit) for inner in ways)
            return f"the best of a secret, random number of trials ({event.trials}), each of which does this: {said}"
        case events.Repeated(event=inner, count=count):
            return f"{times(count)}: {describe(inner, unit)}"
        case events.Composed(events=parts):
            return "; and ".join(describe(inner, unit) for inner in parts)
        case events.Under(event=inner, basis=Claimed(by=by)):
            return f"{describe(inner, unit)}, as claimed by {by}"
        case events.Adaptive(event=inner):
            return f"{describe(inner, unit)}, chosen after earlier releases were seen"
        case events.Under(event=inner):
            return describe(inner, unit)
    return _release(event, unit)


def _release(event: events.Event, unit: str) -> str:
    match event:
        case events.Gaussian(noise_multiplier=noise):
            return f"a sum in which one {unit} counts for at most C, plus Gaussian noise of {number(noise)} C"
        case events.Laplace(noise_multiplier=noise):
            return f"a sum in which one {unit} counts for at most C, plus Laplace noise of scale {number(noise)} C"
        case events.IsotropicL2(noise_multiplier=noise, dimension=dimension):
            size = f"of scale {number(noise)} C in {dimension:,} dimensions"
            return f"a sum in which one {unit} counts for at most C, plus isotropic L2 noise {size}"
        case events.GroupedL2(rates=rates):
            groups = f"{len(rates):,} group" + ("" if len(rates) == 1 else "s")
            return f"a sum in which one {unit} counts for at most C, plus L2 noise in {groups} of coordinates"
        case events.CovarianceRelease(noise_multiplier=noise):
            return f"the second moments of {unit}s of length at most 1, plus Gaussian noise of {number(noise)}"
        case events.NoisyVotes(noise_multiplier=noise, noise=kind):
            return f"a count of teachers' votes, plus {kind.capitalize()} noise of {number(noise)} votes"
        case events.NoisyTopCount(noise_multiplier=noise):
            return f"the largest count of teachers' votes, plus Gaussian noise of {number(noise)} votes"
        case events.PublicRecords(count=count, named=named):
            return f"{count:,} records without labels, stated to be public ({named}); they are not protected"
        case events.RandomizedResponse(noise=noise, buckets=buckets):
            return f"every value, replaced by a random one of {buckets:,} with probability {share(noise)}"
        case events.PureEpsilon(epsilon=epsilon):
            return f"a release by a mechanism of pure epsilon {number(epsilon)}"
        case events.ApproximateDP(epsilon=epsilon, delta=delta):
            return f"a release proved elsewhere to be ({number(epsilon)}, {delta:g})-differentially private"
        case events.PublishedClaim(epsilon=epsilon, delta=delta, by=by):
            return f"a release of which {by} claims ({number(epsilon)}, {delta:g})-differential privacy"
        case events.NotPrivate():
            return "a use of the data without any protection"
        case events.Nothing():
            return "no use of the data"
    return type(event).__name__


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def number(value: float) -> str:
    """Four significant digits, without trailing zeros."""
    return f"{value:.4g}"


def share(value: float) -> str:
    """A rate as a percentage that is not broken over two lines."""
    return f"{100 * value:.3g}\N{NO-BREAK SPACE}%"


def share_at_most(value: float) -> str:
    """A bound as a percentage, rounded up: a printed bound is still a bound."""
    return f"{round_up(100 * value)}\N{NO-BREAK SPACE}%"


def odds(probability: float) -> str:
    """A small probability as "one in N", if N is a round number."""
    if probability <= 0:
        return "0"
    inverse = 1 / probability
    whole = round(inverse)
    return f"1 in {whole:,}" if whole > 1 and math.isclose(inverse, whole, rel_tol=1e-9) else f"{probability:.3g}"


def size(count: int) -> str:
    """The size of a file, as file managers show it."""
    for unit, each in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= each:
            return f"{count / each:.3g} {unit}"
    return f"{count:,} byte{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
