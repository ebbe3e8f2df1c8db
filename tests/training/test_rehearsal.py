"""The self-check: what it finds, what it leaves alone, and that it moves nothing."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

import privet
from privet.errors import InputError, PrivetError
from privet.privacy import Assumed, Proved
from privet.training.rehearsal import is_rehearsed
from tests.training.conftest import KNOWN, data, flat, make, network, run


def _hidden(statistic: Any) -> Any:
    """A statistic that no follower sees: it is computed outside of torch's function modes."""

    def read(tensor: Tensor) -> float:
        with torch._C.DisableTorchFunction():
            return float(statistic(tensor.detach()))

    return read


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.cross_entropy(out, y, reduction="none").mean() / _hidden(Tensor.max)(out),
        lambda out, y: F.cross_entropy(out - 0.1 * _hidden(Tensor.mean)(out), y) * (1 + _hidden(Tensor.std)(out)),
        lambda out, y: F.cross_entropy(out, y) * _hidden(lambda t: t.flatten().topk(3).values[-1])(out),
    ],
)
def test_mixing_that_nobody_can_follow_is_found(loss: Any) -> None:
    model, optimizer, private = make()
    before = flat(model).clone()
    with pytest.raises(PrivetError, match="depends on the other records"):
        for x, y in private.batches():
            loss(model(x), y).backward()
            optimizer.step()
    assert len(private.ledger) == 0 and torch.equal(flat(model), before)


def test_a_division_by_the_size_of_the_batch_that_cannot_be_read_is_found() -> None:
    model, _, private = make()
    with pytest.raises(PrivetError, match="divided by the size of the batch"):
        for x, y in private.batches():
            losses = F.cross_entropy(model(x), y, reduction="none") / len(x)
            private.step(losses)
    assert len(private.ledger) == 0


