"""`privet audit` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.privacy import Gaussian, Laplace, Ledger
from privet.report import RunRecord
from tests.report.conftest import private_run


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_every_clipping_is_audited_and_said_in_a_sentence():
    page = privet("audit", "--draws", 400, "--no-laboratory")
    assert page.exit_code == 0, page.output
    lines = page.stdout.splitlines()
    titles = [
        "DP-SGD (Abadi et al. 2016)",
        *(f"DP-SGD, {kind} clipping" for kind in ("automatic", "adaptive", "per-layer")),
    ]
    titles += ["DP-SGD calibrated by advanced composition"]
    titles += ["Optimized additive noise (Xiang et al. 2019), elliptical clipping with Gaussian noise"]
    assert [line.split(":")[0] for line in lines] == [f"One step of {title}" for title in titles]
    assert all(" Audited: the method's sampling, clipping and noise. " in line for line in lines)
    assert all(line.endswith("Verdict: consistent.") for line in lines)


def test_a_program_gets_json_of_a_step_and_of_a_training():
    page = privet(
        *("audit", "--method", "dpsgd", "--clipping", "flat", "--steps", 5, "--rate", 0.5, "--draws", 400, "--json"),
        "--no-laboratory",
    )
    one, whole = json.loads(page.stdout)
    assert one["mechanism"] == "One step of DP-SGD (Abadi et al. 2016)"
    assert whole["mechanism"] == "DP-SGD (Abadi et al. 2016), 5 steps"
    assert one["lower_bound"] <= one["claimed_epsilon"] < whole["claimed_epsilon"]
    assert not one["refuted"] and not whole["refuted"]


def test_a_refuted_claim_ends_with_one(monkeypatch):
    from privet.noise import GaussianNoise

    monkeypatch.setattr(GaussianNoise, "event", lambda self, step=0: Gaussian(5 * self.multiplier))
    page = privet("audit", "--method", "dpsgd", "--clipping", "flat", "--draws", 4000, "--no-laboratory")
    assert page.exit_code == 1
    assert "Verdict: refuted at 99 %." in page.stdout


def test_a_run_is_audited_with_what_its_ledger_holds(tmp_path):
    record = private_run(tmp_path)
    record.write(tmp_path)
    page = privet("audit", tmp_path, "--draws", 400, "--canaries", 100)
    assert page.exit_code == 0, page.output
    one, whole = RunRecord.read(tmp_path).audits
    spent = RunRecord.read(tmp_path).open_ledger(tmp_path).spent(record.delta)
    assert whole.claimed_epsilon == pytest.approx(spent.epsilon)
    assert "Poisson sampling" in one.claim.statement
    assert [str(one), str(whole)] == page.stdout.splitlines()
    for each in (one, whole):  # a run of version 0.1: nothing of it but the ledger can be rebuilt
        assert each.not_audited == "the run's own sampling, clipping, noise and model"
        assert each.verdict.startswith("consistent for the parts that were audited")
    shown = (tmp_path / "report.html").read_text()
    assert "The audit" in shown
    assert whole.name in shown


def test_what_cannot_be_audited_is_a_sentence_and_two(tmp_path):
    both = privet("audit", tmp_path, "--method", "dpsgd")
    assert both.exit_code == 2
    assert "Give either the folder of a run or --method" in both.stderr
    record = private_run(tmp_path)
    (tmp_path / "ledger.jsonl").unlink()
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.record(Laplace(1.0))
    import dataclasses

    dataclasses.replace(record, ledger_head="").write(tmp_path)
    other = privet("audit", tmp_path)
    assert other.exit_code == 2
    assert "privet.audit.mechanism" in other.stderr


@pytest.mark.parametrize("method", ["mean", "second-moment"])
def test_releases_before_training_are_audited_by_name(method):
    page = privet("audit", "--method", method, "--draws", 200)
    assert page.exit_code == 0, page.output
    assert page.stdout.startswith(f"Private {method.replace('-', ' ')}: epsilon is at least")


@pytest.fixture
def two_stations(monkeypatch):
    from privet.audit import stations

    chosen = [one for one in stations.stations() if one.name in ("one step", "ledger")]
    monkeypatch.setattr(stations, "stations", lambda: tuple(chosen))


@pytest.mark.parametrize("method", [(), ("--method", "dpsgd")])
def test_without_a_run_the_laboratory_is_visited(two_stations, method):
    page = privet("audit", *method, "--clipping", "flat", "--draws", 400, "--runs", 100)
    assert page.exit_code == 0, page.output
    head, one, ledger, result = page.stdout.splitlines()[-4:]
    assert head.split() == ["station", "looks", "for", "claim", "bound", "ceiling", "verdict"]
    assert one.startswith("one step") and ledger.startswith("ledger") and ledger.endswith("consistent")
    assert result == "Laboratory: none of 2 stations refuted, at 99 % confidence for all stations together."


def test_a_refuted_station_ends_with_one(two_stations):
    from tests.audit.planted import every_other_step_unrecorded

    with every_other_step_unrecorded():
        page = privet("audit", "--clipping", "flat", "--draws", 400, "--runs", 40)
    assert page.exit_code == 1
    assert "ledger: 4 steps were made and 2 are in the ledger." in page.stdout
    assert "refuted, at 99 % confidence" in page.stdout
