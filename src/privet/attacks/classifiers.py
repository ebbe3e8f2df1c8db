"""Classifiers as an attacker uses them: ask any classifier for class scores, and train shadow models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from privet.data import Progress, Split
from privet.errors import InputError
from privet.io.farm import Farm, farm_in_use
from privet.training.releases import kept_here, spread

Inputs = Tensor | NDArray[Any]
Records = tuple[Inputs, Inputs]
"""Inputs and integer labels."""
Classifier = nn.Module | Callable[[Tensor], Tensor] | Any
"""A torch module, a scikit-learn estimator with ``predict_proba``, or a function from a batch to class scores."""
Outputs = Literal["logits", "probabilities"]
Signal = Literal["loss", "confidence"]
Train = Callable[[tuple[Tensor, Tensor], torch.Generator], Classifier]
"""From inputs and labels, and a generator, to a classifier."""


# --- asking a classifier -------------------------------------------------------------------------------------------------


def class_scores(model: Classifier, inputs: Inputs, *, outputs: Outputs = "logits", batch_size: int = 1000) -> Tensor:
    """One row of logits (or log-probabilities) per record, as float64; their softmax is the model's prediction.

    A module runs in evaluation mode without gradients, and its mode is restored afterwards. A scikit-learn estimator
    always gives probabilities, and its classes must be numbered from 0.
    """
    if len(inputs) == 0:
        raise InputError("An attack needs at least one record on each side, and one side is empty.")
    if hasattr(model, "predict_proba"):
        return _checked(_estimated(model, inputs)).log()
    with evaluating(model), torch.no_grad():
        parts = [_checked(torch.as_tensor(model(x))) for x in torch.split(as_inputs(inputs), batch_size)]
    scores = torch.cat(parts)
    return scores if outputs == "logits" else scores.log()


def membership_scores(
    model: Classifier,
    inputs: Inputs,
    labels: Inputs,
    *,
    signal: Signal = "loss",
    outputs: Outputs = "logits",
    batch_size: int = 1000,
) -> NDArray[np.float64]:
    """How well a classifier fits each record: the log-odds of its label, log p_y - log(1 - p_y).

    With `signal="confidence"` the most likely class takes the place of the label.
    """
    logits = class_scores(model, inputs, outputs=outputs, batch_size=batch_size)
    wanted = as_labels(labels, logits.shape[1], len(logits))
    scores: NDArray[np.float64] = log_odds(logits, wanted if signal == "loss" else logits.argmax(dim=1)).numpy()
    return scores


def log_odds(logits: Tensor, chosen: Tensor) -> Tensor:
    """log p_c - log(1 - p_c) for the chosen class of each row; leading dimensions are batches of rows."""
    index = chosen.expand(logits.shape[:-1])[..., None]
    rest = logits.scatter(-1, index, float("-inf")).logsumexp(dim=-1)
    return logits.gather(-1, index).squeeze(-1) - rest


def as_inputs(inputs: Inputs) -> Tensor:
    """Records as a tensor; double precision from NumPy becomes torch's usual single precision."""
    tensor = torch.as_tensor(inputs)
    return tensor.float() if isinstance(inputs, np.ndarray) and tensor.dtype == torch.float64 else tensor


def as_labels(labels: Inputs, classes: int, records: int) -> Tensor:
    """Labels as int64, checked against the number of classes and of records."""
    tensor = torch.as_tensor(labels)
    if tensor.ndim != 1 or len(tensor) != records:
        raise InputError(f"There are {records} inputs and {len(tensor)} labels; an attack needs one label per record.")
    if tensor.is_floating_point() or int(tensor.min()) < 0 or int(tensor.max()) >= classes:
        raise InputError(f"The labels must be integers from 0 to {classes - 1}, one per record.")
    return tensor.to(torch.int64)


