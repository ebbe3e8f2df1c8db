"""The content of a data set's account: its entries, and its state."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from privet.io import printable
from privet.privacy.guarantees import Assumed, Guarantee, Proved, Relation, guarantee_from_dict, weakest
from privet.privacy.price import Price, Total

FORMAT = 1
"""The format of the lines of an account."""


@dataclass
class RunOnAccount:
    """A run as its account sees it.

    Attributes:
        key: the random name that the account gave it.
        began: when it began.
        what: what it is, in a few words.
        folder: where it was when it last wrote to the account; empty for a run in memory.
        reserved: planned spending that is not drawn yet.
        drawn: an upper bound of what it used. A step is drawn before it is used, also in a copy of its folder.
        sessions: what each process drew; None once the process has closed.
        how: "ended" or "abandoned" once nothing is reserved for it any more; empty before.
        last: when it last wrote to the account.
    """

    key: str
    began: str
    what: str
    folder: str
    reserved: Price
    drawn: Price
    sessions: dict[str, Price | None] = field(default_factory=dict)
    how: str = ""
    last: str = ""

    @property
    def said(self) -> str:
        """The state of the run, in words."""
        if self.how:
            return self.how
        return "running or stopped" if any(held is not None for held in self.sessions.values()) else "stopped"


@dataclass(frozen=True)
class Charge:
    """Spending outside Privet's runs, entered by hand."""

    date: str
    price: Price
    note: str


class Books:
    """The content of an account: the total, the runs and the charges, read line by line."""

    def __init__(self) -> None:
        self.lines = 0
        self.heads: list[str] = []
        self.id = self.name = self.opened = self.note = self.last = ""
        self.total: Total
        self.runs: dict[str, RunOnAccount] = {}
        self.charges: list[Charge] = []
        self.guarantees: dict[Guarantee, None] = {}
        self.conditions: dict[str, None] = {}

    @property
    def head(self) -> str:
        return self.heads[-1] if self.heads else ""

    @property
    def used(self) -> Price:
        """An upper bound of everything that was used."""
        return _sum(self.total, [run.drawn for run in self.runs.values()] + [charge.price for charge in self.charges])

    @property
    def reserved(self) -> Price:
        """What runs that have not ended plan to use."""
        return _sum(self.total, [run.reserved for run in self.runs.values()])

    @property
    def guarantee(self) -> Guarantee:
        """The weakest guarantee of all spending."""
        return weakest(self.guarantees)

    def standing(self) -> AccountStanding:
        """The state of the account."""
        total, guarantee = self.total, self.guarantee
        return AccountStanding(
            name=self.name,
            account=self.id,
            date=self.last,
            lines=self.lines,
            head=self.head,
            epsilon=total.epsilon,
            delta=total.delta,
            relation=total.relation.value,
            unit=total.unit,
            theorem=total.theorem,
            used=min(total.share(self.used), 1e300),
            reserved=min(max(0.0, total.share(self.used + self.reserved) - total.share(self.used)), 1e300),
            runs=len(self.runs),
            stopped=sum(not run.how for run in self.runs.values()),
            charges=len(self.charges),
            assumptions=() if isinstance(guarantee, Proved) else _assumptions(guarantee),
            conditions=tuple(self.conditions),
        )

    def take(self, entry: dict[str, Any], head: str) -> None:
        """Read one entry. Raises `KeyError`, `TypeError` or `ValueError` if it is not one of an account."""
        if self.lines == 0:
            self._open(entry)
        else:
            (kind,) = (kind for kind in _KINDS if kind in entry)
            date = _text(entry["date"])
            getattr(self, f"_{kind}")(entry, date)
            self.last = date
        self.lines += 1
        self.heads.append(head)

    def _open(self, entry: dict[str, Any]) -> None:
        if entry["account"] != FORMAT or not re.fullmatch(r"[0-9a-f]{32}", entry["id"]):
            raise ValueError
        self.id, self.name, self.opened = entry["id"], _text(entry["name"]), _text(entry["date"])
        self.note, self.last = _text(entry["note"]), self.opened
        self.total = Total(
            _number(entry["epsilon"]),
            _number(entry["delta"]),
            Relation.of(entry["relation"]),
            _text(entry["unit"]),
            tuple(map(_number, entry["orders"])),
            tuple(map(_number, entry["limits"])),
            _number(entry["stated"]),
        )

    def _begin(self, entry: dict[str, Any], date: str) -> None:
        key = _text(entry["begin"])
        run = self.runs.setdefault(key, RunOnAccount(key, date, "", "", self.total.free, self.total.free))
        if _text(entry["session"]) in run.sessions:
            raise ValueError
        run.sessions[entry["session"]] = self.total.free
        run.what, run.folder, run.how, run.last = _text(entry["what"]), _text(entry["folder"]), "", date

    def _reserve(self, entry: dict[str, Any], date: str) -> None:
        run = self.runs[entry["reserve"]]
        run.reserved, run.last = run.reserved + self._price(entry), date

    def _draw(self, entry: dict[str, Any], date: str) -> None:
        run, price = self.runs[entry["draw"]], self._price(entry)
        held = run.sessions[entry["session"]]
        if held is None:
            raise ValueError  # the process had closed
        run.sessions[entry["session"]] = held + price
        run.drawn, run.reserved, run.last = run.drawn + price, run.reserved - price, date
        self._know(entry)

    def _close(self, entry: dict[str, Any], date: str) -> None:
        run, back = self.runs[entry["close"]], self._price(entry)
        held = run.sessions[entry["session"]]
        if held is None or not held.covers(back):
            raise ValueError  # a run cannot return more than it drew
        run.sessions[entry["session"]] = None
        run.drawn, run.last, run.how = run.drawn - back, date, _text(entry["how"])
        # A run that can be resumed keeps what it returned as a reservation.
        run.reserved = self.total.free if run.how else run.reserved + back
        self._know(entry)

    def _settle(self, entry: dict[str, Any], date: str) -> None:
        run = self.runs[entry["settle"]]
        run.reserved, run.how, run.last = self.total.free, _text(entry["how"]), date

    def _charge(self, entry: dict[str, Any], date: str) -> None:
        self.charges.append(Charge(date, self._price(entry), _text(entry["charge"])))
        self._know(entry)

    def _know(self, entry: dict[str, Any]) -> None:
        if "guarantee" in entry:
            self.guarantees[guarantee_from_dict(entry["guarantee"])] = None
        self.conditions.update(dict.fromkeys(map(_text, entry.get("conditions", ()))))

    def _price(self, entry: dict[str, Any]) -> Price:
        return Price.from_list(entry["price"], len(self.total.orders))


