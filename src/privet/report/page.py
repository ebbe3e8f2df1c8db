"""The page: one self-contained HTML file, made from the run's record and its ledger alone."""

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
from scipy import stats

from privet.attacks.result import AttackResult, Rate
from privet.audit.result import round_down
from privet.errors import InputError
from privet.io import why_refused, write_whole
from privet.privacy import Ledger, Spent
from privet.privacy.spent import round_up
from privet.report import figures, others, statement, words
from privet.report.about import answers
from privet.report.card import card, first_screen, with_files, write_card
from privet.report.places import Way, draw_way, way_of
from privet.report.record import RunRecord
from privet.report.signatures import SIGNATURES, SignOff, sign_off

FILE = "report.html"
Limit = Callable[[float], float]
"""The largest true positive rate that the statement allows at a false positive rate."""


def write_page(folder: Path) -> Path:
    """Write `report.html` of a run folder, complete or not at all; writing it again gives the same bytes."""
    record = with_files(folder, RunRecord.read(folder))
    ledger = record.open_ledger(folder)
    signed = sign_off(folder, card(record, ledger)) if (folder / SIGNATURES).exists() else None
    page = render(record, ledger, samples=picture(record, folder), signed=signed)
    return write_whole(folder / FILE, page.encode(), mode=record.internal_mode)


def picture(record: RunRecord, folder: Path) -> str:
    """The samples of a synthetic data set as a data URL with the picture; empty if there is none."""
    if not record.synthetic or not record.synthetic.picture:
        return ""
    path = folder / record.synthetic.picture
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the samples of the run cannot be read {why_refused(error)}.") from None
    if not content.startswith(b"\x89PNG"):
        raise InputError(f"{path}: the samples of the run are no PNG; run the command again.")
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def render(record: RunRecord, ledger: Ledger, *, samples: str = "", signed: SignOff | None = None) -> str:
    """The page as text.

    Args:
        record, ledger: of the run.
        samples: the address of a picture, as `picture` gives it.
        signed: the signatures of the card.
    """
    spent = record.spent(ledger)
    standing = statement.standing(record, spent)
    limit = spent.meaning.true_positive_rate
    attack = _leading(record, limit)
    way = way_of(record, record.made_by(ledger))
    total = others.together(record, ledger)
    template = environment().get_template("report.html.j2")
    return template.render(
        record=record,
        internal=not record.data.public,
        unprotected=record.data.who_is_unprotected,
        not_for_release=statement.not_for_release(record),
        title=statement.title(record, spent),
        first=first_screen(record, ledger, spent),
        statement=_unbroken(str(spent)),
        standing=standing,
        opening=statement.opening(record, spent),
        meaning=statement.meaning(record, spent),
        choice=statement.choice(record, spent),
        calibrated=statement.calibrated(record.calibrated(ledger), spent),
        tiles=_tiles(record, attack, limit, standing),
        attack=attack,
        attacks=[_attack_line(one, limit, len(record.attacks)) for one in record.attacks],
        audits=record.audits,
        too_few=bool(attack and not all(map(attack.resolves, attack.rates))),
        verdict=_verdict(attack, limit, len(record.attacks)) if attack else "",
        limit=limit,
        released=statement.released(record),
        way=way,
        samples=samples,
        signed=signed or SignOff(),
        others=record.others or (),
        together=str(total) if total is not None else "",
        figures=_figures(record, attack, spent, limit, standing, way),
        entries=[_entry(number, event, count, ledger.unit) for number, (event, count) in enumerate(ledger, 1)],
        head=ledger.head,
        caveats=_caveats(record, spent),
        answers=answers(record.stated),
        command=shlex.join(record.command),
    )


@dataclass(frozen=True)
class Tile:
    """One number of the first screen, with the value to compare it with."""

    name: str
    value: str
    beside: str


@dataclass(frozen=True)
class AttackLine:
    """One attack in the table of all attacks."""

    attack: AttackResult
    lowest: Rate
    """The lowest false positive rate that can be measured with this number of non-members."""
    verdict: str
    command: str


@dataclass(frozen=True)
class LedgerLine:
    """One line of the ledger in words."""

    number: int
    sentence: str
    count: int
    standing: words.Standing


