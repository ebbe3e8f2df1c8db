"""One thread for torch, few objects for the garbage collector, and registries that no test changes for the next one."""

import itertools
import sys
from collections.abc import Iterator

import pytest
import torch

from privet.io import Registry
from tests.objects import freeze

# The tensors are small, and two test processes share two cores.
torch.set_num_threads(1)


_TESTS_OF_A_FREEZE = 25
_run = itertools.count()


@pytest.fixture(autouse=True)
def few_objects() -> None:
    """Freeze what exists now and then.

    Collecting eight thousand tests leaves more than a million objects, and thousands of short runs leave more. `make_private`
    looks through all of them, which would take a third of a second and more each time.
    """
    if next(_run) % _TESTS_OF_A_FREEZE == 0:
        freeze()


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test keeps for this machine is not found by the next one, nor by the user who runs the tests."""
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    before = set(sys.modules)
    with Registry.restored():
        yield
    # A plug-in that was loaded registers nothing when it is loaded again.
    for name in [name for name in sys.modules if name.startswith("privet_plugin_") and name not in before]:
        del sys.modules[name]
