"""What was released before training, kept with the run so that a run that goes on does not release it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from privet.data.whole import write_whole
from privet.errors import PrivetError
from privet.privacy import Ledger
from privet.randomness import Randomness

FILE = "releases.safetensors"


class Releases:
    """The releases of one run by name.

    Formal guarantees: a release whose value was kept is not made again. One that was recorded and not yet kept when the
    run was killed is made and recorded again: the ledger never shows less than was used.
    """

    def __init__(self, ledger: Ledger, randomness: Randomness, folder: Path | None = None) -> None:
        self.ledger, self.randomness = ledger, randomness
        self._path = folder / FILE if folder is not None else None
        self._kept: dict[str, Tensor] = {}
        if self._path is not None and self._path.exists():
            try:
                self._kept = load_file(self._path)
            except SafetensorError as error:
                raise PrivetError(f"{self._path} is damaged ({error}): start anew in another folder.") from None

    def get(self, name: str, make: Callable[[Ledger, Randomness], Tensor]) -> Tensor:
        """The value that was kept under this name, or a new one."""
        if name not in self._kept:
            self._kept[name] = make(self.ledger, self.randomness).contiguous()
            if self._path is not None:
                write_whole(self._path, save(self._kept))
        return self._kept[name]
