"""Every attack through the protocol: what it fits, what it finds, and how it refuses. The table of attacks."""

import dataclasses
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import privet
from privet.attacks import (
    AttackResult,
    LossThreshold,
    Roc,
    Target,
    attack_named,
    attack_names,
    closeness,
    register,
)
from privet.data import Dataset, Split
from privet.errors import InputError
from privet.models import scattering_linear
from tests.attacks.overfitted import CLASSES, FIT, blobs, seeded

ON_MODELS = ("confidence", "lira", "loss", "rmia", "shadow")
ON_DATA = ("density", "distance")
NAMES = tuple(str(label) for label in range(CLASSES))
FEW = {"epochs": 5, "records": 100}


def small(key: str):
    """The attack with settings that are quick."""
    attack = attack_named(key)
    known = {field.name for field in dataclasses.fields(attack)}
    return dataclasses.replace(attack, **{name: value for name, value in FEW.items() if name in known})


@pytest.fixture(scope="module")
def sides() -> tuple[Split, Split]:
    x, y = blobs(200, 11)
    return Split(x[:100], y[:100]), Split(x[100:], y[100:])


@pytest.fixture(scope="module")
def leaking(sides) -> Target:
    """An overfitted model, and synthetic data that copies the training records."""
    members, others = sides
    model = FIT(members.tensors, seeded())
    made = members.tensors[0] + 0.5 * torch.randn(members.inputs.shape, generator=seeded(1))
    return Target(members, others, model, made, NAMES, (20,), train=FIT)


def test_the_table_holds_the_attacks_and_their_keys():
    assert set(ON_MODELS) | set(ON_DATA) <= set(attack_names())
    for key in attack_names():
        attack = attack_named(key)
        assert attack.key == key
        assert attack.title
    assert attack_named("confidence") == LossThreshold("confidence")
    with pytest.raises(InputError, match=r"no attack 'guess': there are .*rmia"):
        attack_named("guess")


@pytest.mark.parametrize("key", [*ON_MODELS, *ON_DATA])
def test_every_attack_catches_a_release_that_leaks_and_says_what_it_did(leaking, key):
    attack = small(key)
    assert attack.fits(leaking) == ""
    result = attack.run(leaking)
    assert result.key == key
    assert result.name.startswith(attack.title)
    assert result.settings == dataclasses.asdict(attack)
    assert result.power.startswith("The attacker ")
    assert not any(digit in result.power for digit in ("100", "50"))  # the number of records may be private
    assert result.members == 100
    assert result.non_members == (50 if key in ("shadow", "rmia", "density") else 100)
    assert result.auc > 0.6
    assert result.low > 0.5
    assert attack.run(leaking).auc == result.auc  # by its seed


@pytest.mark.parametrize("key", [*ON_MODELS, *ON_DATA])
def test_no_attack_finds_anything_in_a_release_that_knows_neither_side(sides, key):
    # 99.9 % intervals, one for each attack: a false alarm has probability 0.001 and the seeds are fixed.
    members, others = sides
    unknown = blobs(100, 12)
    target = Target(members, others, FIT(unknown, seeded()), blobs(300, 13)[0], NAMES, (20,), train=FIT)
    result = small(key).run(target)
    width = (result.high - result.low) / 2 * 3.29 / 1.96
    assert abs(result.auc - 0.5) < width


@pytest.mark.parametrize("key", ["shadow", "lira", "rmia"])
def test_shadow_models_are_trained_without_noise_unless_the_target_says_how(leaking, key):
    steps: list[tuple[str, int, int | None]] = []
    plain = small(key).run(dataclasses.replace(leaking, train=None), lambda *told: steps.append(told))
    assert "without noise" in plain.name
    assert "trained without noise" in plain.power
    assert steps[-1][0] == "Training shadow models"
    assert steps[-1][1] == steps[-1][2]
    assert "trained as the target was" in small(key).run(leaking).name


@pytest.mark.parametrize(
    ("keys", "change", "why"),
    [
        (ON_MODELS, {"model": None}, "it attacks a model, and only synthetic data was released"),
        (ON_MODELS, {"model": None, "synthetic": None}, "it attacks a model, and there is none"),
        (ON_DATA, {"synthetic": None}, "it attacks synthetic data, and only a model was released"),
        (ON_DATA, {"synthetic": None, "model": None}, "it attacks synthetic data, and there is none"),
        (ON_MODELS, {"classes": ("all",)}, "the model has one class, so its answers are the same for all records"),
        (ON_DATA, {"synthetic": torch.zeros(9, 4)}, r"synthetic rows have the shape \(4,\) and the records \(20,\)"),
        (("density",), {"synthetic": torch.zeros(2, 20)}, "it needs at least 3 synthetic rows, and there are 2"),
    ],
)
def test_what_an_attack_does_not_fit_is_said_and_refused(leaking, keys, change, why):
    target = dataclasses.replace(leaking, **change)
    for key in keys:
        attack = attack_named(key)
        assert re.fullmatch(why, attack.fits(target))
        with pytest.raises(InputError, match=f"The attack {key} does not fit: {why}\\."):
            attack.run(target)


