"""One file over HTTP: resumed where it stopped, never mistaken for whole before it is."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ATTEMPTS = 3
CHUNK = 1 << 16
TIMEOUT_SECONDS = 20

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, the bytes done so far and the bytes in all (None where nobody knows)."""


class UnavailableError(Exception):
    """A source cannot give the data set; the text says why. The next source is tried."""


def silent(what: str, done: int, total: int | None) -> None:
    """The progress callback that shows nothing."""


def download(url: str, part: Path, progress: Progress = silent) -> None:
    """Fetch ``url`` into ``part``, going on from the bytes that ``part`` already holds.

    Returns only when the server's announced length has arrived; the caller still has to verify the content.
    A broken connection is tried again; what arrived stays in ``part`` for the next run. Raises UnavailableError with
    what happened; the caller adds to whom.
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
                    return  # all of it had arrived before
                # The bytes that we hold are not a beginning of this file: start over.
                part.unlink(missing_ok=True)
                trouble = "the server refused to resume"
                continue
            raise UnavailableError(f"answered {error.code} {error.reason}") from None
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            trouble = str(getattr(reason, "strerror", None) or reason) or type(error).__name__
            if isinstance(error, urllib.error.URLError):
                break  # nobody answered: asking again at once will not help
    raise UnavailableError(f"could not be fetched ({trouble})")


def _attempt(url: str, part: Path, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "privet", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        if have and not _continues(response, have):
            have = 0  # the server sends the whole file again
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with part.open("ab" if have else "wb", buffering=0) as file:  # what a kill leaves can be gone on from
            done = have
            progress(url, done, total)
            while chunk := response.read1(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(url, done, total)
    if total is not None and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
