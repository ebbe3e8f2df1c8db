"""What the documentation says is run: Python blocks, the commands it names, the dependencies it explains."""

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer

from privet.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)]
    return [block for block in found if block.language in languages]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_the_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "documentation"}
    for block in blocks(page, "python"):
        # Empty lines before the code make a traceback point at the line of the page.
        exec(compile("\n" * block.line + block.text, name(page), "exec"), names)


def verbs() -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for verb, command in typer.main.get_command(app).commands.items():
        below = getattr(command, "commands", None)
        found |= {(verb, sub) for sub in below} if below else {(verb,)}
    return found


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in blocks(page, "sh", "bash", "console"):
            lines = (line.strip().removeprefix("$ ") for line in block.text.splitlines())
            found += [(name(page), line) for line in lines if line.startswith(("privet ", ".venv/bin/privet "))]
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_that_a_page_names_exists(page, line):
    words = shlex.split(line, comments=True)[1:]
    if words[0].startswith("--"):
        return
    known = verbs()
    verb = tuple(words[:2]) if tuple(words[:2]) in known else tuple(words[:1])
    assert verb in known
    command = typer.main.get_command(app)
    for word in verb:
        command = command.commands[word]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options | {"--help"}


def test_the_readme_fits_two_screens():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 220


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    packages = {re.match(r"[\w-]+", requirement)[0] for requirement in wanted} - {project["name"]}
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\|(?: `\w+` \|)? `([\w-]+)` \|", page, re.MULTILINE))
    assert packages <= explained
    assert explained - packages <= {"npm", "chromium"}


def test_the_changelog_names_the_unreleased_work():
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
