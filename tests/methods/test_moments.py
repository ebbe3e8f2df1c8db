"""One-shot moments: what is released, against loops; that nothing else of the records is used; what is refused by name."""

import math

import pytest
import torch

from privet.clipping.bounded import grouped_count, grouped_second_moment, grouped_sum, symmetric
from privet.data import Categorical, Numeric, Split, load
from privet.errors import InputError
from privet.methods import Context, class_moments, table_moments
from privet.methods.class_moments import Moments, MomentsNoise, release_gaussians, sheared, slant, upright
from privet.methods.synthetic import Order
from privet.methods.table_moments import TableMoments
from privet.privacy import Ledger
from privet.randomness import Randomness

GENERATOR = torch.Generator().manual_seed(0)
COLUMNS = (Numeric("age", 0, 100, whole=True), Categorical("work", ("a", "b", "c")), Numeric("pay", 0, 10))


def rows(count: int = 40, size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, size, generator=GENERATOR), torch.randint(4, (count,), generator=GENERATOR)


def clipped(row: torch.Tensor, bound: float) -> torch.Tensor:
    return row.double() * min(1.0, bound / float(row.double().norm()))


def test_sums_by_group_are_those_of_a_loop():
    x, groups = rows()
    bound = 1.2
    sums, counts, moments_ = torch.zeros(4, 3).double(), torch.zeros(4).double(), torch.zeros(4, 3, 3).double()
    for row, group in zip(x, groups.tolist(), strict=True):
        short = clipped(row, bound)
        sums[group] += short
        counts[group] += 1
        moments_[group] += torch.outer(short, short)
    assert torch.equal(grouped_count(groups, 4).tensors["sum"], counts)
    assert torch.allclose(grouped_sum(x, groups, 4, bound).tensors["sum"], sums, atol=1e-4)
    assert torch.allclose(symmetric(dict(grouped_second_moment(x, groups, 4, bound).tensors)), moments_, atol=1e-4)


@pytest.mark.parametrize("bad", [1e3, float("nan"), float("inf")])
def test_a_record_moves_every_sum_by_no_more_than_it_may(bad):
    x, groups = rows()
    x[0] = bad
    for make, bound in ((grouped_sum, 1.2), (grouped_second_moment, 1.2)):
        whole, without = make(x, groups, 4, bound), make(x[1:], groups[1:], 4, bound)
        moved = sum(float((whole.tensors[n] - without.tensors[n]).square().sum()) for n in whole.tensors)
        assert math.sqrt(moved) <= whole.sensitivity * (1 + 1e-6)
        assert whole.bad == (0 if math.isfinite(bad) else 1)


def test_the_noise_of_four_releases_costs_what_one_costs():
    noise = MomentsNoise.shared(2.0, 0.1, 0.2, 0.3, 0.4)
    parts = (noise.counts, noise.means, noise.directions, noise.covariances)
    assert sum(1 / part**2 for part in parts) == pytest.approx(1 / 2.0**2)


def test_gaussians_come_back_where_there_is_next_to_no_noise():
    mixing = torch.randn(6, 6, generator=GENERATOR) * 0.1
    labels = torch.randint(2, (20_000,), generator=GENERATOR)
    centres = torch.tensor([[1.0] * 6, [-1.0] * 6])
    x = centres[labels] + torch.randn(20_000, 6, generator=GENERATOR) @ mixing.mT
    found = release_gaussians(
        Split(x, labels),
        2,
        bound=10.0,
        spread=float((x - centres[labels]).norm(dim=1).mean()),
        most=6,
        pooling=0.0,
        noise=MomentsNoise(1e-3, 1e-3, 1e-3, 1e-3),
        ledger=Ledger(),
        randomness=Randomness.of(0),
    )
    drawn, classes = found.sample(20_000, torch.Generator().manual_seed(1))
    for label in (0, 1):
        some = drawn[classes == label]
        assert torch.allclose(some.mean(0), centres[label], atol=0.02)
        # Records far out are clipped to 1.1 of the typical length, which shrinks what is seen of the spread.
        ratio = some.T.cov().trace() / (mixing @ mixing.T).trace()
        assert 0.7 < ratio < 1.1


