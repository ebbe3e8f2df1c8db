"""The page: one self-contained HTML file from the run's record and its ledger, and from nothing else."""

from __future__ import annotations

import base64
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from privet.attacks.result import AttackResult, Rate
from privet.audit.result import round_down
from privet.errors import InputError
from privet.io import write_whole
from privet.privacy import Ledger, Spent
from privet.privacy.spent import round_up
from privet.report import figures, others, statement, words
from privet.report.card import write_card
from privet.report.places import Way, draw_way, way_of
from privet.report.record import RunRecord

FILE = "report.html"
Limit = Callable[[float], float]
"""The largest true positive rate that the statement allows at a false positive rate."""


def write_page(folder: Path) -> Path:
    """Write `report.html` of a run folder, whole or not at all; made again, it has the same bytes."""
    record = RunRecord.read(folder)
    page = render(record, record.open_ledger(folder), samples=picture(record, folder))
    return write_whole(folder / FILE, page.encode(), mode=record.internal_mode)


def picture(record: RunRecord, folder: Path) -> str:
    """The samples of a synthetic data set as an address that holds the picture itself; empty where there is none."""
    if not record.synthetic or not record.synthetic.picture:
        return ""
    path = folder / record.synthetic.picture
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the samples of the run cannot be read ({error.strerror}).") from None
    if not content.startswith(b"\x89PNG"):
        raise InputError(f"{path}: the samples of the run are no PNG; run the command again.")
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def render(record: RunRecord, ledger: Ledger, *, samples: str = "") -> str:
    """The page as text; `samples` is the address of a picture, as `picture` gives it."""
    spent = record.spent(ledger)
    standing = statement.standing(record, spent)
    limit = spent.meaning.true_positive_rate
    way = way_of(record, ledger)
    total = others.together(record, ledger)
    template = environment().get_template("report.html.j2")
    return template.render(
        record=record,
        internal=not record.data.public,
        unprotected=record.data.who_is_unprotected,
        not_for_release=statement.not_for_release(record),
        title=statement.title(record, spent),
        statement=_unbroken(str(spent)),
        standing=standing,
        opening=statement.opening(record, spent),
        meaning=statement.meaning(record, spent),
        calibrated=statement.calibrated(record.calibrated(ledger), spent),
        tiles=_tiles(record, limit, standing),
        attack=record.attack,
        audits=record.audits,
        too_few=bool(record.attack and not all(map(record.attack.resolves, record.attack.rates))),
        verdict=_verdict(record.attack, limit) if record.attack else "",
        limit=limit,
        released=statement.released(record),
        way=way,
        samples=samples,
        others=record.others or (),
        together=str(total) if total is not None else "",
        figures=_figures(record, spent, limit, standing, way),
        entries=[_entry(number, event, count, ledger.unit) for number, (event, count) in enumerate(ledger, 1)],
        head=ledger.head,
        caveats=_caveats(record, spent),
        command=shlex.join(record.command),
    )


@dataclass(frozen=True)
class Tile:
    """One number of the first screen, with what it must be read against."""

    name: str
    value: str
    beside: str


@dataclass(frozen=True)
class Entry:
    """One line of the ledger in words."""

    number: int
    sentence: str
    count: int
    standing: words.Standing


