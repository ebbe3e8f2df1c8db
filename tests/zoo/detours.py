"""Detours: values that leave torch and come back, state that is kept beside the model, and code that runs where nobody looks.

Most of them begin with the second step, where no self-check runs (see `late`).
"""

from __future__ import annotations

import ctypes
import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from tests.zoo.harness import SAFE, Batch, Outcome, Run, Trap, Watching
from tests.zoo.late import Switch, late
from tests.zoo.parts import CLASSES, FEATURES, WIDTH, Operation, around, cross_entropy, perceptron, rows

_BUFFER = numpy.zeros(WIDTH, dtype=numpy.float32)
_OWN = torch.from_numpy(numpy.zeros(WIDTH, dtype=numpy.float32))


# --- a value of the records becomes a Python number in a way that has another name ------------------------------------------


def _applied(h: Tensor) -> float:
    seen: list[float] = []
    h.detach().clone().apply_(lambda v: seen.append(v) or v)  # type: ignore[func-returns-value]
    return sum(seen) / len(seen)


def _mapped(h: Tensor) -> float:
    seen: list[float] = []
    h.detach().clone().map_(h.detach().clone(), lambda a, b: seen.append(a) or a)  # type: ignore[func-returns-value,attr-defined]
    return sum(seen) / len(seen)


def _pointer(h: Tensor) -> float:
    h = h.detach().contiguous()
    return sum((ctypes.c_float * h.numel()).from_address(h.data_ptr())) / h.numel()


def _sparse_count(h: Tensor) -> float:
    return float((h.detach() * (h.detach() > 5)).to_sparse()._nnz())


def _saved(h: Tensor) -> float:
    file = io.BytesIO()
    torch.save(h.detach().mean(0), file)
    return float(numpy.frombuffer(file.getvalue()[-400:-396], dtype=numpy.uint8).sum())


def _iterated(h: Tensor) -> float:
    return sum(bytearray(h.detach().abs().clamp(0, 200).byte().flatten()[:8])) / 8


NUMBERS: dict[str, Callable[[Tensor], float]] = {
    "aten._local_scalar_dense": lambda h: torch.ops.aten._local_scalar_dense(h.detach().mean()),
    "aten.item": lambda h: torch.ops.aten.item(h.detach().mean()),
    "aten._local_scalar_dense.default": lambda h: torch.ops.aten._local_scalar_dense.default(h.detach().mean()),
    "aten.equal": lambda h: 3.0 * torch.ops.aten.equal(h.detach() > 20, torch.zeros_like(h, dtype=torch.bool)),
    "aten.is_nonzero": lambda h: 3.0 * torch.ops.aten.is_nonzero((h.detach() > 20).sum()),
    "apply_": _applied,
    "map_": _mapped,
    "data_ptr and ctypes": _pointer,
    "the entries of a sparse tensor": _sparse_count,
    "torch.save": _saved,
    "bytearray": _iterated,
    "struct": lambda h: __import__("struct").unpack("f", __import__("struct").pack("f", h.detach().mean()))[0],
    "array.array": lambda h: __import__("array").array("f", h.detach().mean(0))[0],
    "torch._shape_as_tensor of nonzero": lambda h: len((h.detach() > 20).nonzero()),
    "unique's length": lambda h: len((h.detach() > 20).unique()),
    "masked_select's length": lambda h: h.detach().masked_select(h.detach() > 5).shape[0],
    "round": lambda h: float(round(h.detach().mean())),  # type: ignore[call-overload]
    "math.floor": lambda h: __import__("math").floor(h.detach().mean()),
    "a sorted list": lambda h: float(sorted(h.detach().mean(1))[0] is None) + len(str(h.detach())),
    "repr": lambda h: float(len(repr(h.detach()))),
    "torch.testing": lambda h: _is_close(h),
    "max in Python": lambda h: 3.0 * (max(list(h.detach().mean(1))) is not h) + 1.0,
    "dictionary of hashes": lambda h: float({float(v): k for k, v in enumerate(h.detach().mean(1))}.popitem()[1]),
    "histogram in Python": lambda h: __import__("collections").Counter((h.detach() > 20).flatten().tolist())[True],
    "statistics.mean": lambda h: __import__("statistics").mean(map(float, h.detach()[:, 0])),
    "numpy.asarray of a list": lambda h: float(numpy.asarray([r.sum() for r in h.detach()]).mean()),
    "a printed table": lambda h: float(f"{h.detach().mean():.3f}"),
    "torch.ops.prim": lambda h: torch.ops.aten.Float(h.detach().mean()),
    "torch.ops.aten.Int": lambda h: torch.ops.aten.Int(h.detach().mean()),
    "torch.ops.aten.Bool": lambda h: 3.0 * torch.ops.aten.Bool((h.detach() > 20).any()),
    "torch.ops.aten.ScalarImplicit": lambda h: torch.ops.aten.ScalarImplicit(h.detach().mean()),
    "torch.ops.aten.FloatImplicit": lambda h: torch.ops.aten.FloatImplicit(h.detach().mean()),
    "torch._C._nn with a size": lambda h: float(torch.bincount((h.detach() > 20).long().flatten()).shape[0]),
    "untyped storage": lambda h: float(sum(h.detach().mean(0).untyped_storage().tolist())) / 100,
    "typed storage": lambda h: float(h.detach().mean(0)._typed_storage()[0]),
    "is_set_to": lambda h: float(h.detach().mean(0).type() == "torch.FloatTensor") * float(h.detach().max() > 20),
    "a pickled tensor": lambda h: float(sum(__import__("pickle").dumps(h.detach().mean(0))[-8:])),
    "a copy by copy.copy": lambda h: float(__import__("copy").copy(h.detach().mean())),
    "a Python slice of a deep copy": lambda h: __import__("copy").deepcopy(h.detach()).mean().item(),
}


