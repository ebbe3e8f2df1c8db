import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from privet.data import files, get, images, load
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


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "UNPACKED_LIMIT", 1 << 20)
    monkeypatch.setattr(files, "FILES_LIMIT", 20)


ZEROS = bytes(3 << 20)
LIMIT = "unpacks to more than 1 MiB, the limit for a compressed file: if you trust it, unpack it by hand and name the folder"


def bomb(path: Path, kind: str, parts: int = 1) -> Path:
    """An archive of a few kilobytes that unpacks to 3 MiB, in one file or several."""
    content = ZEROS[: len(ZEROS) // parts]
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for part in range(parts):
                zipped.writestr(f"x{part}", content)
        return path
    with tarfile.open(path, f"w:{kind}") as tar:
        for part in range(parts):
            member = tarfile.TarInfo(f"x{part}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("parts", [1, 6])
@pytest.mark.parametrize("kind", ["zip", "gz", "bz2", "xz", ""])
def test_a_bomb_is_refused_with_the_limit(tmp_path: Path, small_limit: None, kind: str, parts: int) -> None:
    archive = bomb(tmp_path / "a", kind, parts)
    assert is_archive(archive)
    with pytest.raises(InputError, match=LIMIT):
        unpack(archive, tmp_path / "out")
    written = sum(file.stat().st_size for file in (tmp_path / "out").rglob("*"))
    assert written <= (2 << 20), "more was written than the limit and one piece"


def test_the_claimed_size_of_a_zip_is_not_believed(tmp_path: Path, small_limit: None) -> None:
    raw = bytearray(bomb(tmp_path / "a.zip", "zip").read_bytes())
    for place in (i for i in range(len(raw) - 4) if raw[i : i + 4] == len(ZEROS).to_bytes(4, "little")):
        raw[place : place + 4] = (10).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(raw)
    with pytest.raises(InputError, match=r"damaged archive|the limit"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
    assert sum(file.stat().st_size for file in (tmp_path / "out").rglob("*")) <= (1 << 20)


@pytest.mark.parametrize("kind", ["zip", "gz"])
def test_too_many_files_are_refused_with_the_limit(tmp_path: Path, small_limit: None, kind: str) -> None:
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "a", "w") as zipped:
            for number in range(21):
                zipped.writestr(str(number), "")
    else:
        tar_with(tmp_path / "a", *(tarfile.TarInfo(str(number)) for number in range(21)))
    with pytest.raises(InputError, match="contains more than 20 files, the limit for an archive"):
        unpack(tmp_path / "a", tmp_path / "out")


def test_a_sparse_file_of_a_tar_is_limited(tmp_path: Path, small_limit: None) -> None:
    member = tarfile.TarInfo("sparse")
    member.size = 512
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    member.pax_headers["GNU.sparse.name"] = "sparse"
    with tarfile.open(tmp_path / "a", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(b"1\n0\n512\n".ljust(512, b"\0")))
    with pytest.raises(InputError, match=r"the limit|damaged"):
        unpack(tmp_path / "a", tmp_path / "out")


def test_a_huge_header_of_a_tar_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_READ", 1 << 20)
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 8 << 20
    raw = header.tobuf(tarfile.USTAR_FORMAT) + bytes(8 << 20)
    (tmp_path / "a.tgz").write_bytes(gzip.compress(raw))
    assert is_archive(tmp_path / "a.tgz")
    with pytest.raises(InputError, match="a header is too large"):
        unpack(tmp_path / "a.tgz", tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x" * 300], "a file whose name is too long or has a NUL"),
        (["a", "a/b"], "a file and a folder of the same name"),
        (["a/b", "a"], "a file and a folder of the same name"),
        (["/".join(["d" * 100] * 20)], "a file whose name is too long or has a NUL"),
        (["C:\\x", ".."], "points outside the archive"),
    ],
)
def test_odd_names(tmp_path: Path, names: list[str], message: str) -> None:
    tar_with(tmp_path / "a.tgz", *(tarfile.TarInfo(name) for name in names))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for name in names:
            zipped.writestr(zipfile.ZipInfo(name), "data")
    for number, archive in enumerate(("a.tgz", "a.zip")):
        with pytest.raises(InputError, match=message):
            unpack(tmp_path / archive, tmp_path / str(number))


def test_a_gzip_bomb_as_idx_and_in_a_source(tmp_path: Path, small_limit: None) -> None:
    header = struct.pack(">HBB3I", 0, 8, 3, 3 << 10, 32, 32)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + ZEROS))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, 1) + b"\0"))
    with pytest.raises(InputError, match=LIMIT):
        load(f"idx:{tmp_path}")
    with pytest.raises(InputError, match=LIMIT):
        get("mnist", from_=tmp_path, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_mat_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "UNPACKED_LIMIT", 1 << 20)
    savemat(tmp_path / "a.mat", {"X": np.zeros((32, 32, 3, 1000), np.uint8), "y": np.ones(1000)}, do_compression=True)
    assert (tmp_path / "a.mat").stat().st_size < 20_000
    with pytest.raises(InputError, match="the limit for a compressed file"):
        load(f"svhn:{tmp_path}/a.mat")


def test_a_bomb_given_to_a_data_set_leaves_nothing(tmp_path: Path, small_limit: None) -> None:
    for kind in ("zip", "gz"):
        with pytest.raises(InputError, match=LIMIT):
            get("mnist", from_=bomb(tmp_path / kind, kind), cache=tmp_path / "cache")
        assert not (tmp_path / "cache").exists()
