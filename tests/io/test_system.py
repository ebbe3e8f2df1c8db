"""Files are written whole, locks have one holder, and freed memory is kept for the next step where the C library can."""

import errno
import os
import platform
import subprocess
import sys

import pytest

from privet.io import Busy, Lock, write_whole

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


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file"
    assert write_whole(path, b"old", mode=0o640) == path
    assert path.read_bytes() == b"old"
    assert path.stat().st_mode & 0o777 == 0o640

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_a_lock_has_one_holder_and_leaves_an_empty_file(tmp_path):
    lock = Lock(tmp_path / "lock")
    with pytest.raises(Busy, match="held by another process"):
        Lock(tmp_path / "lock")
    lock.release()
    Lock(tmp_path / "lock").release()
    assert (tmp_path / "lock").read_bytes() == b""
    with pytest.raises(FileNotFoundError):
        Lock(tmp_path / "missing" / "lock")
