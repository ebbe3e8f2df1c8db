"""Methods: frozen dataclasses whose fields are their settings, from a task to an outcome; and the one table of them."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from privet import data
from privet.data import CATALOGUE, Dataset, Progress, Schema, Split, read_schema, set_aside
from privet.errors import InputError
from privet.io import check_unicode
from privet.io.registry import Registry
from privet.privacy import Assumed, Event, Ledger, Relation
from privet.privacy.events import NOTHING
from privet.training import Plan
from privet.training.folder import RunFolder
from privet.training.logs import OnStep
from privet.training.releases import Releases

if TYPE_CHECKING:
    from privet.audit import Audit
    from privet.methods.perturbation import ResidualPerturbation
    from privet.methods.private_accuracy import PrivateAccuracy
    from privet.methods.synthetic import Synthetic

# --- what is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSpec:
    """Which records to use, as the command line names them, so that they can be loaded again.

    Attributes:
        source, schema, header, user: as `privet.data.load` takes them.
        public_size, hold_out, unprotected_test: as `privet.data.with_test_records` takes them.
        note: a remark on the records, for the page.
        account: the account of the records, by name or path; by default the one named in `.privet-account` beside them.
    """

    source: str
    schema: str = ""
    header: bool = True
    user: str = ""
    public_size: int | None = None
    hold_out: float | None = None
    unprotected_test: bool = False
    note: str = ""
    account: str = ""

    def __post_init__(self) -> None:
        check_unicode(self.source, self.schema, self.user, self.note, self.account)

    def load(self, progress: Progress | None = None) -> Dataset:
        """Training and test records, split in the same way every time."""
        found = data.load(
            self.source, schema=self.schema or None, header=self.header, user=self.user, progress=progress
        )
        return data.with_test_records(
            found,
            self.source,
            hold_out=self.hold_out,
            unprotected_test=self.unprotected_test,
            public_size=self.public_size,
        )

    def columns(self) -> Schema | None:
        """The schema of a table; None for records without one."""
        return read_schema(self.schema) if self.schema else None

    @property
    def is_public(self) -> bool:
        """Whether the records are a public data set of the catalog."""
        return self.source in CATALOGUE


@dataclass(frozen=True, eq=False)
class Public:
    """Records without labels that the user states to be public.

    Either `aside` of the test records, which are then not used for testing, or the training part of another data set.
    """

    aside: int = 0
    other: Dataset | None = None
    named: str = ""

    @classmethod
    def of(cls, text: str, dataset: Dataset, spec: DataSpec) -> Public:
        """From a number of test records, or the name of a data set as `privet.data.load` takes it."""
        if text.isascii() and text.isdigit():
            if int(text) == 0:
                raise InputError("Public records without labels are needed, and none were given.")
            if not spec.is_public and not dataset.unprotected:
                raise InputError(
                    f"The test records of {dataset.name} are protected, so none of them are public: name another data set, or "
                    "say which records are not protected (--hold-out or --unprotected-test; hold_out or unprotected_test)."
                )
            set_aside(dataset, int(text))
            return cls(aside=int(text), named=f"{int(text):,} of the test records of {dataset.name}")
        # A table of public records has the columns of the private one.
        other = DataSpec(text, schema=spec.schema if ":" in text else "").load()
        if text == spec.source or other.origin == dataset.origin:
            raise InputError(f"{text} is the data to protect: name other records, which are public.")
        if other.shape != dataset.shape:
            shapes = ["x".join(map(str, each.shape)) for each in (other, dataset)]
            raise InputError(
                f"The public records of {text} are {shapes[0]}, and those of {spec.source} are {shapes[1]}."
            )
        if _shared(other.train, dataset.test):
            raise InputError(
                f"Some test records of {dataset.name} are among the public records of {text}: a model cannot be tested on "
                "records that it was trained on."
            )
        return cls(other=other, named=f"the training part of {other.name}")


def _shared(public: Split, test: Split) -> bool:
    """Whether a test record equals a public one bit for bit."""
    known = {_bits(row) for row in public.inputs}
    return any(_bits(row) in known for row in test.inputs)


def _bits(row: Tensor) -> bytes:
    return bytes(row.contiguous().reshape(-1).view(torch.uint8).numpy())


@dataclass(frozen=True, eq=False)
class Task:
    """The task of a method: make a release from these records within this budget.

    Attributes:
        dataset: the records; the training part is protected.
        epsilon, delta: the budget of the whole run.
        seed: makes the run repeatable, for experiments; None for a release.
        spec: how the records were named.
        public: records without labels that the user states to be public.
        schema: the columns of a table.
    """

    dataset: Dataset
    epsilon: float
    delta: float
    seed: int | None = None
    spec: DataSpec = field(default_factory=lambda: DataSpec(""))
    public: Public | None = None
    schema: Schema | None = None

    @classmethod
    def of(cls, spec: DataSpec, dataset: Dataset, epsilon: float, delta: float, **more: Any) -> Task:
        """The task on records that `spec` names."""
        return cls(dataset, epsilon, delta, spec=spec, schema=spec.columns(), **more)

    @property
    def protects_test(self) -> bool:
        """Whether the test records are protected, too, so that results on them are published only with noise."""
        return not (self.is_public or self.dataset.unprotected)

    @property
    def is_public(self) -> bool:
        return (self.spec.source or self.dataset.name) in CATALOGUE


@dataclass(frozen=True, eq=False)
class Context:
    """Where a method records what it does and how it reports progress.

    Attributes:
        ledger: holds every use of the records before its result is used.
        folder: keeps checkpoints, so that a killed run can go on; None for a run in memory.
        on_step: called with a dictionary after each step.
        progress: called while features are computed.
        protect_test: the method reserves a share of the budget for a noisy accuracy, and measures nothing on test records.
    """

    ledger: Ledger
    folder: RunFolder | None = None
    on_step: OnStep | None = None
    progress: Progress | None = None
    protect_test: bool = False

    @classmethod
    def in_memory(cls, method: Method, task: Task, **more: Any) -> Context:
        """For experiments: nothing is written."""
        ledger = Ledger(relation=method.relation, unit=method.unit(task))
        context = cls(ledger, **more)
        context.begin(method, task)
        return context

    @property
    def releases(self) -> Releases:
        """The releases that the run makes once, kept in its folder if it has one."""
        return self.folder.releases if self.folder is not None else Releases(self.ledger)

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of `make_private` that say where its steps are recorded."""
        return {"ledger": self.ledger} if self.folder is None else {"folder": self.folder}

    def begin(self, method: Method, task: Task) -> None:
        """Record what the statement takes as public, and what it assumes about a method that is not part of Privet."""
        if not task.dataset.size_is_stated and method.relation is Relation.ADD_REMOVE:
            self.ledger.size_is_public()
        if method.trusted:
            assumed = NOTHING.under(Assumed(method.trusted))
            if all(event != assumed for event, _ in self.ledger):
                self.ledger.record(assumed)


