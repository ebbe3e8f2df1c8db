"""The gradients of every record of one physical batch, held in whatever form is cheapest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from privet.gradients.norms import squared_norms
from privet.gradients.recorder import Pass, Recorder
from privet.gradients.use import CHUNK_BYTES, Budget, Use


class PerExampleGradients:
    """Gradients of the records' losses: their norms, and their sum with weights that depend on the norms.

    Formal guarantees: with ``g[i][name]`` the gradient of record i's own loss, `squared_norms` returns ``|g[i][name]|^2``
    and ``weighted_sum(w)`` returns the sum over i of ``w[name][i] * g[i][name]``. All uses of a parameter count, tied
    or repeated ones with their cross terms. A record whose gradient is not finite anywhere has norm zero and
    contributes zero everywhere; `bad` says which.
    """

    def __init__(self, recorder: Recorder, finished: Pass, scale: float) -> None:
        self.records = finished.records
        self.names = tuple(recorder.parameters)
        self._parameters = recorder.parameters
        self._scale = scale
        """What turns the gradient of the batch's loss into gradients of the records' own losses."""
        self.uses = tuple(_joined(finished.received, finished.budget))
        self._targets = [
            (use, slot, tensor, recorder.sources(tensor)) for use in self.uses for slot, tensor in use.slots.items()
        ]
        self._groups = tuple(self._find_groups())
        self._squared_norms: dict[str, Tensor] | None = None
        self._total = torch.empty(0)
        self.bad = torch.zeros(self.records, dtype=torch.bool)

    def squared_norms(self) -> dict[str, Tensor]:
        """For each parameter, the squared norm of every record's gradient, as float64."""
        if self._squared_norms is None:
            with torch.no_grad():
                norms = torch.stack(list(self._compute_squared_norms().values())).mul_(self._scale**2)
                self._total = norms.sum(0)
                if not self._total.isfinite().all():
                    self.bad = ~self._total.isfinite()
                    for use in self.uses:
                        use.drop(self.bad)
                    norms[:, self.bad], self._total[self.bad] = 0.0, 0.0
                self._squared_norms = dict(zip(self.names, norms, strict=True))
        return self._squared_norms

    def total_squared_norms(self) -> Tensor:
        """The squared norm of every record's whole gradient, as float64."""
        self.squared_norms()
        return self._total

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For each parameter, the sum over the records of weight times gradient."""
        self.squared_norms()  # finds the records that must not take part
        by_name = dict.fromkeys(self.names, weights) if isinstance(weights, Tensor) else dict(weights)
        # Names that shared a weight still do: what they share is computed once.
        once = {id(weight): weight * self._scale for weight in by_name.values()}
        scaled = {name: once[id(weight)] for name, weight in by_name.items()}
        total: dict[str, Tensor] = {}
        with torch.no_grad():
            for use in self.uses:
                self._add_weighted(use, scaled, total)
        return {n: total[n] if n in total else torch.zeros_like(p) for n, p in self._parameters.items()}

    def instantiate(self) -> dict[str, Tensor]:
        """All per-example gradients, ``(records, *shape)`` for each parameter: for small models, tests and audits."""
        self.squared_norms()
        whole = {n: torch.zeros(self.records, *p.shape, dtype=p.dtype) for n, p in self._parameters.items()}
        with torch.no_grad():
            for group in self._groups:
                for rows, gradients in self._formed(group):
                    for name, gradient in gradients.items():
                        whole[name][rows] = gradient * self._scale
        return whole

    def scaled_squared_norms(self, scales: Mapping[str, Tensor]) -> Tensor:
        """The squared norm of every record's gradient after multiplying it elementwise by `scales`."""
        self.squared_norms()
        total = torch.zeros(self.records, dtype=torch.float64)
        with torch.no_grad():
            for group in self._groups:
                for rows, gradients in self._formed(group):
                    for name, gradient in gradients.items():
                        total[rows] += squared_norms(gradient * scales[name])
        return total * self._scale**2

    # --- how --------------------------------------------------------------------------------------------------------

    def _find_groups(self) -> Iterator[tuple[tuple[Use, str, Tensor], ...]]:
        """Uses that must be added up before their norm is taken: those that share a parameter."""
        parent = {name: name for name in self.names}

        def root(name: str) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        for _, _, _, names in self._targets:
            for other in names[1:]:
                parent[root(other)] = root(names[0])
        groups: dict[str, list[tuple[Use, str, Tensor]]] = defaultdict(list)
        for use, slot, tensor, names in self._targets:
            groups[root(names[0])].append((use, slot, tensor))
        for group in groups.values():
            yield tuple(group)

    def _is_simple(self, group: tuple[tuple[Use, str, Tensor], ...]) -> bool:
        return len(group) == 1 and self._name_of(group[0][2]) is not None

    def _name_of(self, tensor: Tensor) -> str | None:
        return next((name for name, p in self._parameters.items() if p is tensor), None)

    def _compute_squared_norms(self) -> dict[str, Tensor]:
        norms = {name: torch.zeros(self.records, dtype=torch.float64) for name in self.names}
        simple = [group[0] for group in self._groups if self._is_simple(group)]
        wanted: dict[Use, list[tuple[str, str]]] = defaultdict(list)
        for use, slot, tensor in simple:
            name = self._name_of(tensor)
            assert name is not None
            wanted[use].append((slot, name))
        for use, slots in wanted.items():
            found = use.squared_norms()
            for slot, name in slots:
                norms[name] = found[slot]
        for group in self._groups:
            if not self._is_simple(group):
                for rows, gradients in self._formed(group):
                    for name, gradient in gradients.items():
                        norms[name][rows] = squared_norms(gradient)
        return norms

    def _formed(self, group: tuple[tuple[Use, str, Tensor], ...]) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Per-example gradients of a group's parameters, chunk by chunk, added up over the uses."""
        size = max(sum(tensor.numel() * tensor.element_size() for _, _, tensor in group), 1)
        step = max(CHUNK_BYTES // size, 1)
        for start in range(0, self.records, step):
            rows = slice(start, min(start + step, self.records))
            total: dict[str, Tensor] = {}
            for use, slot, tensor in group:
                for name, gradient in self._pull_back(tensor, use.instantiate(rows)[slot], batched=True).items():
                    total[name] = total[name] + gradient if name in total else gradient
            yield rows, total

    def _pull_back(self, tensor: Tensor, gradient: Tensor, *, batched: bool) -> dict[str, Tensor]:
        """From the gradient of a tensor computed from parameters to the gradients of those parameters."""
        name = self._name_of(tensor)
        if name is not None:
            return {name: gradient}
        parameters = list(self._parameters.items())
        pulled = torch.autograd.grad(
            tensor, [p for _, p in parameters], gradient, retain_graph=True, allow_unused=True, is_grads_batched=batched
        )
        return {n: g for (n, _), g in zip(parameters, pulled, strict=True) if g is not None}

    def _add_weighted(self, use: Use, weights: dict[str, Tensor], total: dict[str, Tensor]) -> None:
        by_slot = {slot: self._sources_of(use, slot) for slot in use.slots}
        # Parameters behind one slot may carry different weights (per-layer clipping): one sum for each weight.
        distinct = {id(weights[n]): weights[n] for names in by_slot.values() for n in names}
        for key, weight in distinct.items():
            chosen = [slot for slot, names in by_slot.items() if any(id(weights[n]) == key for n in names)]
            summed = use.weighted_sum(dict.fromkeys(use.slots, weight))
            for slot in chosen:
                for name, gradient in self._pull_back(use.slots[slot], summed[slot], batched=False).items():
                    if id(weights[name]) == key:
                        total[name] = total[name] + gradient if name in total else gradient

    def _sources_of(self, use: Use, slot: str) -> list[str]:
        return next(names for u, s, _, names in self._targets if u is use and s == slot)


@torch.no_grad()
def _joined(uses: Sequence[Use], budget: Budget) -> Iterator[Use]:
    """The uses, with those that do the same with the same parameters joined into one where their rule can."""
    alike: dict[tuple[object, ...], list[Use]] = defaultdict(list)
    for use in uses:
        alike[type(use), *((slot, id(tensor)) for slot, tensor in use.slots.items())].append(use)
    for first, *others in alike.values():
        whole = first.join(others, budget) if others else None
        yield from (first, *others) if whole is None else (whole,)
