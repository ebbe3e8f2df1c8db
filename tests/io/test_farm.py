"""A farm: results in order, errors as results, lost workers, orphans; seeded shadow models and audits the same in any farm."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from privet import audit
from privet.attacks import Fitting, membership
from privet.errors import InputError, PrivetError
from privet.io.farm import Farm, WorkerLostError, farm_in_use
from tests.runs.small_work import square


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"backend": "slurm"}, "local, dask or ray"),
        ({"address": "tcp://here:1"}, "choose the backend dask or ray"),
        ({"backend": "dask"}, "needs the address of its cluster"),
        ({"jobs": 0}, "at least one run at a time"),
    ],
)
def test_a_farm_that_cannot_be_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        Farm(**settings)


@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, backend, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"pip install 'privet\[{backend}\]'"):
        Farm(backend=backend, address="local")


def test_work_comes_back_in_order_and_what_a_lost_worker_had_is_submitted_again(tmp_path):
    """Three workers' worth of small work on two: one worker is killed, one piece raises."""
    found = dict(Farm(2).each(square, [(number, tmp_path) for number in range(5)]))
    error = found.pop(3)
    assert found == {0: 0, 1: 1, 2: 4, 4: 16} and (tmp_path / "1").exists()
    assert isinstance(error, ValueError) and str(error) == "three"


@pytest.mark.slow
def test_work_that_kills_every_worker_is_lost_and_the_rest_is_done(tmp_path):
    (tmp_path / "1").touch()
    found = dict(Farm(2).each(square, [(number, tmp_path, 2) for number in (0, 1, 2)]))
    assert (found[0], found[1]) == (0, 1)
    assert isinstance(found[2], WorkerLostError)
    assert str(found[2]) == "its worker was ended by the signal SIGKILL each time, 4 times"
    with pytest.raises(WorkerLostError):
        Farm(1).map(square, [(2, tmp_path, 2)])


def about_the_process(wanted: Path) -> tuple[bool, int, int]:
    import torch

    return Path.cwd() == wanted, torch.get_num_threads(), os.getpid()


class UnsendableError(PrivetError):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises_unsendable() -> None:
    raise UnsendableError(1, 2)


@pytest.mark.slow
def test_workers_have_one_thread_and_are_in_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    there, threads, process = Farm(1).map(about_the_process, [(tmp_path,)])[0]
    assert there and threads == 1 and process != os.getpid()
    with pytest.raises(PrivetError, match="1 and 2"):
        Farm(1).map(raises_unsendable, [()])


LONG = """
import sys, time
from pathlib import Path
from privet.io.farm import Farm

def long(folder):
    import os
    (Path(folder) / "pid").write_text(str(os.getpid()))
    time.sleep(60)

if __name__ == "__main__":
    Farm(1).map(long, [(sys.argv[1],)])
"""


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path):
    (tmp_path / "long.py").write_text(LONG)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    main = subprocess.Popen([sys.executable, str(tmp_path / "long.py"), str(tmp_path)], env=environment)
    end = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.1)
    main.kill()
    main.wait()
    worker = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 20
    while _alive(worker):
        assert time.monotonic() < end, "the worker outlived the process that started it"
        time.sleep(0.1)


def _alive(process: int) -> bool:
    try:
        os.kill(process, signal.SIG_DFL)
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split(")")[1][:3]
    except OSError:
        return False


def test_a_farm_is_in_use_inside_only():
    assert farm_in_use() is None
    with Farm(3).in_use():
        assert farm_in_use() == Farm(3)
    assert farm_in_use() is None


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def records(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def mean_trainer(data, generator):
    x, _ = data
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.randn(2, 3, generator=generator) + x.mean(0))
        model.bias.copy_(torch.randn(2, generator=generator))
    return model


@pytest.mark.slow
def test_seeded_shadow_models_and_audits_do_not_depend_on_the_number_of_jobs():
    members, others, population = (records(24, seed) for seed in range(3))
    model = Fitting(build, epochs=4)(members, torch.Generator().manual_seed(0))
    canaries = audit.mislabelled(*others, 4, 2, torch.Generator().manual_seed(0))

    def made() -> list[object]:
        fitted = {"train": Fitting(build, epochs=2, batch_size=8), "seed": 5}
        found: list[object] = [
            membership(model, members, others, attack="rmia", shadows=4, population=population, **fitted).auc,
            membership(model, members, others, attack="lira", shadows=4, train=mean_trainer, seed=5).auc,
        ]
        bound = audit.trainer(mean_trainer, members, canaries, claimed=1.0, delta=0.1, runs=40)
        return [*found, bound.lower_bound, bound.evidence]

    alone = made()[2:]
    with Farm(1).in_use():
        one = made()
    with Farm(2).in_use():
        two = made()
    assert one == two
    assert one[2:] == alone  # many trainings of an audit have seeds of their own, with and without a farm
