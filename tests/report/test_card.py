"""The privacy card: the ledger's own statement, fit to be published, and readable by a model hub."""

import dataclasses
import json

import pytest
import yaml
from typer.testing import CliRunner

from privet.audit import Audit, Claim
from privet.cli import app
from privet.privacy import Claimed, Gaussian, Ledger, PoissonSampled, Relation
from privet.report import OtherRun, RunRecord, SyntheticSummary, find_others, write_card
from privet.report.card import card, markdown
from privet.report.others import mark_of, together
from privet.report.record import Stated

STEP = PoissonSampled(0.1, Gaussian(2.0))


@pytest.fixture(scope="module")
def record(finished_run) -> RunRecord:
    return RunRecord.read(finished_run)


@pytest.fixture(scope="module")
def ledger(finished_run, record) -> Ledger:
    return record.open_ledger(finished_run)


def text(record: RunRecord, ledger: Ledger) -> str:
    return markdown(record, card(record, ledger))


def metadata(page: str) -> dict:
    return yaml.safe_load(page.split("---\n")[1])


def public(record: RunRecord, **changes: object) -> RunRecord:
    return dataclasses.replace(record, data=dataclasses.replace(record.data, public=True, **changes))


def test_the_statement_is_the_ledgers_own_in_every_form(record, ledger):
    spent = ledger.spent(record.delta)
    plain = card(record, ledger)
    assert plain["privacy"]["statement"] == str(spent)
    assert plain["privacy"]["epsilon"] == spent.epsilon
    assert f"The trained model is differentially private: {spent}." in text(record, ledger)
    assert metadata(text(record, ledger))["privacy"]["statement"] == str(spent)
    assert plain["ledger"]["head"] == ledger.head


def test_made_again_it_has_the_same_bytes(finished_run):
    first = write_card(finished_run).read_bytes(), (finished_run / "card.json").read_bytes()
    assert (write_card(finished_run).read_bytes(), (finished_run / "card.json").read_bytes()) == first
    assert json.loads(first[1])["card"] == 2


def test_every_answer_of_the_table_is_there(record, ledger):
    page = text(record, ledger)
    for asked in ("Unit of privacy | one record", "Neighboring data sets | add/remove one record", "Accountant | PLD"):
        assert asked in page
    assert "1. 60 times: from a random sample that holds each record with probability 10" in page
    for heading in (
        "At a glance",
        "Assumptions",
        "Attacks and audits that were tried",
        "What no run can know",
        "Limits",
    ):
        assert f"## {heading}" in page


def test_what_was_computed_from_private_records_stays_off_the_card(record, ledger):
    secret, open_ = card(record, ledger), card(public(record), ledger)
    assert secret["attacks"][0].keys() == {"name", "key", "date", "power", "command", "figures"}
    assert secret["measured"].keys() == {"said"}
    assert "was not measured in a way that may be published" in secret["measured"]["said"]
    assert open_["measured"]["accuracy"] == pytest.approx(record.test_accuracy)
    assert f"{record.attack.auc:.3f}" not in text(record, ledger)
    assert open_["attacks"][0]["auc"] == record.attack.auc
    assert f"Area under the ROC {record.attack.auc:.3f}" in text(public(record), ledger)


def test_the_place_of_the_records_on_the_machine_is_not_told(record, ledger):
    kept = dataclasses.replace(
        record,
        command=("privet", "train", "--data", "csv:/home/somebody/patients.csv"),
        data=dataclasses.replace(record.data, source="csv:/home/somebody/patients.csv", schema="/home/somebody/s.json"),
    )
    assert "somebody" not in text(kept, ledger) + json.dumps(card(kept, ledger))


def test_commands_are_told_without_places_and_seeds(record, ledger):
    """The command of an attack once put the place of the records, and the seed of the noise, on the card."""
    made = ("privet", "train", "--data=csv:/home/somebody/patients.csv", "--seed", "4711", "--out", "/home/somebody/a/")
    again = ("privet", "attack", "/home/somebody/a", "--model", "py:package.module:Net", "--seed=4711")
    audit = Audit("One step", Claim(1.0, 1e-5, "x"), 0.1, 2.0, 0.99, "m", "e", date="2025-02-03", command=again)
    attack = dataclasses.replace(record.attack, date="2025-01-31T12:00:00+00:00", power="All of it", command=made)
    kept = dataclasses.replace(record, attacks=(attack, attack), audits=(audit,))
    plain, said = card(kept, ledger), text(kept, ledger)
    for told in (json.dumps(plain), said):
        assert "somebody" not in told and "4711" not in told
        assert "privet train --data=csv:patients.csv --seed ... --out a" in told
        assert "privet attack a --model py:package.module:Net --seed=..." in told
        assert "2025-02-03" in told and "2025-01-31" in told and "All of it" in told
    assert len(plain["attacks"]) == said.count("- Loss threshold, 2025-01-31.") == 2


