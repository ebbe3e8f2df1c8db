"""The examples of the guides work as an installed package, with entry points, and as a file of the user's own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = {
    "method": ("nearest-mean", "NearestMean", "from privet.methods import METHODS; print(METHODS.names())"),
    "attack": ("entropy", "Entropy", "from privet.attacks import attack_names as names; print(names())"),
    "accountant": ("zcdp", "ZCDP", "from privet.privacy import accountant_names as names; print(names())"),
    "model": ("narrow", "Narrow", "from privet.models import model_names as names; print(names())"),
    "data": ("npz", "read_npz", "from privet.data import DATA; print(DATA.names())"),
}


def example(guide: str) -> str:
    text = (ROOT / "docs" / "plugins" / f"{guide}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if GUIDES[guide][1] in block)
    return found


def answer(code: str, folder: Path) -> str:
    places = os.pathsep.join([str(folder), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("guide", GUIDES)
def test_an_example_has_at_most_forty_lines(guide):
    assert len(example(guide).splitlines()) <= 40


@pytest.mark.parametrize("guide", GUIDES)
def test_an_installed_package_adds_its_name(guide, tmp_path):
    name, what, code = GUIDES[guide]
    (tmp_path / f"my_{guide}.py").write_text(example(guide), encoding="utf-8")
    info = tmp_path / "mypackage-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 0.3\n", encoding="utf-8")
    group = "data" if guide == "data" else f"{guide}s"
    points = f"[privet.{group}]\n{name} = my_{guide}:{what}\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    assert f"'{name}')" in answer(code, tmp_path)


@pytest.mark.parametrize("guide", GUIDES)
def test_a_file_of_the_users_own_adds_its_name(guide, tmp_path):
    name, _, code = GUIDES[guide]
    (tmp_path / "mine.py").write_text(example(guide), encoding="utf-8")
    assert f"'{name}')" not in answer(code, tmp_path)
    assert f"'{name}')" in answer(f"from privet.io import load_plugin; load_plugin('mine.py'); {code}", tmp_path)


def test_every_registry_has_a_guide():
    from privet.io import Registry

    pages = {f"privet.{guide if guide == 'data' else f'{guide}s'}" for guide in GUIDES}
    assert pages == {one.group for one in Registry._all if not one.group.startswith("privet.test")}
