"""The stored results of benchmarks/audit.py: complete, without a miss or a false alarm, and what the documentation shows."""

import json
from pathlib import Path

import pytest

from tests.audit.broken import BUGS

ROOT = Path(__file__).parent.parent.parent
RESULTS = json.loads((ROOT / "benchmarks/results/audit.json").read_text())
KEYS = {"mechanism", "planted_bug", "claimed_epsilon", "lower_bound", "ceiling", "confidence", "refuted"}


def test_every_row_has_the_keys_and_the_verdict_follows_from_them():
    for row in RESULTS["rows"]:
        assert row.keys() >= KEYS
        assert row["refuted"] == (row["lower_bound"] > row["claimed_epsilon"])
        assert row["lower_bound"] <= row["ceiling"]
        assert row["refuted"] == (row["planted_bug"] is not None), row


def test_every_planted_bug_is_in_the_table():
    assert {bug.name for bug in BUGS} <= {row["planted_bug"] for row in RESULTS["rows"]}


def test_what_was_to_be_shown_was_shown():
    assert RESULTS["one_step_seconds"] < 120
    assert list(RESULTS["ceilings"].values()) == pytest.approx([5.78, 3.47, 1.79, 5.60], abs=0.005)
    flat = next(row for row in RESULTS["rows"] if row["mechanism"] == "DP-SGD step, flat clipping, sampling rate 1")
    assert flat["lower_bound"] >= 0.8 * flat["claimed_epsilon"]
    area = {row["attack"]: row["auc"] for row in RESULTS["membership"]}
    assert area["shadow model, overfitted ResNet8"] > 0.7
    assert abs(area["shadow model, its DP-SGD twin, epsilon 3"] - 0.5) < 0.05


def test_the_page_shows_the_table_of_the_run():
    page = (ROOT / "docs/audit.md").read_text()
    for line in (ROOT / "benchmarks/results/audit.md").read_text().splitlines():
        assert line in page
