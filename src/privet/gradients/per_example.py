"""The gradients of every record of one physical batch, kept in the cheapest form."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.errors import PrivetError
from privet.gradients.marks import Pass
from privet.gradients.numerics import add_weighed, scaled_squared_norms, squared_norms
from privet.gradients.recorder import Recorder
from privet.gradients.use import CHUNK_BYTES, MemoryBudget, Use


@dataclass(frozen=True, eq=False)
class Placed:
    """A parameter, or a view of one that shows no number twice: transposed, reshaped, or a part."""

    name: str
    parameter: Tensor
    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor, name: str, parameter: Tensor) -> Placed | None:
        """`tensor` as a view of the parameter; None if it is not one.

        A tensor in a parameter's memory has the parameter's numbers in another order, because arithmetic needs new memory.
        """
        if tensor is parameter:
            return cls(name, parameter, tensor)
        shares = tensor.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
        if not shares or tensor.dtype != parameter.dtype or not _is_dense(parameter):
            return None
        return cls(name, parameter, tensor) if _shows_each_once(tensor) else None

    @property
    def is_whole(self) -> bool:
        return self.tensor.numel() == self.parameter.numel()

    def put(self, gradient: Tensor, *, batched: bool = False) -> Tensor:
        """Turn the gradient of the tensor (or one for each record) into the gradient of the parameter."""
        if self.tensor is self.parameter:
            return gradient
        p, records = self.parameter, (len(gradient),) if batched else ()
        outer = (p.numel(),) if batched else ()
        whole = torch.empty_strided(
            (*records, *p.shape), (*outer, *p.stride()), dtype=gradient.dtype, device=gradient.device
        ).zero_()
        self._within(whole, records, outer).copy_(gradient)
        return whole

    def take(self, values: Tensor) -> Tensor:
        """Select those values, given for all numbers of the parameter, that belong to the tensor."""
        if self.tensor is self.parameter:
            return values
        p = self.parameter
        whole = torch.empty_strided(p.shape, p.stride(), dtype=values.dtype, device=values.device).copy_(values)
        return self._within(whole, (), ())

    def _within(self, whole: Tensor, records: tuple[int, ...], outer: tuple[int, ...]) -> Tensor:
        t = self.tensor
        offset = t.storage_offset() - self.parameter.storage_offset()
        return whole.as_strided((*records, *t.shape), (*outer, *t.stride()), offset)


def _is_dense(tensor: Tensor) -> bool:
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span == tensor.numel() and _shows_each_once(tensor)


def _shows_each_once(tensor: Tensor) -> bool:
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return tensor.numel() > 0


Group = tuple[tuple[Use, str, Tensor], ...]
"""Uses that share a parameter, each with its slot and the tensor in it."""

_UNIT = 2.0**-24
"""This fraction of the summed norms of a shared parameter's uses is added to its norm. Where the uses cancel, their sums over
the batch, which are computed one by one, are still large and rounded."""


class PerExampleGradients:
    """The gradients of the records' losses: their norms, and their sum with weights that depend on the norms.

    Formal guarantees: with ``g[i][name]`` the gradient of record i's own loss, `squared_norms` returns ``|g[i][name]|^2`` and
    ``weighted_sum(w)`` returns the sum over i of ``w[name][i] * g[i][name]``. All uses of a parameter count; tied or repeated
    ones with their cross terms. A record whose gradient is not finite somewhere has norm zero and contributes zero everywhere;
    `bad` tells which records these are.

    Norms, weights and sums are float64. A norm may be slightly too large. It is too small for what the record adds to a weighted
    sum by at most a factor of 1 + 1e-5, rounding included.
    """

    def __init__(self, recorder: Recorder, finished: Pass, scale: float) -> None:
        self.records = finished.records
        self.names = tuple(recorder.parameters)
        self._parameters = recorder.parameters
        self._scale = scale
        """The factor between the gradient of the batch's loss and the gradients of the records' own losses."""
        self.uses = tuple(_joined(finished.received, finished.budget))
        self._sources_of = recorder.sources
        self._sources = {use: {slot: recorder.sources(t) for slot, t in use.slots.items()} for use in self.uses}
        """For each use and slot, the names of the parameters behind it."""
        self._placed = {id(t): self._place(t) for use in self.uses for t in use.slots.values()}
        """The tensors in slots that are parameters or views of them; the others were computed from parameters."""
        self._groups = tuple(self._find_groups())
        self._formed_again: list[Group] = []
        """The groups whose weighted sum is computed from the measured gradients, which are formed a second time for it."""
        self._norms: tuple[dict[str, Tensor], Tensor] | None = None
        """Unscaled squared norms for each parameter in use, and scaled squared norms of the whole gradients."""
        self._bad: Tensor | None = None
        self._spent = False

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype of each parameter, to which its gradient is rounded in the end."""
        return {name: parameter.dtype for name, parameter in self._parameters.items()}

    def squared_norms(self) -> dict[str, Tensor]:
        """For each parameter, the squared norm of every record's gradient, as float64."""
        norms = self._measured()[0]
        nothing = self._zeros()
        return {name: norms[name] * self._scale**2 if name in norms else nothing for name in self.names}

    def total_squared_norms(self) -> Tensor:
        """The squared norm of every record's whole gradient, as float64."""
        return self._measured()[1]

    @property
    def bad(self) -> Tensor:
        """Which records have a gradient that is not finite."""
        self._measured()
        return self._zeros().bool() if self._bad is None else self._bad

    @property
    def bad_count(self) -> int:
        """How many records have a gradient that is not finite."""
        self._measured()
        return 0 if self._bad is None else int(self._bad.sum())

    @torch.no_grad()
    def _measured(self) -> tuple[dict[str, Tensor], Tensor]:
        if self._norms is None:
            norms = self._compute_squared_norms()
            total = torch.stack(list(norms.values())).sum(0) if norms else self._zeros()
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

        With `last`, each layer's gradients are freed as soon as they are summed, so that their memory can hold the sums.
        Afterwards these gradients can no longer be used.
        """
        self._check_held()
        self._measured()  # finds the records that must not contribute
        by_name = dict.fromkeys(self.names, weights) if isinstance(weights, Tensor) else weights
        # Names that share a weight tensor still share it afterwards, so that common work is done once.
        distinct = {id(weight): weight for weight in by_name.values()}
        once = {key: weight.double() * self._scale for key, weight in distinct.items()}
        scaled = {name: once[id(weight)] for name, weight in by_name.items()}
        total: dict[str, Tensor] = {}
        with torch.no_grad():
            for group in self._formed_again:
                self._add_measured(group, scaled, total)
            done = {(use, slot) for group in self._formed_again for use, slot, _ in group}
            uses = deque(self.uses)
            if last:
                self._spent, self.uses, self._groups, self._formed_again = True, (), (), []
            while uses:
                use = uses.popleft()
                use.weighed_alike = len(once) == 1
                self._add_weighted(use, [slot for slot in use.slots if (use, slot) not in done], scaled, total)
                if last:
                    del self._sources[use], use
        return {n: total[n] if n in total else _nothing(p) for n, p in self._parameters.items()}

    def instantiate(self) -> dict[str, Tensor]:
        """All per-example gradients, ``(records, *shape)`` for each parameter: for small models, tests and audits."""
        self._check_held()
        self._measured()
        whole = {n: p.new_zeros(self.records, *p.shape) for n, p in self._parameters.items()}
        with torch.no_grad():
            for group in self._groups:
                for rows, gradients, _ in self._formed(group):
                    for name, gradient in gradients.items():
                        whole[name][rows] = gradient * self._scale
        return whole

    def scaled_squared_norms(self, scales: Mapping[str, Tensor]) -> Tensor:
        """The squared norm of every record's gradient after multiplying it elementwise by `scales`."""
        self._check_held()
        self._measured()
        total = self._zeros()
        alone, shared = self._divided()
        with torch.no_grad():
            for use, slots in alone.items():
                everywhere = {slot: torch.ones_like(tensor) for slot, tensor in use.slots.items() if slot not in slots}
                own = {slot: placed.take(scales[placed.name]) for slot, placed in slots.items()}
                found = use.scaled_squared_norms(own | everywhere)
                total += sum(found[slot] for slot in slots)
            for group in shared:
                total += self._scaled_group(group, scales)
        return total * self._scale**2

    def _scaled_group(self, group: Group, scales: Mapping[str, Tensor]) -> Tensor:
        squared = self._zeros()
        slack = self._slack(group)
        for rows, gradients, lengths in self._formed(group):
            for name, gradient in gradients.items():
                squared[rows] += scaled_squared_norms(gradient, scales[name])
            if slack is not None:
                slack[rows] += lengths * _UNIT
        if slack is None:
            return squared
        largest = max(float(scales[name].max()) for name in gradients) if self.records else 0.0
        return (squared.sqrt_() + slack * largest).square_()

    def _zeros(self) -> Tensor:
        """A zero for each record, on the device of the parameters."""
        first = next(iter(self._parameters.values()))
        return torch.zeros(self.records, dtype=torch.float64, device=first.device)

    def _check_held(self) -> None:
        if self._spent:
            raise PrivetError(
                "These gradients were already summed with last=True, which frees them: clip each batch once."
            )

    # --- how it is computed -------------------------------------------------------------------------------------------

    def _find_groups(self) -> Iterable[Group]:
        """Groups of uses that share a parameter: their gradients are added up before their norm is taken."""
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

    def _place(self, tensor: Tensor) -> Placed | None:
        names = self._sources_of(tensor)
        return Placed.of(tensor, names[0], self._parameters[names[0]]) if len(names) == 1 else None

    def _compute_squared_norms(self) -> dict[str, Tensor]:
        norms: dict[str, Tensor] = {}
        alone, shared = self._divided()
        self._formed_again = []
        for group in shared:
            norms.update(self._added_up_norms(group))
        for use, slots in alone.items():
            found = use.squared_norms()
            norms.update({placed.name: found[slot] for slot, placed in slots.items()})
        return norms

    def _divided(self) -> tuple[dict[Use, dict[str, Placed]], list[Group]]:
        """The slots of each use that hold a whole parameter which is used only once, and the groups that have to be added up."""
        alone: dict[Use, dict[str, Placed]] = defaultdict(dict)
        shared = []
        for group in self._groups:
            use, slot, tensor = group[0]
            placed = self._placed[id(tensor)]
            if len(group) == 1 and placed is not None and placed.is_whole:
                alone[use][slot] = placed
            else:
                shared.append(group)
        return alone, shared

    def _added_up_norms(self, group: Group) -> dict[str, Tensor]:
        norms: dict[str, Tensor] = {}
        slack = self._slack(group)
        if slack is None:
            self._formed_again.append(group)
        for rows, gradients, lengths in self._formed(group):
            for name, gradient in gradients.items():
                squared = squared_norms(gradient)
                if slack is not None:
                    squared = (squared.sqrt_() + slack[rows] + lengths * _UNIT).square_()
                norms.setdefault(name, self._zeros())[rows] = squared
        return norms

    def _slack(self, group: Group) -> Tensor | None:
        """A bound on the norm of the difference between what a record adds through all uses of a group and what is measured.
        None if no bound is known: then the sum must be taken of the measured numbers."""
        total = self._zeros()
        for use, slot, tensor in group:
            rounding = use.rounding(slot)
            if rounding is None or self._placed[id(tensor)] is None:
                return None
            total += rounding
        return total

    def _formed(self, group: Group) -> Iterator[tuple[slice, dict[str, Tensor], Tensor]]:
        """Per-example gradients of a group's parameters, chunk by chunk, added up over the uses, and the sums of the norms of
        the addends. A sum of two is rounded once; a sum of more is float64."""
        size = max(sum(tensor.numel() * tensor.element_size() for _, _, tensor in group), 1)
        step = max(CHUNK_BYTES // size, 1)
        for start in range(0, self.records, step):
            rows = slice(start, min(start + step, self.records))
            total: dict[str, Tensor] = {}
            lengths = self._zeros()[rows]
            for use, slot, tensor in group:
                gradient = use.instantiate(rows)[slot]
                lengths += squared_norms(gradient).sqrt_()
                for name, pulled in self._pull_back(tensor, gradient).items():
                    part = pulled.double() if len(group) > 2 else pulled
                    total[name] = total[name] + part if name in total else part
            yield rows, total, lengths

    def _pull_back(self, tensor: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        """Turn the gradients of a tensor computed from parameters into gradients of these parameters."""
        placed = self._placed[id(tensor)]
        if placed is not None:
            return {placed.name: placed.put(gradient, batched=True)}
        parameters = list(self._parameters.items())
        pulled = torch.autograd.grad(
            tensor,
            [p for _, p in parameters],
            gradient.to(tensor.dtype),
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
        )
        return {n: g for (n, _), g in zip(parameters, pulled, strict=True) if g is not None}

    def _add_measured(self, group: Group, weights: dict[str, Tensor], total: dict[str, Tensor]) -> None:
        """Add a group's weighted sum, taken of the numbers whose norms were measured."""
        for rows, gradients, _ in self._formed(group):
            for name, gradient in gradients.items():
                if name not in total:
                    total[name] = _nothing(self._parameters[name])
                add_weighed(total[name], gradient, weights[name][rows])

    def _add_weighted(self, use: Use, slots: list[str], weights: dict[str, Tensor], total: dict[str, Tensor]) -> None:
        placed = {slot: place for slot in slots if (place := self._placed[id(use.slots[slot])]) is not None}
        # The parameters of one use may carry different weights (per-layer clipping): one sum for each weight.
        distinct = {id(weights[place.name]): weights[place.name] for place in placed.values()}
        for key, weight in distinct.items():
            summed = use.weighted_sum(dict.fromkeys(use.slots, weight))
            for slot, place in placed.items():
                if id(weights[place.name]) == key:
                    gradient = place.put(summed[slot])
                    total[place.name] = total[place.name] + gradient if place.name in total else gradient


def _nothing(parameter: Tensor) -> Tensor:
    return torch.zeros(parameter.shape, dtype=torch.float64, device=parameter.device)


def _joined(uses: Sequence[Use], budget: MemoryBudget) -> list[Use]:
    """The uses, with uses of the same kind and the same parameters joined into one if their rule can do that."""
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
