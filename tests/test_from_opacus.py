"""The page for those who come from Opacus names everything that Opacus has, and nothing of Privet that is not there."""

import ast
import inspect
import re
from pathlib import Path

import opacus
import pytest
from opacus import PrivacyEngine

import privet
from privet.training import Private
from tests.test_documentation import resolves

PAGE = (Path(__file__).parents[1] / "docs" / "from-opacus.md").read_text(encoding="utf-8")
ROOT = Path(opacus.__path__[0])
NOT_SHIPPED = {"tests", "scripts"}
WITH_METHODS = {
    "PrivacyEngine",
    "AbstractGradSampleModule",
    "AbstractGradSampleHooks",
    "GradSampleHooks",
    "GradSampleModule",
    "DPOptimizer",
    "DPDataLoader",
    "ModuleValidator",
    "IAccountant",
    "DistributedUniformWithReplacementSampler",
}
"""Classes whose methods people call; those of the others are internals or the same as in these."""


def public_names() -> set[str]:
    """Names of Opacus without an underscore: classes, functions, and methods of `WITH_METHODS`. Nothing is imported."""
    found: set[str] = set()
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in NOT_SHIPPED:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found.add(node.name)
            if isinstance(node, ast.ClassDef) and node.name in WITH_METHODS:
                inside = (each.name for each in node.body if isinstance(each, ast.FunctionDef))
                found |= {f"{node.name}.{name}" for name in inside if not name.startswith("_")}
            if isinstance(node, ast.Assign) and [getattr(each, "id", "") for each in node.targets] == ["__all__"]:
                found |= {name for name in ast.literal_eval(node.value) if not name.startswith("__")}
    return found


def arguments() -> set[str]:
    made = (PrivacyEngine.__init__, PrivacyEngine.make_private, PrivacyEngine.make_private_with_epsilon)
    named = {one.name for function in made for one in inspect.signature(function).parameters.values()}
    return named - {"self", "kwargs"}


def rows() -> list[tuple[set[str], str]]:
    """The names in the first column of each table, and the second column."""
    tables = [line.strip().strip("|").split(" | ", 1) for line in PAGE.splitlines() if line.startswith("| `")]
    return [(set(re.findall(r"`([^`]+)`", theirs)), ours) for theirs, ours in tables]


NAMED = {name for names, _ in rows() for name in names}


def test_every_name_of_opacus_is_on_the_page() -> None:
    names = public_names()
    assert len(names) > 150  # the way in which they are found still works
    assert {"PrivacyEngine", "DPLSTM", "BatchMemoryManager", "DPLightningDataModule", "DPOptimizer.step"} <= names
    assert sorted(names - NAMED) == []


def test_every_argument_of_its_make_private_is_on_the_page() -> None:
    assert {"target_epsilon", "poisson_sampling", "secure_mode"} <= arguments()
    assert sorted(arguments() - NAMED) == []


def test_the_page_names_nothing_that_opacus_does_not_have() -> None:
    source = (ROOT / "privacy_engine.py").read_text(encoding="utf-8")
    passed_on = {name for name in ("strict",) if name in source}
    assert sorted(NAMED - public_names() - arguments() - passed_on) == []


def test_the_page_is_about_the_installed_version() -> None:
    version = ".".join(opacus.__version__.split(".")[:2])
    assert f"## Every name of Opacus {version}\n" in PAGE


@pytest.mark.parametrize(("names", "ours"), rows(), ids=[min(names) for names, _ in rows()])
def test_every_row_has_a_counterpart_that_exists_or_says_why_there_is_none(names: set[str], ours: str) -> None:
    spans = re.findall(r"`([^`]+)`", ours)
    found = [span for span in spans if _exists(span)]
    said = ("Not needed:", "There is no", "the same names work", "the torch optimizer's own", '"rdp"', '"gdp"')
    assert found or ours.startswith(said), ours
    for span in spans:
        if span.startswith(("privet.", "private", "make_private(")):
            assert _exists(span), span


def _exists(span: str) -> bool:
    """Whether a span of code names something of Privet: a dotted name, a member of `Private`, or arguments of a call."""
    if span.startswith("privet."):
        return resolves(span)
    if call := re.fullmatch(r"(make_private|private\.batches)\(([\w=, ]+)\)", span):
        function = privet.make_private if call[1] == "make_private" else Private.batches
        return set(re.findall(r"(\w+)=", call[2])) <= set(inspect.signature(function).parameters)
    if member := re.fullmatch(r"private\.(\w+)(\(\)\.epsilon)?", span):
        return hasattr(Private, member[1])
    return False


def test_the_check_of_names_can_fail() -> None:
    assert _exists("privet.clipping.PerLayerClipping") and not _exists("privet.clipping.PerLayer")
    assert _exists("make_private(folder=, resume=)") and not _exists("make_private(secure_mode=)")
    assert _exists("private.spent().epsilon") and not _exists("private.get_epsilon")