# --- what comes out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A released model.

    Attributes:
        model: the whole model.
        part: the part of it that was trained; it takes records in the form of `train` and `test`.
        train, test: the records as `part` takes them.
        name, arguments: how to build the model again.
        perturbation: noise that the model also adds to its answers.
    """

    model: nn.Module
    part: nn.Module
    train: Split
    test: Split
    name: str
    arguments: Mapping[str, Any]
    perturbation: ResidualPerturbation | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a method.

    Attributes:
        release: a model or a synthetic data set.
        plan: the plan of its private steps, which an audit rebuilds; None if there is none.
        steps: number of steps that were done; fewer than planned if the budget or the clock ended the run.
        settings: the method's settings in words, for page and card; nothing that depends on private records.
        history: an entry for each epoch or so: epoch, step, loss, epsilon, accuracy.
        internal: results computed from private records without noise; never on a card.
        accuracy: a noisy accuracy on protected test records, already charged to the ledger but not yet measured.
        accountant: the accountant that calibrated the noise.
        noise_path: where the noise enters; empty for the method's own.
        set_aside: how many test records were used as public ones.
        note: a remark on the records, for the page.
    """

    release: TrainedModel | Synthetic
    plan: Plan | None = None
    steps: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    internal: dict[str, str] = field(default_factory=dict)
    accuracy: PrivateAccuracy | None = None
    accountant: str = "pld"
    noise_path: str = ""
    set_aside: int = 0
    note: str = ""


