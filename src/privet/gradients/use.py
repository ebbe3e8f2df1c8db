"""One use of parameters by one operation of the forward pass, and the per-example gradients that come from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.gradients.numerics import add_weighed, scaled_squared_norms, squared_norms, weigh

CHUNK_BYTES = 32 * 2**20
"""Per-example gradients that are not kept are formed in chunks of about this size: a fresh large buffer costs page faults, a
small reused one does not."""


@dataclass
class MemoryBudget:
    """How many bytes of per-example gradients may be kept until the clipping factors are known."""

    left: float

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


class Use:
    """What one operation did with parameters. A rule is a subclass with `receive` and, if it keeps its inputs, `form`.

    Formal guarantees: after `receive`, ``instantiate(rows)[slot]`` is the gradient of each record's loss with respect to the
    tensor in that slot through this operation. `squared_norms` and `weighted_sum` are the squared norms and the weighted sum of
    these gradients, however a rule computes them. The norm of what a record adds to the weighted sum exceeds its weight times
    the root of its squared norm by at most a factor of 1 + 1e-5: either the norm was taken of the very numbers that are summed,
    or it is enlarged by a bound on their rounding. Sums and weights are float64.
    """

    per_record: tuple[str, ...] = ()
    """The names of the attributes whose first dimension is the record: the tensors that a rule keeps until the weights are
    known."""
    chunk_bytes = CHUNK_BYTES
    """The size of the chunks that `form` is given. The norms and the sum use the same chunks, so that they see the same
    numbers."""
    weighed_alike = False
    """Whether all parameters of all uses have the same weights in the current weighted sum."""

    def __init__(self, module: str, records: int, slots: dict[str, Tensor]) -> None:
        self.module = module
        self.records = records
        self.slots = slots
        """The parameters (or tensors computed from parameters alone), by the names that the rule gives them."""
        self.method = ""
        """How the norms are computed; set by `receive`, shown by ``engine.explain()``."""
        self.gradients: dict[str, Tensor] | None = None
        """The per-example gradients, if they are kept."""
        self.norms: dict[str, Tensor] = {}
        """Their squared norms, if they were computed while the gradients were still in the cache."""

    @property
    def kind(self) -> str:
        return type(self).__name__

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        """Take the saved inputs and the gradient of the output; called in the backward pass."""
        raise NotImplementedError(self.kind)

    def join(self, others: Sequence[Use], budget: MemoryBudget) -> Use | None:
        """One use that replaces this one and others with the same slots (a layer that is called often); None if the rule has
        none."""
        return None

    def form(self, rows: slice) -> dict[str, Tensor]:
        """Form the per-example gradients of the records in `rows`, each of shape ``(rows, *slot.shape)``."""
        raise NotImplementedError(self.kind)

    def form_squared_norms(self) -> dict[str, Tensor]:
        """The squared norms; a rule overrides this if it has a faster way than `form`."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.slots}
        for rows in self.chunks():
            for name, gradients in self.form(rows).items():
                found[name].append(squared_norms(gradients))
        return {name: torch.cat(parts) for name, parts in found.items()}

    def form_weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weighted sum; a rule overrides this if it has a faster way than `form`."""
        total = {n: torch.zeros(t.shape, dtype=torch.float64, device=t.device) for n, t in self.slots.items()}
        for rows in self.chunks():
            for name, gradients in self.form(rows).items():
                add_weighed(total[name], gradients, weights[name][rows])
        return total

    def hold(self, gradients: dict[str, Tensor], method: str = "instances") -> None:
        """Keep per-example gradients; the tensors that they were formed from are no longer needed."""
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
        """For each record, a bound on the norm of the difference between what it adds to the weighted sum and `instantiate`,
        for a weight of 1; None if no bound is known."""
        return None if self.gradients is None else self.zeros()

    def drop(self, bad: Tensor) -> None:
        """Make the records where `bad` is true contribute exact zeros: a weight of zero times NaN is still NaN."""
        if self.gradients is not None:
            self.gradients = {name: _without(gradients, bad) for name, gradients in self.gradients.items()}
        for name in self.per_record:
            kept = getattr(self, name, None)
            if kept is not None:
                setattr(self, name, _without(kept, bad))

    def zeros(self) -> Tensor:
        """A zero for each record, on the device of the parameters."""
        first = next(iter(self.slots.values()))
        return torch.zeros(self.records, dtype=torch.float64, device=first.device)

    def instance_bytes(self) -> int:
        """The memory that the per-example gradients of all records would take."""
        return self.records * sum(t.numel() * t.element_size() for t in self.slots.values())

    def kept_bytes(self) -> int:
        """The memory that this use takes between the backward pass and the sum."""
        kept = list((self.gradients or {}).values()) + [getattr(self, name, None) for name in self.per_record]
        return sum(t.numel() * t.element_size() for t in kept if isinstance(t, Tensor))

    def chunks(self, size: int | None = None) -> Iterator[slice]:
        """Slices of the records whose per-example gradients fit `size` bytes, by default `chunk_bytes`."""
        step = max((size or self.chunk_bytes) * self.records // max(self.instance_bytes(), 1), 1)
        for start in range(0, self.records, step):
            yield slice(start, min(start + step, self.records))


def _without(rows: Tensor, bad: Tensor) -> Tensor:
    return torch.where(bad.view(-1, *[1] * (rows.ndim - 1)), rows.new_zeros(()), rows)