@pytest.mark.parametrize("power", [0.25, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("where", ["sum", "each", "sum of random rows"])
def test_a_division_by_a_power_of_the_size_of_the_batch_is_found(power: float, where: str) -> None:
    """Every other record would count for more where one is missing: by half of its length for a root."""
    model, optimizer, private = make()
    with pytest.raises(PrivetError, match="divided by the size of the batch"):
        for x, y in private.batches():
            seen = x + 0.1 * torch.randn_like(x) if "random" in where else x
            losses = F.cross_entropy(model(seen), y, reduction="none")
            size = len(x) ** power
            ((losses / size).sum() if where == "each" else losses.sum() / size).backward()
            optimizer.step()
    assert len(private.ledger) == 0


def test_a_sum_divided_by_the_number_of_records_is_their_mean() -> None:
    ends = []
    for loss in (lambda o, y: F.cross_entropy(o, y), lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(y)):
        model, optimizer, private = make(noise_multiplier=1e-6)
        for x, y in private.batches():
            loss(model(x), y).backward()
            optimizer.step()
        ends.append(flat(model))
    torch.testing.assert_close(ends[0], ends[1], atol=1e-5, rtol=1e-4)


class Restless(nn.Module):
    """Everything that draws or counts, and keeps records apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        noisy = x + 0.1 * torch.randn_like(x) + 0.1 * random.random() + 0.1 * numpy.random.rand()
        return self.last(F.dropout(torch.tanh(self.first(noisy)), 0.3))


@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_a_run_with_the_check_is_the_run_without_it_to_the_last_bit(size: int) -> None:
    ends = []
    for self_check in (True, False):
        torch.manual_seed(3)
        random.seed(3)
        numpy.random.seed(3)
        model = Restless()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        private = privet.make_private(model, optimizer, data(), **{**KNOWN, "batch_size": size}, self_check=self_check)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        average = AveragedModel(model)
        for x, y in private.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
        ends.append((flat(model), flat(average.module), scheduler.last_epoch, len(private.ledger)))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][:2], ends[1][:2], strict=True))
    assert ends[0][2:] == ends[1][2:]


def test_the_statement_says_what_was_not_checked() -> None:
    for settings, kind in (({}, Proved), ({"self_check": False}, Assumed), ({"isolation": "assume"}, Assumed)):
        model, optimizer, private = make(**settings)
        run(model, optimizer, private)
        assert isinstance(private.spent().guarantee, kind)


@pytest.mark.parametrize("mode", ["each", "follow"])
def test_each_record_alone_gives_the_same_step(mode: str) -> None:
    model, optimizer, private = make(isolation=mode, noise_multiplier=1e-6, steps=2)
    end = run(model, optimizer, private)
    other, plain, followed = make(noise_multiplier=1e-6, steps=2)
    torch.testing.assert_close(end, run(other, plain, followed), atol=1e-5, rtol=1e-4)


def test_batch_statistics_are_a_record_s_own_where_it_is_alone() -> None:
    model, optimizer, private = make(isolation="each", steps=2)
    for x, y in private.batches():
        out = model(x)
        F.cross_entropy(out - out.mean(), y).backward()
        optimizer.step()
    assert isinstance(private.spent().guarantee, Proved)


def test_a_check_can_be_asked_for() -> None:
    model, _, private = make()
    batch = data(12).tensors
    private.check(lambda b: F.cross_entropy(model(b[0]), b[1], reduction="none"), batch)
    hidden = _hidden(Tensor.max)
    with pytest.raises(PrivetError, match="depends on the other records"):
        private.check(lambda b: F.cross_entropy(model(b[0]), b[1]) * hidden(b[0]), batch)
    with pytest.raises(InputError, match="at least two"):
        private.check(lambda b: F.cross_entropy(model(b[0]), b[1]), data(1).tensors)
    assert len(private.ledger) == 0


def test_a_collate_function_that_mixes_records_is_refused() -> None:
    def centered(records: list[Any]) -> Any:
        x, y = (torch.stack(column) for column in zip(*records, strict=True))
        return x - x.mean(0), y

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=40, collate_fn=centered)
    private = privet.make_private(model, optimizer, loader, **KNOWN)
    with pytest.raises(InputError, match="collate function"):
        run(model, optimizer, private)


def test_a_batch_that_the_body_passes_over_is_an_empty_step() -> None:
    model, optimizer, private = make()
    for number, (x, y) in enumerate(private.batches()):
        if number % 2 and not private.rehearsing:
            continue
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert len(private.ledger) == private.steps_done == 6


def test_when_a_loop_is_checked_is_public() -> None:
    assert [step for step in range(20_000) if is_rehearsed(step, 20_000)] == [0, 100, 1000, 10_000]
    assert [step for step in range(400) if is_rehearsed(step, 400)] == [0, 100]
    assert [step for step in range(399) if is_rehearsed(step, 399)] == [0]


def test_a_record_of_an_earlier_batch_is_refused() -> None:
    model, optimizer, private = make()
    kept: list[Tensor] = []
    with pytest.raises(PrivetError, match="earlier batch"):
        for x, y in private.batches():
            out = model(x)
            if kept:
                out = out - kept[-1].mean()
            kept.append(out.detach())
            F.cross_entropy(out, y).backward()
            optimizer.step()
    assert len(private.ledger) == 0


def test_parts_of_a_batch_that_are_no_tensors_are_not_trusted() -> None:
    records = [(*data()[i], "a name") for i in range(50)]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privet.make_private(model, optimizer, records, **{**KNOWN, "batch_size": 10})
    with pytest.raises(PrivetError, match="not a tensor but str"):
        for x, y, _ in private.batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_records_that_are_augmented_as_they_are_loaded_stay_the_same() -> None:
    class Augmented:
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            x, y = records[index]
            return x + 0.1 * torch.randn(5) + random.random(), y

    records, ends = data(60), []
    for self_check in (True, False):
        random.seed(5)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(6)
        private = privet.make_private(
            model, optimizer, Augmented(), **{**KNOWN, "batch_size": 12}, self_check=self_check
        )
        ends.append(run(model, optimizer, private))
    assert torch.equal(ends[0], ends[1])
