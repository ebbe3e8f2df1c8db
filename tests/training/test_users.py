"""Users as the unit of privacy: a user's examples are drawn, joined and clipped as one record."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privet
from privet.clipping import AutomaticClipping, FlatClipping, PerLayerClipping
from privet.data import Split
from privet.errors import InputError, PrivetError
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.sampling import Holdings, Users
from privet.training import Performance

OWNERS = [0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 4, 4, 5, 5, 6, 7, 7, 7, 8, 8, 8, 8, 9]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(48, 3),
    )


class Words(nn.Module):
    """Tokens of one user come back in other examples of theirs: the cross terms of an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.table((x.abs() * 10).long() % 5)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.view(len(x), 3, 2))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(2, 1, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.view(len(x), 3, 2)).flatten(1))


MODELS = {"mlp": mlp, "cnn": cnn, "words": Words, "lstm": Recurrent, "attention": Attention}
CLIPPINGS = {"flat": FlatClipping(0.3), "automatic": AutomaticClipping(0.3), "layers": PerLayerClipping(0.3)}


def data(seed: int = 0, count: int = len(OWNERS)) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return torch.utils.data.TensorDataset(x, torch.randint(3, (count,), generator=generator))


def clipped_sum_by_loop(
    model: nn.Module, dataset: torch.utils.data.TensorDataset, users: list[list[int]], norm: float, join: str
) -> dict[str, Tensor]:
    """Too simple to be wrong: float64, one user at a time, one example at a time."""
    model = copy.deepcopy(model).double()
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for examples in users:
        own = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for example in examples:
            x, y = dataset[example]
            loss = nn.functional.cross_entropy(model(x.double().unsqueeze(0)), y.unsqueeze(0))
            for (name, _), g in zip(
                model.named_parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
            ):
                own[name] += g / (len(examples) if join == "mean" else 1)
        length = math.sqrt(sum(float(g.square().sum()) for g in own.values()))
        for name in total:
            total[name] += own[name] * min(1.0, norm / length)
    return total


