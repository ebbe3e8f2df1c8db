"""The gradients of every record of one physical batch, held in whatever form is cheapest."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from privet.errors import PrivetError
from privet.gradients.norms import squared_norms
from privet.gradients.marks import Pass
from privet.gradients.recorder import Recorder
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
        self._sources = {use: {slot: recorder.sources(t) for slot, t in use.slots.items()} for use in self.uses}
        """For each use and slot, the names of the parameters behind it."""
        self._name_of = recorder.name_of
        self._groups = tuple(self._find_groups())
        self._norms: tuple[dict[str, Tensor], Tensor] | None = None
        """Squared norms for each parameter in use, before they are scaled, and scaled ones of the whole gradients."""
        self._bad: Tensor | None = None
        self._spent = False

    def squared_norms(self) -> dict[str, Tensor]:
        """For each parameter, the squared norm of every record's gradient, as float64."""
        norms = self._measured()[0]
        nothing = torch.zeros(self.records, dtype=torch.float64)
        return {name: norms[name] * self._scale**2 if name in norms else nothing for name in self.names}

    def total_squared_norms(self) -> Tensor:
        """The squared norm of every record's whole gradient, as float64."""
        return self._measured()[1]

    @property
    def bad(self) -> Tensor:
        """Which records have a gradient that is not finite."""
        self._measured()
        return torch.zeros(self.records, dtype=torch.bool) if self._bad is None else self._bad

    @property
    def bad_count(self) -> int:
        """How many records have a gradient that is not finite."""
        self._measured()
        return 0 if self._bad is None else int(self._bad.sum())

    @torch.no_grad()
    def _measured(self) -> tuple[dict[str, Tensor], Tensor]:
        if self._norms is None:
            norms = self._compute_squared_norms()
            total = (
                torch.stack(list(norms.values())).sum(0) if norms else torch.zeros(self.records, dtype=torch.float64)
            )
            total *= self._scale**2
            if not math.isfinite(total.sum().item()):
                self._bad = ~total.isfinite()
                for use in self.uses:
                    use.drop(self._bad)
                for values in (*norms.values(), total):
                    values[self._bad] = 0.0
            self._norms = norms, total
        return self._norms

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], *, last: bool = False) -> dict[str, Tensor]:
        """For each parameter, the sum over the records of weight times gradient.

        With `last` each layer's gradients are forgotten as soon as they are summed, so that their memory can hold the
        sums; nothing can be asked afterwards.
        """
        self._check_held()
        self._measured()  # finds the records that must not take part
        by_name = dict.fromkeys(self.names, weights) if isinstance(weights, Tensor) else weights
        # Names that shared a weight still do: what they share is computed once.
        dtype = next(iter(self._parameters.values())).dtype
        distinct = {id(weight): weight for weight in by_name.values()}
        once = {key: (weight * self._scale).to(dtype) for key, weight in distinct.items()}
        scaled = {name: once[id(weight)] for name, weight in by_name.items()}
        total: dict[str, Tensor] = {}
        with torch.no_grad():
            uses = deque(self.uses)
            if last:
                self._spent, self.uses, self._groups = True, (), ()
            while uses:
                use = uses.popleft()
                self._add_weighted(use, scaled, total)
                if last:
                    del self._sources[use], use
        return {n: total[n] if n in total else torch.zeros_like(p) for n, p in self._parameters.items()}

    def instantiate(self) -> dict[str, Tensor]:
        """All per-example gradients, ``(records, *shape)`` for each parameter: for small models, tests and audits."""
        self._check_held()
        self._measured()
        whole = {n: torch.zeros(self.records, *p.shape, dtype=p.dtype) for n, p in self._parameters.items()}
        with torch.no_grad():
            for group in self._groups:
                for rows, gradients in self._formed(group):
                    for name, gradient in gradients.items():
                        whole[name][rows] = gradient * self._scale
        return whole

    def scaled_squared_norms(self, scales: Mapping[str, Tensor]) -> Tensor:
        """The squared norm of every record's gradient after multiplying it elementwise by `scales`."""
        self._check_held()
        self._measured()
        total = torch.zeros(self.records, dtype=torch.float64)
        alone, shared = self._divided()
        with torch.no_grad():
            for use, slots in alone.items():
                everywhere = {slot: torch.ones_like(tensor) for slot, tensor in use.slots.items() if slot not in slots}
                found = use.scaled_squared_norms({slot: scales[name] for slot, name in slots.items()} | everywhere)
                total += sum(found[slot] for slot in slots)
            for group in shared:
                for rows, gradients in self._formed(group):
                    for name, gradient in gradients.items():
                        total[rows] += squared_norms(gradient * scales[name])
        return total * self._scale**2

    def _check_held(self) -> None:
        if self._spent:
            raise PrivetError("These gradients were summed for the last time already: clip each batch once.")

    # --- how --------------------------------------------------------------------------------------------------------

    def _find_groups(self) -> Iterable[tuple[tuple[Use, str, Tensor], ...]]:
        """Uses that must be added up before their norm is taken: those that share a parameter."""
        behind = [name for slots in self._sources.values() for names in slots.values() for name in names]
        if len(set(behind)) == len(behind) == sum(map(len, self._sources.values())):  # nothing is shared
            return [((use, slot, tensor),) for use in self.uses for slot, tensor in use.slots.items()]
        parent = {name: name for name in self.names}

        def root(name: str) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        for slots in self._sources.values():
            for names in slots.values():
                for other in names[1:]:
                    parent[root(other)] = root(names[0])
        groups: dict[str, list[tuple[Use, str, Tensor]]] = defaultdict(list)
        for use, slots in self._sources.items():
            for slot, names in slots.items():
                groups[root(names[0])].append((use, slot, use.slots[slot]))
        return map(tuple, groups.values())

    def _compute_squared_norms(self) -> dict[str, Tensor]:
        norms: dict[str, Tensor] = {}
        alone, shared = self._divided()
        for group in shared:
            norms.update(self._added_up_norms(group))
        for use, slots in alone.items():
            found = use.squared_norms()
            norms.update({name: found[slot] for slot, name in slots.items()})
        return norms

    def _divided(self) -> tuple[dict[Use, dict[str, str]], list[tuple[tuple[Use, str, Tensor], ...]]]:
        """The slots that are parameters used once, by use, with their names; and the groups that have to be added up."""
        alone: dict[Use, dict[str, str]] = defaultdict(dict)
        shared = []
        for group in self._groups:
            use, slot, tensor = group[0]
            name = self._name_of(tensor)
            if len(group) == 1 and name is not None:
                alone[use][slot] = name
            else:
                shared.append(group)
        return alone, shared

    def _added_up_norms(self, group: tuple[tuple[Use, str, Tensor], ...]) -> dict[str, Tensor]:
        norms: dict[str, Tensor] = {}
        for rows, gradients in self._formed(group):
            for name, gradient in gradients.items():
                norms.setdefault(name, torch.zeros(self.records, dtype=torch.float64))[rows] = squared_norms(gradient)
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
        by_slot = self._sources[use]
        # Parameters behind one slot may carry different weights (per-layer clipping): one sum for each weight.
        distinct = {id(weights[n]): weights[n] for names in by_slot.values() for n in names}
        for key, weight in distinct.items():
            chosen = [slot for slot, names in by_slot.items() if any(id(weights[n]) == key for n in names)]
            summed = use.weighted_sum(dict.fromkeys(use.slots, weight))
            for slot in chosen:
                for name, gradient in self._pull_back(use.slots[slot], summed[slot], batched=False).items():
                    if id(weights[name]) == key:
                        total[name] = total[name] + gradient if name in total else gradient


def _joined(uses: Sequence[Use], budget: Budget) -> list[Use]:
    """The uses, with those that do the same with the same parameters joined into one where their rule can."""
    alike: dict[tuple[object, ...], list[Use]] = defaultdict(list)
    for use in uses:
        alike[type(use), *use.slots, *map(id, use.slots.values())].append(use)
    if len(alike) == len(uses):
        return list(uses)
    joined = []
    with torch.no_grad():
        for first, *others in alike.values():
            whole = first.join(others, budget) if others else None
            joined += [first, *others] if whole is None else [whole]
    return joined
