"""Signatures of a privacy card: appended to a file beside it, each with the whole card that was signed.

A signature is made with an Ed25519 key in a PEM file (the package cryptography) or with an SSH key (the program ssh-keygen).
Without a key the name is only typed, and it is called that wherever it is shown.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from privet.errors import InputError, PrivetError
from privet.io import MisfitError, build, from_json, read_text, write_whole
from privet.io.chained import BrokenChain, NotAnEntry, chained, entry_of, line_of

SIGNATURES = "signatures.jsonl"
TYPED = "a typed name, not a signature"
DECISIONS = ("approved", "rejected")
NAMESPACE = "privet"
"""The namespace of SSH signatures: a signature that was made for something else does not count."""
_PURPOSE = "signature of a privacy card"
_MOST, _LONGEST = 1000, 32 << 20
_TEXT = 500
"""The most characters of a name, a role or a note."""


@dataclass(frozen=True)
class Signer:
    """Who signs, and what they say about the release; dates in ISO format."""

    name: str
    role: str
    date: str
    decision: str = ""
    expires: str = ""
    note: str = ""

    def expired(self, today: dt.date) -> bool:
        return bool(self.expires) and dt.date.fromisoformat(self.expires) < today


@dataclass(frozen=True)
class _Content:
    """What a signature is made of: the signed text, as plain data."""

    purpose: str
    after: str
    signer: Signer
    card: dict[str, Any]


@dataclass(frozen=True)
class _Entry:
    """One line of the file: the exact text that was signed, and its signature."""

    kind: str
    key: str
    text: str
    signature: str


@dataclass(frozen=True)
class Signature:
    """One entry of the file of signatures. Reading it checks its form; `privet.report.verify` checks the signature itself."""

    kind: str
    """ed25519, ssh, or typed."""
    key: str
    """The public key in the form of OpenSSH; empty for a typed name."""
    text: str
    signature: str
    content: _Content

    @property
    def signer(self) -> Signer:
        return self.content.signer

    @property
    def card(self) -> dict[str, Any]:
        """The card as it was signed."""
        return self.content.card

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.key) if self.key else ""

    @property
    def identity(self) -> tuple[str, ...]:
        """Whose signature it is: that of a key, or of somebody who typed a name."""
        return ("key", self.fingerprint) if self.key else ("typed", self.signer.name, self.signer.role)

    @property
    def how(self) -> str:
        """How it was signed, in words that claim no more than is known without checking it."""
        if not self.key:
            return TYPED
        named = "Ed25519" if self.kind == "ed25519" else "SSH"
        return f"signed with the {named} key {self.fingerprint}; privet verify checks it"


def canonical(card: Any) -> str:
    """The canonical form of plain data: JSON with sorted keys, without spaces, numbers as in `card.json`."""
    return json.dumps(card, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def read_signatures(folder: Path) -> tuple[Signature, ...]:
    """The signatures of a run, in order; raises if the file is damaged, or if a line was removed from its middle or edited."""
    return _read(folder)[0]


def _read(folder: Path) -> tuple[tuple[Signature, ...], str, bytes]:
    """The signatures, the running hash after them, and the bytes of the file."""
    path = folder / SIGNATURES
    if not path.exists():
        return (), "", b""
    raw, found, head = read_text(path, _LONGEST).encode(), [], ""
    lines = raw.splitlines(keepends=True)
    if len(lines) > _MOST:
        raise PrivetError(f"{path} has more than {_MOST:,} lines: it is no file of signatures that Privet wrote.")
    for number, line in enumerate(lines, 1):
        try:
            entry, after = entry_of(line, head)
            made = build(_Entry, entry, "the line")
            content = build(_Content, from_json(made.text), "the signed text")
            _check(made, content, head)
        except (NotAnEntry, MisfitError, json.JSONDecodeError) as error:
            why = f": {error}" if isinstance(error, MisfitError) else ""
            raise PrivetError(f"{path}, line {number}: this is no signature{why}.") from None
        except BrokenChain:
            raise PrivetError(f"{path} was edited: the running hash breaks at line {number}.") from None
        found.append(Signature(**asdict(made), content=content))
        head = after
    return tuple(found), head, raw


def _check(made: _Entry, content: _Content, head: str) -> None:
    """Check what types cannot express."""
    if content.purpose != _PURPOSE:
        raise MisfitError("the text was signed for something else")
    if content.after != head:
        raise MisfitError("the signature belongs to another place of the file, or to another file")
    if made.kind not in ("ed25519", "ssh", "typed") or (made.kind == "typed") == bool(made.key):
        raise MisfitError("its kind is not known, or does not fit its key")
    if made.key:
        fingerprint(made.key)
    if content.signer.decision not in ("", *DECISIONS):
        raise MisfitError("the decision is none that is known")
    try:
        dt.datetime.fromisoformat(content.signer.date)
        if content.signer.expires:
            dt.date.fromisoformat(content.signer.expires)
    except ValueError:
        raise MisfitError("a date is not valid") from None


@dataclass(frozen=True)
class SignatureLine:
    """A signature as page and card show it; nothing here was checked by cryptography."""

    signer: Signer
    how: str
    of: str
    """Which card was signed."""


@dataclass(frozen=True)
class SignOff:
    """The signatures of a card for page and card; `problem` says why they cannot be read, if they cannot."""

    lines: tuple[SignatureLine, ...] = ()
    problem: str = ""


def sign_off(folder: Path, card: dict[str, Any]) -> SignOff:
    """The signatures in a folder, each with whether it was made for this card."""
    try:
        found = read_signatures(folder)
    except PrivetError as error:
        return SignOff(problem=str(error).removeprefix(f"{folder}/"))
    now_is = canonical(card)
    same = ("an earlier version of this card", "this card")
    return SignOff(tuple(SignatureLine(one.signer, one.how, same[canonical(one.card) == now_is]) for one in found))


def append_signature(folder: Path, card: dict[str, Any], signer: Signer, key: Path | None) -> Signature:
    """Sign a card and append the signature to the folder's file, which keeps all earlier ones.

    Args:
        folder: of the run; only one process may write to it.
        card: the content of `card.json`.
        signer: who signs.
        key: the file of a private key; None for a typed name.
    """
    _check_signer(signer)
    _, head, before = _read(folder)
    content = _Content(_PURPOSE, head, signer, card)
    text = canonical(asdict(content))
    made = _Entry("typed", "", text, "") if key is None else _signed(text, key)
    entry = asdict(made)
    line = line_of(entry, chained(head, entry))
    ended = b"" if before.endswith(b"\n") or not before else b"\n"
    write_whole(folder / SIGNATURES, before + ended + line, mode=0o644)
    return Signature(**entry, content=content)


def _check_signer(signer: Signer) -> None:
    for name in ("name", "role", "note"):
        text = getattr(signer, name)
        if len(text) > _TEXT or not text.isprintable():
            raise InputError(f"--{name} is one line of at most {_TEXT} letters.")
    for name in ("name", "role"):
        if not getattr(signer, name).strip():
            raise InputError(f"--{name} must not be empty: a sign-off says who signs, and as what.")
    if signer.decision not in ("", *DECISIONS):
        raise InputError(f"--decision is {' or '.join(DECISIONS)}, and not {signer.decision!r}.")
    if signer.expires:
        try:
            ends = dt.date.fromisoformat(signer.expires)
        except ValueError:
            raise InputError(f"--expires is a date such as 2027-12-31, and not {signer.expires!r}.") from None
        if ends < dt.datetime.fromisoformat(signer.date).date():
            raise InputError(f"--expires {signer.expires} is in the past: the signature would never be valid.")


def now() -> str:
    """The date of a signature that is made now."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


