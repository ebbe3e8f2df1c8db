"""The usual delta, and the warning of a large one."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from privet import make_private
from privet.errors import InputError, PrivetWarning
from privet.privacy import delta_warning, usual_delta
from privet.privacy.budget import account


@pytest.mark.parametrize(
    ("count", "delta"),
    [(1, 1e-5), (100, 1e-5), (50_000, 1e-5), (60_000, 1e-5), (60_001, 1e-6), (600_000, 1e-6), (10**9, 1e-10)],
)
def test_usual(count: int, delta: float) -> None:
    assert usual_delta(count) == delta


@given(st.integers(1, 10**15))
def test_the_usual_delta_is_never_warned_of(count: int) -> None:
    assert usual_delta(count) * count <= 0.6000001
    assert delta_warning(usual_delta(count), count) == ""


def test_nobody_is_no_number_of_records() -> None:
    with pytest.raises(InputError):
        usual_delta(0)


def test_the_warning_starts_at_one_over_the_number_and_names_the_unit() -> None:
    assert delta_warning(0.0099, 100) == ""
    assert "1/N = 0.01, where N is the number of records" in delta_warning(0.01, 100)
    assert "publishes one random user in full" in delta_warning(0.5, 100, "user")
    (said,) = account(examples=100, delta=0.01, batch_size=10, noise_multiplier=1.0, steps=3).warnings
    assert said == delta_warning(0.01, 100)


def test_make_private_warns_by_the_public_size() -> None:
    data = TensorDataset(torch.zeros(50, 2), torch.zeros(50, dtype=torch.int64))

    def make(**settings: object) -> None:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        make_private(
            model,
            optimizer,
            data,
            batch_size=10,
            steps=2,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            delta=1e-2,
            **settings,  # type: ignore[arg-type]
        ).close()

    with pytest.warns(PrivetWarning, match="1/N = 0.01, where N"):
        make(public_size=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()