def test_a_slant_is_taken_out_and_put_back():
    images = torch.zeros(2, 1, 20, 20)
    images[:, :, 4:16, 9:11] = 1.0
    leaning = sheared(images, torch.tensor([-0.4, 0.0]))
    assert slant(leaning).tolist() == pytest.approx([0.4, 0.0], abs=0.05)
    straight, slants = upright(leaning)
    assert float(slant(straight).abs().max()) < 0.08
    assert float((sheared(straight, -slants) - leaning).abs().mean()) < 0.05
    assert slant(torch.zeros(1, 1, 8, 8)).tolist() == [0.0]


def image_order(**changes: object) -> Order:
    settings: dict = {"classes": 10, "size": 50, "epsilon": 3.0, "delta": 1e-5, "seed": 0} | changes
    return Order(**settings)


class Recorded:
    """Notes every use of the records, and gives released values that do not depend on them."""

    def __init__(self, monkeypatch, module, names):
        self.uses = []
        for name in names:
            monkeypatch.setattr(module, name, self._wrapped(name, getattr(module, name)))

    def _wrapped(self, name, original):
        def release(*arguments, **settings):
            self.uses.append(name)
            if not hasattr(self, name):
                setattr(self, name, original(*arguments, **settings))
            return getattr(self, name)

        return release


@pytest.mark.parametrize("seed", [0, 1])
def test_only_released_values_reach_the_examples(monkeypatch, seed):
    """With the released values held fixed, a neighbouring data set gives the same examples to the last bit."""
    digits = load("digits").train
    neighbour = digits.select(range(1, len(digits)))
    method = Moments(components=20, bound=3, spread=2, generator_share=1.0)
    order = image_order(seed=seed)
    names = ("private_counts", "private_sums", "private_second_moment", "private_second_moments")
    recorded = Recorded(monkeypatch, class_moments, names)
    first, second = (method.synthesize(part, order, Context(Ledger())) for part in (digits, neighbour))
    assert recorded.uses == [*names, *names]
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.labels, second.labels)


def test_a_neighbour_changes_the_ledger_in_nothing():
    digits = load("digits").train
    method = Moments(components=20, bound=3, spread=2, generator_share=1.0)
    ledgers = [Ledger(), Ledger()]
    for part, ledger in zip((digits, digits.select(range(1, len(digits)))), ledgers, strict=True):
        method.synthesize(part, image_order(), Context(ledger))
    assert ledgers[0].head == ledgers[1].head
    assert len(ledgers[0]) == 4


def test_a_teacher_spends_the_rest_of_the_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path))
    method = Moments(components=20, bound=3, spread=2, generator_share=0.5, teacher_steps=5)
    ledger = Ledger()
    made = method.synthesize(load("digits").train, image_order(), Context(ledger))
    assert 2.97 < ledger.spent(1e-5).epsilon <= 3.0
    assert made.soft.shape == (50, 10)
    assert torch.equal(made.soft.argmax(1), made.labels)
    assert made.soft.sum(1).tolist() == pytest.approx([1.0] * 50, abs=1e-5)


def test_counts_are_released_with_noise():
    """An exact count tells whether a record was added or removed, whatever is known of its label."""
    ledger = Ledger()
    method = Moments(components=20, bound=3, spread=2, generator_share=1.0)
    method.synthesize(load("digits").train, image_order(), Context(ledger))
    assert len(ledger) == 4
    with pytest.raises(InputError, match="not 'public'"):
        image_order(labels="public")  # it changed nothing


