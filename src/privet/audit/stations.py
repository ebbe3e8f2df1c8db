"""The stations of the laboratory: small settings of the library's real path, each built so that a class of bugs shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

import privet
from privet.audit.bounds import ClopperPearson, GaussianTradeOff, TwoSampleBound
from privet.audit.claim import Claimed
from privet.audit.laboratory import Seen, Station
from privet.clipping import AdaptiveClipping, EllipticalClipping
from privet.data import Dataset, Split, with_test_records
from privet.methods import teachers, voting
from privet.methods.dpgan import Dpgan
from privet.methods.synthetic import Order
from privet.privacy import Gaussian, Ledger, NoisyVotes, PoissonSampled, Schedule
from privet.randomness import Randomness
from privet.training import Private

DELTA = 1e-5
COUNTED_DELTA = 0.05
"""Where several sampled steps are counted: at a delta that counting can see."""
PUBLIC_SIZE = 8
"""The public size of the data sets; what they hold differs by one record."""
LOUD = 30.0
"""The gradient of a worst-case record, in clipping norms."""

Loss = Callable[[nn.Module, Tensor, int], Tensor]
"""From the model, a batch and the number of the step to the loss."""
InLoop = Callable[[nn.Module, Optimizer, int], None]
"""Something that a user's loop does before each backward pass."""


def _plain_loss(model: nn.Module, x: Tensor, step: int) -> Tensor:
    total: Tensor = model(x).sum()
    return total


def _sgd(model: nn.Module) -> Optimizer:
    return SGD((p for p in model.parameters() if p.requires_grad), lr=1.0)


def _momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=1.0, momentum=0.9)


def _nothing(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    pass


@dataclass(frozen=True, eq=False)
class Training:
    """A private training of a few steps by `make_private`, whose every step, state and buffer is seen.

    Attributes:
        name, looks_for, effort: as `Station` says.
        model: makes the model, always the same.
        others: the records that are there with and without the last one.
        canary: the record that is there or not.
        loss: of a batch.
        noise: the noise multiplier.
        rate: the sampling rate; the expected batch size is its multiple of `PUBLIC_SIZE`.
        steps: of the training; all are seen.
        settings: more arguments of `make_private`.
        optimizer: makes the optimizer.
        in_loop: what the loop does before each backward pass.
        public_loss: a loss that uses no record and joins every step.
    """

    name: str
    looks_for: str
    model: Callable[[], nn.Module]
    others: Tensor
    canary: Tensor
    loss: Loss = _plain_loss
    noise: float = 0.5
    rate: float = 1.0
    steps: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Callable[[nn.Module], Optimizer] = _sgd
    in_loop: InLoop = _nothing
    public_loss: Callable[[nn.Module], Tensor] | None = None
    effort: float = 1.0

    def claimed(self) -> Claimed:
        each = Gaussian(self.noise)
        return (PoissonSampled(self.rate, each) if self.rate < 1 else each) * self.steps

    def bound(self, confidence: float) -> TwoSampleBound:
        if self.rate < 1 and self.steps > 1:
            return ClopperPearson(COUNTED_DELTA, confidence)
        return GaussianTradeOff(DELTA, confidence, self.rate)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        model, ledger = self.model(), Ledger()
        optimizer = self.optimizer(model)
        seen: dict[str, Tensor] = {}
        faults: list[str] = []
        moved = 0.0
        try:
            private = self._private(model, optimizer, ledger, present, seed, noise)
            if self.public_loss is not None:
                public_loss = self.public_loss
                private.public(lambda: public_loss(model))
            for step in range(self.steps):
                before = {name: p.detach().clone() for name, p in model.named_parameters()}
                drawn = self._step(private, model, optimizer, step)
                if max(drawn.values(), default=0) > 1:
                    faults.append("a record was in one batch twice")
                changes = {name: p.detach() - before.get(name, 0.0) for name, p in model.named_parameters()}
                moved += any(bool(change.any()) for change in changes.values())
                seen |= {f"change of {name} in step {step}": change for name, change in changes.items()}
            private.close()
        except Exception as error:  # whether it raises is one of the things that are looked at
            return Seen.of_error(error)
        if len(ledger) != self.steps:
            faults.append(f"{self.steps} steps were made and {len(ledger)} are in the ledger")
        seen |= {f"state of {name}": tensor for name, tensor in _state(model, optimizer).items()}
        seen |= {f"buffer {name}": buffer.detach().clone() for name, buffer in model.named_buffers()}
        return Seen(seen, {"steps that moved a parameter": moved}, ledger.event, faults=tuple(faults))

    def _private(
        self, model: nn.Module, optimizer: Optimizer, ledger: Ledger, present: bool, seed: int, noise: float | None
    ) -> Private:
        rows = torch.cat([self.others, self.canary[None]]) if present else self.others
        common: dict[str, Any] = {"max_grad_norm": 1.0} if "clipping" not in self.settings else {}
        return privet.make_private(
            model,
            optimizer,
            TensorDataset(rows, torch.arange(len(rows))),
            delta=DELTA,
            batch_size=round(self.rate * PUBLIC_SIZE),
            public_size=PUBLIC_SIZE,
            steps=self.steps,
            noise_multiplier=self.noise if noise is None else noise,
            seed=seed,
            ledger=ledger,
            # A thousand runs of one model need one self-check, which the library's tests make.
            **{**common, "self_check": False, **self.settings},
        )

    def _step(self, private: Private, model: nn.Module, optimizer: Optimizer, step: int) -> Counter[int]:
        """One step as a user's loop makes it; returns how often each record was in it."""
        drawn = Counter[int]()
        for x, places in private.batches(steps=1):
            optimizer.zero_grad()
            self.in_loop(model, optimizer, step)
            self.loss(model, x, step).backward()
            optimizer.step()
            drawn.update(places.tolist())
        return drawn


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"{name}: {key}"] = value.detach().clone()
    return found


