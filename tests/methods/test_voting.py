"""Votes of teachers: who saw what, how far one record reaches, what is released and what it costs."""

import math
from functools import cache
from itertools import chain, product

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.nn.functional import one_hot

from privet import audit
from privet.audit.bounds import GaussianTradeOff
from privet.data import Split
from privet.errors import InputError, PrivetError
from privet.methods import Context
from privet.methods.voting import (
    Confidence,
    KernelTeacher,
    PublicView,
    Voting,
    answer,
    ballots,
    label_by_votes,
    noisy_counts,
    noisy_top_counts,
    parts,
)
from privet.privacy import Budget, Ledger, NoisyTopCount, NoisyVotes, Proved, Relation
from privet.privacy.accountants.rdp import gdp_epsilon
from privet.randomness import Randomness, SecureSource


class Watched(Split):
    """A split that remembers which records were read together."""

    def batch(self, indices):
        self.__dict__.setdefault("read", []).append(torch.as_tensor(indices).tolist())
        return super().batch(indices)


def blobs(count, seed=0, classes=3):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    return Split(3 * one_hot(labels, 5).float() + torch.randn(count, 5, generator=generator), labels)


def answered(counts, confidence, budget, ledger, seed=0):
    noise = torch.Generator().manual_seed(seed)
    return answer(
        lambda: counts,
        len(counts),
        confidence,
        budget=budget,
        context=Context(ledger),
        randomness=Randomness(noise, noise, seed),
    )


def first_label(inputs, labels, classes):
    """A teacher that says the label of its first record, whatever it is asked."""
    return lambda queries: labels[:1].expand(len(queries))


@pytest.mark.parametrize("source", [torch.Generator().manual_seed(3), SecureSource()], ids=["seeded", "secure"])
def test_parts_are_disjoint_and_hold_every_record(source):
    found = list(parts(1000, 37, source))
    assert len(found) == 37
    assert sorted(torch.cat(found).tolist()) == list(range(1000))


def test_each_record_is_read_by_one_teacher_and_only_then():
    records = Watched(*vars(blobs(300)).values())
    label_by_votes(
        records,
        blobs(20, 1).inputs,
        3,
        budget=Budget(3, 1e-5),
        context=Context(Ledger()),
        randomness=Randomness.of(0),
        voting=Voting(12),
    )
    assert len(records.read) == 12
    assert sorted(chain.from_iterable(records.read)) == list(range(300))


def test_a_replaced_record_reaches_one_teacher_alone():
    records, queries = blobs(300), blobs(50, 1).inputs
    view = PublicView.of(queries)

    def votes(inputs):
        seen = []

        def teach(x, y, classes):
            learnt = KernelTeacher(view)(x, y, classes)
            seen.append(learnt(view(queries)))
            return lambda asked: seen[-1]

        source = torch.Generator().manual_seed(0)
        counts = ballots(Split(inputs, records.labels), queries, 3, teachers=10, teach=teach, source=source)
        return torch.stack(seen), counts

    other = records.inputs.clone()
    other[17] = float("nan")
    (before, counts), (after, changed) = votes(records.inputs), votes(other)
    assert int((before != after).any(1).sum()) <= 1
    assert int((counts - changed).abs().sum(1).max()) <= 2
    other[17] = torch.tensor([1e30, -1e30, float("inf"), 0, 0])
    assert int((before != votes(other)[0]).any(1).sum()) <= 1


def test_the_sensitivities_by_enumeration():
    """Every vote of four teachers for three classes, and every neighbour: what the two events state, and it is reached."""
    counts = {votes: np.bincount(votes, minlength=3) for votes in product(range(3), repeat=4)}
    l2, top = 0.0, 0.0
    for votes, count in counts.items():
        for teacher, vote in product(range(4), range(3)):
            neighbour = counts[(*votes[:teacher], vote, *votes[teacher + 1 :])]
            l2 = max(l2, float(np.linalg.norm(count - neighbour)))
            top = max(top, abs(int(count.max()) - int(neighbour.max())))
    assert (l2, top) == (pytest.approx(math.sqrt(2)), 1)
    for relation in Relation:
        for event, mu in (
            (NoisyVotes(5.0) * 3, l2 * math.sqrt(3) / 5),
            (NoisyTopCount(5.0) * 3, top * math.sqrt(3) / 5),
        ):
            spent = Ledger(relation=relation)
            spent.record(event)
            assert spent.spent(1e-5).epsilon == pytest.approx(gdp_epsilon(mu, 1e-5), rel=2e-3)


