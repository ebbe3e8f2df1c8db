"""Every follower against the truth: what a record changes is exactly what the layout says is the record's.

Calls are made up at random from the signatures of torch's own functions, and (where luck does not find valid ones) from a
list. For each call that torch accepts, the numbers of one record are changed: the entries of the result that change must be
among those which the follower gives to this record. If the records change places, the result must do so, too.
"""

from __future__ import annotations

import inspect
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import get_testing_overrides

from privet.errors import PrivetError
from privet.gradients.following import follower
from privet.gradients.marks import UNKNOWN, Mark, Pass, mark_of, position, set_mark, stride_at
from privet.gradients.recorder import Recorder
from privet.gradients.use import MemoryBudget
from privet.gradients.vocabulary import name_of_function, tensors_in

Function = Callable[..., Any]
ATTEMPTS = 10
RANDOM = ("dropout", "fractional", "rrelu")


@dataclass(eq=False)
class Given:
    """A tensor among the arguments; `stride` is None for a constant."""

    values: Tensor
    stride: int | None = None


def owners(shape: torch.Size, stride: int, records: int) -> Tensor:
    return (torch.arange(math.prod(shape)) // max(stride, 1) % records).reshape(shape)


def filled(node: Any, values: Mapping[Given, Tensor]) -> Any:
    if isinstance(node, Given):
        return values[node].clone()
    if isinstance(node, (tuple, list)):
        return type(node)(filled(each, values) for each in node)
    return {key: filled(each, values) for key, each in node.items()} if isinstance(node, dict) else node


def given_in(node: Any) -> Iterator[Given]:
    if isinstance(node, Given):
        yield node
    elif isinstance(node, (tuple, list, dict)):
        for each in node.values() if isinstance(node, dict) else node:
            yield from given_in(each)


@dataclass(eq=False)
class Call:
    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    records: int

    def __str__(self) -> str:
        shown = [f"{list(g.values.shape)}@{g.stride}" for g in self.given]
        plain = [a for a in (*self.args, *self.kwargs.items()) if not list(given_in(a))]
        return f"{self.function} on {shown}, {plain}, {self.records} records"

    @property
    def given(self) -> list[Given]:
        return list(dict.fromkeys(given_in((self.args, self.kwargs))))

    def run(self, values: Mapping[Given, Tensor], recorder: Recorder | None = None) -> list[Tensor]:
        given = {each: value.clone() for each, value in values.items()}
        if recorder is not None:
            assert recorder.current is not None
            recorder.know([value for each, value in given.items() if each.stride is None])
            for each, value in given.items():
                if each.stride is not None:
                    set_mark(value, Mark(recorder.current.token, each.stride))
        args, kwargs = _put((self.args, self.kwargs), given)
        torch.manual_seed(0)
        if recorder is None:
            out = self.function(*args, **kwargs)
        else:
            with recorder:
                out = self.function(*args, **kwargs)
        name = name_of_function(self.function)
        writes = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
        return [args[0]] if writes else tensors_in(out)

    def changed(self, values: Mapping[Given, Tensor], record: int, generator: torch.Generator) -> dict[Given, Tensor]:
        """The same call where one record holds something else."""
        new = dict(values)
        for each, old in values.items():
            if each.stride is not None:
                other = old.flatten()[torch.randperm(old.numel(), generator=generator)].view_as(old)
                if old.is_floating_point() or old.is_complex():
                    other = other * (1 + 0.5 * torch.rand(old.shape, generator=generator, dtype=torch.float64))
                own = owners(old.shape, each.stride, self.records) == record
                new[each] = torch.where(own, other.to(old.dtype), old)
        return new


def _put(node: Any, given: Mapping[Given, Tensor]) -> Any:
    """As `filled`, with these very tensors."""
    if isinstance(node, Given):
        return given[node]
    if isinstance(node, (tuple, list)):
        return type(node)(_put(each, given) for each in node)
    return {key: _put(each, given) for key, each in node.items()} if isinstance(node, dict) else node


def in_other_places(tensor: Tensor, stride: int, records: int) -> Tensor:
    """The records one place further, the last one first."""
    at = torch.arange(tensor.numel())
    record = at // max(stride, 1) % records
    return tensor.flatten()[at + ((record - 1) % records - record) * max(stride, 1)].view(tensor.shape)


def alike(one: Tensor, other: Tensor) -> Tensor:
    if one.is_complex():
        return alike(torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())).all(-1)
    if not one.is_floating_point():
        return one == other
    close = 1e-9 if one.dtype == torch.float64 else 1e-3
    return torch.isclose(one, other, rtol=close, atol=close, equal_nan=True)


