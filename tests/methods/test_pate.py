"""PATE from private records to a student, which sees public records and released labels alone."""

import pytest
import torch
from torch import nn

from privet.errors import InputError, PrivetError
from privet.methods import Context, pate
from privet.methods.voting import Voting
from privet.privacy import Budget, Ledger, NoisyVotes, Proved, PublicRecords

from .test_voting import blobs


def trained(records=None, seed=0, **change):
    torch.manual_seed(0)
    public = blobs(200, 1)
    given = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "named": "made up",
        "student": pate.StudentTraining(steps=200, learning_rate=0.01),
    }
    model = nn.Linear(5, 3)
    done = pate.train(model, records or blobs(3000), public.inputs, 3, seed=seed, **(given | change))
    return done, model


def test_a_student_learns_within_the_budget():
    done, model = trained()
    test = blobs(500, 9)
    assert (model(test.inputs).argmax(1) == test.labels).float().mean() > 0.9
    spent = done.ledger.spent(1e-5)
    assert 3.9 < spent.epsilon <= 4.0
    assert spent.guarantee == Proved()
    (public, _), (votes, _) = done.ledger
    assert public == PublicRecords(200, "made up")
    assert votes == NoisyVotes(done.answers.noise) * len(done.answers.labels)
    assert done.answers.internal.epsilon <= done.ledger.spent(1e-5, "rdp").epsilon * 1.001


def test_the_student_is_a_function_of_the_released_labels():
    """Other records that give the same answers give the same student."""

    def teach(inputs, labels, classes):
        return lambda queries: queries[:, :3].argmax(1)

    one, model = trained(blobs(3000), teach=teach, voting=Voting(60, queries=40))
    again, other = trained(blobs(2500, 4), teach=teach, voting=Voting(60, queries=40))
    assert torch.equal(one.answers.labels, again.answers.labels)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_noise_of_a_fifth_of_the_teachers_says_how_many_queries():
    budget = Budget(4.0, 1e-5)
    count = pate.usual_queries(100, budget, 10**6)
    assert budget.least(lambda sigma: NoisyVotes(sigma) * count) <= 20.01
    assert budget.least(lambda sigma: NoisyVotes(sigma) * (count + 5)) > 19.99
    assert pate.usual_queries(100, budget, 7) == 7


def test_classes_that_no_answer_names_are_told():
    done, _ = trained(blobs(3000, classes=2), epsilon=50.0)
    assert done.never == (2,)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"voting": Voting(60, queries=201)}, InputError, "201 queries cannot be asked of 200 public records"),
        ({"voting": Voting(5000)}, InputError, "fewer records than 5,000 teachers"),
        ({"voting": Voting(60, queries=1)}, PrivetError, "name the same class"),
        ({"epsilon": 0.0}, InputError, "epsilon of a budget must be a positive number"),
    ],
)
def test_refusals(change, error, message):
    with pytest.raises(error, match=message):
        trained(**change)


def test_without_public_records_there_is_no_pate():
    with pytest.raises(InputError, match="needs public records"):
        pate.train(nn.Linear(5, 3), blobs(100), torch.zeros(0, 5), 3, epsilon=1, delta=1e-5, named="nothing")


def test_a_ledger_that_is_spent_is_refused():
    ledger = Ledger()
    ledger.record(NoisyVotes(0.1))
    with pytest.raises(InputError, match="spent already"):
        trained(context=Context(ledger))


def test_arguments_of_version_0_1_are_parts_of_others_now():
    ledger, called = Ledger(), []
    with pytest.warns(DeprecationWarning, match=r"write train\((context|voting)=...\) instead"):
        done, _ = trained(ledger=ledger, on_step=called.append, queries=40)
    assert done.ledger is ledger and len(ledger) == 2 and called
    assert done.answers.asked == 40