def winner_probabilities(counts, noise):
    """By numerical integration: class i has noisy count x and all others less."""

    def density(x, i):
        others = [stats.norm.cdf((x - c) / noise) for j, c in enumerate(counts) if j != i]
        return stats.norm.pdf((x - counts[i]) / noise) / noise * math.prod(others)

    low, high = min(counts) - 9 * noise, max(counts) + 9 * noise
    return [integrate.quad(density, low, high, args=(i,), limit=200)[0] for i in range(len(counts))]


@pytest.mark.parametrize("source", [torch.Generator().manual_seed(5), SecureSource()], ids=["seeded", "secure"])
def test_the_winner_wins_as_often_as_the_integral_says(source):
    """Chi-square; a false alarm in one of a million runs."""
    counts, noise, draws = [20, 14, 9, 7], 6.0, 40_000
    votes = torch.tensor(counts).expand(draws, 4)
    winners = noisy_counts(votes, noise, Ledger(), source).argmax(1)
    expected = np.array(winner_probabilities(counts, noise))
    assert expected.sum() == pytest.approx(1, abs=1e-8)
    found = winners.bincount(minlength=4).numpy()
    assert stats.chisquare(found, draws * expected / expected.sum()).pvalue > 1e-6


def test_confident_voting_answers_where_the_noisy_count_reaches_the_threshold():
    counts = torch.tensor([[90, 10]] * 3000 + [[55, 45]] * 3000)
    ledger = Ledger()
    found = answered(counts, Confidence(70.0, 10.0), Budget(99, 1e-5), ledger)
    sure = (found.queries < 3000).sum().item() / 3000
    unsure = (found.queries >= 3000).sum().item() / 3000
    assert sure == pytest.approx(stats.norm.cdf(2), abs=0.02)
    assert unsure == pytest.approx(stats.norm.cdf(-1.5), abs=0.03)
    (check, _), (vote, _) = ledger
    assert check == NoisyTopCount(10.0) * 6000
    assert vote == NoisyVotes(found.noise) * len(found.labels)


@pytest.mark.parametrize("confidence", [None, Confidence(30.0, 40.0)], ids=["plain", "confident"])
@pytest.mark.parametrize("relation", list(Relation))
def test_all_of_the_budget_and_no_more_is_spent_whatever_is_answered(confidence, relation):
    for counts in (torch.tensor([[40, 3, 7]] * 60), torch.tensor([[18, 17, 15]] * 60)):
        ledger = Ledger(relation=relation)
        answered(counts, confidence, Budget(2.0, 1e-5, relation), ledger, seed=1)
        spent = ledger.spent(1e-5)
        assert 2.0 * 0.998 < spent.epsilon <= 2.0
        assert spent.guarantee == Proved()


def test_votes_are_recorded_before_their_noise_is_drawn():
    class Closed(Ledger):
        def record(self, event, count=1):
            raise PrivetError("closed")

    source = torch.Generator().manual_seed(0)
    before = source.get_state()
    for release in (noisy_counts, noisy_top_counts):
        with pytest.raises(PrivetError, match="closed"):
            release(torch.ones(2, 3), 1.0, Closed(), source)
    assert torch.equal(source.get_state(), before)


def test_synthetic_examples_are_labelled_within_what_is_left():
    records, examples = blobs(1200), blobs(40, 2)
    ledger = Ledger()
    ledger.record(NoisyVotes(3.0))
    found = label_by_votes(
        records,
        examples.inputs,
        3,
        budget=Budget(8.0, 1e-5),
        context=Context(ledger),
        randomness=Randomness.of(0),
        voting=Voting(60),
    )
    assert ledger.spent(1e-5).epsilon <= 8.0
    assert (found.labels == examples.labels[found.queries]).float().mean() > 0.9


