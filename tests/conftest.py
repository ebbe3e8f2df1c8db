"""One thread for torch, few objects for the garbage collector, and registries that no test changes for the next one."""

import ctypes
import gc
import itertools
import sys
from collections.abc import Iterator

import pytest
import torch

from privet.io import Registry

# The tensors are small, and two test processes share two cores.
torch.set_num_threads(1)


_TESTS_OF_A_FREEZE = 25
_run = itertools.count()


@pytest.fixture(autouse=True)
def few_objects() -> None:
    """Now and then, keep what exists out of the garbage collector's lists, but for tensors.

    Collecting eight thousand tests leaves more than a million objects, and thousands of short runs leave more. `make_private`
    looks through all that are on these lists for the tensors that exist before its first batch, which would take a third of a
    second and more each time.
    """
    if next(_run) % _TESTS_OF_A_FREEZE:
        return
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    gc.freeze()
    for tensor in tensors:
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(tensor))
        ctypes.pythonapi.PyObject_GC_Track(ctypes.py_object(tensor))


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