def test_what_an_audit_left_out_is_on_the_card(record, ledger):
    audit = Audit(
        "One step", Claim(1.0, 1e-5, "x"), 0.1, 2.0, 0.99, "m", "e", audited="the noise", not_audited="the model"
    )
    said = text(dataclasses.replace(record, audits=(audit,)), ledger)
    assert "Consistent for the parts that were audited. Audited: the noise. **Not audited: the model.**" in said


def test_what_the_user_named_cannot_become_markup(record, ledger):
    name = "<img src=x> [click](http://a) | `code` *bold*\n# heading"
    page = text(
        dataclasses.replace(record, title=name, method=name, stated=dataclasses.replace(record.stated, contact=name)),
        ledger,
    )
    body = page.split("---\n", 2)[2]
    assert "\n# heading" not in body
    assert "<img" not in body.replace("\\<img", "")
    assert "model-index" not in metadata(page)
    measured = dataclasses.replace(public(record), title=name)
    assert metadata(text(measured, ledger))["model-index"][0]["name"] == name


def test_a_hub_reads_the_metadata_of_a_model(record, ledger):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub reads the card where it is installed")
    (result,) = hub.ModelCard(text(public(record, shape=(1, 8, 8)), ledger)).data.eval_results
    assert (result.task_type, result.metric_type) == ("image-classification", "accuracy")
    assert result.metric_value == round(record.test_accuracy, 6)


def test_metadata_of_a_model(record, ledger):
    facts = metadata(text(public(record, name="mnist", shape=(1, 28, 28)), ledger))
    assert facts["datasets"] == ["ylecun/mnist"]
    assert facts["pipeline_tag"] == "image-classification"
    result = facts["model-index"][0]["results"][0]
    assert result["dataset"] == {"type": "ylecun/mnist", "name": "mnist", "split": "test"}
    noisy = dataclasses.replace(record, utility=dataclasses.replace(record.utility, accuracy=0.8, noise=5.0))
    result = metadata(text(noisy, ledger))["model-index"][0]["results"][0]
    assert (result["dataset"]["type"], result["metrics"][0]["value"]) == ("private", 0.8)


@pytest.mark.parametrize(("rows", "size"), [(999, "n<1K"), (1000, "1K<n<10K"), (60_000, "10K<n<100K")])
def test_metadata_of_a_data_set(record, ledger, rows, size):
    made = dataclasses.replace(record, synthetic=SyntheticSummary(rows, ("rows.csv",)))
    page = text(made, ledger)
    facts = metadata(page)
    assert facts["size_categories"] == [size]
    assert "synthetic" in facts["tags"]
    assert "model-index" not in facts
    assert "The synthetic data set is differentially private:" in page
    assert f"{rows:,} synthetic rows in `rows.csv`" in page
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub reads the card where it is installed")
    assert hub.DatasetCard(page).data.size_categories == [size]


def test_a_synthetic_data_set_carries_its_card_under_the_name_that_a_hub_reads(whole_run, tmp_path):
    for name in ("record.json", "ledger.jsonl"):
        (tmp_path / name).write_bytes((whole_run / name).read_bytes())
    (tmp_path / "release").mkdir()
    made = write_card(tmp_path).read_bytes()
    assert (tmp_path / "release" / "README.md").read_bytes() == made
    said = made.decode()
    assert "epsilon is at least 0.1 with 99 % confidence; claimed at delta = 1e-05: 0.5. Consistent." in said
    assert "Audit of Something broken: epsilon is at least 2.5" in said and "Refuted at 99 %." in said


def test_a_claim_is_called_a_claim(record):
    claim = Ledger()
    claim.record(STEP.under(Claimed("the paper", "its first layers see the records without noise")))
    page = text(record, claim)
    assert "**Claimed, not proved.** The trained model is only claimed to be differentially private:" in page
    assert metadata(page)["privacy"]["guarantee"] == "claimed"


def test_a_budget_that_promises_nothing_is_marked_and_not_called_private(record):
    huge = Ledger()
    huge.record(Gaussian(0.0129))
    page, plain = text(record, huge), card(record, huge)
    assert "**Proved, but vacuous.** The budget of the trained model is too large to protect anybody:" in page
    assert "is differentially private" not in page
    assert "# A classifier of digits" in page and "private classifier" not in page
    assert plain["privacy"]["vacuous"] is True and plain["privacy"]["guarantee"] == "proved"
    assert metadata(page)["privacy"]["vacuous"] is True
    assert metadata(page)["tags"] == ["privet"]
    assert "model-index" not in metadata(page)  # what was measured on private records is not published


def test_what_is_protected_is_tagged_as_private(record, ledger):
    assert metadata(text(record, ledger))["tags"] == ["differential-privacy", "privet"]
    assert metadata(text(record, ledger))["privacy"]["vacuous"] is False


