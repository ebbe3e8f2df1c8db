"""The threshold attacks, and every membership attack on classifiers of every kind, with known leakage."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.tree import DecisionTreeClassifier
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet
from privet.attacks import Fitting, LossThreshold, Roc, membership
from privet.errors import InputError
from tests.attacks.overfitted import FIT, blobs, network, seeded


def labelled(n: int, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(classes, (n,), generator=generator)


def test_a_model_that_shifts_the_margin_of_members_is_caught_as_the_closed_form_says():
    # Two classes with logits (m, 0) and label 0: the loss falls in m, so the AUC is that of the margins.
    generator = np.random.default_rng(6)
    margins = [torch.tensor(generator.normal(shift, 1, 20_000))[:, None] for shift in (0.5, 0.0)]
    zeros = torch.zeros(20_000, dtype=torch.int64)

    def model(margin: torch.Tensor) -> torch.Tensor:
        return torch.cat([margin, torch.zeros_like(margin)], dim=1)

    roc = LossThreshold()(model, (margins[0], zeros), (margins[1], zeros))
    assert roc.auc == pytest.approx(stats.norm.cdf(0.5 / np.sqrt(2)), abs=4 * roc.auc_standard_error)


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


def test_no_attack_finds_anything_where_nothing_is():
    # The target was trained on neither side: its members are members of nothing. False alarms: 0.1 % each.
    x, y = blobs(360, 3)
    members, others, rest = ((x[i : i + 120], y[i : i + 120]) for i in (0, 120, 240))
    target = FIT(blobs(120, 4), seeded())
    learns = {"train": FIT, "population": rest}
    few = {**learns, "shadows": 4}
    needs = {"loss": {}, "confidence": {}, "shadow": learns, "lira": few, "rmia": few}
    for attack, settings in needs.items():
        roc = membership(target, members, others, attack=attack, **settings)
        assert 0.5 in roc.auc_interval(0.999), attack


@pytest.mark.parametrize("kind", ["module", "estimator", "callable"])
def test_any_classifier_can_be_attacked(kind):
    x, y = blobs(120, 5)
    members, others = (x[:60], y[:60]), (x[60:], y[60:])
    if kind == "estimator":
        model = DecisionTreeClassifier(random_state=0).fit(members[0].numpy(), members[1].numpy())
        members, others = ((a.numpy(), b.numpy()) for a, b in (members, others))
        trees = lambda records, g: DecisionTreeClassifier(max_depth=4).fit(records[0].numpy(), records[1].numpy())  # noqa: E731
        assert isinstance(membership(model, members, others, attack="lira", train=trees, shadows=4), Roc)
        settings = {"train": trees, "shadows": 2, "population": others}
        assert isinstance(membership(model, members, others, attack="rmia", **settings), Roc)
    else:
        model = FIT(members, seeded())
        if kind == "callable":
            trained, model = model, lambda batch: trained(batch).softmax(1)
    outputs = "probabilities" if kind == "callable" else "logits"
    assert membership(model, members, others, outputs=outputs).auc > 0.7


@pytest.mark.parametrize("attack", ["shadow", "lira", "rmia"])
def test_probabilities_of_the_target_and_logits_of_the_shadows_go_together(attack):
    x, y = blobs(240, 6)
    members, others, rest = ((x[i : i + 80], y[i : i + 80]) for i in (0, 80, 160))
    target = FIT(members, seeded())
    settings = {"attack": attack, "train": FIT, "population": rest, **({} if attack == "shadow" else {"shadows": 4})}
    logits = membership(target, members, others, **settings)
    answers = membership(lambda batch: target(batch).softmax(1), members, others, outputs="probabilities", **settings)
    assert answers.auc == pytest.approx(logits.auc, abs=0.01)


class TinyResidual(nn.Module):
    """One residual block with group normalisation on 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.block = nn.Sequential(
            nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU()
        )
        self.last = nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x + self.block(x)
        return self.last(F.avg_pool2d(x, 2).flatten(1))


def test_an_overfitted_resnet_leaks_and_its_private_twin_does_not():
    # Labels are noisy (half are random), so that only memory fits the training records.
    x, y = privet.data.load("digits").train.tensors
    chosen = torch.randperm(len(x), generator=seeded(1))[:400]
    x, y = x[chosen], y[chosen]
    y = torch.where(torch.rand(400, generator=seeded(2)) < 0.5, torch.randint(10, (400,), generator=seeded(3)), y)
    members, others = (x[:200], y[:200]), (x[200:], y[200:])
    overfitted = Fitting(TinyResidual, epochs=40, batch_size=40, learning_rate=0.01)(members, seeded())
    assert membership(overfitted, members, others).auc > 0.7
    torch.manual_seed(0)
    model = TinyResidual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    private = privet.make_private(
        model,
        optimizer,
        TensorDataset(*members),
        batch_size=40,
        steps=25,
        epsilon=2.0,
        delta=1e-4,
        max_grad_norm=1.0,
        seed=0,
    )
    for a, b in private.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
    twin = membership(model, members, others)
    assert 0.5 in twin.auc_interval(0.999)
    assert twin.auc < 0.6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attack": "guess"}, "no attack 'guess'"),
        ({"attack": "lira"}, "give train"),
        ({"attack": "shadow", "train": FIT}, "give population"),
        ({"attack": "lira", "train": FIT, "shadows": 5}, "even number"),
        ({"attack": "rmia", "train": FIT}, "The rmia attack compares with other records: give population"),
        ({"train": FIT}, "The loss attack does not use train"),
        ({"attack": "confidence", "shadows": 4}, "The confidence attack does not use shadows"),
        ({"attack": "shadow", "train": FIT, "shadows": 4}, "The shadow attack does not use shadows"),
    ],
)
def test_what_an_attack_needs_is_named(settings, message):
    records = blobs(8, 0)
    with pytest.raises(InputError, match=message):
        membership(network(), records, records, **settings)
