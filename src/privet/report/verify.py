"""Check the folder of a release: its files, ledger, card and signatures; each finding says what was checked and what changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from privet.data.files import sha256
from privet.errors import InputError, PrivetError
from privet.io import MisfitError, check_inside, from_json, read_text
from privet.privacy import Ledger
from privet.report import card as cards
from privet.report.record import FILE, RELEASED, RunRecord
from privet.report.signatures import TYPED, Signature, canonical, is_signed, principals, read_signatures, sign_off

MOST_CHANGES, MOST_FILES = 20, 1000


@dataclass(frozen=True)
class Checked:
    """What was checked, whether it holds (None: it could not be checked), and a sentence about it."""

    about: str
    holds: bool | None
    said: str


@dataclass(frozen=True)
class Known:
    """The public keys of the people who may sign: keys of OpenSSH, and files of allowed signers."""

    keys: tuple[str, ...] = ()
    allowed: Path | None = None

    @property
    def given(self) -> bool:
        return bool(self.keys) or self.allowed is not None

    def whose(self, signature: Signature) -> str:
        """Whose key signed, in words; empty if it is none of the known ones. The signature itself was checked before."""
        if signature.key in self.keys:
            return "with a key that was given"
        named = principals(signature, self.allowed) if self.allowed is not None else []
        return f"with a key of {', '.join(named)}" if named else ""


def verify(folder: Path, known: Known | None = None, today: date | None = None) -> list[Checked]:
    """All findings about the folder of a release. Raises `InputError` if the folder has links, or holds no card.

    Formal guarantees: nothing outside of the folder is read, and nothing is written to it.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; give the folder of a run or of a release.")
    check_inside(folder)
    if not (folder / cards.PLAIN).exists():
        raise InputError(f"{folder / cards.PLAIN}: this folder holds no card, so there is nothing to verify.")
    try:
        card = from_json(read_text(folder / cards.PLAIN), 1 << 1023)
        if not isinstance(card, dict):
            raise MisfitError("it is no object")
        canonical(card)
    except (PrivetError, MisfitError, json.JSONDecodeError) as error:
        return [Checked("card", False, f"{cards.PLAIN} is damaged: {str(error).rstrip('.')}.")]
    if card.get("card") != cards.FORMAT:
        said = f"{cards.PLAIN} has another format than this version of Privet writes; privet report makes it again."
        return [Checked("card", False, said)]
    found = [*_files(folder, card), *_ledger(folder, card), *_card(folder, card)]
    return found + _signatures(folder, card, known or Known(), today or date.today())


def card_to_sign(folder: Path) -> dict[str, Any]:
    """The content of `card.json`, if files, ledger and card hold; raises with the first finding otherwise."""
    for one in verify(folder):
        if one.holds is False and one.about != "signatures":
            raise InputError(
                f"The card is not signed: {one.said} Mend that first; privet report {folder} makes the card again."
            )
    content: dict[str, Any] = from_json(read_text(folder / cards.PLAIN))
    return content


# --- released files ---------------------------------------------------------------------------------------------------


def _files(folder: Path, card: dict[str, Any]) -> Iterator[Checked]:
    files, sizes = (_table(card.get(name)) for name in ("files", "sizes"))
    if not files:
        yield Checked("files", None, "The card names no released file, so no file is tied to it.")
    for name, known in list(files.items())[:MOST_FILES]:
        if not RELEASED.fullmatch(name) or not isinstance(known, str):
            yield Checked("files", False, f"The card names {name[:60]!r}, which is no file that a run releases.")
            continue
        path = folder / name
        if not path.is_file():
            yield Checked("files", False, f"{name} is missing.")
        elif (found := sha256(path)) != known:
            size, was = path.stat().st_size, sizes.get(name)
            changed = f" and {size:,} bytes where the card says {was:,}" if isinstance(was, int) and was != size else ""
            yield Checked("files", False, f"{name} was changed: its SHA-256 is {found}{changed}.")
        else:
            yield Checked("files", True, f"{name} is the released file.")
    there = {f"{cards.RELEASE}/{path.name}" for path in (folder / cards.RELEASE).glob("*") if path.name != cards.HUB}
    for name in sorted(there - set(files))[:MOST_FILES]:
        yield Checked("files", False, f"{name} was added: the card does not name it.")


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --- the ledger -------------------------------------------------------------------------------------------------------


def _ledger(folder: Path, card: dict[str, Any]) -> Iterator[Checked]:
    about = _table(card.get("ledger"))
    name, head = about.get("file"), about.get("head")
    if not isinstance(name, str) or not RELEASED.fullmatch(name) or not isinstance(head, str):
        yield Checked("ledger", False, "The card names no ledger.")
        return
    try:
        ledger = Ledger.open(folder / name, head=head, read_only=True)
    except PrivetError as error:
        yield Checked("ledger", False, str(error))
        return
    if ledger.head != head:
        yield Checked(
            "ledger", False, f"{name} has lines after those that the card is about: the records were used again."
        )
        return
    yield Checked(
        "ledger", True, f"{name} is whole, and ends where the card says: {len(ledger):,} uses of the records."
    )
    if not (folder / FILE).exists():
        accesses = _plain([cards.access(event, count, ledger.unit) for event, count in ledger])
        yield from _compared("accesses", accesses, card.get("accesses"), "the ledger")


# --- the card ---------------------------------------------------------------------------------------------------------