# --- models -------------------------------------------------------------------------------------------------------------


def _linear(width: int = 4, bias: bool = False) -> nn.Module:
    model = nn.Linear(width, 1, bias=bias)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


class _Twins(nn.Module):
    """Two layers of one shape; a record pulls them in opposite directions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = _linear(), _linear()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.one(x) - self.other(x)
        return total


class _Padded(nn.Module):
    """An embedding with a padding row; the last column of a record is the gradient of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2, padding_idx=0)
        nn.init.zeros_(self.embedding.weight)

    def forward(self, x: Tensor) -> Tensor:
        tokens, pull = x[:, :-1].long(), x[:, -1:]
        total: Tensor = self.embedding(tokens).sum((1, 2))[:, None] * pull
        return total


class _WithBuffer(nn.Module):
    """A layer and a buffer that nobody should touch; with `counting`, the model itself writes batch statistics into it."""

    statistics: Tensor

    def __init__(self, counting: bool) -> None:
        super().__init__()
        self.layer, self.counting = _linear(), counting
        self.register_buffer("statistics", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.counting:
            with torch.no_grad():
                self.statistics.copy_(x.mean(0))
        total: Tensor = self.layer(x)
        return total


class _Normalized(nn.Module):
    """Batch normalization in evaluation mode when the training is made private, and in training mode in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4, affine=False), _linear()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(self.norm(x))
        return total


class _Late(nn.Module):
    """A second layer that is frozen when the training is made private, and whose gradients nobody clips."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.late = _linear(), _linear()
        self.late.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(x) + self.late(x)
        return total


class _Growing(nn.Module):
    """A model that gets a second layer in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_linear()])

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = sum((layer(x) for layer in self.layers), torch.zeros(len(x), 1))
        return total


class _Mixing(nn.Module):
    """A layer whose input was mixed over the records of the batch; the last column of a record is the pull of its output."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.mix = _linear(), mix
        self.first = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.first.weight)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(self.mix(self.first(x[:, :4]))) * x[:, 4:]
        return total