def sample(records: Split, at_most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and labels of at most this many records, in random order."""
    return records.batch(torch.randperm(len(records), generator=generator)[:at_most])


@contextmanager
def evaluating(model: Classifier) -> Iterator[None]:
    """Put a module into evaluation mode, and every part of it back into its former mode at the end."""
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _estimated(model: Any, inputs: Inputs) -> Tensor:
    classes = np.asarray(model.classes_)
    if not np.array_equal(classes, np.arange(len(classes))):
        raise InputError(f"The estimator's classes are {classes.tolist()}: fit it on labels numbered from 0.")
    rows = np.asarray(inputs).reshape(len(inputs), -1)
    return torch.from_numpy(np.asarray(model.predict_proba(rows), dtype=np.float64))


def _checked(outputs: Tensor) -> Tensor:
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise InputError(
            f"The attack needs a row of two or more class scores per record, and the model gave {tuple(outputs.shape)}."
        )
    return outputs.to("cpu", torch.float64)


# --- shadow models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitting:
    """Ordinary training of a module, as a value: Adam on the cross-entropy. Calling it trains one model.

    Attributes:
        build: makes a module; it is called once per model, each time under its own seed.
        epochs, batch_size, learning_rate: as usual; the last batch of an epoch is dropped if it is not full.
        progress: called with a description, the steps done and the total number of steps.
    """

    build: Callable[[], nn.Module]
    epochs: int = 30
    batch_size: int = 64
    learning_rate: float = 1e-3
    progress: Progress | None = None

    def __call__(self, records: tuple[Tensor, Tensor], generator: torch.Generator) -> nn.Module:
        inputs, labels = as_inputs(records[0]), torch.as_tensor(records[1])
        everyone = torch.arange(len(inputs))[None]
        (model,) = self._one_by_one([self._built(generator)], inputs, labels, self._batches(everyone, generator))
        return model

    def many(self, inputs: Tensor, labels: Tensor, members: Tensor, generator: torch.Generator) -> ShadowModels:
        """Train one model per row of `members`; row k holds the indices of the training records of model k.

        The models are trained in one pass of `vmap` if it can run them, and otherwise one after the other, on the same
        batches and from the same initialization, so that the result is the same.
        """
        models = [self._built(generator) for _ in members]
        batches = self._batches(members, generator)
        if (farm := farm_in_use()) is not None:
            return self._farmed(farm, models, inputs, labels, batches, generator)
        reason = _why_not(models[0], inputs[batches[0, 0]], labels[batches[0, 0]])
        if reason:
            return ShadowModels(tuple(self._one_by_one(models, inputs, labels, batches)), f"one by one: {reason}")
        return ShadowModels(tuple(self._together(models, inputs, labels, batches)), "one vectorized pass")

    def _farmed(
        self,
        farm: Farm,
        models: Sequence[nn.Module],
        inputs: Tensor,
        labels: Tensor,
        batches: Tensor,
        generator: torch.Generator,
    ) -> ShadowModels:
        """Each model by itself in a worker, on the same batches and from the same initialization."""
        seeds = torch.randint(2**62, (len(models),), generator=generator).tolist()
        alone = replace(self, build=nn.Identity, progress=None)
        items = [
            (alone, model, *_used(inputs, labels, steps), seed)
            for model, steps, seed in zip(models, batches, seeds, strict=True)
        ]
        for model, state in zip(models, spread(farm, "shadow", _fitted, items, self._tell), strict=True):
            model.load_state_dict(state)
            model.eval()
        return ShadowModels(tuple(models), "one by one: in a farm")

    def _built(self, generator: torch.Generator) -> nn.Module:
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()

    def _batches(self, members: Tensor, generator: torch.Generator) -> Tensor:
        """The records of every step of every model: models x steps x records."""
        models, records = members.shape
        size = min(self.batch_size, records)
        steps = records // size
        epochs = []
        for _ in range(self.epochs):
            order = torch.rand(models, records, generator=generator).argsort(dim=1)[:, : steps * size]
            epochs.append(members.gather(1, order).view(models, steps, size))
        return torch.cat(epochs, dim=1)

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress("Training shadow models", done, total)

    def _one_by_one(
        self, models: Sequence[nn.Module], inputs: Tensor, labels: Tensor, batches: Tensor
    ) -> Sequence[nn.Module]:
        kept, done, started = kept_here(), 0, dict[str, Any]()
        if (saved := kept.saved("shadows")) is not None:
            done, started = saved["step"], saved["optimizer"]
            for model, state in zip(models, saved["models"], strict=True):
                model.load_state_dict(state)
            torch.set_rng_state(saved["torch"])
        for place, (model, steps) in enumerate(zip(models, batches, strict=True)):
            model.train()
            optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
            first = min(max(0, done - place * len(steps)), len(steps))
            if 0 < first < len(steps):
                optimizer.load_state_dict(started)
            for number, chosen in enumerate(steps[first:], place * len(steps) + first + 1):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
                optimizer.step()
                kept.save("shadows", number, partial(_state, number, models, optimizer))
                self._tell(number, len(models) * len(steps))
            model.eval()
        return models

    def _together(
        self, models: Sequence[nn.Module], inputs: Tensor, labels: Tensor, batches: Tensor
    ) -> Sequence[nn.Module]:
        parameters, buffers = stack_module_state(list(models))
        step = _vectorized_gradient(models[0])
        # Adam works element by element: on the stacked parameters it is one Adam for each model.
        optimizer = torch.optim.Adam(list(parameters.values()), lr=self.learning_rate)
        kept, first = kept_here(), 0
        if (saved := kept.saved("shadows")) is not None:
            first = saved["step"]
            optimizer.load_state_dict(saved["optimizer"])
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(saved["models"][name])
            torch.set_rng_state(saved["torch"])
        for number, chosen in enumerate(batches.unbind(1)[first:], first + 1):
            gradients = step(parameters, buffers, inputs[chosen], labels[chosen])
            for name, parameter in parameters.items():
                parameter.grad = gradients[name]
            optimizer.step()
            kept.save("shadows", number, partial(_state, number, parameters, optimizer))
            self._tell(number, batches.shape[1])
        with torch.no_grad():
            for number, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.copy_(parameters[name][number])
                model.eval()
        return models


def _used(inputs: Tensor, labels: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The records that the steps of one model use, and the steps with their places among these."""
    rows, places = steps.unique(return_inverse=True)
    return inputs[rows], labels[rows], places


def _fitted(
    fitting: Fitting, model: nn.Module, inputs: Tensor, labels: Tensor, steps: Tensor, seed: int
) -> dict[str, Tensor]:
    """Train one model in a worker of a farm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of dropout
        fitting._one_by_one([model], inputs, labels, steps[None])
    return {name: value.detach() for name, value in model.state_dict().items()}


def _trained(train: Train, inputs: Tensor, labels: Tensor, seed: int) -> Classifier:
    """Train one model by a function in a worker of a farm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return train((inputs, labels), torch.Generator().manual_seed(seed))


def _state(step: int, models: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Where the training of shadow models stands; `models` are modules, or the stacked parameters of all of them."""
    if isinstance(models, list):
        models = [model.state_dict() for model in models]
    return {"step": step, "models": models, "optimizer": optimizer.state_dict(), "torch": torch.get_rng_state()}


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """Trained shadow models, and a description of how they were trained."""

    models: tuple[Classifier, ...]
    how: str
    outputs: Outputs = "logits"

    def class_scores(self, inputs: Tensor) -> Tensor:
        """Models x records x classes."""
        return torch.stack([class_scores(model, inputs, outputs=self.outputs) for model in self.models])


def train_each(
    train: Train,
    inputs: Tensor,
    labels: Tensor,
    members: Tensor,
    generator: torch.Generator,
    outputs: Outputs = "logits",
) -> ShadowModels:
    """Train one model per row of indices, in one pass if `train` is a `Fitting`."""
    if isinstance(train, Fitting):
        return train.many(inputs, labels, members, generator)
    if (farm := farm_in_use()) is not None:
        seeds = torch.randint(2**62, (len(members),), generator=generator).tolist()
        items = [(train, inputs[rows], labels[rows], seed) for rows, seed in zip(members, seeds, strict=True)]
        return ShadowModels(tuple(farm.map(_trained, items)), "one by one: in a farm", outputs)
    models = [train((inputs[rows], labels[rows]), generator) for rows in members]
    return ShadowModels(tuple(models), "one by one: the trainer is a function", outputs)


def shadow_outputs(train: Train, outputs: Outputs) -> Outputs:
    """The kind of scores of a trainer's models: logits for a `Fitting`, and the target's kind for a function."""
    return "logits" if isinstance(train, Fitting) else outputs


def halves(records: int, models: int, generator: torch.Generator) -> Tensor:
    """Indices of each model's half of the records; models 2k and 2k + 1 get the two halves of one random split.

    Each record is in exactly half of an even number of models. If the number of records is odd, each split leaves one out.
    """
    half = records // 2
    rows: list[Tensor] = []
    while len(rows) < models:
        order = torch.randperm(records, generator=generator)
        rows += [order[:half], order[half : 2 * half]]
    return torch.stack(rows[:models])


def fresh(model: nn.Module) -> nn.Module:
    """A module of the same architecture with newly initialized parameters."""
    made = copy.deepcopy(model)
    left = {name for name, _ in made.named_parameters()}
    for prefix, module in made.named_modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
            left -= {f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False)}
    if left:
        raise InputError(
            f"Parameter '{min(left)}' cannot be initialized again: its module has no reset_parameters. Give a function that "
            f"builds the model."
        )
    return made.requires_grad_(True)


def _vectorized_gradient(model: nn.Module) -> Callable[..., dict[str, Tensor]]:
    skeleton = copy.deepcopy(model).to("meta").train()

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(skeleton, (parameters, buffers), (x,)), y)

    return vmap(grad(loss), randomness="different")


def _why_not(model: nn.Module, x: Tensor, y: Tensor) -> str:
    """Why models like this one cannot be trained in one pass; empty if they can."""
    if any(True for _ in model.buffers()):
        return "it keeps statistics of its batches"
    try:
        parameters, buffers = stack_module_state([copy.deepcopy(model), copy.deepcopy(model)])
        _vectorized_gradient(model)(parameters, buffers, x.expand(2, *x.shape), y.expand(2, *y.shape))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return ""
