"""Bugs planted in the library itself, one context manager each: the laboratory has to refute every one of them.

They are planted in the classes that every private step goes through (clipping, noise, sampling, ledger), so that the real path
runs with them, whatever the engine is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privet
from privet.audit.stations import PUBLIC_SIZE
from privet.clipping import AdaptiveClipping, BoundedSum, FlatClipping
from privet.clipping.bounded import clipping_factors
from privet.data import Dataset, Split
from privet.gradients import Engine
from privet.gradients.recorder import Recorder
from privet.methods import dpgan, voting
from privet.noise import GaussianNoise
from privet.privacy import Gaussian, Ledger
from privet.sampling import PoissonSampling
from privet.training.drawing import Records

add, clip, adaptive_clip, draw, record = (
    GaussianNoise.add,
    FlatClipping.clip,
    AdaptiveClipping.clip,
    PoissonSampling.draw,
    Ledger.record,
)
make_private, parts = privet.make_private, voting.parts


def put(owner: Any, name: str, broken: Any) -> AbstractContextManager[Any]:
    return mock.patch.object(owner, name, broken)


def less_noise(noise: GaussianNoise, times: float) -> GaussianNoise:
    return dataclasses.replace(noise, multiplier=noise.multiplier / times)


# --- the sixteen ----------------------------------------------------------------------------------------------------------


def noise_over_the_root_of_the_batch() -> AbstractContextManager[Any]:
    def broken(self: GaussianNoise, bounded: BoundedSum, source: Any) -> Any:
        return add(less_noise(self, math.sqrt(max(bounded.records, 1))), bounded, source)

    return put(GaussianNoise, "add", broken)


def vectors_outside_the_norm() -> AbstractContextManager[Any]:
    def broken(self: FlatClipping, gradients: Any, state: Any = None) -> BoundedSum:
        squares = [each for name, each in gradients.squared_norms().items() if not name.endswith("bias")]
        norms = torch.stack(squares).sum(0).sqrt()
        tensors = gradients.weighted_sum(clipping_factors(norms, self.max_grad_norm), last=True)
        scales = dict.fromkeys(tensors, self.max_grad_norm)
        return BoundedSum(tensors, self.max_grad_norm, scales, gradients.records, 0, gradients.dtypes)

    return put(FlatClipping, "clip", broken)


def noise_reseeded_every_step() -> AbstractContextManager[Any]:
    def broken(self: GaussianNoise, bounded: BoundedSum, source: torch.Generator) -> Any:
        return add(self, bounded, torch.Generator().manual_seed(source.initial_seed()))

    return put(GaussianNoise, "add", broken)


def one_noise_for_layers_of_one_shape() -> AbstractContextManager[Any]:
    def broken(self: GaussianNoise, bounded: BoundedSum, source: torch.Generator) -> Any:
        drawn: dict[torch.Size, Tensor] = {}
        for tensor in bounded.tensors.values():
            drawn.setdefault(tensor.shape, torch.empty_like(tensor).normal_(generator=source))
        return {n: t + drawn[t.shape] * self.multiplier * bounded.scales[n] for n, t in bounded.tensors.items()}

    return put(GaussianNoise, "add", broken)


@contextmanager
def views_clipped_one_by_one() -> Iterator[None]:
    """Where all views of a record are alike, the sum of the clipped views is so many times the clipped mean."""
    views = 1

    @functools.wraps(make_private)
    def made(*args: Any, **kwargs: Any) -> Any:
        nonlocal views
        views = kwargs.get("views", 1)
        return make_private(*args, **kwargs)

    def broken(self: FlatClipping, gradients: Any, state: Any = None) -> BoundedSum:
        bounded = clip(self, gradients)
        return dataclasses.replace(bounded, tensors={n: views * t for n, t in bounded.tensors.items()})

    with put(privet, "make_private", made), put(FlatClipping, "clip", broken):
        yield


@contextmanager
def noise_reduced_over_physical_parts() -> Iterator[None]:
    clipped = 0

    def counted(self: FlatClipping, gradients: Any, state: Any = None) -> BoundedSum:
        nonlocal clipped
        clipped += 1
        return clip(self, gradients)

    def broken(self: GaussianNoise, bounded: BoundedSum, source: Any) -> Any:
        nonlocal clipped
        parts, clipped = max(clipped, 1), 0
        return add(less_noise(self, math.sqrt(parts)), bounded, source)

    with put(FlatClipping, "clip", counted), put(GaussianNoise, "add", broken):
        yield


def stale_clipping_norm() -> AbstractContextManager[Any]:
    """The records are clipped to the norm of the first step, and the noise is that of the moved one."""

    def broken(self: AdaptiveClipping, gradients: Any, norm: float) -> BoundedSum:
        bounded = adaptive_clip(self, gradients, 1.0)
        names = [name for name in bounded.scales if not name.startswith("clipping")]
        return dataclasses.replace(bounded, scales={**bounded.scales, **{n: bounded.scales[n] * norm for n in names}})

    return put(AdaptiveClipping, "clip", broken)


def rate_from_the_realized_size() -> AbstractContextManager[Any]:
    """The ledger says the public rate, and the batch has the stated size whatever the number of records is."""

    def broken(self: PoissonSampling, records: int, source: Any) -> Tensor:
        rate = min(1.0, self.rate * PUBLIC_SIZE / max(records, 1))
        return draw(PoissonSampling(rate), records, source)

    return put(PoissonSampling, "draw", broken)


def records_twice_in_a_batch() -> AbstractContextManager[Any]:
    def broken(self: PoissonSampling, records: int, source: torch.Generator) -> Tensor:
        chosen = draw(self, records, source)
        return torch.randint(records, chosen.shape, generator=source) if records else chosen

    return put(PoissonSampling, "draw", broken)


@contextmanager
def running_statistics() -> Iterator[None]:
    """A buffer is written by the records, and the engine does not look."""

    @functools.wraps(make_private)
    def broken(model: Any, *args: Any, **kwargs: Any) -> Any:
        def write(module: Any, inputs: tuple[Tensor, ...]) -> None:
            for buffer in module.buffers():
                buffer.copy_(inputs[0].detach().mean(0))

        if any(True for _ in model.buffers()):
            model.register_forward_pre_hook(write)
        return make_private(model, *args, **kwargs)

    blind = put(Recorder, "_refuse_guarded", lambda *_: None), put(Engine, "refuse_changed_buffers", lambda _: None)
    with put(privet, "make_private", broken), blind[0], blind[1]:
        yield


@contextmanager
def padding_row_not_measured() -> Iterator[None]:
    """The sum holds the gradient of the padding row, and the norm does not."""

    def unpadded(self: nn.Embedding, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)

    def broken(self: FlatClipping, gradients: Any, state: Any = None) -> BoundedSum:
        if "embedding.weight" not in gradients.squared_norms():
            return clip(self, gradients)
        each = gradients.instantiate()["embedding.weight"]
        factors = clipping_factors(each[:, 1:].flatten(1).norm(dim=1), self.max_grad_norm)
        bounded = clip(self, gradients)
        tensors = {**bounded.tensors, "embedding.weight": torch.einsum("r,r...->...", factors.to(each.dtype), each)}
        return dataclasses.replace(bounded, tensors=tensors)

    with put(nn.Embedding, "forward", unpadded), put(FlatClipping, "clip", broken):
        yield


@contextmanager
def momentum_of_the_clean_sum() -> Iterator[None]:
    clean: dict[str, Tensor] = {}

    def noted(self: GaussianNoise, bounded: BoundedSum, source: Any) -> Any:
        clean.update({name: tensor.clone() for name, tensor in bounded.tensors.items()})
        return add(self, bounded, source)

    @functools.wraps(make_private)
    def broken(model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        def feed(*_: Any) -> None:
            for name, parameter in model.named_parameters():
                state = optimizer.state.get(parameter, {})
                if state.get("momentum_buffer") is not None and name in clean:
                    state["momentum_buffer"].copy_(clean[name])

        private = make_private(model, optimizer, *args, **kwargs)
        optimizer.register_step_post_hook(feed)
        return private

    with put(GaussianNoise, "add", noted), put(privet, "make_private", broken):
        yield


def overlapping_teachers() -> AbstractContextManager[Any]:
    def broken(records: int, count: int, source: Any, owners: Tensor | None = None) -> Iterator[Tensor]:
        found = list(parts(records, count, source, owners))
        return (torch.cat([part, found[(n + 1) % count]]) for n, part in enumerate(found))

    return put(voting, "parts", broken)


def exact_class_counts() -> AbstractContextManager[Any]:
    def broken(groups: Tensor, count: int, *, noise_multiplier: float, ledger: Ledger, **_: Any) -> Tensor:
        ledger.record(Gaussian(noise_multiplier))
        return groups.bincount(minlength=count).double()

    return put(dpgan, "private_counts", broken)


def examples_of_a_user_clipped_one_by_one() -> AbstractContextManager[Any]:
    hand_out = Engine.hand_out

    def broken(self: Engine, batch: Any, records: int, *, each: int = 1, **settings: Any) -> None:
        hand_out(self, batch, records * each, **settings)

    return put(Engine, "hand_out", broken)


def a_user_drawn_for_each_example() -> AbstractContextManager[Any]:
    """Examples are drawn one by one, and each brings its user along."""

    def broken(self: Records, records: Tensor, source: Any) -> list[Tensor]:
        assert self.users is not None
        examples = torch.rand(len(self.dataset), generator=source) < PoissonSampling(0.5).rate
        users = self.users.owners[examples].unique()
        return list(self.users.drawn(users, source)) or [torch.empty(0, 1, dtype=torch.int64)]

    return put(Records, "_pieces", broken)


def empty_batches_release_nothing() -> AbstractContextManager[Any]:
    def broken(self: GaussianNoise, bounded: BoundedSum, source: Any) -> Any:
        if bounded.records == 0:
            return {name: torch.zeros_like(tensor) for name, tensor in bounded.tensors.items()}
        return add(self, bounded, source)

    return put(GaussianNoise, "add", broken)


@contextmanager
def every_other_step_unrecorded() -> Iterator[None]:
    calls = 0

    def broken(self: Ledger, event: Any, count: int = 1) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            record(self, event, count)

    with put(Ledger, "record", broken):
        yield


# --- more ---------------------------------------------------------------------------------------------------------------------


def clipped_to_one_and_a_half() -> AbstractContextManager[Any]:
    """The weakest bug that the laboratory promises to refute: a record moves the sum by 1.5 C."""

    def broken(self: FlatClipping, gradients: Any, state: Any = None) -> BoundedSum:
        bounded = clip(dataclasses.replace(self, max_grad_norm=1.5 * self.max_grad_norm), gradients)
        return dataclasses.replace(bounded, scales=dict.fromkeys(bounded.tensors, self.max_grad_norm))

    return put(FlatClipping, "clip", broken)


def split_by_permutation() -> AbstractContextManager[Any]:
    """The division of version 0.1: one more record in the file moves a third of the others."""

    def broken(dataset: Dataset, source: str) -> Dataset:
        whole: Split = dataset.train
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
        cut = round(0.8 * len(whole))
        made = {"train": whole.select(order[:cut]), "test": whole.select(order[cut:])}
        return Dataset(dataset.name, dataset.classes, made)

    return mock.patch("privet.audit.stations.with_test_records", broken)


def bad_records_raise() -> AbstractContextManager[Any]:
    def broken(self: FlatClipping, gradients: Any, state: Any = None) -> BoundedSum:
        if gradients.bad_count:
            raise ValueError("a gradient is not finite")
        return clip(self, gradients)

    return put(FlatClipping, "clip", broken)


def one_layer_without_noise() -> AbstractContextManager[Any]:
    def broken(self: GaussianNoise, bounded: BoundedSum, source: Any) -> Any:
        noisy = add(self, bounded, source)
        return {n: bounded.tensors[n].clone() if n.startswith("other") else t for n, t in noisy.items()}

    return put(GaussianNoise, "add", broken)


@dataclass(frozen=True)
class Plant:
    """A bug, and the station that is built for it."""

    bug: Callable[[], AbstractContextManager[Any]]
    station: str
    runs: int = 200
    """Enough for the quick test, at the confidence of a whole laboratory; a laboratory makes 800."""

    @property
    def name(self) -> str:
        return self.bug.__name__.replace("_", " ")


SIXTEEN = (
    Plant(noise_over_the_root_of_the_batch, "one step"),
    Plant(vectors_outside_the_norm, "biases"),
    Plant(noise_reseeded_every_step, "two steps"),
    Plant(one_noise_for_layers_of_one_shape, "layers of one shape"),
    Plant(views_clipped_one_by_one, "views"),
    Plant(noise_reduced_over_physical_parts, "physical batches"),
    Plant(stale_clipping_norm, "moved clipping norm"),
    Plant(rate_from_the_realized_size, "size of the data", runs=600),
    Plant(records_twice_in_a_batch, "sampled step"),
    Plant(running_statistics, "buffers"),
    Plant(padding_row_not_measured, "padding row"),
    Plant(momentum_of_the_clean_sum, "optimizer state"),
    Plant(overlapping_teachers, "teachers"),
    Plant(exact_class_counts, "class counts of a GAN", runs=400),
    Plant(empty_batches_release_nothing, "empty batches"),
    Plant(every_other_step_unrecorded, "ledger"),
)
"""The bugs to which the audit of version 0.1 was blind, but for three."""

MORE = (
    Plant(examples_of_a_user_clipped_one_by_one, "a user's examples"),
    Plant(a_user_drawn_for_each_example, "a sampled user", runs=800),
    Plant(clipped_to_one_and_a_half, "one step", runs=800),
    Plant(split_by_permutation, "the split of a file"),
    Plant(bad_records_raise, "a record that is not finite", runs=800),
    Plant(one_layer_without_noise, "layers of one shape"),
)
