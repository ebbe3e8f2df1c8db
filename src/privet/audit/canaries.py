"""Canaries: records put into the data on purpose, chosen so that a model that memorises anything memorises them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privet.errors import InputError


@dataclass(frozen=True, eq=False)
class Canaries:
    """Records with labels, and in words what they are."""

    inputs: Tensor
    labels: Tensor
    kind: str

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels) or not len(self.inputs):
            raise InputError(
                f"{len(self.inputs)} inputs and {len(self.labels)} labels are no canaries: give both alike."
            )

    def __len__(self) -> int:
        return len(self.labels)


def mislabelled(inputs: Tensor, labels: Tensor, count: int, classes: int, generator: torch.Generator) -> Canaries:
    """Ordinary records, each with a label that is not its own: nothing but memory fits them.

    The records must not be in the training data beside the canaries.
    """
    if count > len(inputs):
        raise InputError(f"{count} canaries cannot be made of {len(inputs)} records: give more records.")
    if classes < 2:
        raise InputError("A wrong label needs two classes or more.")
    chosen = torch.randperm(len(inputs), generator=generator)[:count]
    shift = torch.randint(1, classes, (count,), generator=generator)
    return Canaries(inputs[chosen], (labels[chosen] + shift) % classes, "mislabelled records")


def out_of_distribution(shape: tuple[int, ...], count: int, classes: int, generator: torch.Generator) -> Canaries:
    """Uniform noise in [0, 1] with random labels: unlike every record, so that no other record hides them."""
    inputs = torch.rand(count, *shape, generator=generator)
    return Canaries(inputs, torch.randint(classes, (count,), generator=generator), "records of uniform noise")


def gradient_directions(count: int, length: float = 1e4) -> Tensor:
    """One long gradient for each canary, orthogonal to all others: the records of a model that is linear in them."""
    return length * torch.eye(count)