@pytest.mark.parametrize(
    ("changes", "records", "words"),
    [({"classes": 1}, 200, "only one class"), ({}, 15, "fewer records than 20 components need")],
)
def test_what_moments_cannot_describe_is_refused_by_name(changes, records, words):
    part = load("digits").train.select(range(records))
    with pytest.raises(InputError, match=words):
        Moments(components=20).synthesize(part, image_order(**changes), Context(Ledger()))


def table(count: int = 6000) -> Split:
    """Age rises with the class, work is rare, pay goes with age, and one category is never there."""
    labels = torch.randint(2, (count,), generator=GENERATOR)
    age = (0.3 + 0.3 * labels + 0.1 * torch.randn(count, generator=GENERATOR)).clamp(0, 1)
    work = torch.nn.functional.one_hot((torch.rand(count, generator=GENERATOR) < 0.1).long(), 3)
    pay = (0.5 * age + 0.05 * torch.randn(count, generator=GENERATOR)).clamp(0, 1)
    return Split(torch.cat([age[:, None], work, pay[:, None]], 1).float(), labels)


def table_order(**changes: object) -> Order:
    settings: dict = {
        "classes": 2,
        "size": 6000,
        "epsilon": 3.0,
        "delta": 1e-5,
        "seed": 0,
        "columns": COLUMNS,
    } | changes
    return Order(**settings)


def test_a_table_keeps_its_marginals_and_its_correlations():
    real, ledger = table(), Ledger()
    made = TableMoments().synthesize(real, table_order(), Context(ledger))
    assert len(ledger) == 2
    assert 2.97 < ledger.spent(1e-5).epsilon <= 3.0
    for label in (0, 1):
        ours, theirs = made.inputs[made.labels == label], real.inputs[real.labels == label]
        assert torch.allclose(ours.mean(0), theirs.mean(0), atol=0.03)
        assert float(ours[:, [0, 4]].T.corrcoef()[0, 1]) > 0.4
    assert made.inputs[:, 1:4].sum(1).tolist() == [1.0] * 6000
    assert float(made.inputs[:, 3].mean()) < 0.01  # the category that nobody has


def test_a_constant_column_stays_where_it_is():
    real = table()
    real.inputs[:, 0] = 0.5
    made = TableMoments().synthesize(real, table_order(), Context(Ledger()))
    assert float(((made.inputs[:, 0] - 0.5).abs() < 0.1).float().mean()) > 0.98


def test_only_released_values_reach_the_rows_of_a_table(monkeypatch):
    real = table(500)
    recorded = Recorded(monkeypatch, table_moments, ("private_sums", "private_second_moments"))
    order = table_order(size=300)
    first, second = (
        TableMoments().synthesize(part, order, Context(Ledger())) for part in (real, real.select(range(1, 500)))
    )
    assert recorded.uses == ["private_sums", "private_second_moments"] * 2
    assert torch.equal(first.inputs, second.inputs)


def test_settings_follow_the_shape_and_the_budget():
    assert class_moments.teachable((1, 28, 28), image_order(records=60_000))
    assert not class_moments.teachable((1, 28, 28), image_order(records=1000))
    assert not class_moments.teachable((20,), image_order(records=60_000))
    assert Moments.fitting((20,), image_order()).generator_share == 1.0
    rates = [Moments.fitting((1, 28, 28), image_order(records=60_000, epsilon=e)).teacher_rate for e in (0.5, 3, 8)]
    assert rates == sorted(rates)


def test_of_few_records_the_means_get_half_and_images_stay_as_they_are_drawn():
    few, many = (Moments.fitting((1, 28, 28), image_order(records=records)) for records in (1000, 60_000))
    assert (few.means_share, few.contrast, few.turn, few.generator_share) == (0.5, 1.0, 0.0, 1.0)
    assert (many.means_share, many.contrast, many.turn) == (0.09, 2.2, 15.0)
    assert Moments.fitting((20,), image_order(records=1000)).means_share == 0.5
    assert all(sum(fitted._parts()) == pytest.approx(1) for fitted in (few, many))
