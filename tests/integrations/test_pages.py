"""Code of the pages that needs packages of extras: the blocks marked `py`, run in order in the heavy environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet.cli.program import app
from tests.test_documentation import blocks

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_of_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["train", "--data", "digits", "--set", "epochs=1", "--out", "runs/a"])
    assert done.exit_code == 0, done.output
    names: dict[str, object] = {"__name__": "documentation"}
    for block in blocks(DOCS / "trackers.md", "py"):
        exec(compile("\n" * block.line + block.text, "docs/trackers.md", "exec"), names)
    assert list((tmp_path / "tracked" / "first").iterdir())


@pytest.mark.slow
def test_the_page_of_frames_with_frames_of_pandas_and_hugging_face() -> None:
    """The first two blocks, with other libraries in the place of pyarrow."""
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    for table in (pandas.DataFrame, datasets.Dataset.from_dict):
        names: dict[str, object] = {"__name__": "documentation", "table": table}
        for block in blocks(DOCS / "frames.md", "python")[:2]:
            exec(compile(block.text.replace("pyarrow.table(", "table("), "docs/frames.md", "exec"), names)
