"""Where a user is the unit, one user with any number of records moves a statistic by no more than one record would."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from privet.clipping.bounded import (
    BoundedSum,
    clipped_sum,
    grouped_count,
    grouped_second_moment,
    grouped_sum,
    normalized_second_moment,
)
from privet.data import Split, divide
from privet.data.dataset import Dataset
from privet.errors import InputError
from privet.methods import Context, dpsgd, optimized_noise, pate, residual_perturbation
from privet.methods.class_moments import Moments
from privet.methods.dpgan import Dpgan
from privet.methods.frozen_noise_layer_gan import FrozenNoiseLayerGan
from privet.methods.noise_layer_gan import PublishedNoiseLayerGan
from privet.methods.statistics import (
    private_components,
    private_counts,
    private_mean,
    private_second_moment,
    private_second_moments,
    private_sums,
)
from privet.methods.synthetic import Order
from privet.methods.voting import ballots, parts
from privet.privacy import Ledger
from privet.randomness import Randomness

STATISTICS: dict[str, Callable[[Tensor, Tensor, Tensor], BoundedSum]] = {
    "sum": lambda rows, groups, shares: clipped_sum(rows, 0.7, shares),
    "moment": lambda rows, groups, shares: normalized_second_moment(rows, shares),
    "moment of several rows": lambda rows, groups, shares: normalized_second_moment(rows.view(len(rows), 2, 2), shares),
    "counts": lambda rows, groups, shares: grouped_count(groups, 3, shares),
    "sums": lambda rows, groups, shares: grouped_sum(rows, groups, 3, 0.7, shares),
    "moments": lambda rows, groups, shares: grouped_second_moment(rows, groups, 3, 0.7, shares),
}


def some_split(owners: list[int], seed: int = 0, scale: float = 1.0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    rows = scale * torch.randn(len(owners), 4, generator=generator)
    return Split(rows, torch.randint(3, (len(owners),), generator=generator), torch.tensor(owners))


@pytest.mark.parametrize("name", STATISTICS)
@settings(max_examples=40, deadline=None)
@given(owners=st.lists(st.integers(0, 4), min_size=2, max_size=30), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_a_user_moves_a_statistic_by_at_most_its_sensitivity(name: str, owners: list[int], scale: float) -> None:
    split = some_split(owners, scale=scale)
    whole = STATISTICS[name](split.inputs, split.labels, split.shares)
    for user in set(owners):
        left = split.select((split.users != user).nonzero().flatten()) if len(set(owners)) > 1 else None
        if left is None:
            continue
        part = STATISTICS[name](left.inputs, left.labels, left.shares)
        moved = sum(float((whole.tensors[n] - part.tensors[n]).square().sum()) for n in whole.tensors) ** 0.5
        assert moved <= whole.sensitivity * (1 + 1e-5)


def test_a_user_with_equal_records_is_the_same_as_one_with_one() -> None:
    """Shares average: a thousand copies of a record say what the record says."""
    row = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
    many = Split(row.repeat(1000, 1), torch.zeros(1000, dtype=torch.int64), torch.zeros(1000, dtype=torch.int64))
    one = Split(row, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    for statistic in STATISTICS.values():
        a, b = (statistic(split.inputs, split.labels, split.shares) for split in (many, one))
        assert all(torch.allclose(a.tensors[name], b.tensors[name]) for name in a.tensors)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_ledger_is_charged_for_its_own_unit_only(unit: str) -> None:
    """Statistics of records do not go into a ledger of users, nor the other way round."""
    split = some_split([0, 0, 1, 2])
    other = Split(split.inputs, split.labels) if unit == "user" else split
    kept = {"ledger": Ledger(unit=unit), "randomness": Randomness.of(0), "noise_multiplier": 1.0}
    shares = {"shares": other.shares}
    calls: list[Callable[[], object]] = [
        lambda: private_mean(other, bound=1.0, public_size=3, **kept),
        lambda: private_second_moment(other, public_size=3, **kept),
        lambda: private_components(other, 2, **kept),
        lambda: private_counts(other.labels, 3, **kept, **shares),
        lambda: private_sums(other.inputs, other.labels, 3, bound=1.0, **kept, **shares),
        lambda: private_second_moments(other.inputs, other.labels, 3, bound=1.0, **kept, **shares),
        lambda: pate.train(
            nn.Linear(4, 3),
            other,
            torch.rand(9, 4),
            3,
            epsilon=1.0,
            delta=1e-3,
            named="x",
            context=Context(kept["ledger"]),
        ),
    ]
    for call in calls:
        with pytest.raises(InputError, match="counts what is done to a"):
            call()
    assert not [event for event, _ in kept["ledger"] if type(event).__name__ != "PublicRecords"]


def test_all_records_of_a_user_go_to_one_teacher() -> None:
    owners = torch.tensor([0, 1, 2, 0, 1, 3, 3, 3, 4, 0])
    for source in (Randomness.of(1).sampling, Randomness.of(None).sampling):
        found = list(parts(len(owners), 3, source, owners))
        assert sorted(torch.cat(found).tolist()) == list(range(10))
        for user in range(5):
            assert sum(bool((owners[part] == user).any()) for part in found) == 1


def test_one_user_changes_one_vote() -> None:
    split = some_split([i // 3 for i in range(60)], seed=2)
    queries = torch.randn(50, 4, generator=torch.Generator().manual_seed(9))

    def votes(records: Split) -> Tensor:
        def teach(inputs: Tensor, labels: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
            return lambda asked: labels[torch.cdist(asked, inputs).argmin(1)]

        return ballots(records, queries, 3, teachers=4, teach=teach, source=torch.Generator().manual_seed(5))

    whole = votes(split)
    for user in (0, 7, 19):
        other = split.inputs.clone()
        other[split.users == user] = 50.0  # the same users, one with other records
        moved = (votes(split.with_inputs(other)) - whole).abs().sum(1)
        assert int(moved.max()) <= 2  # a vote moves from one class to another


def test_a_division_keeps_users_together() -> None:
    split = some_split([i % 25 for i in range(200)])
    divided = divide(Dataset("x", ("a", "b", "c"), {"train": split}), "train", {"train": 0.7, "test": 0.3}, 0)
    one, other = (set(divided[name].users.tolist()) for name in ("train", "test"))
    assert one | other == set(range(25)) and not one & other


def test_training_takes_the_users_of_its_records() -> None:
    split, model = some_split([i // 3 for i in range(60)]), nn.Linear(4, 3)
    trained = dpsgd.train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        split,
        batch_size=5,
        steps=4,
        epsilon=3.0,
        delta=1e-3,
        max_grad_norm=1.0,
        seed=0,
    )
    assert trained.ledger.unit == "user" and trained.plan.records == 20


@pytest.mark.parametrize("method", [Moments(components=2, generator_share=1.0), Dpgan(lot=4, steps=3)])
def test_synthesis_by_users_is_charged_to_users(method: Moments | Dpgan) -> None:
    split = some_split([i // 3 for i in range(300)])
    ledger = Ledger(unit="user")
    order = Order(classes=3, size=20, epsilon=2.0, delta=1e-3, records=split.units, seed=0)
    made = method.synthesize(split.with_inputs(split.inputs.sigmoid()), order, Context(ledger))
    assert len(made.labels) == 20 and ledger.spent(1e-3).epsilon <= 2.0 and ledger.spent(1e-3).unit == "user"


@pytest.mark.parametrize("method", [PublishedNoiseLayerGan(), FrozenNoiseLayerGan()])
def test_synthesis_without_a_proof_for_users_is_refused(method: PublishedNoiseLayerGan | FrozenNoiseLayerGan) -> None:
    images = Split(torch.rand(8, 1, 28, 28), torch.zeros(8, dtype=torch.int64), torch.arange(8) // 2)
    order = Order(classes=2, size=4, epsilon=2.0, delta=1e-3, records=8, seed=0)
    with pytest.raises(InputError, match="protects records"):
        method.synthesize(images, order, Context(Ledger(unit="user")))


def test_training_without_a_proof_for_users_is_refused() -> None:
    split, model = some_split([i // 3 for i in range(60)]), nn.Linear(4, 3)
    with pytest.raises(InputError, match="protects records"):
        optimized_noise.train(model, torch.optim.SGD(model.parameters(), lr=0.1), split, as_published=True)
    with pytest.raises(InputError, match="protects records"):
        residual_perturbation.train(model, split, None, delta=1e-3)
