"""The run record: what was run and what came out, as plain data, from which the page is made again at any time.

The record holds no epsilon as its result: the privacy spent is always computed from the ledger that it names.
The epsilon of each epoch is there to be drawn.
"""

from __future__ import annotations

import json
import math
import platform
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from privet import __version__
from privet.attacks.result import AttackResult
from privet.audit import Audit
from privet.errors import InputError
from privet.io import MisfitError, build, to_plain, write_whole
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.private_accuracy import Measured
from privet.privacy import Ledger, Spent, accountant_names
from privet.privacy.guarantees import Claimed

FILE = "record.json"
FORMAT = 2


@dataclass(frozen=True)
class DataSummary:
    """Which data, without any of it.

    `training_records` is the public number, of users where a user is the unit: what was stated, or what was taken as public.
    `test_records` is 0 where the number of test records is not public.
    """

    name: str
    fingerprint: str
    """Of public records their SHA-256, of others a keyed one: see `privet.report.others`."""
    training_records: int
    test_records: int
    classes: tuple[str, ...]
    note: str = ""
    source: str = ""
    """How the records were named, as `privet.data.load` takes it: enough to find them again."""
    schema: str = ""
    public: bool = False
    """Whether everybody has the records: then what was measured on them may be published."""
    shape: tuple[int, ...] = ()
    set_aside: int = 0
    """How many test records were taken as public ones without labels (`privet.data.set_aside`); not among `test_records`."""
    size_is_stated: bool = False
    """Whether the user stated the public number of records; otherwise the true one was taken as public."""
    measured_share: float = 0.0
    """The share of a file's records that was measured on and not trained on; 0 where the file was not divided."""
    unprotected: bool = False
    """Whether the user asked for test records without protection."""
    header: bool = True
    unit: str = "record"
    """What the numbers count: records, or users who may hold several."""
    user: str = ""
    """The column of users, where it was given beside the schema."""

    @property
    def protects_test(self) -> bool:
        """Whether the test records are protected, too: figures from them leave with noise only."""
        return not (self.public or self.unprotected)

    @property
    def protected_records(self) -> int:
        """How many records are protected, as far as that is public."""
        share = 0.0 if self.unprotected else self.measured_share
        return math.ceil(round(self.training_records / (1 - share), 6))

    @property
    def who_is_unprotected(self) -> str:
        """A sentence about records that nothing protects; empty where there are none."""
        if self.public or not self.unprotected:
            return ""
        if not self.measured_share:
            also = (
                " A user who is in both parts is protected for the training records alone."
                if self.unit == "user"
                else ""
            )
            return f"NOT PROTECTED: the test records. The statement is about the training records alone.{also}"
        share = f"about {100 * self.measured_share:g} % of the {self.unit}s"
        return f"NOT PROTECTED: the hold-out, {share}. The statement is about the others alone."


@dataclass(frozen=True)
class ModelSummary:
    """What was trained: enough to build it again, and where its weights are within the run folder."""

    name: str
    parameters: int
    arguments: dict[str, Any] = field(default_factory=dict)
    weights: str = ""
    perturbation: ResidualPerturbation | None = None
    """Noise that is in the model's answers, too."""


@dataclass(frozen=True)
class SyntheticSummary:
    """The synthetic data set that a run releases, and a few of its rows to look at; all of them may be published."""

    rows: int
    files: tuple[str, ...]
    picture: str = ""
    """A PNG of the run folder with samples, where the rows are images."""
    columns: tuple[str, ...] = ()
    samples: tuple[tuple[str, ...], ...] = ()
    counts: tuple[int, ...] = ()
    """How many rows each class has."""