def test_other_runs_beside_are_found_by_their_records_and_counted(finished_run, record, ledger, tmp_path):
    fingerprint = record.data.fingerprint
    for name, steps in {"one": 5, "two": 7}.items():
        folder = tmp_path / name
        folder.mkdir()
        with Ledger(folder / "ledger.jsonl") as other:
            other.record(STEP, steps)
        mark = mark_of(fingerprint, folder, public=False)
        changed = dataclasses.replace(record.data, fingerprint=mark)
        dataclasses.replace(record, data=changed, ledger_head=other.head).write(folder)
    (tmp_path / "elsewhere").mkdir()
    dataclasses.replace(record, data=dataclasses.replace(record.data, fingerprint="0" * 64)).write(
        tmp_path / "elsewhere"
    )
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "record.json").write_text("{")
    found = find_others(tmp_path / "new", fingerprint)
    assert [run.name for run in found] == ["one", "two"]
    # Named ones that were found already count once, and others from elsewhere join them.
    assert len(find_others(tmp_path / "new", fingerprint, [tmp_path / "one", finished_run])) == 3

    plain = card(dataclasses.replace(record, others=found), ledger)
    everything = Ledger()
    for event, count in ledger:
        everything.record(event, count)
    everything.record(STEP, 12)
    assert plain["other_runs"]["together"] == str(everything.spent(record.delta))
    assert everything.spent(record.delta).epsilon > ledger.spent(record.delta).epsilon
    page = text(dataclasses.replace(record, others=found), ledger)
    assert f"All together, with this run: {everything.spent(record.delta)}." in page


def test_two_runs_with_the_same_settings_are_two(record, tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        with Ledger(folder / "ledger.jsonl") as other:
            other.record(STEP, 5)
        dataclasses.replace(record, ledger_head=other.head).write(folder)
    found = find_others(tmp_path / "new", record.data.fingerprint, [tmp_path / "two"])
    assert [run.name for run in found] == ["one", "two"]
    assert found[0].ledger_head != found[1].ledger_head
    ledger = Ledger()
    ledger.record(STEP, 5)
    total = together(dataclasses.replace(record, others=found), ledger)
    alone = Ledger()
    alone.record(STEP, 15)
    assert str(total) == str(alone.spent(record.delta))


def test_a_run_about_other_neighbors_is_added_by_a_theorem_that_is_named(record, ledger):
    other = OtherRun("x", "2025-01-01", "m", "0" * 64, Relation.REPLACE_ONE.value, "record", STEP.to_dict())
    said = card(dataclasses.replace(record, others=(other,)), ledger)["other_runs"]["together"]
    assert "replace one record" in said
    assert "removing it and adding another" in said


def test_a_run_that_protects_something_else_is_left_out_by_name_and_the_others_are_counted(record, ledger):
    near = OtherRun("near", "2025-01-01", "m", "0" * 64, ledger.relation.value, "record", STEP.to_dict())
    stray = OtherRun("stray", "2025-01-01", "m", "1" * 64, ledger.relation.value, "user", STEP.to_dict())
    total = together(dataclasses.replace(record, others=(near, stray)), ledger)
    assert total.epsilon == together(dataclasses.replace(record, others=(near,)), ledger).epsilon
    assert "Not counted: stray, because it protects one user" in text(
        dataclasses.replace(record, others=(near, stray)), ledger
    )


def test_nobody_looked_and_none_found_are_different_sentences(record, ledger):
    assert "They were not looked for" in text(record, ledger)
    none = text(dataclasses.replace(record, others=()), ledger)
    assert f"None was found beside this run when it was made, on {record.created[:10]}" in none


def test_a_run_that_was_stopped_is_counted_where_it_is_named(record, ledger, tmp_path):
    """It has a ledger and no record; version 0.1 refused the folder."""
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    with Ledger(stopped / "ledger.jsonl") as other:
        other.record(STEP, 7)
    found = find_others(tmp_path / "new", "a fingerprint", [stopped])
    assert [(run.name, run.method) for run in found] == [("stopped", "stopped before its end")]
    said = text(dataclasses.replace(record, others=found), ledger)
    assert "| stopped | not known | stopped before its end |" in said
    total = together(dataclasses.replace(record, others=found), ledger)
    assert total.epsilon > ledger.spent(record.delta).epsilon


def test_a_use_that_nobody_stated_is_not_invented(record, ledger):
    assert card(record, ledger)["about"]["intended_use"] == ""
    assert "- **Purpose**: not stated\n" in text(record, ledger)
    stated = dataclasses.replace(record, stated=Stated(intended_use="Sorting post."))
    assert "- **Purpose**: Sorting post." in text(stated, ledger)


def test_the_verb_keeps_what_a_person_states(finished_run, tmp_path):
    for name in ("record.json", "ledger.jsonl"):
        (tmp_path / name).write_bytes((finished_run / name).read_bytes())
    asked = [
        "report",
        str(tmp_path),
        "--licence",
        "cc-by-4.0",
        "--intended-use",
        "Teaching.",
        "--contact",
        "the office",
    ]
    assert CliRunner().invoke(app, asked).exit_code == 0
    first = (tmp_path / "CARD.md").read_text()
    assert metadata(first)["license"] == "cc-by-4.0"
    assert "Teaching." in first
    assert "**Contact**: the office" in first
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 0
    assert (tmp_path / "CARD.md").read_text() == first
