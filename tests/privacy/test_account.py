"""What `privet account` answers, and the figure."""

import json
import math

import pytest

from privet.errors import InputError
from privet.privacy import Gaussian, PureEpsilon, accountant_named
from privet.privacy.budget import account
from privet.privacy.figure import epsilon_curves, save_epsilons, save_tradeoff

RUN = {"examples": 60_000, "batch_size": 600, "epochs": 15, "delta": 1e-5}
KEYS = {"epsilon", "delta", "noise_multiplier", "steps", "accountant", "relation", "guarantee", "vacuous", "meaning"}


def test_the_cost_of_a_run():
    answer = account(**RUN, noise_multiplier=1.1)
    assert str(answer) == (
        "noise multiplier 1.1, 1500 steps of 600 of 60000 records on average: epsilon = 1.87 at delta = 1e-05 "
        "(add/remove one record; Poisson sampling; PLD; proved)"
    )
    said = json.loads(json.dumps(answer.to_dict()))
    assert said.keys() == KEYS
    assert (said["steps"], said["accountant"], said["relation"], said["guarantee"]) == (
        1500,
        "pld",
        "add-remove",
        "proved",
    )


def test_the_noise_for_an_epsilon():
    answer = account(**RUN, epsilon=3.0)
    assert 0.999 * 3 <= answer.spent.epsilon <= 3
    assert account(**RUN, noise_multiplier=answer.noise_multiplier).spent == answer.spent


def test_the_steps_for_an_epsilon():
    run = {**RUN, "epochs": None, "noise_multiplier": 4.0}
    answer = account(**run, epsilon=2.0)
    assert answer.spent.epsilon <= 2 < account(**run, steps=answer.steps + 5).spent.epsilon


@pytest.mark.parametrize("length", [{"steps": 1500}, {"epochs": 15}])
def test_the_batch_for_an_epsilon(length):
    run = {"examples": 60_000, "delta": 1e-5, "noise_multiplier": 1.0, **length}
    answer = account(**run, epsilon=2.0)
    assert answer.to_dict().keys() == KEYS | {"batch_size"}
    assert answer.spent.epsilon <= 2 < account(**run, batch_size=answer.batch_size + 5).spent.epsilon


def test_what_cannot_be_had_says_what_can():
    with pytest.raises(InputError, match=r"even with the largest, epsilon is 0\.36"):
        account(**RUN, epsilon=0.1, accountant="moments")
    with pytest.raises(InputError, match=r"epsilon 0\.001 is less than one step costs: epsilon = 75\.5 at delta"):
        account(**{**RUN, "epochs": None}, noise_multiplier=0.1, epsilon=0.001)
    with pytest.raises(InputError, match="less than an expected batch of one record costs"):
        account(examples=1000, delta=1e-5, noise_multiplier=0.1, epochs=1, epsilon=0.1)


def test_rdp_says_nothing_of_the_orders_it_does_without(capfd):
    account(examples=100, batch_size=55, noise_multiplier=1.65, steps=10, delta=1e-3, accountant="rdp")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["pld", "rdp", "moments", "strong", "strong-published", "optimal", "basic"])
def test_by_every_accountant(name):
    answer = account(**RUN, noise_multiplier=2.0, accountant=name)
    assert answer.to_dict()["accountant"] == name
    assert 0.5 < answer.spent.epsilon < 130


def test_a_large_delta_is_warned_about_by_its_convention():
    assert not account(**RUN, noise_multiplier=2.0).warnings
    (warning,) = account(**{**RUN, "delta": 1 / 60_000}, noise_multiplier=2.0).warnings
    assert "1/N" in warning
    assert "convention" in warning