def one_vote(noise_scale=1.0, copies=1):
    """Noisy counts from teachers that say their first label; the mechanism of the library unless it is broken here."""

    @cache
    def counted(labels):
        records, source = Split(torch.zeros(len(labels), 1), torch.tensor(labels)), torch.Generator().manual_seed(0)
        return ballots(records, torch.zeros(1, 1), 2, teachers=4, teach=first_label, source=source)

    def fn(labels, generator):
        return noisy_counts(copies * counted(labels), 2.0 * noise_scale, Ledger(), generator)[0]

    return fn


def audited(fn):
    """The record's label is the one thing that differs, and it is its teacher's vote."""
    first = {int(part[0]) for part in parts(8, 4, torch.Generator().manual_seed(0)) if len(part)}
    neighbour = (0,) * 8
    data = tuple(int(place == min(first)) for place in range(8))
    return audit.mechanism(
        fn,
        data,
        neighbour,
        claimed=NoisyVotes(2.0),
        delta=1e-5,
        score=lambda counts: float(counts[1] - counts[0]),
        draws=8000,
        bound=GaussianTradeOff(1e-5, 0.99),
        relation=Relation.REPLACE_ONE,
    )


def test_the_audit_of_a_vote_comes_near_its_claim_and_not_above_it():
    found = audited(one_vote())
    assert not found.refuted
    assert found.lower_bound > 0.7 * found.claimed_epsilon


@pytest.mark.parametrize("broken", [one_vote(1 / math.sqrt(2)), one_vote(copies=4)], ids=["noise", "four votes"])
def test_the_audit_catches_noise_for_sensitivity_one_and_a_record_with_several_votes(broken):
    assert audited(broken).refuted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"voting": Voting(500)}, "fewer records than 500 teachers"),
        ({"voting": Voting(1)}, "at least two teachers"),
        ({"classes": 1}, "there is only one"),
        ({"queries": torch.zeros(0, 5)}, "nothing to label"),
        ({"queries": torch.zeros(9, 5)}, "All public records are equal"),
    ],
)
def test_what_cannot_be_voted_on_is_refused_by_name(change, message):
    given = {"records": blobs(300), "queries": blobs(9, 1).inputs, "classes": 3, "voting": Voting(10)} | change
    ledger = Ledger()
    with pytest.raises(InputError, match=message):
        label_by_votes(**given, budget=Budget(1, 1e-5), context=Context(ledger), randomness=Randomness.of(0))
    assert len(ledger) == 0


def test_a_teacher_without_records_or_without_a_class_is_no_reason_to_refuse():
    """A refusal that depends on the records would tell about them."""
    records = blobs(12, classes=2)
    counts = ballots(
        records, torch.zeros(2, 5), 3, teachers=12, teach=first_label, source=torch.Generator().manual_seed(0)
    )
    assert counts.sum(1).tolist() == [12, 12]


def test_a_teacher_that_says_no_class_is_stopped():
    with pytest.raises(PrivetError, match="from 0 to 2"):
        ballots(
            blobs(30),
            torch.zeros(2, 5),
            3,
            teachers=3,
            teach=lambda x, y, classes: lambda queries: torch.tensor([0, 3]),
            source=torch.Generator().manual_seed(0),
        )


def test_nobody_sure_enough_is_an_error_that_says_what_to_do():
    ledger = Ledger()
    with pytest.raises(PrivetError, match="lower the threshold"):
        answered(torch.tensor([[5, 5]]), Confidence(1000.0, 10.0), Budget(1, 1e-5), ledger)
    assert len(ledger) == 1, "that nobody was sure is a release"


def test_checks_that_cost_more_than_the_budget_are_refused_before_they_are_made():
    ledger = Ledger()
    with pytest.raises(InputError, match="Count with more noise, or ask fewer queries"):
        answered(torch.tensor([[5, 5]] * 100), Confidence(7.0, 1.0), Budget(1, 1e-5), ledger)
    assert len(ledger) == 0
