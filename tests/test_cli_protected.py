"""Who is protected, what is public, and who says so: a private file through the commands."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.data import load, with_test_records
from privet.errors import InputError
from privet.methods import Context, Task, method_for
from privet.privacy import Gaussian
from privet.report import RunRecord

CONDITION = "the number of records is public"
SCHEMA = {
    "label": "sick",
    "columns": {"age": {"low": 0, "high": 1}, "height": {"low": 0, "high": 1}, "sick": {"categories": ["no", "yes"]}},
}


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def rows(count: int, seed: int = 0) -> list[str]:
    """One in ten is sick, and nothing tells who."""
    draw = np.random.default_rng(seed)
    return [f"{draw.random():.9f},{draw.random():.9f},{'yes' if n % 10 == 0 else 'no'}" for n in range(count)]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    at = tmp_path_factory.mktemp("home")
    (at / "schema.json").write_text(json.dumps(SCHEMA))
    (at / "people.csv").write_text("\n".join(["age,height,sick", *rows(1500)]) + "\n")
    (at / "bare.csv").write_text("\n".join(rows(1500)) + "\n")
    (at / "both").mkdir()
    (at / "both" / "train.csv").write_text("\n".join(["age,height,sick", *rows(900)]) + "\n")
    (at / "both" / "test.csv").write_text("\n".join(["age,height,sick", *rows(300, 1)]) + "\n")
    return at


def asked(home: Path, verb: str, file: str, *more: object) -> list[object]:
    return [verb, "--data", f"csv:{home / file}", "--schema", home / "schema.json", *more]


def fitted(dataset, seed: int | None = 1, **more):
    """DP-SGD in memory: the outcome and its ledger."""
    task = Task(dataset, 3.0, 1e-5, seed=seed)
    method = method_for("dpsgd", task)
    context = Context.in_memory(method, task, **more)
    return method.fit(task, context), context.ledger


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def protected(home):
    page = privet(*asked(home, "train", "people.csv", "--epsilon", 3, "--out", home / "a"))
    assert page.exit_code == 0, page.output
    return home / "a", page


def test_all_records_are_protected_and_the_accuracy_has_noise(protected):
    out, page = protected
    record = RunRecord.read(out)
    ledger = record.open_ledger(out)
    first, *_ = (event for event, _ in ledger)
    assert first == Gaussian(record.utility.noise)  # charged before the first step
    assert 2.9 < ledger.spent(record.delta).epsilon <= 3
    assert "NOT PROTECTED" not in page.output
    assert all(epoch.accuracy is None for epoch in record.history)
    assert "with noise of 6.222 on each count, which the ledger holds" in page.stdout.replace("\N{NO-BREAK SPACE}", " ")


def test_the_accuracy_stands_beside_the_share_of_the_largest_class(protected):
    out, page = protected
    utility = RunRecord.read(out).utility
    assert utility.low <= 0.9 <= utility.high  # nothing can be learned: the model answers "no"
    assert utility.majority == pytest.approx(0.9, abs=0.08)
    for text in (page.stdout, (out / "CARD.md").read_text()):
        assert "Always answering the most frequent class has an accuracy of" in text
    assert "always the most frequent class" in (out / "report.html").read_text()


def test_the_condition_is_named_everywhere(protected):
    out, page = protected
    plain = json.loads((out / "card.json").read_text())
    assert plain["privacy"]["conditions"] == [CONDITION] and CONDITION in plain["assumptions"]
    assert plain["privacy"]["guarantee"] == "proved"
    for text in (page.stdout, (out / "CARD.md").read_text(), (out / "report.html").read_text()):
        assert f"proved; {CONDITION})" in text
    assert CONDITION in (out / "ledger.jsonl").read_text()
    told = json.loads(privet("report", out, "--json").stdout)
    assert told["spent"]["conditions"] == [CONDITION]


def test_a_stated_size_takes_the_condition_away_and_hides_one_more_record(home):
    plans = []
    for count in (1500, 1501):
        (home / "one.csv").write_text("\n".join(["age,height,sick", *rows(count)]) + "\n")
        dataset = with_test_records(load(f"csv:{home / 'one.csv'}", schema=home / "schema.json"), "x", public_size=1000)
        outcome, ledger = fitted(dataset, protect_test=True)
        plans.append((outcome.plan, ledger.event, dataset.size, dataset.at_most))
        assert ledger.conditions == ()
    assert plans[0] == plans[1]
    assert plans[0][0].records == 800


def test_internal_files_are_the_owners_and_released_ones_everybodys(protected, home):
    out, _ = protected
    assert {mode(out / name) for name in ("record.json", "report.html", "steps.csv", "data.key")} == {0o600}
    assert {mode(out / name) for name in ("CARD.md", "card.json", "model.safetensors")} == {0o644}
    page = privet(*asked(home, "synthesize", "people.csv", "--out", home / "s"))
    assert page.exit_code == 0, page.output
    assert mode(home / "s" / "internal") == 0o700
    assert {mode(file) for file in (home / "s" / "internal").iterdir()} == {0o600}
    assert {mode(file) for file in (home / "s" / "release").iterdir()} == {0o644}


def test_students_of_artificial_data_are_measured_within_the_budget(home):
    out = home / "t"
    page = privet(*asked(home, "synthesize", "people.csv", "--epsilon", 1, "--out", out, "--student", "logistic"))
    assert page.exit_code == 0, page.output
    record = RunRecord.read(out)
    ledger = record.open_ledger(out)
    *_, last = (event for event, _ in ledger)
    assert last == Gaussian(record.utility.noise)
    assert 0.99 < ledger.spent(record.delta).epsilon <= 1
    exact = f"{100 * record.test_accuracy:.2f} % of the test records right"
    assert exact in record.internal["Student logistic"] and exact not in (out / "card.json").read_text()


@pytest.mark.parametrize("verb", ["train", "synthesize"])
def test_a_hold_out_that_was_asked_for_is_named_first(home, verb):
    out = home / f"h-{verb}"
    page = privet(*asked(home, verb, "people.csv", "--hold-out", 0.3, "--out", out))
    assert page.exit_code == 0, page.output
    said = "NOT PROTECTED: the hold-out, about 30 % of the records."
    assert page.stderr.splitlines()[0].startswith(said)
    card = (out / "CARD.md").read_text().split("---\n", 2)[2]
    assert said in "\n".join(card.strip().splitlines()[:4])
    html = (out / "report.html").read_text()
    assert html.index(said) < html.index('id="h-statement"')
    record = RunRecord.read(out)
    assert record.data.training_records == 1050 and record.utility.noise == 0
    assert record.utility.accuracy == pytest.approx(record.test_accuracy)
    assert f"{100 * record.test_accuracy:.2f} %" not in card
    assert "was not measured in a way that may be published" in card
    assert privet("attack", out).exit_code == 0  # the same records are held out again


def test_test_records_of_ones_own_are_protected_unless_somebody_says_otherwise(home):
    page = privet(*asked(home, "train", "both", "--json", "--out", home / "b"))
    facts = json.loads(page.stdout)
    assert facts["accuracy"]["noise"] > 0 and facts["not_protected"] == ""
    assert "test_accuracy" not in facts and "attack" not in facts and facts["internal"]["attack"]["auc"] > 0
    page = privet(*asked(home, "train", "both", "--unprotected-test", "--out", home / "c"))
    assert page.stderr.startswith("NOT PROTECTED: the test records.")
    assert RunRecord.read(home / "c").utility.noise == 0
    page = privet(*asked(home, "train", "both", "--hold-out", 0.2, "--out", home / "d"))
    assert page.exit_code == 2 and "has test records of its own" in page.stderr


def test_public_test_records_are_counted_exactly(tmp_path):
    page = privet("train", "--data", "digits", "--seed", 1, "--out", tmp_path / "a")
    record = RunRecord.read(tmp_path / "a")
    assert record.utility.noise == 0 and record.utility.accuracy == pytest.approx(record.test_accuracy)
    assert 0.09 < record.utility.majority < 0.13
    assert len(record.open_ledger(tmp_path / "a")) == int(record.settings["Steps"].split(",")[0])
    assert "measured on the test records. Always answering" in page.stdout
    assert mode(tmp_path / "a" / "report.html") == 0o644


def test_a_file_without_a_header_is_asked_about_and_then_read(home):
    page = privet(*asked(home, "train", "bare.csv", "--out", home / "e"))
    assert page.exit_code == 2 and "If the file has no header, say so (--no-header" in page.stderr
    bare = load(f"csv:{home / 'bare.csv'}", schema=home / "schema.json", header=False)
    named = load(f"csv:{home / 'people.csv'}", schema=home / "schema.json")
    assert bare.fingerprint == named.fingerprint
    page = privet(*asked(home, "train", "bare.csv", "--no-header", "--out", home / "e"))
    assert page.exit_code == 0, page.output
    assert privet("attack", home / "e").exit_code == 0
    assert privet("train", "--data", "digits", "--no-header", "--out", home / "f").exit_code == 2


def test_all_undescribed_columns_are_reported_at_once(home):
    (home / "more.csv").write_text("id,age,town,height,sick,zip\n1,0.5,x,0.5,no,3\n")
    page = privet(*asked(home, "train", "more.csv", "--out", home / "g"))
    assert "has the columns 1, 3 and 6 of 6, which the schema does not describe" in page.stderr


def test_runs_that_divide_a_file_in_other_ways_count_each_other(home, protected):
    out = home / "other"
    privet(*asked(home, "train", "people.csv", "--hold-out", 0.5, "--out", out))
    others = RunRecord.read(out).others
    assert protected[0].name in {other.name for other in others}
    together = json.loads((out / "card.json").read_text())["other_runs"]["together"]
    assert together is None or CONDITION in together


def test_the_accuracy_is_charged_once_by_a_run_that_was_stopped(home, tmp_path, monkeypatch):
    from privet.methods import DataSpec
    from privet.runs import run
    from privet.training.step import Step

    spec = DataSpec(f"csv:{home / 'people.csv'}", schema=str(home / "schema.json"))
    task = Task.of(spec, spec.load(), 3.0, 1e-5)
    method = method_for("dpsgd", task)
    release, done = Step.release, 0

    def stopping(*given, **named):
        nonlocal done
        done += 1
        if done == 5:
            raise KeyboardInterrupt
        return release(*given, **named)

    monkeypatch.setattr(Step, "release", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(method, task, tmp_path / "a")
    monkeypatch.setattr(Step, "release", release)
    record = run(method, task, tmp_path / "a", resume=True)
    ledger = record.open_ledger(tmp_path / "a")
    charges = [count for event, count in ledger if event == Gaussian(record.utility.noise)]
    assert charges == [1] and 2.9 < ledger.spent(1e-5).epsilon <= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hold_out": 0.0}, "between 0 and 1"),
        ({"hold_out": 1.0}, "between 0 and 1"),
        ({"unprotected_test": True}, "has no test records of its own"),
        ({"public_size": 0}, "at least 1"),
    ],
)
def test_refused(home, options, message):
    whole = load(f"csv:{home / 'people.csv'}", schema=home / "schema.json")
    with pytest.raises(InputError, match=message):
        with_test_records(whole, "people.csv", **options)


def test_a_wrong_size_changes_what_is_drawn_and_not_the_statement(home):
    """Half or twice the true number: the rate is batch / stated size, so the ledger is that of the stated size."""
    whole = load(f"csv:{home / 'people.csv'}", schema=home / "schema.json")
    for stated in (500, 5000):
        dataset = with_test_records(whole, "people.csv", public_size=stated)
        outcome, ledger = fitted(dataset)
        plan = outcome.plan
        assert plan.records == 0.8 * stated
        assert plan.sampling.rate == pytest.approx(plan.expected_batch_size / plan.records)
        assert ledger.spent(1e-5).epsilon <= 3


def test_compare_protects_too(home):
    page = privet(
        *asked(
            home, "compare", "people.csv", "--methods", "dpsgd", "--public-size", 1500, "--out", home / "apart" / "k"
        )
    )
    assert page.exit_code == 0, page.output
    html = (home / "apart" / "k" / "report.html").read_text()
    assert "This page is internal" in html and ", with noise" in html and CONDITION not in html
    assert {mode(home / "apart" / "k" / name) for name in ("report.html", "compare.json", "dpsgd.log")} == {0o600}


def test_a_large_delta_is_said_on_page_and_card(home):
    out = home / "delta"
    page = privet(*asked(home, "train", "people.csv", "--delta", 0.01, "--out", out))
    assert page.stderr.count("is not below 1/N") == 1
    for name in ("CARD.md", "report.html"):
        assert "is not below 1/N" in (out / name).read_text()


def test_protected_test_records_are_not_taken_as_public_ones(home):
    given = ("--method", "pate", "--public", 100, "--out", home / "p")
    page = privet(*asked(home, "train", "people.csv", *given))
    assert page.exit_code == 2 and "are protected, so none of them are public" in page.stderr
    assert not (home / "p").exists()


def test_pate_is_measured_within_the_budget(home):
    for name, count, seed in (("plain.csv", 1500, 4), ("open.csv", 400, 5)):
        draw = np.random.default_rng(seed).random((count, 2))
        lines = [f"{a:.9f},{b:.9f},{'yes' if a > 0.5 else 'no'}" for a, b in draw]
        (home / name).write_text("\n".join(["age,height,sick", *lines]) + "\n")
    given = ("--method", "pate", "--public", f"csv:{home / 'open.csv'}", "--set", "teachers=20", "--out", home / "q")
    page = privet(*asked(home, "train", "plain.csv", *given))
    assert page.exit_code == 0, page.output
    record = RunRecord.read(home / "q")
    ledger = record.open_ledger(home / "q")
    assert Gaussian(record.utility.noise) in {event for event, _ in ledger}
    assert ledger.spent(record.delta).epsilon <= 3 and CONDITION in ledger.conditions


def test_who_is_unprotected_is_said_by_every_verb_that_states_epsilon(home):
    out = home / "said"
    assert privet(*asked(home, "train", "both", "--unprotected-test", "--seed", 0, "--out", out)).exit_code == 0
    for verb in ("report", "account"):
        page = privet(verb, out)
        assert "NOT PROTECTED: the test records." in page.stderr and "NOT FOR RELEASE: the noise" in page.stderr
    assert "NOT PROTECTED" in json.loads(privet("report", out, "--json").stdout)["not_protected"]
    assert "is not below 1/N" in privet("account", out, "--delta", 0.01).stderr


def test_with_users_the_hold_out_is_a_share_of_users(home):
    (home / "u.csv").write_text(
        "who,age,height,sick\n" + "\n".join(f"p{n // 4},{row}" for n, row in enumerate(rows(900)))
    )
    page = privet(*asked(home, "train", "u.csv", "--users", "who", "--hold-out", 0.3, "--out", home / "u"))
    assert page.exit_code == 0, page.output
    assert "NOT PROTECTED: the hold-out, about 30 % of the users." in page.stderr
    assert "about 30 % of the users" in (home / "u" / "CARD.md").read_text()


def test_a_vacuous_run_protects_nobody_on_its_card(home):
    page = privet(*asked(home, "train", "people.csv", "--epsilon", 3000, "--out", home / "vacuous"))
    assert page.exit_code == 0, page.output
    card = (home / "vacuous" / "CARD.md").read_text()
    assert "| Who is protected | Nobody: " in card
    card = card.replace("| Who is protected |", "")
    assert "are protected" not in card and "is protected" not in card and "differentially private" not in card


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
def test_a_comparison_keeps_exact_figures_under_internal(home, held):
    out = home / f"compare-{held}"
    more = ("--hold-out", 0.3) if held else ()
    command = asked(home, "compare", "people.csv", "--methods", "dpsgd", "--jobs", 1, "--out", out, *more)
    page = privet(*command, "--json")
    assert page.exit_code == 0, page.output
    (row,) = (row for row in json.loads(page.stdout)["rows"] if row["state"] == "done")
    assert "attack" not in row and 0 <= row["internal"]["attack"]["auc"] <= 1
    assert (row["accuracy"] is None) is held and ("accuracy" in row["internal"]) is held
    said = privet("report", out).stdout
    assert said.startswith("Internal, not for release: AUC and TPR") and "The page, which is internal" in said
