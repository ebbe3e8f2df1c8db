"""A comparison on a Dask cluster and a Ray instance, with workers killed in the middle: books and bits as in a local run."""

import os
import sys
from pathlib import Path

import pytest

from privet.io.farm import Farm
from privet.methods import DataSpec
from privet.privacy import DataAccount, Ledger
from privet.report import RunRecord
from privet.runs import Measuring
from privet.runs.job import Job
from privet.runs.race import race
from tests.runs.worker import killed_once, quick

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("PRIVET_CLUSTERS"), reason="clusters take minutes to start: PRIVET_CLUSTERS=1"
    ),
]
METHODS = ("dpsgd", "dpsgd-automatic")
PACKAGES = {"dask": "distributed", "ray": "ray"}


def compared(out: Path, farm: Farm, one) -> list[str]:
    account = out.parent / "digits.jsonl"
    DataAccount.create(account, 10.0, 1e-3)
    spec = DataSpec("digits", account=str(account))
    Job(spec, 3.0, 1e-5, METHODS, seed=1, settings={"epochs": 2}, measuring=Measuring(("loss",))).keep(out)
    return [f"{row.method}: {row.state} {row.reason}".strip() for row in race(METHODS, out, farm=farm, one=one)]


def bits(out: Path) -> list[object]:
    """The weights of each run, and its attack."""
    found: list[object] = []
    for key in METHODS:
        record = RunRecord.read(out / key)
        weights = sorted((out / key).rglob("*.safetensors"))
        assert weights
        found += [path.read_bytes() for path in weights]
        found += [(attack.auc, attack.low) for attack in record.attacks]
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "compare"
    assert compared(out, Farm(2), quick) == [f"{key}: done" for key in METHODS]
    return bits(out), books(out)


def books(out: Path) -> list[object]:
    """The number of steps in each ledger, and what the account has paid."""
    steps = [len(Ledger.open(out / key / "ledger.jsonl", read_only=True)) for key in METHODS]
    return [*steps, DataAccount.open(out.parent / "digits.jsonl").standing().used]


@pytest.mark.filterwarnings(
    "ignore"
)  # of packages of others, about ports, pools and files that a killed process left open
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_comparison_whose_workers_are_killed(backend, local, tmp_path, monkeypatch):
    pytest.importorskip(PACKAGES[backend])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    out = tmp_path / "compare"
    said = compared(out, Farm(2, backend, "local"), killed_once)
    assert said == [f"{key}: done" for key in METHODS]
    assert all((out / f"{key}.was-killed").exists() for key in METHODS)
    assert bits(out) == local[0]
    assert books(out) == local[1]  # nothing was charged twice
