"""Data frames of pandas and Arrow and data sets of Hugging Face: records as in a file, gradients as in a loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import privet
from privet.data import Categorical, Numeric, Schema, from_frame, load
from privet.errors import InputError, PrivetWarning
from privet.sampling import Users

ROWS = {
    "age": [20, 30, 40, 50, 60, 70] * 10,
    "height": [1.5, 1.6, 1.7, 1.8, 1.9, 2.0] * 10,
    "work": ["a", "b", "a", "b", "a", "b"] * 10,
    "ill": [0, 1, 0, 1, 0, 1] * 10,
    "who": [f"p{place // 2}" for place in range(60)],
}
SCHEMA = Schema(
    (Numeric("age", 0, 100), Numeric("height", 1, 3), Categorical("work", ("a", "b")), Categorical("ill", ("0", "1"))),
    "ill",
    ignore=("who",),
)


def arrow(rows: dict[str, list[Any]] = ROWS) -> Any:
    return pytest.importorskip("pyarrow").table(rows)


def pandas(rows: dict[str, list[Any]] = ROWS) -> Any:
    """With an index that is not the number of the row."""
    return pytest.importorskip("pandas").DataFrame(rows, index=range(1000, 1000 + len(rows["age"])))


def hugging_face(rows: dict[str, list[Any]] = ROWS) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(rows)


class Stream:
    """A frame of somebody else's: all that is known of it is Arrow's interface."""

    def __init__(self, rows: dict[str, list[Any]]) -> None:
        self._table = arrow(rows)

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested)


def other(rows: dict[str, list[Any]] = ROWS) -> Any:
    return Stream(rows)


FRAMES = [
    pytest.param(other, id="arrow's interface"),
    pytest.param(arrow, id="arrow"),
    pytest.param(pandas, id="pandas", marks=pytest.mark.slow),
    pytest.param(hugging_face, id="hugging face", marks=pytest.mark.slow),
]
Make = Callable[..., Any]


def without(*names: str) -> dict[str, list[Any]]:
    return {name: column for name, column in ROWS.items() if name not in names}


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_with_a_schema_has_the_records_of_the_file(frame: Make, tmp_path: Path) -> None:
    lines = [",".join(ROWS), *(",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    file = load(f"csv:{tmp_path / 'rows.csv'}", schema=SCHEMA)
    made = from_frame(frame(), SCHEMA, test=frame(), name="rows")
    assert torch.equal(made.train.inputs, file.train.inputs) and torch.equal(made.train.labels, file.train.labels)
    assert torch.equal(made.test.inputs, file.train.inputs)
    by_user = from_frame(frame(), SCHEMA, user="who")
    assert by_user.train.units == 30
    assert torch.equal(by_user.train.users, load(f"csv:{tmp_path / 'rows.csv'}", schema=SCHEMA, user="who").train.users)


@pytest.mark.parametrize("frame", FRAMES)
def test_what_is_wrong_with_a_frame_is_a_sentence_without_its_cells(frame: Make) -> None:
    with pytest.raises(InputError, match="frame, row 2, column 'age': the value is outside the bounds 0 to 100"):
        from_frame(frame({**ROWS, "age": [20, 777, *ROWS["age"][2:]]}), SCHEMA)
    with pytest.raises(InputError, match="row 1, column 'height': the cell is empty"):
        from_frame(frame({**ROWS, "height": [None, *ROWS["height"][1:]]}), SCHEMA)
    with pytest.raises(InputError, match="column 5"):
        from_frame(frame(), Schema(SCHEMA.columns, "ill"))
    with pytest.raises(InputError, match="no records"):
        from_frame(frame({name: [] for name in ROWS}), SCHEMA)


def step_of(given: Any, columns: list[str], **settings: Any) -> Tensor:
    """The gradient of one step with all records and hardly any noise, for a linear model of the columns."""
    torch.manual_seed(0)
    model = nn.Linear(len(columns), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()
    private = privet.make_private(
        model, optimizer, given, steps=1, noise_multiplier=1e-6, delta=1e-5, max_grad_norm=0.5, seed=0, **settings
    )
    for batch in private.batches():
        x = torch.stack([batch[name].float() for name in columns], 1)
        private.step(F.cross_entropy(model(x), batch["ill"], reduction="none"))
    private.close()
    return before - model.weight.detach()


def oracle(columns: list[str], groups: list[list[int]]) -> Tensor:
    """The mean of the clipped gradients of groups of rows, one at a time, in float64."""
    torch.manual_seed(0)
    model = nn.Linear(len(columns), 2).double()
    torch.manual_seed(0)
    model.load_state_dict({name: value.double() for name, value in nn.Linear(len(columns), 2).state_dict().items()})
    x = torch.tensor([ROWS[name] for name in columns], dtype=torch.float64).T
    y, total = torch.tensor(ROWS["ill"]), torch.zeros_like(model.weight)
    for rows in groups:
        found = torch.autograd.grad(F.cross_entropy(model(x[rows]), y[rows]), list(model.parameters()))
        norm = torch.cat([one.flatten() for one in found]).norm()
        total += found[0] * min(1.0, 0.5 / float(norm))
    return (total / len(groups)).float()


@pytest.mark.parametrize("frame", FRAMES)
def test_steps_on_a_frame_are_those_of_a_loop_over_its_rows(frame: Make) -> None:
    rows = frame(without("work", "who"))
    assert torch.allclose(
        step_of(rows, ["age", "height"], batch_size=60), oracle(["age", "height"], [[n] for n in range(60)]), atol=1e-5
    )
    users = frame(without("work"))
    pairs = [[n, n + 1] for n in range(0, 60, 2)]
    found = step_of(users, ["age", "height"], batch_size=30, users="who")
    assert torch.allclose(found, oracle(["age", "height"], pairs), atol=1e-5)
    assert torch.allclose(step_of(users, ["age", "height"], batch_size=30, users=Users("who", 4)), found, atol=1e-5)


def private(given: Any, **settings: Any) -> Any:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    known = {"batch_size": 10, "steps": 1, "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0, "seed": 0}
    return privet.make_private(model, optimizer, given, **known | settings)


def test_frames_that_cannot_be_records_are_refused() -> None:
    with pytest.raises(InputError, match=r"'work' cannot be used as numbers .*: leave it out"):
        private(arrow())
    with pytest.raises(InputError, match=r"'age' cannot be used as numbers \(the cell is empty\)"):
        private(arrow({"age": [1, None], "ill": [0, 1]}))
    with pytest.raises(InputError, match="no records"):
        private(arrow({"age": [], "ill": []}))
    with pytest.raises(InputError, match="one of its parts"):
        private({"train": arrow(), "test": arrow()})
    with pytest.raises(InputError, match=r"A tuple of 2 arrays is not a data set: give .*TensorDataset"):
        private((torch.zeros(20, 2), torch.zeros(20)))


def test_a_collate_function_that_fails_on_one_record_says_that_it_got_one() -> None:
    def pairs_only(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        kept = [row for row in rows if row[1] > 0]
        return torch.stack([row[0] for row in kept]), torch.stack([row[1] for row in kept])

    rows = TensorDataset(torch.randn(20, 2), torch.arange(20) % 2)
    with pytest.raises(RuntimeError) as raised:
        next(iter(private(DataLoader(rows, 10, collate_fn=pairs_only)).batches()))
    assert raised.value.__notes__ == [
        "The collate function got one record. A batch may hold one: it must work for that."
    ]


@pytest.mark.slow
def test_the_data_sets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    rows = hugging_face(without("work", "who"))
    with pytest.raises(InputError, match="one of its parts"):
        private(datasets.DatasetDict({"train": rows, "test": rows}))
    with pytest.raises(InputError, match="A stream cannot be Poisson-sampled"):
        private(rows.to_iterable_dataset())
    for batch in private(rows.with_format("numpy", columns=["age"])).batches():
        assert set(batch) == {"age"}
        break
    for kind in ("pandas", "arrow", None):
        for batch in private(rows.with_format(kind, columns=["age", "ill"])).batches():
            assert {name: type(column) for name, column in batch.items()} == {"age": Tensor, "ill": Tensor}
            break
    called: list[int] = []

    def transform(some: dict[str, list[Any]]) -> dict[str, Any]:
        called.append(len(some["age"]))
        middle = sum(some["age"]) / len(some["age"])
        return {"age": torch.tensor([age - middle for age in some["age"]])}

    for _ in private(rows.with_transform(transform)).batches():
        break
    assert set(called) == {1}  # with several records at once, it would have centered them by each other


class Words(Dataset[Any]):
    """Texts of several lengths."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"ids": [1 + (place * n) % 7 for n in range(1 + place % 5)], "label": place % 2}


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(len(row["ids"]) for row in rows)
    ids = torch.tensor([row["ids"] + [0] * (longest - len(row["ids"])) for row in rows])
    return {"ids": ids, "mask": ids > 0, "label": torch.tensor([row["label"] for row in rows])}


