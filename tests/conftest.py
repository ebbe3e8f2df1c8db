"""One thread for torch in every test, and registries that no test changes for the next one."""

from collections.abc import Iterator

import pytest
import torch

from privet.io import Registry

# The tensors are small, and two test processes share two cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    with Registry.restored():
        yield
