"""The laboratory refutes every planted bug, clears the library, and raises few false alarms.

These are quick versions, with fewer runs; `benchmarks/laboratory.py` has all of them at full power.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import binom

import privet.methods  # noqa: F401 - adds the stations of the methods
from privet.audit import Audit, Claim, GaussianTradeOff, Seen, laboratory
from privet.audit.result import CRASHED, REFUSED
from privet.audit.stations import Training, model_stations, path_stations, stations
from privet.errors import InputError
from privet.privacy import Gaussian
from tests.audit.planted import MORE, SIXTEEN, Plant

BY_NAME = {station.name: station for station in stations()}
ALONE = 1 - 0.01 / len(BY_NAME)
"""The confidence of one station in a whole laboratory of 99 %: what is refuted here is refuted there."""


@pytest.mark.slow
@pytest.mark.parametrize("plant", SIXTEEN + MORE, ids=lambda plant: plant.name)
def test_a_planted_bug_is_refuted_at_its_station(plant: Plant):
    with plant.bug():
        (found,) = laboratory([BY_NAME[plant.station]], runs=plant.runs, confidence=ALONE)
    assert found.refuted, str(found)
    assert found.ceiling > found.claimed_epsilon


@pytest.mark.slow
@pytest.mark.parametrize("station", path_stations(), ids=lambda station: station.name)
def test_the_library_is_cleared_where_its_own_path_is_looked_at(station):
    """A false alarm in one of a hundred versions of the whole laboratory."""
    (found,) = laboratory([station], runs=100, confidence=ALONE)
    assert not found.refuted, str(found)
    assert found.method not in (REFUSED, CRASHED), found.evidence


@pytest.mark.slow
@pytest.mark.parametrize("station", model_stations(), ids=lambda station: station.name)
def test_what_a_model_a_loss_or_a_loop_may_do_is_right_or_refused(station):
    """Version 0.1 was refuted at 33 of the 37 (benchmarks/results/laboratory-0.1.0.md)."""
    (found,) = laboratory([station], runs=300, confidence=ALONE)
    assert not found.refuted, str(found)
    assert found.method != CRASHED, found.evidence


def test_the_power_is_that_of_a_bug_of_one_and_a_half_times_the_sensitivity():
    """At the edge of the claim, no bound comes near it by chance; half as much again is always refuted."""
    exact, more = (laboratory([Normal(shift)], runs=800, confidence=ALONE)[0] for shift in (1.0, 1.5))
    assert 0.6 * exact.claimed_epsilon < exact.lower_bound < exact.claimed_epsilon
    assert more.refuted


@dataclass(frozen=True)
class Normal:
    """A Gaussian release whose record moves it by `shift`, where 1 is claimed; nothing else, so that it is fast."""

    shift: float
    sigma: float = 0.5
    name: str = "normal numbers"
    looks_for: str = "nothing"
    effort: float = 1.0

    def claimed(self):
        return Gaussian(self.sigma)

    def bound(self, confidence):
        return GaussianTradeOff(1e-5, confidence)

    def run(self, present, seed, noise=None):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(4, generator=generator) * (self.sigma if noise is None else noise)
        drawn[0] += self.shift * present
        return Seen({"release": drawn}, {}, Gaussian(self.sigma))


def test_false_alarms_over_200_sound_laboratories():
    """At most one in a hundred: more than 6 of 200 would be seen once in 200 versions of this test."""
    alarms = sum(laboratory([Normal(1.0)], runs=150, seed=k)[0].refuted for k in range(200))
    assert binom.sf(6, 200, 0.01) < 0.005
    assert alarms <= 6


@pytest.mark.slow
def test_false_alarms_of_the_real_path():
    """As above, by the library's own step."""
    alarms = sum(laboratory([BY_NAME["one step"]], runs=100, seed=k)[0].refuted for k in range(30))
    assert alarms <= 3  # P(more) = 0.0002 at 1 %


def test_a_laboratory_with_few_runs_says_that_it_cannot_refute():
    (found,) = laboratory([BY_NAME["one step"]], runs=40, confidence=ALONE)
    assert found.ceiling < found.claimed_epsilon
    assert found.verdict == "consistent, and this audit could not have refuted it"


def test_the_confidence_is_shared_among_the_stations():
    alone, shared = (laboratory([Normal(1.0)] * count, runs=200)[0] for count in (1, 20))
    assert shared.lower_bound < alone.lower_bound
    assert shared.confidence == alone.confidence == 0.99


def test_what_is_refused_everywhere_releases_nothing():
    station = BY_NAME["records mixed by h - h.mean(0)"]
    (found,) = laboratory([station], runs=40)
    assert found.method == REFUSED
    assert found.verdict == "refused: nothing was released"
    assert "UnsupportedModelError" in found.evidence
    assert Audit.from_dict(found.to_dict()) == found


def test_a_crash_is_no_refusal():
    @dataclass(frozen=True)
    class Crashing(Normal):
        def run(self, present, seed, noise=None):
            return Seen.of_error(TypeError("not callable"))

    (found,) = laboratory([Crashing(1.0)], runs=40)
    assert found.verdict == "no result: every run crashed"
    assert not found.refuted


def test_a_contradiction_needs_no_statistics():
    @dataclass(frozen=True)
    class Broken(Normal):
        def run(self, present, seed, noise=None):
            return Seen(faults=("a record was in one batch twice",) if seed % 7 == 0 else ())

    (found,) = laboratory([Broken(1.0)], runs=40)
    assert found.refuted and math.isinf(found.lower_bound)
    assert found.evidence == "a record was in one batch twice"


def test_a_ledger_that_depends_on_the_record_is_a_contradiction():
    @dataclass(frozen=True)
    class Telling(Normal):
        def run(self, present, seed, noise=None):
            return Seen(event=Gaussian(2.0 if present else 3.0))

    (found,) = laboratory([Telling(1.0)], runs=40)
    assert found.refuted
    assert found.claim == Claim.of(Gaussian(2.0), 1e-5)


def test_a_release_that_is_not_finite_tells():
    @dataclass(frozen=True)
    class Infinite(Normal):
        def run(self, present, seed, noise=None):
            return Seen({"release": torch.full((2,), math.nan if present else 0.0)}, {}, Gaussian(self.sigma))

    (found,) = laboratory([Infinite(1.0)], runs=200)
    assert found.refuted


def test_progress_is_told_and_bad_arguments_are_refused():
    told = []
    laboratory([Normal(1.0)], runs=40, progress=lambda *each: told.append(each))
    assert told == [("Laboratory: normal numbers", 0, 1), ("Laboratory", 1, 1)]
    with pytest.raises(InputError, match="at least 40 runs"):
        laboratory(runs=10)
    with pytest.raises(InputError, match="without stations"):
        laboratory([])


def test_names_are_unique_and_every_station_has_words():
    assert len(BY_NAME) == len(stations()) > 30
    assert all(one.looks_for for one in stations())
    assert sum(isinstance(one, Training) for one in stations()) > 25