def environment() -> Environment:
    """The templates of the pages, with filters that format numbers."""
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
        "shell": shlex.join,
        "bytes": words.size,
        "unbroken": _unbroken,
    }
    made.filters.update(filters)
    return made


def _unbroken(statement: str) -> Markup:
    """A text with each epsilon and delta kept on one line; the words stay the same."""
    return Markup(re.sub(r"(epsilon|delta) = [^ ]+", r'<span class="whole">\g<0></span>', str(escape(statement))))


def _tiles(record: RunRecord, attack: AttackResult | None, limit: Limit, standing: words.Standing) -> list[Tile]:
    on = (
        "test records" if record.data.public or not record.data.measured_share else "records that it was not trained on"
    )
    if record.data.target:
        return [_error_tile(record, on), *_other_tiles(record, attack, limit, standing)]
    accuracy = [
        Tile(
            f"A student's accuracy on the {on}" if record.synthetic else f"Accuracy on the {on}",
            "not measured" if record.accuracy is None else f"{100 * record.accuracy:.2f} %",
            _beside_accuracy(record),
        )
    ]
    return accuracy + _other_tiles(record, attack, limit, standing)


def _error_tile(record: RunRecord, on: str) -> Tile:
    found, title = record.error, f"Error for {record.data.target} on the {on}"
    if found is None:
        return Tile(title, "not measured", "not measured with noise: exact figures are internal")
    said = f"root of the mean square; 95 % interval {found.low:.4g} to {found.high:.4g}; the best constant: {found.constant:.4g}"
    return Tile(title, f"{found.error:.4g}", f"{said}; measured with noise" if found.noise else said)


