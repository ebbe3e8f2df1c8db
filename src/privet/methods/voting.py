"""Labels by noisy voting: Gaussian noisy-max aggregation, plain or confident (Papernot et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp
from torch import Tensor
from torch.nn.functional import one_hot

from privet.audit import Audit, Claim, GaussianTradeOff, Seen, audit_scores, beside
from privet.audit.bounds import TwoSampleBound
from privet.audit.result import Claimable
from privet.audit.stations import DELTA, add_stations
from privet.data import Progress, Split
from privet.errors import InputError, PrivetError
from privet.io.moved import joined_arguments
from privet.methods.method import Context
from privet.privacy import Budget, Event, Ledger, NoisyTopCount, NoisyVotes
from privet.privacy.events import NOTHING, tally
from privet.privacy.spent import round_up
from privet.randomness import Randomness, SecureSource, Source
from privet.randomness.sources import fill_normal
from privet.training import RunFolder
from privet.training.blocks import Blocks, Box
from privet.training.checkpoint import Stateful, digest
from privet.training.identity import data_fingerprint


@dataclass(frozen=True)
class Confidence:
    """Answer only if the noisy largest count reaches `threshold` votes; `noise` is its standard deviation in votes."""

    threshold: float
    noise: float

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf or not math.isfinite(self.threshold):
            raise InputError(
                f"Confident voting needs a threshold and a positive noise, not {self.threshold} and {self.noise}."
            )


@dataclass(frozen=True)
class Voting:
    """The settings of a vote.

    Attributes:
        teachers: number of teachers.
        confidence: answer only queries on which they agree enough; None for every query.
        queries: number of queries that they are asked; None for as many as the noise allows.
    """

    teachers: int = 100
    confidence: Confidence | None = None
    queries: int | None = None


@dataclass(frozen=True, eq=False)
class Answers:
    """The released labels.

    Attributes:
        queries: the positions of the answered queries, in order.
        labels: one for each of them.
        asked: number of queries.
        noise: the standard deviation of the noise on each count of votes.
        internal: the data-dependent cost of the same votes: not for release, and not part of any statement.
    """

    queries: Tensor
    labels: Tensor
    asked: int
    noise: float
    internal: DataDependent | None = field(default=None, repr=False)


def _with_ledger(context: Context | None, ledger: Ledger | None) -> Context:
    ledger = Ledger() if ledger is None else ledger
    return Context(ledger) if context is None else replace(context, ledger=ledger)


def _with_on_step(context: Context | None, on_step: OnStep | None) -> Context:
    return replace(context or Context(Ledger()), on_step=on_step)


OLD_CONTEXT: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "ledger": ("context", _with_ledger),
    "on_step": ("context", _with_on_step),
}
"""Arguments of version 0.1 that are parts of the context now."""


@joined_arguments(OLD_CONTEXT)
def label_by_votes(
    records: Split,
    queries: Tensor,
    classes: int,
    *,
    budget: Budget,
    context: Context,
    randomness: Randomness,
    voting: Voting | None = None,
    teach: Teach | None = None,
) -> Answers:
    """Labels for `queries` (public records, or artificial examples released before) from teachers of disjoint `records`.

    Args:
        records: the protected records, after a fixed transform or one from earlier releases.
        queries: in the same space; a row for each.
        classes: the public number of classes.
        budget: for the ledger and the votes together; the noise is calibrated to what is left of it.
        context: where checks and answers are recorded before they are used. Until the answers are released, its folder keeps
            the votes of finished teachers, readable only by its owner. Called after each teacher.
        voting: the number of teachers, and whether they must agree.
        teach: how each teacher learns and votes on `queries`; by default a kernel classifier in a view of them.

    Formal guarantees: one record changes one vote at each query (`privet.methods.voting.ballots`). A separate release decides
    which queries are answered. All answers together then spend what is left, whatever their number, so the total is known
    before any vote is counted.
    """
    context.ledger.require_unit(records.unit)
    voting = voting or Voting()
    if len(queries) == 0:
        raise InputError("There is nothing to label: a vote needs at least one public record.")
    check_teachers(voting.teachers, records.units, classes)
    if teach is None:
        view = PublicView.of(queries)
        teach, queries = KernelTeacher(view), view(queries)
    voted = _Voted()
    if context.folder is not None:
        about = {"teachers": voting.teachers, "queries": digest({"": queries}), "seed": randomness.seed}
        voted = _Voted(context.folder, about | {"data": data_fingerprint(records)})

    @cache
    def counts() -> Tensor:
        return ballots(
            records,
            queries,
            classes,
            teachers=voting.teachers,
            teach=teach,
            source=randomness.sampling,
            on_step=context.on_step,
            voted=voted,
        )

    found = answer(counts, len(queries), voting.confidence, budget=budget, context=context, randomness=randomness)
    voted.forget()
    return found


def answer(
    counts: Callable[[], Tensor],
    queries: int,
    confidence: Confidence | None,
    *,
    budget: Budget,
    context: Context,
    randomness: Randomness,
) -> Answers:
    """The noisy winner at every query, or at those whose noisy largest count reaches the threshold.

    `counts` gives the votes at the queries. It is called only if an answer is needed.
    """

    def sure(ledger: Ledger) -> Tensor:
        assert confidence is not None
        left, checks = budget.after(ledger, fixed_beforehand=True), NoisyTopCount(confidence.noise) * queries
        if not left.allows(checks):
            raise InputError(
                f"Checking whether the teachers agree at {queries:,} queries costs more than the budget: "
                f"{left.spent(checks)}. Count with more noise, or ask fewer queries."
            )
        reached = noisy_top_counts(counts(), confidence.noise, ledger, randomness.noise) >= confidence.threshold
        return reached.nonzero().flatten()

    def winners(ledger: Ledger) -> dict[str, Any]:
        # The number of answers depends on a release, so the noise of one release is spread over all answers: Gaussian releases
        # chosen after others cost at most their total, which is fixed here (Smith and Thakurta 2022).
        left = budget.after(ledger, fixed_beforehand=True)
        sigma = left.least(NoisyVotes, math.sqrt(2), "noise of the votes") * math.sqrt(len(asked))
        labels = noisy_counts(counts()[asked], sigma, ledger, randomness.noise).argmax(1)
        internal = analyze(counts(), asked, sigma, confidence, budget.delta)
        return {"labels": labels, "noise": sigma, "internal": [internal.epsilon, internal.delta]}

    asked = torch.arange(queries)
    if confidence is not None:
        asked = context.releases.get("sure-queries", sure, randomness)
        if len(asked) == 0:
            raise PrivetError(
                f"At none of {queries:,} queries did a class get {confidence.threshold:g} noisy votes: lower the threshold."
            )
    found = context.releases.get("votes", winners, randomness)
    return Answers(asked, found["labels"], queries, found["noise"], DataDependent(*found["internal"]))


def noisy_counts(counts: Tensor, noise: float, ledger: Ledger, source: Source) -> Tensor:
    """The counts with Gaussian noise. Only the winners may be shown: the low bits of the floating-point counts can leak.

    Formal guarantees: one `NoisyVotes` for each query, in the ledger before the noise is drawn.
    """
    ledger.record(NoisyVotes(noise), count=len(counts))
    return counts + noise * _normal(counts.numel(), source).view(counts.shape)


def noisy_top_counts(counts: Tensor, noise: float, ledger: Ledger, source: Source) -> Tensor:
    """The largest count at each query with Gaussian noise; only whether it reaches a threshold may be shown.

    Formal guarantees: one `NoisyTopCount` for each query, in the ledger before the noise is drawn.
    """
    ledger.record(NoisyTopCount(noise), count=len(counts))
    return counts.max(1).values + noise * _normal(len(counts), source)


def _normal(count: int, source: Source) -> Tensor:
    return fill_normal(torch.empty(count, dtype=torch.float64), source)


_FARTHEST = 1e3
"""Coordinates beyond this many typical distances are cut: a kernel is 0 there anyway, and sums stay finite."""
_CHUNK = 1000
_SECONDS = 5.0
"""The least time in seconds between two checkpoints of the teachers' votes."""

