"""Labels by noisy voting for the examples of any method: one ledger, one budget, and nothing but released values."""

import pytest
import torch

from privet.data import Split
from privet.errors import InputError, PrivetError
from privet.methods import Context, voting
from privet.methods.class_moments import Moments
from privet.methods.pate import VotedLabels, usual_teachers
from privet.methods.synthetic import Order
from privet.noise import GaussianNoise
from privet.privacy import Ledger, NoisyTopCount, NoisyVotes, Proved, Relation

from .test_private_gans import METHODS, stripes
from .test_voting import blobs

SHAPED = {"teachers": 20, "queries": 15}


def blocks(count=3000):
    """Three classes, each with a coordinate of its own that is large, in [0, 1]."""
    found = blobs(count)
    return Split((found.inputs / 10 + 0.3).clamp(0, 1), found.labels)


def order_of(classes=2, size=40, epsilon=3.0, seed=0, records=300):
    return Order(classes, size, epsilon, 1e-5, labels="votes", seed=seed, records=records)


def synthesize(method, records=None, order=None):
    ledger = Ledger(relation=method.relation)
    return method.synthesize(records or stripes(), order or order_of(), Context(ledger)), ledger


@pytest.mark.parametrize("name", ["components", "fixed", "dpgan"])
def test_inputs_and_votes_spend_one_budget_together(name):
    made, ledger = synthesize(VotedLabels(METHODS[name], **SHAPED))
    spent = ledger.spent(1e-5)
    assert 2.97 < spent.epsilon <= 3.0 and spent.guarantee == Proved()
    assert spent.relation is (Relation.REPLACE_ONE if name == "fixed" else Relation.ADD_REMOVE)
    *before, (votes, _) = ledger
    assert before and isinstance(votes.event, NoisyVotes) and votes.count == 15
    assert made.labels.shape == (40,) and "15 of 40 examples asked, all answered" in made.settings["Labels"]


def test_the_votes_get_their_share():
    """Of Gaussian releases the squared inverses of the noise add up: the two parts are as asked for."""
    method = VotedLabels(Moments(components=4, bound=2.0, spread=1.0, generator_share=1.0), votes_share=0.2, **SHAPED)
    _, ledger = synthesize(method, blocks(600), order_of(3))
    *before, (votes, _) = ledger
    inputs = sum(1 / event.noise_multiplier**2 for event, _ in before)
    asked = 2 * votes.count / votes.event.noise_multiplier**2
    assert asked / (asked + inputs) == pytest.approx(0.2, abs=0.01)


def test_the_labels_of_well_separated_classes_come_back():
    method = VotedLabels(Moments(components=5, bound=1.5, spread=0.3, generator_share=1.0), teachers=30)
    made, _ = synthesize(method, blocks(), order_of(3, 300, 8.0))
    assert (made.labels == made.inputs[:, :3].argmax(1)).float().mean() > 0.9


def test_records_are_used_through_released_values_alone(monkeypatch):
    """Run on other records, with the noisy values of the first run in place of its own: the same examples, bit for bit."""
    released, add, counted = [], GaussianNoise.add, voting.noisy_counts

    def kept(value):
        released.append(value)
        return value

    method = VotedLabels(Moments(components=20, bound=6.0, spread=4.0, generator_share=1.0), **SHAPED)
    monkeypatch.setattr(GaussianNoise, "add", lambda self, bounded, source: dict(kept(add(self, bounded, source))))
    monkeypatch.setattr(voting, "noisy_counts", lambda *given: kept(counted(*given)))
    first, _ = synthesize(method)
    replayed = iter(released)
    monkeypatch.setattr(GaussianNoise, "add", lambda self, bounded, source: dict(next(replayed)))
    monkeypatch.setattr(voting, "noisy_counts", lambda *given: next(replayed))
    others = stripes(seed=1)
    second, _ = synthesize(method, Split(1 - others.inputs, 1 - others.labels))
    assert next(replayed, None) is None
    assert torch.equal(first.inputs, second.inputs) and torch.equal(first.labels, second.labels)


def test_the_noise_of_the_votes_is_not_that_of_the_inputs(monkeypatch):
    """A seed draws it from streams of its own."""
    drawn = []
    fill = voting.fill_normal
    monkeypatch.setattr(
        voting, "fill_normal", lambda tensor, source: drawn.append(source.initial_seed()) or fill(tensor, source)
    )
    monkeypatch.setattr(
        GaussianNoise,
        "add",
        lambda self, bounded, source, add=GaussianNoise.add: (
            drawn.append(source.initial_seed()) or add(self, bounded, source)
        ),
    )
    synthesize(VotedLabels(Moments(components=20, bound=6.0, spread=4.0, generator_share=1.0), **SHAPED))
    assert len(set(drawn)) == 2 and drawn.count(drawn[-1]) == 1


def test_confident_voting_answers_what_is_sure():
    method = VotedLabels(
        Moments(components=4, bound=2.0, spread=1.0, generator_share=1.0),
        teachers=30,
        queries=20,
        threshold=20,
        threshold_noise=40,
    )
    made, ledger = synthesize(method, blocks(), order_of(3, epsilon=20.0))
    *_, (checks, _), (votes, _) = ledger
    assert isinstance(checks.event, NoisyTopCount) and checks.count == 20
    assert 0 < votes.count < 20 and f"{votes.count} answered, with 20 votes" in made.settings["Labels"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"votes_share": 1.0}, "between 0 and 1"),
        ({"threshold": 5.0}, "both a threshold"),
        ({"queries": 41}, "41 queries cannot be asked of 40 examples"),
        ({"teachers": 301}, "fewer records than 301 teachers"),
        ({"teachers": 1}, "at least two teachers"),
    ],
)
def test_what_cannot_be_voted_on_is_refused_by_name(change, words):
    with pytest.raises((InputError, PrivetError), match=words):
        synthesize(VotedLabels(**({"method": METHODS["components"]} | SHAPED | change)))


def test_the_settings_follow_from_the_records_and_the_budget():
    order = order_of(10, records=60_000)
    assert usual_teachers(order.records, order.epsilon) == 250
    assert Moments.fitting((1, 28, 28), order).generator_share == 1.0  # the votes are its teacher
