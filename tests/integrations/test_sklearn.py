"""Estimators of scikit-learn: its own checks, pipelines, searches, and the statement."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from privet.errors import InputError, PrivetWarning
from privet.integrations.sklearn import (
    HIDDEN,
    PrivateClassifier,
    PrivateLogisticRegression,
    PrivateRegressor,
    PublicScaler,
)
from privet.privacy import AccountExhausted, DataAccount

QUICK: dict[str, Any] = {"epochs": 2.0, "epsilon": 8.0, "random_state": 0}
ESTIMATORS = [PrivateClassifier(**QUICK), PrivateRegressor(**QUICK)]


@pytest.mark.filterwarnings("ignore::privet.errors.PrivetWarning")
@parametrize_with_checks([PublicScaler(), PrivateLogisticRegression(**QUICK)])
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::privet.errors.PrivetWarning")
@parametrize_with_checks(ESTIMATORS)
def test_the_checks_of_scikit_learn_on_all_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


def digits() -> tuple[Any, ...]:
    X, y = load_digits(return_X_y=True)
    return tuple(train_test_split(X, y, test_size=0.25, random_state=0))


def test_a_pipeline_learns_digits() -> None:
    X, other, y, labels = digits()
    model = make_pipeline(PublicScaler(0, 16), PrivateLogisticRegression(epsilon=8.0, random_state=0))
    assert model.fit(X, y).score(other, labels) > 0.85
    fitted = model[-1]
    assert 7.5 < fitted.epsilon_ <= 8.0
    assert fitted.spent_.epsilon == fitted.epsilon_
    assert "the classes are public" in fitted.spent_.conditions
    assert str(fitted.spent_.guarantee) == "proved"
    assert len(fitted.ledger_) > 0
    assert fitted.coef_.shape == (10, 64)
    assert np.allclose(model.predict_proba(other).sum(1), 1, atol=1e-5)


def test_random_state_repeats_and_none_does_not() -> None:
    X, _, y, _ = digits()
    first, second = (PrivateClassifier(**QUICK).fit(X / 16, y).predict_proba(X[:5] / 16) for _ in range(2))
    assert np.array_equal(first, second)
    other = PrivateClassifier(**{**QUICK, "random_state": None}).fit(X / 16, y).predict_proba(X[:5] / 16)
    assert not np.array_equal(first, other)


def test_a_module_of_ones_own_is_copied() -> None:
    X, _, y, _ = digits()
    own = nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    before = own[0].weight.detach().clone()
    fitted = PrivateClassifier(own, **QUICK).fit(X / 16, y)
    assert (own[0].weight == before).all()
    assert fitted.module_ is not own
    made = PrivateClassifier(lambda inputs, outputs: nn.Linear(inputs, outputs), **QUICK).fit(X / 16, y)
    assert isinstance(made.module_, nn.Linear)
    assert PrivateClassifier(**QUICK).fit(X / 16, y).module_[1].out_features == HIDDEN


def test_a_search_is_warned_about_and_works() -> None:
    X, _, y, _ = digits()
    search = GridSearchCV(PrivateLogisticRegression(**QUICK), {"max_grad_norm": [0.5, 1.0]}, cv=2)
    with pytest.warns(PrivetWarning, match="no statement covers the choice"):
        search.fit(X / 16, y)
    assert clone(search.best_estimator_).get_params()["epsilon"] == QUICK["epsilon"]
    assert "assuming nothing was chosen by the exact scores" in str(search.best_estimator_.spent_)
    with pytest.warns(PrivetWarning, match="scores are exact"):
        cross_val_score(PrivateLogisticRegression(**QUICK), X / 16, y, cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivateLogisticRegression(**QUICK).fit(X / 16, y)


def test_every_fit_is_on_the_account_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipeline and in a search too; a fit that would pass the total is refused before it uses a row."""
    monkeypatch.setenv("PRIVET_ACCOUNTS", str(tmp_path / "accounts"))
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))
    account, rng = DataAccount.create("rows", 10.0, 1e-5), np.random.default_rng(0)
    X, y = rng.random((200, 3)), rng.integers(0, 2, 200)
    one = PrivateLogisticRegression(epsilon=1.0, epochs=1.0, random_state=0)
    price = account.books.total.price

    single = clone(one).fit(X, y, account="rows")
    paid = price(single.ledger_.event)
    assert account.refresh().used.divergences == pytest.approx(paid.divergences) and account.books.reserved.is_free

    with pytest.warns(PrivetWarning, match="StandardScaler"):
        model = make_pipeline(StandardScaler(), clone(one)).fit(X, y, privatelogisticregression__account=account)
    assert any("StandardScaler" in each for each in account.refresh().standing().assumptions)
    paid = paid + price(model[-1].ledger_.event)
    assert account.books.used.divergences == pytest.approx(paid.divergences)

    with pytest.warns(PrivetWarning, match="no statement covers"):
        GridSearchCV(clone(one), {"learning_rate": [0.1, 1.0]}, cv=2).fit(X, y, account="rows")
    assert len(account.refresh().runs) == 2 + 5  # two folds of each of two settings, and the best one on all rows

    before = account.books.used
    with pytest.raises(AccountExhausted):
        PrivateRegressor(epsilon=20.0, epochs=1.0).fit(X, X[:, 0], account="rows")
    assert account.refresh().used == before and account.books.reserved.is_free