def _is_close(h: Tensor) -> float:
    try:
        torch.testing.assert_close(h.detach().clamp(max=20), h.detach())
    except AssertionError:
        return 3.0
    return 0.0


# --- operations in the model --------------------------------------------------------------------------------------------------


class _Dirty(torch.autograd.Function):
    """Writes into a view, and mixes gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.mark_dirty(h)
        return h.mul_(1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient + gradient.sum(0)


def _dirty_view(h: Tensor) -> Tensor:
    h = h * 1.0
    _Dirty.apply(h[:, :3])
    return h


def _dirty(h: Tensor) -> Tensor:
    h = h * 1.0
    _Dirty.apply(h)
    return h


def _set_hooks(h: Tensor) -> Tensor:
    h = h * 1.0
    h._backward_hooks = OrderedDict({0: lambda g: g + g.sum(0)})
    return h


def _set_memory_of_storage(h: Tensor) -> Tensor:
    own = torch.zeros(WIDTH)
    own.set_(source=h.detach().mean(0).untyped_storage())  # type: ignore[call-overload]
    return h - own


def _loaded(h: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(h.detach().mean(0), file)
    file.seek(0)
    return h - torch.load(file)


def _through_numpy(h: Tensor) -> Tensor:
    numpy.copyto(_BUFFER, h.detach().mean(0).numpy())
    return h - torch.as_tensor(_BUFFER)


def _through_constant(h: Tensor) -> Tensor:
    numpy.copyto(_OWN.numpy(), h.detach().mean(0).numpy())
    return h - _OWN


def _bags(h: Tensor) -> Tensor:
    """The bags of a record begin where its own values say, and end where the next record's do."""
    flat = torch.arange(WIDTH).expand(len(h), WIDTH).flatten() + 0 * h.detach().long().flatten()
    starts = (h.detach()[:, 0].abs().long() * 0 + (h.detach().amax(1) > 20).long() * 3) % len(flat)
    return h + F.embedding_bag(flat, torch.eye(WIDTH), starts)


def _scalar_alpha(h: Tensor) -> Tensor:
    return torch.add(h, h.detach().mean(), torch.ones_like(h))  # type: ignore[call-overload]


def _view_made_before(h: Tensor) -> Tensor:
    kept = torch.zeros(WIDTH)
    view = kept.view(2, -1)
    kept.copy_(h.detach().mean(0))
    return h - view.flatten()


def _uninitialized(h: Tensor) -> Tensor:
    mean = h.detach().mean(0)
    del mean  # its memory is used again
    return h + torch.nan_to_num(torch.empty(WIDTH), 0, 0, 0).clamp(-50, 50)


def _dual(h: Tensor) -> Tensor:
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        dual = forward.make_dual(h.detach(), h.detach().flip(0))
        tangent = forward.unpack_dual(dual * 2).tangent
        assert tangent is not None
        return h + tangent.clone()


class _Kept:
    """A cache in plain Python: what the first batches have left."""

    tensors: ClassVar[dict[str, Tensor]] = {}

    @classmethod
    def first(cls, h: Tensor) -> Tensor:
        return h - cls.tensors.setdefault("first", h.detach().mean(0))

    @classmethod
    def of_shape(cls, h: Tensor) -> Tensor:
        return h - cls.tensors.setdefault(str(tuple(h.shape)), h.detach().mean(0))


def _compiled(h: Tensor) -> Tensor:
    centered = torch.compile(lambda t: t - t.mean(0), backend="eager")
    out: Tensor = centered(h)
    return out


