"""Where the results are kept: a folder with one file for all recipes, one for each comparison, and the figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privet.errors import InputError
from privet.io import MisfitError, build, write_whole
from privet.recipes.comparison import Measured
from privet.recipes.table import Row, merge

ROWS = "accuracy.json"


@dataclasses.dataclass(frozen=True)
class Results:
    """A folder of results; what is not there yet is empty."""

    folder: Path

    def rows(self) -> list[Row]:
        """Of recipes and of students, as `privet reproduce --results` writes them."""
        try:
            return [build(Row, plain) for plain in self._read(ROWS)]
        except MisfitError as error:
            raise InputError(f"{self.folder / ROWS} does not hold rows of results: {error}.") from None

    def add_rows(self, rows: Sequence[Row]) -> None:
        merge(self.folder / ROWS, rows)

    def measured(self, comparison: str) -> list[Measured]:
        try:
            return [build(Measured, plain) for plain in self._read(f"{comparison}.json")]
        except MisfitError as error:
            raise InputError(f"{self.folder / comparison}.json does not hold a comparison: {error}.") from None

    def add_measured(self, comparison: str, made: Sequence[Measured]) -> None:
        taken = {(one.title, one.seed) for one in made}
        kept = [one for one in self.measured(comparison) if (one.title, one.seed) not in taken]
        text = json.dumps([dataclasses.asdict(one) for one in [*kept, *made]])
        write_whole(self.folder / f"{comparison}.json", f"{text}\n".encode(), mode=0o644)

    def picture(self, name: str) -> Path | None:
        path = self.folder / name
        return path if path.exists() else None

    def _read(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return []
        try:
            found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is not a file of results ({error}): give another folder with --results."
            ) from None
        return found
