"""What was released before training, kept with the run so that a run that goes on does not release it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from privet.errors import PrivetError
from privet.io import write_whole
from privet.privacy import Ledger, LedgerError
from privet.randomness import Randomness

FILE = "releases.safetensors"


class Releases:
    """The releases of one run by name.

    Formal guarantees: a release whose value was kept is not made again. One that was recorded and not yet kept when the
    run was killed is made and recorded again: the ledger never shows less than was used. A kept release whose event is not
    in the ledger is refused.
    """

    def __init__(self, ledger: Ledger, randomness: Randomness, folder: Path | None = None) -> None:
        self.ledger, self.randomness = ledger, randomness
        self._path = folder / FILE if folder is not None else None
        self._kept: dict[str, Tensor] = {}
        if self._path is not None and self._path.exists():
            self._kept = self._read(self._path)

    def get(self, name: str, make: Callable[[Ledger, Randomness], Tensor]) -> Tensor:
        """The value that was kept under this name, or a new one."""
        if name not in self._kept:
            self._kept[name] = make(self.ledger, self.randomness).contiguous()
            if self._path is not None:
                write_whole(self._path, save(self._kept, {"head": self.ledger.head}))
        return self._kept[name]

    def _read(self, path: Path) -> dict[str, Tensor]:
        try:
            with safe_open(path, framework="pt") as file:
                head = (file.metadata() or {}).get("head")  # version 0.1 wrote none
                kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except SafetensorError as error:
            raise PrivetError(f"{path} is damaged ({error}): start anew in another folder.") from None
        if head is not None and not self.ledger.holds({head}):
            raise LedgerError(
                f"{path} holds releases whose events are not in the ledger: lines were removed from it, or an older copy was put "
                f"back. Put back the newest ledger, or start anew in another folder."
            )
        return kept