def _card(folder: Path, card: dict[str, Any]) -> Iterator[Checked]:
    if not (folder / FILE).exists():
        said = (
            f"{FILE} is not here, so only the card's list of accesses was compared with the ledger, not its statement."
        )
        yield Checked("card", None, said)
        return
    try:
        record = RunRecord.read(folder)
        record = cards.with_files(folder, record)
        made = cards.card(record, record.open_ledger(folder))
    except PrivetError as error:
        yield Checked("card", False, f"The card cannot be made again: {error}")
        return
    yield from _compared("card", _plain(made), card, "record and ledger")
    said = cards.markdown(record, made, sign_off(folder, made))
    hub = f"{cards.RELEASE}/{cards.HUB}"
    for name in (cards.MARKDOWN, *([hub] if record.synthetic else [])):
        yield _text(folder / name, name, said)


def _text(path: Path, name: str, expected: str) -> Checked:
    try:
        found = read_text(path)
    except InputError as error:
        return Checked("card", False, str(error))
    if found == expected:
        return Checked("card", True, f"{name} is the card that follows from record, ledger and signatures.")
    pairs = enumerate(zip(found.split("\n"), expected.split("\n"), strict=False), 1)
    line = next(
        (number for number, (one, other) in pairs if one != other), min(found.count("\n"), expected.count("\n")) + 1
    )
    return Checked("card", False, f"{name} was changed, first in line {line}; privet report makes it again.")


def _compared(about: str, made: Any, card: Any, source: str) -> Iterator[Checked]:
    changed = changes(made, card)
    if not changed:
        yield Checked(about, True, f"{cards.PLAIN} follows from {source}.")
    for said in changed:
        yield Checked(about, False, f"{cards.PLAIN} does not follow from {source}: {said}.")


def _plain(made: Any) -> Any:
    return json.loads(json.dumps(made))


def changes(before: Any, after: Any) -> list[str]:
    """What differs between two values of plain data, in phrases: at most `MOST_CHANGES`, and then how many more."""
    found = list(_changes(before, after, ""))
    more = len(found) - MOST_CHANGES
    return [*found[:MOST_CHANGES], *([f"and {more} more differences"] if more > 0 else [])]


def _changes(before: Any, after: Any, where: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            place = f"{where}.{name}" if where else str(name)
            if name not in after:
                yield f"{place} was removed"
            elif name not in before:
                yield f"{place} was added"
            else:
                yield from _changes(before[name], after[name], place)
    elif isinstance(before, list) and isinstance(after, list):
        for number, (one, other) in enumerate(zip(before, after, strict=False), 1):
            yield from _changes(one, other, f"{where}[{number}]")
        for number in range(len(after), len(before)):
            yield f"{where}[{number + 1}] was removed"
        for number in range(len(before), len(after)):
            yield f"{where}[{number + 1}] was added"
    elif type(before) is not type(after) or before != after:
        yield f"{where or 'it'} is {_shown(after)} in place of {_shown(before)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- signatures -------------------------------------------------------------------------------------------------------


def _signatures(folder: Path, card: dict[str, Any], known: Known, today: date) -> list[Checked]:
    try:
        signatures = read_signatures(folder)
    except PrivetError as error:
        return [Checked("signatures", False, str(error))]
    last = {one.identity: one for one in signatures}
    found, trusted = [], False
    for one in signatures:
        holds, whose = _whose(one, known)
        if holds is not False and last[one.identity] is not one:
            found.append(
                Checked("signatures", holds, f"{_by(one)}{whose}: superseded by a later one of the same signer.")
            )
            continue
        wrong = [] if holds is False else _stale(one, card, today)
        trusted |= bool(holds) and not wrong
        said = "; ".join((f"{_by(one)}{whose}", *wrong))
        counts = not known.given or holds
        found.append(Checked("signatures", False if wrong and counts else holds, f"{said}."))
    if not signatures:
        found.append(Checked("signatures", None, "Nobody has signed this card."))
    if known.given and not trusted:
        found.append(Checked("signatures", False, "No valid signature of this card is by a key that was given."))
    return found


def _by(signature: Signature) -> str:
    signer = signature.signer
    decided = f", {signer.decision}" if signer.decision else ", without a decision"
    return f"{signer.name} ({signer.role}), {signer.date[:10]}{decided}"


def _whose(signature: Signature, known: Known) -> tuple[bool | None, str]:
    """Whether a signature holds, and how it was made; None if nobody can check it, or whose key it is is not known."""
    if not signature.key:
        return None, f": {TYPED}"
    try:
        if not is_signed(signature):
            return False, f": the signature does NOT fit the text, or was not made with the key {signature.fingerprint}"
        whose = known.whose(signature)
    except InputError as error:
        return None, f": not checked, because {str(error).rstrip('.')}"
    if whose:
        return True, f": the signature holds, {whose} ({signature.fingerprint})"
    said = "which is none of those that were given" if known.given else "and nobody has checked whose key that is"
    return None, f": the signature fits the key {signature.fingerprint}, {said}"


def _stale(signature: Signature, card: dict[str, Any], today: date) -> list[str]:
    """Why a signature that holds does not release this card."""
    wrong = [f"the card was changed since: {said}" for said in changes(signature.card, card)]
    if signature.signer.expired(today):
        wrong.append(f"it expired on {signature.signer.expires}")
    if signature.signer.decision == "rejected":
        wrong.append("the decision is that this is not released")
    return wrong


def as_dict(findings: Sequence[Checked]) -> dict[str, Any]:
    """The findings as plain data for JSON."""
    return {"holds": holds(findings), "findings": [asdict(one) for one in findings]}


def holds(findings: Sequence[Checked]) -> bool:
    """Whether nothing was found that does not hold. What could not be checked is no such thing; it is named."""
    return not any(one.holds is False for one in findings)
