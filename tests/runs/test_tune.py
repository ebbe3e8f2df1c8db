"""A tuning: its plan, its trials, what it leaves and what it never tells; killed, refused and broken."""

from __future__ import annotations

import json
import math
import random
import stat
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from privet.audit.bounds import ClopperPearson, Counts
from privet.errors import InputError, PrivetError
from privet.methods import Context, DataSpec, Method, Outcome, Task, method_for, register
from privet.methods.dpsgd import DPSGD
from privet.methods.preparation import scores
from privet.privacy import (
    Assumed,
    Event,
    Gaussian,
    Ledger,
    LedgerError,
    Proved,
    RepeatAndSelect,
    Trials,
    accountant_named,
)
from privet.privacy.events import tally
from privet.randomness import Randomness
from privet.report import RunRecord, load_model
from privet.runs import audit_run, run
from privet.runs import tune as tuning
from privet.runs.tune import WORKING, Candidate, Drawn, TuningPlan, choose, divided, grid, tune
from privet.training.folder import working_files
from tests.runs.small import MAY_STAY, Moments, counted, ctrl_c, digits, full_disk, task_of

EPSILON, DELTA = 3.0, 1e-4
RATES = {"learning_rate": ["0.5", "2"], "epochs": ["0.5"]}
RDP, PLD = accountant_named("rdp"), accountant_named("pld")


def digits_task(seed: int | None = None, epsilon: float = EPSILON) -> Task:
    return Task.of(DataSpec("digits"), digits(), epsilon, DELTA, seed=seed)


def plan_of(task: Task, trials: Trials | None = None, choices: dict[str, list[str]] | None = None) -> TuningPlan:
    return TuningPlan.of(grid(["dpsgd"], task, choices or RATES), task, trials)


@pytest.fixture(scope="module")
def secret_plan() -> TuningPlan:
    """A plan without a seed; nothing is written by it."""
    return plan_of(digits_task(), Trials(5.0))


@pytest.fixture(scope="module")
def seeded_plan() -> TuningPlan:
    return plan_of(digits_task(7), Trials(5.0))


def drawing(monkeypatch: pytest.MonkeyPatch, *order: int, ties: tuple[float, ...] | None = None) -> None:
    """Let every tuning draw these candidates."""
    ties = ties or tuple((n + 1) / (len(order) + 2) for n in range(len(order)))
    monkeypatch.setattr(Drawn, "of", classmethod(lambda cls, *_: Drawn(order, ties)))


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [Trials(5.0), Trials(5.0, 1.0), Trials(5.0, 0.0), None], ids=str)
def test_the_whole_tuning_stays_within_the_budget_and_uses_it(trials: Trials | None) -> None:
    plan = plan_of(digits_task(), trials)
    spent = plan.spent()
    assert 0.99 * EPSILON < spent.epsilon <= EPSILON
    assert plan.of_one(0).epsilon == pytest.approx(plan.epsilon, rel=2e-3)
    assert plan.epsilon < plan.of_all_once().epsilon
    assert plan.epsilon < EPSILON
    assert isinstance(plan.event.guarantee, Proved if trials is None else Assumed)
    assert spent.accountant == ("PLD" if trials is None else "RDP")
    if trials is not None:
        assert RDP.epsilon(RepeatAndSelect((plan.events[0],), trials.mean, trials.shape), DELTA) <= EPSILON
        assert "how many trials there were" in str(spent)
    else:
        assert Counter(dict(tally(plan.event))) == Counter(dict(tally(plan.events[0] + plan.events[1])))


def test_candidates_with_other_steps_are_all_covered() -> None:
    plan = plan_of(digits_task(), Trials(5.0), {"epochs": ["0.5", "2"], "sampling_rate": ["0.05", "0.2"]})
    assert len(set(plan.events)) == 4
    for event in plan.events:
        assert RDP.epsilon(RepeatAndSelect((event,), 5.0), DELTA) <= plan.spent().epsilon <= EPSILON
    (leaf, _), *_ = tally(plan.event)
    assert isinstance(leaf, RepeatAndSelect)
    assert set(leaf.events) == set(plan.events)


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("dpsgd", {"epochs": 0.5}),
        ("dpsgd", {"epochs": 0.3, "recipe": "images"}),
        ("dpsgd-adaptive", {"epochs": 0.5}),
        ("dpsgd-automatic", {"epochs": 0.5}),
        ("dpsgd-per-layer", {"epochs": 0.5}),
        ("dpsgd-advanced", {"epochs": 0.5}),
    ],
)
def test_what_is_planned_is_what_a_run_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    task = digits_task(1)
    method = method_for(key, task, settings)
    context = Context.in_memory(method, task)
    method.fit(task, context)
    assert dict(tally(context.ledger.event)) == dict(tally(method.planned(task)))
    assert context.ledger.guarantee == method.planned(task).guarantee


