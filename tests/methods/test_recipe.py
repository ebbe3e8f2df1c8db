"""Every recipe that comes with Privet: it loads, says where its settings came from, and keeps its budget."""

import math
from importlib import resources

import pytest
import torch
import yaml

from privet import data
from privet.data import Dataset, Split
from privet.errors import InputError
from privet.methods import Context, Task, method_for
from privet.methods.recipe import ORIGINS, load, names, pick
from privet.privacy import Budget, CovarianceRelease, Gaussian
from privet.runs import run

DELTA = 1e-5
FILES = resources.files("privet.methods").joinpath("recipes")


def fit(recipe, dataset, *, epsilon, seed=None, method="dpsgd"):
    """Train by a recipe in memory: the outcome and its ledger."""
    task = Task(dataset, epsilon, DELTA, seed=seed)
    chosen = method_for(method, task, {"recipe": recipe})
    context = Context.in_memory(chosen, task)
    return chosen.fit(task, context), context.ledger


def toy(shape, name="toy", count=40, classes=3):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    splits = {title: Split(torch.rand(count, *shape, generator=generator), labels) for title in ("train", "test")}
    return Dataset(name, tuple("abcdefghij"[:classes]), splits)


@pytest.mark.parametrize("name", names())
def test_it_loads_and_states_the_origin_of_every_choice(name):
    recipe = load(name)
    assert recipe.name == name
    assert recipe.data in {*data.CATALOGUE, "diabetes"}
    assert all(origin.source in ORIGINS and len(origin.note) > 8 for origin in recipe.origins.values())
    for origin in recipe.origins.values():
        assert "test" not in origin.note
        if origin.source == "training split":
            assert "held out" in origin.note
        if origin.source == "carried over":
            assert origin.note.removeprefix("from ") in names()


RECORDS = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "digits": 1437, "diabetes": 353}


@pytest.mark.parametrize(("name", "epsilon"), [(name, e) for name in names() for e in load(name).epsilons])
def test_what_comes_before_training_leaves_room_for_it(name, epsilon):
    recipe = load(name)
    settings = recipe.at(epsilon)
    budget = Budget(epsilon, DELTA)
    if settings.mean_noise:
        budget = budget.after(Gaussian(settings.mean_noise))
    if settings.whitening_noise:
        budget = budget.after(CovarianceRelease(settings.whitening_noise) * 2)
    if settings.components_noise:
        budget = budget.after(CovarianceRelease(settings.components_noise))
    assert budget.spent().epsilon < 0.6 * epsilon
    records = RECORDS[recipe.data]
    rate = round(settings.sampling_rate * records) / records
    if settings.noise_multiplier:
        assert budget.steps(rate, settings.noise_multiplier) * rate >= 10
    else:
        steps = settings.steps or round(settings.epochs / rate)
        assert budget.noise_multiplier(rate, steps) < 20


@pytest.mark.parametrize(
    ("dataset", "expected", "why"),
    [
        (toy((8, 8), "digits"), "digits-linear", "made for digits"),
        (toy((28, 28), "mnist"), "mnist-scattering", "made for mnist"),
        (toy((28, 28), "fashion-mnist"), "fashion-scattering", "made for fashion-mnist"),
        (toy((28, 28), "folder:mine"), "images", "records of 1x28x28 are images"),
        (toy((3, 16, 20), "folder:mine"), "images", "records of 3x16x20 are images"),
        (toy((3, 5, 20)), "vectors", "records of 3x5x20 are vectors"),
        (toy((12,)), "vectors", "records of 12 are vectors"),
    ],
)
def test_the_pick_follows_the_name_then_the_shape(dataset, expected, why):
    recipe, reason = pick(dataset)
    assert recipe.name == expected
    assert why in reason


def test_settings_of_the_nearest_budget_are_taken_in_ratio():
    recipe = load("mnist-scattering")
    assert recipe.at(0.1) == recipe.at(0.5)
    assert recipe.at(100) == recipe.at(8)
    assert recipe.at(1.4) == recipe.at(1)
    assert recipe.at(1.5) == recipe.at(2)