def complaint(call: Call, generator: torch.Generator) -> str | None:
    """What is wrong with the follower's statement, "" if nothing is; None where torch or Privet refuses, or nothing is stated."""
    values = {each: each.values for each in call.given}
    try:
        before = call.run(values)
    except Exception:
        return None
    recorder = Recorder({})
    recorder.take(Pass(call.records, MemoryBudget(1e9), trusting=False))
    try:
        marked = call.run(values, recorder)
    except PrivetError:
        return None
    if recorder.current.escaped or len(marked) != len(before):
        return None
    strides = [None if (m := mark_of(out)) is None else m.stride for out in marked]
    stated = {i: s for i, s in enumerate(strides) if s is not None and s != UNKNOWN}
    for place, stride in stated.items():
        if stride >= 0 and before[place].ndim and position(before[place].shape, stride, call.records) is None:
            return f"stride {stride} has no place in {list(before[place].shape)}"
    for record in range(call.records) if stated else ():
        other = call.changed(values, record, generator)
        try:
            after = call.run(other)
        except Exception:
            continue
        for place, stride in stated.items():
            old, new = before[place], after[place]
            if old.shape != new.shape:
                return "the shape of the result depends on the records"
            if stride >= 0 and bool((~alike(old, new) & (owners(old.shape, stride, call.records) != record)).any()):
                return f"stride {stride} of {list(old.shape)}: a record changes what is another's"
            if stride < 0 and (wrong := _not_a_sum(call, values, other, record, place, generator)):
                return wrong
    if stated and not any(word in name_of_function(call.function) for word in RANDOM):
        moved = {
            each: value if each.stride is None else in_other_places(value, each.stride, call.records)
            for each, value in values.items()
        }
        try:
            after = call.run(moved)
        except Exception:
            return ""
        for place, stride in stated.items():
            if stride >= 0 and not bool(
                alike(in_other_places(before[place], stride, call.records), after[place]).all()
            ):
                return f"stride {stride} of {list(before[place].shape)}: what a record gives depends on its place"
    return "" if stated else None


def _not_a_sum(
    call: Call,
    values: Mapping[Given, Tensor],
    changed: Mapping[Given, Tensor],
    record: int,
    place: int,
    generator: torch.Generator,
) -> str:
    """What two records change together must be the sum of what each changes."""
    neighbor = (record + 1) % call.records
    second = call.changed(values, neighbor, generator)
    both = dict(changed)
    for each, value in changed.items():
        if each.stride is not None:
            own = owners(value.shape, each.stride, call.records) == neighbor
            both[each] = torch.where(own, second[each], value)
    a, b, c, d = (call.run(v)[place] for v in (values, changed, second, both))
    together = (d - b - c + a).abs()
    limit = 1e-6 * (1 + d.abs() + a.abs())
    return "" if bool((~together.isfinite() | (together <= limit)).all()) else "records that were joined are no sum"


# --- calls at random ----------------------------------------------------------------------------------------------------


