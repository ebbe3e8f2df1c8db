"""The loss-threshold attack on classifiers whose leakage is known."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from privet.attacks import LossThreshold, membership_scores
from privet.errors import InputError, PrivetError


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


def test_a_model_that_shifts_the_margin_of_members_is_caught_as_the_closed_form_says():
    # Two classes with logits (m, 0) and label 0: the loss falls in m, so the AUC is that of the margins.
    generator = np.random.default_rng(6)
    margins = [torch.tensor(generator.normal(shift, 1, 20_000))[:, None] for shift in (0.5, 0.0)]
    zeros = torch.zeros(20_000, dtype=torch.int64)

    def model(margin: torch.Tensor) -> torch.Tensor:
        return torch.cat([margin, torch.zeros_like(margin)], dim=1)

    roc = LossThreshold()(model, (margins[0], zeros), (margins[1], zeros))
    assert roc.auc == pytest.approx(stats.norm.cdf(0.5 / np.sqrt(2)), abs=4 * roc.auc_standard_error)


def test_well_fitted_records_keep_their_order_where_the_loss_rounds_to_zero():
    logits = torch.tensor([[40.0, 0.0], [50.0, 0.0]])  # both losses round to zero
    scores = membership_scores(lambda x: x, logits, torch.zeros(2, dtype=torch.int64))
    assert scores[0] < scores[1]


def test_a_memorising_model_is_caught_and_an_untrained_one_is_not():
    x, y = labelled(40, seed=1)
    others = labelled(40, seed=2)
    table = {tuple(row.tolist()): int(label) for row, label in zip(x, y, strict=True)}

    def memory(batch: torch.Tensor) -> torch.Tensor:
        known = [table.get(tuple(row.tolist())) for row in batch]
        return torch.stack([torch.zeros(3) if k is None else 9 * torch.eye(3)[k] for k in known])

    assert LossThreshold()(memory, (x, y), others).auc == 1
    null = LossThreshold()(lambda batch: torch.zeros(len(batch), 3), (x, y), others)
    assert null.auc == 0.5


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
