"""One, two and four processes train the same model: same records, noise and books; and what goes wrong ends all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import privet
from privet.clipping import BoundedSum
from privet.distributed import Segment, Team, fingerprint
from privet.errors import InputError, PrivetError
from privet.noise import GaussianNoise
from privet.privacy import Gaussian, Ledger
from privet.randomness import SecureSource
from privet.training.drawing import Records
from tests.distributed.processes import EQUAL, PLANTED, REFUSED
from tests.training.conftest import KNOWN, data, make, network, run

Team_ = list[dict[str, Any]]


# --- quick: one process ----------------------------------------------------------------------------------------------


def test_a_process_group_after_make_private_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, private = make()
    monkeypatch.setattr("privet.distributed._world", lambda: 2)
    with pytest.raises(PrivetError, match="after make_private"):
        run(model, optimizer, private)
    assert len(private.ledger) == 0


def test_processes_without_a_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would train and release a model of its own, and pay for one."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"2 processes.*init_process_group"):
        make()


def test_a_shared_key_draws_the_same_numbers() -> None:
    one, other = SecureSource(b"k" * 32), SecureSource(b"k" * 32)
    assert torch.equal(one.coins(1000, 0.3), other.coins(1000, 0.3))
    assert torch.equal(one.normal(1000), other.normal(1000))
    assert not torch.equal(SecureSource().normal(10), SecureSource().normal(10))
    with pytest.raises(ValueError, match="32 bytes"):
        SecureSource(b"short")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_drawn_record_is_in_exactly_one_share(size: int) -> None:
    drawn = [torch.arange(7).unsqueeze(1), torch.arange(10, 20).view(5, 2), torch.empty(0, 3, dtype=torch.int64)]
    shares = []
    for rank in range(size):
        team = Team()
        team.rank, team.size = rank, size
        shares.append(Records(data(), team=team)._share(drawn))
    found = sorted(int(place) for share in shares for rows in share for place in rows.flatten())
    assert found == sorted([*range(7), *range(10, 20)])
    counts = [sum(len(rows) for rows in share) for share in shares]
    assert max(counts) - min(counts) <= 1


def test_a_share_without_records_is_one_empty_batch() -> None:
    team = Team()
    team.rank, team.size = 3, 4
    (rows,) = Records(data(), team=team)._share([torch.arange(2).unsqueeze(1)])
    assert rows.shape == (0, 1)


def test_a_fingerprint_sees_every_bit() -> None:
    parameters = [
        torch.randn(3, 4),
        torch.randn(5).bfloat16(),
        torch.arange(6),
        torch.tensor(0.5).double(),
        torch.empty(0),
    ]
    whole = fingerprint(parameters)
    for place in range(4):
        changed = [each.clone() for each in parameters]
        words = changed[place].reshape(-1).view(torch.uint8)
        words[0] ^= 1
        assert fingerprint(changed) != whole
    assert fingerprint([parameters[1], parameters[0], *parameters[2:]]) != whole


def test_a_ledger_takes_over_what_another_one_holds() -> None:
    lead, other = Ledger(), Ledger()
    for multiplier in (1.0, 1.0, 2.0, 1.0):
        lead.record(Gaussian(multiplier))
    other.record(Gaussian(1.0))
    lead.condition("the number of records is public")
    for _ in range(2):  # the second time, there is nothing to take over
        other.take_over(list(lead), lead.conditions)
        assert list(other) == list(lead) and other.conditions == lead.conditions


@pytest.mark.parametrize("cuts", [(0, 4, 7), (0, 0, 7), (0, 40_000, 70_000, 100_001)])
def test_shards_draw_the_noise_of_the_whole(cuts: tuple[int, ...]) -> None:
    size = cuts[-1]
    whole = SecureSource(b"k" * 32)
    expected = torch.cat([whole.normal(size), whole.normal(5)])
    sources = [SecureSource(b"k" * 32) for _ in cuts[1:]]
    parts = [source.normal(size, *cut) for source, cut in zip(sources, pairwise(cuts), strict=True)]
    assert torch.equal(torch.cat([*parts, sources[0].normal(5)]), expected)
    assert all(torch.equal(source.normal(9), other.normal(9)) for source, other in pairwise(sources[1:]))


@pytest.mark.parametrize("seeded", [True, False])
def test_the_noise_of_pieces_is_that_of_the_whole_sum(seeded: bool) -> None:
    tensors = {"a": torch.randn(300, 300).double(), "b": torch.randn(7).double(), "count": torch.tensor(0.5).double()}
    scales = {"a": 2.0, "b": torch.rand(7).double() + 0.5, "count": 1.0}
    whole = BoundedSum(tensors, 1.0, scales, 1, dtypes={"b": torch.float32, "a": torch.float32})

    def noisy(bounded: BoundedSum) -> dict[str, torch.Tensor]:
        source = torch.Generator().manual_seed(0) if seeded else SecureSource(b"k" * 32)
        return GaussianNoise(1.5).add(bounded, source)

    found: dict[str, list[torch.Tensor]] = {name: [] for name in tensors}
    for rows_a, rows_b, count in (((0, 150), (0, 4), (0, 1)), ((150, 300), (4, 7), (0, 0))):
        pieces = {
            "a": Segment(300 * rows_a[0], 300 * rows_a[1], 90_000),
            "b": Segment(*rows_b, 7),
            "count": Segment(*count, 1),
        }
        own = whole.divided({name: pieces[name].of(tensor) for name, tensor in tensors.items()}, pieces)
        for name, tensor in noisy(own).items():
            found[name].append(tensor.reshape(-1))
    for name, tensor in noisy(whole).items():
        assert torch.equal(torch.cat(found[name]), tensor.reshape(-1)), name


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Team_]:
    """What every process of a team of 1, 2 and 4 has found."""
    folder = tmp_path_factory.mktemp("teams")
    program = Path(__file__).with_name("processes.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PRIVET_STATE": str(folder / "state")}
    done = subprocess.run(
        [sys.executable, program, folder], capture_output=True, text=True, check=False, timeout=900, env=environment
    )
    assert done.returncode == 0, done.stderr
    return {
        size: [torch.load(folder / f"{size}-{rank}.pt", weights_only=False) for rank in range(size)]
        for size in (1, 2, 4)
    }


def difference(one: dict[str, Any], team: list[dict[str, Any]]) -> str:
    """The first way in which a team's training is not that of one process; empty if there is none."""
    if says := next((each["says"] for each in team if "says" in each), ""):
        return says
    for step, drawn in one["drawn"].items():
        if sorted(place for each in team for place in each["drawn"][step]) != sorted(drawn):
            return f"other records in step {step}"
    if sum(each["bad"] for each in team) != one["bad"]:
        return "another number of records that are not finite"
    for each in team:
        if not torch.equal(each["parameters"], team[0]["parameters"]):
            return "the processes end with different models"
        if (each["events"], each["epsilon"], each["state"][:12]) != (one["events"], one["epsilon"], one["state"][:12]):
            return "other books, or another state of the clipping"
        if not torch.allclose(each["parameters"], one["parameters"], atol=1e-5, rtol=1e-5):
            return "other parameters"
    return ""


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_processes(teams: dict[int, Team_]) -> None:
    for name in (*EQUAL, "left and entered again"):
        for size in (2, 4):
            assert not difference(teams[1][0][name], [each[name] for each in teams[size]]), (name, size)
    # Some shares were empty: the case tests what it says.
    drawn = [each["empty shares"]["drawn"] for each in teams[4]]
    assert any(not each[step] for each in drawn for step in each)
    assert any(any(each[step] for each in drawn) and not all(each[step] for each in drawn) for step in drawn[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(teams: dict[int, Team_], name: str) -> None:
    case = next((key for key, case in EQUAL.items() if case is PLANTED[name][1]), "plain")
    assert difference(teams[1][0][case], [each[f"planted {name}"] for each in teams[2]])


SENTENCES = {
    "settings": ("InputError", "another plan"),
    "seeds": ("InputError", "another seed"),
    "model": ("InputError", "another value of '0.weight'"),
    "records": ("InputError", "another data"),
    "diverged": ("PrivetError", "process 1 has other parameters"),
    "ledger": ("PrivetError", "The disk is full."),
    "clipping": ("PrivetError", "Process 1 does not like this batch."),
    "wrapped later": ("PrivetError", "wrap it first"),
    "unused parameters": ("InputError", "find_unused_parameters"),
    "ledger in shards": ("PrivetError", "The disk is full."),
    "diverged in shards": ("PrivetError", "process 1 has other parameters"),
    "low precision": ("InputError", "reduce_dtype=torch.bfloat16: sums are added up in float64"),
    "low parameters": ("InputError", "param_dtype=torch.bfloat16"),
    "columns": ("InputError", "must shard the first dimension"),
    "tensor parallel": ("InputError", "by something else than fully_shard"),
    "ellipse in shards": ("InputError", "MovingEllipticalClipping"),
    "noise in shards": ("InputError", "ShapedNoise"),
    "budget": ("BudgetExhausted", "would exceed the budget"),
}


@pytest.mark.slow
def test_an_error_ends_all_processes_with_the_same_sentence(teams: dict[int, Team_]) -> None:
    assert set(SENTENCES) | {"body", "leaving"} == set(REFUSED)
    for name, (kind, words) in SENTENCES.items():
        found = [each[f"refused {name}"] for each in teams[2]]
        assert all(each["kind"] == kind and words in each["says"] for each in found), (name, found)
        assert found[0]["says"] == found[1]["says"]
    for name in ("refused ledger", "refused ledger in shards"):
        assert all(each[name]["unchanged"] for each in teams[2]), "nothing was used before it was on the books"
    assert not all(each["applied too early"]["unchanged"] for each in teams[2]), "the check above can fail"


@pytest.mark.slow
def test_a_process_that_leaves_the_loop_is_not_waited_for(teams: dict[int, Team_]) -> None:
    waiting, leaving = (each["refused body"] for each in teams[2])
    assert leaving["kind"] == "ValueError" and "process 1 is at the end of a loop" in waiting["says"]
    assert "process 1 is at the end of a loop" in teams[2][0]["refused leaving"]["says"]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(teams: dict[int, Team_]) -> None:
    """Two processes stopped it after step 3, before its checkpoint; four went on from step 2, and paid for step 3 again."""
    stopped, resumed = teams[2][1]["stopped"], teams[4][3]["resumed"]
    assert stopped["events"] == 3 and resumed["events"] == 6
    for each in teams[4]:
        torch.testing.assert_close(
            each["resumed"]["parameters"], teams[1][0]["plain"]["parameters"], atol=1e-5, rtol=1e-5
        )


@pytest.mark.slow
def test_a_run_in_shards_goes_on_with_another_number_of_processes(teams: dict[int, Team_]) -> None:
    """Parameters, the optimizer's moments and the average were in two shards, and are in four."""
    one = teams[1][0]["whole"]["parameters"]
    for each in teams[4]:
        torch.testing.assert_close(each["resumed in shards"]["parameters"], one, atol=1e-5, rtol=1e-5)
        assert each["resumed in shards"]["events"] == 6
        assert [tuple(t.shape) for t in each["weights"].values()] == [(8,), (8, 5), (2,), (2, 8)]


@pytest.mark.slow
def test_a_model_in_shards_is_an_ordinary_one_between_steps_and_afterward(teams: dict[int, Team_]) -> None:
    one = teams[1][0]["used"]
    for each in (*teams[2], *teams[4]):
        assert each["used"]["ordinary"]
        torch.testing.assert_close(each["used"]["seen"], one["seen"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(each["used"]["seen"][-1], each["used"]["plain"], atol=1e-6, rtol=1e-6)


@pytest.mark.slow
def test_every_process_runs_the_same_script_to_the_report(teams: dict[int, Team_]) -> None:
    assert {each["report"] for team in teams.values() for each in team} == {"report.html"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "shards"])
def test_torchrun_starts_a_dead_run_again(tmp_path: Path, kind: str) -> None:
    """Process 1 is killed in the first attempt, and process 0 in the second, between the ledger and the release."""
    program = Path(__file__).with_name("restarted.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    # Without this, torch 2.13 keeps the addresses of the dead processes, and the new ones may try to reach them.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    done = subprocess.run(
        [sys.executable, *command, program, tmp_path, kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    attempts = sorted((tmp_path / "notes").glob("0-*"))
    assert len(attempts) == 3, "each attempt has left a note"
    with Ledger.open(tmp_path / "run" / "ledger.jsonl", read_only=True) as ledger:
        # 8 steps; in the first attempt, step 6 was never recorded and 5 was done again; in the second, step 7 was recorded only.
        assert len(ledger) == 8 + 1 + 1
    steps = [list(map(int, path.read_text().split())) for path in attempts]
    assert steps == [[0, 1, 2, 3, 4, 5], [4, 5, 6], [6, 7]]


def test_data_parallel_is_refused() -> None:
    model = nn.DataParallel(network())
    with pytest.raises(InputError, match=r"DataParallel.*model\.module"):
        privet.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data(), **KNOWN)
