"""Objects that exist before the zoo starts are kept out of every garbage collection: there are thousands of short runs."""

import gc
from collections.abc import Iterator

import pytest

from tests.zoo.harness import freeze


@pytest.fixture(autouse=True, scope="package")
def _frozen() -> Iterator[None]:
    freeze()
    yield
    gc.unfreeze()