def test_regression_of_diabetes() -> None:
    X, y = load_diabetes(return_X_y=True)
    X, other, y, targets = train_test_split(X, y, random_state=0)
    model = PrivateRegressor(
        lambda inputs, outputs: nn.Linear(inputs, outputs),
        target_bounds=(0.0, 350.0),
        epsilon=8.0,
        epochs=40,
        random_state=0,
    )
    # Inputs are of norm about 0.2: scaled by a constant.
    model.fit(10 * X, y)
    assert model.score(10 * other, targets) > 0.15
    assert model.predict(10 * other).min() > -100
    assert model.epsilon_ <= 8.0
    two = PrivateRegressor(**QUICK).fit(X, np.stack([y, y], 1) / 350)
    assert two.predict(other).shape == (len(other), 2)


def test_what_cannot_be_fitted_is_a_sentence() -> None:
    X, y = np.zeros((20, 2)), np.zeros(20)
    with pytest.raises(InputError, match="only one class"):
        PrivateClassifier(**QUICK).fit(X, y)
    with pytest.raises(InputError, match="least and the largest"):
        PrivateRegressor(target_bounds=(1.0, 1.0), **QUICK).fit(X, y)
    with pytest.raises(InputError, match="not among the classes"):
        PrivateClassifier(classes=[1, 2], **QUICK).fit(X, np.arange(20) % 3)
    with pytest.raises(InputError, match="finite low"):
        PublicScaler(1, 0).fit(X)
    with pytest.raises(InputError, match="one for each of the 2 columns"):
        PublicScaler([0, 0, 0], 1).fit(X)


def test_classes_that_are_given_are_no_condition() -> None:
    X, _, y, _ = digits()
    few = y < 3
    given = PrivateClassifier(classes=range(10), **QUICK).fit(X[few] / 16, y[few])
    assert given.predict_proba(X[:2] / 16).shape == (2, 10)
    assert given.spent_.conditions == ("the number of records is public",)
    stated = PrivateClassifier(classes=range(10), public_size=500, **QUICK).fit(X[few] / 16, y[few])
    assert stated.spent_.conditions == ()


def test_what_learns_in_front_is_named_in_the_statement() -> None:
    X, _, y, _ = digits()
    plain = make_pipeline(PublicScaler(0, 16), Normalizer(), FunctionTransformer(), PrivateLogisticRegression(**QUICK))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(plain.fit(X, y)[-1].spent_.guarantee) == "proved"
    learned = make_pipeline(StandardScaler(), PrivateLogisticRegression(**QUICK))
    with pytest.warns(PrivetWarning, match="StandardScaler in front of this private estimator learned"):
        learned.fit(X, y)
    assert str(learned[-1].spent_.guarantee) == "assuming what StandardScaler learned from the rows before is public"
    nested = make_pipeline(StandardScaler(), make_pipeline(PublicScaler(-3, 3), PrivateLogisticRegression(**QUICK)))
    with pytest.warns(PrivetWarning, match="StandardScaler in front"):
        nested.fit(X, y)
    target = TransformedTargetRegressor(PrivateRegressor(**QUICK), transformer=StandardScaler())
    with pytest.warns(PrivetWarning, match="TransformedTargetRegressor fits this private estimator inside itself"):
        target.fit(X / 16, y)
    assert "TransformedTargetRegressor" in str(target.regressor_.spent_)
    with pytest.warns(PrivetWarning, match="every fit spends its own budget"):
        BaggingClassifier(PrivateLogisticRegression(**QUICK), n_estimators=2).fit(X / 16, y)


def table() -> tuple[Any, Any]:
    """A frame with numbers, texts and categories, and labels that are texts."""
    pandas = pytest.importorskip("pandas")
    numbers = np.random.default_rng(0).uniform(0, 10, (200, 2))
    frame = pandas.DataFrame(numbers, columns=["age", "weight"])
    frame["city"] = pandas.Categorical(np.where(numbers[:, 0] > 5, "Bonn", "Ulm"))
    return frame, pandas.Series(np.where(numbers.sum(1) > 10, "ill", "well"))


def test_a_table_of_numbers_and_categories_with_public_parts_is_proved() -> None:
    X, y = table()
    public = make_column_transformer(
        (PublicScaler(0, 10), ["age", "weight"]),
        (make_pipeline(FeatureUnion([("cities", OneHotEncoder(categories=[["Bonn", "Ulm"]]))])), ["city"]),
        (OrdinalEncoder(categories=[["Bonn", "Ulm"]]), make_column_selector(dtype_include="category")),
        sparse_threshold=0,
    )
    model = make_pipeline(public, PrivateLogisticRegression(**QUICK))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y)
    assert str(model[-1].spent_.guarantee) == "proved"
    assert set(model.predict(X)) <= {"ill", "well"} and model.score(X, y) > 0.6


