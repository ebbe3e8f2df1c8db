"""accelerate on two processes trains the model that one process trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")

PROGRAM = Path(__file__).with_name("accelerated.py")


@pytest.mark.slow
def test_accelerate_on_two_processes(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for options in ([], started):
        done = subprocess.run(
            [sys.executable, *options, PROGRAM, tmp_path],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
    (one,), two = ([torch.load(path) for path in sorted(tmp_path.glob(f"{size}-*.pt"))] for size in (1, 2))
    assert len(two) == 2
    for each in two:
        assert each["kind"] == "DistributedDataParallel" and each["events"] == one["events"] == 6
        assert "the expected size of the whole batch" in each["said"]
        torch.testing.assert_close(each["parameters"], one["parameters"], atol=1e-5, rtol=1e-5)
        assert torch.equal(each["parameters"], two[0]["parameters"])