OnStep = Callable[[dict[str, Any]], None]
Votes = Callable[[Tensor], Tensor]
"""Maps queries to one class for each."""


class Teach(Protocol):
    """Trains a teacher on its part: a function of these records alone, not of those of other teachers."""

    def __call__(self, inputs: Tensor, labels: Tensor, classes: int) -> Votes: ...


@dataclass(frozen=True, eq=False)
class PublicView:
    """Leading principal components of public records, in which two of them are at a mean squared distance of 1.

    Formal guarantees: it is a function of the public records alone.
    """

    mean: Tensor
    directions: Tensor

    @classmethod
    def of(cls, public: Tensor, components: int = 150) -> PublicView:
        rows = public.flatten(1)
        mean = rows.mean(0)
        centered = rows - mean
        generator = torch.Generator().manual_seed(0)
        # Always the same start, so that the view is a function of the public records alone.
        kept = min(components, *rows.shape)
        start = torch.randn(rows.shape[1], min(kept + 20, *rows.shape), generator=generator)
        basis = torch.linalg.qr(centered @ start).Q
        for _ in range(2):
            basis = torch.linalg.qr(centered @ (centered.mT @ basis)).Q
        directions = torch.linalg.svd(basis.mT @ centered, full_matrices=False).Vh[:kept].mT
        spread = float((centered @ directions).square().sum()) / len(rows)
        if not spread > 0:
            raise InputError("All public records are equal, so no view can be computed from them.")
        return cls(mean, directions / (2 * spread) ** 0.5)

    def __call__(self, rows: Tensor) -> Tensor:
        seen = [(chunk.flatten(1) - self.mean) @ self.directions for chunk in rows.split(_CHUNK)]
        return torch.cat(seen).nan_to_num(0.0, 0.0, 0.0).clamp(-_FARTHEST, _FARTHEST)