class _Positions(nn.Module):
    """A table of positions, whose numbers are a second input with as many rows as a batch may have records."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(PUBLIC_SIZE, 1)
        nn.init.zeros_(self.table.weight)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        total: Tensor = (x[..., None] * self.table(positions)).sum((1, 2))
        return total


class _Sequences(nn.Module):
    """A linear layer on every position of a sequence."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inside, outside, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


# --- records ------------------------------------------------------------------------------------------------------------


def _short(count: int = 3) -> Tensor:
    """Records of gradients below the clipping norm, none in the first direction."""
    return 0.4 * torch.eye(4)[1 : count + 1]


def _one(length: float = LOUD, place: int = 0, width: int = 4) -> Tensor:
    return length * F.one_hot(torch.tensor(place), width).float()


def _cancelling(positions: int = 16, width: int = 64) -> Tensor:
    """Near-constant inputs, then output gradients that cancel: the norm is a small difference of large numbers.

    Of fifty such records it is the one whose squared norm by Gram matrices comes out lowest in float32.
    """
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(50):
        inputs = 1e4 + torch.randn(positions, width, generator=generator)
        pulls = torch.randn(positions, width, generator=generator)
        pulls -= pulls.mean(0)
        made.append((float(((inputs @ inputs.mT) * (pulls @ pulls.mT)).sum()), torch.cat([inputs, pulls], dim=1)))
    return min(made, key=lambda pair: pair[0])[1]


# --- losses and loops ---------------------------------------------------------------------------------------------------