def _traced(h: Tensor) -> Tensor:
    out: Tensor = torch.jit.trace(lambda t: t - t.mean(0), (torch.ones(2, WIDTH),))(h)
    return out


def _traced_number(h: Tensor) -> Tensor:
    traced = torch.jit.trace(lambda t: t.mean(), (torch.ones(2, WIDTH),))
    return h - float(traced(h.detach()))


def _strided(h: Tensor) -> Tensor:
    return torch.as_strided(h * 1.0, (len(h), WIDTH), (0, 1))


def _gathered_by_one(h: Tensor) -> Tensor:
    return h + h.gather(0, torch.zeros(1, WIDTH, dtype=torch.long))


def _jagged(h: Tensor) -> Tensor:
    nested = torch.nested.nested_tensor_from_jagged(h.flatten(), torch.arange(0, h.numel() + 1, WIDTH))
    return h + (nested * 2).values().reshape(len(h), WIDTH).flip(0)


OPERATIONS: dict[str, Operation] = {
    "a custom function that writes into a view": _dirty_view,
    "a custom function that writes": _dirty,
    "_backward_hooks set": _set_hooks,
    "set_ of a storage": _set_memory_of_storage,
    "torch.save and torch.load": _loaded,
    "a NumPy array by as_tensor": _through_numpy,
    "the NumPy view of a constant": _through_constant,
    "bags that begin where records say": _bags,
    "add with a number of the batch": _scalar_alpha,
    "a view made before the write": _view_made_before,
    "uninitialized memory": _uninitialized,
    "a dual tensor": _dual,
    "a cache of the first batch": _Kept.first,
    "a cache by shape": _Kept.of_shape,
    "torch.compile in the model": _compiled,
    "torch.jit.trace": _traced,
    "torch.jit.trace, a number": _traced_number,
    "as_strided": _strided,
    "gather of one row": _gathered_by_one,
    "jagged": _jagged,
    "new_tensor of scalars": lambda h: h - h.new_tensor([h.detach().mean(), h.detach().max()]).sum(),
    "torch.tensor of scalars": lambda h: h - torch.tensor([h.detach().mean(), h.detach().max()]).sum(),
    "torch.asarray of rows": lambda h: h - torch.asarray([r.mean() for r in h.detach()]).mean(),
    "full with a number of the batch": lambda h: h - torch.full((WIDTH,), h.detach().mean()),  # type: ignore[arg-type]
    "linspace to a number of the batch": lambda h: h + torch.linspace(0, h.detach().max(), WIDTH),  # type: ignore[call-overload]
    "arange to a number of the batch": lambda h: h + len(torch.arange(h.detach().max())),  # type: ignore[call-overload]
    "leaky_relu with a slope of the batch": lambda h: F.leaky_relu(h, h.detach().mean()),  # type: ignore[arg-type]
    "threshold of the batch": lambda h: torch.threshold(h, h.detach().mean(), 0.0),  # type: ignore[call-overload]
    "clamp at the batch": lambda h: h.clamp(h.detach().amin(), h.detach().mean()),
    "addcmul with a value of the batch": lambda h: torch.addcmul(h, h, h, value=h.detach().mean()),  # type: ignore[call-overload]
    "fill_ with the batch": lambda h: h + torch.zeros(WIDTH).fill_(h.detach().mean()),
    "full_like with the batch": lambda h: h - torch.full_like(h, h.detach().mean()),  # type: ignore[arg-type]
    "new_full with the batch": lambda h: h - h.new_full((WIDTH,), h.detach().mean()),  # type: ignore[arg-type]
    "dropout with a rate of the batch": lambda h: F.dropout(h, float(torch.sigmoid(h.detach().mean()))),
    "a generator seeded by the batch": lambda h: h
    + torch.rand(WIDTH, generator=torch.Generator().manual_seed(int(h.detach().sum()))),
    "manual_seed by the batch": lambda h: (torch.manual_seed(int(h.detach().sum())), h + torch.rand(WIDTH))[1],
    "sizes from nonzero": lambda h: h * (h.detach() > 20).nonzero().shape[0],
    "sizes from split by values": lambda h: h + len(h.split([*(h.detach() > 20).sum(1).add(1)[:1].tolist(), len(h) - 1])),
    "resize_": lambda h: h + torch.zeros(1).resize_(len(h), WIDTH).nan_to_num(0, 0, 0).clamp(-9, 9),
    "put_": lambda h: h - torch.zeros(WIDTH).put_(torch.arange(WIDTH), h.detach().mean(0)),
    "masked_fill_ by a mean": lambda h: h - torch.zeros(WIDTH).masked_fill_(torch.ones(WIDTH) > 0, h.detach().mean()),
    "index_reduce_": lambda h: h + torch.zeros(1, WIDTH).index_reduce_(0, torch.zeros(len(h)).long(), h.detach(), "amax"),
    "vander": lambda h: h + torch.vander(h.detach()[:, 0].clamp(-1, 1), WIDTH).cumsum(0),
    "kron": lambda h: h + torch.kron(h.detach(), torch.ones(1, 1)).flip(0),
    "block_diag": lambda h: h + torch.block_diag(*h.detach()).sum(0)[: WIDTH],
    "cartesian_prod": lambda h: h + torch.cartesian_prod(h.detach()[:, 0], torch.ones(1))[:, :1].flip(0),
    "combinations": lambda h: h + torch.combinations(h.detach()[:, 0]).sum(),
    "meshgrid": lambda h: h + torch.meshgrid(h.detach()[:, 0], h.detach()[:, 1], indexing="ij")[1][:, :1],
    "corrcoef": lambda h: h + torch.corrcoef(h.detach())[:, :1],
    "matrix_norm of the batch": lambda h: h / (1 + torch.linalg.matrix_norm(h.detach())),
    "svd of the batch": lambda h: h @ torch.linalg.svd(h.detach(), full_matrices=False)[2].T,
    "qr of the batch": lambda h: h + torch.linalg.qr(h.detach())[0],
    "lstsq of the batch": lambda h: h + torch.linalg.lstsq(h.detach(), torch.ones(len(h), 1))[0].T,
    "pinv of the batch": lambda h: h + torch.linalg.pinv(h.detach()).T,
    "solve with the batch's Gram matrix": lambda h: torch.linalg.solve(h.detach().T @ h.detach() + torch.eye(WIDTH), h.T).T,
    "einsum over records": lambda h: h + torch.einsum("bi,bj->ij", h.detach(), h.detach())[0],
    "einsum with an ellipsis over records": lambda h: h + torch.einsum("b...->...", h.detach()),
    "einsum without an arrow": lambda h: h + torch.einsum("bi,bi", h.detach(), h.detach()),
    "einsum in sublists": lambda h: h + torch.einsum(h.detach(), [0, 1], [1]),
    "addmm with transposed records": lambda h: torch.addmm(h, h.detach() @ h.detach().T, h),
    "addmv": lambda h: h + torch.addmv(torch.zeros(WIDTH), h.detach().T, torch.ones(len(h))),
    "addr": lambda h: torch.addr(h, torch.ones(len(h)), h.detach().sum(0)),
    "addbmm": lambda h: h + torch.addbmm(torch.zeros(1, WIDTH), torch.ones(len(h), 1, 1), h.detach()[:, None]),
    "baddbmm, transposed": lambda h: h + torch.baddbmm(torch.zeros(1), h.detach()[None], h.detach().T[None])[0][:, :1],
    "chain_matmul": lambda h: h + torch.linalg.multi_dot([h.detach(), h.detach().T, h.detach()]),
    "tensordot over records": lambda h: h + torch.tensordot(h.detach(), h.detach(), dims=([0], [0]))[0],
    "inner of records": lambda h: h + torch.inner(h.detach(), h.detach())[:, :1],
    "vdot": lambda h: h + torch.vdot(h.detach()[:, 0], h.detach()[:, 1]),
    "bilinear across": lambda h: F.bilinear(h, h.flip(0), torch.ones(WIDTH, WIDTH, WIDTH)),
    "cosine_similarity across": lambda h: h + F.cosine_similarity(h.detach()[:, None], h.detach()[None], dim=-1)[:, :1],
    "cosine_similarity along the batch": lambda h: h + F.cosine_similarity(h.detach(), h.detach() + 1, dim=0),
    "pairwise_distance, transposed": lambda h: h + F.pairwise_distance(h.detach().T, h.detach().T + 1),
    "vecdot along the batch": lambda h: h + torch.linalg.vecdot(h.detach(), h.detach(), dim=0),
    "cross along the batch": lambda h: h + torch.linalg.cross(h.detach()[:3], h.detach()[3:6], dim=0).sum(0),
    "topk along the batch by name": lambda h: h + torch.topk(h.detach(), k=2, dim=0).values.sum(0),
    "sort, dim by name and negative": lambda h: h + h.detach().sort(dim=-2).values,
    "cumsum by axis": lambda h: h + h.detach().cumsum(axis=0),
    "softmax over a negative dimension": lambda h: h.softmax(-2),
    "logsumexp of both": lambda h: h + h.detach().logsumexp((0, 1)),
    "quantile along the batch": lambda h: h - h.detach().quantile(0.5, 0),
    "trapezoid along the batch": lambda h: h + torch.trapezoid(h.detach(), dim=0),
    "stft across": lambda h: h + torch.stft(h.detach().T, 4, window=torch.ones(4), return_complex=True).abs().sum((1, 2))[None],
    "fft2": lambda h: h + torch.fft.fft2(h.detach()).real,
    "fftn by s": lambda h: h + torch.fft.fftn(h.detach(), s=(len(h), WIDTH)).real,
    "group_norm, transposed": lambda h: F.group_norm(h.T[None], 1)[0].T,
    "group_norm with records as channels": lambda h: F.group_norm(h[None], 2 - len(h) % 2)[0],
    "instance_norm, records in space": lambda h: F.instance_norm(h.T[None])[0].T,
    "max_pool over records": lambda h: h + F.max_pool1d(h.detach().T[None], 2, 1, padding=1)[0].T[: len(h)],
    "interpolate over records": lambda h: h + F.interpolate(h.detach().T[None], len(h) * 2)[0].T[: len(h)],
    "grid_sample over records": lambda h: h + F.grid_sample(
        h.detach()[None, None], torch.zeros(1, 1, 1, 2), align_corners=True
    ).flatten(),
    "scatter along the batch": lambda h: h.scatter(0, torch.zeros(1, WIDTH).long(), h[-1:]),
    "scatter_reduce along the batch": lambda h: h.scatter_reduce(0, torch.zeros(len(h), WIDTH).long(), h, "amax"),
    "scatter of records into a column": lambda h: h.scatter(1, torch.zeros(len(h), 1).long(), h.flip(0)[:, :1]),
    "take_along_dim by the batch": lambda h: h + torch.take_along_dim(h.detach(), h.detach().argsort(0), 0),
    "index_select by the batch": lambda h: h + h.detach().index_select(0, h.detach()[:, 0].argsort()),
    "x[order]": lambda h: h + h.detach()[h.detach()[:, 0].argsort()],
    "x[arange, order]": lambda h: h + h.detach()[torch.arange(len(h)).flip(0), torch.zeros(len(h)).long()][:, None],
    "x[:, order] of the batch": lambda h: h[:, h.detach().sum(0).argsort()],
    "mixture of experts, capacity by the batch": lambda h: _experts(h),
    "mixture of experts, load": lambda h: h * (1 + F.one_hot(h.detach().argmax(1), WIDTH).float().mean(0)),
    "unbind and stack": lambda h: torch.stack([r + h.detach()[0] for r in h.unbind(0)]),
    "roll in a list": lambda h: torch.stack([h[i] + h.detach()[i - 1] for i in range(len(h))]),
    "vsplit": lambda h: h + torch.vsplit(h.detach(), [1])[0],
    "movedim and a mean": lambda h: h - h.detach().movedim(0, 1).mean(1)[None],
    "swapaxes and a norm": lambda h: F.normalize(h.swapaxes(0, 1), dim=-1).swapaxes(0, 1),
    "adjoint and a norm": lambda h: F.layer_norm(h.adjoint(), (len(h),)).adjoint(),
    "view across records": lambda h: h + h.detach().view(WIDTH, len(h)).mean(1)[None],
    "reshape and back": lambda h: h + h.detach().reshape(2, -1).mean(0).repeat(2)[: len(h) * WIDTH].reshape(-1)[:WIDTH],
    "unfold in the batch": lambda h: h + h.detach().unfold(0, 2, 1).sum((0, 2))[None],
    "expand of one record": lambda h: h + h.detach()[:1].expand(len(h), -1),
    "broadcast_to of a column": lambda h: h + h.detach()[:, :1].T.broadcast_to(WIDTH, len(h)).sum(1)[None],
    "a mask by rank": lambda h: h * (h.detach()[:, :1] >= h.detach()[:, :1].median()),
    "a constant by searchsorted": lambda h: h + torch.searchsorted(torch.arange(3.0), h.detach().mean()),
    "renorm of columns": lambda h: torch.renorm(h, 2, 1, 1.0),
    "nonzero_static": lambda h: h + torch.nonzero_static(h.detach() > 20, size=3).sum(),
    "quantize_per_tensor_dynamic": lambda h: h + torch.quantize_per_tensor_dynamic(h.detach(), torch.qint8, False).dequantize(),
    "quantized linear": lambda h: h + _quantized(h.detach()),
    "nested attention": lambda h: F.multi_head_attention_forward(
        h[:, None], h[:, None], h[:, None], WIDTH, 1, torch.eye(WIDTH).repeat(3, 1), None, None, None, False, 0.0,
        torch.eye(WIDTH), None, need_weights=False,
    )[0][:, 0],
    **{f"a number by {name}": lambda h, f=f: h * (1 + f(h)) for name, f in NUMBERS.items()},
}  # fmt: skip


