"""Which records a run used, in a form that may be published.

A plain checksum of private records lets whoever knows all of them but one try out guesses for the last, and no epsilon
covers that. So the checksum of records that are not public is keyed, and the key stays with whoever holds the records.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

KEY_FILE = "data.key"


def mark_of(fingerprint: str, folder: Path, *, public: bool) -> str:
    """The fingerprint itself of public records; of others, its HMAC under a new key that is written to the folder."""
    if public:
        return fingerprint
    key = secrets.token_bytes(32)
    handle = os.open(folder / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(key.hex() + "\n")
    return _keyed(key, fingerprint)


def fits(mark: str, fingerprint: str, folder: Path) -> bool:
    """Whether a mark is that of these records. Where the folder came without its key, that cannot be told: False."""
    if hmac.compare_digest(mark, fingerprint):
        return True
    path = folder / KEY_FILE
    if not path.exists():
        return False
    return hmac.compare_digest(mark, _keyed(bytes.fromhex(path.read_text(encoding="ascii").strip()), fingerprint))


def _keyed(key: bytes, fingerprint: str) -> str:
    return hmac.new(key, fingerprint.encode("ascii"), hashlib.sha256).hexdigest()
