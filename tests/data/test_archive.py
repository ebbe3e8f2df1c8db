import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from privet.data.files import is_archive, unpack
from privet.errors import InputError


def tar_with(path: Path, *members: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = 4 if member.isfile() else 0
            tar.addfile(member, io.BytesIO(b"data"))


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    tar_with(tmp_path / "a.tgz", tarfile.TarInfo(name))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr(zipfile.ZipInfo(name), "data")
    for archive in ("a.tgz", "a.zip"):
        with pytest.raises(InputError, match="points outside the archive: do not use it"):
            unpack(tmp_path / archive, tmp_path / "inner" / "most")
    assert not list(tmp_path.rglob("outside"))


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    link, device, file = tarfile.TarInfo("link"), tarfile.TarInfo("device"), tarfile.TarInfo("a/file")
    link.type, link.linkname, device.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE
    tar_with(tmp_path / "a.tgz", link, device, file)
    unpack(tmp_path / "a.tgz", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["file"]


def test_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("x/y", "data")
    assert is_archive(tmp_path / "a.zip")
    assert (unpack(tmp_path / "a.zip", tmp_path / "out") / "x" / "y").read_text() == "data"


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_flipped_bit_is_damage(tmp_path: Path, kind: str) -> None:
    content = np.random.default_rng(0).integers(0, 64, 1 << 21, dtype=np.uint8).tobytes()
    member = tarfile.TarInfo("file")
    member.size = len(content)
    with tarfile.open(tmp_path / "a", f"w:{kind}") as tar:
        tar.addfile(member, io.BytesIO(content))
    raw = bytearray((tmp_path / "a").read_bytes())
    raw[-2000:-1900] = b"x" * 100
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(InputError, match="is a damaged archive"):
        unpack(tmp_path / "a", tmp_path / "out")


def test_a_truncated_archive_is_damaged(tmp_path: Path) -> None:
    tar_with(tmp_path / "a.tgz", tarfile.TarInfo("file"))
    whole = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "b.tgz").write_bytes(whole[: len(whole) // 2])
    assert is_archive(tmp_path / "b.tgz")
    with pytest.raises(InputError, match=r"b\.tgz is a damaged archive"):
        unpack(tmp_path / "b.tgz", tmp_path / "out")
