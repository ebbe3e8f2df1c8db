"""Membership attacks with models of the attacker's own, on classifiers of every kind, with known leakage."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet
from privet.attacks import Fitting, Roc, ShadowAttack, fresh, lira, membership, quarters
from privet.attacks.lira import log_likelihood_ratio
from privet.attacks.shadow import features
from privet.errors import InputError

CLASSES = 3


def blobs(records: int, seed: int, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (records,), generator=generator)
    return torch.randn(records, 20, generator=generator) * spread + torch.eye(20)[labels], labels


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, CLASSES))


FIT = Fitting(network, epochs=30, batch_size=20, learning_rate=0.01)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- shadow models -------------------------------------------------------------------------------------------------------


def test_models_trained_in_one_pass_are_those_trained_one_by_one():
    x, y = blobs(60, 0)
    rows = torch.stack([torch.randperm(60, generator=generator(k))[:30] for k in range(3)])
    short = Fitting(network, epochs=3, batch_size=10, learning_rate=0.01)
    together = short.many(x, y, rows, generator(1))
    assert together.how == "one vectorised pass"
    again = generator(1)
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
def test_models_that_cannot_be_vectorised_are_trained_one_by_one(build, why):
    x, y = blobs(40, 0)
    made = Fitting(build, epochs=1, batch_size=10).many(x, y, torch.arange(40).view(2, 20), generator())
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


def test_a_model_starts_anew():
    model = network()
    again = fresh(model)
    assert not torch.equal(model[0].weight, again[0].weight)
    bare = nn.ParameterList([nn.Parameter(torch.zeros(2))])
    with pytest.raises(InputError, match="does not know how to start anew"):
        fresh(bare)


# --- the attacks ---------------------------------------------------------------------------------------------------------


def test_the_features_are_the_sorted_largest_probabilities():
    x, _ = blobs(5, 0)
    model = nn.Linear(20, 6)
    truth = model(x).softmax(1).sort(dim=1, descending=True).values[:, :3]
    torch.testing.assert_close(features(model, x), truth)
    assert features(nn.Linear(20, 2), x).shape == (5, 2)


def test_the_protocol_of_quarters_catches_an_overfitted_model_and_clears_an_untrained_one():
    x, y = blobs(400, 1)
    found = quarters(FIT, x, y, generator())
    assert len(found.target_in) == len(found.target_out) == 100
    assert not set(found.target_in.tolist()) & set(found.target_out.tolist())
    assert found.roc.auc > 0.75
    untrained = quarters(lambda records, g: FIT._built(g), x, y, generator())
    assert 0.5 in untrained.roc.auc_interval(0.999)


def test_lira_is_stronger_than_the_loss():
    x, y = blobs(200, 2)
    members, others = (x[:100], y[:100]), (x[100:], y[100:])
    target = FIT(members, generator(9))
    loss = membership(target, members, others)
    strongest = lira(target, members, others, FIT, generator(), shadows=16)
    assert strongest.how == "one vectorised pass"
    assert strongest.roc.auc > loss.auc
    assert strongest.roc.auc > 0.8


def test_the_likelihood_ratio_is_that_of_two_gaussians():
    rng = np.random.default_rng(0)
    fits = torch.from_numpy(rng.normal(size=(70, 4)))
    inside = torch.from_numpy(rng.random((70, 4)) < 0.5)
    target = torch.from_numpy(rng.normal(size=4))
    found = log_likelihood_ratio(target, fits, inside)
    for j in range(4):
        one, other = fits[inside[:, j], j].numpy(), fits[~inside[:, j], j].numpy()
        truth = stats.norm.logpdf(target[j], one.mean(), one.std(ddof=1)) - stats.norm.logpdf(
            target[j], other.mean(), other.std(ddof=1)
        )
        assert found[j] == pytest.approx(truth)


def test_no_attack_finds_anything_where_nothing_is():
    # The target was trained on neither side: its members are members of nothing. False alarms: 0.1 % each.
    x, y = blobs(360, 3)
    members, others, rest = ((x[i : i + 120], y[i : i + 120]) for i in (0, 120, 240))
    target = FIT(blobs(120, 4), generator())
    learns = {"train": FIT, "population": rest}
    needs = {"loss": {}, "confidence": {}, "shadow": learns, "lira": {**learns, "shadows": 4}}
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
    else:
        model = FIT(members, generator())
        if kind == "callable":
            trained, model = model, lambda batch: trained(batch).softmax(1)
    outputs = "probabilities" if kind == "callable" else "logits"
    assert membership(model, members, others, outputs=outputs).auc > 0.7


@pytest.mark.parametrize("attack", ["shadow", "lira"])
def test_probabilities_of_the_target_and_logits_of_the_shadows_go_together(attack):
    x, y = blobs(240, 6)
    members, others, rest = ((x[i : i + 80], y[i : i + 80]) for i in (0, 80, 160))
    target = FIT(members, generator())
    settings = {"attack": attack, "train": FIT, "population": rest, **({"shadows": 4} if attack == "lira" else {})}
    logits = membership(target, members, others, **settings)
    answers = membership(lambda batch: target(batch).softmax(1), members, others, outputs="probabilities", **settings)
    assert answers.auc == pytest.approx(logits.auc, abs=0.01)


def test_precision_and_recall_at_a_threshold():
    roc = Roc.of([3.0, 2.0, 0.0], [2.0, -1.0])
    assert (roc.at(2.0).precision, roc.at(2.0).recall) == (2 / 3, 2 / 3)
    assert roc.at(9.0).precision is None
    assert roc.at(9.0).recall == 0


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
    chosen = torch.randperm(len(x), generator=generator(1))[:400]
    x, y = x[chosen], y[chosen]
    y = torch.where(torch.rand(400, generator=generator(2)) < 0.5, torch.randint(10, (400,), generator=generator(3)), y)
    members, others = (x[:200], y[:200]), (x[200:], y[200:])
    overfitted = Fitting(TinyResidual, epochs=40, batch_size=40, learning_rate=0.01)(members, generator())
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
        ({"train": FIT}, "The loss attack does not use train"),
        ({"attack": "confidence", "shadows": 4}, "The confidence attack does not use shadows"),
        ({"attack": "shadow", "train": FIT, "shadows": 4}, "The shadow attack does not use shadows"),
    ],
)
def test_what_an_attack_needs_is_named(settings, message):
    records = blobs(8, 0)
    with pytest.raises(InputError, match=message):
        membership(network(), records, records, **settings)


def test_labels_of_an_estimator_are_numbered_from_zero():
    x, y = blobs(30, 0)
    model = LogisticRegression().fit(x.numpy(), y.numpy() + 1)
    with pytest.raises(InputError, match="numbered from 0"):
        membership(model, (x, y), (x, y))
    with pytest.raises(InputError, match="quartered"):
        quarters(FIT, x[:3], y[:3], generator())


def test_the_attack_network_is_the_paper_s():
    x, _ = blobs(20, 0)
    network_ = ShadowAttack(epochs=1).learn(network(), x[:10], x[10:], generator()).network
    assert [tuple(p.shape) for p in network_.parameters()] == [(64, 3), (64,), (2, 64), (2,)]