class Maker:
    """Arguments at random, for functions of any signature."""

    def __init__(self, seed: int) -> None:
        self.choice, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def numbers(self, shape: Any, kind: str) -> Tensor:
        if kind == "long":
            return torch.randint(0, self.choice.choice((1, 2, 3)), tuple(shape), generator=self.generator)
        if kind == "bool":
            return torch.rand(tuple(shape), generator=self.generator) < 0.5
        unit = torch.rand(tuple(shape), generator=self.generator, dtype=torch.float64)
        return unit * 0.9 + 0.05 if kind == "unit" else 3 * unit - 1.5

    def batch(self, kind: str) -> tuple[Given, int]:
        c = self.choice
        records = c.choice((2, 2, 3, 4))
        shape = [c.choice((1, 2, 3, records, records)) for _ in range(c.randint(1, 4))]
        dim, inner, outer = c.randrange(len(shape)), c.choice((1, 1, 2)), c.choice((1, 1, 2))
        shape[dim] = outer * records * inner
        return Given(self.numbers(shape, kind), stride_at(shape, dim, inner)), records

    def beside(self, first: Given, records: int, kind: str) -> Given:
        """Another tensor: of the same shape, one that broadcasts, or any."""
        c, shape = self.choice, list(first.values.shape)
        assert first.stride is not None
        at = position(first.values.shape, first.stride, records)
        way = c.random()
        if at is None or way > 0.9:
            return Given(self.numbers([c.choice((1, 2, records)) for _ in range(c.randint(0, 3))], kind))
        if way < 0.5:
            shape = [1 if c.random() < 0.3 else size for size in shape][c.choice((0, 0, 0, 1)) :]
        holds = c.random() < 0.6
        dims = [d for d, size in enumerate(shape) if size == first.values.shape[at.dim]]
        stride = stride_at(shape, c.choice(dims), at.inner) if dims and holds else None
        return Given(self.numbers(shape, kind), stride)

    def argument(self, name: str, first: Given, records: int, function: str) -> Any:
        c, ndim, shape = self.choice, first.values.ndim, list(first.values.shape)
        if name == "tensors":
            return tuple(first if c.random() < 0.4 else self.beside(first, records, "any") for _ in range(3))
        if name in ("index", "indices", "idx"):
            return self.index(first) if "item" in function else self.beside(first, records, "long")
        if name in ("mask", "condition"):
            return self.beside(first, records, "bool")
        if name.startswith(("dim", "axis", "source", "destination", "start_dim", "end_dim")):
            several = tuple(c.sample(range(ndim), c.randint(1, ndim)))
            return c.choice((c.randrange(-ndim, ndim), c.randrange(-ndim, ndim), several))
        if name in ("keepdim", "unbiased", "descending", "sorted", "largest", "training", "log_target", "include_self"):
            return c.random() < 0.5
        if name in ("reduction", "reduce", "size_average"):
            one = c.choice((("none", "mean", "sum"), (0, 1, 2)))
            return (
                None if name == "size_average" else c.choice(one) if name == "reduction" else c.choice(("sum", "amax"))
            )
        if name in ("p", "ord", "dtype", "rounding_mode", "approximate"):
            return {"dtype": torch.float64, "approximate": "none", "rounding_mode": None}.get(name, c.choice((1, 2)))
        whole = ("size", "shape", "repeats", "pad", "normalized_shape", "sizes", "kernel_size", "output_size", "shifts",
                 "split_size_or_sections", "split_size", "sections", "chunks", "k", "n", "start", "length", "step",
                 "num_classes", "split_sizes", "indices_or_sections", "groups", "num_groups")  # fmt: skip
        if name in whole:
            c.shuffle(shape)
            merged = [-1, *shape[1:]] if c.random() < 0.5 else [shape[0] * shape[-1], *shape[1:-1]]
            few = tuple(c.choice((1, 2, records)) for _ in range(c.randint(1, 4)))
            return c.choice((c.choice((1, 2, 3, records)), tuple(shape), tuple(merged), few))
        if c.random() < 0.7:
            return self.beside(first, records, c.choice(("any", "any", "unit", "long", "bool")))
        return c.choice((1, 2, 0.5, None, True, (1, 2)))

    def index(self, first: Given) -> Any:
        c, size = self.choice, first.values.shape[0]
        parts: list[Any] = []
        for _ in range(c.randint(1, first.values.ndim + 1)):
            constant = Given(self.numbers((c.choice((1, 2, size)),), "long"))
            cut = slice(c.choice((None, 0, 1)), c.choice((None, 2, -1)), c.choice((None, 1, 2)))
            parts.append(c.choice((cut, cut, None, 0, -1, constant, Ellipsis, [0], Given(torch.arange(size)))))
        return tuple(parts) if len(parts) > 1 or c.random() < 0.5 else parts[0]

    def call(self, function: Function, signature: inspect.Signature) -> Call:
        c = self.choice
        first, records = self.batch(c.choice(("any", "any", "unit", "long", "bool")))
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        named = False
        for number, parameter in enumerate(signature.parameters.values()):
            if parameter.kind is parameter.VAR_KEYWORD or parameter.name in ("out", "generator", "device", "names"):
                continue
            if number and parameter.default is not parameter.empty and c.random() < 0.5:
                named = True
                continue
            value: Any = first
            if number or parameter.name == "tensors":
                value = self.argument(parameter.name, first, records, name_of_function(function))
            elif c.random() < 0.1:
                value = self.beside(first, records, "any")
            if named or parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            elif parameter.kind is parameter.VAR_POSITIONAL:
                args += value if isinstance(value, tuple) else (value,)
            else:
                args.append(value)
        return Call(function, tuple(args), kwargs, records)


