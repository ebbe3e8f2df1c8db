"""Measurements: their means over seeds, and the files that keep them."""

import json
import math
from dataclasses import replace

import pytest

from privet.errors import InputError
from privet.io.plain import build, to_plain
from privet.papers import Measurement, merge, read
from privet.papers.results import file_of, keep, mean, means, read_kept

ONE = Measurement(
    "t", "dpsgd", 2.0, 1e-5, {"accuracy": 0.9}, seconds=3.0, curve=((1.0, 0.5, 0.7), (2.0, 1.0, 0.9)), key="k"
)


def test_the_mean_over_seeds():
    other = replace(ONE, seed=1, quantities={"accuracy": 0.8, "last": 0.1}, seconds=5.0, curve=((1.0, 0.5, 0.5),))
    found = mean([ONE, other])
    assert found.quantities == {"accuracy": pytest.approx(0.85)}  # `last` is missing in one of them
    assert found.spread == {"accuracy": pytest.approx(math.sqrt(0.005))}
    assert (found.seeds, found.seconds, found.curve) == (2, 4.0, ((1.0, 0.5, 0.6),))
    assert mean([ONE]) is ONE
    elsewhere = replace(ONE, epsilon=3.0)
    assert means([ONE, elsewhere, other]) == [found, elsewhere]


def test_an_infinite_epsilon_is_kept(tmp_path):
    made = replace(ONE, spent=math.inf)
    keep(tmp_path / "a" / "one.json", made)
    assert read_kept(tmp_path / "a" / "one.json", "k") == made
    assert build(Measurement, json.loads(json.dumps(to_plain(made), allow_nan=False))) == made


def test_what_belongs_to_other_settings_or_is_torn_is_not_taken(tmp_path):
    path = tmp_path / "one.json"
    assert read_kept(path, "k") is None
    keep(path, ONE)
    assert read_kept(path, "other") is None
    path.write_text("{")
    assert read_kept(path, "k") is None


def test_merging_replaces_the_same_place_and_seed_and_leaves_others_alone(tmp_path):
    path = tmp_path / "folder" / "t.json"
    second, elsewhere = replace(ONE, seed=1), replace(ONE, line="pate")
    merge(path, [ONE, second, elsewhere])
    newer = replace(ONE, quantities={"accuracy": 0.95})
    merge(path, [newer])
    assert read(path) == [second, elsewhere, newer]


def test_means_and_other_settings_are_not_averaged_with_new_measurements(tmp_path):
    path = tmp_path / "t.json"
    merge(path, [replace(ONE, seeds=3, spread={"accuracy": 0.1})])
    merge(path, [replace(ONE, seed=1)])
    assert read(path) == [replace(ONE, seed=1)]
    merge(path, [replace(ONE, key="other")])
    assert read(path) == [replace(ONE, key="other")]


def test_a_file_that_holds_no_results_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    for text, sentence in (
        ("mine", "is not a file of results"),
        ('[{"a": 1}]', "does not hold measurements"),
        ("{}", "list"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=sentence):
            merge(path, [ONE])
        assert path.read_text() == text


def test_a_folder_of_results_has_a_file_for_each_table(tmp_path):
    assert file_of(tmp_path, "t") == tmp_path / "t.json"
    assert file_of(tmp_path / "own.json", "t") == tmp_path / "own.json"