@dataclass(frozen=True, eq=False)
class Ran:
    """A finished run, as far as an audit needs it, or an example of a method without a run.

    Attributes:
        ledger: what the run recorded; empty for an example.
        delta: of the statement.
        plan: the plan of the private steps, as far as it could be rebuilt; None if there is none.
        release: the rebuilt model, with made-up records of the right shape in place of the run's own.
        steps: how many steps of the plan were done.
        missing: the parts of the run that could not be rebuilt ("sampling", "clipping", "noise", "model"), each with the reason.
            Privet's own parts stand in for those of the plan.
        of: "run", or "method" for an example.
    """

    ledger: Ledger
    delta: float
    plan: Plan | None = None
    release: TrainedModel | None = None
    steps: int = 0
    missing: Mapping[str, str] = field(default_factory=dict)
    of: str = "run"


@dataclass(frozen=True)
class Power:
    """How hard an audit tries."""

    draws: int = 20_000
    canaries: int = 1000
    confidence: float = 0.99
    seed: int = 0

    def asked(self, delta: float, progress: Progress | None = None) -> dict[str, Any]:
        """The settings of an audit that has no canaries."""
        common = {"draws": self.draws, "confidence": self.confidence, "seed": self.seed}
        return {"delta": delta, "progress": progress, **common}


# --- the method -------------------------------------------------------------------------------------------------------


def option(default: Any, meaning: str) -> Any:
    """A field of a method that users can set, with its meaning for `privet methods`."""
    return field(default=default, metadata={"meaning": meaning})


