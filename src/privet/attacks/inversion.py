"""Attacks that recover inputs: from a classifier, from the gradient of a layer, or from the features of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.attacks.classifiers import evaluating
from privet.errors import InputError, PrivetError

Field = Callable[[Tensor], Tensor]
"""The right-hand side F of dx = F(x) dt."""


# --- from a classifier (Fredrikson et al. 2015) --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Inverted:
    """One record per class, and the model's confidence that it belongs to that class."""

    records: Tensor
    confidence: Tensor


def invert(
    model: nn.Module,
    classes: Sequence[int],
    shape: tuple[int, ...],
    *,
    steps: int = 300,
    learning_rate: float = 0.05,
    smoothness: float = 0.0,
    start: float = 0.0,
    low: float = 0.0,
    high: float = 1.0,
) -> Inverted:
    """Find a record that the model assigns to each class, by gradient ascent on log p(class | record).

    It starts from a constant record, stays between `low` and `high`, and keeps the best record on the way. `smoothness`
    weighs the total variation of images, in place of the paper's denoising. The result shows what the model knows about a
    class, not about a record: it resembles a person only if the class is one person.
    """
    if not classes or not shape:
        raise InputError("An inversion needs at least one class and the shape of a record.")
    wanted = torch.as_tensor(list(classes), dtype=torch.int64)
    records = torch.full((len(wanted), *shape), start).requires_grad_(True)
    best, reached = records.detach().clone(), torch.full((len(wanted),), -math.inf)
    optimizer = torch.optim.Adam([records], lr=learning_rate)
    with evaluating(model):
        for step in range(steps + 1):
            logits: Tensor = model(records)
            fit = F.log_softmax(logits, dim=1)[torch.arange(len(wanted)), wanted]
            better = fit.detach() > reached
            best[better], reached[better] = records.detach()[better], fit.detach()[better]
            if step == steps:
                break
            cost = smoothness * _variation(records) - fit.sum()
            (records.grad,) = torch.autograd.grad(cost, records)
            optimizer.step()
            with torch.no_grad():
                records.clamp_(low, high)
    return Inverted(best, reached.exp())


def class_means(inputs: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The mean record of each class."""
    return torch.stack([inputs[labels == label].mean(dim=0) for label in classes])


def _variation(records: Tensor) -> Tensor:
    if records.ndim < 3:
        return records.new_zeros(())
    return records.diff(dim=-1).abs().sum() + records.diff(dim=-2).abs().sum()


# --- from the gradient of a layer ----------------------------------------------------------------------------------------
#
# The gradient of W in W x + b is a sum over the records of (error) times (input), so its row space is spanned by the inputs.
# For one record it is the input up to a factor, and the gradient of b gives the factor. Noise that a network adds after the
# layer changes the errors and not the inputs, so it does not protect what comes before it.


def span(gradient: Tensor, tolerance: float = 1e-6) -> Tensor:
    """An orthonormal basis (one vector per row) of the span of a batch, from the gradient of a dense layer's weight.

    For a convolution's weight it is the span of the patches of its inputs.
    """
    matrix = _matrix(gradient)
    _, values, axes = torch.linalg.svd(matrix, full_matrices=False)
    basis: Tensor = axes[values > tolerance * values.max().clamp(min=1e-300)]
    return basis


def outside(gradient: Tensor, candidates: Tensor, tolerance: float = 1e-6) -> Tensor:
    """The share of each candidate's length that lies outside the span: 0 for a record that was in the batch.

    A batch of b records in d > b dimensions excludes almost every record that was not in it.
    """
    basis, rows = span(gradient, tolerance), candidates.flatten(1).double()
    if basis.shape[1] != rows.shape[1]:
        raise InputError(f"The layer takes {basis.shape[1]} numbers and a candidate has {rows.shape[1]}.")
    left = rows - rows @ basis.T @ basis
    share: Tensor = left.norm(dim=1) / rows.norm(dim=1).clamp(min=1e-300)
    return share


def reconstruct(weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """The record of a batch of one, exactly: the quotient of the gradients of the first layer's weight and bias."""
    matrix, errors = _matrix(weight_gradient), bias_gradient.double()
    if len(matrix) != len(errors):
        raise InputError("The gradients of the weight and of the bias belong to layers of different width.")
    strongest = int(errors.abs().argmax())
    if float(errors[strongest].abs()) == 0:
        raise PrivetError("The gradient of the bias is zero, so the record cannot be computed by dividing by it.")
    return matrix[strongest] / errors[strongest]


def _matrix(gradient: Tensor) -> Tensor:
    if gradient.ndim < 2:
        raise InputError(f"The gradient of a weight has two dimensions or more, and this one has {gradient.ndim}.")
    return gradient.detach().double().flatten(1)


# --- from the features of a residual network -----------------------------------------------------------------------------
#
# A residual network is Euler's method for dx = F(x) dt, and an attacker who knows F can go back the same way. With noise,
# dx = F(x) dt + gamma dB, the way back is lost. This follows the first figure of the residual-perturbation paper, which does
# not give its F: ours is `convolved`.


@dataclass(frozen=True, eq=False)
class Reversed:
    """An input, its features, and the input recovered from the features."""

    original: Tensor
    features: Tensor
    recovered: Tensor

    @property
    def rmse(self) -> float:
        """The root mean squared error of the recovered input."""
        return float((self.recovered - self.original).double().square().mean().sqrt())


def reverse(
    original: Tensor,
    field: Field,
    *,
    gamma: float = 0.0,
    multiplicative: bool = False,
    steps: int = 100,
    time: float = 1.0,
    generator: torch.Generator | None = None,
) -> Reversed:
    """Run Euler's method (Euler-Maruyama with noise) forward in time, and backward from the features alone.

    Args:
        original: the input.
        field: F, known in both directions.
        gamma: the size of the noise; 0 gives the ordinary equation.
        multiplicative: noise in proportion to the features, as in strategy II.
        steps, time: the step size is time / steps.
        generator: of the noise, which is drawn independently in both directions.
    """
    if steps < 1 or not time > 0:
        raise InputError("A reversal needs at least one step and a time above 0.")
    step = time / steps

    def noisy(x: Tensor) -> Tensor:
        if not gamma:
            return x
        noise = gamma * math.sqrt(step) * torch.randn(x.shape, dtype=x.dtype, generator=generator)
        return x + (x * noise if multiplicative else noise)

    features = original
    for _ in range(steps):
        features = noisy(features + step * field(features))
    recovered = features
    for _ in range(steps):
        recovered = noisy(recovered - step * field(recovered))
    return Reversed(original, features, recovered)


def convolved(seed: int = 0, size: int = 5, gain: float = 2.0) -> Field:
    """An example of F, similar to a residual block: tanh of a fixed random convolution of each channel."""
    kernel = torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(seed)) * gain / size

    def field(images: Tensor) -> Tensor:
        maps = images.reshape(-1, 1, *images.shape[-2:])
        around = F.pad(maps, (size // 2,) * 4, mode="circular")
        return torch.tanh(F.conv2d(around, kernel.to(images.dtype))).reshape(images.shape)

    return field