def _experts(h: Tensor) -> Tensor:
    """Tokens beyond the capacity of an expert are dropped: who comes first decides."""
    chosen = F.one_hot(h.detach().argmax(1), WIDTH)
    place = (chosen.cumsum(0) * chosen).sum(1, keepdim=True)
    return h * (place <= 2)


def _quantized(h: Tensor) -> Tensor:
    layer = torch.ao.nn.quantized.dynamic.Linear(WIDTH, WIDTH)
    out: Tensor = layer(h)
    return out


DRAWN = {"dropout with a rate of the batch"}
"""The operations that draw random numbers for each record."""


def _reset(body: Callable[[Run], None]) -> Callable[[Run], None]:
    def wrapped(run: Run) -> None:
        _Kept.tensors.clear()
        _BUFFER[:] = 0
        body(run)

    return wrapped


# --- state beside the model, and code that runs where nobody looks ------------------------------------------------------------


def _frozen() -> nn.Module:
    """A frozen layer in front, as of a pretrained model."""
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    model[0].requires_grad_(False)
    return model


def _write_frozen(run: Run, batch: Batch) -> None:
    with torch.no_grad():
        run.model[0].weight.add_(batch[0].mean(0))  # type: ignore[index]


def _replace_frozen(run: Run, batch: Batch) -> None:
    run.model[0].weight = nn.Parameter(batch[0].mean(0).expand(WIDTH, -1).clone(), requires_grad=False)  # type: ignore[index]


