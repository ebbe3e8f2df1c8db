"""Within a step, new tensors are on the device of the parameters, and values go to the host only where it is listed here.

There is no accelerator in the tests: this reads the source. It sees calls by name, and nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import privet

SOURCE = Path(privet.__file__).parent
STEP = (
    *sorted((SOURCE / "gradients").rglob("*.py")),
    *sorted((SOURCE / "clipping").glob("*.py")),
    SOURCE / "noise" / "gaussian.py",
    SOURCE / "training" / "step.py",
    SOURCE / "training" / "private.py",
)
MAKING = frozenset("zeros ones empty full arange tensor rand randn eye linspace as_tensor".split())
TO_THE_HOST = frozenset("cpu item numpy tolist".split())
KNOWN = {
    (
        "gradients/operation.py",
        "torch.empty((), requires_grad=True)",
    ),  # an anchor of the graph: nobody computes with it
    ("gradients/rules/recurrent.py", "torch.empty((), requires_grad=True)"),
    ("gradients/rules/normalization.py", "torch.empty((), requires_grad=True)"),
    ("gradients/rules/recurrent.py", "torch.tensor([t.shape[2] for t in inputs.values()])"),  # sizes
    ("gradients/following/places.py", "torch.as_tensor(i)"),  # an index that the user gave
    ("gradients/following/entries.py", "lengths.tolist()"),
    ("gradients/per_example.py", "total.sum().item()"),  # whether a record is not finite
    (
        "gradients/rules/embedding.py",
        "torch.searchsorted(self.owners, torch.tensor([start, stop], device=self.owners.device)).tolist()",
    ),
    ("noise/gaussian.py", "torch.empty(x.numel())"),  # drawn where the generator is, and moved
    ("training/private.py", "torch.arange(each)"),  # rows of a self-check, for an index on the host
    ("training/private.py", "torch.tensor(leaf)"),  # for a fingerprint
    ("training/private.py", "whole(leaf).cpu()"),  # a checkpoint
}


def found_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, node.func.value
            of_torch = isinstance(owner, ast.Name) and owner.id == "torch"
            placed = any(keyword.arg == "device" for keyword in node.keywords)
            if (of_torch and name in MAKING and not placed) or (name in TO_THE_HOST and not node.args):
                yield ast.unparse(node)


def test_no_tensor_of_a_step_is_made_elsewhere() -> None:
    found = {(str(path.relative_to(SOURCE)), call) for path in STEP for call in found_in(path.read_text())}
    assert found == KNOWN


def test_the_check_can_fail() -> None:
    assert list(found_in("norms = torch.zeros(3, dtype=x.dtype)\nlongest = norms.max().item()")) == [
        "torch.zeros(3, dtype=x.dtype)",
        "norms.max().item()",
    ]
    assert not list(found_in("norms = torch.zeros(3, device=x.device) + x.new_zeros(3)"))