def environment() -> Environment:
    """The templates of the pages, with what they need to say numbers."""
    made = Environment(
        loader=PackageLoader("privet.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Any] = {
        "share": words.share,
        "at_most": words.share_at_most,
        "number": words.number,
        "duration": words.duration,
        "at_least": round_down,
        "epsilon": round_up,
    }
    made.filters.update(filters)
    return made


def _unbroken(statement: str) -> Markup:
    """The statement with its two numbers kept on one line each; the text stays the ledger's own."""
    return Markup(re.sub(r"(epsilon|delta) = [^ ]+", r'<span class="whole">\g<0></span>', str(escape(statement))))


def _tiles(record: RunRecord, limit: Limit, standing: words.Standing) -> list[Tile]:
    on = (
        "test records" if record.data.public or not record.data.measured_share else "records that it was not trained on"
    )
    tiles = [
        Tile(
            f"A student's accuracy on the {on}" if record.synthetic else f"Accuracy on the {on}",
            "not measured" if record.accuracy is None else f"{100 * record.accuracy:.2f} %",
            _beside_accuracy(record),
        )
    ]
    if attack := record.attack:
        allows = "the claim would allow" if standing.kind == "claimed" else "the guarantee allows"
        lowest = next((rate for rate in attack.rates if attack.resolves(rate)), attack.rates[-1])
        against = f"{allows} {words.share_at_most(limit(lowest.fpr))}"
        if not attack.resolves(lowest):
            against = "the others are too few to compare this with what the statement allows"
        tiles += [
            Tile(
                "Area under the attack's ROC",
                f"{attack.auc:.3f}",
                f"{100 * attack.level:.0f} % interval {attack.low:.3f} to {attack.high:.3f}; a coin has 0.5",
            ),
            Tile(
                f"Training records found at {words.share(lowest.fpr)} false alarms",
                words.share(lowest.tpr),
                f"a coin finds {words.share(lowest.fpr)}; {against}",
            ),
        ]
    tiles.append(
        Tile(
            f"{record.data.unit.capitalize()}s {'trained on' if standing.protects else 'used'}",
            f"{record.data.training_records:,}",
            f"the training part of {record.data.name}{'' if record.data.public else ', as far as the number is public'}"
            f"{_who_else(record, standing)}",
        )
    )
    return tiles


def _who_else(record: RunRecord, standing: words.Standing) -> str:
    """Whether those that were only measured on are protected, too."""
    if not standing.protects:
        return ""
    if record.data.protects_test:
        return f"; all {record.data.unit}s are protected, those that were only measured on too"
    return "; they are protected, those that were measured on are not"


def _beside_accuracy(record: RunRecord) -> str:
    if record.training_accuracy is None or record.test_accuracy is None:
        return "the loop was the user's own: private.report(test=...) measures it"
    on_training = f"on the training records {100 * record.training_accuracy:.2f} %"
    utility = record.utility
    if utility is None:
        return on_training if record.data.public else f"not measured with noise: exact, and internal; {on_training}"
    said = f"95 % interval {100 * utility.low:.1f} to {100 * utility.high:.1f} %; "
    said += f"always the most frequent class: {100 * utility.majority:.1f} %; "
    if utility.noise:
        said += f"measured with noise; exactly {100 * record.test_accuracy:.2f} %, which is internal; "
    return said + on_training


def above_the_limit(attack: AttackResult, limit: Limit) -> bool:
    """Whether the attack's curve is above the limit by more than chance explains.

    Both rates get a one-sided band that holds at all thresholds at once (Dvoretzky, Kiefer, Wolfowitz and Massart), with half
    of the interval's error each. The records of each side are taken as independent of one another.
    """
    alpha = (1 - attack.level) / 2
    few, many = (math.sqrt(math.log(1 / alpha) / (2 * count)) for count in (attack.members, attack.non_members))
    curve = zip(attack.false_positive_rate, attack.true_positive_rate, strict=True)
    return any(found - few > limit(min(1.0, wrongly + many)) for wrongly, found in curve)


def _most_wrong(attack: AttackResult, rate: Rate) -> float:
    """The false positive rate of a row; where no false alarm was allowed, the most that it may be (Clopper-Pearson)."""
    if attack.resolves(rate):
        return rate.fpr
    allowed: float = 1 - ((1 - attack.level) / 2) ** (1 / attack.non_members)
    return allowed


def _verdict(attack: AttackResult, limit: Limit) -> str:
    if above_the_limit(attack, limit):
        return (
            "The attack does better than the statement allows, by more than chance explains. Either people have several "
            "records in the data, or copies of one, and the statement is about one record; or the training records differ from "
            "the others in more than having been used; or the statement is wrong. Find out which before you release anything."
        )
    if attack.low > 0.5:
        return (
            "The attack tells members from non-members better than a coin: the whole interval lies above one half. "
            "That is allowed as long as it stays below the limit of the guarantee."
        )
    if attack.high < 0.5:
        return (
            "The attack does worse than a coin: the others fit the model better than the training records do. The two "
            "groups then differ by more than membership, and the comparison says little about what leaks."
        )
    above = [rate for rate in attack.rates if rate.low > _most_wrong(attack, rate)]
    if above:
        said = (words.share(rate.fpr) if attack.resolves(rate) else "no" for rate in above)
        at = " and at ".join(dict.fromkeys(said))
        return (
            "Over all thresholds the attack does no better than a coin: one half lies within the interval of the area. But at "
            f"{at} false positives it finds more members than a coin, by the interval in the table: a few records may be "
            "recognized."
        )
    return (
        "The attack does no better than a coin: one half lies within the interval of the area, and no rate in the table is "
        "surely above a coin's. That is evidence about this attack, not a proof about others."
    )


def _figures(record: RunRecord, spent: Spent, limit: Limit, standing: words.Standing, way: Way) -> dict[str, Markup]:
    drawn = {"noise": draw_way(way, standing.look)}
    if record.audits:
        drawn["audits"] = figures.audits(record.audits)
    if record.history:
        drawn["budget"] = figures.budget(record.history, round_up(spent.epsilon))
        if any(epoch.accuracy is not None for epoch in record.history):
            drawn["accuracy"] = figures.accuracy(record.history)
        drawn["loss"] = figures.loss(record.history)
    if record.attack:
        name = "The limit that is only claimed" if standing.kind == "claimed" else "The limit of the guarantee"
        drawn["roc"] = figures.roc(record.attack, limit, name)
        drawn["roc_log"] = figures.roc_at_low_rates(record.attack, limit, name)
    # The drawings are made here and hold no text of the user's, except what `figures` has escaped.
    return {name: Markup(drawing) for name, drawing in drawn.items()}


def _entry(number: int, event: Any, count: int, unit: str) -> Entry:
    sentence = words.describe(event, unit.split()[0])
    return Entry(number, sentence[0].upper() + sentence[1:] + ".", count, words.standing(event.guarantee))


def _caveats(record: RunRecord, spent: Spent) -> list[tuple[str, str]]:
    """What the statement does not cover, and what is special about this page."""
    page = (
        "This page.",
        "The training loss, the training accuracy and the attack were computed from the training records without noise. "
        "They are not part of the statement: show them only to those who may see the data.",
    )
    comparison = (
        "The comparison.",
        "The attack compares training records with test records. Where these were collected in another way, it sees "
        "that difference too.",
    )
    found = statement.caveats(record, spent)
    place = 1 if found[0][0] == "Seeded noise." else 0
    return [*found[:place], page, *found[place:], comparison]


def renew(folder: Path) -> Path:
    """Write the card and the page of a run folder; gives the page."""
    write_card(folder)
    return write_page(folder)
