"""Signing and verifying: what was changed is said exactly, a hostile folder gets one sentence, a typed name is no signature."""

import dataclasses
import json
import random
import shutil
import subprocess
from datetime import date, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save_file
from torch import eye
from typer.testing import CliRunner

from privet.cli import app
from privet.privacy.events import Gaussian
from privet.privacy.ledger import Ledger
from privet.report import RunRecord, write_card
from privet.report.card import with_files
from privet.report.signatures import SIGNATURES, TYPED, Signer, append_signature, canonical, now, read_signatures
from privet.report.verify import Known, card_to_sign, changes, verify
from tests.fuzzing import spoil

SSH = shutil.which("ssh-keygen")
needs_ssh = pytest.mark.skipif(SSH is None, reason="no ssh-keygen on the PATH (Debian: apt install openssh-client)")
ARGUMENTS = ("--name", "A. Bee", "--role", "privacy officer")


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A run with a released file, and its card."""
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    save_file({"weight": eye(3)}, folder / "model.safetensors")
    record = RunRecord.read(folder)
    record = dataclasses.replace(
        record, model=dataclasses.replace(record.model, weights="model.safetensors"), seeds={"noise": "secure"}
    )
    with_files(folder, record).write(folder)
    write_card(folder)
    return folder


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return write_key(tmp_path / "keys" / "officer.pem")


def write_key(path: Path, key=None) -> Path:
    path.parent.mkdir(exist_ok=True)
    key = key or Ed25519PrivateKey.generate()
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(*form))
    public = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(*public))
    return path


def ssh_key(path: Path) -> Path:
    subprocess.run([str(SSH), "-q", "-t", "ed25519", "-N", "", "-C", "officer", "-f", str(path)], check=True)
    return path


def said(run: Path, *arguments: object) -> tuple[int, str]:
    done = privet("verify", run, *arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def signed(run: Path, key: Path | None = None, decision: str = "approved", **more: str) -> None:
    """As `privet sign` does it, without the page, which takes a second."""
    append_signature(run, card_to_sign(run), Signer("A. Bee", "privacy officer", now(), decision, **more), key)
    write_card(run)


def contact(run: Path, text: str) -> None:
    record = RunRecord.read(run)
    dataclasses.replace(record, stated=dataclasses.replace(record.stated, contact=text)).write(run)
    write_card(run)


def test_a_run_that_nobody_touched_holds(run):
    code, text = said(run)
    assert code == 0
    assert "model.safetensors is the released file" in text
    assert "60 uses of the records" in text
    assert "card.json follows from record and ledger" in text
    assert "Nobody has signed this card" in text


def test_a_signature_by_a_pem_key_holds_for_its_key_alone(run, pem, tmp_path):
    before = (run / "card.json").read_bytes()
    signed(run, pem, expires="2999-01-01")
    assert (run / "card.json").read_bytes() == before
    code, text = said(run, "--key", pem.with_suffix(".pub"))
    assert code == 0 and "the signature holds, with a key that was given" in text
    code, text = said(run)
    assert code == 0 and "nobody has checked whose key that is" in text
    other = write_key(tmp_path / "keys" / "other.pem")
    code, text = said(run, "--key", other.with_suffix(".pub"))
    assert code == 1 and "No valid signature of this card is by a key that was given" in text


@needs_ssh
def test_a_signature_by_an_ssh_key_holds_for_its_key_and_for_allowed_signers(run, tmp_path):
    key, other = ssh_key(tmp_path / "ssh"), ssh_key(tmp_path / "other")
    signed(run, key)
    assert said(run, "--key", key.with_suffix(".pub"))[0] == 0
    assert said(run, "--key", other.with_suffix(".pub"))[0] == 1
    allowed = tmp_path / "allowed"
    allowed.write_text(f"bee@example.org {key.with_suffix('.pub').read_text()}")
    code, text = said(run, "--allowed-signers", allowed)
    assert code == 0 and "with a key of bee@example.org" in text
    allowed.write_text(f'bee@example.org namespaces="git" {key.with_suffix(".pub").read_text()}')
    assert said(run, "--allowed-signers", allowed)[0] == 1
    allowed.write_text(f"bee@example.org {other.with_suffix('.pub').read_text()}")
    assert said(run, "--allowed-signers", allowed)[0] == 1
    # Anybody can check it without Privet: the text is signed as it stands in the file.
    entry = json.loads((run / SIGNATURES).read_text())
    (tmp_path / "sig").write_text(entry["signature"])
    check = [str(SSH), "-Y", "check-novalidate", "-n", "privet", "-s", str(tmp_path / "sig")]
    assert subprocess.run(check, input=entry["text"].encode(), capture_output=True, check=False).returncode == 0


def test_without_a_key_it_is_a_typed_name_everywhere(run):
    done = privet("sign", run, *ARGUMENTS)
    assert done.exit_code == 0 and TYPED in done.output and "Anybody could have typed it" in done.output
    shown = [said(run)[1], (run / "CARD.md").read_text(), (run / "report.html").read_text()]
    shown += [privet("verify", run, "--json").output]
    for text in shown:
        assert TYPED in text and "A. Bee" in text
    assert json.loads(privet("verify", run, "--json").output)["holds"] is True


def test_a_typed_name_does_not_count_where_a_key_is_asked_for(run, pem):
    signed(run)
    assert said(run, "--key", pem.with_suffix(".pub"))[0] == 1


def test_signatures_are_appended_and_a_later_one_supersedes(run, pem):
    signed(run, pem, "rejected")
    first = (run / SIGNATURES).read_bytes()
    code, text = said(run, "--key", pem.with_suffix(".pub"))
    assert code == 1 and "the decision is that this is not released" in text
    signed(run, pem)
    assert (run / SIGNATURES).read_bytes().startswith(first)
    code, text = said(run, "--key", pem.with_suffix(".pub"))
    assert code == 0 and "superseded by a later one of the same signer" in text


def test_a_typed_approval_does_not_supersede_the_rejection_by_a_key(run, pem):
    signed(run, pem, "rejected")
    signed(run)
    assert said(run)[0] == said(run, "--key", pem.with_suffix(".pub"))[0] == 1


def test_a_signature_expires(run, pem):
    signed(run, pem, expires="2999-01-01")
    known = Known((read_signatures(run)[0].key,))
    assert all(one.holds is not False for one in verify(run, known, date(2999, 1, 1)))
    late = [one.said for one in verify(run, known, date(2999, 1, 2)) if one.holds is False]
    assert any("it expired on 2999-01-01" in one for one in late)
    yesterday = (date.today() - timedelta(days=2)).isoformat()
    done = privet("sign", run, *ARGUMENTS, "--expires", yesterday)
    assert done.exit_code == 2 and "in the past" in done.output


def test_the_page_and_the_card_show_the_block_of_signatures(run, pem):
    assert "nobody has signed this card" in (run / "CARD.md").read_text()
    note = "<script>alert(1)</script> | `x`"
    done = privet(
        "sign", run, *ARGUMENTS, "--key", pem, "--decision", "approved", "--expires", "2999-01-01", "--note", note
    )
    assert done.exit_code == 0, done.output
    page, card = (run / "report.html").read_text(), (run / "CARD.md").read_text()
    for part in ("A. Bee", "privacy officer", "2999-01-01", "approved", "SHA256:", "this card:"):
        assert part in page and part in card
    assert "<script>" not in page and "<script>" not in card.replace("\\<script", "")


def test_what_changed_since_a_signature_is_said(run, pem):
    signed(run, pem)
    contact(run, "new@example.org")
    code, text = said(run, "--key", pem.with_suffix(".pub"))
    assert code == 1
    assert 'the card was changed since: about.contact is "new@example.org" in place of ""' in text
    assert "an earlier version of this card" in (run / "CARD.md").read_text()


def damage_model(run: Path) -> None:
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes() + b"x")


def damage_card(run: Path) -> None:
    plain = json.loads((run / "card.json").read_text())
    plain["privacy"]["epsilon"] = 0.1
    (run / "card.json").write_text(json.dumps(plain))


def edit(name: str, old: str, new: str):
    def change(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return change


def cut_ledger(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-3]))


def use_again(run: Path) -> None:
    with Ledger.open(run / "ledger.jsonl") as ledger:
        ledger.record(Gaussian(1.0))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (damage_model, "model.safetensors was changed: its SHA-256 is "),
        (lambda run: (run / "model.safetensors").unlink(), "model.safetensors is missing"),
        (damage_card, "privacy.epsilon is 0.1 in place of "),
        (lambda run: (run / "card.json").write_text('{"card": 2'), "card.json is damaged"),
        (lambda run: (run / "card.json").write_text("[]"), "card.json is damaged: it is no object"),
        (lambda run: (run / "card.json").write_text('{"card": 1}'), "has another format"),
        (lambda run: (run / "card.json").write_text('{"card": 2, "files": {"../x": "y"}, "ledger": []}'), "'../x'"),
        (edit("CARD.md", "add/remove", "no"), "CARD.md was changed, first in line "),
        (lambda run: (run / "CARD.md").unlink(), "CARD.md does not exist"),
        (cut_ledger, "Lines were removed from the ledger"),
        (edit("ledger.jsonl", '"rate": 0.1', '"rate": 0.2'), "was edited: the running hash breaks at line 2"),
        (lambda run: (run / "ledger.jsonl").unlink(), "cannot be read"),
        (use_again, "the records were used again"),
        (edit("record.json", '"delta": 1e-05', '"delta": 0.001'), "privacy.delta is 1e-05 in place of 0.001"),
        (edit("record.json", '"title"', '"titel"'), "The card cannot be made again"),
        (edit(SIGNATURES, "A. Bee", "C. Dee"), "was edited: the running hash breaks at line 1"),
        (lambda run: (run / SIGNATURES).write_text("{}\n"), "line 1: this is no signature"),
        (lambda run: (run / SIGNATURES).write_bytes(b"\xff"), "not UTF-8 text"),
    ],
)
def test_a_change_is_named(run, pem, damage, sentence):
    signed(run, pem)
    damage(run)
    code, text = said(run, "--key", pem.with_suffix(".pub"))
    assert code == 1, text
    assert sentence in text
    assert "Traceback" not in text
    refused = privet("sign", run, *ARGUMENTS)
    assert refused.exit_code in (1, 2) and "privet: " in refused.output
    assert len(refused.output.strip().splitlines()) == 1


def forge(run: Path, **changed: str) -> None:
    """Rewrite the only line of the file with a right running hash: no hash needs a secret, signatures do."""
    from privet.io.chained import chained, line_of

    entry = json.loads((run / SIGNATURES).read_text())
    entry.pop("hash")
    entry |= changed
    (run / SIGNATURES).write_bytes(line_of(entry, chained("", entry)))


def test_a_forged_line_is_noticed_by_its_signature(run, pem, tmp_path):
    signed(run, pem, "rejected")
    (one,) = read_signatures(run)
    forge(run, text=one.text.replace('"decision":"rejected"', '"decision":"approved"'))
    write_card(run)
    code, text = said(run)
    assert code == 1 and "does NOT fit the text" in text
    other = write_key(tmp_path / "keys" / "other.pem")
    (run / SIGNATURES).unlink()
    write_card(run)
    signed(run, other)
    forge(run, key=one.key)
    assert said(run, "--key", pem.with_suffix(".pub"))[0] == 1
    forge(run, kind="typed")
    assert "its kind is not known, or does not fit its key" in said(run)[1]


@needs_ssh
def test_a_forged_ssh_signature_is_noticed(run, tmp_path):
    key, other = ssh_key(tmp_path / "ssh"), ssh_key(tmp_path / "other")
    signed(run, key, "rejected")
    (one,) = read_signatures(run)
    forge(run, text=one.text.replace('"decision":"rejected"', '"decision":"approved"'))
    assert said(run, "--key", key.with_suffix(".pub"))[0] == 1
    (run / SIGNATURES).unlink()
    write_card(run)
    signed(run, other)
    forge(run, key=one.key)
    code, text = said(run, "--key", key.with_suffix(".pub"))
    assert code == 1 and "does NOT fit" in text


def test_signatures_of_another_run_do_not_count(run, pem, tmp_path):
    signed(run, pem)
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (other / SIGNATURES).unlink()
    contact(other, "somebody else")
    shutil.copy(run / SIGNATURES, other / SIGNATURES)
    write_card(other)
    code, text = said(other, "--key", pem.with_suffix(".pub"))
    assert code == 1 and "the card was changed since: about.contact" in text


def test_the_release_is_verified_without_the_record(run, pem, tmp_path):
    """Whoever gets the release has no record, which is internal."""
    signed(run, pem)
    (run / "record.json").unlink()
    code, text = said(run, "--key", pem.with_suffix(".pub"))
    assert code == 0 and "record.json is not here" in text and "card.json follows from the ledger" in text
    plain = json.loads((run / "card.json").read_text())
    plain["accesses"][0]["count"] = 1
    (run / "card.json").write_text(json.dumps(plain))
    code, text = said(run)
    assert code == 1 and "accesses[1].count is 1 in place of 60" in text


def test_a_spoiled_folder_never_ends_in_a_traceback(run, pem, tmp_path):
    """Whatever is changed in a folder, and however, `verify` ends with a finding or a sentence."""
    signed(run, pem)
    key, codes = pem.with_suffix(".pub"), set()
    for seed in range(30):
        folder = tmp_path / str(seed)
        shutil.copytree(run, folder)
        what = spoil(folder, random.Random(seed))
        done = privet("verify", folder, "--key", key)
        assert done.exception is None or isinstance(done.exception, SystemExit), (seed, what, done.exception)
        assert done.exit_code in (0, 1, 2), (seed, what, done.output)
        assert done.exit_code != 2 or done.output.startswith("privet: "), (seed, what, done.output)
        codes.add(done.exit_code)
    assert {1} <= codes


def test_links_and_other_folders_are_refused_in_one_sentence(run, tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        done = privet("verify", folder)
        assert done.exit_code == 2 and len(done.output.strip().splitlines()) == 1
    (run / "CARD.md").unlink()
    (run / "CARD.md").symlink_to(tmp_path / "keys")
    done = privet("verify", run)
    assert done.exit_code == 2 and "is a link" in done.output


def test_what_cannot_sign_is_refused(run, pem, tmp_path):
    wrong = tmp_path / "keys" / "rsa.pem"
    write_key(wrong, rsa.generate_private_key(65537, 2048))
    (tmp_path / "text").write_text("hello")
    shutil.copy(pem, run / "key.pem")
    for arguments, words in (
        ((*ARGUMENTS, "--key", wrong), "a key of another kind"),
        ((*ARGUMENTS, "--key", tmp_path / "text"), "no private key that can sign"),
        ((*ARGUMENTS, "--key", pem.with_suffix(".pub")), "no private key that can sign"),
        ((*ARGUMENTS, "--key", tmp_path / "nowhere"), "does not exist"),
        ((*ARGUMENTS, "--key", run / "key.pem"), "keep a private key elsewhere"),
        ((*ARGUMENTS, "--expires", "soon"), "is a date such as"),
        ((*ARGUMENTS, "--decision", "maybe"), "approved or rejected"),
        (("--name", " ", "--role", "x"), "must not be empty"),
        (("--name", "a\nb", "--role", "x"), "one line"),
    ):
        done = privet("sign", run, *arguments)
        assert done.exit_code == 2 and words in done.output, (arguments, done.output)
    assert not (run / SIGNATURES).exists()
    for key in (pem, tmp_path / "text", wrong.with_suffix(".pub")):
        assert privet("verify", run, "--key", key).exit_code == 2


def test_a_run_that_is_not_for_release_is_not_approved(run, pem):
    dataclasses.replace(RunRecord.read(run), seeds={"noise": "7"}).write(run)
    write_card(run)
    done = privet("sign", run, *ARGUMENTS, "--key", pem, "--decision", "approved")
    assert done.exit_code == 2 and "cannot be approved" in done.output
    signed(run, pem, "rejected")


def test_changes_are_exact_and_few():
    assert changes({"a": [1, 2]}, {"a": [1, 3, 4], "b": 0}) == [
        "a[2] is 3 in place of 2",
        "a[3] was added",
        "b was added",
    ]
    assert changes({"a": 1, "b": {}}, {"a": True}) == ["a is true in place of 1", "b was removed"]
    assert changes(0, 0) == [] and changes(1, 1.0) == ["it is 1.0 in place of 1"]
    assert changes([], list(range(50)))[-1] == "and 30 more differences"
    assert canonical({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}'
