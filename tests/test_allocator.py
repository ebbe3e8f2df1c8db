"""Freed memory is kept for the next step, where the C library can."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
import privet

if sys.argv[1] == "kept":
    assert privet.keep_freed_memory()


def step():
    torch.ones(2**24)  # 64 MiB: above the size from which glibc never keeps a block


for _ in range(10):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other settings")
def test_a_step_finds_the_memory_that_the_last_one_freed():
    assert 10 * page_faults("kept") < page_faults("as it comes")


def test_it_says_whether_the_library_can(monkeypatch):
    import privet

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert privet.keep_freed_memory() is False
