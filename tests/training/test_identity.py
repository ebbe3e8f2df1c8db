"""Settings as plain data, and back: every clipping, noise, sampling and plan."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from privet import clipping, noise, sampling
from privet.clipping import BoundedSum, Clipping, FlatClipping
from privet.errors import InputError
from privet.noise import GaussianNoise
from privet.privacy import Schedule
from privet.training import Performance, Plan
from privet.training.identity import NotRebuilt, class_path, plain, rebuild, register
from tests.training.conftest import make, run

SCHEDULE = Schedule.linear(2.0, 1.0, 6)
VALUES: list[Any] = [
    clipping.FlatClipping(0.7),
    clipping.AutomaticClipping(0.7, 0.1),
    clipping.PerLayerClipping(0.7),
    clipping.PerLayerClipping(norms={"0": 0.2, "kind": 1.3}),
    clipping.ScheduledClipping(SCHEDULE),
    clipping.AdaptiveClipping(0.7, quantile=0.3),
    clipping.MovingEllipticalClipping(0.7, warmup=3),
    noise.GaussianNoise(1.5),
    noise.ScheduledNoise(SCHEDULE),
    noise.ComparedGaussianNoise(3, 1.5, gap=0.5),
    noise.IsotropicL2Noise(12, 0.5),
    noise.StaircaseNoise(0.5),
    noise.ShapedNoise(2.0),
    noise.MovingShapeNoise(2.0, decay=0.8),
    sampling.PoissonSampling(0.1),
    sampling.FixedSizeSampling(3, 10),
    sampling.PaddedPoissonSampling(0.1, 10, 4),
    sampling.UserSampling(sampling.PoissonSampling(0.1), most=3),
    Plan(sampling.PoissonSampling(0.1), FlatClipping(1.0), GaussianNoise(1.0), 6, 100, ("something",)),
    Plan(
        sampling.FixedSizeSampling(3, 10), clipping.ScheduledClipping(SCHEDULE), noise.ScheduledNoise(SCHEDULE), 6, 10
    ),
]
UNREBUILT: list[tuple[Any, str]] = [
    (clipping.EllipticalClipping({"0.weight": torch.ones(2)}), "diagonal.0.weight"),
    (noise.ProductLaplaceNoise.solve(torch.ones(3), 1.0), "rates"),
    (noise.GroupedL2Noise.solve(torch.ones(3), 1.0), "groups"),
    (noise.ShapedNoise(1.0, {"a": torch.ones(2)}), "weights.a"),
    (noise.PublishedShapeNoise(1.0, dict), "sensitivity"),
]


def same(one: Any, other: Any) -> bool:
    """Equal in class and fields; some classes have no equality of their own, and NaN equals itself."""
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return bool(one == other) or (one != one and other != other)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_rebuilt_from_json(value: Any) -> None:
    assert same(rebuild(json.loads(json.dumps(plain(value), allow_nan=False))), value)


@pytest.mark.parametrize(("value", "part"), UNREBUILT, ids=lambda value: type(value).__name__)
def test_a_part_that_cannot_be_rebuilt_is_named(value: Any, part: str) -> None:
    data = json.loads(json.dumps(plain(value)))
    assert plain(value) == data
    with pytest.raises(NotRebuilt, match="cannot be rebuilt") as caught:
        rebuild(data, part="the noise")
    assert caught.value.part == f"the noise.{part}"


def test_every_class_of_the_library_is_covered() -> None:
    for package, protocol in ((clipping, Clipping), (noise, noise.Noise), (sampling, sampling.Sampling)):
        exported = {kind for name in package.__all__ if isinstance(kind := getattr(package, name), type)}
        wanted = {kind for kind in exported if protocol in kind.__mro__ and dataclasses.is_dataclass(kind)}
        assert wanted <= {type(value) for value in [*VALUES, *(value for value, _ in UNREBUILT)]}


@dataclasses.dataclass(frozen=True)
class Plugged(Clipping):
    """A clipping of somebody else's package."""

    bound: float
    extra: Any = None

    def clip(self, gradients: Any, state: Any = None) -> BoundedSum:
        return FlatClipping(self.bound).clip(gradients)


@dataclasses.dataclass(frozen=True)
class Apart:
    """A setting that inherits from nothing of the library."""

    value: float


def test_plug_ins_are_rebuilt_if_they_are_known() -> None:
    assert rebuild(plain(Plugged(0.5))) == Plugged(0.5)
    with pytest.raises(NotRebuilt, match="unknown; load the file") as caught:
        rebuild(plain(Plugged(0.5, Apart(1.0))), part="clipping")
    assert caught.value.part == "clipping.extra"
    assert rebuild(plain(Plugged(0.5, Apart(1.0))), allowed=[Apart]) == Plugged(0.5, Apart(1.0))

    @register
    @dataclasses.dataclass(frozen=True)
    class Registered:
        value: float

    assert rebuild(plain(Registered(2.0))) == Registered(2.0)
    with pytest.raises(InputError, match="not a dataclass"):
        register(dict)


@pytest.mark.parametrize(
    "kind", ["os:system", "subprocess:Popen", "pathlib:Path", "tests.nowhere:Thing", "privet.cli:main"]
)
def test_a_file_names_no_class_of_its_choice(kind: str) -> None:
    with pytest.raises(NotRebuilt, match="unknown"):
        rebuild({"kind": kind, "args": "x"})


def test_settings_that_a_class_refuses_are_named() -> None:
    for fields in ({"max_grad_norm": -1.0}, {"norm": 1.0}):
        with pytest.raises(NotRebuilt, match="refuses its settings"):
            rebuild({"kind": "privet.clipping:FlatClipping", **fields})


def test_plain_data_keeps_numbers_of_numpy_and_infinities() -> None:
    assert plain({"a": np.int64(3), "b": np.float32(0.5)}) == {"a": 3, "b": 0.5}
    assert rebuild(plain([float("inf"), -float("inf"), 1.0])) == (float("inf"), -float("inf"), 1.0)
    assert rebuild(plain(float("nan"))) != rebuild(plain(float("nan"))) and plain(float("nan")) == plain(float("nan"))


def test_a_run_describes_itself() -> None:
    model, optimizer, private = make(average=0.9, performance=Performance(physical_batch_size=9))
    run(model, optimizer, private)
    found = private.description
    assert (found.plan, found.steps_done, found.delta, found.ledger) == (private.plan, 6, 1e-5, private.ledger)
    assert found.models == ("torch.nn.modules.container:Sequential",)
    settings = json.loads(json.dumps(found.settings))
    assert rebuild(settings["plan"]) == private.plan
    assert (settings["average"], settings["seed"], settings["noise_multiplier"]) == (0.9, 0, 1.0)
    assert settings["checks"] == {"kind": "privet.training:Checks", "isolation": "follow", "self_check": True}
    assert settings["performance"]["physical_batch_size"] == 9
    assert (
        class_path(type(private.plan.clipping))
        == settings["plan"]["clipping"]["kind"]
        == "privet.clipping:FlatClipping"
    )
