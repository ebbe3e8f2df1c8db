"""The page about data says what the code does."""

import re
from pathlib import Path

import pytest

from privet.data import CATALOGUE

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[0] for block in BLOCKS])
def test_its_code_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/data.md", "exec"), {})
    printed = capsys.readouterr().out
    for line in block.splitlines():
        said = line.partition("  # ")[2]
        if line.startswith("print(") and said.startswith(("Dataset(", "('")):
            assert said in printed


def test_its_tables_are_the_catalogue() -> None:
    for entry in CATALOGUE.values():
        assert f"| `{entry.name}` |" in PAGE
        for file in entry.files:
            assert f"| `{file.name}` | `{file.sha256}` |" in PAGE
        for count in entry.records.values():
            assert f"{count:,}" in PAGE