VARIANT: Mapping[str, bool] = {"variant": True}
"""Metadata of a field that distinguishes the variants of a method. Each variant has its own key, so it is not a setting."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of every method. A subclass is a frozen dataclass; its own fields are its settings.

    Attributes:
        key: its name on the command line and in records.
        title: its name on a page; the title says so if its epsilon is only claimed.
        by_default: whether `privet compare` runs it when no methods are named.
    """

    makes: ClassVar[Literal["model", "data"]] = "model"
    noise_path: ClassVar[str] = ""
    """Where the noise enters: a path of `privet.report.places`; if empty, it follows from the ledger."""
    source: ClassVar[str] = ""
    """The publication."""
    noise_is: ClassVar[str] = ""
    """Where the noise is, in a few words, for tables."""
    proof: ClassVar[str] = ""
    """What is proved of it, in a few words, for tables."""
    spends_budget: ClassVar[bool] = True
    """Whether its noise is calibrated to the task's epsilon."""
    protects_users: ClassVar[bool] = False
    """Whether it has a proof for users who hold several records."""
    predicts_numbers: ClassVar[bool] = False
    """Whether it can learn a number, and not only a class."""
    needs_public: ClassVar[bool] = False
    """Whether it learns from public records without labels."""

    limits: ClassVar[dict[str, str]] = {}
    """The intervals of settings, such as "(0, 1]" or "[1, inf)"; a number without one is finite and at least 0."""

    key: str = ""
    title: str = ""
    by_default: bool = True

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name not in _NOT_SETTINGS and isinstance(value, int | float) and not isinstance(value, bool):
                _check_inside(each.name, value, self.limits.get(each.name, "[0, inf)"))

    @property
    def full_title(self) -> str:
        """The title of a run; it names the settings that make it a variant of the method."""
        return self.title

    @property
    def trusted(self) -> str:
        """The unproved assumption about a method that is not part of Privet; empty for Privet's own methods."""
        if type(self).__module__.startswith("privet."):
            return ""
        return f"the method {self.key}, which is not part of Privet, does to the records what it states"

    @property
    def relation(self) -> Relation:
        """The neighboring relation of its statement."""
        return Relation.ADD_REMOVE

    def unit(self, task: Task) -> str:
        """What is protected."""
        return task.dataset.train.unit

    def why_not(self, task: Task) -> str:
        """Why the method does not fit the task; empty if it does. Decided from public facts only."""
        if task.dataset.train.users is not None and not self.protects_users:
            return "it has no proof for users who hold several records"
        if task.dataset.target is not None and not self.predicts_numbers:
            return f"it is for classes, and {task.dataset.target.name} is a number, which the method dpsgd can learn"
        if self.needs_public and task.public is None:
            return "it learns from public records without labels: name some (--public, or public=...)"
        return ""

    def fitted(self, task: Task) -> Method:
        """The method with settings for the task, before the user's own settings are applied."""
        return self

    def planned(self, task: Task) -> Event | None:
        """Everything that `fit` will record in the ledger, from public facts only; None if it is not known in advance.

        `privet tune` needs it, because it pays for all trials before the first one. Raises for tasks that `fit` would refuse.
        """
        return None

    def fit(self, task: Task, context: Context) -> Outcome:
        """Make the release. Every use of a record is in the ledger before its result is used."""
        raise NotImplementedError

    def audits(self, ran: Ran, power: Power, progress: Progress | None = None) -> tuple[Audit, ...]:
        """Audit a run: its own plan, on its own model, and the method's releases besides the steps of the plan.

        Every audit names the parts of the run and the releases in the ledger that no audit covers.
        """
        from privet.audit import RunPlan, audit_run_plan, beside, recorded

        asked: dict[str, Any] = {**dataclasses.asdict(power), "progress": progress}
        others, covered = self.release_audits(ran, power, progress)
        if ran.plan is None:
            return beside(others, ran.ledger, covered) if others else recorded(ran.ledger, ran.delta, **asked)
        own: dict[str, Any] = {}
        if ran.release is not None:
            own = {"model": ran.release.part, "records": ran.release.train.tensors}
        plan, settings = RunPlan(ran.plan, ran.missing, ran.steps, ran.of), {"name": self.title, **own, **asked}
        return audit_run_plan(plan, ran.ledger, ran.delta, others=others, covered=covered, settings=settings)

    def release_audits(
        self, ran: Ran, power: Power, progress: Progress | None = None
    ) -> tuple[tuple[Audit, ...], Event]:
        """Audits of the method's releases besides the steps of its plan, and the events that they cover."""
        return (), NOTHING

    def example(self, noise: float, rate: float, steps: int, delta: float) -> Ran | None:
        """An example run without data, for an audit of the method by its name; None if there is none."""
        return None

    def expected_seconds(self, task: Task) -> float:
        """The expected duration of a run in seconds, for a warning; 0 if no warning is needed."""
        return 0.0


_NOT_SETTINGS = {f.name for f in dataclasses.fields(Method)}


MOST = {"steps": 10**7, "epochs": 10**6, "size": 10**8}
"""The largest values of settings, by the end of their names. With more, a run would not end or would not fit on a disk."""
MOST_WHOLE = 10**9
"""The largest value of every other whole number."""


def _check_inside(name: str, value: float, interval: str) -> None:
    largest = next((most for ending, most in MOST.items() if name.endswith(ending)), None)
    largest = MOST_WHOLE if largest is None and isinstance(value, int) else largest
    if largest is not None and value > largest:
        raise InputError(
            f"The setting {name} is at most {largest:,}, and more was asked for: such a run would not end."
        )
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    if above and below:
        return
    least = f"at least {low:g}" if interval[0] == "[" else f"above {low:g}"
    most = "" if high == math.inf else f" and at most {high:g}" if interval[-1] == "]" else f" and below {high:g}"
    raise InputError(f"The setting {name} is a finite number {least}{most}, and not {value:g}.")


@dataclass(frozen=True)
class Setting:
    """One setting of a method."""

    name: str
    kind: str
    default: Any
    meaning: str


