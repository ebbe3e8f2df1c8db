"""Models of Hugging Face and adapters of PEFT (tests/huggingface) on Privet, with Opacus beside it.

Both take one step over the same four records with the model's own loss. The clipped sum is compared with that of a float64 loop
over single records. Opacus runs as GradSampleModule with hooks and flat clipping, after its own validator.

    PYTHONPATH=. python benchmarks/architectures.py [--only Bert]

It needs transformers, peft and opacus, and writes benchmarks/results/architectures.json and .md, and the table in
docs/architectures.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from _page import put
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))
import privet
from privet.errors import PrivetError
from tests.huggingface.architectures import ARCHITECTURES, JOINING, RECORDS, Architecture, Batch
from tests.huggingface.test_adapters import CLIP as SMALL
from tests.huggingface.test_adapters import PAIRS, made, of_scores
from tests.huggingface.test_architectures import (
    CLIP,
    CLOSE,
    Loss,
    clipped_sum_by_a_loop,
    distance,
    own_loss,
    train,
)

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Verdict:
    """`outcome` is right, wrong, refused or crashed; `why` says more."""

    outcome: str
    why: str = ""


@dataclass(frozen=True)
class Subject:
    """A model with its records and its loss, and the norm to which its gradients are clipped."""

    name: str
    make: Callable[[], tuple[nn.Module, Batch]]
    loss: Loss = own_loss
    clip: float = CLIP
    joins: bool = False
    """Whether the loss compares records with each other, so that no gradient of a single record exists."""


@dataclass(frozen=True)
class Row:
    name: str
    privet: Verdict
    each: Verdict | None
    """With isolation="each", where the default refuses."""
    opacus: Verdict


def said(error: Exception) -> str:
    return " ".join(str(error).split())


def reason(error: PrivetError) -> str:
    """Of a refusal, the part that says why."""
    text = said(error)
    for start in ("belongs to which record: ", "keep the records apart: ", "cannot be formed: "):
        if start in text:
            text = text.split(start, 1)[1]
            break
    return re.split(r"\. (If|Give|For a penalty)", text)[0]


def judged(found: dict[str, Tensor], expected: dict[str, Tensor] | None, clip: float) -> Verdict:
    if expected is None:
        return Verdict("wrong", "the records are compared with each other, and nothing says so")
    away = distance(found, expected) / clip
    return Verdict("right") if away < CLOSE else Verdict("wrong", f"{away:.2g} C away from the sum of single records")


def ours(subject: Subject, expected: dict[str, Tensor] | None, isolation: str) -> Verdict:
    model, batch = subject.make()
    try:
        found, guarantee = train(model, batch, isolation, subject.clip, subject.loss)  # type: ignore[arg-type]
    except PrivetError as error:
        return Verdict("refused", reason(error))
    except Exception as error:
        return Verdict("crashed", f"{type(error).__name__}: {said(error)[:150]}")
    assert guarantee == "proved"
    return judged(found, expected, subject.clip)


def theirs(subject: Subject, expected: dict[str, Tensor] | None) -> Verdict:
    """Opacus: validator, per-sample gradients by hooks, clipping as in its optimizer."""
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    model, batch = subject.make()
    _drop_nothing(model.train())  # its hooks work in training mode only
    complaints = ModuleValidator.validate(model, strict=False)
    if complaints:
        return Verdict("refused", f"{type(complaints[0]).__name__}: {said(complaints[0])[:150]}")
    try:
        wrapped = GradSampleModule(model, loss_reduction="mean", strict=True)
    except NotImplementedError as error:
        return Verdict("refused", said(error)[:150])
    try:
        subject.loss(wrapped, batch).backward()
        found = _per_sample(wrapped, expected)
    except Exception as error:
        return Verdict("crashed", f"{type(error).__name__}: {said(error)[:150]}")
    norms = torch.stack([rows.flatten(1).norm(dim=1) for rows in found.values()]).norm(dim=0)
    factors = (subject.clip / (norms + 1e-6)).clamp(max=1.0)
    total = {name: torch.einsum("b,b...->...", factors, rows) for name, rows in found.items()}
    return judged(total, expected, subject.clip)


def _drop_nothing(model: nn.Module) -> None:
    """Training mode without what is drawn in it, so that its gradients can be compared with those of eval mode."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _per_sample(wrapped: nn.Module, expected: dict[str, Tensor] | None) -> dict[str, Tensor]:
    found = {}
    for name, parameter in wrapped._module.named_parameters():
        if not parameter.requires_grad:
            continue
        rows = getattr(parameter, "grad_sample", None)
        if isinstance(rows, list):
            rows = torch.stack([torch.as_tensor(part) for part in rows]).sum(0)
        if rows is None:
            if expected is not None and bool(expected[name].any()):
                raise ValueError(f"no per-sample gradient of {name}, which its optimizer refuses")
            rows = torch.zeros(RECORDS, *parameter.shape)
        if len(rows) != RECORDS:
            raise ValueError(f"{len(rows)} per-sample gradients of {name} for {RECORDS} records")
        found[name] = rows.detach().double()
    return found