def test_what_is_planned_for_protected_records_has_the_accuracy_in_it(tmp_path: Path) -> None:
    task = task_of("table", 1, tmp_path)
    method = method_for("dpsgd", task, {"epochs": 0.5})
    context = Context.in_memory(method, task, protect_test=True)
    method.fit(task, context)
    assert dict(tally(context.ledger.event)) == dict(tally(method.planned(task)))
    assert any(isinstance(leaf, Gaussian) for leaf, _ in tally(method.planned(task)))


def test_methods_whose_cost_is_not_known_before_are_refused() -> None:
    task = digits_task()
    for key, name in (("svrg", "learning_rate"), ("optimized-noise", "learning_rate")):
        with pytest.raises(InputError, match="cannot be tuned"):
            TuningPlan.of(grid([key], task, {name: ["1", "2"]}), task, Trials(5.0))
    with pytest.raises(InputError, match="chooses among models"):
        TuningPlan.of(grid(["moments"], task, {"components": ["6", "8"]}), task, Trials(5.0))
    with pytest.raises(InputError, match="states its noise"):
        TuningPlan.of(grid(["dpsgd"], task, {"recipe": ["abadi-mnist"], "clip": ["1", "2"]}), task, Trials(5.0))

    @dataclass(frozen=True, kw_only=True)
    class Heir(DPSGD):
        def trained(self, *given: Any) -> Any:
            return super().trained(*given)

    heirs = [Candidate(replace(Heir(), clip=clip), f"clip={clip}") for clip in (1.0, 2.0)]
    with pytest.raises(InputError, match="cannot be tuned"):
        TuningPlan.of(heirs, task, Trials(5.0))


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"clip": ["1"]}, "nothing to choose"),
        ({"clip": ["1", "1"]}, "given twice"),
        ({"clip": ["1", "-1"]}, "clip is a finite number above 0"),
        ({"clip": [str(n) for n in range(1, 40)], "momentum": [str(n / 40) for n in range(40)]}, "at most 1,000"),
    ],
)
def test_grids_that_cannot_be_tuned_are_refused(choices: dict[str, list[str]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_of(digits_task(), Trials(5.0), choices)


def test_the_search_for_the_budget_of_a_trial() -> None:
    for factor, power in ((1.3, 1.0), (7.0, 1.0), (1.0, 0.5), (2.0, 1.7)):
        found = tuning._largest(lambda epsilon, f=factor, p=power: f * epsilon**p, 3.0)
        assert 0.998 * 3.0 <= factor * found**power <= 3.0 or found == 3.0
    # A recipe for another budget can have other steps: costs jump.
    jumping = tuning._largest(lambda epsilon: epsilon * (1.2 if epsilon < 1.7 else 2.0), 3.0)
    assert 0.99 * 1.7 <= jumping < 1.7
    with pytest.raises(InputError, match="too small for this tuning"):
        tuning._largest(lambda epsilon: 5.0, 3.0)
    with pytest.raises(InputError, match="too small for this tuning"):
        tuning._largest(lambda epsilon: math.inf, 3.0)


def test_the_records_that_choose_are_not_those_that_measure(tmp_path: Path) -> None:
    for task in (digits_task(), task_of("table", None, tmp_path)):
        rest, validation = divided(task)
        assert len(rest.dataset.test) + len(validation) == len(task.dataset.test)
        assert rest.dataset.origin == task.dataset.origin
        known = {row.numpy().tobytes() for row in rest.dataset.test.inputs}
        assert not any(row.numpy().tobytes() in known for row in validation.inputs)
        assert rest.dataset.train is task.dataset.train
        # One record less in the file moves no other one.
        fewer = task.dataset.test.select(range(1, len(task.dataset.test)))
        less = replace(task.dataset, splits={"train": task.dataset.train, "test": fewer})
        _, again = divided(replace(task, dataset=less))
        assert abs(len(again) - len(validation)) <= 1
        assert {row.numpy().tobytes() for row in again.inputs} <= {row.numpy().tobytes() for row in validation.inputs}


# --- the draw and the choice ------------------------------------------------------------------------------------------


def test_the_draw_is_random_for_a_release_and_repeated_for_a_seed() -> None:
    draws = [Drawn.of(Trials(5.0, 1.0), 3, Randomness.apart("tuning", None)) for _ in range(3000)]
    numbers = [len(drawn.order) for drawn in draws]
    assert abs(np.mean(numbers) - 5) < 5 * math.sqrt(20 / 3000)  # five standard deviations: a false alarm rate of 6e-7
    places = Counter(place for drawn in draws for place in drawn.order)
    for place in range(3):
        assert binomtest(places[place], sum(places.values()), 1 / 3).pvalue > 1e-7
    assert all(len(drawn.ties) == len(drawn.order) for drawn in draws)
    assert len({tie for drawn in draws for tie in drawn.ties}) == sum(numbers)
    first, again, other = (Drawn.of(Trials(5.0), 3, Randomness.apart("tuning", seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert Drawn.of(None, 4, Randomness.apart("tuning", None)).order == (0, 1, 2, 3)


def test_every_trial_is_made_whatever_the_earlier_ones_gave() -> None:
    made: list[int] = []

    def trial(number: int) -> float:
        made.append(number)
        return [0.2, 1.0, 0.3, -math.inf, 1.0, math.nan][number]

    drawn = Drawn((0,) * 6, (0.9, 0.1, 0.5, 0.8, 0.2, 0.99))
    *_, (done, best) = choose(drawn, trial)
    assert made == list(range(6))  # a perfect score stops nothing
    assert done == 6
    assert best is not None and best.trial == 4  # of equal scores the random number decides, and no number is no score


def test_equal_scores_are_decided_by_chance() -> None:
    wins = Counter()
    for _ in range(2000):
        drawn = Drawn.of(None, 3, Randomness.apart("tuning", None))
        *_, (_, best) = choose(drawn, lambda number: 0.5)
        assert best is not None
        wins[best.trial] += 1
    assert all(binomtest(wins[place], 2000, 1 / 3).pvalue > 1e-7 for place in range(3))


def test_without_a_score_nothing_is_the_best() -> None:
    *_, (_, best) = choose(Drawn((0, 0), (0.1, 0.2)), lambda number: -math.inf)
    assert best is None
    assert list(choose(Drawn((), ()), lambda number: 1.0)) == []


def test_an_audit_of_the_choice_catches_broken_ones() -> None:
    """One trial releases x + N(0, 1.5^2), its own score. Broken: a number of trials that is fixed and charged as one."""
    sigma, delta, draws = 1.5, 1e-5, 6000
    generator = np.random.default_rng(0)
    claims = {
        "as accounted": RDP.epsilon(RepeatAndSelect((Gaussian(sigma),), 8.0, 1.0), delta),
        "fixed, charged as one": PLD.epsilon(Gaussian(sigma), delta),
    }
    randomness = Randomness.of(3)

    def best(trials: Trials | None, x: float) -> float:
        drawn = Drawn.of(trials, 40, randomness)  # without a distribution, 40 trials
        values = generator.normal(x, sigma, max(1, len(drawn.order)))
        *_, (_, found) = choose(drawn, lambda number: float(values[number]))
        assert found is not None
        return found.score

    def shown(trials: Trials | None, threshold: float) -> float:
        # Without the record the best is small more often.
        caught, accused = (sum(best(trials, x) < threshold for _ in range(draws)) for x in (0.0, 1.0))
        return ClopperPearson(delta, 0.99)(Counts(caught, draws, accused, draws))

    assert shown(Trials(8.0, 1.0), -1.0) < claims["as accounted"]
    assert shown(None, float(norm.ppf(0.97, 0, sigma))) > claims["fixed, charged as one"]


# --- the run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, secret_plan: TuningPlan) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "release"
    with pytest.MonkeyPatch.context() as patched:
        drawing(patched, 0, 1, 1)
        tune(secret_plan, out, command=("privet", "tune"))
    return out


def test_only_the_winner_is_left_with_the_ledger_of_the_tuning(finished: Path, secret_plan: TuningPlan) -> None:
    assert {path.name for path in finished.iterdir()} <= MAY_STAY - {"release", "internal"}
    record = RunRecord.read(finished)
    ledger = record.open_ledger(finished)
    assert [event for event, _ in ledger] == [secret_plan.event]
    spent = record.spent(ledger)
    assert spent.epsilon == secret_plan.spent().epsilon <= EPSILON
    assert spent.accountant == "RDP"
    assert isinstance(spent.guarantee, Assumed)
    assert record.tuning is not None
    assert record.tuning.candidates == ("learning_rate=0.5", "learning_rate=2")
    assert record.tuning.chosen == f"learning_rate={record.how.settings['learning_rate']:g}"
    assert record.tuning.one == pytest.approx(secret_plan.epsilon, rel=2e-3)
    assert not record.seeded
    # The score is that of the released model on the records that choose, and its accuracy that on the others.
    assert record.utility is not None
    predicted = load_model(record, finished)
    for said, records in (
        (record.tuning.best, secret_plan.validation),
        (record.utility.accuracy, secret_plan.task.dataset.test),
    ):
        assert said == float((scores(predicted, records).argmax(1) == records.labels).double().mean())


def test_page_and_card_say_what_was_chosen_among_what_and_what_it_cost(finished: Path) -> None:
    card, page = (finished / "CARD.md").read_text(), (finished / "report.html").read_text()
    plain = json.loads((finished / "card.json").read_text())
    one, whole = plain["tuning"]["one"], plain["privacy"]["epsilon"]
    for text in (card.replace("\\", ""), page):
        assert "How it was chosen" in text
        assert "the best of a random number of trials (poisson with mean 5)" in text
        assert "learning_rate=0.5" in text
        assert "How long the tuning took" in text
        assert "too optimistic" in text
    assert one < whole <= EPSILON
    chosen = RunRecord.read(finished).tuning
    assert chosen is not None and plain["tuning"]["chosen"] == chosen.chosen
    assert "event" not in plain["tuning"]
    assert plain["privacy"]["guarantee"] == "assumed"
    assert "the best of a secret, random number of trials" in plain["accesses"][0]["what"]


def test_the_winner_is_audited_and_attacked_like_any_run(finished: Path, tmp_path: Path) -> None:
    import shutil

    from privet.methods import Power

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    found = audit_run(copy, Power(draws=400, canaries=40))
    assert found and not any(audit.refuted for audit in found)
    assert not any("not in its ledger" in audit.evidence for audit in found)


def test_files_of_the_trials_are_for_their_owner_alone(
    tmp_path: Path, secret_plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing(monkeypatch, 0)
    seen: list[int] = []

    def look() -> None:
        folder = tmp_path / "a" / WORKING
        seen.append(stat.S_IMODE(folder.stat().st_mode))
        secret = tmp_path / "a" / "release-drawn.safetensors"
        seen.append(stat.S_IMODE(secret.stat().st_mode))

    tune(secret_plan, tmp_path / "a", on_tick=look)
    assert set(seen) == {0o700, 0o600}
    assert not working_files(tmp_path / "a")


TIMES = ("seconds",)


def told(out: Path) -> dict[str, Any]:
    """Everything that a tuning leaves, without the seconds that the winner's own run took."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        content = path.read_bytes()
        if path.name == "record.json":
            content = json.dumps({k: v for k, v in json.loads(content).items() if k not in TIMES}).encode()
        if path.name == "steps.csv":
            content = b"\n".join(line.rpartition(b",")[0] for line in content.splitlines())
        if path.name == "report.html":
            content = b"".join(line for line in content.splitlines() if b'class="when"' not in line)
        found[path.name] = (content, path.stat().st_mtime, stat.S_IMODE(path.stat().st_mode))
    return found


def test_nothing_that_is_left_tells_how_many_trials_there_were(
    tmp_path: Path, seeded_plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same winner out of one trial and out of four, of which one fails: the same bytes, and the same dates."""

    class Clock:
        ticks = 0

        @classmethod
        def now(cls, zone: Any) -> Any:
            from datetime import datetime, timedelta

            cls.ticks += 1
            return datetime(2026, 1, 1, tzinfo=zone) + timedelta(hours=cls.ticks)

        fromisoformat = __import__("datetime").datetime.fromisoformat

    left = []
    monkeypatch.setattr("privet.privacy.ledger.secrets.token_hex", lambda size: "0" * 2 * size)  # of each new ledger
    for name, order in (("one", (1,)), ("four", (1, 0, 0, 1))):
        Clock.ticks = 0
        monkeypatch.setattr(tuning, "datetime", Clock)
        drawing(monkeypatch, *order, ties=(0.9, 0.1, 0.2, 0.3)[: len(order)])
        scores = iter([1.0, 0.5, None, 1.0])
        real = tuning._Tuning._score

        def scored(self: Any, place: Path, task: Task, real: Any = real, scores: Any = scores) -> float:
            found = next(scores)
            if found is None:
                raise RuntimeError("this trial has failed")
            return float(found)

        with monkeypatch.context() as patched:
            patched.setattr(tuning._Tuning, "_score", scored)
            tune(seeded_plan, tmp_path / name / "tuned", command=("privet", "tune"))
        left.append(told(tmp_path / name / "tuned"))
    assert left[0] == left[1]
    whole = b" ".join(content for content, *_ in left[1].values())
    assert b"this trial has failed" not in whole
    assert b"trial-" not in whole


# --- trials that fail -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Failing(DPSGD):
    """DP-SGD that fails after its training."""

    key: str = "failing"
    title: str = "fails"
    by_default: bool = False

    def planned(self, task: Task) -> Event | None:
        return method_for("dpsgd", task, {"epochs": 0.5}).planned(task)

    def fit(self, task: Task, context: Context) -> Outcome:
        method_for("dpsgd", task, {"epochs": 0.5}).fit(task, context)
        raise RuntimeError("a secret about the records")


def failing_plan(*methods: Method) -> TuningPlan:
    register(Failing)  # until the end of the test
    found = [Candidate(method, f"method={place}") for place, method in enumerate(methods)]
    return TuningPlan.of(found, digits_task(7), Trials(5.0))


def test_a_trial_that_fails_has_no_score_and_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good = method_for("dpsgd", digits_task(), {"epochs": 0.5})
    plan = failing_plan(good, Failing())
    drawing(monkeypatch, 1, 0, 1)
    record = tune(plan, tmp_path / "a")
    assert record.tuning is not None and record.tuning.chosen == "method=0"
    assert not (tmp_path / "a" / WORKING).exists()
    said = capfd.readouterr()
    assert "secret" not in said.out + said.err
    for path in (tmp_path / "a").iterdir():
        assert b"a secret about the records" not in path.read_bytes()
    ledger = record.open_ledger(tmp_path / "a")
    assert dict(tally(ledger.event)) == dict(tally(plan.event))
    assert "the method failing, which is not part of Privet" in str(ledger.guarantee)


def test_where_every_trial_fails_nothing_is_released_and_the_reason_stays_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = failing_plan(Failing(), replace(Failing(), clip=2.0))
    drawing(monkeypatch, 0, 1)
    with pytest.raises(PrivetError, match="No trial gave a model") as error:
        tune(plan, tmp_path / "a")
    assert "a secret" not in str(error.value)
    failures = tmp_path / "a" / WORKING / "failures.txt"
    assert "a secret about the records" in failures.read_text()
    assert stat.S_IMODE(failures.stat().st_mode) == 0o600
    assert not (tmp_path / "a" / "record.json").exists() and not (tmp_path / "a" / "model.safetensors").exists()
    ledger = Ledger.open(tmp_path / "a" / "ledger.jsonl", read_only=True)
    assert dict(tally(ledger.event)) == dict(tally(plan.event))  # it counts all the same
    with pytest.raises(PrivetError, match="No trial gave a model"):
        tune(plan, tmp_path / "a", resume=True)


def test_no_trial_at_all_releases_nothing_and_counts(
    tmp_path: Path, secret_plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing(monkeypatch)
    with pytest.raises(PrivetError, match=r"number of trials is 0, which happens with probability 0\.0067"):
        tune(secret_plan, tmp_path / "a")
    ledger = Ledger.open(tmp_path / "a" / "ledger.jsonl", read_only=True)
    assert [event for event, _ in ledger] == [secret_plan.event]


def test_what_is_assumed_of_a_candidate_is_stated_whether_it_is_tried_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the ledger would tell which candidates were tried."""
    good = method_for("dpsgd", digits_task(), {"epochs": 0.5})
    plan, ledgers = failing_plan(good, Failing()), []
    for name, order in (("neither", (0,)), ("both", (0, 1))):
        drawing(monkeypatch, *order)
        tune(plan, tmp_path / name)
        ledger = Ledger.open(tmp_path / name / "ledger.jsonl", read_only=True)
        ledgers.append((list(ledger), ledger.conditions, (tmp_path / name / "ledger.jsonl").stat().st_size))
    assert ledgers[0] == ledgers[1]


def test_what_a_trial_does_beyond_its_plan_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that records more than it planned, under an assumption that it did not state."""

    @dataclass(frozen=True, kw_only=True)
    class Dishonest(Failing):
        key: str = "dishonest"

        def fit(self, task: Task, context: Context) -> Outcome:
            context.releases.get(
                "more", lambda ledger: ledger.record(Gaussian(50.0).under(Assumed("the moon is full")))
            )
            return method_for("dpsgd", task, {"epochs": 0.5}).fit(task, context)

    plan = failing_plan(Dishonest(), replace(Dishonest(), clip=2.0))
    drawing(monkeypatch, 0, 1)
    record = tune(plan, tmp_path / "a")
    ledger = record.open_ledger(tmp_path / "a")
    # With the release before it, the training is calibrated to less: its steps are not those of the plan either.
    assert counted(ledger)[Gaussian(50.0)] == 2
    assert "the moon is full" in str(ledger.guarantee)
    assert record.spent(ledger).epsilon > EPSILON


# --- protected test records -------------------------------------------------------------------------------------------


def test_protected_records_are_scored_with_noise_that_is_part_of_each_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(task_of("table", None, tmp_path), epsilon=EPSILON)
    plan = plan_of(task, Trials(5.0, 1.0), {"learning_rate": ["0.5", "2"], "epochs": ["1"]})
    assert plan.score is not None
    assert plan.spent().epsilon <= EPSILON
    for run_, event in zip(plan.runs, plan.events, strict=True):
        assert counted_of(event) - counted_of(run_) == Counter({plan.score.event: 1})
    drawing(monkeypatch, 0, 1, 0)
    trials: list[Counter[Event]] = []
    real = tuning._Tuning._charge

    def charged(self: Any, place: Path, planned: Event) -> None:
        trials.append(counted(Ledger.open(place / "ledger.jsonl", read_only=True)))
        real(self, place, planned)

    monkeypatch.setattr(tuning._Tuning, "_charge", charged)
    record = tune(plan, tmp_path / "a")
    assert trials == [counted_of(plan.events[place]) for place in (0, 1, 0)]
    assert [event for event, _ in record.open_ledger(tmp_path / "a")] == [plan.event]
    card = (tmp_path / "a" / "CARD.md").read_text()
    assert record.tuning is not None and "with Gaussian noise of" in record.tuning.score
    assert record.utility is not None and record.utility.noise > 0
    assert f"{record.test_accuracy:.4f}" not in card  # the exact accuracy stays inside
    assert stat.S_IMODE((tmp_path / "a" / "data.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a" / "record.json").stat().st_mode) == 0o600


def counted_of(event: Event) -> Counter[Event]:
    return Counter(dict(tally(event)))


# --- stopped and continued --------------------------------------------------------------------------------------------


def tune_small(plan: TuningPlan, out: Path, moments: Moments | None = None) -> RunRecord:
    moments = moments or Moments()
    with moments.watched():
        return tune(plan, out, resume=True, on_tick=lambda: moments.report({}))


def stopped(plan: TuningPlan, out: Path, at: int, happens: Any = ctrl_c) -> bool:
    try:
        tune_small(plan, out, Moments(at, happens))
    except (KeyboardInterrupt, PrivetError) as error:
        return _told_well(error)
    return False


def _told_well(error: BaseException) -> bool:
    """A full disk is named, and no trial is."""
    said = str(error)
    assert isinstance(error, KeyboardInterrupt) or ("No space left" in said and "trial-" not in said), said
    return True


def finish(plan: TuningPlan, out: Path) -> RunRecord:
    """Go on, unless all is done."""
    done = (out / "record.json").exists() and not working_files(out)
    return RunRecord.read(out) if done else tune_small(plan, out)


def test_a_seeded_tuning_that_was_stopped_ends_with_the_same_bits(
    tmp_path: Path, seeded_plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing(monkeypatch, 0, 1, 0)
    monkeypatch.setattr("privet.privacy.ledger.secrets.token_hex", lambda size: "0" * 2 * size)  # of each new ledger
    moments, chance = Moments(), random.Random(1)
    tune_small(seeded_plan, tmp_path / "whole", moments)
    whole, stops = RunRecord.read(tmp_path / "whole"), 0
    # Seeded: 0.41 of 78 records. One of ten classes is guessed on 0.1 of them.
    assert whole.tuning is not None and whole.tuning.best > 0.3
    for number in range(4):
        out = tmp_path / f"parts {number}"
        # The first stop hits a whole tuning. What is left is shorter, so that the later ones come earlier.
        for happens, most in ((ctrl_c, moments.count), (full_disk, moments.count // 3), (ctrl_c, moments.count // 4)):
            stops += stopped(seeded_plan, out, chance.randrange(most), happens)
        record = finish(seeded_plan, out)
        for name in ("ledger.jsonl", "model.safetensors"):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert (record.tuning, record.utility, record.how) == (whole.tuning, whole.utility, whole.how)
        assert {path.name for path in out.iterdir()} <= MAY_STAY
    assert stops > 4


def test_a_release_that_was_stopped_goes_on_with_its_number_and_pays_for_what_is_repeated(
    tmp_path: Path, secret_plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at random moments: the number that was drawn stays, no trial is lost, and nothing leaves the books."""
    used, made = Counter[Path](), Counter[tuple[Path, int]]()
    record_event, make_trial = Ledger.record, tuning._Tuning.trial

    def recorded(self: Ledger, event: Event, count: int = 1) -> None:
        """Count what trials do: a ledger of theirs can lose lines to that of the tuning."""
        record_event(self, event, count)
        if self.path is not None and WORKING in self.path.parts:
            used[self.path.parent.parent.parent] += sum(times for _, times in tally(event * count))

    def trial(self: Any, number: int) -> float:
        assert self.drawn.order == (0, 1, 0)
        found = float(make_trial(self, number))
        made[self.folder.path, number] += 1
        return found

    monkeypatch.setattr(Ledger, "record", recorded)
    monkeypatch.setattr(tuning._Tuning, "trial", trial)
    drawing(monkeypatch, 0, 1, 0)
    moments, chance = Moments(), random.Random(2)
    tune_small(secret_plan, tmp_path / "whole", moments)
    planned = sum(count for place in (0, 1, 0) for _, count in tally(secret_plan.events[place]))
    assert used[tmp_path / "whole"] == planned
    (chosen, _), *_ = tally(secret_plan.event)
    steps, repeated = {leaf for event in secret_plan.events for leaf, _ in tally(event)}, 0
    for number in range(6):
        out, heads = tmp_path / f"parts {number}", []
        for happens in (ctrl_c, full_disk, ctrl_c):
            stopped(secret_plan, out, chance.randrange(moments.count), happens)
            if (out / "ledger.jsonl").exists() and b"\n" in (out / "ledger.jsonl").read_bytes():
                heads.append(Ledger.open(out / "ledger.jsonl", read_only=True).head)
        ledger = finish(secret_plan, out).open_ledger(out)
        assert {place for folder, place in made if folder == out} == {0, 1, 2}
        assert not set(heads) - ledger.holds(heads)  # nothing was cut off
        held = counted(ledger)
        assert held.pop(chosen) == 1
        assert set(held) <= steps
        assert used[out] <= planned + sum(held.values())  # what was repeated is charged apart
        repeated += sum(held.values())
        assert {path.name for path in out.iterdir()} <= MAY_STAY
    assert repeated > 0


def test_a_trial_that_was_stopped_makes_all_of_its_steps(
    tmp_path: Path, secret_plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on from its checkpoint. The steps after it are lost, charged apart, and made again."""
    choices = {"learning_rate": ["0.5", "2"], "epochs": ["3"]}
    plan = plan_of(digits_task(), Trials(5.0), choices)
    drawing(monkeypatch, 1)
    ticks = [0]

    def stop() -> None:
        ticks[0] += 1
        if ticks[0] == 25:  # an epoch has ten steps, and a checkpoint at its end
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(plan, tmp_path / "a", on_tick=stop)
    record = tune(plan, tmp_path / "a", resume=True)
    ledger = record.open_ledger(tmp_path / "a")
    ((step, steps),) = tally(plan.events[1])
    assert record.how.steps == steps == 30
    held = counted(ledger)
    assert 1 <= held[step] <= 9  # those after the checkpoint, once more
    assert record.spent(ledger).epsilon > plan.spent().epsilon


@pytest.mark.slow
def test_a_tuning_that_was_killed_goes_on_and_nothing_leaves_the_books(tmp_path: Path) -> None:
    """SIGKILL at random moments, and in the last second."""
    program = [sys.executable, str(Path(__file__).with_name("killed_tuning.py")), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(each["kills"] for each in found) >= 6
    for each in found:
        assert each["charged"] == 1
        assert each["used"] <= each["planned"] + each["apart"], each
        assert each["lost"] == each["left over"] == []
        assert each["chosen"]
    assert any(each["apart"] for each in found)


def test_a_trial_whose_books_were_changed_stops_the_tuning_and_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a trial less than was drawn, the theorem does not hold."""
    plan = plan_of(digits_task(7), Trials(5.0, 1.0), {"learning_rate": ["0.5", "2"], "epochs": ["3"]})
    drawing(monkeypatch, 1, 0)
    ticks = [0]

    def stop() -> None:
        ticks[0] += 1
        if ticks[0] == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(plan, tmp_path / "a", on_tick=stop)
    (ledger,) = (tmp_path / "a" / WORKING).glob("trial-*/ledger.jsonl")
    whole = ledger.read_bytes()
    ledger.write_bytes(b"".join(whole.splitlines(keepends=True)[:-3]))
    for _ in range(2):
        with pytest.raises(LedgerError):
            tune(plan, tmp_path / "a", resume=True)
    ledger.write_bytes(whole)
    record = tune(plan, tmp_path / "a", resume=True)
    assert record.tuning is not None


def test_a_tuning_goes_on_with_its_own_settings_only(
    tmp_path: Path, secret_plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing(monkeypatch, 0, 1)
    assert stopped(secret_plan, tmp_path / "a", 60)
    with pytest.raises(InputError, match="holds a run already"):
        tune(secret_plan, tmp_path / "a")
    other = plan_of(digits_task(), Trials(6.0))
    with pytest.raises(InputError, match="was made with trials"):
        tune(other, tmp_path / "a", resume=True)
    tune(secret_plan, tmp_path / "a", resume=True)
    with pytest.raises(InputError, match="holds a run already"):
        tune(secret_plan, tmp_path / "a")


def test_two_processes_do_not_tune_in_one_folder(
    tmp_path: Path, secret_plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing(monkeypatch, 0)
    seen: list[str] = []

    def another() -> None:
        if not seen:
            with pytest.raises(PrivetError) as error:
                tune(secret_plan, tmp_path / "a", resume=True)
            seen.append(str(error.value))

    tune(secret_plan, tmp_path / "a", on_tick=another)
    assert "another process" in seen[0]


# --- against full composition -----------------------------------------------------------------------------------------


def test_trying_each_candidate_once_is_composed_and_nothing_is_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(digits_task(3), None)
    record = tune(plan, tmp_path / "a")
    ledger = record.open_ledger(tmp_path / "a")
    assert record.spent(ledger).accountant == "PLD"
    assert isinstance(ledger.guarantee, Proved)
    assert record.spent(ledger).epsilon <= EPSILON
    assert record.tuning is not None and record.tuning.trials == ""
    card = (tmp_path / "a" / "CARD.md").read_text()
    assert "Each of 2 candidates was tried once" in card
    assert "How long the tuning took" not in card


def test_random_trials_leave_each_more_budget_than_full_composition() -> None:
    choices = {"learning_rate": ["0.5", "1", "2", "4"], "clip": ["0.5", "1"], "epochs": ["0.5"]}
    once, secret = (plan_of(digits_task(), trials, choices) for trials in (None, Trials(8.0)))
    assert secret.epsilon > 1.2 * once.epsilon
    assert secret.spent().epsilon <= EPSILON and once.spent().epsilon <= EPSILON


def test_a_plain_run_has_no_tuning_in_its_record(tmp_path: Path) -> None:
    task = digits_task(1)
    record = run(method_for("dpsgd", task, {"epochs": 0.5}), task, tmp_path / "a")
    assert record.tuning is None
    assert "How it was chosen" not in (tmp_path / "a" / "CARD.md").read_text()