def signatures() -> list[tuple[Function, inspect.Signature]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functions = get_testing_overrides()
    known = [(each, like) for each, like in functions.items() if follower(name_of_function(each)) is not None]
    local = [pair for pair in known if not getattr(pair[0], "__module__", "").startswith("torch.distributed")]
    return [(each, inspect.signature(like)) for each, like in local]


@pytest.mark.parametrize("part", range(8))
@pytest.mark.filterwarnings("ignore")
def test_calls_at_random(part: int) -> None:
    torch.set_num_threads(1)
    maker = Maker(part)
    wrong, stated = [], 0
    for function, signature in signatures()[part::8]:
        for _ in range(ATTEMPTS):
            call = maker.call(function, signature)
            if not any(each.stride is not None for each in call.given):
                continue
            found = complaint(call, maker.generator)
            stated += found is not None
            if found:
                wrong.append(f"{found}: {call}")
    assert not wrong, "\n".join(wrong)
    assert stated > 50


# --- calls that luck does not find ----------------------------------------------------------------------------------------


SHAPES: dict[str, tuple[Function, tuple[Any, ...], dict[str, Any]]] = {
    "linear": (F.linear, ((4, 2, 6), (5, 6), (5,)), {}),
    "bilinear": (F.bilinear, ((4, 2), (4, 2), (3, 2, 2)), {}),
    "conv1d": (F.conv1d, ((4, 2, 4), (4, 2, 2), (4,)), {}),
    "conv1d without a batch": (F.conv1d, ((2, 4), (4, 2, 2)), {}),
    "conv2d": (F.conv2d, ((4, 2, 4, 4), (4, 1, 2, 2)), {"groups": 2}),
    "conv_transpose2d": (F.conv_transpose2d, ((4, 2, 4, 4), (2, 4, 2, 2)), {}),
    "max_pool1d": (F.max_pool1d, ((4, 2, 4), 2), {}),
    "max_pool2d": (F.max_pool2d, ((4, 2, 4, 4), 2), {}),
    "max_pool2d with indices": (F.max_pool2d, ((4, 2, 4, 4), 2), {"return_indices": True}),
    "avg_pool2d": (F.avg_pool2d, ((2, 4, 4, 4), 2), {}),
    "adaptive_avg_pool2d": (F.adaptive_avg_pool2d, ((4, 2, 4, 4), (2, 1)), {}),
    "interpolate": (F.interpolate, ((2, 2, 2, 4),), {"scale_factor": 2, "mode": "bilinear"}),
    "layer_norm": (F.layer_norm, ((4, 2, 4), (4,), (4,)), {}),
    "group_norm": (F.group_norm, ((4, 4, 2), 2, (4,)), {}),
    "batch_norm": (F.batch_norm, ((4, 4, 2), (4,), "var"), {}),
    "prelu": (F.prelu, ((4, 4, 2), (4,)), {}),
    "grid_sample": (F.grid_sample, ((2, 2, 2, 4), (2, 2, 2, 2)), {"align_corners": False}),
    "pixel_shuffle": (F.pixel_shuffle, ((2, 4, 2, 2), 2), {}),
    "matmul": (torch.matmul, ((2, 2, 2), (2, 2)), {}),
    "matmul of batches": (torch.matmul, ((2, 2, 2, 2), (2, 2, 2)), {}),
    "matmul with a vector": (torch.matmul, ((2, 2, 2), (2,)), {}),
    "a vector's matmul": (torch.matmul, ((2,), (2, 2, 2)), {}),
    "bmm": (torch.bmm, ((2, 2, 2), (2, 2, 2)), {}),
    "addmm": (torch.addmm, ((2, 2), (2, 2), (2, 2)), {}),
    "baddbmm": (torch.baddbmm, ((2, 2, 2), (2, 2, 2), (2, 2, 2)), {}),
    "addbmm": (torch.addbmm, ((2, 2), (2, 2, 2), (2, 2, 2)), {}),
    "cdist": (torch.cdist, ((2, 2, 2), (2, 2, 2)), {}),
    "einsum": (torch.einsum, ("=bij,bjk->bki", (2, 2, 2), (2, 2, 2)), {}),
    "attention": (F.scaled_dot_product_attention, ((2, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2), (2, 1, 2, 2)), {}),
    "cosine_similarity": (F.cosine_similarity, ((2, 2, 4), (2, 4)), {"dim": -1}),
    "pairwise_distance": (F.pairwise_distance, ((2, 2, 2), (2, 2)), {}),
    "triplet_margin_loss": (F.triplet_margin_loss, ((4, 2), (4, 2), (4, 2)), {"margin": 9.0}),
    "triplet_margin_loss of vectors": (F.triplet_margin_loss, ((4,), (4,), (4,)), {"margin": 9.0}),
    "multilabel_margin_loss of a vector": (F.multilabel_margin_loss, ((4,), "labels 4"), {}),
    "multi_margin_loss": (F.multi_margin_loss, ((2, 2), "labels 2"), {}),
    "cosine_embedding_loss": (F.cosine_embedding_loss, ((2, 2), (2, 2), (2,)), {"reduction": "none"}),
    "quantile": (torch.quantile, ((4, 2, 2), "quantiles"), {"dim": 1}),
    "quantile that keeps": (torch.quantile, ((2, 2, 4), "quantiles"), {"dim": 0, "keepdim": True}),
    "gather": (torch.gather, ((2, 2, 2), 1, "labels 2 2 2"), {}),
    "gather of a table": (torch.gather, ((6,), -1, "labels 4"), {}),
    "gather of a longer table": (torch.gather, ((2, 6), 0, "labels 2 4"), {}),
    "index_select": (torch.index_select, ((4, 2, 2), 1, "labels 4"), {}),
    "scatter": (torch.scatter, ((2, 2, 2), 1, "labels 2 2 2", (2, 2, 2)), {}),
    "scatter by a short index": (torch.scatter, ((4, 2), 1, "labels 1 2", (4, 2)), {}),
    "scatter_add_": (Tensor.scatter_add_, ((4, 2), 1, "labels 4 2", (4, 2)), {}),
    "index_add": (torch.index_add, ((2, 2), 1, "labels 2", (2, 2)), {}),
    "diff": (torch.diff, ((2, 2, 2),), {"dim": 1}),
    "transpose_": (Tensor.transpose_, ((1, 2, 2), 0, -1), {}),
    "swapaxes_": (Tensor.swapaxes_, ((2, 2, 4), 0, 2), {}),
    "t_": (Tensor.t_, ((2, 4),), {}),
    "__setitem__": (Tensor.__setitem__, ((4, 2), "columns", (4,)), {}),
    "picked": (Tensor.__getitem__, ((4, 2, 2), "range"), {}),
    "kl_div": (torch.kl_div, ((2, 2), (2, 2)), {}),
    "linalg.norm": (torch.linalg.norm, ((4, 2, 4),), {"dim": 1}),
    "linalg.norm of matrices": (torch.linalg.norm, ((4, 2, 4), "nuc"), {"dim": (0, 1)}),
    "linalg.matrix_norm": (torch.linalg.matrix_norm, ((2, 4, 4),), {}),
    "linalg.inv_ex": (torch.linalg.inv_ex, ((4, 2, 2),), {}),
    "linalg.inv": (torch.linalg.inv, ((4, 2, 2),), {}),
    "linalg.inv of one": (torch.linalg.inv, ((4, 4),), {}),
    "linalg.det": (torch.linalg.det, ((2, 4, 2, 2),), {}),
    "linalg.slogdet": (torch.linalg.slogdet, ((4, 2, 2),), {}),
    "logdet": (torch.logdet, ((4, 2, 2),), {}),
    "matrix_power": (torch.matrix_power, ((4, 2, 2), 2), {}),
    "matrix_exp": (torch.matrix_exp, ((4, 2, 2),), {}),
    "linalg.solve": (torch.linalg.solve, ((4, 2, 2), (4, 2, 4)), {}),
    "linalg.solve of one matrix": (torch.linalg.solve, ((1, 2, 2), (4, 2, 4)), {}),
    "linalg.solve from the right": (torch.linalg.solve, ((4, 2, 2), (4, 4, 2)), {"left": False}),
    "linalg.solve of vectors": (torch.linalg.solve, ((4, 4, 4), (4, 4)), {}),
    "linalg.solve_triangular": (torch.linalg.solve_triangular, ((2, 2, 2), (2, 2, 4)), {"upper": False}),
    "hstack": (torch.hstack, (((4, 2), (4, 4)),), {}),
    "hstack of vectors": (torch.hstack, (((4,), (4,)),), {}),
    "vstack": (torch.vstack, (((4,), (2, 4)),), {}),
    "vstack of matrices": (torch.vstack, (((4, 2), (4, 2)),), {}),
    "dstack": (torch.dstack, (((4, 2), (4, 2, 2)),), {}),
    "dstack of vectors": (torch.dstack, (((4,), (4,)),), {}),
    "column_stack": (torch.column_stack, (((4,), (4, 2)),), {}),
    "hsplit": (torch.hsplit, ((4, 4, 2), 2), {}),
    "hsplit of a vector": (torch.hsplit, ((4,), 2), {}),
    "vsplit": (torch.vsplit, ((4, 4, 2), 2), {}),
    "dsplit": (torch.dsplit, ((4, 2, 4), 2), {}),
    "diagonal": (torch.diagonal, ((4, 2, 4),), {"dim1": 1, "dim2": 2}),
    "diagonal of the first": (torch.diagonal, ((4, 4, 4),), {}),
    "linalg.diagonal": (torch.linalg.diagonal, ((4, 2, 4),), {}),
    "diag_embed": (torch.diag_embed, ((4, 2, 4),), {"dim1": 0, "dim2": 2}),
    "diag_embed in front": (torch.diag_embed, ((4, 4),), {"offset": 1, "dim1": 0, "dim2": 1}),
    "rot90": (torch.rot90, ((4, 4, 4), 1, "=dims"), {}),
    "fliplr": (torch.fliplr, ((4, 4, 2),), {}),
    "flipud": (torch.flipud, ((4, 4, 2),), {}),
    "cross": (torch.cross, ((4, 3, 2), (4, 3, 2)), {"dim": 1}),
    "cross without a dimension": (torch.cross, ((4, 3), (4, 3)), {}),
    "linalg.cross": (torch.linalg.cross, ((4, 2, 3), (1, 2, 3)), {}),
    "trapezoid": (torch.trapezoid, ((4, 2, 4),), {"dim": 1}),
    "trapezoid at places": (torch.trapezoid, ((4, 2, 4), (4,)), {}),
    "trapezoid at places of each": (torch.trapezoid, ((4, 2, 4), (4, 2, 4)), {}),
    "cumulative_trapezoid": (torch.cumulative_trapezoid, ((4, 2, 4),), {"dim": 1}),
    "searchsorted": (torch.searchsorted, ((6,), (4, 2)), {}),
    "searchsorted of rows": (torch.searchsorted, ((4, 2, 6), (4, 2, 2)), {}),
    "fftshift": (torch.fft.fftshift, ((4, 4, 2),), {"dim": (1, 2)}),
    "fftshift of all": (torch.fft.fftshift, ((4, 4, 2),), {}),
    "rfftn": (torch.fft.rfftn, ((4, 4, 2),), {"dim": (1, 2)}),
    "irfft2": (torch.fft.irfft2, ((4, 4, 4),), {}),
    "stft": (torch.stft, ((4, 16), 4), {"return_complex": True, "window": torch.ones(4, dtype=torch.float64)}),
    "stft of one": (torch.stft, ((16,), 4), {"return_complex": True, "window": torch.ones(4, dtype=torch.float64)}),
    "einsum with dots": (torch.einsum, ("=b...d,...de->b...e", (2, 4, 2), (4, 2, 2)), {}),
    "einsum with dots in the middle": (torch.einsum, ("=a...b,b...c->...ac", (2, 2, 4), (4, 2, 2)), {}),
    "einsum without an arrow": (torch.einsum, ("=cab,bd", (2, 4, 2), (2, 4)), {}),
    "einsum of the diagonal": (torch.einsum, ("=bii->bi", (4, 2, 2)), {}),
    "einsum over the dots": (torch.einsum, ("=...d->d", (4, 2, 2)), {}),
    "tensordot": (torch.tensordot, ((4, 2, 4), (2, 4)), {"dims": ([1], [0])}),
    "tensordot of all": (torch.tensordot, ((4, 2, 4), (2, 4)), {"dims": 2}),
    "inner": (torch.inner, ((4, 2, 4), (2, 4)), {}),
    "outer": (torch.outer, ((4,), (2,)), {}),
    "linalg.vecdot": (torch.linalg.vecdot, ((4, 2, 4), (2, 4)), {"dim": -1}),
    "linalg.vecdot over the first": (torch.linalg.vecdot, ((4, 2, 4), (4, 2, 4)), {"dim": 0}),
    "special.softmax": (torch.special.softmax, ((4, 2, 4), 1), {}),
    "renorm": (torch.renorm, ((4, 4, 2), 2, 0, 0.1), {}),
    "renorm of columns": (torch.renorm, ((4, 4, 2), 2, 1, 0.1), {}),
    "select_scatter": (torch.select_scatter, ((4, 2, 4), (4, 4), 1, 0), {}),
    "select_scatter in front": (torch.select_scatter, ((4, 4, 2), (4, 2), 0, 1), {}),
    "slice_scatter": (torch.slice_scatter, ((4, 4, 2), (4, 2, 2), 1, 0, 2), {}),
    "msort": (torch.msort, ((4, 4, 2),), {}),
    "ctc_loss": (F.ctc_loss, ((6, 4, 2), "ones 4 2", "sixes 4", "ones 4"), {"reduction": "none"}),
    "ctc_loss, mean": (F.ctc_loss, ((6, 4, 2), "ones 4 2", "sixes 4", "ones 4"), {}),
    "ctc_loss of joined targets": (F.ctc_loss, ((6, 4, 2), "ones 4", "sixes 4", "ones 4"), {"reduction": "sum"}),
    "gaussian_nll_loss": (F.gaussian_nll_loss, ((4, 2), (4, 2), (4, 2)), {}),
    "gaussian_nll_loss of rows": (F.gaussian_nll_loss, ((4, 2), (4, 2), (4,)), {"reduction": "none"}),
    "a number where a mask is true": (Tensor.__setitem__, ((4, 2), "mask 4 2", 0.5), {}),
    "a number where a mask of rows is true": (Tensor.__setitem__, ((4, 2), "mask 4", 0.5), {}),
    "a number at places": (Tensor.__setitem__, ((4, 2, 2), "range", 0.5), {}),
    "Tensor.unfold": (Tensor.unfold, ((4, 4, 2),), {"dimension": 1, "size": 2, "step": 1}),
    "nothing": (torch.narrow, ((4, 2), 1, 0, 0), {}),
}  # fmt: skip


def _calls_on(
    function: Function, shapes: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator
) -> Iterator[Call]:
    """All ways to have the records of a batch of two or four in a dimension of each argument, or in none."""
    choice = random.Random(0)

    def made(shape: Any, first: bool, records: int) -> Any:
        if shape == "columns":
            return (slice(None), 0)
        if shape == "range":
            return (Given(torch.arange(4)), made("labels 4", False, records))
        if shape == "quantiles":
            return torch.tensor([0.25, 0.75], dtype=torch.float64)
        if shape == "=dims":
            return (1, 2)
        if isinstance(shape, str) and shape.startswith("="):
            return shape[1:]
        if isinstance(shape, tuple) and shape and isinstance(shape[0], tuple):
            return tuple(made(each, False, records) for each in shape)
        if isinstance(shape, str) and not shape[-1].isdigit():
            return shape
        if shape == "var":
            return Given(torch.rand(4, generator=generator, dtype=torch.float64) + 0.5)
        if isinstance(shape, str) and shape.startswith(("ones", "sixes", "mask")):
            value = torch.full([int(size) for size in shape.split()[1:]], 6 if shape.startswith("sixes") else 1)
            values = torch.rand(value.shape, generator=generator) < 0.5 if shape.startswith("mask") else value
        elif isinstance(shape, str):
            values = torch.randint(0, 2, [int(size) for size in shape.split()[1:]], generator=generator)
        elif isinstance(shape, tuple) and not (function is F.layer_norm and first is None):
            values = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
        else:
            return shape
        dims = [(d, i) for d, size in enumerate(values.shape) for i in (1, 2) if size % (records * i) == 0]
        if not dims or choice.random() < 0.3:
            return Given(values)
        dim, inner = choice.choice(dims)
        return Given(values, stride_at(values.shape, dim, inner))

    for _ in range(60):
        records = choice.choice((2, 4))
        args = [made(shape, not number, records) for number, shape in enumerate(shapes)]
        if function is F.layer_norm:
            args[1] = shapes[1]
        if function is F.adaptive_avg_pool2d:
            args[1] = shapes[1]
        call = Call(function, tuple(args), kwargs, records)
        if any(each.stride is not None for each in call.given):
            yield call


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.filterwarnings("ignore")
def test_calls_of_the_list(name: str) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    found = [(complaint(call, generator), call) for call in _calls_on(*SHAPES[name], generator)]
    wrong = [f"{what}: {call}" for what, call in found if what]
    assert not wrong, "\n".join(wrong)
