"""The methods by which artificial data can be made, and which one to take where the user names none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from privet.data import Dataset
from privet.errors import InputError
from privet.methods.dpgan import Dpgan
from privet.methods.frozen_noise_layer_gan import FrozenNoiseLayerGan
from privet.methods.moments import Moments, teachable
from privet.methods.synthetic import Order, Synthesizer
from privet.methods.table_moments import TableMoments

Make = Callable[[tuple[int, ...], Order, bool], Synthesizer]
"""From the shape of a record, what is asked for, and whether the method shall be as it was published."""


def _moments(shape: tuple[int, ...], order: Order, as_published: bool) -> Synthesizer:
    if as_published:
        raise InputError("--as-published belongs to noise-layer-gan: moments has no published form.")
    return TableMoments() if order.columns else Moments.fitting(shape, order)


METHODS: Mapping[str, Make] = {
    "moments": _moments,
    "dpgan": Dpgan.fitting,
    "noise-layer-gan": FrozenNoiseLayerGan.fitting,
}


def method_named(
    name: str, dataset: Dataset, order: Order, *, as_published: bool = False, given: Mapping[str, str] | None = None
) -> Synthesizer:
    """A method with the settings that fit the records and the budget; those that are `given` replace them."""
    if name not in METHODS:
        raise InputError(f"There is no method {name!r}: there are {', '.join(METHODS)}.")
    return _with(METHODS[name](dataset.shape, order, as_published), given or {})


def choose(dataset: Dataset, order: Order) -> tuple[str, str]:
    """The method for these records and this budget, and why.

    Class moments, always, so far: no network that learns to draw under noise has come near them at a budget that protects.
    """
    if order.columns:
        return "moments", "these are rows of a table: histograms and correlations keep its columns and need no training"
    if teachable(dataset.shape, order):
        return "moments", (
            f"{order.records:,} images at epsilon {order.epsilon:g} are enough for class moments and a private teacher, "
            f"which beat generators that are trained under noise"
        )
    return "moments", (
        f"{order.records:,} records at epsilon {order.epsilon:g} are too few to train anything under noise: class moments use "
        f"them four times"
    )


def _with(method: Any, given: Mapping[str, str]) -> Synthesizer:
    known = {field.name: field for field in dataclasses.fields(method)}
    values = {}
    for name, text in given.items():
        if name not in known:
            raise InputError(f"{method.title} has no setting {name!r}: it has {', '.join(known)}.")
        kind = type(getattr(method, name))
        try:
            values[name] = text == "true" if kind is bool else kind(text)
        except ValueError:
            raise InputError(f"The setting {name} is a {kind.__name__}, and {text!r} is none.") from None
    changed: Synthesizer = dataclasses.replace(method, **values)
    return changed