@pytest.fixture
def plain():
    return yaml.safe_load(FILES.joinpath("digits-linear.yaml").read_text())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r["origins"].pop("clip"), "does not say where 'clip' came from"),
        (lambda r: r["origins"]["clip"].update(source="test records"), "should be one of"),
        (lambda r: (r["settings"].pop("epochs"), r["origins"].pop("epochs")), "either steps or epochs"),
        (lambda r: (r["settings"].update(lr=3), r["origins"].update(lr=r["origins"]["clip"])), "'lr' is not a field"),
        (lambda r: r.update(budgets=[]), "at least one row"),
        (lambda r: r["model"].update(name="os.system"), "no model of privet.models"),
        (lambda r: r.pop("title"), "'title' is missing"),
    ],
)
def test_a_recipe_that_does_not_fit_gets_one_sentence(plain, change, sentence, tmp_path):
    change(plain)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(plain))
    with pytest.raises(InputError, match=sentence):
        load(str(path))


@pytest.mark.parametrize(("name", "sentence"), [("nope", "There is no recipe 'nope'"), ("no.yaml", "does not exist")])
def test_a_recipe_that_is_not_there_is_named(name, sentence):
    with pytest.raises(InputError, match=sentence):
        load(name)


def test_what_is_not_yaml_is_said(tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InputError, match="is not valid YAML"):
        load(str(tmp_path / "bad.yaml"))


def changed(plain, tmp_path, **changes):
    plain["settings"].update(changes.pop("settings", {}))
    plain["origins"] |= {name: {"source": "convention", "note": "for a test"} for name in plain["settings"]}
    plain |= changes
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(plain))
    return str(path)


def test_releases_before_training_and_the_steps_share_one_budget(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    releases = {"mean_noise": 20.0, "whitening_noise": 10.0, "epochs": 1}
    recipe = changed(plain, tmp_path, settings=releases, model={"name": "scattering_linear"})
    fitted, ledger = fit(recipe, toy((8, 8)), epsilon=2.0, seed=1)
    events = [event for event, _ in ledger]
    assert events[:2] == [Gaussian(20.0), CovarianceRelease(10.0)]
    assert len(ledger) == 3 + fitted.plan.steps
    assert 0.99 * 2 < ledger.spent(DELTA).epsilon <= 2
    standardise = fitted.release.model.standardise
    assert float(standardise.mean.abs().max()) > 0
    assert standardise.whitens


def test_dp_pca_puts_its_components_into_the_model(plain, tmp_path):
    network = {"name": "pca_mlp", "arguments": {"components": 5, "hidden": 7}}
    recipe = changed(plain, tmp_path, settings={"components_noise": 9.0, "epochs": 1}, model=network)
    fitted, ledger = fit(recipe, toy((8, 8)), epsilon=2.0, seed=1)
    projection = fitted.release.model[1].weight
    assert projection.shape == (5, 64)
    assert torch.allclose(projection @ projection.mT, torch.eye(5), atol=1e-5)
    assert next(iter(ledger))[0] == CovarianceRelease(9.0)
    # The part that was trained is the model's own: no copy is left behind.
    assert fitted.release.part[0].weight is fitted.release.model[2].weight


def test_a_model_without_a_projection_has_no_dp_pca(plain, tmp_path):
    recipe = changed(plain, tmp_path, settings={"components_noise": 9.0})
    with pytest.raises(InputError, match="has no projection"):
        fit(recipe, toy((8, 8)), epsilon=2.0, seed=1)


def test_fixed_noise_sets_the_number_of_steps(plain, tmp_path):
    recipe = changed(plain, tmp_path, settings={"noise_multiplier": 4.0, "epochs": 40.0})
    fitted, ledger = fit(recipe, toy((8, 8)), epsilon=1.0, seed=1)
    assert 0.9 < ledger.spent(DELTA).epsilon <= 1
    assert 1 <= fitted.steps < fitted.plan.steps
    assert fitted.plan.noise.multiplier == 4.0


def test_the_average_and_the_falling_rate_are_used(plain, tmp_path):
    settings = {"average": 0.5, "learning_rate_end": 0.0, "decay_epochs": 0.05}
    recipe = changed(plain, tmp_path, settings=settings | {"sampling_rate": 0.5, "epochs": 4})
    fitted, _ = fit(recipe, toy((8, 8)), epsilon=1.0, seed=1)
    # The rate is zero after the first step, so the average, which began at zero, comes near that step but not to it.
    assert 0 < float(fitted.release.model[1].weight.detach().norm()) < math.inf


def test_a_data_set_that_does_not_fit_the_model_is_said():
    with pytest.raises(InputError, match=r"scattering_linear is for images, and the records have the shape \(12,\)"):
        fit("mnist-scattering", toy((12,)), epsilon=1.0)
    with pytest.raises(InputError, match="too few"):
        fit("abadi-mnist", toy((28, 28)), epsilon=1.0, seed=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nose": 1.0}, "nose"),
        ({"learning_rate_end": 0.1}, "'learning_rate_end' is not used without 'decay_epochs'"),
        ({"whitening_power": -0.5}, "'whitening_power' is not used without 'whitening_noise'"),
    ],
)
def test_a_setting_that_changes_nothing_is_refused(tmp_path, change, said):
    path = changed_recipe(tmp_path, change)
    with pytest.raises(InputError, match=said):
        load(str(path))