# --- keys -------------------------------------------------------------------------------------------------------------

_OPENSSH = "-----BEGIN OPENSSH PRIVATE KEY-----"
_PRIVATE = re.compile(r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----")
_PUBLIC_PEM = "-----BEGIN PUBLIC KEY-----"
_PUBLIC_SSH = re.compile(r"(?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]{1,60} [A-Za-z0-9+/=]{16,4000}")
_ED25519 = "ssh-ed25519"


def fingerprint(key: str) -> str:
    """The fingerprint of a public key in the form of OpenSSH, as ssh-keygen prints it."""
    if not _PUBLIC_SSH.fullmatch(key):
        raise MisfitError("its key is no public key")
    try:
        blob = base64.b64decode(key.split()[1], validate=True)
    except binascii.Error:
        raise MisfitError("its key is no public key") from None
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def read_public_key(path: Path) -> str:
    """The public key in a file, of OpenSSH or PEM, in the form of OpenSSH."""
    text = read_text(path, 1 << 20).strip()
    if text.startswith(_PUBLIC_PEM):
        return _as_ssh(_public_bytes(_loaded(path, "load_pem_public_key", text.encode())))
    if "PRIVATE KEY-----" in text:
        raise InputError(f"{path} holds a private key: give the public one, and keep this one to yourself.")
    key = " ".join(text.split()[:2])
    try:
        fingerprint(key)
    except MisfitError:
        raise InputError(f"{path} holds no public key: give one of OpenSSH (key.pub), or a PEM file.") from None
    return key


def _signed(text: str, path: Path) -> _Entry:
    """Sign a text with the private key in a file; with an SSH agent, the file may hold the public key."""
    held = read_text(path, 1 << 20).strip()
    if held.startswith(_OPENSSH) or _PUBLIC_SSH.match(held):
        command = [_ssh_keygen(), "-Y", "sign", "-f", str(path), "-n", NAMESPACE]
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
        armored = done.stdout.decode("ascii", "replace")
        if done.returncode or "BEGIN SSH SIGNATURE" not in armored:
            raise InputError(f"ssh-keygen cannot sign with {path}: {_last_line(done.stderr)}.")
        return _Entry("ssh", _key_of(armored), text, armored)
    if not _PRIVATE.match(held):
        raise InputError(f"{path} holds no private key that can sign: give an Ed25519 key as PEM, or one of OpenSSH.")
    if held.startswith("-----BEGIN ENCRYPTED"):
        raise InputError(
            f"{path} is protected by a passphrase, which only SSH keys may be: use one (ssh-keygen -t ed25519)."
        )
    key = _loaded(path, "load_pem_private_key", held.encode(), None)
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InputError(f"{path} is a key of another kind: Privet signs with Ed25519.")
    value = base64.b64encode(key.sign(text.encode())).decode()
    return _Entry("ed25519", _as_ssh(_public_bytes(key.public_key())), text, value)


def is_signed(signature: Signature) -> bool:
    """Whether the signature was made for its text with the key that it names. Whose key that is, nobody has checked.

    Formal guarantees: true only if Ed25519 (or the scheme of the SSH key) accepts exactly the bytes of `text`.
    """
    if signature.kind == "ed25519":
        blob = base64.b64decode(signature.key.split()[1])
        if not signature.key.startswith(f"{_ED25519} ") or len(blob) != len(_blob(b"")) + 32:
            return False
        try:
            value = base64.b64decode(signature.signature, validate=True)
            ed25519.Ed25519PublicKey.from_public_bytes(blob[-32:]).verify(value, signature.text.encode())
        except (InvalidSignature, ValueError):
            return False
        return True
    if signature.kind == "ssh":
        with _files(signature, allowed=f'signer namespaces="{NAMESPACE}" {signature.key}\n') as (signed, allowed):
            return _ssh_verifies(signature, signed, allowed, "signer")
    return False


def principals(signature: Signature, allowed: Path) -> list[str]:
    """The people to whom a file of allowed signers gives the key of an SSH signature that holds; empty if there are none."""
    if signature.kind != "ssh":
        return []
    with _files(signature) as (signed, _):
        command = [_ssh_keygen(), "-Y", "find-principals", "-s", str(signed), "-f", str(allowed)]
        found = subprocess.run(command, capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
        names = found.stdout.decode("utf-8", "replace").splitlines() if found.returncode == 0 else []
        return [name for name in names if _ssh_verifies(signature, signed, allowed, name)]


def _ssh_verifies(signature: Signature, signed: Path, allowed: Path, name: str) -> bool:
    command = [_ssh_keygen(), "-Y", "verify", "-f", str(allowed), "-I", name, "-n", NAMESPACE, "-s", str(signed)]
    done = subprocess.run(command, input=signature.text.encode(), capture_output=True, check=False, timeout=60)
    return done.returncode == 0 and _key_of(signature.signature) == signature.key


@contextmanager
def _files(signature: Signature, allowed: str = "") -> Iterator[tuple[Path, Path]]:
    """The files that ssh-keygen reads, in a temporary folder: the signature, and the allowed signers."""
    with tempfile.TemporaryDirectory(prefix="privet-") as folder:
        paths = Path(folder) / "signature", Path(folder) / "allowed"
        for path, text in zip(paths, (signature.signature, allowed), strict=True):
            path.write_text(text, encoding="utf-8")
        yield paths


def _key_of(armored: str) -> str:
    """The public key inside an SSH signature, in the form of OpenSSH; empty if it is no SSH signature."""
    try:
        raw = base64.b64decode("".join(line for line in armored.splitlines() if not line.startswith("-----")))
        length = int.from_bytes(raw[10:14])
        blob = raw[14 : 14 + length]
        kind = blob[4 : 4 + int.from_bytes(blob[:4])].decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
    return f"{kind} {base64.b64encode(blob).decode()}" if raw.startswith(b"SSHSIG") and len(blob) == length else ""


def _ssh_keygen() -> str:
    found = shutil.which("ssh-keygen")
    if found is None:
        raise InputError(
            "SSH signatures need the program ssh-keygen, which is not here: install OpenSSH, or use a PEM key."
        )
    return found


def _last_line(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].rstrip(".") if lines else "it gives no reason"


def _loaded(path: Path, function: str, *given: Any) -> Any:
    """A key that the package cryptography reads."""
    try:
        return getattr(serialization, function)(*given)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"{path} holds no key that can be read: give an Ed25519 key as PEM, or one of OpenSSH."
        ) from None


def _public_bytes(key: Any) -> bytes:
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InputError("A PEM key of another kind was given: Privet signs with Ed25519.")
    raw: bytes = key.public_bytes_raw()
    return raw


def _blob(raw: bytes) -> bytes:
    """An Ed25519 key in the form of SSH: two texts, each with its length."""
    return b"".join(len(part).to_bytes(4) + part for part in (_ED25519.encode(), raw))


def _as_ssh(raw: bytes) -> str:
    return f"{_ED25519} {base64.b64encode(_blob(raw)).decode()}"
