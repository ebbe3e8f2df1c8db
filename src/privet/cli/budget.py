"""`privet budget`: the account of a data set, which counts all runs on it together."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.account import RelationName
from privet.cli.program import AsJson, app, echo, verb
from privet.errors import InputError, PrivetError
from privet.io import check_inside, kind_of
from privet.io.names import account_names, accounts_folder

if TYPE_CHECKING:
    from privet.privacy.account_books import RunOnAccount
    from privet.privacy.data_account import DataAccount
    from privet.privacy.price import Price, Total

verbs = typer.Typer(no_args_is_help=True, help="Keep one account of everything that is done to a data set.")
app.add_typer(verbs, name="budget")


Name = Annotated[
    str,
    typer.Argument(
        help="The account's name, or the path of its file (in $PRIVET_ACCOUNTS, else in your data folder).",
        autocompletion=account_names,
    ),
]
Note = Annotated[str, typer.Option(help="A note for those who read the account.")]


@verbs.command("open", epilog="Example:  privet budget open patients --epsilon 8 --records 5000")
def open_account(
    name: Name,
    epsilon: Annotated[float, typer.Option(help="The epsilon that all runs on the data may spend together.")],
    delta: Annotated[float | None, typer.Option(help="The delta of the total; or give --records.")] = None,
    records: Annotated[
        int | None, typer.Option(help="The public number of records (or users): delta follows from it.", min=1)
    ] = None,
    relation: Annotated[
        RelationName,
        typer.Option(help="Which data sets are neighbors: with one record added or removed, or with one replaced."),
    ] = RelationName.add_remove,
    unit: Annotated[str, typer.Option(help="What is protected: record or user.")] = "record",
    note: Note = "",
    data: Annotated[
        Path | None,
        typer.Option(help="A data file or folder: runs on it then use the account by default."),
    ] = None,
    stated_share: Annotated[
        float | None,
        typer.Option(
            help="The share of delta kept for charges that state only epsilon and delta; 0.1 by default.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open an account with a total for everything that may ever be done to the data. The total cannot be changed later."""
    from privet.privacy import delta_warning, usual_delta
    from privet.privacy.data_account import DataAccount, bind, bound_account

    if delta is None and records is None:
        raise InputError("Give --delta, or --records to compute it.")
    if data is not None:
        kind_of(data)
    if data is not None and (held := bound_account(data)) is not None:
        raise InputError(f"The data in {data} already have the account {held}.")
    chosen = delta if delta is not None else usual_delta(records or 0)
    if records is not None and (said := delta_warning(chosen, records, unit)):
        echo(f"privet: {said}", err=True)
    account = DataAccount.create(name, epsilon, chosen, relation.value, unit, note=note, stated_share=stated_share)
    bound = bind(data, account, name) if data is not None else None
    if as_json:
        echo(json.dumps(_facts(account), indent=1))
        return
    echo(f"Opened the account {account.books.name}: {account.path}")
    echo(f"{account.standing()}.")
    echo("Keep this line elsewhere, and check the account against it later:")
    echo(account.head_line)
    if bound is not None:
        echo(f"Runs on the data in {bound.parent} use it by default: {bound}")