def test_an_origin_of_nothing_is_refused(tmp_path):
    path = changed_recipe(tmp_path, {}, {"momentum_of_old": {"source": "convention", "note": "left from before"}})
    with pytest.raises(InputError, match="'momentum_of_old' came from, but no setting has this name"):
        load(str(path))


@pytest.mark.parametrize(
    ("change", "method", "said"),
    [
        (
            {"noise_multiplier": 2.0},
            "optimized-noise",
            "noise_multiplier, which would not be used: the method optimized-noise",
        ),
        ({"mean_noise": 20.0}, "dpsgd", "mean_noise, which would not be used: the model"),
        ({"whitening_noise": 20.0}, "dpsgd", "whitening_noise, which would not be used"),
    ],
)
def test_a_setting_that_the_method_or_the_model_does_not_use_is_refused(tmp_path, change, method, said):
    path, digits = changed_recipe(tmp_path, change), data.load("digits")
    task = Task(digits, 3.0, DELTA)
    with pytest.raises(InputError, match=said):
        run(method_for(method, task, {"recipe": str(path)}), task, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def changed_recipe(folder, settings, origins=None):
    plain = yaml.safe_load(FILES.joinpath("digits-linear.yaml").read_text())
    plain["settings"] |= settings
    plain["origins"] |= {name: {"source": "convention", "note": "for this test"} for name in settings} | (origins or {})
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 0}, "epochs is a finite number above 0, and not 0"),
        ({"sampling_rate": 2}, "sampling_rate is a finite number above 0 and at most 1, and not 2"),
        ({"clip": -1}, "clip is a finite number above 0, and not -1"),
        ({"clip": "nan"}, "clip is a finite number above 0, and not nan"),
        ({"momentum": -0.1}, "momentum is a finite number at least 0 and below 1"),
        ({"clip": "wide"}, "clip is a number, and 'wide' is not"),
        ({"clipp": 1}, "has no setting 'clipp': did you mean 'clip'"),
        ({"clipping": "automatic"}, "has no setting 'clipping'"),  # its variants have keys of their own
    ],
)
def test_settings_of_ones_own_are_checked(given, said):
    task = Task(toy((8, 8)), 1.0, DELTA)
    with pytest.raises(InputError, match=said):
        method = method_for("dpsgd", task, given)
        method.fit(task, Context.in_memory(method, task))


def test_settings_of_ones_own_replace_those_of_the_recipe():
    task = Task(toy((8, 8)), 1.0, DELTA, seed=1)
    method = method_for(
        "dpsgd", task, {"recipe": "digits-linear", "epochs": "0.5", "sampling_rate": "0.25", "clip": "0.5"}
    )
    outcome = method.fit(task, Context.in_memory(method, task))
    assert (outcome.plan.steps, outcome.plan.expected_batch_size, outcome.plan.clipping.max_grad_norm) == (2, 10, 0.5)