@dataclass(frozen=True)
class OtherRun:
    """Another run on the same records: settings that were chosen by it, or a release of it, cost privacy too."""

    name: str
    created: str
    method: str
    ledger_head: str
    relation: str
    unit: str
    event: dict[str, Any]
    """Everything in its ledger, as one event."""
    conditions: tuple[str, ...] = ()
    """What its statement takes as public."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """What tells it from other runs. Its ledger alone does not: two runs with the same settings have equal ones."""
        return self.created, self.name, self.ledger_head


@dataclass(frozen=True)
class Stated:
    """What no run can know, and a person says."""

    intended_use: str = ""
    licence: str = ""
    contact: str = ""


@dataclass(frozen=True)
class Epoch:
    """Where the run stood at the end of an epoch: the mean loss of its steps, the privacy spent so far, the accuracy
    on the test records where it was measured."""

    epoch: int
    step: int
    loss: float
    epsilon: float
    accuracy: float | None = None


@dataclass(frozen=True)
class MethodSummary:
    """How the release was made: enough to build the method and its plan again.

    Attributes:
        key: of `privet.methods`; empty in a record of version 0.1.
        settings: the method's settings.
        plan: sampling, clipping, noise and steps, as `privet.training.identity.rebuild` takes them; None without a plan.
        steps: how many steps of the plan were done.
    """

    key: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] | None = None
    steps: int = 0


@dataclass(frozen=True)
class RunRecord:
    """One run. `write` puts it into the run's folder, `read` takes it from there.

    `ledger_head` is the running hash of the ledger when the run ended: a ledger from which lines were cut, or that of
    another run, is not taken for this one's.
    """

    title: str
    method: str
    created: str
    command: tuple[str, ...]
    seconds: float
    delta: float
    seeds: dict[str, str]
    environment: dict[str, str]
    data: DataSummary
    model: ModelSummary
    settings: dict[str, str]
    history: tuple[Epoch, ...]
    test_accuracy: float | None
    """Exact; where the test records are not public, for those alone who may see them."""
    training_accuracy: float | None
    attacks: tuple[AttackResult, ...] = ()
    """Every attack that was ever made on the run, in order."""
    audits: tuple[Audit, ...] = ()
    """Every audit that was ever made of the run, in order."""
    how: MethodSummary = field(default_factory=MethodSummary)
    internal: dict[str, str] = field(default_factory=dict)
    """What was computed from the training records without protection: on the page, and never on a card."""
    place: str = ""
    """Where the noise enters: a place of `privet.report.places`; where it is not given, the ledger tells."""
    synthetic: SyntheticSummary | None = None
    others: tuple[OtherRun, ...] | None = None
    """The other runs on the same records that were found; None where nobody looked for them."""
    utility: Measured | None = None
    """The accuracy as it was measured for others to see; None where it was not."""
    stated: Stated = field(default_factory=Stated)
    ledger: str = "ledger.jsonl"
    ledger_head: str = ""
    accountant: str = "pld"
    """Whose theorem calibrated the noise."""
    format: int = FORMAT

    @property
    def attack(self) -> AttackResult | None:
        """The most successful attack: the one that page and comparison lead with."""
        return max(self.attacks, key=lambda attack: attack.auc, default=None)

    @property
    def seeded(self) -> bool:
        """Whether the noise can be drawn again by who knows the seed: such a model is not for release."""
        return self.seeds.get("noise", "secure") != "secure"

    @property
    def released_utility(self) -> Measured | None:
        """The accuracy that may be published: of public records, or with noise that the ledger holds."""
        return self.utility if self.utility is not None and (self.data.public or self.utility.noise) else None

    @property
    def accuracy(self) -> float | None:
        """The accuracy to show to whoever may see the data: the one that was measured for others, where there is one."""
        return self.utility.accuracy if self.utility is not None else self.test_accuracy

    def open_ledger(self, folder: Path) -> Ledger:
        """The run's ledger, for reading; refused if it is not the one that the run wrote."""
        return Ledger.open(folder / self.ledger, head=self.ledger_head or None, read_only=True)

    def spent(self, ledger: Ledger) -> Spent:
        """The statement of the run: PLD's, but of what is only claimed that of the claim's own accountant.

        PLD's figure for such steps would be smaller and hold as little.
        """
        found = ledger.spent(self.delta)
        return ledger.spent(self.delta, self.accountant) if isinstance(found.guarantee, Claimed) else found

    def calibrated(self, ledger: Ledger) -> Spent | None:
        """The statement of the accountant that calibrated the noise, where it is another than that of `spent`."""
        other = ledger.spent(self.delta, self.accountant) if self.accountant != "pld" else None
        return other if other is not None and other.accountant != self.spent(ledger).accountant else None

    @property
    def internal_mode(self) -> int:
        """Of files with figures from the records: their owner alone reads them, unless everybody has the records."""
        return 0o644 if self.data.public else 0o600

    def write(self, folder: Path) -> Path:
        """Write `record.json` whole or not at all."""
        text = json.dumps(to_plain(self), indent=1, ensure_ascii=False, allow_nan=False)
        return write_whole(folder / FILE, f"{text}\n".encode(), mode=self.internal_mode)

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """The record of a run folder; one sentence says what is wrong where there is none or it is damaged."""
        path = folder / FILE
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; give the --out folder of a run, for example runs/a.")
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InputError(f"{path}: this folder holds no run record; {_inside(folder)}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: the run record cannot be read ({error}); run the command again.") from None
        try:
            record = build(cls, _current(json.loads(text)))
            _check(record)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise InputError(f"{path}: the run record is damaged at {where}; run the command again.") from None
        except MisfitError as error:
            raise InputError(f"{path}: {error}; the run record is damaged, so run the command again.") from None
        return record


def _inside(folder: Path) -> str:
    runs = sorted(str(path.parent) for path in folder.glob(f"*/{FILE}"))
    return f"give one of the runs in it: {', '.join(runs)}." if runs else "give the --out folder of a run."


def _current(plain: Any) -> Any:
    """Plain data of an earlier format in the form of this one: version 0.1 kept the last attack alone."""
    if not isinstance(plain, dict) or plain.get("format") != 1 or "attacks" in plain:
        return plain
    renewed = {name: value for name, value in plain.items() if name != "attack"}
    last = plain.get("attack")
    return renewed | {"format": FORMAT, "attacks": [] if last is None else [last]}


def _check(record: RunRecord) -> None:
    """Check what types cannot say."""
    if record.format != FORMAT:
        raise MisfitError(f"its format is {record.format} and this version of Privet reads {FORMAT}")
    if record.accountant not in accountant_names():
        raise MisfitError(f"'accountant' is {record.accountant!r}, which is none")
    files = {"ledger": record.ledger, "model.weights": record.model.weights}
    if record.synthetic:
        files["synthetic.picture"] = record.synthetic.picture
    for name, file in files.items():
        # A record that was sent to us must not be able to point at our other files.
        if file and file != Path(file).name:
            raise MisfitError(f"'{name}' must name a file of the run folder, and is {file!r}")
    if any(len(each.false_positive_rate) != len(each.true_positive_rate) for each in record.attacks):
        raise MisfitError("'attacks' has a ROC whose two halves differ in length")


PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions of Privet, Python, the libraries that compute, and the platform; nothing that names the machine."""
    found = {"privet": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a trimmed installation is still worth recording
            found[package] = "not installed"
    found["platform"] = f"{platform.system()} {platform.machine()}"
    return found