def kernel(one: Tensor, other: Tensor) -> Tensor:
    """Gaussian, as wide as the typical distance of public records."""
    return torch.cdist(one, other).square_().neg_().exp_()


@dataclass(frozen=True, eq=False)
class KernelTeacher:
    """Least squares in the space of a Gaussian kernel, in closed form: the same part always gives the same teacher.

    Records go through `view` here; queries must have gone through it before, once for all teachers.
    """

    view: PublicView
    ridge: float = 0.01

    def __call__(self, inputs: Tensor, labels: Tensor, classes: int) -> Votes:
        known = self.view(inputs)
        targets = one_hot(labels, classes).to(known.dtype) - 1 / classes
        weights = torch.linalg.solve(kernel(known, known) + self.ridge * torch.eye(len(known)), targets)

        def votes(queries: Tensor) -> Tensor:
            return torch.cat([(kernel(chunk, known) @ weights).argmax(1) for chunk in queries.split(_CHUNK)])

        return votes


def parts(records: int, teachers: int, source: Source, owners: Tensor | None = None) -> Iterator[Tensor]:
    """The positions of the records of each teacher: every record goes to one of them, drawn for it alone.

    If records have `owners`, numbered from 0 on, all records of a user go to one teacher, drawn for that user alone.

    Formal guarantees: the parts are disjoint and contain all records. Whether a record is present does not move any other (parts
    of equal size would move them all), so adding, removing or replacing a record, or a user, changes one part.
    """
    units = records if owners is None else int(owners.max()) + 1
    if isinstance(source, SecureSource):
        drawn = source.integers(units).remainder(teachers)
    else:
        drawn = torch.randint(teachers, (units,), generator=source)
    drawn = drawn if owners is None else drawn[owners]
    order = drawn.argsort(stable=True)
    yield from order.split(drawn.bincount(minlength=teachers).tolist())


