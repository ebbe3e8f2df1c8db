"""Who comes from Opacus finds the names that he knows, or a sentence that says where the thing went."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

import privet
from privet.errors import InputError, PrivetError
from tests.training.conftest import data, network, run


def parts() -> tuple[Any, Any]:
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_names_of_opacus_mean_the_same() -> None:
    model, optimizer = parts()
    private = privet.make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(data(), batch_size=40, shuffle=True), epochs=1.2,
        target_epsilon=2.0, target_delta=1e-5, max_grad_norm=1.0, max_physical_batch_size=9, seed=0,
    )  # fmt: skip
    ours, other = parts()
    same = privet.make_private(
        ours, other, data(), batch_size=40, epochs=1.2, epsilon=2.0, delta=1e-5, max_grad_norm=1.0,
        performance=privet.Performance(physical_batch_size=9),
        seed=0,
    )  # fmt: skip
    assert torch.equal(run(model, optimizer, private), run(ours, other, same))
    assert private.plan == same.plan


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        ({"poisson_sampling": False}, "Poisson-sampled unless you give sampling"),
        ({"grad_sample_mode": "ghost"}, "engine chooses"),
        ({"noise_generator": None}, "seed="),
        ({"batch_first": False}, "any dimension"),
        ({"clipping": "adaptive", "max_grad_norm": None}, r"AdaptiveClipping\(1.0\)"),
        ({"target_epsilon": 1.0, "epsilon": 1.0}, "two names of one argument"),
    ],
)
def test_what_has_another_way_here_says_so(settings: dict[str, Any], way_out: str) -> None:
    known = {"batch_size": 40, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0}
    with pytest.raises(InputError, match=way_out):
        privet.make_private(*parts(), data(), **{**known, **settings})


def test_unpacking_as_in_opacus_says_what_to_write() -> None:
    with pytest.raises(PrivetError, match=r"for x, y in private.batches\(\)"):
        _model, _optimizer, _loader = privet.make_private(
            *parts(), data(), batch_size=40, steps=2, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0
        )


def test_the_old_loop_over_a_loader_cannot_train_without_noise() -> None:
    model, optimizer = parts()
    loader = DataLoader(data(), batch_size=40)
    privet.make_private(model, optimizer, loader, epochs=1, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0)
    with pytest.raises(PrivetError, match="would train without privacy"):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_a_loader_s_own_collation_is_kept() -> None:
    class Words(torch.utils.data.Dataset[list[float]]):
        def __len__(self) -> int:
            return 50

        def __getitem__(self, index: int) -> list[float]:
            return [float(index % 5)] * (1 + index % 5)

    def padded(rows: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.zeros(len(rows), 5)
        for place, row in enumerate(rows):
            x[place, : len(row)] = torch.tensor(row)
        return x, (x[:, 0] > 2).long()

    model, optimizer = parts()
    loader = DataLoader(Words(), batch_size=10, collate_fn=padded)
    private = privet.make_private(
        model, optimizer, loader, steps=15, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0, seed=0
    )
    run(model, optimizer, private)
    assert private.plan.sampling.rate == 0.2


def test_streams_are_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1, 2])

    for dataset in (Stream(), DataLoader(Stream(), batch_size=2)):
        with pytest.raises(InputError, match="map-style"):
            privet.make_private(
                *parts(), dataset, batch_size=1, steps=1, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0
            )
