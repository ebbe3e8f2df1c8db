"""Settings of every method: each has a meaning, and a number outside of its interval is refused before anything is spent."""

import math
from dataclasses import fields, replace

import pytest

from privet import data
from privet.errors import InputError
from privet.methods import METHODS, Context, Task, method_for, settings_of, with_settings

KEYS = tuple(METHODS)


def numbers(key):
    return [one.name for one in settings_of(METHODS[key]) if one.kind.startswith(("number", "whole number"))]


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_has_a_meaning_and_every_limit_a_setting(key):
    method = METHODS[key]
    for setting in settings_of(method):
        assert len(setting.meaning) > 5, f"{key}: {setting.name}"
    assert set(method.limits) <= {each.name for each in fields(method)}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "-1e-9"])
def test_no_number_is_negative_or_not_finite(key, value):
    for name in numbers(key):
        with pytest.raises(InputError, match=name):
            with_settings(METHODS[key], {name: value})


@pytest.mark.parametrize("key", KEYS)
def test_limits_are_kept(key):
    method = METHODS[key]
    for name, interval in method.limits.items():
        low, high = (float(end) for end in interval[1:-1].split(","))
        whole = isinstance(getattr(method, name), int)
        outside = [low - 1] if interval[0] == "[" else [low]
        outside += [] if high == math.inf else [high] if interval[-1] == ")" else [high + 1]
        for value in outside:
            with pytest.raises(InputError, match=f"The setting {name} is a finite number .*, and not"):
                replace(method, **{name: int(value) if whole else value})


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("moments", {"generator_share": 1.0, "means_share": 0.98}),
        ("moments", {"generator_share": 1.0, "means_share": 0.01}),
        ("dpgan", {"counts_share": 0.9, "steps": 2}),
        ("noise-layer-gan", {"before_share": 0.9, "epochs": 1, "steps": 2}),
    ],
)
def test_shares_of_the_budget_stay_within_it(key, given):
    """A share of 3 once spent an epsilon of 5.66 where 3 was asked for."""
    task = Task(data.load("digits"), 3.0, 1e-5, seed=0)
    method = method_for(key, task, given)
    context = Context.in_memory(method, task)
    method.fit(task, context)
    assert 2.5 < context.ledger.spent(1e-5).epsilon <= 3


def test_variants_are_no_settings():
    """A setting that made another method of it would leave the title, and what the title says of the proof, behind."""
    for key, name in (("optimized-noise", "as_published"), ("optimized-noise", "form"), ("dpsgd", "clipping")):
        with pytest.raises(InputError, match=f"The method {key} has no setting '{name}'"):
            with_settings(METHODS[key], {name: "true"})
