"""What the documentation says is run: Python blocks, the commands it names, the dependencies it explains."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import privet
from privet.attacks import attack_named, attack_names
from privet.cli import app
from privet.cli.listed import table_of_methods
from privet.methods import METHODS, methods_that_make, recipe, settings_of

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
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


HEAVY = {"accelerate", "datasets", "lightning", "mlflow", "pandas", "peft", "transformers", "wandb"}
"""Packages that only the slow tests have; see the extra `slow`."""


def imported(code: str) -> set[str]:
    """The modules that a piece of code imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def runnable() -> list[object]:
    """The pages with code; those that import a package of the extra `slow` run with the slow tests."""
    found = []
    for page in PAGES:
        modules = set().union(*(imported(block.text) for block in blocks(page, "python")))
        heavy = any(module.removeprefix("privet.integrations.").partition(".")[0] in HEAVY for module in modules)
        marks = [pytest.mark.slow, pytest.mark.filterwarnings("default")] if heavy else []
        if blocks(page, "python"):
            found.append(pytest.param(page, marks=marks, id=name(page)))
    return found


@pytest.mark.parametrize("page", runnable())
def test_the_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PRIVET_ACCOUNTS", str(tmp_path / "accounts"))
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))
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


def options_of(command) -> dict[str, bool]:
    """The options of a verb, and whether each is hidden: an option of version 0.1 that moved."""
    return {
        option: getattr(parameter, "hidden", False)
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help": False}


def values(words: list[str], *options: str) -> list[str]:
    """What was given to an option, with commas between or in several."""
    found = [words[place + 1] for place, word in enumerate(words[:-1]) if word in options]
    found += [word.partition("=")[2] for word in words if word.partition("=")[0] in options and "=" in word]
    return [value for text in found for value in text.split(",")]


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
    options = options_of(command)
    for option in {word.split("=")[0] for word in words if word.startswith("--")}:
        assert option in options, option
        assert not options[option], f"{option} moved: see privet {verb[0]}"
    if "--plugin" in words:
        return  # it may add a key of its own
    methods, attacks = values(words, "--method", "--methods"), values(words, "--attack", "--attacks")
    methods += [word for word in words[1:2] if verb == ("methods",) and not word.startswith("--")]
    assert set(methods) <= {*METHODS, "auto", "all", "mean", "second-moment"}
    assert set(attacks) <= {*attack_names(), "inversion"}
    assert all(name in recipe.names() or name.endswith(".yaml") for name in values(words, "--recipe"))
    given = {words[place + 1].partition("=")[0] for place, word in enumerate(words) if word == "--set"}
    if verb == ("attack",) and attacks != ["inversion"]:
        assert given <= {field.name for key in attacks or attack_names() for field in fields(attack_named(key))}
    else:
        keys = [key for key in methods if key in METHODS] or (["dpsgd"] if verb == ("train",) else list(METHODS))
        assert given <= {setting.name for key in keys for setting in settings_of(METHODS[key])}


OF_OTHERS = {"--install-completion", "--show-completion", "--version", "--from"}
HISTORY = {"docs/books-before-and-now.md"}
"""Pages that also say how it was before."""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_names_and_files_in_the_text_exist(page):
    """Everything between backticks that looks like an option, a name of the package or a file of the repository."""
    text = page.read_text(encoding="utf-8")
    scripts = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "benchmarks").glob("*.py"))
    known = dict.fromkeys(re.findall(r'"(--[\w-]+)"', scripts), False)

    def collect(command) -> None:
        for option, hidden in options_of(command).items():
            known[option] = known.get(option, True) and hidden
        for below in getattr(command, "commands", {}).values():
            collect(below)

    collect(typer.main.get_command(app))
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", text))
    for span in spans if name(page) not in HISTORY else ():
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", span):
            assert option in known or option in OF_OTHERS, f"{name(page)}: {option}"
            assert not known.get(option), f"{name(page)}: {option} moved"
    for dotted in re.findall(r"(?<![\w/.\"-])privet(?:\.[A-Za-z_]\w*)+", text):
        assert resolves(dotted), f"{name(page)}: {dotted}"
    for file in re.findall(r"(?<![\w/])((?:src|tests|benchmarks|docs)/[\w./-]+\w)", text):
        assert (ROOT / file).exists(), f"{name(page)}: {file}"


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=name)
def test_what_a_benchmark_imports_exists(file):
    """Most take minutes or hours, so that nobody would notice otherwise."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [f"{node.module}.{each.name}" for each in node.names]
        for module in modules:
            assert module.partition(".")[0] != "privet" or resolves(module), module


def resolves(dotted: str) -> bool:
    found = privet
    parts = dotted.split(".")
    if parts[1:2] == ["integrations"] and len(parts) > 2 and parts[2] in HEAVY:  # its package may not be installed
        file = Path(privet.__file__).parent / "integrations" / f"{parts[2]}.py"
        defined = {getattr(node, "name", "") for node in ast.parse(file.read_text()).body} if file.exists() else set()
        return file.exists() and set(parts[3:4]) <= defined
    for place, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(parts[:place]))
            except ImportError:
                return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_a_page_names_exist(page):
    for line in page.read_text(encoding="utf-8").splitlines():
        file = None
        for found in re.finditer(r"(tests/[\w/]+\.py)|\b(test_\w+)\b(?!\.py)", line):
            file = ROOT / found[1] if found[1] else file
            if found[2] and file is not None:
                assert f"def {found[2]}(" in file.read_text(encoding="utf-8"), f"{name(page)}: {found[2]}"


def test_the_readmes_table_of_methods_is_that_of_the_registry():
    """Mended by what `privet methods --markdown` prints."""
    mark = "privet methods --markdown"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(rf"<!-- {mark} -->\n(.*?)\n<!-- /{mark} -->", text, re.DOTALL)
    # In a process of its own: no method of another test is in its table.
    said = subprocess.run(
        [sys.executable, "-m", "privet", *mark.split()[1:]], capture_output=True, text=True, check=True
    )
    assert shown is not None and shown[1] == said.stdout.rstrip("\n")


def test_the_page_of_methods_gets_its_tables_from_the_registry(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    hook = importlib.import_module("mkdocs_nav")
    made = hook.on_page_markdown((ROOT / "docs" / "methods.md").read_text(encoding="utf-8"))
    sys.modules.pop("mkdocs_nav")
    assert table_of_methods() in made and hook.SETTINGS not in made
    said = CliRunner().invoke(app, ["methods", "dpsgd", "--markdown"]).stdout
    assert said.strip() in made and said.startswith("| setting | type | default | meaning |")
    for key, method in METHODS.items():
        assert f"`{key}`" in made
        assert all(f"| `{setting.name}` |" in made for setting in settings_of(method))


def keys_in_table(page: str, heading: str) -> set[str]:
    """The code in the first column of the first table under a heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(heading, 1)[1]
    rows = re.search(r"^\|[^\n]*\|\n\|[-|]+\|\n((?:\|[^\n]*\|\n)+)", text, re.MULTILINE)
    assert rows is not None
    return {key for row in rows[1].splitlines() for key in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_tables_that_explain_what_is_registered_leave_nothing_out():
    assert keys_in_table("attacks.md", "## The attacks") == set(attack_names())
    assert keys_in_table("recipes.md", "# Recipes") == set(recipe.names())
    assert keys_in_table("synthesis.md", "## Methods") == set(methods_that_make("data"))


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