def _architecture(each: Architecture, joins: bool = False) -> Subject:
    def make() -> tuple[nn.Module, Batch]:
        model = each.ready()
        torch.manual_seed(1)
        return model, each.batch()

    def comparing(model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = model(**batch, return_loss=True).loss
        return found

    return Subject(each.name, make, comparing if "pairs" in each.name else own_loss, CLIP, joins)


def subjects() -> list[Subject]:
    adapters = [
        Subject(f"{of} with {kind}", lambda kind=kind, of=of: made(kind, of), of_scores if kind == "AdaLoRA" else own_loss, SMALL)
        for kind, of in PAIRS
    ]  # fmt: skip
    return [*map(_architecture, ARCHITECTURES), *(_architecture(each, True) for each in JOINING), *adapters]


def measured(subject: Subject) -> Row:
    model, batch = subject.make()
    expected = None if subject.joins else clipped_sum_by_a_loop(model, batch, subject.clip, subject.loss)
    first = ours(subject, expected, "follow")
    each = ours(subject, expected, "each") if first.outcome == "refused" and not subject.joins else None
    return Row(subject.name, first, each, theirs(subject, expected))


def table(rows: list[Row]) -> str:
    lines = ["| model | Privet | why | Opacus | why |", "|---|---|---|---|---|"]
    for row in rows:
        outcome = row.privet.outcome if row.each is None else f'refused; {row.each.outcome} with `isolation="each"`'
        cells = [row.name, outcome, row.privet.why, row.opacus.outcome, row.opacus.why]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(lines)


def counts(rows: list[Row]) -> str:
    privet_counts = Counter(
        row.privet.outcome if row.each is None else f"{row.each.outcome}, one record at a time" for row in rows
    )
    opacus_counts = Counter(row.opacus.outcome for row in rows)
    outcomes = ("right", "right, one record at a time", "refused", "crashed", "wrong")
    lines = [f"| {each} | {privet_counts[each]} | {opacus_counts[each]} |" for each in outcomes]
    return "\n".join([f"| of {len(rows)} | Privet | Opacus |", "|---|---|---|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="Only models whose name contains this text; nothing is written.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows = []
    for subject in subjects():
        if arguments.only in subject.name:
            rows.append(measured(subject))
            row = rows[-1]
            print(row.name, row.privet, row.each or "", "Opacus:", row.opacus, flush=True)
    versions = f"Privet {privet.__version__}, " + ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("opacus", "transformers", "peft", "torch")
    )
    text = f"{versions}\n\n{counts(rows)}\n\n{table(rows)}\n"
    if arguments.only:
        print(text)
        return
    (RESULTS / "architectures.md").write_text(f"# Architectures\n\n{text}")
    record = {"versions": versions, "models": [asdict(row) for row in rows]}
    (RESULTS / "architectures.json").write_text(json.dumps(record, indent=1) + "\n")
    put("architectures.md", "architectures", text)
    print(counts(rows))


if __name__ == "__main__":
    main()
