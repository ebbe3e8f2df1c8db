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
from privet.methods.voted_labels import VotedLabels

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
    check_name(name)
    method, given = METHODS[name](dataset.shape, order, as_published), given or {}
    if order.labels != "votes":
        return _with(method, given)
    if as_published:
        raise InputError("--as-published takes the labels as public, as its source does: leave out --labels votes.")
    voted = VotedLabels.fitting(method, order)
    own = {setting: text for setting, text in given.items() if setting in _settings(voted)}
    voted = dataclasses.replace(
        voted, method=_with(method, {setting: given[setting] for setting in given if setting not in own})
    )
    return _with(voted, own)


def check_name(name: str) -> None:
    """Raise unless there is a method of that name."""
    if name not in METHODS:
        raise InputError(f"There is no method {name!r}: there are {', '.join(METHODS)}.")


def choose(dataset: Dataset, order: Order) -> tuple[str, str]:
    """The method for these records and this budget, and why.

    Class moments, always, so far: on MNIST students of every GAN here are far behind (docs/synthesis.md, the table of students).
    """
    if order.columns:
        return "moments", "these are rows of a table: histograms and correlations keep its columns and need no training"
    if order.labels != "votes" and teachable(dataset.shape, order):
        return "moments", (
            f"{order.records:,} images at epsilon {order.epsilon:g} are enough for class moments and a private teacher, whose "
            f"students did better on MNIST than those of every GAN here"
        )
    return (
        "moments",
        "they are released once, and use the records only a few times, where a GAN needs many steps under noise",
    )


_TRUTH = {"true": True, "false": False}


def _settings(method: Any) -> dict[str, Any]:
    """What `--set` can change: plain values."""
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}


def _with(method: Any, given: Mapping[str, str]) -> Synthesizer:
    known, values = _settings(method), {}
    for name, text in given.items():
        if name not in known:
            raise InputError(f"{method.title} has no setting {name!r}: it has {', '.join(known)}.")
        kind = type(known[name])
        try:
            values[name] = _TRUTH[text] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise InputError(f"The setting {name} is a {kind.__name__}, and {text!r} is none.") from None
    changed: Synthesizer = dataclasses.replace(method, **values)
    return changed
