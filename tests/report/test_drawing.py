"""The drawing of where the noise enters: every method's way passes the noise, unless only a claim stands behind it."""

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from privet.privacy import Claimed, CovarianceRelease, Gaussian, Ledger, PoissonSampled
from privet.privacy.events import NoisyVotes, PureEpsilon
from privet.report import RunRecord, SyntheticSummary
from privet.report.places import WAYS, describe_way, draw_way, way_of

STEP = PoissonSampled(0.1, Gaussian(2.0))


def of(event, count: int = 1) -> Ledger:
    ledger = Ledger()
    ledger.record(event, count)
    return ledger


@pytest.fixture(scope="module")
def record(finished_run) -> RunRecord:
    return RunRecord.read(finished_run)


@pytest.mark.parametrize("place", WAYS)
@pytest.mark.parametrize("kind", ["proved", "assumed", "claimed", "open", "vacuous"])
def test_every_place_can_be_drawn_and_told(place, kind):
    way = WAYS[place]
    root = ET.fromstring(draw_way(way, kind).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    for stage in way.stages:
        assert stage.title in texts
        assert stage.title in describe_way(way, kind)
    assert ("only claimed to be protected" in texts) == (kind == "claimed")
    assert way.stages[-1].detail.startswith("the release")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_noise_comes_before_the_release_and_what_goes_around_it_is_named(way):
    assert 0 < way.last_noise < len(way.stages) - 1
    assert bool(way.around) == bool(way.passing)
    if way.around:
        assert way.around[0] < way.last_noise <= way.around[1]


@pytest.mark.parametrize(
    ("event", "count", "noise"),
    [
        (STEP, 60, "Noise on their sum"),
        (PoissonSampled(0.1, PureEpsilon(0.5)), 60, "Shaped noise on their sum"),
        (CovarianceRelease(3.0), 2, "Noise on them, once"),
        (NoisyVotes(40.0), 500, "Noise on the counts"),
    ],
)
def test_the_ledger_tells_the_place_where_the_record_does_not(record, event, count, noise):
    way = way_of(record, of(event, count))
    assert noise in [stage.title for stage in way.stages if stage.noise]


def test_a_model_of_noisy_statistics_is_not_drawn_as_synthetic_data(record):
    assert record.synthetic is None
    assert way_of(record, of(CovarianceRelease(3.0), 2)).stages[-1].title == "The trained model"
    made = dataclasses.replace(record, synthetic=SyntheticSummary(10, ("synthetic.npz",)))
    assert way_of(made, of(CovarianceRelease(3.0), 2)).stages[-1].title == "The synthetic data set"


def test_the_numbers_are_the_runs_own(record):
    details = [stage.detail for stage in way_of(record, of(STEP, 60)).stages]
    assert "1,437 of digits" in details
    assert "each with probability 10\N{NO-BREAK SPACE}%" in details
    assert "Gaussian, 2 C" in details


def test_only_a_claimed_way_goes_around_the_noise(record):
    placed = dataclasses.replace(record, place="embedding layer")
    assert way_of(placed, of(STEP, 60)).around is None
    assert way_of(placed, of(STEP.under(Claimed("a paper", "it leaks")), 60)).around


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_words_fit_their_boxes(way):
    for stage in way.stages:
        assert len(stage.title) <= (26 if stage.noise else 36), stage
        assert len(stage.detail) <= 40, stage


def test_a_long_name_of_the_data_is_cut(record):
    named = dataclasses.replace(record, data=dataclasses.replace(record.data, name="x" * 99))
    assert len(way_of(named, of(STEP)).stages[0].detail) <= 40


def test_a_ledger_without_events_can_be_drawn(record):
    assert way_of(record, Ledger()).stages


@pytest.mark.parametrize(("passes", "said"), [(1, "1 pass"), (2, "2 passes")])
def test_passes_of_residual_perturbation_are_not_called_steps(record, passes, said):
    """Its ledger has an entry for each pass: two of them were drawn as a step that is done twice, of 3,750."""
    ours = dataclasses.replace(record, place="residual mapping", settings={"Steps": "3,750"})
    details = [stage.detail for stage in way_of(ours, of(Gaussian(1.0), passes)).stages]
    assert f"3,750 times in {said}" in details and "twice" not in details
