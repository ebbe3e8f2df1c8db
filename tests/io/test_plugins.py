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


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> str:
    """What a process lists that has all examples as one installed package: importing Privet takes seconds, so there is one."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "mypackage-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 0.3\n", encoding="utf-8")
    points = []
    for guide, (name, what, _) in GUIDES.items():
        (folder / f"my_{guide}.py").write_text(example(guide), encoding="utf-8")
        points.append(f"[privet.{'data' if guide == 'data' else f'{guide}s'}]\n{name} = my_{guide}:{what}\n")
    (info / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")
    return answer("\n".join(f"print('{guide}:'); {code}" for guide, (*_, code) in GUIDES.items()), folder)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> str:
    """What a process lists before and after it loads each example as a file."""
    folder = tmp_path_factory.mktemp("loaded")
    lines = ["from privet.io import load_plugin"]
    for guide, (*_, code) in GUIDES.items():
        (folder / f"mine_{guide}.py").write_text(example(guide), encoding="utf-8")
        lines += [
            f"print('{guide} before:'); {code}",
            f"load_plugin('mine_{guide}.py')",
            f"print('{guide} after:'); {code}",
        ]
    return answer("\n".join(lines), folder)


def names_under(title: str, printed: str) -> str:
    """The line after the title."""
    lines = printed.splitlines()
    return lines[lines.index(f"{title}:") + 1]


@pytest.mark.parametrize("guide", GUIDES)
def test_an_installed_package_adds_its_name(guide, installed):
    assert f"'{GUIDES[guide][0]}')" in names_under(guide, installed)


@pytest.mark.parametrize("guide", GUIDES)
def test_a_file_of_the_users_own_adds_its_name(guide, loaded):
    name = GUIDES[guide][0]
    assert f"'{name}'" not in names_under(f"{guide} before", loaded)
    assert f"'{name}')" in names_under(f"{guide} after", loaded)


def test_every_registry_has_a_guide():
    from privet.io import Registry

    for _, _, code in GUIDES.values():  # the file also runs alone, where nothing has imported the registries
        exec(code.partition(";")[0])
    pages = {f"privet.{guide if guide == 'data' else f'{guide}s'}" for guide in GUIDES}
    assert pages == {one.group for one in Registry._all if not one.group.startswith("privet.test")}
