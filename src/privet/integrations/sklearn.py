"""Estimators of scikit-learn that train by DP-SGD: `fit`, `predict`, and the statement in `spent_`.

    from privet.integrations.sklearn import PrivateClassifier, PublicScaler

    model = make_pipeline(PublicScaler(0, 16), PrivateClassifier(epsilon=3.0)).fit(X, y)
    print(model[-1].spent_)

A step of a pipeline that learns from the rows, such as `StandardScaler`, is not private: a warning says so, and the statement
assumes that what it learned is public. Scale by public bounds instead, with `PublicScaler`.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, OneToOneFeatureMixin, RegressorMixin, TransformerMixin
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
from sklearn.utils import Tags, check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from privet.errors import InputError, PrivetWarning
from privet.privacy import Assumed, DataAccount, Ledger
from privet.privacy.events import NOTHING
from privet.privacy.spent import usual_delta
from privet.training import make_private

Array = npt.NDArray[Any]
Account = DataAccount | str | Path | None
Modules = nn.Module | Callable[[int, int], nn.Module]
HIDDEN = 64
ALONE = ("sklearn.base", "sklearn.pipeline", "sklearn.utils")
"""Parts of scikit-learn that call `fit` of an estimator once, and choose nothing."""
CHOSEN = (
    "A search or a cross-validation fits this private estimator on folds and scores it on records without noise: the scores "
    "are exact, every fold spends its own budget, and no statement covers the choice. Use public records for it, or "
    "`privet tune`."
)


class PublicScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale columns to [-1, 1] by bounds that are public; values outside are moved to the nearer bound.

    Formal guarantees: each row is scaled on its own, and nothing is learned from the rows.

    Args:
        low, high: the bounds: a number for all columns, or one for each.
    """

    def __init__(self, low: float | Sequence[float] = 0.0, high: float | Sequence[float] = 1.0) -> None:
        self.low = low
        self.high = high

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the shapes; nothing is learned."""
        self._scaled(validate_data(self, X, dtype=np.float64))
        return self

    def transform(self, X: Any) -> Array:
        return self._scaled(validate_data(self, X, dtype=np.float64, reset=not hasattr(self, "n_features_in_")))

    def _scaled(self, rows: Array) -> Array:
        low, high = (np.asarray(bound, dtype=np.float64) for bound in (self.low, self.high))
        for bound in (low, high):
            if bound.shape not in ((), (rows.shape[1],)):
                raise InputError(f"The bounds are numbers, or one for each of the {rows.shape[1]} columns.")
        if not (np.isfinite(high - low).all() and (low < high).all()):
            raise InputError("The bounds of a column are a finite low and a finite high above it.")
        return np.asarray((np.clip(rows, low, high) - low) * (2 / (high - low)) - 1)


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of the estimators: a module trained by DP-SGD on Poisson-sampled batches.

    Formal guarantees: those of `privet.make_private`: (epsilon, delta) for adding or removing one row, if the number of rows is
    public (or `public_size` is given). What a row holds must not depend on other rows: transformers in front that were fitted on
    the rows are not covered.

    Args:
        module: an `nn.Module` from rows of floats to outputs (it is copied), or a function that makes one from the number of
            inputs and the number of outputs; without it, a default.
        epsilon, delta: the budget; without delta, the usual one for the number of rows.
        epochs: how often each row is drawn on average.
        batch_size: the expected size of a batch; without it, a tenth of the rows, at least 16.
        learning_rate, momentum: of SGD.
        max_grad_norm: the norm to which the gradient of a row is clipped.
        public_size: the number of rows as far as it is public.
        random_state: makes the fit repeatable, for experiments; a model that is released has none.

    Attributes:
        spent_: the statement; `epsilon_` is its epsilon.
        ledger_: every use of the rows.
        module_: the trained module.
    """

    def __init__(
        self,
        module: Modules | None = None,
        *,
        epsilon: float = 3.0,
        delta: float | None = None,
        epochs: float = 20.0,
        batch_size: int | None = None,
        learning_rate: float = 0.5,
        momentum: float = 0.9,
        max_grad_norm: float = 1.0,
        public_size: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.module = module
        self.epsilon = epsilon
        self.delta = delta
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.max_grad_norm = max_grad_norm
        self.public_size = public_size
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags

    def _default(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The module for rows of this shape: one hidden layer, of images a convolution.

        Its numbers are float64: the prediction of a row then does not depend on the rows beside it, up to rounding of 1e-16.
        """
        if len(shape) == 3:
            height, width = (-(-side // 2) for side in shape[1:])
            image = nn.Conv2d(shape[0], 16, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten()
            return nn.Sequential(*image, nn.Linear(16 * height * width, outputs)).double()
        inputs = math.prod(shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)).double()

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def _train(self, rows: Array, targets: Tensor, outputs: int, account: Account, public: Sequence[str] = ()) -> None:
        """Train the module; `public` are the facts that were taken from the rows and that the statement takes as public."""
        ledger = Ledger()
        for fact in public:
            ledger.condition(fact)
        for assumption in _assumed_around():
            ledger.record(NOTHING.under(Assumed(assumption)))
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))
        size = self.public_size or len(rows)
        batch = self.batch_size or min(size, max(16, size // 10))
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            model = self._made(rows.shape[1:], outputs).train()
            optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=self.momentum)
            kind = _kind(model)
            private = make_private(
                model,
                optimizer,
                TensorDataset(
                    torch.tensor(rows, dtype=kind), targets.to(kind if targets.is_floating_point() else None)
                ),
                batch_size=batch,
                epochs=self.epochs,
                epsilon=self.epsilon,
                delta=usual_delta(size) if self.delta is None else self.delta,
                max_grad_norm=self.max_grad_norm,
                public_size=self.public_size,
                seed=seed,
                ledger=ledger,
                account=account,
            )
            try:
                for x, y in private.batches():
                    optimizer.zero_grad()
                    found = model(x)
                    if found.shape[1:] != (outputs,):
                        raise InputError(
                            f"The module gives each row outputs of shape {tuple(found.shape[1:])}, and {outputs} numbers are "
                            f"needed: one for each class or target."
                        )
                    private.step(self._losses(found, y))
            finally:
                private.close()
        self.module_ = model.eval()
        self.ledger_, self.spent_ = ledger, private.spent()
        self.epsilon_ = self.spent_.epsilon

    def _made(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        if self.module is None:
            return self._default(shape, outputs)
        made = self.module(math.prod(shape), outputs) if callable(self.module) else self.module
        if not isinstance(made, nn.Module):
            raise InputError(f"module is a torch module or a function that makes one, and this gives {made!r}.")
        return made

    def _rows(self, X: Any) -> Array:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64, allow_nd=True))

    def _outputs(self, X: Any) -> Tensor:
        rows = self._rows(X)
        with torch.no_grad():
            found: Tensor = self.module_(torch.tensor(rows, dtype=_kind(self.module_)))
        return found.double()


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A private classifier: by default one hidden layer; for images, of shape (rows, channels, height, width), a convolution.

    `classes` are the public classes. Without them the classes are those of `y`, and the statement names the condition that they
    are public.
    """

    def __init__(
        self,
        module: Modules | None = None,
        *,
        classes: Sequence[Any] | None = None,
        epsilon: float = 3.0,
        delta: float | None = None,
        epochs: float = 20.0,
        batch_size: int | None = None,
        learning_rate: float = 0.5,
        momentum: float = 0.9,
        max_grad_norm: float = 1.0,
        public_size: int | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            module,
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=momentum,
            max_grad_norm=max_grad_norm,
            public_size=public_size,
            random_state=random_state,
        )
        self.classes = classes

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # of the few rows in scikit-learn's checks
        return tags

    def fit(self, X: Any, y: Any, *, account: Account = None) -> Self:
        """Train on the rows and their labels; `account` is that of the rows, its name or its path (`privet.DataAccount`)."""
        X, y = validate_data(self, X, y, dtype=np.float64, allow_nd=True)
        check_classification_targets(y)
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise InputError("Classifier can't train when only one class is present: there is nothing to tell apart.")
        numbers = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if (self.classes_[numbers] != y).any():
            raise InputError("A label is not among the classes that were given: name every class.")
        public = ("the classes are public",) if self.classes is None else ()
        self._train(X, torch.as_tensor(numbers), len(self.classes_), account, public)
        return self

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of `classes_`."""
        return self._outputs(X).softmax(1).numpy()

    def predict(self, X: Any) -> Array:
        """The likeliest class of each row."""
        numbers = self._outputs(X).argmax(1).numpy()
        found: Array = self.classes_[numbers]
        return found


class PrivateLogisticRegression(PrivateClassifier):
    """Logistic regression by DP-SGD: one linear layer that begins at zero, so that nothing but batches and noise is random."""

    def _default(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layer = nn.Linear(math.prod(shape), outputs, dtype=torch.float64)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    @property
    def coef_(self) -> Array:
        return self._parameter("weight")

    @property
    def intercept_(self) -> Array:
        return self._parameter("bias")

    def _parameter(self, name: str) -> Array:
        check_is_fitted(self)
        return self.module_.get_parameter(name).detach().numpy()


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A private regression of one or more numbers, by default with one hidden layer and the Huber loss.

    `target_bounds` are the least and the largest target, public, each a number or one for each target: targets are moved to
    between them, and scaled to [-1, 1] for the training.
    Without them targets are taken as they are, which learns well only if they are of about that size.
    """

    def __init__(
        self,
        module: Modules | None = None,
        *,
        target_bounds: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
        epsilon: float = 3.0,
        delta: float | None = None,
        epochs: float = 20.0,
        batch_size: int | None = None,
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        max_grad_norm: float = 1.0,
        public_size: int | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            module,
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=momentum,
            max_grad_norm=max_grad_norm,
            public_size=public_size,
            random_state=random_state,
        )
        self.target_bounds = target_bounds

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, *, account: Account = None) -> Self:
        """Train on the rows and their targets; `account` is that of the rows, its name or its path (`privet.DataAccount`)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, allow_nd=True)
        self._flat = y.ndim == 1
        targets = torch.tensor(np.asarray(y, dtype=np.float64).reshape(len(y), -1))
        low, high = self._bounds(targets.shape[1])
        if self.target_bounds is not None:
            targets = (targets.clamp(low, high) - (low + high) / 2) * 2 / (high - low)
        self._train(X, targets, targets.shape[1], account)
        return self

    def _bounds(self, targets: int) -> tuple[Tensor, Tensor]:
        given = (-1.0, 1.0) if self.target_bounds is None else self.target_bounds
        low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in given)
        if not all(bound.shape in ((), (targets,)) for bound in (low, high)) or not (low < high).all():
            raise InputError(
                f"target_bounds are the least and the largest target, numbers or one for each of the {targets} targets, and not "
                f"{self.target_bounds}."
            )
        return low, high

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.smooth_l1_loss(outputs, targets, reduction="none").mean(1)

    def predict(self, X: Any) -> Array:
        """The target of each row; nothing keeps it between the bounds."""
        found = self._outputs(X)
        if self.target_bounds is not None:
            low, high = self._bounds(found.shape[1])
            found = found * (high - low) / 2 + (low + high) / 2
        return (found.flatten() if self._flat else found).numpy()


def _kind(module: nn.Module) -> torch.dtype:
    """The type of the module's numbers."""
    return next((parameter.dtype for parameter in module.parameters()), torch.get_default_dtype())


def _assumed_around() -> Iterator[str]:
    """What the statement has to assume because of the parts of scikit-learn that call `fit`; each is warned about."""
    frame, told = inspect.currentframe(), set()
    while frame is not None:
        module, caller = str(frame.f_globals.get("__name__", "")), frame.f_locals.get("self")
        if module == "sklearn.pipeline" and isinstance(caller, Pipeline):
            learned = [name for _, step in caller.steps[:-1] for name in _learning(step)]
            if learned and module not in told:
                names = ", ".join(dict.fromkeys(learned))
                warnings.warn(
                    f"{names} in front of this private estimator learned from the rows without noise, and no statement covers "
                    f"that: scale by public bounds (PublicScaler), or fit it on public rows.",
                    PrivetWarning,
                    stacklevel=2,
                )
                yield f"what {names} learned from the rows before is public"
                told.add(module)
        elif module.startswith("sklearn.model_selection") and "search" not in told:
            warnings.warn(CHOSEN, PrivetWarning, stacklevel=2)
            yield "nothing was chosen by the exact scores of a search or a cross-validation on these rows"
            told.add("search")
        elif module.startswith("sklearn.") and not module.startswith((*ALONE, "sklearn.model_selection")):
            name = type(caller).__name__ if isinstance(caller, BaseEstimator) else module
            if "other" not in told:
                warnings.warn(
                    f"{name} fits this private estimator inside itself: every fit spends its own budget, and no statement covers "
                    f"what {name} learns or releases beside it.",
                    PrivetWarning,
                    stacklevel=2,
                )
                yield f"what {name} learned from these rows beside this fit is public"
                told.add("other")
        frame = frame.f_back


def _learning(step: Any) -> Iterator[str]:
    """The names of what learns from rows when a step of a pipeline is fitted; parts of scikit-learn are looked into."""
    if type(step) is Pipeline:
        inside = [each for _, each in step.steps]
    elif type(step) is FeatureUnion:
        inside = [each for _, each in step.transformer_list]
    elif type(step) is ColumnTransformer:
        inside = [step.remainder, *(each for _, each, _ in step.transformers)]
        if any(callable(columns) and type(columns) is not make_column_selector for *_, columns in step.transformers):
            yield "the choice of columns"
    elif step is None or isinstance(step, str) or not get_tags(step).requires_fit or _is_given_categories(step):
        return
    else:
        yield type(step).__name__
        return
    for each in inside:
        yield from _learning(each)


def _is_given_categories(step: Any) -> bool:
    """Whether an encoder was given its categories, and counts nothing."""
    counting = getattr(step, "min_frequency", None) is not None or getattr(step, "max_categories", None) is not None
    return type(step) in (OneHotEncoder, OrdinalEncoder) and not isinstance(step.categories, str) and not counting