def check_teachers(teachers: int, records: int, classes: int) -> None:
    """Raise unless there are at least two classes, two teachers and one record for each teacher."""
    if classes < 2:
        raise InputError("Teachers vote between classes, and there is only one.")
    if teachers < 2:
        raise InputError(f"A vote needs at least two teachers, and {teachers} was asked for.")
    if teachers > records:
        raise InputError(f"There are fewer records than {teachers:,} teachers: ask for fewer teachers.")


def ballots(
    records: Split,
    queries: Tensor,
    classes: int,
    *,
    teachers: int,
    teach: Teach,
    source: Source,
    on_step: OnStep | None = None,
    voted: _Voted | None = None,
) -> Tensor:
    """The number of votes for each class at each query: a tensor ``(queries, classes)`` that is not for release.

    Formal guarantees: adding, removing or replacing a record changes one teacher, so at each query at most one vote moves from a
    class to another. A teacher without records votes for the first class.
    """
    check_teachers(teachers, records.units, classes)
    owners = None if records.users is None else records.users.unique(return_inverse=True)[1]
    voted = voted or _Voted()
    if not voted.begin():
        voted.parts.value = list(parts(len(records), teachers, source, owners))
        voted.counts.value = torch.zeros(len(queries), classes, dtype=torch.int64)
    for number, part in list(enumerate(voted.parts.value, 1))[voted.done :]:
        votes = torch.zeros(len(queries), dtype=torch.int64)
        if len(part):
            votes = teach(*records.batch(part), classes)(queries)
        if votes.shape != (len(queries),) or not bool(((votes >= 0) & (votes < classes)).all()):
            raise PrivetError(f"Teacher {number} did not give one class from 0 to {classes - 1} for each query.")
        voted.counts.value += one_hot(votes, classes)
        voted.save(number, ended=number == teachers)
        if on_step is not None:
            on_step({"what": "Teachers", "step": number, "steps": teachers})
    return voted.counts.value


class _Voted:
    """The votes of finished teachers. A run in a folder keeps them, so that it does not train these teachers again.

    They are computed from records without noise; only the owner of the folder can read them.
    """

    def __init__(self, folder: RunFolder | None = None, identity: Mapping[str, Any] | None = None) -> None:
        self.parts, self.counts = Box[list[Tensor]]([]), Box(torch.empty(0))
        """The places of the records of each teacher, and the votes counted so far."""
        self._blocks: Blocks | None = None
        if folder is not None:
            boxes: dict[str, Stateful] = {"parts": self.parts, "counts": self.counts}
            # The parts are kept as drawn, so no random stream has to be resumed.
            self._blocks = Blocks(folder, boxes, Randomness.of(None), stage="votes", seconds=_SECONDS)
        self._identity = identity or {}

    def begin(self) -> bool:
        """Whether some teachers have voted already."""
        if self._blocks is not None:
            self._blocks.begin(self._identity)
        return self.done > 0

    @property
    def done(self) -> int:
        return self._blocks.step if self._blocks is not None else 0

    def save(self, done: int, *, ended: bool) -> None:
        if self._blocks is not None:
            self._blocks.save(done, ended=ended)

    def forget(self) -> None:
        if self._blocks is not None:
            self._blocks.forget()


Array = NDArray[np.float64]

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)


@dataclass(frozen=True)
class DataDependent:
    """The epsilon for these records alone. It is computed from the votes without protection: internal, not for release.

    Formal guarantees: it bounds the divergence between the answers on these records and on any neighboring ones. It is no bound
    for other records. It is not differential privacy unless a separate mechanism (smooth sensitivity) releases it, which is not
    done here.
    """

    epsilon: float
    delta: float

    def __str__(self) -> str:
        return (
            f"epsilon = {round_up(self.epsilon)} at delta = {self.delta:g} at these records alone (data-dependent RDP of the "
            "votes); computed from the votes without protection: internal, not for release"
        )