@pytest.mark.parametrize(
    ("step", "columns", "name"),
    [
        (OneHotEncoder(), ["city"], "OneHotEncoder"),
        (OneHotEncoder(categories=[["Bonn", "Ulm"]], min_frequency=3), ["city"], "OneHotEncoder"),
        (OrdinalEncoder(), ["city"], "OrdinalEncoder"),
        (make_pipeline(StandardScaler()), ["age"], "StandardScaler"),
        (
            PublicScaler(0, 10),
            lambda frame: ["age"] if frame["age"].mean() > 3 else ["weight"],
            "the choice of columns",
        ),
    ],
)
def test_what_learns_inside_a_table_is_named(step: Any, columns: Any, name: str) -> None:
    X, y = table()
    model = make_pipeline(
        make_column_transformer((step, columns), sparse_threshold=0), PrivateLogisticRegression(**QUICK)
    )
    with pytest.warns(PrivetWarning, match=f"{name} in front of this private estimator learned"):
        model.fit(X, y)
    assert str(model[-1].spent_.guarantee) == f"assuming what {name} learned from the rows before is public"


def test_several_targets_have_bounds_of_their_own() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (400, 3))
    y = np.stack([100 * X.sum(1), X[:, 0]], 1)
    model = PrivateRegressor(target_bounds=([-300, -1], [300, 1]), epsilon=8.0, epochs=20, random_state=0).fit(X, y)
    errors = np.abs(model.predict(X) - y).mean(0)
    assert errors[0] < 60 and errors[1] < 0.3
    with pytest.raises(InputError, match="one for each of the 2 targets"):
        PrivateRegressor(target_bounds=([0, 0, 0], [1, 1, 1]), **QUICK).fit(X, y)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_module_of_another_size_is_refused(outputs: int) -> None:
    """Seven scores for two classes would be trained without a word, and a broadcast loss would compare rows."""
    X = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    y = (X[:, 0] > 0).astype(int)
    with pytest.raises(InputError, match=f"outputs of shape \\({outputs},\\), and 2 numbers are needed"):
        PrivateClassifier(nn.Linear(2, outputs), **QUICK).fit(X, y)
    with pytest.raises(InputError, match=r"outputs of shape \(\), and 1 numbers are needed"):
        PrivateRegressor(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), **QUICK).fit(X, y)
    with pytest.raises(InputError, match="a torch module or a function that makes one"):
        PrivateClassifier("linear", **QUICK).fit(X, y)  # type: ignore[arg-type]


def test_images_have_a_default_of_their_own() -> None:
    X, other, y, labels = digits()
    model = PrivateClassifier(epsilon=8.0, epochs=10, random_state=0).fit(X.reshape(-1, 1, 8, 8) / 16, y)
    assert isinstance(model.module_[0], nn.Conv2d)
    assert model.score(other.reshape(-1, 1, 8, 8) / 16, labels) > 0.7


def test_bounds_are_used_and_nothing_else() -> None:
    """One row changes nothing but its own place: a scaler that learned from the rows would fail this."""
    rows = np.array([[0.0, 5.0], [16.0, 20.0], [99.0, -99.0]])
    scaled = PublicScaler([0, 5], [16, 20]).fit(rows).transform(rows)
    assert np.array_equal(scaled, [[-1, -1], [1, 1], [1, -1]])
    assert np.array_equal(PublicScaler([0, 5], [16, 20]).transform(rows[:1]), scaled[:1])


@pytest.mark.parametrize("model", [PrivateLogisticRegression, PrivateRegressor])
def test_a_step_without_noise_is_the_clipped_sum_of_single_rows(model: Any) -> None:
    """With hardly any noise and all rows in one step, the parameters are those of a loop over single rows."""
    X, _, y, _ = digits()
    X, y = X[:40] / 16, y[:40]
    settings: dict[str, Any] = {"epsilon": 1e9, "delta": 0.9, "epochs": 1, "batch_size": 40, "random_state": 0}
    classes = 10 if model is PrivateLogisticRegression else 1
    made = model(nn.Linear(64, classes), **settings, learning_rate=40.0, max_grad_norm=0.3)
    with pytest.warns(PrivetWarning, match="not below 1/N"):
        made.fit(X, y)
    own, layer = made._losses, copy.deepcopy(made.module).double()
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    total = [torch.zeros_like(parameter) for parameter in layer.parameters()]
    targets = torch.as_tensor(y) if model is PrivateLogisticRegression else torch.as_tensor(y).double()[:, None]
    for place in range(len(X)):
        loss = own(layer(torch.as_tensor(X[place : place + 1])), targets[place : place + 1]).sum()
        found = torch.autograd.grad(loss, list(layer.parameters()))
        norm = torch.cat([one.flatten() for one in found]).norm()
        for sum_, one in zip(total, found, strict=True):
            sum_ += one * min(1.0, 0.3 / float(norm))
    for first, sum_, last in zip(before, total, made.module_.parameters(), strict=True):
        assert torch.allclose(first - sum_, last.detach().double(), atol=2e-3)
        assert sum_.abs().max() > 0.1
