"""Performance is one value; the arguments of version 0.1 still work, and warn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import privet
from privet.errors import InputError
from privet.training import Performance
from privet.training.checkpoint import load_checkpoint
from tests.training.conftest import make, run

MOVED: dict[str, Any] = {"physical_batch_size": 7, "memory_budget": 10**6, "workers": 0, "save_every": 2}


@pytest.mark.parametrize("name", MOVED)
def test_an_argument_of_version_0_1_works_and_names_its_new_place(name: str, tmp_path: Path) -> None:
    new = make(performance=Performance(**{name: MOVED[name]}), folder=tmp_path / "new")
    with pytest.warns(DeprecationWarning, match=rf"performance=privet\.Performance\({name}=\.\.\.\)") as caught:
        old = make(**{name: MOVED[name]}, folder=tmp_path / "old")
    assert len(caught) == 1
    assert torch.equal(run(*old), run(*new))
    assert old[2].description.settings["performance"] == new[2].description.settings["performance"]
    for each in (old, new):
        each[2].close()
    states = [load_checkpoint(tmp_path / which) for which in ("old", "new")]
    assert states[0] is not None and states[0].keys() == (states[1] or {}).keys()
    assert sorted(f.name for f in (tmp_path / "old").iterdir()) == sorted(f.name for f in (tmp_path / "new").iterdir())


def test_old_arguments_join_a_performance_and_do_not_contradict_it() -> None:
    with pytest.warns(DeprecationWarning, match="workers"):
        private = make(workers=0, performance=Performance(physical_batch_size=5))[2]
    assert private.description.settings["performance"]["physical_batch_size"] == 5
    with pytest.warns(DeprecationWarning, match="physical"), pytest.raises(InputError, match="given twice"):
        make(physical_batch_size=3, performance=Performance(physical_batch_size=5))


def test_the_name_of_opacus_needs_no_warning() -> None:
    assert make(max_physical_batch_size=9)[2].description.settings["performance"]["physical_batch_size"] == 9


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"physical_batch_size": 0}, "at least 1"),
        ({"physical_batch_size": "all"}, "or 'auto'"),
        ({"workers": -1}, "workers must be at least 0"),
        ({"save_every": 0}, "save_every must be at least 1"),
    ],
)
def test_impossible_values_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        privet.Performance(**settings)