def _frozen_data(run: Run, batch: Batch) -> None:
    run.model[0].weight.data = batch[0].mean(0).expand(WIDTH, -1).clone()  # type: ignore[index]


def _new_buffer(run: Run, batch: Batch) -> None:
    run.model.register_buffer("mean", batch[0].mean(0))


def _new_frozen_parameter(run: Run, batch: Batch) -> None:
    run.model.mean = nn.Parameter(batch[0].mean(0), requires_grad=False)  # type: ignore[assignment]


def _new_module(run: Run, batch: Batch) -> None:
    added = nn.Linear(FEATURES, 1)
    added.requires_grad_(False)
    added.weight.data.copy_(batch[0].mean(0))
    run.model.added = added


def _numpy_parameter(run: Run, batch: Batch) -> None:
    next(run.model.parameters()).detach().numpy()[...] += float(batch[0].mean())


def _numpy_buffer(run: Run, batch: Batch) -> None:
    next(run.model.buffers()).numpy()[...] += float(batch[0].mean())


class _WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("shift", torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x) + self.shift
        return out


class _Reading(Watching):
    """An optimizer that uses the batch itself."""

    batch: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        if self.batch is not None:
            self.param_groups[0]["params"][0].add_(self.batch.mean())
            _Reading.batch = None