@verbs.command("show", epilog="Example:  privet budget show patients")
def show(
    name: Annotated[
        str, typer.Argument(help="The account; without one, all accounts are listed.", autocompletion=account_names)
    ] = "",
    head: Annotated[
        bool, typer.Option("--head", help="Print one line that names the newest state, to sign or to keep elsewhere.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how much of a data set's total is used, and by which runs."""
    from privet.privacy.data_account import AccountError, DataAccount

    if not name:
        if head:
            raise InputError("Name the account whose head you want.")
        accounts, damaged = [], []
        for each in account_names():
            try:
                accounts.append(DataAccount.open(each))
            except PrivetError as error:
                damaged.append(f"{error}")
        if as_json:
            echo(json.dumps([_facts(account) for account in accounts], indent=1))
        elif not accounts and not damaged:
            echo(f"There are no accounts in {accounts_folder()}: open one with `privet budget open`.")
        for account in accounts if not as_json else ():
            echo(f"{account.standing()}.")
        if damaged:
            raise AccountError(" ".join(damaged))
        return
    account = DataAccount.open(name)
    if head:
        echo(json.dumps({"head": account.head_line}) if as_json else account.head_line)
    elif as_json:
        echo(json.dumps(_facts(account), indent=1))
    else:
        _say(account)


@dataclass
class ChargeOptions:
    """What was spent: a statement, Gaussian steps, or runs in folders."""

    epsilon: Annotated[float | None, typer.Option(help="The epsilon that was spent, proved elsewhere.")] = None
    delta: Annotated[float | None, typer.Option(help="With --epsilon: its delta; 0 without it.")] = None
    relation: Annotated[
        RelationName | None,
        typer.Option(
            help="With --epsilon: the neighboring relation of that statement; by default, that of the account."
        ),
    ] = None
    noise: Annotated[
        float | None, typer.Option(help="Instead of --epsilon: the noise multiplier of Gaussian steps.", min=0.0)
    ] = None
    rate: Annotated[float | None, typer.Option(help="With --noise: the rate of Poisson sampling; 1 without it.")] = None
    steps: Annotated[int | None, typer.Option(help="With --noise: the number of steps; 1 without it.", min=1)] = None
    runs: Annotated[
        list[Path] | None,
        typer.Option("--run", help="The folder of a run that was made without the account; repeat it for several."),
    ] = None
    happened: Annotated[
        bool, typer.Option("--happened", help="It was already spent: enter it even if it exceeds the total.")
    ] = False

    def check(self, note: str) -> None:
        """Raise for options that do not belong together."""
        if sum(given is not None for given in (self.epsilon, self.noise, self.runs or None)) != 1:
            raise InputError("Give one of --epsilon, --noise and --run.")
        if self.epsilon is None and (self.delta is not None or self.relation is not None):
            raise InputError("--delta and --relation belong to --epsilon: leave them out.")
        if self.noise is None and (self.rate is not None or self.steps is not None):
            raise InputError("--rate and --steps belong to --noise: leave them out.")
        if self.runs and self.happened:
            raise InputError("A run in a folder has already been made, so --happened changes nothing: leave it out.")
        if not self.runs and not note.strip():
            raise InputError("Say with --note who spent it, and on what.")
        for folder in self.runs or ():
            if not folder.is_dir():
                raise InputError(f"{folder} is not the folder of a run.")

    def price(self, total: Total) -> Price:
        """The price of the statement or the steps on an account."""
        from privet.privacy import Gaussian, PoissonSampled

        if self.noise is not None:
            rate = 1.0 if self.rate is None else self.rate
            return total.price(PoissonSampled(rate, Gaussian(self.noise)) * (self.steps or 1))
        relation = self.relation.value if self.relation is not None else None
        return total.stated_price(self.epsilon or 0.0, self.delta or 0.0, relation)


@verb("charge", 'privet budget charge patients --epsilon 0.5 --note "histogram, statistics office"', verbs)
def charge(name: Name, spent: ChargeOptions, note: Note = "", as_json: AsJson = False) -> None:
    """Enter spending that the account did not see: a release made elsewhere, or a run made without the account."""
    from privet.privacy.data_account import DataAccount

    spent.check(note)
    account = DataAccount.open(name)
    for folder in spent.runs or ():
        from privet.training.folder import alone_in

        check_inside(folder)
        with alone_in(folder):  # a run that goes on meanwhile would use more than is charged
            account.adopt(folder, note)
    if not spent.runs:
        account.charge(spent.price(account.books.total), note, happened=spent.happened)
    if as_json:
        echo(json.dumps(_facts(account), indent=1))
        return
    echo(f"{account.standing()}.")


@verbs.command("check", epilog="Example:  privet budget check patients runs")
def check(
    name: Name,
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders with runs, to find copies and runs that were moved.")
    ] = None,
    head: Annotated[
        str, typer.Option(metavar="LINE", help="A line of `privet budget show --head` that was kept elsewhere.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Check an account: its running hash, a line that was kept elsewhere, and the run folders that are still there."""
    from privet.privacy.data_account import DataAccount, check_account

    for folder in folders or ():
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder.")
    account = DataAccount.open(name)
    found = check_account(account, head=head, folders=folders or ())
    wrong = [finding for finding in found if finding.wrong]
    if as_json:
        facts = {"right": not wrong, "findings": [asdict(finding) for finding in found]}
        echo(json.dumps(_facts(account) | facts, indent=1))
    else:
        for finding in sorted(found, key=lambda finding: not finding.wrong):
            echo(f"{'WRONG: ' if finding.wrong else ''}{finding.text}")
        echo(f"{account.standing()}.")
    if wrong:
        raise typer.Exit(1)


@verbs.command("settle", epilog="Example:  privet budget settle patients runs/a")
def settle(
    name: Name,
    run: Annotated[str, typer.Argument(help="The run: its folder, or its key as `privet budget show` lists it.")],
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Give up a run that was stopped: what it drew stays charged, and what was reserved for it is free again."""
    from privet.privacy.data_account import DataAccount

    account = DataAccount.open(name)
    given_up = account.settle(run, note)
    if as_json:
        echo(json.dumps(_facts(account), indent=1))
        return
    used = account.books.total.share(given_up.drawn)
    echo(f"The run {given_up.key} was given up; what it drew stays charged ({_percent(used)} of the total).")
    echo(f"{account.standing()}.")


@verbs.command("recover", epilog="Example:  privet budget recover patients")
def recover_account(
    name: Name,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Another copy of the account; without it, the newest state that this machine has seen."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Mend an account whose file was lost, replaced by an older copy, or continued in two copies."""
    from privet.privacy.data_account import recover

    account, said = recover(name, source)
    if as_json:
        echo(json.dumps(_facts(account) | {"done": said}, indent=1))
        return
    echo(said)
    echo(f"{account.standing()}.")


def _percent(share: float) -> str:
    from privet.privacy.account_books import percent

    return percent(share)


def _facts(account: DataAccount) -> dict[str, Any]:
    """The account for --json."""
    books, total = account.books, account.books.total
    return {
        **asdict(account.standing()),
        "file": str(account.path),
        "opened": books.opened,
        "note": books.note,
        "passed": account.standing().passed,
        "vacuous": account.standing().vacuous,
        "room": total.room(books.used + books.reserved),
        "head_line": account.head_line,
        "not_anchored": account.unseen,
        "runs_on_it": [
            {
                "key": run.key,
                "what": run.what,
                "folder": run.folder,
                "began": run.began,
                "last": run.last,
                "stands": run.said,
                "used": min(total.share(run.drawn), 1e300),
                "reserved": min(total.share(run.reserved), 1e300),
            }
            for run in books.runs.values()
        ],
        "charges_by_hand": [
            {"date": each.date, "note": each.note, "used": min(total.share(each.price), 1e300)}
            for each in books.charges
        ],
    }


def _say(account: DataAccount) -> None:
    from privet.privacy.account_books import one_line

    books, total = account.books, account.books.total
    standing = account.standing()
    echo(f"{standing}.")
    if account.unseen:
        echo(f"privet: {account.unseen}.", err=True)
    room = total.room(books.used + books.reserved)
    echo(
        f"Room for a Gaussian release of epsilon = {room:.2g} at delta = {total.delta:g}, and for less if steps are sampled."
        if room > 0.01
        else "No room for another run."
    )
    if books.note:
        echo(one_line(books.note))
    for run in books.runs.values():
        echo(_line(run, total))
    for each in books.charges:
        echo(f"  by hand   {each.date[:16]}  used {_percent(total.share(each.price)):>8}  {one_line(each.note)}")


def _line(run: RunOnAccount, total: Total) -> str:
    from privet.privacy.account_books import one_line

    reserved = f", reserved {_percent(total.share(run.reserved))}" if not run.reserved.is_free else ""
    where = f" in {run.folder}" if run.folder else " in memory"
    gone = ", whose folder is gone" if run.folder and not Path(run.folder).is_dir() else ""
    said = f"{run.said}{reserved}: {run.what}{where}{gone}"
    return f"  {run.key[:8]}  {run.began[:16]}  used {_percent(total.share(run.drawn)):>8}  {one_line(said, 500)}"
