"""Students: classifiers trained on artificial examples alone, and measured on real test records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from sklearn.base import ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.utils import all_estimators
from torch import Tensor, nn
from torch.nn import functional as F

from privet import models
from privet.data import Dataset, Split
from privet.errors import InputError, PrivetError
from privet.methods.preparation import scores
from privet.methods.recipe import kind_of
from privet.training.logs import OnStep

NETWORKS = {"cnn": "conv_student", "logistic": "softmax_regression"}
_BATCH = 128
_RATES = {"cnn": 2e-3, "logistic": 1e-2}
_STEPS = {"cnn": 150, "logistic": 1500}
"""The smallest number of training steps; a small set of examples is repeated to reach it."""


@dataclass(frozen=True, eq=False)
class Student:
    """A trained student: `model` is a module of `privet.models`, or an estimator of scikit-learn."""

    name: str
    model: Any
    arguments: dict[str, int]

    @property
    def network(self) -> str:
        """The name in `privet.models`."""
        return NETWORKS[self.name]

    def answers(self, test: Split) -> Tensor:
        """The predicted class of each record."""
        if isinstance(self.model, nn.Module):
            return scores(self.model, test).argmax(1)
        return torch.as_tensor(self.model.predict(test.tensors[0].flatten(1).numpy()))

    def accuracy(self, test: Split) -> float:
        return float((self.answers(test) == test.labels).double().mean())


def default_students(dataset: Dataset) -> tuple[str, ...]:
    """The paper's two students for images; only the second one for other records."""
    return ("cnn", "logistic") if kind_of(dataset.shape) == "images" else ("logistic",)


def check_students(names: Sequence[str], shape: tuple[int, ...]) -> Sequence[str]:
    """Check the names against the shape of the records, before the budget is spent."""
    for name in names:
        _arguments(name, shape) if name in NETWORKS else _estimator(name, 0)
    return names


def train_student(
    name: str,
    examples: Tensor,
    targets: Tensor,
    classes: int,
    *,
    epochs: int = 20,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> Student:
    """Train a student by name: "cnn" (images), "logistic", or a classifier of scikit-learn, such as RandomForestClassifier.

    `targets` are labels or class probabilities; classifiers of scikit-learn get the likeliest class.
    """
    if name in NETWORKS:
        arguments = _arguments(name, tuple(examples.shape[1:])) | {"classes": classes}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: nn.Module = models.MODELS[NETWORKS[name]](**arguments)
        least = math.ceil(_STEPS[name] / math.ceil(len(examples) / _BATCH))
        fitted = _fitted(model, examples, targets, max(epochs, least), _RATES[name], seed, on_step)
        return Student(name, fitted, arguments)
    estimator = _estimator(name, seed)
    hard = targets.argmax(1) if targets.ndim == 2 else targets
    if len(hard.unique()) == 1:
        # The records may be of one class, and noisy counts may leave one. Then nothing but a constant can be learned, which
        # many estimators refuse, and the data are paid for.
        estimator = DummyClassifier(strategy="most_frequent")
    try:
        estimator.fit(examples.flatten(1).numpy(), hard.numpy())
        estimator.predict(examples[:1].flatten(1).numpy())  # some say only now that there are too few examples
    except ValueError as error:
        raise PrivetError(
            f"The student {name} cannot learn from the artificial data ({' '.join(str(error).split())[:200].rstrip('.')}). They "
            f"are paid for and kept: go on with another one, such as --student logistic, and --resume."
        ) from None
    return Student(name, estimator, {})


def _arguments(name: str, shape: tuple[int, ...]) -> dict[str, int]:
    if name == "logistic":
        return {"features": math.prod(shape)}
    if len(shape) != 3:
        raise InputError("The student cnn is for images: ask for logistic, or for a classifier of scikit-learn.")
    return dict(zip(("channels", "height", "width"), shape, strict=True))


def _fitted(
    model: nn.Module,
    examples: Tensor,
    targets: Tensor,
    epochs: int,
    rate: float,
    seed: int,
    on_step: OnStep | None,
) -> nn.Module:
    """Adam, with a learning rate that rises and falls in one cycle."""
    model = cast(nn.Module, model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * math.ceil(len(examples) / _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for epoch in range(epochs):
        for rows in torch.randperm(len(examples), generator=generator).split(_BATCH):
            optimizer.zero_grad()
            if len(rows) > 1:  # batch norm has no variance of one example
                F.cross_entropy(model(examples[rows]), targets[rows]).backward()
                optimizer.step()
            schedule.step()
        if on_step is not None:
            on_step({"what": "Training a student", "step": epoch + 1, "steps": epochs})
    return model.eval()


def _estimator(name: str, seed: int) -> ClassifierMixin:
    known = dict(all_estimators("classifier"))
    if name not in known:
        raise InputError(
            f"There is no student {name!r}: there are {', '.join(NETWORKS)}, and the classifiers of scikit-learn by "
            f"their names, such as RandomForestClassifier."
        )
    try:
        made = known[name]()
    except TypeError:
        raise InputError(f"The student {name} needs arguments of its own: take another classifier.") from None
    return made.set_params(random_state=seed) if "random_state" in made.get_params() else made