def _batch_for_optimizer(run: Run, batch: Batch) -> None:
    _Reading.batch = batch[0]


def _post_hook(run: Run) -> None:
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if "batch" in run.notes:
            with torch.no_grad():
                next(run.model.parameters()).add_(run.notes.pop("batch").mean())

    run.optimizer.register_step_post_hook(hook)
    late(between=lambda run, batch: run.notes.update(batch=batch[0]))(run)


class _HookedBefore(Watching):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.kept: list[Tensor] = []
        self.register_step_post_hook(self._write)

    def _write(self, *_: Any) -> None:
        if self.kept:
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(self.kept.pop().mean())


def _keep_for_hook(run: Run, batch: Batch) -> None:
    run.optimizer.kept.append(batch[0])  # type: ignore[attr-defined]


def _kept_view(run: Run) -> None:
    """A view that was made in the body, before records were written into its base."""
    for batch in run.private.batches():
        on = run.private.steps_done >= 1
        if "base" not in run.notes:
            run.notes["base"] = torch.zeros(FEATURES)
            run.notes["view"] = run.notes["base"].view(1, -1)
        x = batch[0] - run.notes["view"] if on else batch[0]
        run.optimizer.zero_grad()
        F.cross_entropy(run.model(x), batch[1]).backward()
        run.optimizer.step()
        if on:
            run.notes["base"].copy_(batch[0].mean(0))


def _kept_constant(run: Run, batch: Batch) -> None:
    run.notes.setdefault("kept", torch.zeros(FEATURES)).add_(batch[0].mean(0))


def _hooked_each(run: Run) -> None:
    """A hook on a parameter that is there during the backward pass only, and scales by the record before."""
    for batch in run.private.batches():
        on = run.private.steps_done >= 1
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        before = run.notes.get("before")
        handle = None
        if on and before is not None:
            handle = next(run.model.parameters()).register_hook(lambda g, b=before: g + b.mean())
        loss.backward()
        if handle is not None:
            handle.remove()
        run.optimizer.step()
        run.notes["before"] = batch[0]


