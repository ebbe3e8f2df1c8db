"""The page of what was lost before and what stands now names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "books-before-and-now.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    names = set(re.findall(r"\b(?:test_[a-z0-9_]+|Test[A-Z][A-Za-z]+)\b(?!\.py|/)", PAGE))
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert len(names) > 60
    assert [name for name in sorted(names) if not re.search(rf"(?m)(?:def|class) {name}\b|^{name} =", written)] == []
    assert [file for file in set(re.findall(r"tests/[\w/]+\.py", PAGE)) if not (ROOT / file).exists()] == []
