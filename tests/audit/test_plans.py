"""Audits of a run's own plan: broken parts are refuted in one step and in the whole training, and sound parts are not.

Everything is audited at 99 %. The seeds are fixed, so that these tests never alternate.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn

from privet.audit import Audit, RunPlan, audit_plan, audit_run_plan, step
from privet.audit.white_box import Course, cross_entropy, own_model
from privet.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    BoundedSum,
    EllipticalClipping,
    FlatClipping,
    MovingEllipticalClipping,
    PerLayerClipping,
    ScheduledClipping,
)
from privet.clipping.bounded import clipping_factors
from privet.clipping.clippings import COUNT
from privet.errors import InputError
from privet.noise import GaussianNoise, IsotropicL2Noise, MovingShapeNoise, ScheduledNoise, ShapedNoise
from privet.privacy import Gaussian, Ledger, Schedule
from privet.randomness import Randomness
from privet.sampling import FixedSizeSampling, PaddedPoissonSampling, PoissonSampling, UserSampling
from privet.training import Plan
from privet.training.identity import plain

STEPS = 20


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))


def made_up() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def plan(**parts) -> Plan:
    sound = {"sampling": PoissonSampling(0.2), "clipping": FlatClipping(0.7), "noise": GaussianNoise(1.5)}
    return Plan(**{**sound, "steps": STEPS, "records": 1000, **parts})


def audited(one: Plan, **settings) -> tuple[Audit, ...]:
    return audit_plan(one, **{"model": network(), "records": made_up(), "draws": 8000, **settings})


# --- broken parts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClipsNothing(FlatClipping):
    def clip(self, gradients, state=None) -> BoundedSum:
        tensors = gradients.weighted_sum(torch.ones(gradients.records, dtype=torch.float64))
        return dataclasses.replace(super().clip(gradients), tensors=tensors)


@dataclass(frozen=True)
class ClipsSomeLayers(FlatClipping):
    """The norm is that of the first parameter alone, and only that one is clipped."""

    def clip(self, gradients, state=None) -> BoundedSum:
        first = gradients.names[0]
        weights = dict.fromkeys(gradients.names, torch.ones(gradients.records, dtype=torch.float64))
        weights[first] = clipping_factors(gradients.squared_norms()[first].sqrt(), self.max_grad_norm)
        tensors = gradients.weighted_sum(weights)
        return dataclasses.replace(super().clip(gradients), tensors=tensors)


@dataclass(frozen=True)
class LeavesOutBiases(FlatClipping):
    def clip(self, gradients, state=None) -> BoundedSum:
        squares = [each for name, each in gradients.squared_norms().items() if not name.endswith("bias")]
        factors = clipping_factors(torch.stack(squares).sum(0).sqrt(), self.max_grad_norm)
        tensors = gradients.weighted_sum(factors)
        return dataclasses.replace(super().clip(gradients), tensors=tensors)


@dataclass(frozen=True)
class ClipsTheMean(FlatClipping):
    """The sum of the batch is clipped to its size, and not each record."""

    def clip(self, gradients, state=None) -> BoundedSum:
        tensors = gradients.weighted_sum(torch.ones(gradients.records, dtype=torch.float64))
        norm = torch.stack([tensor.square().sum() for tensor in tensors.values()]).sum().sqrt()
        most = self.max_grad_norm * max(gradients.records, 1)
        factor = min(1.0, most / max(float(norm), 1e-12))
        return dataclasses.replace(super().clip(gradients), tensors={n: t * factor for n, t in tensors.items()})


@dataclass(frozen=True)
class StaleNorm(AdaptiveClipping):
    """The records are clipped to the norm of the step before, and the noise is that of the new norm."""

    def init(self, parameters) -> tuple[float, float]:
        return self.max_grad_norm, self.max_grad_norm

    def clip(self, gradients, state=None) -> BoundedSum:
        norm, before = state
        old = super().clip(gradients, before)
        times = norm / before
        scales = {name: scale if name == COUNT else scale * times for name, scale in old.scales.items()}
        return dataclasses.replace(old, scales=scales)

    def update(self, state, released) -> tuple[float, float]:
        norm, _ = state
        return super().update(norm, released), norm


@dataclass(frozen=True)
class HalfNoise(GaussianNoise):
    def add(self, bounded, source):
        return GaussianNoise(self.multiplier / 2).add(bounded, source)


@dataclass(frozen=True)
class EagerSampling(PoissonSampling):
    """Records are drawn at twice the stated rate."""

    def draw(self, records, source):
        return PoissonSampling(2 * self.rate).draw(records, source)


BROKEN = {
    "clips nothing": {"clipping": ClipsNothing(0.7)},
    "clips some layers": {"clipping": ClipsSomeLayers(0.7)},
    "leaves out biases": {"clipping": LeavesOutBiases(0.7)},
    "clips the mean": {"clipping": ClipsTheMean(0.7)},
    "stale norm": {"clipping": StaleNorm(1.0, rate=2.0, minimum=1e-9)},
    "half the noise": {"noise": HalfNoise(1.5)},
    "twice the rate": {"sampling": EagerSampling(0.2)},
}


@pytest.mark.parametrize("parts", BROKEN.values(), ids=BROKEN)
def test_a_broken_part_is_refuted_in_every_audit(parts):
    found = audited(plan(**parts))
    assert [one.name for one in found] == [
        "One step of DP-SGD",
        "One step of DP-SGD, on the run's model",
        f"DP-SGD, {STEPS} steps",
    ]
    for one in found:
        assert one.refuted, str(one)
        assert one.verdict == "refuted at 99 %"


def test_a_norm_that_is_stale_by_less_is_refuted_in_one_step():
    """A record moves the sum by 1.6 times what is stated: a whole training of 1,000 canaries sees that in some seeds only."""
    found = step(plan(clipping=StaleNorm(1.0, rate=1.0)), draws=2000)
    assert found.refuted, str(found)


def test_a_record_that_is_twice_in_a_batch_is_a_contradiction():
    @dataclass(frozen=True)
    class Twice(PoissonSampling):
        def draw(self, records, source):
            drawn = super().draw(records, source)
            return torch.cat([drawn, drawn])

    @dataclass(frozen=True)
    class TwiceOfFixedSize(FixedSizeSampling):
        def draw(self, records, source):
            drawn = super().draw(records, source)
            return torch.cat([drawn[:-1], drawn[:1]])

    for sampling in (Twice(0.2), Twice(1.0), TwiceOfFixedSize(200, 1000)):
        one = step(plan(sampling=sampling), draws=100)
        assert one.refuted and one.method == "a contradiction"
        assert "a record was twice" in one.evidence


def test_a_broken_clipping_is_refuted_at_the_small_rate_of_a_real_run():
    """Sampled steps would see the record in one of a hundred releases: the rate is counted apart."""
    for parts in ({"clipping": ClipsNothing(1.0)}, {"noise": HalfNoise(1.0)}, {"sampling": EagerSampling(0.01)}):
        one = step(plan(**{"sampling": PoissonSampling(0.01), "noise": GaussianNoise(1.0), **parts}), draws=8000)
        assert one.refuted, str(one)


# --- sound parts ------------------------------------------------------------------------------------------------------


def diagonal() -> dict[str, Tensor]:
    return {name: torch.linspace(0.3, 3, p.numel()).view_as(p) for name, p in network().named_parameters()}


def numel() -> int:
    return sum(p.numel() for p in network().parameters())


SOUND = {
    "flat clipping": {},
    "flat clipping, every record": {"sampling": PoissonSampling(1.0), "noise": GaussianNoise(4.0)},
    "per-layer clipping": {"clipping": PerLayerClipping(0.7)},
    "per-layer clipping by name": {"clipping": PerLayerClipping(norms={"0": 0.5, "3": 2.0})},
    "automatic clipping": {"clipping": AutomaticClipping(2.0)},
    "adaptive clipping": {"clipping": AdaptiveClipping(1.0, rate=1.0)},
    "scheduled clipping": {"clipping": ScheduledClipping(Schedule.of([1.0 / (n + 1) for n in range(STEPS)]))},
    "elliptical clipping": {"clipping": EllipticalClipping(diagonal(), 0.5)},
    "moving elliptical clipping": {"clipping": MovingEllipticalClipping(1.0, warmup=3)},
    "scheduled noise": {"noise": ScheduledNoise(Schedule.of([1.0 + 0.1 * n for n in range(STEPS)]))},
    "shaped noise": {"noise": ShapedNoise(1.0)},
    "shaped noise with weights": {"noise": ShapedNoise(1.0, diagonal())},
    "moving shape": {"noise": MovingShapeNoise(1.0)},
    "isotropic noise": {"noise": IsotropicL2Noise(numel(), 0.5)},
    "padded Poisson sampling": {"sampling": PaddedPoissonSampling(0.2, 1000, 300)},
    "fixed-size sampling": {"sampling": FixedSizeSampling(200, 1000), "noise": GaussianNoise(0.5)},
}


@pytest.mark.parametrize("parts", SOUND.values(), ids=SOUND)
def test_a_sound_part_is_not_refuted(parts):
    """Each audit refutes a sound plan with probability at most 1 %; the seeds are fixed."""
    found = audited(plan(**parts), draws=2000, canaries=400)
    assert any("on the run's model" in one.name for one in found)
    for one in found:
        assert not one.refuted, str(one)
        assert one.verdict.startswith("consistent")
        assert ("for the parts that were audited" in one.verdict) == bool(one.not_audited)


@pytest.mark.parametrize("kind", ["flat clipping", pytest.param("automatic clipping", marks=pytest.mark.slow)])
def test_a_sound_part_is_seen_nearly_whole(kind):
    found = audited(plan(**SOUND[kind]), draws=20_000)
    shares = [one.lower_bound / one.claimed_epsilon for one in found]
    assert all(share > 0.7 for share in shares[:-1]), shares
    assert shares[-1] > 0.2, shares


@pytest.mark.parametrize(
    ("rate", "on_model"),
    [(1.0, False), (0.2, False), (1.0, True), pytest.param(0.2, True, marks=pytest.mark.slow)],
)
def test_false_alarms_over_100_sound_steps(rate, on_model):
    """At most one in a hundred: more than 4 of 100 would be seen once in 290 versions of this test."""
    one = plan(sampling=PoissonSampling(rate))
    found = own_model(network(), made_up(), cross_entropy, 0.7, 0) if on_model else None  # the same one each time
    subject = (lambda course: found) if found else None
    alarms = sum(step(one, on=subject, draws=200, seed=seed).refuted for seed in range(100))
    assert binom.sf(4, 100, 0.01) < 1 / 290
    assert alarms <= 4


def test_a_broken_clipping_is_refuted_under_fixed_size_sampling():
    """There a record is replaced by the opposite one, and the releases are counted."""
    made = plan(sampling=FixedSizeSampling(200, 1000), noise=GaussianNoise(4.0), clipping=ClipsNothing(1.0), steps=1)
    for one in audited(made, draws=4000):
        assert one.refuted, str(one)
        assert one.method == "Clopper-Pearson"
        assert "replace one record" in one.claim.statement


# --- models -----------------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(11, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.embedding(x).mean(1))
        return found


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).square()


GENERATOR = torch.Generator().manual_seed(3)
MODELS = {
    "images": (images, torch.rand(6, 1, 8, 8, generator=GENERATOR), torch.arange(6) % 3, cross_entropy),
    "tokens": (Tokens, torch.randint(11, (6, 5), generator=GENERATOR), torch.arange(6) % 3, cross_entropy),
    "numbers": (lambda: nn.Linear(4, 2), torch.rand(6, 4, generator=GENERATOR), torch.rand(6, 2), squared),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("clipping", [FlatClipping(1.0), ClipsNothing(1.0)], ids=["sound", "broken"])
def test_any_model_is_audited_with_a_canary_that_was_searched_for(kind, clipping):
    torch.manual_seed(0)
    build, inputs, labels, loss = MODELS[kind]
    model = build()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    made = plan(clipping=clipping, steps=1)
    _, own = audit_plan(made, model=model, records=(inputs, labels), loss=loss, draws=2000)
    assert own.refuted == isinstance(clipping, ClipsNothing), str(own)
    assert own.lower_bound > 0.4 * own.claimed_epsilon
    assert own.audited.endswith("its model with its weights") and not own.not_audited
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert model.training


def test_gradients_that_are_tiny_are_weighted():
    model = network()
    with torch.no_grad():
        model[3].weight.mul_(1e-3)
    found = audit_plan(plan(clipping=ClipsNothing(1e4), steps=1), model=model, records=made_up(), draws=2000)
    assert [one.refuted for one in found] == [True, True]


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x + torch.randn_like(x))
        return found


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Noisy(), "draws random numbers"),
        (
            nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False), nn.Linear(4, 3)),
            "",
        ),
    ],
    ids=["random", "batch statistics"],
)
def test_a_model_that_cannot_be_audited_is_named_and_not_called_consistent(model, words):
    found = audit_plan(plan(), model=model, records=made_up(), draws=400, canaries=40)
    assert [one.name for one in found] == ["One step of DP-SGD", f"DP-SGD, {STEPS} steps"]
    for one in found:
        assert one.not_audited.startswith("the run's model: ") and words in one.not_audited
        assert one.verdict.startswith("consistent for the parts that were audited")


# --- what an audit says -----------------------------------------------------------------------------------------------


def test_each_audit_says_what_was_the_run_s_own():
    one, own, whole = audited(plan(), draws=400, canaries=40)
    assert one.audited == "the run's sampling, clipping and noise"
    assert one.not_audited == "the run's model"
    assert "a stand-in model with two layers" in one.setting
    assert one.verdict.startswith("consistent for the parts that were audited")
    assert own.audited == "the run's sampling, clipping and noise, and its model with its weights"
    assert own.verdict == "consistent"
    assert "the run's own model and weights" in own.setting
    assert whole.audited == "the run's sampling, clipping and noise, in all its steps"
    assert "Not audited: the run's model." in str(whole)


def test_users_with_several_examples_are_not_audited_and_not_called_consistent():
    for one in audited(plan(sampling=UserSampling(PoissonSampling(0.2), 3), steps=1), draws=400):
        assert "how the examples of one user are joined" in one.not_audited
        assert one.verdict.startswith("consistent for the parts that were audited")


def test_a_shorter_training_says_so():
    *_, whole = audited(plan(sampling=PoissonSampling(1.0)), steps=5, draws=400, canaries=40)
    assert whole.name == "DP-SGD, 5 steps"
    assert whole.not_audited == "the other 15 steps; the run's model"


def test_a_plan_for_a_model_is_audited_on_its_parameters():
    one, own = audited(plan(clipping=EllipticalClipping(diagonal()), steps=1), draws=2000)
    assert "with the run's parameters" in one.setting
    assert not one.refuted and not own.refuted
    with pytest.raises(InputError, match="Give the run's model"):
        audit_plan(plan(clipping=EllipticalClipping(diagonal())))


def test_a_later_step_is_audited_where_clipping_changes():
    seen = []

    @dataclass(frozen=True)
    class Watched(AdaptiveClipping):
        def clip(self, gradients, state=None) -> BoundedSum:
            seen.append(state)
            return super().clip(gradients, state)

    step(plan(clipping=Watched(1.0, rate=1.0)), draws=40)
    assert seen[-1] < 0.1


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match=r"records=\(inputs, labels\)"):
        audit_plan(plan(), model=network())
    with pytest.raises(InputError, match="at least 40 draws"):
        step(plan(), draws=10)


def test_a_loss_that_joins_the_records_is_refused():
    found = audit_plan(plan(steps=1), model=network(), records=made_up(), loss=nn.functional.cross_entropy, draws=400)
    assert "reduction='none'" in found[0].not_audited


def test_the_steps_of_a_course_are_those_of_the_plan():
    made = plan(noise=ScheduledNoise(Schedule.of([1.0 + n for n in range(STEPS)])))
    course = Course(made, Randomness.of(0))
    assert course.event == made.step_event(0)
    assert course.rate == 0.2 and course.noise_multiplier == 1.0 and course.independent
    course.number = 3
    assert course.noise_multiplier == 4.0


# --- plans from a record ----------------------------------------------------------------------------------------------


def recorded_steps(made: Plan) -> Ledger:
    ledger = Ledger()
    ledger.record(made.event)
    return ledger


def test_a_plan_is_rebuilt_from_its_record_whole_or_with_the_missing_parts_named():
    whole = plan(clipping=AdaptiveClipping(0.3))
    assert RunPlan.rebuilt(plain(whole), recorded_steps(whole)) == RunPlan(whole)
    bound = plan(clipping=EllipticalClipping(diagonal()))
    run = RunPlan.rebuilt(plain(bound), recorded_steps(bound))
    assert run.plan == plan(clipping=FlatClipping(1.0), records=run.plan.records)
    assert run.audited == "the run's sampling and noise"
    assert run.left_out == "the run's clipping: it is a tensor, of which only the digest was kept"
    assert run.without_model() == f"{run.left_out}; the run's model"


def test_an_unknown_noise_is_replaced_by_what_the_ledger_states():
    data = plain(plan())
    data["noise"]["kind"] = "somewhere:Noise"
    data["sampling"] = "odd"
    run = RunPlan.rebuilt(data, recorded_steps(plan(assumptions=("the noise is somebody's",))))
    assert run.plan.assumptions == ("the noise is somebody's",)
    assert run.plan.noise == GaussianNoise(1.5) and run.plan.sampling == PoissonSampling(0.2)
    assert run.audited == "the run's clipping" and set(run.missing) == {"sampling", "noise"}
    nothing = RunPlan.rebuilt({}, recorded_steps(plan()))
    assert nothing.audited == "Privet's own step with the noise and the sampling rate that the ledger states"
    assert set(nothing.missing) == {"sampling", "clipping", "noise"}


@pytest.mark.parametrize(
    "change", [{"steps": -1}, {"records": "many"}, {"steps": None}, {"kind": "else:Plan"}, {"more": 1}]
)
def test_a_plan_that_makes_no_sense_is_refused_in_a_sentence(change):
    with pytest.raises(InputError):
        RunPlan.rebuilt({**plain(plan()), **change}, recorded_steps(plan()))
    with pytest.raises(InputError, match="holds no steps"):
        RunPlan.rebuilt([], Ledger())


def test_what_no_audit_covers_is_named():
    made = plan(steps=1)
    ledger = recorded_steps(made)
    ledger.record(Gaussian(30.0), 2)
    found = audit_run_plan(RunPlan(made), ledger, 1e-5, settings={"draws": 400})
    assert all("the other releases in the ledger (2 Gaussian)" in one.not_audited for one in found)
    (refuted,) = audit_run_plan(RunPlan(plan()), ledger, 1e-5, settings={"draws": 400})
    assert refuted.refuted and f"17 of the {STEPS} steps" in refuted.evidence