def released(
    model: nn.Module, dataset: object, body: str, norm: float, *, most: int = 100, **options: object
) -> dict[str, Tensor]:
    """The clipped sum that one step on every user applies, with noise too small to see."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"max_grad_norm": norm} | options
    private = privet.make_private(
        model,
        optimizer,
        dataset,
        batch_size=10,
        steps=1,
        delta=1e-3,
        noise_multiplier=1e-9,
        seed=0,
        users=Users(OWNERS, most=most),
        **options,
    )
    for x, y in private.batches():
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        if body == "vector":
            private.step(losses)
            continue
        optimizer.zero_grad()
        divisor = {"mean": len(x), "divided": len(x), "half": len(x) // 2, "sum": 1}[body]
        (losses.mean() if body == "mean" else losses.sum() / divisor).backward()
        optimizer.step()
    return {name: 10 * (start[name] - p.detach()).double() for name, p in model.named_parameters()}


@pytest.mark.parametrize("physical", [None, 7, 1])
@pytest.mark.parametrize("body", ["vector", "mean", "sum", "divided"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_users_gradients_are_joined_and_then_clipped(kind: str, body: str, physical: int | None) -> None:
    torch.manual_seed(1)
    model, dataset = MODELS[kind](), data()
    users = [[i for i, owner in enumerate(OWNERS) if owner == user] for user in range(10)]
    expected = clipped_sum_by_loop(model, dataset, users, 0.3, "sum" if body == "sum" else "mean")
    found = released(model, dataset, body, 0.3, performance=Performance(physical_batch_size=physical))
    length = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=3e-5 * length), name


@pytest.mark.parametrize("isolation", ["follow", "each", "assume"])
def test_every_grade_of_isolation_gives_the_same(isolation: str) -> None:
    torch.manual_seed(1)
    model, dataset = mlp(), data()
    users = [[i for i, owner in enumerate(OWNERS) if owner == user] for user in range(10)]
    expected = clipped_sum_by_loop(model, dataset, users, 0.3, "mean")
    found = released(model, dataset, "vector", 0.3, isolation=isolation)
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=1e-5), name


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_no_user_moves_the_sum_by_more_than_the_norm(clipping: str) -> None:
    """Each clipping sees users as its records: leave one user out, and the sum moves by at most C."""
    torch.manual_seed(1)
    model, dataset = mlp(), data()
    whole = released(copy.deepcopy(model), dataset, "sum", 0.3, clipping=CLIPPINGS[clipping], max_grad_norm=None)
    for user in (0, 4, 8):
        kept = [i for i, owner in enumerate(OWNERS) if owner != user]
        other = copy.deepcopy(model)
        start = {name: p.detach().clone() for name, p in other.named_parameters()}
        optimizer = torch.optim.SGD(other.parameters(), lr=1.0)
        private = privet.make_private(
            other,
            optimizer,
            torch.utils.data.Subset(dataset, kept),
            batch_size=10,
            public_size=10,
            steps=1,
            delta=1e-3,
            noise_multiplier=1e-9,
            clipping=CLIPPINGS[clipping],
            seed=0,
            users=Users([OWNERS[i] for i in kept], most=100),
        )
        for x, y in private.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(other(x), y, reduction="sum").backward()
            optimizer.step()
        moved = sum(
            float((whole[n] - 10 * (start[n] - p.detach()).double()).square().sum())
            for n, p in other.named_parameters()
        )
        assert math.sqrt(moved) <= 0.3 * (1 + 1e-4)


def test_examples_beyond_the_most_are_drawn_afresh() -> None:
    holdings = Holdings(torch.tensor([0] * 50 + [1] * 3 + [2]), most=4)
    source = Randomness.of(3).sampling
    seen = set()
    for _ in range(200):
        one, three, many = holdings.drawn(torch.tensor([0, 1, 2]), source)
        assert one.tolist() == [[53]] and sorted(three.flatten().tolist()) == [50, 51, 52]
        assert many.shape == (1, 4) and len(set(many.flatten().tolist())) == 4 and int(many.max()) < 50
        seen |= set(many.flatten().tolist())
    assert seen == set(range(50))


def test_subsets_of_a_users_examples_are_uniform() -> None:
    holdings = Holdings(torch.tensor([1, 0, 0, 1, 0, 0]), most=2)
    source = Randomness.of(None).sampling
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        for rows in holdings.drawn(torch.tensor([0, 1]), source):
            for row in rows.tolist():
                if 1 in row or 2 in row or 4 in row or 5 in row:
                    counts[tuple(sorted(row))] = counts.get(tuple(sorted(row)), 0) + 1
    assert len(counts) == 6 and all(abs(count - 500) < 120 for count in counts.values())


def test_users_are_drawn_with_the_same_probability_whatever_they_hold() -> None:
    model = nn.Linear(6, 3)
    private = privet.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        data(),
        batch_size=3,
        steps=400,
        delta=1e-3,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        seed=5,
        users=OWNERS,
        self_check=False,
    )
    rows = 0
    for x, y in private.batches():
        rows += len(x)
        private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
    assert abs(rows / 400 - 0.3 * len(OWNERS)) < 0.5


def test_the_statement_is_about_users() -> None:
    model = nn.Linear(6, 3)
    private = privet.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data(),
        batch_size=5,
        steps=3,
        delta=1e-3,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        seed=5,
        users=torch.tensor(OWNERS),
    )
    for x, y in private.batches():
        private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
    spent = private.spent()
    assert spent.unit == "user" and "add/remove one user" in str(spent)
    assert private.plan.records == 10 and private.plan.sampling.rate == 0.5


@pytest.mark.parametrize(
    "key",
    [
        OWNERS,
        [f"person {owner}" for owner in OWNERS],
        np.array(OWNERS, dtype=np.uint8),
        np.array([str(owner) for owner in OWNERS], dtype=object),
        torch.tensor(OWNERS),
        torch.tensor(OWNERS, dtype=torch.float64),
        lambda index: OWNERS[index],
        lambda index: torch.tensor(OWNERS[index]),
    ],
)
def test_every_form_of_a_key_gives_the_same_users(key: object) -> None:
    holdings = Users.of(key).found_in(data())
    assert holdings.owners.tolist() == OWNERS


def test_users_are_numbered_by_their_first_example_in_every_form() -> None:
    """A run is continued with the same users, whether they are given as a list or as a vector."""
    keys = [7, 7, 3, -1, 3, 7, 2**40]
    for key in (keys, torch.tensor(keys), np.array(keys), [str(name) for name in keys], torch.tensor(keys).double()):
        assert Users.of(key).found_in(keys).owners.tolist() == [0, 0, 1, 2, 1, 0, 3]


class NotAvailable:
    """As the missing value of a data frame: nobody can say whether it is itself."""

    def __ne__(self, other: object) -> NotAvailable:  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = object.__hash__


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ([(0, 1)] * 24, "several"),
        ([[0]] * 24, "several"),
        (np.zeros((24, 2), dtype=int), "several"),
        (torch.zeros(24, 1), "several"),
        ([*OWNERS[:-1], None], "no user"),
        ([*OWNERS[:-1], float("nan")], "no user"),
        ([*map(str, OWNERS[:-1]), ""], "no user"),
        (np.array([*OWNERS[:-1], np.nan]), "no user"),
        (OWNERS[:-1], "more or fewer"),
        ("person", "no column"),
        (dict(enumerate(OWNERS)), "dict"),
        (set(range(24)), "set"),
        (bytes(OWNERS), "bytes"),
        (iter(OWNERS), "no user at each example's place"),
        ([*OWNERS[:-1], "9"], "one kind"),
        ([True, *OWNERS[1:]], "one kind"),
        ([*[str(owner).encode() for owner in OWNERS[:-1]], b""], "no user"),
        (np.array(["NaT"] * 24, dtype="datetime64[D]"), "no user"),
        (np.ma.array(OWNERS, mask=[0] * 23 + [1]), "no user"),
        ([*OWNERS[:-1], NotAvailable()], "no user"),
        (np.zeros(24, dtype=[("clinic", int), ("patient", int)]), "several"),
    ],
)
def test_a_key_that_is_not_one_user_for_each_example_is_refused(key: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Users.of(key).found_in(data())


def test_how_many_examples_there_are_is_not_in_the_message() -> None:
    with pytest.raises(InputError) as caught:
        Users.of(OWNERS[:-1]).found_in(data())
    assert "23" not in str(caught.value) and "24" not in str(caught.value)


class Wrapped(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, dataset: Split) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.dataset[index]


def test_users_of_a_split_are_not_lost_in_a_data_set_of_torch() -> None:
    """A run that was meant for users must not become one for records because of a wrapper."""
    split = Split(torch.rand(24, 6), torch.zeros(24, dtype=torch.int64), torch.tensor(OWNERS))

    def unit_and_number(dataset: object) -> tuple[str, int]:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"batch_size": 2, "steps": 1, "delta": 1e-3, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
        private = privet.make_private(model, optimizer, dataset, **settings)
        private.close()
        return private.ledger.unit, private.plan.records

    part = torch.utils.data.Subset(split, range(3, 13))
    assert unit_and_number(split) == unit_and_number(torch.utils.data.DataLoader(split)) == ("user", 10)
    assert unit_and_number(part) == ("user", 3)
    assert unit_and_number(torch.utils.data.Subset(part, [0, 1, 4])) == ("user", 2)
    assert unit_and_number(torch.utils.data.ConcatDataset([split, part])) == ("user", 10)
    without = Split(split.inputs, split.labels)
    assert unit_and_number(torch.utils.data.Subset(without, range(9))) == ("record", 9)
    for hidden in (Wrapped(split), torch.utils.data.ConcatDataset([split, without])):
        with pytest.raises(InputError, match="give users="):
            unit_and_number(hidden)


def test_a_divisor_that_is_rounded_for_some_users_is_refused() -> None:
    """Half of the examples is exact where every user has two, and rounds where a user has one or three."""
    with pytest.raises(PrivetError, match="fraction of the number of examples"):
        released(mlp(), data(), "half", 0.3)


def test_a_column_is_a_key() -> None:
    class Frame:
        column_names = ("x", "person")

        def __len__(self) -> int:
            return len(OWNERS)

        def __getitem__(self, name: str) -> list[int]:
            return {"person": OWNERS}[name]

    assert Users("person").found_in(Frame()).owners.tolist() == OWNERS


def test_a_ledger_of_records_is_not_charged_for_users() -> None:
    model = nn.Linear(6, 3)

    def start(ledger: Ledger, users: object) -> None:
        privet.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data(),
            batch_size=5,
            steps=3,
            delta=1e-3,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            ledger=ledger,
            users=users,
        ).close()

    with pytest.raises(InputError, match="unit='user'"):
        start(Ledger(), OWNERS)
    with pytest.raises(InputError, match="whose each example is"):
        start(Ledger(unit="user"), None)
    start(Ledger(unit="user"), OWNERS)
    start(Ledger(unit="patient"), OWNERS)


def test_a_seeded_run_of_users_is_continued_bit_for_bit(tmp_path: object) -> None:
    def run(folder: object, stop: int | None, seed: int = 3) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        private = privet.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data(),
            batch_size=5,
            steps=6,
            delta=1e-3,
            performance=Performance(save_every=2),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            seed=seed,
            users=Users(OWNERS, most=3),
            folder=folder,
            resume=True,
        )
        for x, y in private.batches():
            private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
            if private.steps_done == stop:
                break
        private.close()
        return model.weight.detach()

    whole = run(tmp_path / "whole", None)
    run(tmp_path / "cut", 3)
    assert torch.equal(run(tmp_path / "cut", None), whole)


def test_other_users_do_not_continue_a_run(tmp_path: object) -> None:
    model = nn.Linear(6, 3)

    def start(owners: list[int]) -> None:
        privet.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data(),
            batch_size=5,
            steps=6,
            delta=1e-3,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            users=owners,
            folder=tmp_path / "run",
            resume=True,
        ).close()

    start(OWNERS)
    with pytest.raises(InputError, match="users"):
        start([*OWNERS[1:], 0])


def test_mixing_users_is_refused_and_mixing_examples_of_one_user_is_not() -> None:
    """Within a user nobody else is touched: centring a user's own examples is theirs alone."""

    def run(centre: object) -> None:
        model = nn.Linear(6, 3)
        private = privet.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data(count=24),
            batch_size=5,
            steps=2,
            delta=1e-3,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            seed=1,
            users=[i // 2 for i in range(24)],
        )
        for x, y in private.batches():
            private.step(nn.functional.cross_entropy(model(centre(x)), y, reduction="none"))

    with pytest.raises(PrivetError):
        run(lambda x: x - x.mean(0))
    run(lambda x: (x.unflatten(0, (-1, 2)) - x.unflatten(0, (-1, 2)).mean(1, keepdim=True)).flatten(0, 1))
