"""The MNIST network of Abadi et al. 2016: private principal components and one hidden layer."""

from __future__ import annotations

from torch import nn


def pca_mlp(inputs: int = 784, components: int = 60, hidden: int = 1000, classes: int = 10) -> nn.Sequential:
    """A frozen projection, `hidden` ReLU units and the class scores, without biases.

    The projection is put in place by DP-PCA (`privet.methods.statistics`); until then it is random. Weights start as in the
    paper's published code: normal with a variance of one over the inputs, cut at two standard deviations.
    """
    projection = nn.Linear(inputs, components, bias=False).requires_grad_(False)
    layers = nn.Linear(components, hidden, bias=False), nn.Linear(hidden, classes, bias=False)
    for layer in layers:
        std = layer.in_features**-0.5
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    return nn.Sequential(nn.Flatten(), projection, layers[0], nn.ReLU(), layers[1])