def test_no_noise_is_an_infinite_epsilon_and_valid_json():
    answer = account(**RUN, noise_multiplier=0.0)
    assert answer.spent.epsilon == math.inf
    assert json.loads(json.dumps(answer.to_dict(), allow_nan=False))["epsilon"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 60_001}, "larger than the 60000 examples"),
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"examples": -5}, "at least one example"),
        ({"delta": 0.0}, "delta must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"delta": -1.0}, "delta must be"),
        ({"epochs": -1}, "epochs must be positive"),
        ({"epochs": None}, "Leave out exactly one of the batch size, the noise, the steps"),
        ({"steps": 3}, "either the number of steps or of epochs"),
        ({"epochs": None, "steps": 0}, "at least one step"),
        ({"noise_multiplier": -1.0}, "noise multiplier must be"),
        ({"noise_multiplier": math.nan}, "noise multiplier must be"),
        ({"noise_multiplier": None}, "Leave out exactly one"),
        ({"batch_size": None}, "Leave out exactly one"),
        ({"epsilon": 1.0}, "Leave out exactly one"),
        ({"noise_multiplier": None, "epsilon": -1.0}, "epsilon of a budget"),
        ({"noise_multiplier": None, "epsilon": 0.0}, "epsilon of a budget"),
        ({"accountant": "magic"}, "There is no accountant 'magic': did you mean 'basic'\\? There are pld, rdp"),
        ({"relation": "same"}, "no relation 'same'"),
        ({"accountant": "gdp"}, "GDP cannot bound PoissonSampled"),
    ],
)
def test_impossible_requests_get_a_sentence(change, message):
    with pytest.raises(InputError, match=message):
        account(**{**RUN, "noise_multiplier": 1.0, **change})


def test_the_figure_has_the_paper_s_curves(tmp_path):
    marks, curves = epsilon_curves(0.01, 4.0, 1e-5, 10_000, points=3)
    assert marks[-1] == 10_000
    ends = {key: values[-1] for key, values in curves.items()}
    paper = {"strong-classic": 26.39, "strong-published": 9.353, "moments": 1.2586, "rdp": 1.0355, "pld": 0.9469}
    proved = {"basic": 223.5, "strong": 16.84, "optimal": 12.447}
    assert ends == pytest.approx(paper | proved, rel=1e-3)
    save_epsilons(tmp_path / "figure.svg", 0.01, 4.0, 1e-5, 400)
    assert "moments accountant" in (tmp_path / "figure.svg").read_text()
    _, replaced = epsilon_curves(0.01, 4.0, 1e-5, 100, relation="replace-one", points=1)
    assert "pld" in replaced
    assert "moments" not in replaced
    _, unsampled = epsilon_curves(1.0, 40.0, 1e-5, 100, points=1)
    assert unsampled["gdp"] == pytest.approx(unsampled["pld"], rel=1e-3)


@pytest.mark.parametrize(
    ("file", "noise", "message"),
    [
        ("figure.xyz", 4.0, r"use \.svg, \.png, \.pdf"),
        ("figure", 4.0, "unknown ending for a figure"),
        ("nowhere/figure.svg", 4.0, r"cannot be written \(No such file"),
        ("figure.svg", 0.0, "nothing to draw"),
    ],
)
def test_a_figure_that_cannot_be_drawn_gets_a_sentence(tmp_path, file, noise, message):
    with pytest.raises(InputError, match=message):
        save_epsilons(tmp_path / file, 0.01, noise, 1e-5, 4)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("event", [Gaussian(2.0), Gaussian(0.01), PureEpsilon(1.0), Gaussian(0.0)])
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_trade_off_is_drawn(tmp_path, event, ending):
    save_tradeoff(tmp_path / f"curve.{ending}", accountant_named("pld").spent(event, 1e-5))
    drawn = (tmp_path / f"curve.{ending}").read_bytes()
    assert len(drawn) > 10_000
    again = tmp_path / f"again.{ending}"
    save_tradeoff(again, accountant_named("pld").spent(event, 1e-5))
    if ending == "png":
        assert again.read_bytes() == drawn
    with pytest.raises(InputError, match="unknown ending for a figure"):
        save_tradeoff(tmp_path / "curve.xyz", accountant_named("pld").spent(event, 1e-5))