def _other_tiles(record: RunRecord, attack: AttackResult | None, limit: Limit, standing: words.Standing) -> list[Tile]:
    tiles: list[Tile] = []
    if attack is not None:
        allows = "the claim would allow" if standing.kind == "claimed" else "the guarantee allows"
        lowest = _lowest(attack)
        against = f"{allows} {words.share_at_most(limit(lowest.fpr))}"
        if not attack.resolves(lowest):
            against = "the others are too few to compare this with what the statement allows"
        tiles += [
            Tile(
                "Area under the attack's ROC",
                f"{attack.auc:.3f}",
                f"{100 * attack.level:.0f} % interval {attack.low:.3f} to {attack.high:.3f}; a coin has 0.5"
                + (f"; the most successful of {len(record.attacks)} attacks" if len(record.attacks) > 1 else ""),
            ),
            Tile(
                f"Training records found at {words.share(lowest.fpr)} false positives",
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
    """Whether the test records are protected, too."""
    if not standing.protects:
        return ""
    if record.data.protects_test:
        return f"; all {record.data.unit}s are protected, including those used only for measuring"
    return "; they are protected, but those used for measuring are not"


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


def above_the_limit(attack: AttackResult, limit: Limit, tried: int = 1) -> bool:
    """Whether the attack's curve exceeds the limit by more than chance explains, if `tried` attacks were made.

    Both rates get a one-sided band that holds at all thresholds at once (Dvoretzky, Kiefer, Wolfowitz and Massart), with half
    of the interval's error each, divided by the number of attacks. The records of each side are taken as independent of one
    another.
    """
    alpha = (1 - attack.level) / 2 / tried
    few, many = (math.sqrt(math.log(1 / alpha) / (2 * count)) for count in (attack.members, attack.non_members))
    curve = zip(attack.false_positive_rate, attack.true_positive_rate, strict=True)
    return any(found - few > limit(min(1.0, wrongly + many)) for wrongly, found in curve)


def _leading(record: RunRecord, limit: Limit) -> AttackResult | None:
    """The attack that the page shows first: one above the limit, or else the most successful one."""
    above = [attack for attack in record.attacks if above_the_limit(attack, limit, len(record.attacks))]
    return max(above, key=lambda attack: attack.low, default=record.attack)


def _lowest(attack: AttackResult) -> Rate:
    """The true positive rate at the lowest false positive rate that can be measured."""
    return next((rate for rate in attack.rates if attack.resolves(rate)), attack.rates[-1])


def _attack_line(attack: AttackResult, limit: Limit, tried: int) -> AttackLine:
    if above_the_limit(attack, limit, tried):
        verdict = "better than the statement allows"
    elif attack.low > 0.5:
        verdict = "better than a coin"
    elif attack.high < 0.5:
        verdict = "worse than a coin"
    elif _above_a_coin(attack):
        verdict = "better than a coin at few false positives"
    else:
        verdict = "no better than a coin"
    return AttackLine(attack, _lowest(attack), verdict, shlex.join(attack.command))


def _most_wrong(attack: AttackResult, rate: Rate) -> float:
    """An upper bound of the false positive rate (Clopper-Pearson), because the threshold was chosen on few non-members."""
    allowed, others = math.floor(attack.non_members * rate.fpr + 1e-9), attack.non_members
    return float(stats.beta.ppf((1 + attack.level) / 2, allowed + 1, others - allowed)) if allowed < others else 1.0


def _above_a_coin(attack: AttackResult) -> list[Rate]:
    """The rates at which the attack finds more members than guessing does: the two intervals do not overlap."""
    return [rate for rate in attack.rates if rate.low > _most_wrong(attack, rate)]


def _verdict(attack: AttackResult, limit: Limit, tried: int = 1) -> str:
    if above_the_limit(attack, limit, tried):
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
    if above := _above_a_coin(attack):
        said = (words.share(rate.fpr) if attack.resolves(rate) else "no" for rate in above)
        at = " and at ".join(dict.fromkeys(said))
        return (
            "Over all thresholds the attack does no better than a coin: one half lies within the interval of the area. But at "
            f"{at} false positives it finds more members than a coin, by more than chance explains: a few records may be "
            "recognized."
        )
    return (
        "The attack does no better than a coin: one half lies within the interval of the area, and no rate in the table is "
        "surely above a coin's. That is evidence about this attack, not a proof about others."
    )


def _figures(
    record: RunRecord,
    attack: AttackResult | None,
    spent: Spent,
    limit: Limit,
    standing: words.Standing,
    way: Way,
) -> dict[str, Markup]:
    drawn = {"noise": draw_way(way, standing.look)}
    if record.audits:
        drawn["audits"] = figures.audits(record.audits)
    if record.history:
        drawn["budget"] = figures.budget(record.history, round_up(spent.epsilon))
        if any(epoch.accuracy is not None for epoch in record.history):
            drawn["accuracy"] = figures.accuracy(record.history)
        drawn["loss"] = figures.loss(record.history)
    if attack is not None:
        name = "The limit that is only claimed" if standing.kind == "claimed" else "The limit of the guarantee"
        drawn["roc"] = figures.roc(attack, limit, name)
        drawn["roc_log"] = figures.roc_at_low_rates(attack, limit, name)
    # The drawings are made here and hold no text of the user's, except what `figures` has escaped.
    return {name: Markup(drawing) for name, drawing in drawn.items()}


def _entry(number: int, event: Any, count: int, unit: str) -> LedgerLine:
    sentence = words.describe(event, unit.split()[0])
    return LedgerLine(number, sentence[0].upper() + sentence[1:] + ".", count, words.standing(event.guarantee))


def _caveats(record: RunRecord, spent: Spent) -> list[tuple[str, str]]:
    """What the statement does not cover, and what is special about this page."""
    exact = [
        *(["the training loss"] if record.history else []),
        *(["the training accuracy"] if record.training_accuracy is not None else []),
        *(["the attacks"] if record.attacks else []),
    ]
    whose = "" if record.data.public else ": show them only to those who may see the data"
    page = [
        (
            "This page.",
            f"Computed from the training records without noise: {', '.join(exact)}. They are not part of the statement{whose}.",
        )
    ]
    comparison = [
        (
            "The comparison.",
            "An attack compares training records with test records. If these were collected differently, it also sees that "
            "difference.",
        )
    ]
    found = statement.caveats(record, spent)
    place = 1 if found[0][0] == "Seeded noise." else 0
    return [*found[:place], *(page if exact else []), *found[place:], *(comparison if record.attacks else [])]


def renew(folder: Path) -> Path:
    """Write the card and the page of a run folder; returns the page."""
    write_card(folder)
    return write_page(folder)
