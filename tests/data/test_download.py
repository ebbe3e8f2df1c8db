from pathlib import Path
from typing import Any

import pytest

from privet.data.sources import UnavailableError, download

BODY = bytes(range(256)) * 8


@pytest.fixture(autouse=True)
def body(server: Any) -> None:
    server.files["file"] = BODY


def test_whole_and_with_progress(server: Any, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    download(server.base + "file", tmp_path / "new" / "a.part", lambda *state: seen.append(state))
    assert (tmp_path / "new" / "a.part").read_bytes() == BODY
    assert seen[0] == (server.base + "file", 0, len(BODY))
    assert seen[-1] == (server.base + "file", len(BODY), len(BODY))


def test_goes_on_where_it_stopped(server: Any, tmp_path: Path) -> None:
    part = tmp_path / "a.part"
    part.write_bytes(BODY[:700])
    seen: list[int] = []
    download(server.base + "file", part, lambda _what, done, _total: seen.append(done))
    assert part.read_bytes() == BODY
    assert server.ranges == ["bytes=700-"]
    assert seen[0] == 700


def test_a_dropped_connection_is_taken_up_again(server: Any, tmp_path: Path) -> None:
    server.cut_after = [500, 300]
    download(server.base + "file", tmp_path / "a.part")
    assert (tmp_path / "a.part").read_bytes() == BODY
    assert server.ranges == [None, "bytes=500-", "bytes=800-"]


def test_gives_up_after_three_and_keeps_what_arrived(server: Any, tmp_path: Path) -> None:
    server.cut_after = [500, 300, 0]
    with pytest.raises(UnavailableError, match="could not be fetched"):
        download(server.base + "file", tmp_path / "a.part")
    assert (tmp_path / "a.part").read_bytes() == BODY[:800]


def test_a_server_without_ranges_sends_it_all_again(server: Any, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / "a.part").write_bytes(b"wrong" * 10)
    download(server.base + "file", tmp_path / "a.part")
    assert (tmp_path / "a.part").read_bytes() == BODY


def test_a_part_longer_than_the_file_is_dropped(server: Any, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(BODY + b"more")
    download(server.base + "file", tmp_path / "a.part")
    assert (tmp_path / "a.part").read_bytes() == BODY
    assert server.ranges == [f"bytes={len(BODY) + 4}-", None]


def test_a_whole_part_is_not_fetched_again(server: Any, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(BODY)
    download(server.base + "file", tmp_path / "a.part")
    assert server.ranges == [f"bytes={len(BODY)}-"]
    assert (tmp_path / "a.part").read_bytes() == BODY


def test_without_a_length_the_total_is_unknown(server: Any, tmp_path: Path) -> None:
    server.says_length = False
    totals: set[int | None] = set()
    download(server.base + "file", tmp_path / "a.part", lambda _what, _done, total: totals.add(total))
    assert totals == {None}
    assert (tmp_path / "a.part").read_bytes() == BODY


def test_names_the_answer(server: Any, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"^answered 404 Not Found$"):
        download(server.base + "nothing", tmp_path / "a.part")
    assert not (tmp_path / "a.part").exists()


def test_names_a_host_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"could not be fetched .*refused"):
        download("http://127.0.0.1:1/file", tmp_path / "a.part")
