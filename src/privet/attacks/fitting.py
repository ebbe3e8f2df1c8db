"""Shadow models: the attacker's own trainings, many in one vectorised pass where the model allows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from privet.attacks.answers import Classifier, Outputs, as_inputs, class_scores
from privet.data import Progress
from privet.errors import InputError

Train = Callable[[tuple[Tensor, Tensor], torch.Generator], Classifier]
"""From inputs and labels, and a generator, to a classifier."""


@dataclass(frozen=True)
class Fitting:
    """Adam on the cross-entropy: the ordinary training of a module, as a value. Called, it trains one model.

    Attributes:
        build: makes a module; it is called once for each model, under a seed of its own.
        epochs, batch_size, learning_rate: as usual; the last batch of an epoch is dropped if it is not full.
        progress: called with what is done, the steps so far and the steps in all.
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

    def many(self, inputs: Tensor, labels: Tensor, members: Tensor, generator: torch.Generator) -> Ensemble:
        """As many models as `members` has rows; row k holds the indices of the records that model k is trained on.

        The models are trained in one pass of `vmap` if that can run them, and one after the other otherwise: on the same
        batches from the same start, so that the result is the same.
        """
        models = [self._built(generator) for _ in members]
        batches = self._batches(members, generator)
        reason = _why_not(models[0], inputs[batches[0, 0]], labels[batches[0, 0]])
        if reason:
            return Ensemble(tuple(self._one_by_one(models, inputs, labels, batches)), f"one by one: {reason}")
        return Ensemble(tuple(self._together(models, inputs, labels, batches)), "one vectorised pass")

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
        for place, (model, steps) in enumerate(zip(models, batches, strict=True)):
            model.train()
            optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
            for number, chosen in enumerate(steps, 1):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
                optimizer.step()
                self._tell(place * len(steps) + number, len(models) * len(steps))
            model.eval()
        return models

    def _together(
        self, models: Sequence[nn.Module], inputs: Tensor, labels: Tensor, batches: Tensor
    ) -> Sequence[nn.Module]:
        parameters, buffers = stack_module_state(list(models))
        step = _vectorised_gradient(models[0])
        # Adam works element by element: on the stacked parameters it is one Adam for each model.
        optimizer = torch.optim.Adam(list(parameters.values()), lr=self.learning_rate)
        for number, chosen in enumerate(batches.unbind(1), 1):
            gradients = step(parameters, buffers, inputs[chosen], labels[chosen])
            for name, parameter in parameters.items():
                parameter.grad = gradients[name]
            optimizer.step()
            self._tell(number, batches.shape[1])
        with torch.no_grad():
            for number, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.copy_(parameters[name][number])
                model.eval()
        return models


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trained shadow models, and in words how they were trained."""

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
) -> Ensemble:
    """A model for each row of indices, in one pass where `train` knows how."""
    if isinstance(train, Fitting):
        return train.many(inputs, labels, members, generator)
    models = [train((inputs[rows], labels[rows]), generator) for rows in members]
    return Ensemble(tuple(models), "one by one: the trainer is a function", outputs)


def shadow_outputs(train: Train, outputs: Outputs) -> Outputs:
    """What the shadow models of a trainer give: those of `Fitting` logits, those of a function what the target gives."""
    return "logits" if isinstance(train, Fitting) else outputs


def fresh(model: nn.Module) -> nn.Module:
    """A module of the same architecture at a new random start."""
    made = copy.deepcopy(model)
    left = {name for name, _ in made.named_parameters()}
    for prefix, module in made.named_modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
            left -= {f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False)}
    if left:
        raise InputError(
            f"Parameter '{min(left)}' does not know how to start anew: give a function that builds the model."
        )
    return made.requires_grad_(True)


def _vectorised_gradient(model: nn.Module) -> Callable[..., dict[str, Tensor]]:
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
        _vectorised_gradient(model)(parameters, buffers, x.expand(2, *x.shape), y.expand(2, *y.shape))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return ""