_KINDS = ("begin", "reserve", "draw", "close", "settle", "charge")


def _assumptions(guarantee: Guarantee) -> tuple[str, ...]:
    return guarantee.assumptions if isinstance(guarantee, Assumed) else (str(guarantee),)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _sum(total: Total, prices: list[Price]) -> Price:
    found = total.free
    for price in prices:
        found += price
    return found


@dataclass(frozen=True)
class AccountStanding:
    """The state of an account at one moment, for cards and pages.

    Attributes:
        name, account: its name and its identity.
        date, lines, head: the moment: its last line, and the running hash of everything up to it.
        epsilon, delta, relation, unit: its total, which covers all releases on it, also later ones.
        theorem: why releases that depend on earlier ones add up to at most that.
        used, reserved: shares of the total; above 1 the total is exceeded.
        runs, stopped: how many runs there are, and how many of them have not ended.
        charges: how often spending outside Privet was entered by hand.
        assumptions, conditions: those of the total.
    """

    name: str
    account: str
    date: str
    lines: int
    head: str
    epsilon: float
    delta: float
    relation: str
    unit: str
    theorem: str
    used: float
    reserved: float
    runs: int
    stopped: int
    charges: int
    assumptions: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether more was used than the total, so that nothing is promised."""
        return self.used > 1 + 1e-9

    @property
    def vacuous(self) -> bool:
        """Whether the total is so large that it promises nothing in practice (docs/decisions/0009)."""
        from privet.privacy.meaning import TradeOff

        return TradeOff([(self.epsilon, self.delta)]).vacuous

    def __str__(self) -> str:
        counted = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        counted += f" ({self.stopped} not ended)" if self.stopped else ""
        counted += f" and {self.charges} charge{'' if self.charges == 1 else 's'} by hand" if self.charges else ""
        standing = "assuming " + " and ".join(self.assumptions) if self.assumptions else "proved"
        standing += ", but vacuous: such a total promises nothing in practice" if self.vacuous else ""
        total = f"epsilon = {self.epsilon:g} at delta = {self.delta:g}"
        facts = "; ".join((Relation.of(self.relation).describe(self.unit), self.theorem, standing, *self.conditions))
        if self.passed:
            return (
                f"On {self.date} the account {self.name} had passed its total of {total}, with {counted}: nothing is promised "
                f"for all of them together ({facts})"
            )
        reserved = f", and {percent(self.reserved)} is reserved" if self.reserved else ""
        return (
            f"On {self.date} the account {self.name} held {counted}: {percent(self.used)} of its total of {total} is used"
            f"{reserved}. The total covers all of them together, and later ones ({facts})"
        )


def percent(share: float) -> str:
    """Rounded up, so that the printed number is still a bound."""
    percent = 100 * share
    if percent > 1e6:
        return "more than 1,000,000 %"
    return f"{-(-percent * 10 // 1) / 10:g} %" if percent < 100 or share > 1 + 1e-9 else "100 %"


def one_line(text: str, most: int = 200) -> str:
    """Text from elsewhere on one line, without control characters."""
    return printable(" ".join(printable(text).split()), most)
