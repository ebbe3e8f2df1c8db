"""What no run can know: answers from a YAML file, never invented; the schema of card.json; the registry of deployments."""

import dataclasses
import json
import re
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from privet.audit import Audit, Claim
from privet.cli import app
from privet.errors import InputError
from privet.privacy import ApproximateDP, Assumed, Claimed, Gaussian, Ledger, NotPrivate, PoissonSampled
from privet.report import RunRecord, Stated, SyntheticSummary, TuningSummary
from privet.report.about import NOT_STATED, QUESTIONS, answers, read_about, template
from privet.report.card import card, markdown
from privet.report.export import TIERS, registry_entry
from privet.report.page import render

REGISTRY = Path(__file__).parents[2] / "docs" / "registry.md"
SCHEMA = json.loads(files("privet.report").joinpath("card.schema.json").read_text())
STEP = PoissonSampled(0.1, Gaussian(2.0))
FULL = {name: f"about {name}" for name in QUESTIONS} | {
    "sector": "Healthcare",
    "data_source": "Static",
    "publication_date": "2027-01-31",
    "registry_authors": "A. Bee, C. Dee",
}


@pytest.fixture(scope="module")
def record(finished_run) -> RunRecord:
    return RunRecord.read(finished_run)


@pytest.fixture(scope="module")
def ledger(finished_run, record) -> Ledger:
    return record.open_ledger(finished_run)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_template_asks_every_question_and_answers_none(tmp_path):
    assert {field.name for field in dataclasses.fields(Stated)} == set(QUESTIONS)
    assert yaml.safe_load(template()) == dict.fromkeys(QUESTIONS)
    assert set(answers(Stated(**read_about(written(tmp_path / "a.yaml", template())))).values()) == {NOT_STATED}
    printed = CliRunner().invoke(app, ["report", "--template"])
    assert printed.exit_code == 0 and printed.output == template()
    assert CliRunner().invoke(app, ["report"]).exit_code == 2


def test_answers_are_read_and_dates_and_other_names_are_understood(tmp_path):
    text = "purpose: |\n  To teach.\n  And nothing else.\nlicense: apache-2.0\npublication_date: 2027-01-31\nregion:\n"
    told = read_about(written(tmp_path / "a.yaml", text))
    assert told["intended_use"] == "To teach.\nAnd nothing else."
    assert (told["licence"], told["publication_date"], told["region"]) == ("apache-2.0", "2027-01-31", "")


def test_every_problem_is_reported_at_once(tmp_path):
    text = "curater: x\nretention: [1]\nregion: 7\nsector: Sport\npublication_date: soon\npurpose: a\nintended_use: b\n"
    with pytest.raises(InputError) as raised:
        read_about(written(tmp_path / "a.yaml", text + f'contact: {"x" * 5000}\ncollection: "a\\u001bb"\n'))
    said = str(raised.value)
    for words in (
        "'curater' is no field: did you mean curator?",
        "retention should be text, and is a list",
        "region should be text, and is a number",
        "sector should be one of Technology",
        "publication_date should be a date such as 2027-01-31, and is 'soon'",
        "purpose and intended_use are the same field",
        "contact has 5,000 characters",
        "collection has characters that cannot be printed",
    ):
        assert words in said
    for content, words in (
        ("- a\n", "no table of answers"),
        ("a: [", "not valid YAML"),
        ("a: 1\na: 2\n", "a key twice"),
    ):
        with pytest.raises(InputError, match=words):
            read_about(written(tmp_path / "b.yaml", content))


def test_answers_are_shown_escaped_and_missing_ones_are_not_invented(record, ledger):
    evil = "<img src=x> [a](http://b) | `c`\n# heading"
    stated = dataclasses.replace(record, stated=Stated(curator=evil))
    page, said = render(stated, ledger), markdown(stated, card(stated, ledger))
    assert "<img src=x>" not in page and "&lt;img src=x&gt;" in page
    assert "\n# heading" not in said and "<img" not in said.replace("\\<img", "")
    for text in (page, said):
        assert text.count(NOT_STATED) >= len(QUESTIONS) - 1
        for title, _ in QUESTIONS.values():
            assert title in text


def test_the_verb_keeps_answers_and_refuses_one_that_is_given_twice(finished_run, tmp_path):
    for name in ("record.json", "ledger.jsonl"):
        (tmp_path / name).write_bytes((finished_run / name).read_bytes())
    about = written(tmp_path / "about.yaml", "curator: The office\ncontact: a@example.org\n")
    twice = CliRunner().invoke(app, ["report", str(tmp_path), "--about", str(about), "--contact", "b"])
    assert twice.exit_code == 2 and "both give contact" in twice.output
    entry = tmp_path / "entry.yaml"
    asked = ["report", str(tmp_path), "--about", str(about), "--registry", str(entry)]
    missing = CliRunner().invoke(app, asked)
    assert missing.exit_code == 2 and "description, intended_use, region" in missing.output and not entry.exists()
    assert "**Curator**: The office" in (tmp_path / "CARD.md").read_text()
    written(about, yaml.safe_dump(FULL))
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert yaml.safe_load(entry.read_text())["deployment"]["basic"]["data_curators"] == ["about curator"]


# --- the first screen -------------------------------------------------------------------------------------------------


