"""Dataclasses survive the way through JSON, and what does not fit is named."""

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from privet.io import MisfitError, build, to_plain


@dataclass(frozen=True)
class Inner:
    MAY_BE_INFINITE: ClassVar[tuple[str, ...]] = ("epsilon",)
    epsilon: float
    name: str = "a"


@dataclass(frozen=True)
class Outer:
    count: int
    parts: tuple[Inner, ...]
    first: Inner | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    on: bool = False
    anything: Any = None


@pytest.mark.parametrize(
    "value",
    [
        Outer(1, ()),
        Outer(2, (Inner(1.5), Inner(math.inf, "b")), Inner(0.0), {"x": 1.0}, True, [1, {"y": None}]),
    ],
)
def test_a_dataclass_comes_back(value):
    assert build(Outer, json.loads(json.dumps(to_plain(value), allow_nan=False))) == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": "1"}, "'count' is text and should be a whole number"),
        ({"count": True}, "'count' is true and should be a whole number"),
        (
            {"parts": [{"epsilon": 1.0}, {"epsilon": None}]},
            r"'parts\[1\].epsilon' is null and should be a finite number",
        ),
        ({"parts": [{"name": "a"}]}, r"'parts\[0\].epsilon' is missing"),
        ({"extra": 1}, "'extra' is not a field of this version of the record"),
        ({"first": [1]}, "first is a list and should be an object"),
    ],
)
def test_the_first_field_that_does_not_fit_is_named(changes, message):
    with pytest.raises(MisfitError, match=message):
        build(Outer, {"count": 1, "parts": [], **changes})