def _turning(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The gradient of a record turns round in each step, as that of a record that was fitted does."""
    return _plain_loss(model, x, step) * (-1.0) ** step


def _viewed(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return _plain_loss(model, x.repeat_interleave(4, 0), step)


def _masked(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The mean over the positions that count, of which each record has as many as it likes."""
    each = model(x[..., :4]).squeeze(-1)
    mean: Tensor = each[x[..., 4] > 0].mean()
    return mean


def _ignoring(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """Cross entropy over the positions that have a label."""
    labels = torch.where(x[..., 4] > 0, 0, -100)
    return F.cross_entropy(model(x[..., :4]).flatten(0, 1), labels.flatten(), ignore_index=-100)


def _append(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    layers = model.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    if len(layers) == 1:
        layers.append(_linear())
        optimizer.add_param_group({"params": list(layers[1].parameters())})


def _unfreeze(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    late = model.get_submodule("late").requires_grad_(True)
    if len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": list(late.parameters())})


def _second_optimizer(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Another optimizer steps on what the last backward pass left."""
    layer = model.get_submodule("late").requires_grad_(True)
    if not hasattr(optimizer, "companion"):
        optimizer.companion = SGD(layer.parameters(), lr=1.0)  # type: ignore[attr-defined]
        optimizer.register_step_post_hook(lambda *_: optimizer.companion.step())  # type: ignore[attr-defined]


def _train_mode(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    model.train()


# --- stations that do not train by make_private ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Teachers:
    """PATE: records go to teachers, teachers vote, and the noisy counts are seen. One teacher votes as the record tells it."""

    name: str = "teachers"
    looks_for: str = "teachers whose parts overlap, or move when a record is added"
    noise: float = 0.7
    teachers: int = 6
    effort: float = 1.0

    def claimed(self) -> Claimed:
        return NoisyVotes(self.noise)

    def bound(self, confidence: float) -> TwoSampleBound:
        return GaussianTradeOff(DELTA, confidence)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        inputs = torch.zeros(12, 1)
        inputs = torch.cat([inputs, torch.ones(1, 1)]) if present else inputs
        records = Split(inputs, torch.zeros(len(inputs), dtype=torch.int64))
        randomness, ledger = Randomness.of(seed), Ledger()
        counts = teachers.ballots(
            records,
            torch.zeros(1, 1),
            2,
            teachers=self.teachers,
            teach=_told_by_the_record,
            source=randomness.sampling,
        )
        noisy = voting.noisy_counts(counts, self.noise if noise is None else noise, ledger, randomness.noise)
        faults = () if len(ledger) == 1 else (f"one query was answered and {len(ledger)} are in the ledger",)
        return Seen({"noisy counts": noisy}, {}, ledger.event, faults=faults)


def _told_by_the_record(inputs: Tensor, labels: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    vote = int(inputs.max() > 0)
    return lambda queries: torch.full((len(queries),), vote)


@dataclass(frozen=True)
class ClassCounts:
    """A DPGAN of one step: the labels of what it makes follow its noisy count of the classes, of which the record moves one.

    The size of the data counts as public in a GAN, so the record is there with one label or with the other one: two changes of
    one record each, and the claim is that of a budget for two.
    """

    name: str = "class counts of a GAN"
    looks_for: str = "counts of the classes without noise"
    epsilon: float = 0.5
    effort: float = 0.25

    def claimed(self) -> Claimed:
        return 2 * self.epsilon  # and a delta of (1 + e^epsilon) times that of one record, which is below COUNTED_DELTA

    def bound(self, confidence: float) -> TwoSampleBound:
        return ClopperPearson(COUNTED_DELTA, confidence)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.tensor([0, 1]).repeat(10)
        labels[0] = int(present)
        records = Split(torch.rand(20, 2, generator=generator), labels)
        order = Order(2, 400, self.epsilon, COUNTED_DELTA / 4, seed=seed, records=20)
        method = Dpgan(lot=4, steps=1, turns=1, made=4, width=1, latent=2, counts_share=0.5)
        try:
            made = method.synthesize(records, order, Ledger())
        except Exception as error:  # whether it raises is one of the things that are looked at
            return Seen.of_error(error)
        return Seen({}, {"labels of the second class": float(made.labels.sum())})


@dataclass(frozen=True)
class HeldOut:
    """The split of a private file: one more record must move no other one into or out of the training part."""

    name: str = "the split of a file"
    looks_for: str = "a hold-out that another record moves"
    effort: float = 0.05

    def claimed(self) -> Claimed:
        return 0.0

    def bound(self, confidence: float) -> TwoSampleBound:
        return ClopperPearson(0.0, confidence)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        generator = torch.Generator().manual_seed(seed // 2)
        inputs = torch.rand(60, 2, generator=generator)
        labels = torch.randint(2, (60,), generator=generator)
        file = Split(inputs, labels)
        more = Split(
            torch.cat([torch.full((1, 2), 2.0), inputs]), torch.cat([torch.zeros(1, dtype=torch.int64), labels])
        )
        parts = [_training_part(one) for one in (file, more)]
        moved = len((parts[0] ^ parts[1]) - {(2.0, 2.0)})
        return Seen(faults=(f"one more record moved {moved} others of 60",) if moved else ())


def _training_part(file: Split) -> set[tuple[float, ...]]:
    divided = with_test_records(Dataset("file", ("a", "b"), {"train": file}), "file")
    return {tuple(row) for row in divided.train.inputs.tolist()}


# --- all of them --------------------------------------------------------------------------------------------------------


def stations() -> tuple[Station, ...]:
    """Every station: the parts of the real path first, then what a user's model, loss and loop may do to it."""
    return (*path_stations(), *model_stations())


def path_stations() -> tuple[Station, ...]:
    """The parts of the library's own path: a sound library trains here, and is not refuted."""
    root2 = math.sqrt(0.5)
    return (
        Training("one step", "too little noise, or a record that counts more than once", _linear, _short(), _one()),
        Training(
            "biases",
            "parameters that the norm leaves out",
            lambda: _linear(bias=True),
            _short(),
            torch.zeros(4),
            loss=lambda model, x, step: LOUD * model(x).sum(),
        ),
        Training(
            "two steps",
            "noise that is drawn again in the next step",
            _linear,
            _short(),
            _one(),
            _turning,
            root2,
            steps=2,
        ),
        Training("layers of one shape", "noise that two layers share", _Twins, _short(), _one()),
        Training(
            "views",
            "views of a record that are clipped one by one",
            _linear,
            _short(),
            _one(),
            _viewed,
            settings={"views": 4},
        ),
        Training(
            "physical batches",
            "noise or clipping that depends on how a step is divided",
            _linear,
            _short(),
            _one(),
            settings={"physical_batch_size": 1},
        ),
        Training(
            "moved clipping norm",
            "noise for another clipping norm than the one that clipped",
            _linear,
            _short(),
            _one(),
            noise=root2,
            steps=2,
            settings={"clipping": AdaptiveClipping(1.0, quantile=0.1, rate=2.0, share=0.05)},
        ),
        Training(
            "scheduled clipping norm",
            "a clipping norm of another step",
            _linear,
            _short(),
            _one(),
            noise=root2,
            steps=2,
            settings={"max_grad_norm": Schedule.of([1.0, 0.25])},
        ),
        Training(
            "size of the data",
            "a rate or a divisor that follows the number of records",
            _linear,
            _one().expand(4, 4),
            _one(-LOUD),
            noise=1.4,
            rate=0.5,
            steps=5,
        ),
        Training("sampled step", "a sampling rate that is not the stated one", _linear, _short(), _one(), rate=0.5),
        Training(
            "padding row",
            "rows of an embedding that the norm leaves out",
            _Padded,
            torch.tensor([[1.0, 0.2]]),
            torch.tensor([0.0, LOUD]),
        ),
        Training(
            "embedding",
            "rows of an embedding that are added after their norms",
            _Padded,
            torch.tensor([[2.0, 2.0, 0.2]]),
            torch.tensor([1.0, 1.0, LOUD]),
        ),
        Training("buffers", "running statistics of the records", lambda: _WithBuffer(counting=False), _short(), _one()),
        Training(
            "optimizer state",
            "momentum or moments of gradients without noise",
            _linear,
            _short(),
            _one(),
            noise=root2,
            steps=2,
            optimizer=_momentum,
        ),
        Training(
            "empty batches",
            "an empty batch that releases nothing",
            _linear,
            torch.zeros(0, 4),
            _one(),
            noise=2.0,
            rate=0.5,
            steps=4,
        ),
        Training("ledger", "steps that are not recorded", _linear, _short(), _one(), noise=1.0, steps=4),
        Training(
            "a record that is not finite",
            "a run that raises because of one record",
            _linear,
            torch.zeros(0, 4),
            _one(float("nan")),
            effort=0.25,
        ),
        Teachers(),
        ClassCounts(),
        HeldOut(),
    )


def model_stations() -> tuple[Station, ...]:
    """What a user's model, loss or loop may do: a sound library does it right or refuses it."""
    cancelling = _cancelling()
    width = cancelling.shape[1] // 2
    counted = torch.zeros(1, 8, 5)
    counted[:, 0] = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])
    every = torch.zeros(8, 5)
    every[:] = torch.tensor([LOUD, 0.0, 0.0, 0.0, 1.0])
    return (
        Training(
            "norms that cancel",
            "clipping that fails for near-constant inputs whose gradients cancel",
            lambda: _Sequences(width, width),
            torch.zeros(1, *cancelling.shape),
            cancelling,
            lambda model, x, step: (model(x[..., :width]) * x[..., width:]).sum(),
            effort=0.5,
        ),
        Training(
            "tiny inputs, huge gradients",
            "norms whose squares leave the range of floats",
            _linear,
            torch.zeros(1, 5),
            torch.tensor([1e-25, 0.0, 0.0, 0.0, 1e26]),
            lambda model, x, step: (model(x[:, :4]) * x[:, 4:]).sum(),
        ),
        Training(
            "elliptical clipping, a huge gradient",
            "weights that are not finite after one record",
            _linear,
            torch.zeros(1, 5),
            torch.tensor([1.0, 0.0, 0.0, 0.0, 1e19]),
            lambda model, x, step: (model(x[:, :4]) * x[:, 4:]).sum(),
            settings={"clipping": EllipticalClipping({"weight": torch.full((1, 4), 3.0)})},
            effort=0.5,
        ),
        Training(
            "a layer unfrozen in the loop",
            "a parameter that is trained on raw gradients",
            _Late,
            _short(),
            _one(),
            in_loop=_unfreeze,
            effort=0.5,
        ),
        Training(
            "a layer appended in the loop",
            "a parameter that is trained on raw gradients",
            _Growing,
            _short(),
            _one(),
            in_loop=_append,
            effort=0.5,
        ),
        Training(
            "a second optimizer",
            "a parameter that is trained on raw gradients",
            _Late,
            _short(),
            _one(),
            in_loop=_second_optimizer,
            effort=0.5,
        ),
        Training(
            "public loss",
            "a loss without records that joins once for each physical batch, and tells how many there are",
            _linear,
            torch.zeros(0, 4),
            _one(),
            noise=1.0,
            rate=0.5,
            settings={"physical_batch_size": 1},
            public_loss=lambda model: 10 * model(torch.eye(4)[1:2]).sum(),
        ),
        Training(
            "batch statistics in a buffer",
            "a buffer into which the model writes what it sees",
            lambda: _WithBuffer(counting=True),
            _short(),
            _one(),
            effort=0.5,
        ),
        Training(
            "batch normalization turned on in the loop",
            "running statistics of the records",
            _Normalized,
            _short(),
            _one(),
            in_loop=_train_mode,
            effort=0.5,
        ),
        *_mixed_inside(),
        *_mixed_outside(),
        Training(
            "a mean over what counts",
            "a divisor of the loss that depends on records",
            _linear,
            counted.repeat(6, 1, 1),
            every,
            _masked,
            settings={"loss_reduction": "auto"},
            effort=0.5,
        ),
        Training(
            "labels that are ignored",
            "a divisor of the loss that depends on records",
            lambda: _Sequences(4, 2),
            counted.repeat(6, 1, 1),
            every,
            _ignoring,
            settings={"loss_reduction": "mean"},
            effort=0.5,
        ),
        Training(
            "a coincidence of sizes",
            "a table with as many rows as the batch has records",
            _Positions,
            torch.zeros(PUBLIC_SIZE - 1, PUBLIC_SIZE),
            LOUD * torch.ones(PUBLIC_SIZE),
            lambda model, x, step: model(x, torch.arange(PUBLIC_SIZE)).sum(),
            effort=0.5,
        ),
    )


_NEAR, _ALIKE = 0.2 * torch.ones(6, 4), LOUD * F.one_hot(torch.zeros(6, dtype=torch.int64), 4).float()
"""Records that mixing leaves below the clipping norm, and records far above it."""
_AGAINST, _ALL, _ABOVE = [-LOUD, 0.0, 0.0, 0.0, -1.0], [-LOUD] * 4 + [1.0], [LOUD] * 4 + [1.0]
"""The record: against the others in one direction, in all directions, and above them."""

Mix = Callable[[Tensor], Tensor]
_MIXES: tuple[tuple[str, Mix, Tensor, list[float]], ...] = (
    ("h - h.mean(0)", lambda h: h - h.mean(0), _NEAR, _AGAINST),
    ("h - h.mean()", lambda h: h - h.mean(), _NEAR, _AGAINST),
    ("h - h.mean().item()", lambda h: h - h.mean().item(), _NEAR, _AGAINST),
    ("h - h.data.mean(0)", lambda h: h - h.data.mean(0), _NEAR, _AGAINST),
    ("h / h.norm()", lambda h: h / h.norm(), _NEAR, _ALL),
    ("h / h.std(0).mean()", lambda h: h / h.std(0).mean(), _ALIKE, _AGAINST),
    ("sparse.mm", lambda h: torch.sparse.mm(torch.full((len(h), len(h)), 1 / len(h)).to_sparse(), h), _NEAR, _ALL),
    ("batch_norm", lambda h: F.batch_norm(h, None, None, training=True), _NEAR, _AGAINST),
    ("layer_norm(h.T)", lambda h: F.layer_norm(h.mT, (len(h),)).mT, _NEAR, _AGAINST),
    ("avg_pool1d(h.T)", lambda h: F.avg_pool1d(h.mT[None], 3, 1, 1)[0].mT, _NEAR, _ALL),
    ("index_add", lambda h: h.index_add(0, torch.zeros(len(h), dtype=torch.int64), h), _NEAR, _ALL),
    ("scatter_add", lambda h: h.scatter_add(0, torch.zeros_like(h, dtype=torch.int64), h), _NEAR, _ALL),
    ("index_put", lambda h: h.index_put((torch.arange(len(h)),), h[-1:]), _NEAR, _AGAINST),
    ("cdist", lambda h: h * torch.cdist(h, h).sum(1, keepdim=True), _ALIKE, _AGAINST),
    ("cov", lambda h: h @ torch.cov(h.mT), _NEAR, _AGAINST),
    ("cummax", lambda h: h - torch.cummax(h, 0).values[-1:], _NEAR, _ABOVE),
    ("fft(dim=0)", lambda h: torch.fft.fft(h, dim=0).real, _ALIKE, _AGAINST),
    ("roll", lambda h: torch.roll(h, 1, 0), _ALIKE, _AGAINST),
    ("flip", lambda h: h.flip(1, 0), _ALIKE, _AGAINST),
)
"""What mixes the records of a batch inside a model, and the records on which it shows."""


def _mixed_inside() -> tuple[Station, ...]:
    return tuple(
        Training(
            f"records mixed by {words}",
            "records that change the gradients of others",
            partial(_Mixing, mix),
            torch.cat([others, torch.ones(len(others), 1)], dim=1),
            torch.tensor(canary),
            effort=0.5,
        )
        for words, mix, others, canary in _MIXES
    )


def _centered_outputs(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = (out - out.mean(0)).square().sum()
    return total


def _variance(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = len(x) * out.var(0, correction=0).sum()
    return total


def _over_the_largest(model: nn.Module, x: Tensor, step: int) -> Tensor:
    each = (model(x[:, :4]) + x[:, 4:]).square()
    total: Tensor = (each / each.detach().max()).sum()
    return total


def _ranking(model: nn.Module, x: Tensor, step: int) -> Tensor:
    out = model(x[:, :4]) + x[:, 4:]
    total: Tensor = (out - out.mT).relu().sum()
    return total


def _centered_inputs(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return _plain_loss(model, x[:, :4] - x[:, :4].mean(0), step)


def _mixup(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return _plain_loss(model, 0.5 * x[:, :4] + 0.5 * x[:, :4].roll(1, 0), step)


def _mixed_outside() -> tuple[Station, ...]:
    """In these losses and loops the model keeps the records apart, and the user's code does not."""
    targets = torch.cat([_NEAR, torch.ones(6, 1)], dim=1)
    far, against = torch.tensor([0.0, 0.0, 0.0, 0.0, LOUD]), torch.tensor(_AGAINST)
    losses: tuple[tuple[str, Loss, Tensor, Tensor], ...] = (
        ("(o - o.mean(0))**2", _centered_outputs, targets, far),
        ("o.var(0)", _variance, targets, far),
        ("l / l.detach().max()", _over_the_largest, targets, far),
        ("a pairwise ranking", _ranking, targets, far),
        ("x - x.mean(0)", _centered_inputs, _NEAR, against[:4]),
        ("mixup", _mixup, -_ALIKE, 3 * _ALIKE[0]),
    )
    return tuple(
        Training(
            f"records mixed by {words}",
            "records that change the gradients of others",
            _linear,
            others,
            canary,
            loss,
            effort=0.5,
        )
        for words, loss, others, canary in losses
    )