def test_the_first_screen_answers_what_an_officer_asks(record, ledger):
    told = dataclasses.replace(record, released={"model.safetensors": "a" * 64}, sizes={"model.safetensors": 12_345})
    page, said = render(told, ledger), markdown(told, card(told, ledger))
    spent = record.spent(ledger)
    for text in (page, said.replace("\\", "")):
        first = text[text.index("At a glance") :]
        for words in (
            "model.safetensors",
            "a" * 64,
            "12.3 kB",
            "One record: one example with its label or target. There are 1,437 records",
            "false positives. A belief that a given record was used grows from",
            "For 2 records at once epsilon is at most",
            "Proved",
            "No account of these data is kept",
            "On 2025-01-31 this run had spent",
            "Loss threshold",
            "Nothing was audited",
            "People with several records have less protection.",
        ):
            assert words in first, words
        assert "none of them is certain" not in first
    numbers = card(told, ledger)["privacy"]["numbers"]
    assert numbers["true_positive_rates"]["0.01"] == spent.meaning.true_positive_rate(0.01)
    assert numbers["posteriors"]["from_prior"]["0.5"] == spent.meaning.posterior(0.5)
    assert numbers["groups"][0]["epsilon"] > spent.epsilon


def test_nothing_that_does_not_protect_is_said_to_protect(record):
    for event in (NotPrivate(), STEP.under(Claimed("a paper", "it leaks")), ApproximateDP(3000.0, 1e-9)):
        ledger = Ledger()
        ledger.record(event)
        first = card(record, ledger)["first"]
        assert first["Who is protected"][0].startswith("Nobody: ")
    assert first["The statement in numbers"] != ["No number bounds what an attacker can learn."]
    refuted = dataclasses.replace(record, audits=(Audit("x", Claim(1.0, 1e-5, "x"), 2.0, 3.0, 0.99, "m", "e"),))
    plain = card(refuted, ledger)
    assert plain["privacy"]["numbers"] is None
    assert plain["first"]["The statement in numbers"] == ["No number bounds what an attacker can learn."]


# --- the schema -------------------------------------------------------------------------------------------------------


def cards(record: RunRecord, ledger: Ledger):
    audit = Audit("x", Claim(1.0, 1e-5, "x"), 0.5, float("inf"), 0.99, "m", "e", date="2025-02-03")
    public = dataclasses.replace(record.data, public=True, shape=(1, 8, 8))
    rows = SyntheticSummary(1000, ("release/train.csv",), "", ("a", "b"), (("1", "x"),))
    tuning = TuningSummary(("a", "b"), "a", "", "a noisy accuracy", 0.9, 1.0, 2.0, STEP.to_dict())
    yield card(record, ledger)
    yield card(dataclasses.replace(record, data=public, audits=(audit,), stated=Stated(**FULL)), ledger)
    yield card(dataclasses.replace(record, synthetic=rows, released={"release/train.csv": "0" * 64}), ledger)
    yield card(dataclasses.replace(record, tuning=tuning), ledger)
    for event in (NotPrivate(), STEP.under(Assumed("it holds")), STEP.under(Claimed("a paper", "it leaks"))):
        other = Ledger()
        other.record(event)
        yield card(record, other)


def test_every_card_follows_the_published_schema(record, ledger):
    checker = jsonschema.Draft202012Validator(SCHEMA)
    checker.check_schema(SCHEMA)
    for number, made in enumerate(cards(record, ledger)):
        plain = json.loads(json.dumps(made, allow_nan=False))
        assert [f"{number} {list(error.path)}: {error.message}" for error in checker.iter_errors(plain)] == []
        assert plain["schema"] == SCHEMA["$id"]
    assert set(SCHEMA["required"]) == set(plain)
    for spoiled in ({"card": 1}, {"files": {"model": "short"}}, {"surprise": 1}, {"privacy": {}}):
        assert not checker.is_valid(plain | spoiled)


# --- the registry -----------------------------------------------------------------------------------------------------


def documented() -> dict[str, str]:
    """The fields in the table of docs/registry.md with their tiers."""
    rows = re.findall(r"^\| `([a-z_.]+)` \| (required|1|2|3) \|", REGISTRY.read_text(), re.MULTILINE)
    return dict(rows)


def test_an_entry_has_the_fields_of_the_registry_and_the_tier_that_they_reach(record, ledger):
    full = registry_entry(card(dataclasses.replace(record, stated=Stated(**FULL)), ledger))
    assert full["tier"] == 3 and full["status"] == "Draft" and re.fullmatch(r"[a-z0-9_]+", full["url_slug"])
    assert full["deployment"]["administrative"]["registry_authors"] == ["A. Bee", "C. Dee"]
    spent = record.spent(ledger)
    assert full["deployment"]["privacy_loss"]["privacy_parameters"] == {"epsilon": spent.epsilon, "delta": spent.delta}
    assert str(spent) in full["deployment"]["privacy_loss"]["privacy_parameters_details"]
    known = documented()
    used = {f"{part}.{name}" for part, held in full["deployment"].items() for name in held}
    assert used <= set(known)
    for tier, names in TIERS.items():
        assert set(names) <= used
        assert {known[name] for name in names} == {tier.removeprefix("tier ")}
    few = {name: FULL[name] for name in ("curator", "description", "intended_use", "region", "publication_date")}
    few["registry_authors"] = "A. Bee"
    for more, tier in (({}, 1), ({"data_source": "Static"}, 2)):
        entry = registry_entry(card(dataclasses.replace(record, stated=Stated(**few, **more)), ledger))
        assert entry["tier"] == tier
        assert "justification" not in entry["deployment"]["implementation"]


def test_what_the_registry_requires_is_asked_for_and_not_invented(record, ledger):
    with pytest.raises(
        InputError, match="curator, description, intended_use, region, publication_date, registry_authors"
    ):
        registry_entry(card(record, ledger))
