"""The mark of the records that a run used."""

from __future__ import annotations

from pathlib import Path

from privet.report.others import KEY_FILE, fits, mark_of

PRINT, OTHER = "ab" * 32, "cd" * 32


def test_public_records_are_named_by_their_checksum(tmp_path: Path) -> None:
    assert mark_of(PRINT, tmp_path, public=True) == PRINT
    assert fits(PRINT, PRINT, tmp_path) and not fits(PRINT, OTHER, tmp_path)
    assert not list(tmp_path.iterdir())


def test_private_records_cannot_be_guessed_from_what_is_published(tmp_path: Path) -> None:
    mark = mark_of(PRINT, tmp_path, public=False)
    assert len(mark) == 64 and mark != PRINT
    assert fits(mark, PRINT, tmp_path) and not fits(mark, OTHER, tmp_path)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0
    assert mark_of(PRINT, tmp_path, public=False) != mark
    (tmp_path / KEY_FILE).unlink()
    assert not fits(mark, PRINT, tmp_path)
