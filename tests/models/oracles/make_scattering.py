"""Make scattering.json: the coefficients of one small image by kymatio 0.3.0 (BSD-3), an independent implementation.

    pip install kymatio==0.3.0 "scipy<1.15"
    python tests/models/oracles/make_scattering.py

kymatio 0.3.0 asks SciPy for a function that newer versions lack, so it is no dependency of the tests.
"""

import json
from pathlib import Path

import torch
from kymatio.torch import Scattering2D


def image(height: int, width: int) -> torch.Tensor:
    """A picture with edges and waves, from a formula."""
    y, x = torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij")
    return (0.5 + 0.3 * torch.sin(17 * x + 5 * y) + 0.2 * ((x - y) > 0.1))[None, None]


if __name__ == "__main__":
    found = {}
    for height, width, scales, angles in ((12, 12, 2, 8), (8, 16, 1, 4), (12, 16, 2, 4)):
        maps = Scattering2D(scales, (height, width), L=angles)(image(height, width))[0, 0]
        found[f"{height} {width} {scales} {angles}"] = [round(value, 6) for value in maps.flatten().tolist()]
    Path(__file__).with_name("scattering.json").write_text(json.dumps(found) + "\n")