def analyze(counts: Tensor, asked: Tensor, noise: float, confidence: Confidence | None, delta: float) -> DataDependent:
    """The data-dependent epsilon of the winners at `asked`, and of the checks at every query where there were any."""
    from dp_accounting.rdp import rdp_privacy_accountant

    orders = np.array(ORDERS, dtype=np.float64)
    total = divergences(log_upset(counts[asked].numpy().astype(np.float64), noise), noise**2, orders).sum(0)
    if confidence is not None:
        top = counts.max(1).values.numpy().astype(np.float64)
        upset = log_ndtr(-np.abs(top - confidence.threshold) / confidence.noise)
        total += divergences(upset, 2 * confidence.noise**2, orders).sum(0)
    epsilon, _ = rdp_privacy_accountant.compute_epsilon(list(ORDERS), total, delta)
    return DataDependent(float(epsilon), delta)


def log_upset(counts: Array, noise: float) -> Array:
    """For each row, the logarithm of a bound on the probability that noise makes another class than the largest win.

    It is the union bound over the others, at most 1 - 1/classes, because the class with the most votes is the likeliest winner.
    """
    ordered = np.sort(counts, axis=1)
    gaps = ordered[:, -1:] - ordered[:, :-1]
    union = logsumexp(log_ndtr(-gaps / (math.sqrt(2) * noise)), axis=1)
    bound: Array = np.minimum(union, math.log1p(-1 / counts.shape[1]))
    return bound


def divergences(log_q: Array, scale: float, orders: Array) -> Array:
    """Renyi divergences, a row for each release and a column for each order (Theorem 6 and Proposition 10).

    Args:
        log_q: the logarithms of the probabilities of all outcomes but the likeliest.
        scale: the mechanism's divergence of order a is at most a / scale whatever the data: noise^2 for votes, which have
            sensitivity sqrt 2, and 2 noise^2 for the largest count.
        orders: above 1.

    Formal guarantees: never above a / scale.
    """
    anyway = np.broadcast_to(orders / scale, (len(log_q), len(orders)))
    log_q = log_q[:, None]
    second = np.sqrt(np.maximum(scale * -log_q, 1e-300))
    first = second + 1
    epsilon_first, epsilon_second = first / scale, second / scale
    with np.errstate(all="ignore"):
        largest = (second - 1) * epsilon_second - second * (np.log(first / second) + np.log(second / (second - 1)))
        holds = (second > 1) & (orders <= first) & (log_q <= largest) & (log_q + epsilon_second < 0)
        log_p = _log_1_minus(log_q)
        log_a = log_p - _log_1_minus((log_q + epsilon_second) * (second - 1) / second)
        log_b = epsilon_first - log_q / (first - 1)
        power = orders - 1
        found = np.logaddexp(log_p + power * log_a, log_q + power * log_b) / power
    found = np.where(holds & np.isfinite(found), np.maximum(found, 0.0), anyway)
    bound: Array = np.where(np.isneginf(log_q), 0.0, np.minimum(found, anyway))
    return bound


def _log_1_minus(log_x: Array) -> Array:
    """log(1 - x) from log x < 0."""
    difference: Array = np.where(log_x > -math.log(2), np.log(-np.expm1(log_x)), np.log1p(-np.exp(log_x)))
    return difference


# --- audits -----------------------------------------------------------------------------------------------------------

AT_ONCE = 2**20
"""Number of counts to which noise is added in one call."""


