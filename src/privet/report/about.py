"""What a reviewer asks and no run can know: fields that a person fills in a YAML file. Missing ones are "not stated"."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from privet.errors import InputError
from privet.io import MisfitError, from_yaml, read_text
from privet.report.record import Stated

NOT_STATED = "not stated"
LONGEST = 4000
"""The most characters of an answer."""
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
"""The sectors that the registry of deployments knows."""
SOURCES = ("Static", "Dynamic")
QUESTIONS: dict[str, tuple[str, str]] = {
    "curator": ("Curator", "Who publishes the release and answers for it?"),
    "contact": ("Contact", "Whom to ask: an address that will still be read in some years."),
    "intended_use": ("Purpose", "What is the release for, and what is it not for?"),
    "description": ("Description", "What is the release, in two or three sentences?"),
    "data_subjects": ("Data subjects", "Whose data are these? How many records may one person have?"),
    "collection": ("Collection", "How, when and by whom were the data collected?"),
    "legal_basis": ("Legal basis", "On which legal basis are the data used and the release published?"),
    "retention": ("Retention", "How long are the records kept, and who may still see them?"),
    "region": ("Region", "Which region do the data describe, or whose law applies?"),
    "sector": ("Sector", f"One of: {', '.join(SECTORS)}."),
    "data_source": ("New records", f"Do new records come in over time? One of: {', '.join(SOURCES)}."),
    "threat_model": ("Threat model", "Who is the attacker, what do they have, and what do they know already?"),
    "trust_model": (
        "Trust model",
        "Who sees the records, the noise and the intermediate values, and why are they trusted?",
    ),
    "why_epsilon": ("Why this epsilon", "Who chose epsilon, and for which reason?"),
    "why_delta": ("Why this delta", "Who chose delta, and for which reason?"),
    "later_releases": (
        "Later releases",
        "What else was or will be published from these data, and who keeps the account?",
    ),
    "preprocessing": (
        "Before the run",
        "What was done with the records, or learned from them, before the run? Was it private?",
    ),
    "publication_date": ("Publication date", "When is it published? YYYY-MM-DD."),
    "sources": ("Sources", "Papers, code or pages that describe the release."),
    "registry_authors": ("Authors of the entry", "Who filled in these answers? Names, separated by commas."),
    "licence": ("License", "The license of the release, by its identifier, such as apache-2.0."),
}
"""The fields in the order of the page: a title, and what is asked."""
CHOICES = {"sector": SECTORS, "data_source": SOURCES}
OLD_NAMES = {"license": "licence", "purpose": "intended_use"}


def template() -> str:
    """A YAML file with every question and no answer."""
    lines = [
        '# What no run can know. Every answer is published on the privacy card; what is left empty is shown as "not stated".',
        "# Longer answers: write | after the colon, and the text indented on the next lines.",
    ]
    for name, (title, question) in QUESTIONS.items():
        lines += ["", f"# {title}. {question}", f"{name}:"]
    return "\n".join(lines) + "\n"


def read_about(path: Path) -> dict[str, str]:
    """The answers in a YAML file by field. Raises `InputError` with every problem of the file."""
    try:
        plain = from_yaml(read_text(path, 1 << 20))
    except MisfitError as error:
        raise InputError(f"{path}: {error}.") from None
    if not isinstance(plain, dict):
        raise InputError(f"{path} is no table of answers: privet report --template prints one to fill in.")
    problems = list(_problems(plain))
    if problems:
        raise InputError(f"{path}: {' '.join(problems)}")
    named = {OLD_NAMES.get(str(name), str(name)): answer for name, answer in plain.items()}
    return {name: _text(answer) for name, answer in named.items()}


def _problems(plain: Mapping[Any, Any]) -> Iterator[str]:
    """Every problem of the answers, each as a sentence."""
    for name, answer in plain.items():
        field = OLD_NAMES.get(str(name), str(name))
        if field not in QUESTIONS:
            near = difflib.get_close_matches(str(name), QUESTIONS, n=1)
            yield f"{str(name)[:60]!r} is no field{f': did you mean {near[0]}?' if near else '.'}"
        elif field != name and field in plain:
            yield f"{name} and {field} are the same field: give one of them."
        elif not isinstance(answer, str | dt.date | None):
            yield f"{name} should be text, and is {_kind(answer)}: put it in quotes, or write | and indented lines."
        elif len(text := _text(answer)) > LONGEST:
            yield f"{name} has {len(text):,} characters, and at most {LONGEST:,} are shown."
        elif not all(letter.isprintable() or letter in "\n\t" for letter in text):
            yield f"{name} has characters that cannot be printed."
        elif field == "publication_date" and text and not _is_date(text):
            yield f"{name} should be a date such as 2027-01-31, and is {text[:40]!r}."
        elif field in CHOICES and text and text not in CHOICES[field]:
            yield f"{name} should be one of {', '.join(CHOICES[field])}, and is {text[:40]!r}."


def _kind(answer: object) -> str:
    names = {list: "a list", dict: "a table", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(answer), f"a {type(answer).__name__}")


def _text(answer: str | dt.date | None) -> str:
    return "" if answer is None else answer.isoformat() if isinstance(answer, dt.date) else answer.strip()


def _is_date(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def answers(stated: Stated) -> dict[str, str]:
    """The title of every field with its answer, or "not stated"."""
    held = {each.name: getattr(stated, each.name) for each in fields(stated)}
    return {title: held[name] or NOT_STATED for name, (title, _) in QUESTIONS.items()}
