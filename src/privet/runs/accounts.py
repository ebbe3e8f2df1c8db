"""The account of a run's records: which one it is, and what the run pays from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privet.errors import InputError
from privet.methods.method import DataSpec, Method, Task
from privet.privacy import AccountStanding, Event
from privet.privacy.data_account import (
    AccountedRun,
    DataAccount,
    account_path,
    bound_account,
    read_stub,
)
from privet.training.folder import RunFolder

OWN = ""
"""The account that the records or the run folder name."""


def account_of(
    spec: DataSpec, out: Path | None = None, given: DataAccount | str | Path | None = OWN
) -> DataAccount | None:
    """The account of a run; None where none is kept.

    It is the given one, or the one named with the records; otherwise the one named in the file `.privet-account` beside the
    records; otherwise the one that the run in `out` already uses. If two of them differ, the run is refused.

    Args:
        spec: the records.
        out: the folder of the run.
        given: an account, its name or its path; None for none at all.
    """
    if given is None:
        return None
    if isinstance(given, DataAccount):
        given.refresh()
        return given
    named = str(given) or spec.account
    bound = bound_account(place) if (place := _place(spec.source)) is not None else None
    if named and bound and account_path(named).resolve() != account_path(bound).resolve():
        raise InputError(
            f"The records {spec.source} are bound to the account {bound}, and {named} was named: leave it out, or change the "
            f"file .privet-account beside the records."
        )
    if named or bound:
        return DataAccount.open(named or bound or "")
    stub = read_stub(out) if out is not None else None
    if stub is None:
        return None
    file = Path(stub["file"])
    return DataAccount.open(file if file.exists() else stub["name"])


def _place(source: str) -> Path | None:
    """The file or folder of the records; None for records of the catalog or of a function."""
    kind, colon, path = source.partition(":")
    return Path(path).expanduser() if colon and path and kind != "py" else None


@contextmanager
def on_account(
    account: DataAccount | None, method: Method, task: Task, folder: RunFolder, plan: Event | None = None
) -> Iterator[AccountedRun | None]:
    """Let the account pay for everything that the run records in its ledger; nothing without an account.

    Formal guarantees: the plan of the run is reserved before it uses a record, and a run that would exceed the total is refused.
    Each event is paid for before it is recorded. A stopped run keeps its reservation, unless it has used nothing.

    Args:
        account: the account of the records.
        method, task, folder: the run.
        plan: everything that it will do; by default what the method plans, if that is known in advance.
    """
    if account is None:
        yield None
        return
    ledger, fresh = folder.ledger, not folder.ledger.used
    if fresh and method.spends_budget and read_stub(folder.path) is None:
        account.require_room(task.epsilon, task.delta, method.relation)
    if fresh and plan is None:
        plan = _planned(method, task)
    run = account.begin(
        f"{method.key} on {task.dataset.name}", folder=folder.path, ledger=ledger, plan=plan if fresh else None
    )
    try:
        yield run
    finally:
        # A run that was refused before it used a record cannot be resumed, so it keeps no reservation.
        run.close(ended=not ledger.used)


def _planned(method: Method, task: Task) -> Event | None:
    """Everything that the method will do; None where it cannot say, or where it will refuse the task itself."""
    try:
        return method.planned(task)
    except InputError:
        return None


def standing_of(folder: Path) -> AccountStanding | None:
    """The state of a run folder's account; None if the run has no account, or if the account is not on this machine."""
    stub = read_stub(folder)
    file = Path(stub["file"]) if stub is not None else None
    return DataAccount.open(file).standing() if file is not None and file.exists() else None
