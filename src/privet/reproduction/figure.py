"""The figure of the residual-perturbation paper: a picture recovered from its features, and how far off it is."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from privet.attacks.reversal import convolved, draw_reversal, picture, reverse
from privet.io import write_whole

PICTURE, ERRORS = "reversal.jpg", "reversal.json"


def make_figure(folder: Path, image: Path | None = None) -> tuple[Path, dict[str, float]]:
    """Run the reversal with and without noise; gives the picture's file and the error of each recovery."""
    folder.mkdir(parents=True, exist_ok=True)
    original = picture(image)
    field, generator = convolved(), torch.Generator().manual_seed(0)
    found = {
        "ODE": reverse(original, field),
        "SDE, strategy I, gamma 1": reverse(original, field, gamma=1.0, generator=generator),
        "SDE, strategy II, gamma 1": reverse(original, field, gamma=1.0, multiplicative=True, generator=generator),
    }
    path = draw_reversal(folder / PICTURE, found)
    errors = {name: each.rmse for name, each in found.items()}
    write_whole(folder / ERRORS, f"{json.dumps(errors)}\n".encode(), mode=0o644)
    return path, errors


def read_errors(folder: Path) -> dict[str, float]:
    """The errors that `make_figure` left in a folder; empty where it has not been there."""
    try:
        found: dict[str, float] = json.loads((folder / ERRORS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
