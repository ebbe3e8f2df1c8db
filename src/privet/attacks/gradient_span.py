"""What the gradient of a layer says of its inputs: it lies in their span, whatever noise comes after the layer.

The gradient of ``W`` in ``W x + b`` is a sum over the records of (error) times (input): its row space is spanned by the inputs.
With one record it is the input up to a factor, and with the bias's gradient the factor is known too. Noise that a network
adds behind the layer changes the errors and not the inputs, so it protects nothing in front of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privet.errors import InputError, PrivetError


def span(gradient: Tensor, tolerance: float = 1e-6) -> Tensor:
    """An orthonormal basis, one row each, of what the records of a batch span; by the gradient of a dense layer's weight.

    Of a convolution's weight the row space is that of the patches of its inputs.
    """
    matrix = _matrix(gradient)
    _, values, axes = torch.linalg.svd(matrix, full_matrices=False)
    basis: Tensor = axes[values > tolerance * values.max().clamp(min=1e-300)]
    return basis


def outside(gradient: Tensor, candidates: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Of each candidate record the share of its length that lies outside the span: 0 for one that was in the batch.

    A batch of b records in d > b dimensions excludes almost every record that was not in it.
    """
    basis, rows = span(gradient, tolerance), candidates.flatten(1).double()
    if basis.shape[1] != rows.shape[1]:
        raise InputError(f"The layer takes {basis.shape[1]} numbers and a candidate has {rows.shape[1]}.")
    left = rows - rows @ basis.T @ basis
    share: Tensor = left.norm(dim=1) / rows.norm(dim=1).clamp(min=1e-300)
    return share


def reconstruct(weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """The record of a batch of one, from the gradients of the first layer: their quotient, exactly."""
    matrix, errors = _matrix(weight_gradient), bias_gradient.double()
    if len(matrix) != len(errors):
        raise InputError("The gradients of the weight and of the bias belong to layers of different width.")
    strongest = int(errors.abs().argmax())
    if float(errors[strongest].abs()) == 0:
        raise PrivetError("The bias's gradient is zero: nothing can be divided by it.")
    return matrix[strongest] / errors[strongest]


def _matrix(gradient: Tensor) -> Tensor:
    if gradient.ndim < 2:
        raise InputError(f"A weight's gradient has two dimensions or more, and this one has {gradient.ndim}.")
    return gradient.detach().double().flatten(1)
