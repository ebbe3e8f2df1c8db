"""What version 0.1 offered to Python: every name and argument works, works with a warning, or says what to write instead."""

import importlib
import inspect
import json
import re
import subprocess
import sys
import warnings
from enum import EnumMeta
from pathlib import Path

import pytest

import privet
from privet.errors import InputError
from privet.io.moved import INSTEAD, MODULES, NAMES

OLD = json.loads((Path(__file__).parents[1] / "made_by_0_1_0" / "names.json").read_text())
"""The public names of version 0.1, and their arguments."""
NOT_FOR_USERS = {
    "privet.training.Private": "make_private makes it",
    "privet.report.RunRecord": "runs write it",
    "privet.clipping.MovingEllipticalClipping": "steps and variances are its state now",
    "privet.clipping.ScheduledClipping": "the step is its state now",
    "privet.noise.MovingShapeNoise": "the average is its state now",
    "privet.recipes.Recipe": "a file makes it",
    "privet.methods.pate.label_all": "a part of train",
    "privet.methods.voting.answer": "a part of label_by_votes",
}


def at(module: str, name: str):
    """The object under its old name, and the warnings on the way."""
    for loaded in [each for each in sys.modules if each in MODULES]:
        del sys.modules[loaded]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = getattr(importlib.import_module(module), name)
    return found, [str(each.message) for each in caught if each.category is DeprecationWarning]


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in OLD.items() for n in names])
def test_every_public_name_works_or_says_what_to_write_instead(module, name):
    if f"{module}.{name}" in NOT_FOR_USERS:
        return
    if module in INSTEAD or f"{module}.{name}" in INSTEAD:
        with pytest.raises(ImportError, match=r"is gone: .{20}"):
            at(module, name)
        return
    found, said = at(module, name)
    moved = module in MODULES or f"{module}.{name}" in NAMES
    assert any("will be removed in the next version: write privet." in one for one in said) is moved
    if not OLD[module][name] or not callable(found):
        return
    if isinstance(found, EnumMeta):
        return  # its arguments are Python's own, and differ between the versions of Python
    parameters = inspect.signature(found).parameters
    if f"{module}.{name}" in ("privet.make_private", "privet.training.make_private"):
        return  # tests/training/test_performance.py
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    missing = set() if takes_all else set(OLD[module][name].split()) - set(parameters)
    assert missing <= getattr(found, "old_arguments", set())


@pytest.mark.parametrize("old", NAMES)
def test_a_name_that_moved_is_the_same_object(old):
    module, _, name = old.rpartition(".")
    found, said = at(module, name)
    home, _, now = NAMES[old].rpartition(".")
    assert found is getattr(importlib.import_module(home), now)
    assert f"{old} is deprecated and will be removed in the next version: write {NAMES[old]} instead." in said


@pytest.mark.parametrize("old", MODULES)
def test_a_module_that_moved_has_the_names_of_the_new_one(old):
    now = importlib.import_module(MODULES[old])
    for name in OLD.get(old, {}):
        if f"{old}.{name}" not in {**NAMES, **INSTEAD}:
            assert at(old, name)[0] is getattr(now, name)


def test_sentences_survive_every_form_of_import():
    for code, said in {
        "from privet.recipes import fit": "privet.recipes.fit is gone: make a privet.methods.Task",
        "import privet.compare": "privet.compare is gone: run `privet compare`",
        "from privet import synthesis": "privet.synthesis is gone: make a privet.methods.Task",
        "import privet; privet.reproduction": "the tables of papers are in privet.papers",
        "from privet.clipping import MovingClipping": "give it init and update, as privet.clipping.Clipping says",
        "from privet.recipes import nothing": "cannot import name 'nothing'",
        "import privet.nothing": "No module named 'privet.nothing'",
        "from privet.audit import nothing": "cannot import name 'nothing'",
    }.items():
        with warnings.catch_warnings(), pytest.raises(ImportError, match=re.escape(said)):
            warnings.simplefilter("ignore")
            exec(code)


def test_the_warning_points_at_the_users_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import privet\n\nfrom privet.methods.moments import Moments\n\nprivet.audit.votes\n"
    )
    ended = subprocess.run([sys.executable, tmp_path / "mine.py"], capture_output=True, text=True, check=True)
    for line, old in ((3, "privet.methods.moments"), (5, "privet.audit.votes")):
        assert f"mine.py:{line}: DeprecationWarning: {old} is deprecated" in ended.stderr


def test_arguments_that_moved():
    from privet.clipping import FlatClipping

    with pytest.warns(DeprecationWarning, match=r"write step\(plan=\.\.\.\) instead"):
        found = privet.audit.step(clipping=FlatClipping(1.0), noise_multiplier=1.0, draws=40)
    assert not found.refuted
    with pytest.raises(InputError, match="training has no argument 'guesses' any more: every canary counts"):
        privet.audit.training(rate=1.0, noise_multiplier=1.0, steps=1, guesses=10)


def test_the_tables_name_what_exists():
    assert not set(NAMES) & set(INSTEAD)
    for now in [*MODULES.values(), *(new.rpartition(".")[0] for new in NAMES.values())]:
        importlib.import_module(now)
