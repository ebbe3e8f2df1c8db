"""Trackers of experiments: MLflow, Weights & Biases and TensorBoard, each in a folder on this machine.

    with tracked("mlflow:tracked", name="first try") as track:
        for x, y in private.batches(on_step=track):
            ...

Everything stays in the folder: nothing is sent, also where the tracker is set up to send. What is computed from private records
without noise, such as a loss, is logged under a name that begins with ``internal/``, and the run has a note that says so.
Whatever is not known to be public counts as internal. A tracker that fails is left out from then on; the run goes on.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from privet.errors import InputError, PrivetWarning
from privet.report import RunRecord
from privet.report.export import INTERNAL, flattened, run_facts

PUBLIC = ("epsilon", "delta")
"""Numbers of a step that follow from the plan alone."""
NOTE = (
    "Names that begin with internal/ were computed from private records without noise: they are for those who may see the "
    "records, and not for release."
)
Values = Mapping[str, float]


class Tracker(Protocol):
    """Where the numbers of a run go."""

    def log(self, values: Values, step: int) -> None:
        """The numbers of a step, by name."""
        ...

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Facts of the whole run: texts and numbers by name."""
        ...

    def close(self) -> None: ...


class MLflowTracker:
    """A run of MLflow, in files of the folder."""

    def __init__(self, folder: Path, name: str) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # it would send how it is used; read when it is imported
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = (
            "true"  # files need no database, which the small form of MLflow does not have
        )
        client = _required("mlflow.tracking", "mlflow").MlflowClient
        place = folder.resolve().as_uri()
        self._client = client(tracking_uri=place, registry_uri=place)
        found = self._client.get_experiment_by_name("privet")
        experiment = found.experiment_id if found is not None else self._client.create_experiment("privet")
        tags = {"mlflow.runName": name, "mlflow.note.content": NOTE}
        self._run = self._client.create_run(experiment, tags=tags).info.run_id

    def log(self, values: Values, step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            # Its names have no other characters.
            allowed = "".join(letter if letter.isalnum() or letter in "_-./ " else "-" for letter in name)
            self._client.set_tag(self._run, allowed, str(value)[:5000])

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandbTracker:
    """An offline run of Weights & Biases; `wandb sync` sends it, if somebody asks for that."""

    def __init__(self, folder: Path, name: str) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        wandb = _required("wandb", "wandb")
        settings = wandb.Settings(
            mode="offline", silent=True, disable_git=True, disable_code=True, console="off", x_disable_stats=True
        )
        self._run = wandb.init(
            project="privet",
            name=name,
            dir=str(folder),
            notes=NOTE,
            settings=settings,
            mode="offline",
            reinit="create_new",
        )

    def log(self, values: Values, step: int) -> None:
        self._run.log(dict(values), step=step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(facts))

    def close(self) -> None:
        self._run.finish()


class TensorBoardTracker:
    """Scalars of TensorBoard."""

    def __init__(self, folder: Path, name: str) -> None:
        writer = _required("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(folder / name))
        self._writer.add_text("note", NOTE)

    def log(self, values: Values, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            self._writer.add_text(name, str(value))

    def close(self) -> None:
        self._writer.close()


TRACKERS: Mapping[str, Callable[[Path, str], Tracker]] = {
    "mlflow": MLflowTracker,
    "wandb": WandbTracker,
    "tensorboard": TensorBoardTracker,
}


def _required(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise InputError(
            f"The tracker {package} is not installed: install it with 'pip install privet[track]'."
        ) from None


def check_trackers(specs: Sequence[str]) -> None:
    """Raise for a tracker that cannot be used, before anything is run."""
    for spec in specs:
        kind, _ = _parsed(spec)
        _required("torch.utils.tensorboard" if kind == "tensorboard" else kind, kind)


def _parsed(spec: str) -> tuple[str, Path]:
    kind, _, folder = spec.partition(":")
    if kind not in TRACKERS or not folder:
        raise InputError(f"A tracker is {', '.join(f'{name}:FOLDER' for name in TRACKERS)}, and not {spec!r}.")
    if "://" in folder:
        raise InputError(
            f"A tracker writes to a folder on this machine, and sends nothing: name a folder, not {folder}."
        )
    return kind, Path(folder)


class Track:
    """Called with the dictionary of a step, it logs the step's numbers to every tracker."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def _each(self, use: Callable[[Tracker], None]) -> None:
        """Use every tracker; one that fails costs the log, and not the run, which has spent privacy."""
        for tracker in list(self._trackers):
            try:
                use(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                warnings.warn(
                    f"{type(tracker).__name__} failed with {type(error).__name__} and gets nothing more; the run goes on.",
                    PrivetWarning,
                    stacklevel=4,
                )

    def __call__(self, step: Mapping[str, Any]) -> None:
        values = {
            name if name in PUBLIC else f"{INTERNAL}/{name}": float(value)
            for name, value in step.items()
            if name not in ("step", "steps") and isinstance(value, int | float) and math.isfinite(value)
        }
        if any(name in step for name in ("loss", "epsilon")):  # others report how far something is, and not a step
            self._each(lambda tracker: tracker.log(values, int(step["step"])))

    def finish(self, record: RunRecord, folder: Path) -> None:
        """Log what is known of the finished run: the statement, and what was measured."""
        facts = {
            _marked(name): value for name, value in flattened(run_facts(record, folder)).items() if value is not None
        }
        self._each(lambda tracker: tracker.describe(facts))


def _marked(name: str) -> str:
    """The name of a fact, with the mark of internal ones as a folder in front."""
    return f"{INTERNAL}/{name.removeprefix(INTERNAL).lstrip('_')}" if name.startswith(INTERNAL) else name


@contextmanager
def tracked(*specs: str, name: str = "run") -> Iterator[Track]:
    """A callback that logs each step to the trackers, such as ``mlflow:FOLDER``; only their owner can read the folders."""
    with ExitStack() as stack:
        trackers = []
        for spec in specs:
            kind, folder = _parsed(spec)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            trackers.append(TRACKERS[kind](folder, name))
            stack.callback(trackers[-1].close)
        yield Track(trackers)