def settings_of(method: Method) -> tuple[Setting, ...]:
    """The settings that users can give as NAME=VALUE: the fields with plain values."""
    hints, found = get_type_hints(type(method)), []
    for each in dataclasses.fields(method):
        kinds = _plain_kinds(hints[each.name])
        if each.name in _NOT_SETTINGS or each.metadata.get("variant") or not kinds:
            continue
        meaning = each.metadata.get("meaning") or _documented(type(method)).get(each.name, "").rstrip(".")
        names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
        inside = f" in {method.limits[each.name]}" if each.name in method.limits else ""
        found.append(Setting(each.name, f"{names[kinds[0]]}{inside}", getattr(method, each.name), meaning))
    return tuple(found)


def with_settings(method: M, given: Mapping[str, Any]) -> M:
    """The method with other settings: plain values, or text from the command line."""
    hints = get_type_hints(type(method))
    known = {setting.name for setting in settings_of(method)}
    values = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" did you mean {near[0]!r}? It" if near else " it"
            raise InputError(
                f"The method {method.key} has no setting {name!r}:{hint} has {', '.join(sorted(known)) or 'none'}."
            )
        values[name] = _parsed(name, value, _plain_kinds(hints[name]))
    return dataclasses.replace(method, **values)


def plain_settings(method: Method) -> dict[str, Any]:
    """The settings for the record of a run; fields that are not plain data are taken from the registered method."""
    values = {setting.name: getattr(method, setting.name) for setting in settings_of(method)}
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}


def _plain_kinds(hint: Any) -> tuple[type, ...]:
    """The plain types that a field accepts; empty if it is not a setting for the command line."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(part for part in parts if part in (bool, int, float, str))


def _parsed(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    for kind in kinds:
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
    text = str(value)
    for kind in kinds:
        try:
            return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            continue
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kinds[0]]
    raise InputError(f"The setting {name} is {wanted}, and {text!r} is not.")


def _documented(cls: type) -> dict[str, str]:
    """The meanings of fields, from the "Attributes" in the docstrings of the class and its bases."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        _, _, listed = (each.__doc__ or "").partition("Attributes:\n")
        names: list[str] = []
        for line in listed.splitlines():
            head, colon, rest = line.strip().partition(": ")
            if (
                colon
                and line.startswith("        ")
                and not line.startswith("         ")
                and " " not in head.replace(", ", "")
            ):
                names = head.split(", ")
                found |= dict.fromkeys(names, rest)
            elif line.startswith("            ") and names:
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            elif not line.strip():
                continue
            else:
                names = []
    return found


# --- the one table ----------------------------------------------------------------------------------------------------

M = TypeVar("M", bound=Method)
ALIASES = {
    "synthetic-moments": "moments",
    "synthetic-dpgan": "dpgan",
    "synthetic-noise-layer-gan": "noise-layer-gan",
    "synthetic-noise-layer-gan-published": "noise-layer-gan-published",
}
"""Keys of version 0.1 that moved."""


def _value(method: Any) -> Method:
    """A registered object as a method: a class is called without arguments."""
    value = method() if isinstance(method, type) else method
    if not isinstance(value, Method):
        raise InputError(f"{value!r} is not a method: derive its class from privet.methods.Method.")
    return value


METHODS: Registry[Method] = Registry("method", "privet.methods", _value)
"""Every method by its key, in the order of registration: the only table of methods."""
register = METHODS.register
"""Add a method to the table: a decorator for a class, or a call with a value.

    register(replace(DPSGD(), key="dpsgd-automatic", title="DP-SGD, automatic clipping", clipping="automatic"))
"""


def method_named(key: str, **given: Any) -> Method:
    """A registered method, with the given settings."""
    return with_settings(METHODS[ALIASES.get(key, key)], given)


def method_for(key: str, task: Task, given: Mapping[str, Any] | None = None) -> Method:
    """A registered method with the settings for the task, replaced by the given ones."""
    method, given = method_named(key), given or {}
    known = {setting.name for setting in settings_of(method)}
    # Some defaults depend on the given settings, which are therefore applied before and after.
    first = with_settings(method, {name: value for name, value in given.items() if name in known})
    return with_settings(first.fitted(task), given)


def methods_that_make(what: str) -> tuple[str, ...]:
    """The keys of the methods that release a "model" or "data"."""
    return tuple(key for key, method in METHODS.items() if method.makes == what)
