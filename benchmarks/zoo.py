"""Every trap of the zoo (tests/zoo) on Privet, with Opacus beside it where Opacus runs the model and the loss.

Both are measured the same way: the clipped sum on all records, and on all records but one. The largest change is given in C;
a proof needs at most 1 (2 where a record is replaced). Opacus runs as GradSampleModule with hooks and flat clipping, without its
optimizer: traps that are about the loop have no entry for it.

    PYTHONPATH=. python benchmarks/zoo.py [--only loss] [--isolation follow] [--keep-opacus]

It writes benchmarks/results/zoo.json and zoo.md. With ``--only`` it measures the traps of some kinds anew, and keeps the other
results of the file; with ``--keep-opacus`` it keeps what the file says of Opacus.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))
import privet
from tests.objects import freeze
from tests.zoo.catalog import TRAPS
from tests.zoo.harness import (
    DIFFERENCE,
    SLACK,
    Outcome,
    Trap,
    Verdict,
    classic,
    clipped_sum,
    fresh,
    judge,
    norm_of,
    record_gradients,
    tensors_of,
    with_vector,
)

RESULTS = Path(__file__).parent / "results"
NOT_RUN = "-"


@dataclass(frozen=True)
class Row:
    kind: str
    name: str
    passed: bool
    privet: str
    privet_change: float | None
    privet_reason: str
    opacus: str
    opacus_change: float | None
    opacus_reason: str


def _reduction(trap: Trap) -> str:
    """What a user would state: the sum, where the loss of all records twice is twice the loss."""
    assert trap.loss is not None
    torch.manual_seed(11)
    batch = tensors_of(trap)
    once = trap.loss(fresh(trap), batch)
    if once.numel() > 1:
        return "sum"
    twice = trap.loss(fresh(trap), tuple(torch.cat([t, t]) for t in batch))
    return "sum" if abs(float(twice.detach()) - 2 * float(once.detach())) < 1e-3 * abs(float(once.detach())) else "mean"


def _opacus_sum(trap: Trap, changed: int | None, bound: float) -> tuple[Tensor, list[Tensor]]:
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    assert trap.loss is not None
    model = fresh(trap)
    complaints = ModuleValidator.validate(model, strict=False)
    if complaints:
        raise complaints[0]
    model.train(trap.model().training)
    wrapped = GradSampleModule(model, loss_reduction=_reduction(trap), strict=True)
    batch = tensors_of(trap, changed)
    torch.manual_seed(11)
    loss = trap.loss(wrapped, batch)
    loss.sum().backward()
    found = []
    for p in wrapped.parameters():
        if p.requires_grad:
            sample = getattr(p, "grad_sample", None)
            if sample is None:
                sample = torch.zeros(len(batch[0]), *p.shape)
            if isinstance(sample, list):
                sample = torch.stack(sample).sum(0)
            if len(sample) != len(batch[0]):
                raise RuntimeError(f"{len(sample)} per-sample gradients for {len(batch[0])} records")
            found.append(sample.detach().double().flatten(1))
    rows = torch.cat(found, 1)
    factors = (bound / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0)  # as in its DPOptimizer
    return (rows * factors[:, None]).sum(0), [b.detach().clone() for b in model.buffers()]


def opacus(trap: Trap) -> Verdict:
    bound = norm_of(trap)
    try:
        (whole, kept), *neighbors = [_opacus_sum(trap, i, bound) for i in (None, *trap.left_out)]
        others = [each for each, _ in neighbors]
    except Exception as error:
        return Verdict(Outcome.REFUSED, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", math.nan)
    if not all(t.isfinite().all() for t in (whole, *others)):
        return Verdict(Outcome.WRONG, "the clipped sum is not finite", math.inf)
    change = max((float((whole - other).norm()) / bound for other in others), default=math.nan)
    if change > (2 if trap.replace else 1) * (1 + SLACK):
        return Verdict(Outcome.WRONG, f"one record changes the clipped sum by {change:.3g} C", change)
    if any(not torch.equal(a, b) for _, buffers in neighbors for a, b in zip(kept, buffers, strict=True)):
        return Verdict(Outcome.WRONG, "a buffer depends on a record", change)
    if trap.oracle is not None:
        away = float((whole - clipped_sum(record_gradients(trap, trap.oracle), bound)).norm()) / bound
        if away > DIFFERENCE:
            return Verdict(Outcome.WRONG, f"the clipped sum is {away:.3g} C away from that of single records", change)
    return Verdict(Outcome.RIGHT, "", change)


def measured(trap: Trap, isolation: str | None, earlier: Row | None = None) -> Row:
    """The row of a trap; what an earlier one says of Opacus is kept."""
    ours = judge(trap, isolation)
    if earlier is not None:
        said = (earlier.opacus, earlier.opacus_change, earlier.opacus_reason)
        return Row(
            trap.kind,
            trap.name,
            ours.outcome in trap.allowed,
            ours.outcome.value,
            _number(ours.change),
            ours.reason,
            *said,
        )
    runs = trap.loss is not None and trap.body in (classic, with_vector) and trap.steps == 1
    theirs = opacus(trap) if runs and trap.alone is None and trap.wrap is None and trap.public is None else None
    return Row(
        trap.kind,
        trap.name,
        ours.outcome in trap.allowed,
        ours.outcome.value,
        _number(ours.change),
        ours.reason,
        theirs.outcome.value if theirs else NOT_RUN,
        _number(theirs.change) if theirs else None,
        theirs.reason if theirs else "",
    )


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def page(rows: list[Row], title: str) -> str:
    outcomes = [o.value for o in Outcome]
    lines = [title, "", "| kind | traps | " + " | ".join(outcomes) + " | not as it should be | Opacus WRONG |"]
    lines.append("|---" * (len(outcomes) + 4) + "|")
    for kind in [*dict.fromkeys(row.kind for row in rows), None]:
        those = [row for row in rows if kind is None or row.kind == kind]
        counted = Counter(row.privet for row in those)
        run = [row for row in those if row.opacus != NOT_RUN]
        lines.append(
            f"| {kind or '**all**'} | {len(those)} | "
            + " | ".join(str(counted[o] or "") for o in outcomes)
            + f" | {sum(not row.passed for row in those) or ''} | "
            + (f"{sum(row.opacus == 'WRONG' for row in run)} of {len(run)} tried |" if run else "|")
        )
    lines += ["", "| kind | trap | Privet | change in C | Opacus | change in C |", "|---|---|---|---|---|---|"]
    for row in rows:
        name = row.name.replace("|", "\\|")
        lines.append(
            f"| {row.kind} | `{name}` | {row.privet}{'' if row.passed else ' (!)'} | {_shown(row.privet_change)} | "
            f"{row.opacus} | {_shown(row.opacus_change)} |"
        )
    return "\n".join(lines) + "\n"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _kept(path: Path, versions: str) -> dict[tuple[str, str], Row]:
    """The rows of an earlier run with the same versions, by kind and name."""
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("versions") != versions:
        return {}
    return {(row["kind"], row["name"]): Row(**row) for row in record["traps"]}


def _write(rows: list[Row], path: Path, versions: str, isolation: str | None) -> str:
    how = f"isolation={isolation}" if isolation else "default settings"
    text = page(
        rows, f"# The zoo\n\n{versions}, {how}. `python benchmarks/zoo.py` writes this page. (!): must be otherwise."
    )
    path.with_suffix(".md").write_text(text)
    record = {"versions": versions, "isolation": isolation, "traps": [row.__dict__ for row in rows]}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="Only kinds with one of these texts (commas between).")
    parser.add_argument("--isolation", default=None, help="follow, each or assume; this version's default without it.")
    parser.add_argument("--keep-opacus", action="store_true", help="Keep what the file says of Opacus.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    freeze()
    versions = f"Privet {privet.__version__}, Opacus {importlib.metadata.version('opacus')}, torch {torch.__version__}"
    path = RESULTS / ("zoo.json" if arguments.isolation is None else f"zoo-{arguments.isolation}.json")
    earlier = _kept(path, versions)
    wanted = [trap for trap in TRAPS if any(text in trap.kind for text in arguments.only.split(","))]
    text = ""
    for kind in dict.fromkeys(trap.kind for trap in wanted):
        fresh_rows: dict[tuple[str, str], Row] = {}
        for trap in (trap for trap in wanted if trap.kind == kind):
            known = earlier.get((trap.kind, trap.name)) if arguments.keep_opacus else None
            row = fresh_rows[trap.kind, trap.name] = measured(trap, arguments.isolation, known)
            if not row.passed:
                print(f"{trap}: {row.privet}: {row.privet_reason}", flush=True)
        rows = {**_kept(path, versions), **fresh_rows}
        ordered = [rows[trap.kind, trap.name] for trap in TRAPS if (trap.kind, trap.name) in rows]
        text = _write(ordered, path, versions, arguments.isolation)
        print(f"{kind}: {len(fresh_rows)} traps", flush=True)
    print(text.split("\n| kind | trap |")[0])


if __name__ == "__main__":
    main()