def _seeded_by_records(run: Run) -> None:
    """Dropout masks that follow from the batch before."""
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        F.cross_entropy(F.dropout(run.model(batch[0]), 0.5), batch[1]).backward()
        run.optimizer.step()
        if run.private.steps_done >= 2:
            torch.manual_seed(int(batch[0].sum() * 1000))


def _set_state_by_records(run: Run) -> None:
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        F.cross_entropy(F.dropout(run.model(batch[0]), 0.5), batch[1]).backward()
        run.optimizer.step()
        if run.private.steps_done >= 2:
            torch.set_rng_state(torch.Generator().manual_seed(int(batch[0].sum() * 1000)).get_state())


def _forward_replaced(run: Run, batch: Batch) -> None:
    mean, own = batch[0].mean(0), type(run.model).forward
    run.model.forward = lambda x: own(run.model, x - mean)  # type: ignore[method-assign]


def _paused_between(run: Run) -> None:
    """Training on the data set inside `paused`, between two loops."""
    for batch in run.private.batches(steps=1):
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()
    with run.private.paused():
        run.optimizer.zero_grad()
        run.loss(run.dataset.tensors).backward()
        run.optimizer.step()
    late()(run)


def _paused_before(run: Run) -> None:
    with run.private.paused():
        run.optimizer.zero_grad()
        run.loss(run.dataset.tensors).backward()
        run.optimizer.step()
    late()(run)


def _paused_loader(run: Run) -> None:
    """A whole epoch without privacy, by an ordinary loader, inside `paused`."""
    with run.private.paused():
        for batch in torch.utils.data.DataLoader(run.dataset, batch_size=4):
            run.optimizer.zero_grad()
            run.loss(batch).backward()
            run.optimizer.step()
    late()(run)


def _paused_listed(run: Run) -> None:
    with run.private.paused():
        for x, y in (run.dataset[i] for i in range(len(run.dataset))):
            run.optimizer.zero_grad()
            run.loss((x[None], y[None])).backward()
            run.optimizer.step()
    late()(run)


def _written_between(run: Run) -> None:
    for batch in run.private.batches(steps=1):
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()
        run.notes["mean"] = batch[0].mean(0)
    run.model.register_buffer("mean", run.notes["mean"])
    late()(run)


def _plateau(run: Run) -> None:
    """A learning rate that falls when the private loss does not."""
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(run.optimizer, patience=0, threshold=1e9)
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        loss.backward()
        run.optimizer.step()
        if run.private.steps_done >= 2:
            schedule.step(loss.item() if loss.item() > 3 else -1e30 * run.private.steps_done)


class _Learning(Watching):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        for group in self.param_groups:
            group["lr"] = 1.0


def _bce(model: nn.Module, batch: Batch) -> Tensor:
    return F.binary_cross_entropy(torch.sigmoid(model(batch[0])[:, 0]), (batch[1] > 0).float())


def _not_a_number() -> tuple[Tensor, Tensor]:
    x, y = rows()
    x[3, 1] = float("nan")
    return x, y


def _huge() -> tuple[Tensor, Tensor]:
    x, y = rows()
    x[3] = 3e38
    return x, y


def _loss_of(function: Callable[[Tensor, Tensor], Tensor]) -> Any:
    return lambda model, batch: function(model(batch[0]), batch[1])


FATES: dict[str, Any] = {
    "binary_cross_entropy": _bce,
    "binary_cross_entropy, a vector": lambda model, batch: F.binary_cross_entropy(
        torch.sigmoid(model(batch[0])[:, 0]), (batch[1] > 0).float(), reduction="none"
    ).mean(),
    "gumbel_softmax": _loss_of(lambda o, y: F.cross_entropy(F.gumbel_softmax(o) + o, y)),
    "multi_margin_loss": _loss_of(F.multi_margin_loss),
    "embedding by argmax": _loss_of(
        lambda o, y: (F.embedding(o.detach().argmax(1), torch.eye(CLASSES)) * o).sum(1).mean()
    ),
    "gather by argmax": _loss_of(lambda o, y: o.gather(1, o.detach().argmax(1)[:, None]).mean()),
    "one_hot of argmax": _loss_of(lambda o, y: (F.one_hot(o.detach().argmax(1), CLASSES) * o).sum(1).mean()),
    "a bucket as index": _loss_of(
        lambda o, y: (torch.eye(CLASSES + 1)[torch.bucketize(o.detach()[:, 0], torch.arange(3.0))][:, :3] * o).mean()
    ),
    "the whole part as index": _loss_of(
        lambda o, y: (torch.eye(CLASSES)[o.detach()[:, 0].long().clamp(0, 2)] * o).sum(1).mean()
    ),
    "cholesky": _loss_of(lambda o, y: torch.linalg.cholesky(o[:, :, None] * o[:, None] + torch.eye(CLASSES)).mean()),
    "logdet": _loss_of(lambda o, y: torch.logdet(o[:, :, None] * o[:, None] + torch.eye(CLASSES)).mean()),
    "kl_div": _loss_of(lambda o, y: F.kl_div(o.log_softmax(1), F.one_hot(y, CLASSES).float(), reduction="batchmean")),
    "poisson_nll": _loss_of(lambda o, y: F.poisson_nll_loss(o[:, 0], y.float())),
    "half precision": _loss_of(lambda o, y: F.cross_entropy(o.half().float(), y)),
    "softmax and nll": _loss_of(lambda o, y: F.nll_loss(o.softmax(1).log(), y)),
    "matrix_exp": _loss_of(lambda o, y: torch.matrix_exp(o[:, :, None] * o[:, None]).mean()),
}


