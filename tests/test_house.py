"""The shape of the source: one name for one type, few parameters, few files, nothing that only passes on."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import privet

ROOT = Path(privet.__file__).parent
MODULES = {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}
MOST_PARAMETERS = 12
MOST_FILES = 199
"""One noun per file of 300 to 1,100 lines. Where this fails, join two small files that belong together."""
MOST_LAYERS = 8


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_no_type_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path))
    assert {name: there for name, there in places.items() if len(there) > 1} == {}


def test_no_function_but_make_private_has_many_parameters() -> None:
    long = [
        f"{path}:{each.name}"
        for path, each in functions()
        if len(each.args.posonlyargs + each.args.args + each.args.kwonlyargs) > MOST_PARAMETERS
    ]
    assert long == ["training/make.py:make_private"]


def test_no_module_only_passes_on() -> None:
    def passes_on(node: ast.stmt) -> bool:
        named = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
        return named or isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)

    only = [
        str(path)
        for path, tree in MODULES.items()
        if path.name not in ("__init__.py", "__main__.py") and all(passes_on(node) for node in tree.body)
    ]
    assert only == []


def test_the_number_of_files_is_kept_down() -> None:
    assert len(MODULES) <= MOST_FILES


def test_imports_have_few_layers_and_no_optional_ones() -> None:
    """Optional layers, in parentheses, would hide a room that is gone. Only the lower floor may be one layer of several rooms."""
    contracts = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    house, floor = (each["layers"] for each in contracts)
    assert len(house) <= MOST_LAYERS
    assert not [layer for layer in (*house, *floor) if "(" in layer]
    assert [layer for layer in house if ":" in layer] == house[-1:]
    assert set(re.findall(r"\w+", house[-1])) == set(re.findall(r"\w+", " ".join(floor)))


@pytest.mark.parametrize(
    "word", "optimis colour neighbour randomis organis licence behaviour centre analyse cancelling".split()
)
def test_names_have_us_spelling(word: str) -> None:
    """In names of functions, classes and arguments; British spellings of options and old arguments are aliases by text."""
    found = {
        f"{path}:{name}"
        for path, each in functions()
        for name in [each.name, *(argument.arg for argument in each.args.args + each.args.kwonlyargs)]
        if word in name.lower()
    }
    allowed = {"audit/black_box.py:neighbour", "cli/report.py:licence"}  # arguments and fields of version 0.1
    assert found <= allowed
