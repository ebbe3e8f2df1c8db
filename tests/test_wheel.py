"""Wheel and source archive hold everything, and the verbs run from an installed wheel, away from this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "privet"
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    """Run a program without this repository on its path; returns what it printed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment | more, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both archives, made by the build backend that pyproject.toml names."""
    out = tmp_path_factory.mktemp("dist")
    try:
        import hatchling  # noqa: F401

        run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=ROOT)
    except ImportError:
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        place = tmp_path_factory.mktemp("hatchling")
        run(*pip, "install", "--target", place, "hatchling", cwd=ROOT)
        run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=ROOT, PYTHONPATH=str(place))
    return out


@pytest.fixture(scope="module")
def wheel(archives: Path) -> Path:
    (found,) = archives.glob("privet-*-py3-none-any.whl")
    return found


def shipped() -> set[str]:
    """The files of the package: modules, and data files of every kind."""
    return {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in inside if ".dist-info/" not in name} == shipped()
    kinds = {Path(name).suffix or Path(name).name for name in inside}
    assert {".yaml", ".j2", ".css", ".typed"} & kinds >= {".yaml", ".j2", ".css"} and "privet/py.typed" in inside
    assert any(name.startswith("privet/methods/recipes/") and name.endswith(".yaml") for name in inside)
    assert any(name.startswith("privet/papers/tables/") for name in inside)
    entry = next(name for name in inside if name.endswith("entry_points.txt"))
    assert "privet = privet.cli:main" in zipfile.ZipFile(wheel).read(entry).decode()


def test_the_source_archive_can_be_built_and_tested_from(archives: Path) -> None:
    (found,) = archives.glob("privet-*.tar.gz")
    with tarfile.open(found) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {f"src/{name}" for name in shipped()} <= inside
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py"} <= inside
    assert not any(name.startswith((".venv", "runs/", "site/", "dist/")) for name in inside)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel; the dependencies are those of the running Python, without its Privet."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", wheel, cwd=place)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    # Not a line that is imported: an editable install beside the dependencies must not be followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = run(python, "-c", "import privet; print(privet.__file__)", cwd=place).strip()
    assert Path(found).is_relative_to(place), found
    return place / "bin"


VERBS = [
    ("--version", "privet "),
    ("methods", "dpsgd"),
    ("recipes", "mnist-scattering"),
    ("attacks", "rmia"),
    ("data list", "sms-spam"),
    ("account --examples 1000 --batch-size 100 --noise 1.1 --steps 50 --delta 1e-4 --explain", "epsilon"),
    ("reproduce --help", "reproduce"),
]


@pytest.mark.parametrize(("words", "printed"), VERBS)
def test_a_verb_runs_from_the_wheel(installed: Path, tmp_path: Path, words: str, printed: str) -> None:
    assert printed in run(installed / "privet", *words.split(), cwd=tmp_path, PRIVET_DATA=str(tmp_path))


def test_a_model_is_trained_reported_and_attacked_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    program = installed / "privet"
    run(program, *"train --data digits --recipe digits-linear --epsilon 3 --out run".split(), cwd=tmp_path)
    run(program, "report", "run", cwd=tmp_path)
    run(program, "attack", "run", cwd=tmp_path)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"CARD.md", "report.html", "model.safetensors", "model.py"} <= names
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000  # its templates and styles are in the wheel


def python_of(version: str) -> str:
    """The program of a version of Python, on the path or where pyenv keeps it; empty if this machine has none."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (shutil.which(f"python{version}"), *sorted(map(str, kept.glob(f"{version}.*/bin/python")))):
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return ""


PYTHONS = ("3.11", "3.12", "3.13")


@pytest.mark.parametrize("version", PYTHONS)
def test_pip_installs_the_wheel_with_its_dependencies_into_an_empty_environment(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    """On every version of Python that pyproject.toml names. It downloads PyTorch for each of them."""
    python = python_of(version)
    if not python:
        pytest.skip(f"Python {version} is not installed on this machine: nothing was tried on it")
    place = tmp_path / "environment"
    run(python, "-m", "venv", place, cwd=tmp_path)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (torch,) = (each for each in wanted if each.startswith("torch"))
    # torch first and alone, as in the Makefile: otherwise pip may take a build for graphics cards.
    for package in (torch, wheel):
        run(place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", package, cwd=tmp_path)
    program = place / "bin" / "privet"
    for words, printed in VERBS:
        assert printed in run(program, *words.split(), cwd=tmp_path, PRIVET_DATA=str(tmp_path))
    for words in ("train --data digits --recipe digits-linear --epsilon 3 --out run", "report run"):
        run(program, *words.split(), cwd=tmp_path)
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000
    shutil.rmtree(place)


def test_every_version_of_python_that_is_named_is_tried() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    found = {each.rpartition(" :: ")[2] for each in named if each.startswith("Programming Language :: Python :: 3.")}
    assert found == set(PYTHONS)
