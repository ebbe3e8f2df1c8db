"""Models of Hugging Face train as they are: the clipped sum is that of a float64 loop over single records."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import privet
from privet.errors import PrivetError
from tests.huggingface.architectures import ARCHITECTURES, JOINING, RECORDS, Architecture, Batch, Isolation

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
CLIP = 0.05
WIDE = 50.0
"""A norm to which nothing is clipped, so that the scale of each record's loss shows."""
CLOSE = 1e-3
"""How far the clipped sum may be from the oracle's, in C: float32 against float64 through a whole model."""


class Rows(Dataset[Batch]):
    """The records of a batch one by one, as a tokenizer's output is kept."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, row: int) -> Batch:
        return {name: column[row] for name, column in self._batch.items()}


Loss = Callable[[nn.Module, Batch], Tensor]


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    found: Tensor = model(**batch).loss
    return found


def clipped_sum_by_a_loop(
    model: nn.Module, batch: Batch, clip: float = CLIP, loss: Loss = own_loss
) -> dict[str, Tensor]:
    """Each record alone, in float64."""
    double = copy.deepcopy(model).double()
    parameters = {name: p for name, p in double.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for row in range(RECORDS):
        one = {name: column[row : row + 1] for name, column in batch.items()}
        double.zero_grad(set_to_none=True)
        loss(double, {name: c.double() if c.is_floating_point() else c for name, c in one.items()}).backward()
        found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
        norm = torch.stack([g.norm() for g in found.values()]).norm()
        assert norm.isfinite() and (norm > clip or clip >= WIDE), "a record that is not clipped tests nothing"
        for name, gradient in found.items():
            total[name] += gradient * min(clip / norm, 1.0)
    return total


def train(
    model: nn.Module, batch: Batch, isolation: Isolation = "follow", clip: float = CLIP, loss: Loss = own_loss
) -> tuple[dict[str, Tensor], str]:
    """One step over all records through `make_private`; gives the clipped sum and the guarantee."""
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    rate = max(CLIP / clip, 1.0)  # float32 parameters do not show steps that are much smaller
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    private = privet.make_private(
        model, optimizer, Rows(batch), batch_size=RECORDS, steps=1, noise_multiplier=1e-6, delta=1e-5,
        max_grad_norm=clip, seed=0, isolation=isolation,
    )  # fmt: skip
    for rows in private.batches():
        optimizer.zero_grad()
        loss(model, rows).backward()
        optimizer.step()
    guarantee = str(private.spent().guarantee)
    private.close()
    after = dict(model.named_parameters())
    return {name: (was - after[name].detach()).double() * RECORDS / rate for name, was in before.items()}, guarantee


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return float(torch.stack([(found[name] - expected[name]).norm() for name in expected]).norm())


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.name)
def test_the_clipped_sum_is_that_of_single_records(architecture: Architecture) -> None:
    model = architecture.ready()
    torch.manual_seed(1)
    batch = architecture.batch()
    expected = clipped_sum_by_a_loop(model, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, guarantee = train(model, batch, architecture.isolation)
    assert guarantee == "proved"
    assert distance(found, expected) < CLOSE * CLIP


@pytest.mark.parametrize(
    "architecture", [a for a in ARCHITECTURES if a.isolation == "each"], ids=lambda each: each.name
)
def test_what_needs_single_records_says_so(architecture: Architecture) -> None:
    torch.manual_seed(1)
    with warnings.catch_warnings(), pytest.raises(PrivetError, match="isolation='each'"):
        warnings.simplefilter("ignore")
        train(architecture.ready(), architecture.batch())


def _of_tokens(name: str) -> tuple[nn.Module, Batch]:
    architecture = next(each for each in ARCHITECTURES if each.name == name)
    torch.manual_seed(1)
    return architecture.ready(), architecture.batch()


@pytest.mark.parametrize("name", ["GPT2", "Llama", "T5", "Bert tags", "Bert words"])
def test_the_loss_of_a_record_is_the_mean_over_its_own_tokens(name: str) -> None:
    """Nothing is clipped, and the records have different numbers of labels: the divisor of each is its own."""
    model, batch = _of_tokens(name)
    assert len((batch["labels"] != -100).sum(1).unique()) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = clipped_sum_by_a_loop(model, batch, WIDE)
        found, _ = train(model, batch, clip=WIDE)
    size = distance(expected, {each: torch.zeros_like(total) for each, total in expected.items()})
    assert distance(found, expected) < 1e-2 * size


USERS = ["Bert", "Bert tags", "GPT2", "GPT2 class"]


@pytest.mark.parametrize("name", USERS)
def test_users_with_several_padded_records(name: str) -> None:
    """Two users with two records each: the loss of a user is the mean over their records, or over all of their tokens."""
    model, batch = _of_tokens(name)
    joined = {each: torch.stack(column.chunk(2)) for each, column in batch.items()}
    double = copy.deepcopy(model).double()
    expected = {each: torch.zeros_like(p) for each, p in double.named_parameters()}
    for user in range(2):
        double.zero_grad(set_to_none=True)
        own_loss(double, {each: column[user] for each, column in joined.items()}).backward()
        own = {each: torch.zeros_like(p) if p.grad is None else p.grad for each, p in double.named_parameters()}
        norm = torch.stack([g.norm() for g in own.values()]).norm()
        assert norm > CLIP
        for each, gradient in own.items():
            expected[each] += gradient * CLIP / norm
    before = {each: p.detach().clone() for each, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = privet.make_private(
        model, optimizer, Rows(batch), users=[0, 0, 1, 1], batch_size=2, steps=1, noise_multiplier=1e-6, delta=1e-5,
        max_grad_norm=CLIP, seed=0,
    )  # fmt: skip
    for rows in private.batches():
        optimizer.zero_grad()
        own_loss(model, rows).backward()
        optimizer.step()
    found = {each: (before[each] - p.detach()).double() * 2 for each, p in model.named_parameters()}
    assert str(private.spent().guarantee) == "proved"
    private.close()
    assert distance(found, expected) < CLOSE * CLIP


@pytest.mark.parametrize("read", [False, True])
def test_a_count_over_the_batch_is_refused(read: bool) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        items = (batch["labels"] != -100).sum()
        found: Tensor = model(**batch, num_items_in_batch=items.item() if read else items).loss
        return found

    with warnings.catch_warnings(), pytest.raises(PrivetError, match=r"`item` reads|not known to keep records apart"):
        warnings.simplefilter("ignore")
        train(*_of_tokens("Llama"), loss=loss)


@pytest.mark.parametrize("architecture", JOINING, ids=lambda each: each.name)
def test_a_loss_over_the_batch_is_refused_with_the_reason(architecture: Architecture) -> None:
    torch.manual_seed(1)
    batch, model = architecture.batch(), architecture.ready()
    comparing = {"return_loss": True} if "pairs" in architecture.name else {}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = model(**batch, **comparing).loss
        return found

    assert loss(model, batch).isfinite()  # it is refused, and not broken
    with warnings.catch_warnings(), pytest.raises(PrivetError, match="not known to keep records apart"):
        warnings.simplefilter("ignore")
        train(model, batch, loss=loss)


def test_there_are_enough() -> None:
    assert len({each.model.split("For")[0] for each in ARCHITECTURES}) >= 60