def votes(
    noise: float = 40.0,
    answers: int = 1,
    *,
    delta: float = 1e-5,
    draws: int = 8000,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit the noisy counts from which `answers` labels are taken, when one teacher changes its vote at every query.

    The attacker knows all other votes and sees the noisy counts, of which a student gets only the winners. The score is the
    exact log-likelihood ratio.

    Formal guarantees: the bound is that of a Gaussian trade-off, which is what `NoisyVotes` claims.
    """
    if draws < 40:
        raise InputError(f"An audit needs at least 40 draws, not {draws}.")
    name = f"Noisy votes, {answers:,} answers" if answers > 1 else "Noisy votes, one answer"
    generator = torch.Generator().manual_seed(seed)

    def scores(side: int) -> NDArray[np.float64]:
        found = []
        for start in range(0, draws, most := max(1, AT_ONCE // (2 * answers))):
            counts = torch.zeros(min(most, draws - start) * answers, 2, dtype=torch.float64)
            counts[:, side] = 1.0  # the teacher votes for the first label with the record, for the second without it
            noisy = noisy_counts(counts, noise, Ledger(), generator)
            found.append((noisy[:, 0] - noisy[:, 1]).view(-1, answers).sum(1).numpy())
            if progress is not None:
                progress(f"Auditing: {name}", side * draws + min(draws, start + most), 2 * draws)
        return np.concatenate(found)

    return audit_scores(
        scores(0),
        scores(1),
        claim=Claim.of(NoisyVotes(noise) * answers, delta),
        bound=GaussianTradeOff(delta, confidence),
        name=name,
        setting="the noisy counts; one teacher votes for another label at every query",
    )


def voting_audits(ledger: Ledger, **settings: Any) -> tuple[tuple[Audit, ...], Event]:
    """The audit of the votes in a ledger, and the events that it covers; nothing without votes.

    If there are several kinds of votes, those with the least noise are audited.
    """
    found = [
        (event.noise_multiplier, count, event)
        for event, count in tally(ledger.event)
        if isinstance(event, NoisyVotes) and event.noise == "gaussian"
    ]
    if not found:
        return (), NOTHING
    noise, count, event = min(found, key=lambda one: one[:2])
    said = "the noise of the votes and the number of answers that the ledger states"
    return (replace(votes(noise, count, **settings), audited=said, not_audited="the teachers"),), event * count


def votes_in(ledger: Ledger, **settings: Any) -> tuple[Audit, ...]:
    """The audit of the votes in a ledger of which nothing else is known; nothing without votes."""
    found, covered = voting_audits(ledger, **settings)
    return beside(found, ledger, covered)


@dataclass(frozen=True)
class Teachers:
    """PATE: records go to teachers, who vote, and the noisy counts are released. One teacher votes according to the record."""

    name: str = "teachers"
    looks_for: str = "teachers whose parts overlap, or move when a record is added"
    noise: float = 0.7
    teachers: int = 6
    effort: float = 1.0

    def claimed(self) -> Claimable:
        return NoisyVotes(self.noise)

    def bound(self, confidence: float) -> TwoSampleBound:
        return GaussianTradeOff(DELTA, confidence)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        inputs = torch.zeros(12, 1)
        inputs = torch.cat([inputs, torch.ones(1, 1)]) if present else inputs
        records = Split(inputs, torch.zeros(len(inputs), dtype=torch.int64))
        randomness, ledger = Randomness.of(seed), Ledger()
        counts = ballots(
            records,
            torch.zeros(1, 1),
            2,
            teachers=self.teachers,
            teach=_told_by_the_record,
            source=randomness.sampling,
        )
        noisy = noisy_counts(counts, self.noise if noise is None else noise, ledger, randomness.noise)
        faults = () if len(ledger) == 1 else (f"one query was answered and {len(ledger)} are in the ledger",)
        return Seen({"noisy counts": noisy}, {}, ledger.event, faults=faults)


def _told_by_the_record(inputs: Tensor, labels: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    vote = int(inputs.max() > 0)
    return lambda queries: torch.full((len(queries),), vote)


add_stations(Teachers())
