"""One use of parameters by one operation of the forward pass, and the per-example gradients that it earns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.gradients.numerics import add_weighed, scaled_squared_norms, squared_norms, weigh

CHUNK_BYTES = 32 * 2**20
"""Per-example gradients that are not kept are formed in chunks of about this size: a fresh large buffer costs page
faults, a reused small one does not."""


@dataclass
class Budget:
    """How many bytes of per-example gradients may be kept until the clipping factors are known."""

    left: float

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


class Use:
    """What one operation did with parameters. A rule is a subclass with `receive` and, where it keeps its inputs, `form`.

    Formal guarantees: after `receive`, ``instantiate(rows)[slot]`` is the gradient of each record's loss with respect
    to the tensor in that slot through this operation; `squared_norms` and `weighted_sum` are that gradient's squared
    norms and its sum with weights, however a rule computes them. What a record adds to the weighted sum is never longer
    than its weight times the root of its squared norm, but for 1e-5 of it: either the norm was taken of the very numbers
    that are summed, or it is enlarged by what rounding can do to them. Sums and weights are float64.
    """

    per_record: tuple[str, ...] = ()
    """The names of the attributes whose first dimension is the record: what a rule keeps until the weights are known."""
    chunk_bytes = CHUNK_BYTES
    """How much `form` forms at a time. The norms and the sum take the same chunks, so that they see the same numbers."""
    weighed_alike = False
    """Whether the weighted sum that is being taken has the same weights for all parameters of all uses."""

    def __init__(self, module: str, records: int, slots: dict[str, Tensor]) -> None:
        self.module = module
        self.records = records
        self.slots = slots
        """The parameters (or tensors computed from parameters alone), by the names that the rule gives them."""
        self.method = ""
        """How the norms are computed; set by `receive`, shown by ``engine.explain()``."""
        self.gradients: dict[str, Tensor] | None = None
        """The per-example gradients, where they are kept."""
        self.norms: dict[str, Tensor] = {}
        """Their squared norms, where they were taken while the gradients were still in the cache."""

    @property
    def kind(self) -> str:
        return type(self).__name__

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: Budget) -> None:
        """Take the saved inputs and the gradient of the output; called in the backward pass."""
        raise NotImplementedError(self.kind)

    def join(self, others: Sequence[Use], budget: Budget) -> Use | None:
        """One use in the place of this one and others with the same slots (a layer called often), where there is one."""
        return None

    def form(self, rows: slice) -> dict[str, Tensor]:
        """Form the per-example gradients of the records in `rows`, each of shape ``(rows, *slot.shape)``."""
        raise NotImplementedError(self.kind)

    def form_squared_norms(self) -> dict[str, Tensor]:
        """The squared norms from what is kept; a rule overrides it where there is a shorter way than `form`."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.slots}
        for rows in self.chunks():
            for name, gradients in self.form(rows).items():
                found[name].append(squared_norms(gradients))
        return {name: torch.cat(parts) for name, parts in found.items()}

    def form_weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weighted sum from what is kept; a rule overrides it where there is a shorter way than `form`."""
        total = {n: torch.zeros(t.shape, dtype=torch.float64, device=t.device) for n, t in self.slots.items()}
        for rows in self.chunks():
            for name, gradients in self.form(rows).items():
                add_weighed(total[name], gradients, weights[name][rows])
        return total

    def hold(self, gradients: dict[str, Tensor], method: str = "instances") -> None:
        """Keep formed per-example gradients; what they were formed from can go."""
        self.gradients, self.method = gradients, method

    def instantiate(self, rows: slice) -> dict[str, Tensor]:
        if self.gradients is None:
            return self.form(rows)
        return {name: gradients[rows] for name, gradients in self.gradients.items()}

    def squared_norms(self) -> dict[str, Tensor]:
        if self.gradients is None:
            return self.form_squared_norms()
        return {n: self.norms[n] if n in self.norms else squared_norms(g) for n, g in self.gradients.items()}

    def scaled_squared_norms(self, scales: dict[str, Tensor]) -> dict[str, Tensor]:
        """The squared norms after each gradient was multiplied elementwise by the scale of its slot."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.slots}
        for rows in self.chunks():
            for name, gradients in self.instantiate(rows).items():
                found[name].append(scaled_squared_norms(gradients, scales[name]))
        return {name: torch.cat(parts) for name, parts in found.items()}

    def weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.gradients is None:
            return self.form_weighted_sum(weights)
        return {name: weigh(gradients, weights[name]) for name, gradients in self.gradients.items()}

    def rounding(self, slot: str) -> Tensor | None:
        """For each record, how far what it adds to the weighted sum can be from its weight times `instantiate`, as a
        norm and for a weight of 1; None where that is not known."""
        return None if self.gradients is None else torch.zeros(self.records, dtype=torch.float64)

    def drop(self, bad: Tensor) -> None:
        """Make the records where `bad` is true contribute exact zeros: a weight of zero times NaN is still NaN."""
        if self.gradients is not None:
            self.gradients = {name: _without(gradients, bad) for name, gradients in self.gradients.items()}
        for name in self.per_record:
            kept = getattr(self, name, None)
            if kept is not None:
                setattr(self, name, _without(kept, bad))

    def instance_bytes(self) -> int:
        """What keeping the per-example gradients of every record would take."""
        return self.records * sum(t.numel() * t.element_size() for t in self.slots.values())

    def kept_bytes(self) -> int:
        """What this use keeps between the backward pass and the sum."""
        kept = list((self.gradients or {}).values()) + [getattr(self, name, None) for name in self.per_record]
        return sum(t.numel() * t.element_size() for t in kept if isinstance(t, Tensor))

    def chunks(self, size: int | None = None) -> Iterator[slice]:
        """Slices of the records whose per-example gradients fit `size` bytes, by default `chunk_bytes`."""
        step = max((size or self.chunk_bytes) * self.records // max(self.instance_bytes(), 1), 1)
        for start in range(0, self.records, step):
            yield slice(start, min(start + step, self.records))


def _without(rows: Tensor, bad: Tensor) -> Tensor:
    return torch.where(bad.view(-1, *[1] * (rows.ndim - 1)), torch.zeros((), dtype=rows.dtype), rows)