class Mean(nn.Module):
    """Classifies a text by the mean of its embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(8, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weight = mask / mask.sum(1, keepdim=True)
        return self.head((self.words(ids) * weight.unsqueeze(-1)).sum(1))


def test_a_padding_collator_of_a_loader_is_used_and_named() -> None:
    torch.manual_seed(0)
    model, single = Mean(), Mean().double()
    single.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    before = model.head.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    made = privet.make_private(
        model,
        optimizer,
        DataLoader(Words(), batch_size=40, shuffle=True, collate_fn=padded),
        steps=1,
        noise_multiplier=1e-6,
        delta=1e-5,
        max_grad_norm=0.1,
        seed=0,
    )
    for batch in made.batches():
        private_losses = F.cross_entropy(model(batch["ids"], batch["mask"]), batch["label"], reduction="none")
        made.step(private_losses)
    assert "the collate function gives each record rows that depend on no other record" in str(made.ledger.guarantee)
    total = torch.zeros_like(single.head.weight)
    for row in (Words()[place] for place in range(40)):
        batch = padded([row])
        found = torch.autograd.grad(
            F.cross_entropy(single(batch["ids"], batch["mask"].double()), batch["label"]), list(single.parameters())
        )
        norm = torch.cat([one.flatten() for one in found]).norm()
        total += found[[name for name, _ in single.named_parameters()].index("head.weight")] * min(1, 0.1 / float(norm))
    assert torch.allclose(before - model.head.weight.detach(), (total / 40).float(), atol=1e-5)


@pytest.mark.slow
def test_a_known_collator_needs_no_assumption() -> None:
    transformers = pytest.importorskip("transformers")
    rows = hugging_face(without("work", "who"))
    loader = DataLoader(rows, batch_size=10, collate_fn=transformers.default_data_collator)
    assert private(loader, batch_size=None).plan.assumptions == ()

    class Own(transformers.DefaultDataCollator):
        pass

    assert private(DataLoader(rows, batch_size=10, collate_fn=Own()), batch_size=None).plan.assumptions


def test_what_a_loader_means_is_kept_told_or_refused() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(40, 2), torch.zeros(40).long())
    assert private(DataLoader(data, batch_size=20, shuffle=True), batch_size=None).plan.sampling.rate == 0.5
    sampler = torch.utils.data.RandomSampler(data, replacement=True)
    with pytest.warns(PrivetWarning, match="RandomSampler is not used: each record is drawn with the same"):
        private(DataLoader(data, batch_size=20, sampler=sampler), batch_size=None)
    batches = torch.utils.data.BatchSampler(WeightedRandomSampler([1.0] * 40, 40), 20, False)
    with pytest.raises(InputError, match="decides which records are drawn"):
        private(DataLoader(data, batch_sampler=batches), batch_size=None)
    with pytest.raises(InputError, match="an item of its data set may be a batch"):
        private(DataLoader(data, batch_size=None))

    class Endless(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1, 2])

    for stream in (Endless(), DataLoader(Endless(), batch_size=2), iter([1, 2])):
        with pytest.raises(InputError, match=r"read it into memory, list\(stream\)"):
            private(stream)


class Joined(torch.utils.data.TensorDataset):
    """A data set that centers the records which it loads with one call."""

    def __getitems__(self, places: list[int]) -> list[Any]:
        x = self.tensors[0][places]
        return [(row, self.tensors[1][place]) for row, place in zip(x - x.mean(0), places, strict=True)]


def test_a_data_set_that_loads_several_records_at_once_is_asked_for_one_at_a_time() -> None:
    data = Joined(torch.randn(40, 2), torch.zeros(40).long())
    loader = DataLoader(data, batch_size=10, collate_fn=lambda rows: tuple(map(torch.stack, zip(*rows, strict=True))))
    for x, _ in private(loader, batch_size=None).batches():
        assert all((row == data.tensors[0]).all(1).any() for row in x)
        break


@pytest.mark.parametrize("frame", FRAMES)
def test_a_function_that_gives_a_frame(frame: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_rows.py").write_text(
        "from tests.data import test_frames\n"
        f"def one(): return test_frames.{frame.__name__}()\n"
        f"def two(): return test_frames.{frame.__name__}(), test_frames.{frame.__name__}()\n"
        "def no_frame(): return [[1.0]], [0]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(load("py:my_rows:one", schema=SCHEMA).train) == 60
    assert load("py:my_rows:one", schema=SCHEMA, user="who").train.units == 30
    assert len(load("py:my_rows:two", schema=SCHEMA).test) == 60
    with pytest.raises(InputError, match="gave a data frame, which needs a schema"):
        load("py:my_rows:one")
    with pytest.raises(InputError, match="which takes no schema: only data frames do"):
        load("py:my_rows:no_frame", schema=SCHEMA)
