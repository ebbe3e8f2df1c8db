"""The run record survives writing and reading, and says in one sentence what is wrong with a damaged one."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest

from privet.attacks import Roc
from privet.audit import Audit, Claim
from privet.errors import InputError
from privet.io import write_whole
from privet.report import AttackResult, RunRecord, renew, versions
from privet.report.record import FILE


@pytest.fixture
def record(finished_run) -> RunRecord:
    return RunRecord.read(finished_run)


def test_what_is_written_is_read_again(record, tmp_path):
    record.write(tmp_path)
    assert RunRecord.read(tmp_path) == record
    assert dataclasses.replace(record, attacks=()).write(tmp_path)
    assert RunRecord.read(tmp_path).attack is None
    unmeasured = dataclasses.replace(record, test_accuracy=None, training_accuracy=None)  # a loop of the user's own
    unmeasured.write(tmp_path)
    assert RunRecord.read(tmp_path) == unmeasured


def test_the_leading_attack_is_the_one_whose_area_is_surely_largest(record):
    (one,) = record.attacks
    lucky = dataclasses.replace(one, name="on few records", auc=0.6, low=0.4, high=0.8)
    sure = dataclasses.replace(one, name="on many", auc=0.55, low=0.53, high=0.57)
    assert dataclasses.replace(record, attacks=(lucky, sure, one)).attack is sure


def test_an_attack_in_a_record_of_0_1_0_is_read(record, tmp_path):
    """Version 0.1.0 kept one attack, without key, date, command, power or settings."""
    record.write(tmp_path)
    plain = json.loads((tmp_path / FILE).read_text())
    (attack,) = plain.pop("attacks")
    for name in ("key", "date", "command", "power", "settings"):
        del attack[name]
    (tmp_path / FILE).write_text(json.dumps(plain | {"attack": attack, "format": 1}))
    old = RunRecord.read(tmp_path).attack
    assert (old.key, old.date, old.command, old.power, old.settings) == ("", "", (), "", {})
    assert old.auc == record.attack.auc
    (tmp_path / FILE).write_text(json.dumps(plain | {"attack": None, "format": 1}))
    assert RunRecord.read(tmp_path).attacks == ()


def test_what_is_infinite_is_null_and_named_in_json(record, finished_run, tmp_path):
    (tmp_path / "ledger.jsonl").write_bytes((finished_run / "ledger.jsonl").read_bytes())
    claim = Claim(math.inf, 1e-5, "nothing is protected")
    audits = (Audit("a", claim, math.inf, math.inf, 0.99, "m", "e"), Audit("b", claim, 1.0, 2.0, 0.99, "m", "e"))
    altered = dataclasses.replace(record, audits=audits)
    altered.write(tmp_path)
    assert RunRecord.read(tmp_path) == altered
    plain = json.loads((tmp_path / FILE).read_text(), parse_constant=pytest.fail)["audits"]
    assert (plain[0]["lower_bound"], plain[0]["infinite"]) == (None, ["lower_bound", "ceiling"])
    told = {"epsilon": None, "delta": 1e-5, "statement": claim.statement, "guarantee": "", "infinite": ["epsilon"]}
    assert plain[0]["claim"] == told
    assert "infinite" not in plain[1]
    renew(tmp_path)
    for name in ("card.json", "CARD.md", "report.html"):
        assert (tmp_path / name).exists()
    assert json.loads((tmp_path / "card.json").read_text(), parse_constant=pytest.fail)["audits"][1]["infinite"] == [
        "claimed_epsilon"
    ]


def test_the_record_is_plain_data_and_names_no_place_of_the_machine(finished_run):
    text = (finished_run / FILE).read_text()
    assert json.loads(text)["method"] == "DP-SGD"
    assert str(finished_run) not in text
    assert os.path.expanduser("~") not in text


def test_the_attack_keeps_the_figures_of_the_whole_curve(record):
    generator = np.random.default_rng(0)
    roc = Roc.of(generator.normal(0.3, 1, 9000), generator.normal(0, 1, 5000))
    result = AttackResult.of("a test", roc)
    assert (result.auc, result.members, result.non_members) == (roc.auc, 9000, 5000)
    assert [rate.tpr for rate in result.rates] == [roc.tpr_at(0.001), roc.tpr_at(0.01)]
    assert len(result.false_positive_rate) <= 400
    assert (result.false_positive_rate[0], result.false_positive_rate[-1]) == (0, 1)
    # Thinning only drops points of the curve, so that drawing it loses little area.
    area = np.trapezoid(result.true_positive_rate, result.false_positive_rate)
    assert area == pytest.approx(roc.auc, abs=0.005)


def test_a_crash_while_writing_leaves_the_old_file(record, tmp_path, monkeypatch):
    record.write(tmp_path)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / FILE, b"half")
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert RunRecord.read(tmp_path) == record


def altered(**changes: object):
    def change(plain: dict) -> str:
        for name, value in changes.items():
            place, path = plain, name.split("__")
            for key in path[:-1]:
                place = place[int(key) if key.isdigit() else key]
            place[path[-1]] = value
        return json.dumps(plain)

    return change


def without(name: str):
    return lambda plain: json.dumps({key: value for key, value in plain.items() if key != name})


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda plain: json.dumps(plain)[:200], "the run record is damaged at line 1, column"),
        (lambda plain: "", "the run record cannot be read: it is empty or no text"),
        (lambda plain: "[]", "the record is a list and should be an object"),
        (without("delta"), "'delta' is missing"),
        (altered(delta="small"), "'delta' is text and should be a finite number"),
        (altered(delta=True), "'delta' is true and should be a finite number"),
        (altered(test_accuracy=float("nan")), "it has the number NaN, which JSON does not have"),
        (altered(seconds=None), "'seconds' is null and should be a finite number"),
        (altered(title=3), "'title' is a whole number and should be text"),
        (altered(data__classes="ten"), "'data.classes' is text and should be a list"),
        (altered(history=[{"epoch": 1}]), r"'history\[0\].step' is missing"),
        (altered(seeds={"noise": 1.5}), "'seeds.noise' is a number and should be text"),
        (altered(model=7), "model is a whole number and should be an object"),
        (altered(surprise=1), "'surprise' is not a field of this version of the record"),
        (altered(format=99), "its format is 99 and this version of Privet reads 2"),
        (
            altered(infinite=["seconds"], seconds=None),
            "'seconds' is null and should be a finite number",
        ),
        (altered(ledger="../../secret"), "'ledger' must name a file of the run folder"),
        (altered(attacks__0__true_positive_rate=[0.0]), "a ROC whose two halves differ in length"),
    ],
)
def test_a_damaged_record_gets_one_sentence(finished_run, tmp_path, damage, sentence):
    (tmp_path / FILE).write_text(damage(json.loads((finished_run / FILE).read_text())))
    with pytest.raises(InputError, match=sentence) as raised:
        RunRecord.read(tmp_path)
    assert str(tmp_path / FILE) in str(raised.value)


def test_a_missing_record_gets_one_sentence(tmp_path):
    with pytest.raises(InputError, match="there is no such folder"):
        RunRecord.read(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no run record; give the --out folder"):
        RunRecord.read(tmp_path)
    (tmp_path / "dpsgd").mkdir()
    (tmp_path / "dpsgd" / FILE).write_text("{}")
    with pytest.raises(InputError, match=r"give one of the runs in it: .*dpsgd"):
        RunRecord.read(tmp_path)
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        RunRecord.read(tmp_path)


def test_the_environment_names_versions_and_not_the_machine():
    found = versions()
    assert {"privet", "python", "torch", "dp-accounting", "platform"} <= set(found)
    assert os.uname().nodename not in " ".join(found.values()).split()


def test_a_missing_package_is_still_recorded(monkeypatch):
    monkeypatch.setattr("privet.report.record.PACKAGES", ("no-such-package-anywhere",))
    assert versions()["no-such-package-anywhere"] == "not installed"
