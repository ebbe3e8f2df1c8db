"""Class scores of any classifier, the scores of the threshold attacks, and shadow models."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from privet.attacks import Fitting, LossThreshold, fresh, membership, membership_scores
from privet.attacks.classifiers import halves
from privet.errors import InputError, PrivetError
from tests.attacks.overfitted import CLASSES, blobs, network, seeded


def labelled(n: int, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(classes, (n,), generator=generator)


def test_scores_are_the_log_odds_of_the_cross_entropy_record_by_record():
    x, y = labelled(7)
    model = nn.Linear(5, 3)
    losses = [nn.functional.cross_entropy(model(a[None]), b[None]).item() for a, b in zip(x, y, strict=True)]
    oracle = [-loss - np.log(-np.expm1(-loss)) for loss in losses]
    np.testing.assert_allclose(membership_scores(model, x, y, batch_size=2), oracle, rtol=1e-4)


def test_probabilities_and_logits_score_alike():
    x, y = labelled(6)
    model = nn.Linear(5, 3)
    probabilities = membership_scores(lambda a: model(a).softmax(1), x, y, outputs="probabilities")
    np.testing.assert_allclose(probabilities, membership_scores(model, x, y), rtol=1e-4)


def test_the_confidence_signal_does_not_look_at_the_labels():
    x, y = labelled(6)
    model = nn.Linear(5, 3)
    one, other = (membership_scores(model, x, labels, signal="confidence") for labels in (y, (y + 1) % 3))
    np.testing.assert_array_equal(one, other)


def test_well_fitted_records_keep_their_order_where_the_loss_rounds_to_zero():
    logits = torch.tensor([[40.0, 0.0], [50.0, 0.0]])  # both losses round to zero
    scores = membership_scores(lambda x: x, logits, torch.zeros(2, dtype=torch.int64))
    assert scores[0] < scores[1]


def test_every_module_is_left_in_the_mode_it_was_in():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    model[1].eval()
    x, y = labelled(8)
    first, second = (membership_scores(model, x, y) for _ in range(2))
    np.testing.assert_array_equal(first, second)  # dropout was off
    assert [module.training for module in model] == [True, False, True, True]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, y: membership_scores(nn.Linear(5, 3), x, y[:2]), InputError, "4 inputs and 2 labels"),
        (lambda x, y: membership_scores(nn.Linear(5, 3), x[:0], y[:0]), InputError, "at least one record"),
        (lambda x, y: membership_scores(nn.Linear(5, 3), x, y + 5), InputError, "from 0 to 2"),
        (lambda x, y: membership_scores(lambda a: a[:, 0], x, y), InputError, "two or more class scores"),
        (
            lambda x, y: LossThreshold()(lambda a: a[:, :3] * float("nan"), (x, y), (x, y)),
            PrivetError,
            "not a number",
        ),
    ],
)
def test_what_cannot_be_attacked_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(*labelled(4))


def test_labels_of_an_estimator_are_numbered_from_zero():
    x, y = blobs(30, 0)
    model = LogisticRegression().fit(x.numpy(), y.numpy() + 1)
    with pytest.raises(InputError, match="numbered from 0"):
        membership(model, (x, y), (x, y))


# --- shadow models -------------------------------------------------------------------------------------------------------


def test_models_trained_in_one_pass_are_those_trained_one_by_one():
    x, y = blobs(60, 0)
    rows = torch.stack([torch.randperm(60, generator=seeded(k))[:30] for k in range(3)])
    short = Fitting(network, epochs=3, batch_size=10, learning_rate=0.01)
    together = short.many(x, y, rows, seeded(1))
    assert together.how == "one vectorized pass"
    again = seeded(1)
    models = [short._built(again) for _ in rows]
    alone = short._one_by_one(models, x, y, short._batches(rows, again))
    for one, other in zip(together.models, alone, strict=True):
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-3)
    assert together.class_scores(x).shape == (3, 60, CLASSES)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)), "statistics"),
        (lambda: Branching(), "one by one"),
    ],
)
def test_models_that_cannot_be_vectorized_are_trained_one_by_one(build, why):
    x, y = blobs(40, 0)
    made = Fitting(build, epochs=1, batch_size=10).many(x, y, torch.arange(40).view(2, 20), seeded())
    assert made.how.startswith("one by one")
    assert why in made.how
    assert not made.models[0].training


class Branching(nn.Module):
    """Its control flow depends on data, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if float(x.sum()) > 0 else self.layer(-x)


def test_a_model_is_initialized_again():
    model = network()
    again = fresh(model)
    assert not torch.equal(model[0].weight, again[0].weight)
    bare = nn.ParameterList([nn.Parameter(torch.zeros(2))])
    with pytest.raises(InputError, match="cannot be initialized again"):
        fresh(bare)


@pytest.mark.parametrize(("records", "models"), [(10, 4), (11, 4), (10, 1), (10, 3)])
def test_each_record_is_in_half_of_the_models(records, models):
    rows = halves(records, models, seeded())
    assert rows.shape == (models, records // 2)
    assert all(len(set(row.tolist())) == records // 2 for row in rows)
    inside = torch.zeros(models, records).scatter_(1, rows, 1).sum(0)
    if models % 2 == 0:
        assert inside.max() == models // 2
        assert int((inside < models // 2).sum()) <= models // 2 * (records % 2)
