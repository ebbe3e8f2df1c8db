"""Progress: bars on a terminal, a line now and then in a log."""

import io
from contextlib import redirect_stderr

import pytest

from privet.cli.progress import fetching, training


def test_nobody_looking_means_no_bar_and_nothing_that_is_done_soon(capsys):
    with fetching() as fetched, training(1e-5) as stepped:
        assert fetched is None
        stepped({"step": 1, "steps": 10, "loss": 2.3, "epsilon": 0.5})
    assert capsys.readouterr() == ("", "")


def test_a_long_training_leaves_lines_in_a_log(capsys, monkeypatch):
    clock = iter([0.0, 10.0, 20.0, 30.0, 40.0])
    monkeypatch.setattr("privet.cli.progress.time.monotonic", lambda: next(clock))
    with training(1e-5) as show:
        for step in range(1, 5):
            show({"step": step, "steps": 10, "loss": 3.0 - step / 4, "epsilon": step / 10})
    assert capsys.readouterr().err == (
        "Training 2/10: loss 2.500, epsilon 0.200 at delta 1e-05, 1 min 20 s left\n"
        "Training 4/10: loss 2.000, epsilon 0.400 at delta 1e-05, 1 min 00 s left\n"
    )


def test_the_time_left_is_that_of_what_is_being_done(capsys, monkeypatch):
    clock = iter([0.0, 1000.0, 1010.0, 1020.0])
    monkeypatch.setattr("privet.cli.progress.time.monotonic", lambda: next(clock))
    with training(1e-5) as show:
        show({"step": 10, "steps": 10})
        show({"what": "Attacking", "step": 1, "steps": 4})
        show({"what": "Attacking", "step": 2, "steps": 4})
    assert capsys.readouterr().err == "Training 10/10: 0 s left\nAttacking 2/4: 10 s left\n"


def test_a_slow_start_at_zero_has_no_time_left(capsys, monkeypatch):
    clock = iter([0.0, 20.0, 40.0])
    monkeypatch.setattr("privet.cli.progress.time.monotonic", lambda: next(clock))
    with training(1e-5) as show:
        show({"what": "Features", "step": 0, "steps": 100})
        show({"what": "Features", "step": 50, "steps": 100})
    assert capsys.readouterr().err.splitlines() == ["Features 0/100", "Features 50/100: 40 s left"]


def test_an_epsilon_that_is_only_claimed_says_so_in_every_line_and_leaves_the_reason_to_the_page():
    with redirect_stderr(Terminal()) as terminal, training(1e-5) as show:
        show({"step": 1, "steps": 2, "epsilon": 0.5, "guarantee": "only claimed by a paper: its bound is hoped for"})
    assert "epsilon 0.500 at delta 1e-05 (only claimed by a paper) " in terminal.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def wide_and_plain(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_file_on_its_way_is_named_with_its_size():
    with redirect_stderr(Terminal()) as terminal, fetching() as show:
        show("https://example.org/mnist/train.gz", 0, None)
        show("https://example.org/mnist/train.gz", 500_000, 1_000_000)
    assert "train.gz" in terminal.getvalue()
    assert "1.0 MB" in terminal.getvalue()


def test_a_training_shows_loss_epsilon_with_its_delta_and_time_left():
    with redirect_stderr(Terminal()) as terminal, training(1e-5) as show:
        show({"step": 1, "steps": 10, "loss": 2.3, "epsilon": 0.5})
        show({"step": 5, "steps": 10, "loss": 1.25, "epsilon": 1.5})
    assert " 5/10 loss 1.250, epsilon 1.500 at delta 1e-05 " in terminal.getvalue()
