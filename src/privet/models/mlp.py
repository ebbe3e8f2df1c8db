"""The MNIST network of Abadi et al. 2016: private principal components and one hidden layer."""

from __future__ import annotations

from torch import nn


def pca_mlp(inputs: int = 784, components: int = 60, hidden: int = 1000, classes: int = 10) -> nn.Sequential:
    """A frozen projection, `hidden` ReLU units and the class scores, without biases.

    The projection is put in place by DP-PCA (`privet.methods.dp_pca`); until then it is random.
    """
    projection = nn.Linear(inputs, components, bias=False).requires_grad_(False)
    return nn.Sequential(
        nn.Flatten(),
        projection,
        nn.Linear(components, hidden, bias=False),
        nn.ReLU(),
        nn.Linear(hidden, classes, bias=False),
    )
