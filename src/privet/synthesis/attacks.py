"""The attacks on artificial data, for a run: training records against test records of the same distribution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from privet.attacks import closest_records, density_ratio, distance_attack, exact_copies
from privet.attacks.synthetic import ClosestRecords, Copies, nearest
from privet.data import Dataset
from privet.io import write_whole
from privet.report import AttackResult
from privet.synthesis.pictures import draw_distances, draw_neighbours

NAMES = {"distance": "Distance to the closest artificial example", "density": "Density of the artificial examples"}
INTERNAL = "internal"
ASKED = 2000
"""So many records of each side are compared."""
ROWS = 4000
"""At most so many artificial examples are looked at."""


def membership(
    inputs: Tensor, dataset: Dataset, kind: str = "distance", *, asked: int = ASKED, seed: int = 0
) -> AttackResult:
    """Can training records be told from test records by the artificial examples? `asked` are taken of each side.

    "density" compares with the density of half of the test records, which are then not asked about.
    """
    generator = torch.Generator().manual_seed(seed)
    members, others = _sides(dataset, asked, generator)
    rows = _some(inputs, ROWS, generator)
    if kind == "distance":
        return AttackResult.of(NAMES[kind], distance_attack(rows, members, others))
    reference, others = others.tensor_split(2)
    return AttackResult.of(NAMES[kind], density_ratio(_some(rows, asked, generator), reference, members, others))


def closeness(inputs: Tensor, dataset: Dataset, *, asked: int = ASKED, seed: int = 0) -> tuple[ClosestRecords, Copies]:
    """How close artificial examples come to training records, against test records; and how many are copies.

    The distances are those of `asked` examples and records of each side; for copies all are compared with all.
    """
    generator = torch.Generator().manual_seed(seed)
    members, others = _sides(dataset, asked, generator)
    rows = _some(inputs, asked, generator)
    copies = exact_copies(inputs, dataset.train.tensors[0], dataset.test.tensors[0])
    return closest_records(rows, members, others, generator), copies


def write_internal(folder: Path, inputs: Tensor, dataset: Dataset, measured: Mapping[str, str]) -> Path:
    """Fill ``folder/internal``: what was computed from records without noise, and is not for release."""
    internal = folder / INTERNAL
    internal.mkdir(mode=0o700, exist_ok=True)
    internal.chmod(0o700)  # it may have been there
    generator = torch.Generator().manual_seed(0)
    members, others = _sides(dataset, ASKED, generator)
    rows = _some(inputs, ASKED, generator)
    size = min(len(members), len(others))
    near = [nearest(rows.flatten(1), side[:size].flatten(1)) for side in (members, others)]
    draw_distances(internal / "distances.png", *near)
    lines = ["# Internal, not for release", "", "Computed from the records without noise.", ""]
    lines += [f"- {name}: {said}." for name, said in measured.items()]
    lines += [f"- {found}." for found in closeness(inputs, dataset)]
    lines += ["", "![Distances](distances.png)"]
    if inputs.ndim == 4:
        draw_neighbours(internal / "neighbours.png", rows, dataset.train.tensors[0], dataset.test.tensors[0])
        lines += ["", "Artificial examples, the nearest training record, the nearest held-out record:", ""]
        lines += ["![Nearest records](neighbours.png)"]
    write_whole(internal / "quality.md", ("\n".join(lines) + "\n").encode(), mode=0o600)
    return internal


def _sides(dataset: Dataset, asked: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    members, others = (
        split.batch(torch.randperm(len(split), generator=generator)[:asked])[0]
        for split in (dataset.train, dataset.test)
    )
    return members, others


def _some(inputs: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return inputs[torch.randperm(len(inputs), generator=generator)[:count]]