@pytest.mark.parametrize(
    ("key", "members", "others"),
    [("shadow", 1, 8), ("lira", 2, 2), ("rmia", 2, 8), ("density", 1, 8)],
)
def test_too_few_records_are_refused_and_just_enough_are_not(leaking, key, members, others):
    attack = small(key)

    def of(inside: int, outside: int) -> Target:
        return dataclasses.replace(
            leaking,
            members=leaking.members.select(range(inside)),
            others=leaking.others.select(range(outside)),
        )

    assert isinstance(attack.run(of(members, others)), AttackResult)
    said = f"at least {members} training records and {others} others, and there are fewer"  # how many may be private
    with pytest.raises(InputError, match=said):
        attack.run(of(members, others - 1))
    if members > 1:
        assert "there are fewer" in attack.fits(of(members - 1, others))


def test_closeness_needs_synthetic_data(leaking):
    found, copies = closeness(leaking, records=50)
    assert found.leaks
    assert copies.of_training == 0
    with pytest.raises(InputError, match="it attacks synthetic data, and only a model was released"):
        closeness(dataclasses.replace(leaking, synthetic=None))


# --- from a data set -----------------------------------------------------------------------------------------------------


def test_a_target_takes_training_records_for_members_and_leaves_public_records_out():
    dataset = privet.data.load("digits")
    target = Target.of(dataset, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), aside=60)
    assert target.members is dataset.train
    assert len(target.others) == len(dataset.test) - 60
    assert (target.classes, target.shape) == (dataset.classes, (1, 8, 8))
    assert LossThreshold().run(target).non_members == len(dataset.test) - 60


def test_of_a_model_on_fixed_features_the_trained_part_is_attacked(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path))
    images, labels = torch.rand(30, 1, 28, 28, generator=seeded()), torch.arange(30) % 10
    parts = {"train": Split(images[:20], labels[:20]), "test": Split(images[20:], labels[20:])}
    dataset = Dataset("random", tuple("0123456789"), parts)
    torch.manual_seed(0)
    model = scattering_linear()
    nn.init.normal_(model.head.weight)
    model.standardise.mean.normal_()
    target = Target.of(dataset, model)
    assert target.model is model.head
    assert target.shape == (1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(target.model(target.members.tensors[0]), model(images[:20]), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(target.model(target.others.tensors[0]), model(images[20:]), atol=1e-3, rtol=1e-3)
    mixed = dataclasses.replace(target, synthetic=images)
    assert "synthetic rows have the shape (1, 28, 28)" in attack_named("distance").fits(mixed)


def test_a_target_without_a_model_has_no_shadow_models(sides):
    with pytest.raises(InputError, match="this target has none"):
        Target(*sides).trainer(1)


# --- the table -----------------------------------------------------------------------------------------------------------


def test_an_attack_is_registered_by_class_or_value_and_keys_are_not_taken_twice():
    @register
    @dataclass(frozen=True)
    class Coin:
        """It throws a coin for each record."""

        seed: int = 0
        key: ClassVar[str] = "coin"
        title: ClassVar[str] = "A coin"

        def fits(self, target):
            return ""

        def run(self, target, progress=None):
            sizes = len(target.members), len(target.others)
            coins = torch.rand(sum(sizes), generator=seeded(self.seed))
            return AttackResult.of(self.title, Roc.of(*coins.split(sizes)), attack=self)

    assert attack_named("coin") == Coin()
    assert "coin" in attack_names()
    register(Coin(seed=3))  # the same attack again, with other settings
    assert attack_named("coin") == Coin(seed=3)

    class Usurper(Coin):
        key: ClassVar[str] = "loss"

    with pytest.raises(InputError, match="already"):
        register(Usurper())
    assert attack_named("loss") == LossThreshold()

    class Half:
        key = "half"
        title = "Half an attack"

    with pytest.raises(InputError, match="is not an attack: it has no fits"):
        register(Half())
