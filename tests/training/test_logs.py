"""Logs of a training: a CSV file, and a dictionary per step for a callback."""

import csv

import pytest
import torch

import privet
from privet.data.catalogue import load_digits
from privet.training import Performance
from privet.training.logs import CsvLog, logged


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def step(number: int, **more: object) -> dict:
    standing = {"epsilon": number / 10, "delta": 1e-5, "guarantee": "proved"}
    return {"loss": 1 / number, "step": number, "steps": 5, **standing, **more}


def test_every_step_is_a_line_and_epsilon_never_stands_alone(tmp_path):
    with logged(tmp_path) as log:
        for number in (1, 2):
            log(step(number))
        log({"what": "Computing features", "step": 9, "steps": 9})
    found = rows(tmp_path / "steps.csv")
    assert [row["step"] for row in found] == ["1", "2"]
    assert {row["delta"] for row in found} == {"1e-05"} and {row["guarantee"] for row in found} == {"proved"}
    assert (tmp_path / "steps.csv").stat().st_mode & 0o077 == 0


def test_nothing_is_left_where_nothing_was_trained(tmp_path):
    with logged(tmp_path / "run") as log:
        log({"what": "Computing features", "step": 1, "steps": 1})
    assert not (tmp_path / "run").exists()


def test_steps_that_are_done_again_have_one_line(tmp_path):
    log = CsvLog(tmp_path / "a.csv")
    for number in (1, 2, 3):
        log(step(number, critic=0.5))
    log.close()
    with (tmp_path / "a.csv").open("a") as file:
        file.write("Training,4,5,0.2")  # the process died here
    log = CsvLog(tmp_path / "a.csv")
    for number in (3, 4):
        log(step(number, critic=0.25))
    log.close()
    found = rows(tmp_path / "a.csv")
    assert [row["step"] for row in found] == ["1", "2", "3", "4"]
    assert [row["critic"] for row in found] == ["0.5", "0.5", "0.25", "0.25"]


def test_others_get_the_same_dictionaries(tmp_path):
    seen: list[dict] = []
    with logged(tmp_path, seen.append, None) as log:
        log(step(1))
        log({"what": "else", "step": 1, "steps": 1})
    assert [one.get("what") for one in seen] == [None, "else"]


def test_the_csv_file_is_all_that_is_written(tmp_path):
    with logged(tmp_path) as log:
        log(step(1))
    assert [path.name for path in tmp_path.iterdir()] == ["steps.csv"]


@pytest.mark.parametrize("physical", [None, 50])
def test_a_loop_of_ones_own_gets_a_dictionary_per_step(physical):
    data = load_digits()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = privet.make_private(
        model,
        optimizer,
        data.train,
        batch_size=144,
        steps=3,
        noise_multiplier=2.0,
        delta=1e-5,
        max_grad_norm=1.0,
        performance=Performance(physical_batch_size=physical),
        seed=0,
    )
    seen: list[dict] = []
    for x, y in private.batches(on_step=seen.append):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert [one["step"] for one in seen] == [1, 2, 3]
    assert seen[-1]["epsilon"] == private.spent().epsilon
    assert seen[-1] == seen[-1] | {"steps": 3, "delta": 1e-5, "guarantee": "proved"}
