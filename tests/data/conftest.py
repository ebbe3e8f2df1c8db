"""A tiny catalogue entry, a web server on the loopback, and programs that stand for npm and apt-get."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from privet.data.catalogue import CatalogEntry
from privet.data.files import sha256
from privet.data.idx import write_idx
from privet.data.sources import DataSource, StoredFile

# Files and a busy machine make single examples slow; that is no failure.
settings.register_profile("files", deadline=None)
settings.load_profile("files")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test ever touches the user's cache, or the network: there are no programs to fetch with."""
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


@dataclass
class Tiny:
    """A data set of 40 records in two IDX files, and the entry that describes it."""

    folder: Path
    files: tuple[StoredFile, ...]

    def entry(self, *sources: DataSource) -> CatalogEntry:
        return CatalogEntry(
            name="tiny",
            title="for tests",
            records={"train": 40},
            shape=(1, 6, 5),
            classes=("a", "b", "c"),
            homepage="https://example.org/tiny",
            splits={"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")},
            files=self.files,
            sources=sources,
        )


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    folder = tmp_path / "tiny"
    folder.mkdir()
    values = np.random.default_rng(0)
    write_idx(folder / "train-images-idx3-ubyte", values.integers(0, 256, (40, 6, 5), dtype=np.uint8))
    write_idx(folder / "train-labels-idx1-ubyte", values.integers(0, 3, 40, dtype=np.uint8))
    return Tiny(folder, tuple(StoredFile(path.name, sha256(path)) for path in sorted(folder.iterdir())))


@dataclass
class Server:
    """Serves ``files`` and does wrong what a test asks it to do wrong."""

    base: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: list[str | None] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)  # bytes of the body after which the connection drops, in turn
    knows_ranges: bool = True
    says_length: bool = True
    seconds_per_chunk: float = 0.0


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.ranges.append(self.headers.get("Range"))
            body = state.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404, "Not Found")
                return
            wanted = self.headers.get("Range")
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.knows_ranges else 0
            if start and start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            rest = body[start:]
            if state.says_length:
                self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            rest = rest[: state.cut_after.pop(0)] if state.cut_after else rest
            try:
                for at in range(0, len(rest), 100):
                    self.wfile.write(rest[at : at + 100])
                    time.sleep(state.seconds_per_chunk)
            except ConnectionError:
                pass  # the other side was killed: what the test is about

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.base = f"http://127.0.0.1:{listener.server_port}/"
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    yield state
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """``program(name, script)`` puts a shell script on the PATH, which holds nothing else."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder with its content, to see that nothing was written."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(name="tree")
def tree_fixture() -> Callable[[Path], dict[str, bytes | None]]:
    return tree