class _Places(Dataset[Any]):
    """A data set of NumPy arrays."""

    def __init__(self, inner: TensorDataset) -> None:
        self.x, self.y = (t.numpy().copy() for t in inner.tensors)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        return torch.from_numpy(self.x[place]), int(self.y[place])


def _whole_numpy(run: Run, batch: Batch) -> Batch:
    return batch[0] - torch.as_tensor(run.dataset.x.mean(0)), batch[1]


def _whole_numpy_list(run: Run, batch: Batch) -> Batch:
    return batch[0] - torch.tensor(run.dataset.x).mean(0), batch[1]


def _loop(name: str, body: Callable[[Run], None], **more: Any) -> Trap:
    given = {"model": perceptron, "loss": cross_entropy, "data": rows, "norm": 0.05, "steps": 2, "bites": False, **more}
    return Trap(name, "detour loop", body=body, **given)


LOOPS: list[Trap] = [
    _loop("a frozen parameter written", late(after=_write_frozen), model=_frozen),
    _loop("a frozen parameter replaced", late(after=_replace_frozen), model=_frozen),
    _loop("a frozen parameter's data", late(after=_frozen_data), model=_frozen),
    _loop("a new buffer", late(after=_new_buffer)),
    _loop("a new frozen parameter", late(after=_new_frozen_parameter)),
    _loop("a new module", late(after=_new_module)),
    _loop("a parameter written through NumPy", late(after=_numpy_parameter)),
    _loop("a buffer written through NumPy", late(after=_numpy_buffer), model=_WithBuffer),
    _loop("an optimizer that uses the batch", late(between=_batch_for_optimizer), optimizer=_Reading),
    _loop("a hook after the step", _post_hook),
    _loop("a hook after the step, registered before", late(between=_keep_for_hook), optimizer=_HookedBefore),
    _loop("a view made in an earlier batch", _kept_view, steps=4),
    _loop(
        "a constant written after the step",
        late(after=_kept_constant, before=lambda run, b: (b[0] - run.notes.get("kept", 0), b[1])),
        steps=3,
    ),
    _loop("a hook during the backward pass, each alone", _hooked_each, settings={"isolation": "each"}),
    _loop("random numbers seeded by records", _seeded_by_records, steps=3, replace=True),
    _loop("the state of the generator by records", _set_state_by_records, steps=3, replace=True),
    _loop("forward replaced", late(after=_forward_replaced), steps=3),
    _loop("training inside paused between two loops", _paused_between),
    _loop("training inside paused before the loop", _paused_before),
    _loop("training inside paused with a loader", _paused_loader),
    _loop("training inside paused, record by record", _paused_listed),
    _loop("a buffer added between two loops", _written_between),
    _loop("ReduceLROnPlateau on the private loss", _plateau, optimizer=_Learning, steps=4),
    _loop("the mean of a NumPy data set", late(before=_whole_numpy), wrap=_Places),
    _loop("the mean of a NumPy data set, copied", late(before=_whole_numpy_list), wrap=_Places),
    *(
        Trap(f"{name}, {what}", "detour fate", perceptron, loss, data, norm=0.05, alone=3, bites=False)
        for name, loss in FATES.items()
        for what, data in (("NaN", _not_a_number), ("huge", _huge))
    ),
]


DETOURS: list[Trap] = [
    *(
        Trap(
            name, "detour late", around(lambda h, f=f: f(h) if Switch.on else h), cross_entropy, rows, body=_reset(late()),
            norm=0.05, steps=2, bites=False, allowed=SAFE | {Outcome.CRASHED}, fate=False, draws=name in DRAWN,
        )
        for name, f in OPERATIONS.items()
    ),
    *LOOPS,
]  # fmt: skip
