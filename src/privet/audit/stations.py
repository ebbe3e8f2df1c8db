"""The stations of the laboratory: small settings of the library's real path, each built so that a class of bugs shows.

`own_stations` are the parts of the library's own path, on which a sound library trains and is not refuted. `model_stations` are
models, losses and loops that a user may write, which a sound library handles correctly or refuses. Methods add stations of
their own with `add_stations`, as `privet.methods.voting` does.
"""

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
from privet.audit.laboratory import Seen, Station
from privet.audit.result import Claimable
from privet.clipping import AdaptiveClipping, EllipticalClipping
from privet.data import Dataset, Split, with_test_records
from privet.privacy import Gaussian, Ledger, PoissonSampled, Schedule
from privet.training import Performance, Private

DELTA = 1e-5
COUNTED_DELTA = 0.05
"""The delta for several sampled steps, which are counted: one that counting can see."""
PUBLIC_SIZE = 8
"""The public size of the data sets; their true size differs by one record."""
LOUD = 30.0
"""The gradient of a worst-case record, in clipping norms."""

Loss = Callable[[nn.Module, Tensor, int], Tensor]
"""From the model, a batch and the step number to the loss."""
InLoop = Callable[[nn.Module, Optimizer, int], None]
"""An action of a user's loop before each backward pass."""


def plain_loss(model: nn.Module, x: Tensor, step: int) -> Tensor:
    total: Tensor = model(x).sum()
    return total


def _sgd(model: nn.Module) -> Optimizer:
    return SGD((p for p in model.parameters() if p.requires_grad), lr=1.0)


def _nothing(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    pass


@dataclass(frozen=True, eq=False)
class Training:
    """A private training of a few steps by `make_private`: the attacker sees every step, the optimizer state and the buffers.

    Attributes:
        name, looks_for, effort: see `Station`.
        model: makes the model, always the same.
        others: the records that are always in the data.
        canary: the record that is in the data or not; with `users`, all examples of one user.
        loss: of a batch.
        noise: the noise multiplier.
        rate: the sampling rate; the expected batch size is ``rate * PUBLIC_SIZE``.
        steps: of the training.
        settings: more arguments of `make_private`.
        optimizer: makes the optimizer.
        in_loop: an action of the loop before each backward pass.
        public_loss: a loss that uses no record and is added to every step.
        users: whether the unit of privacy is a user; each of the others holds one example.
    """

    name: str
    looks_for: str
    model: Callable[[], nn.Module]
    others: Tensor
    canary: Tensor
    loss: Loss = plain_loss
    noise: float = 0.5
    rate: float = 1.0
    steps: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Callable[[nn.Module], Optimizer] = _sgd
    in_loop: InLoop = _nothing
    public_loss: Callable[[nn.Module], Tensor] | None = None
    users: bool = False
    effort: float = 1.0

    def claimed(self) -> Claimable:
        each = Gaussian(self.noise)
        return (PoissonSampled(self.rate, each) if self.rate < 1 else each) * self.steps

    def bound(self, confidence: float) -> TwoSampleBound:
        if self.rate < 1 and self.steps > 1:
            return ClopperPearson(COUNTED_DELTA, confidence)
        return GaussianTradeOff(DELTA, confidence, self.rate)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        model, ledger = self.model(), Ledger(unit="user" if self.users else "record")
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
        except Exception as error:  # whether it raises is one of the things that the station looks at
            return Seen.of_error(error)
        if len(ledger) != self.steps:
            faults.append(f"{self.steps} steps were made and {len(ledger)} are in the ledger")
        seen |= {f"state of {name}": tensor for name, tensor in _state(model, optimizer).items()}
        seen |= {f"buffer {name}": buffer.detach().clone() for name, buffer in model.named_buffers()}
        return Seen(seen, {"steps that moved a parameter": moved}, ledger.event, faults=tuple(faults))

    def _private(
        self, model: nn.Module, optimizer: Optimizer, ledger: Ledger, present: bool, seed: int, noise: float | None
    ) -> Private:
        canary = self.canary if self.users else self.canary[None]
        rows = torch.cat([self.others, canary]) if present else self.others
        common: dict[str, Any] = {"max_grad_norm": 1.0} if "clipping" not in self.settings else {}
        if self.users:
            common["users"] = torch.arange(len(rows)).clamp(max=len(self.others))
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
            # A thousand runs of one model do not each need a self-check.
            **{**common, "self_check": False, **self.settings},
        )

    def _step(self, private: Private, model: nn.Module, optimizer: Optimizer, step: int) -> Counter[int]:
        """Take one step as a user's loop does; return how often each record was in it."""
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


# --- the records ------------------------------------------------------------------------------------------------------


def short(count: int = 3) -> Tensor:
    """Records with gradients below the clipping norm, none in the first direction."""
    return 0.4 * torch.eye(4)[1 : count + 1]


def one(length: float = LOUD, place: int = 0, width: int = 4) -> Tensor:
    return length * F.one_hot(torch.tensor(place), width).float()


def canceling(positions: int = 16, width: int = 64) -> Tensor:
    """Near-constant inputs, then output gradients that cancel: the norm is a small difference of large numbers.

    Of fifty such records, the one with the lowest squared norm by Gram matrices in float32.
    """
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(50):
        inputs = 1e4 + torch.randn(positions, width, generator=generator)
        pulls = torch.randn(positions, width, generator=generator)
        pulls -= pulls.mean(0)
        made.append((float(((inputs @ inputs.mT) * (pulls @ pulls.mT)).sum()), torch.cat([inputs, pulls], dim=1)))
    return min(made, key=lambda pair: pair[0])[1]


# --- the models -------------------------------------------------------------------------------------------------------


def linear(width: int = 4, bias: bool = False) -> nn.Module:
    model = nn.Linear(width, 1, bias=bias)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


class Twins(nn.Module):
    """Two layers of one shape; a record pulls them in opposite directions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.one(x) - self.other(x)
        return total


class Padded(nn.Module):
    """An embedding with a padding row; the last column of a record is the gradient of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2, padding_idx=0)
        nn.init.zeros_(self.embedding.weight)

    def forward(self, x: Tensor) -> Tensor:
        tokens, pull = x[:, :-1].long(), x[:, -1:]
        total: Tensor = self.embedding(tokens).sum((1, 2))[:, None] * pull
        return total


class WithBuffer(nn.Module):
    """A layer and a buffer; with `counting`, the model writes batch statistics into the buffer."""

    statistics: Tensor

    def __init__(self, counting: bool) -> None:
        super().__init__()
        self.layer, self.counting = linear(), counting
        self.register_buffer("statistics", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.counting:
            with torch.no_grad():
                self.statistics.copy_(x.mean(0))
        total: Tensor = self.layer(x)
        return total


class Normalized(nn.Module):
    """Batch normalization that is in evaluation mode at `make_private`, and in training mode in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4, affine=False), linear()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(self.norm(x))
        return total


class Late(nn.Module):
    """A second layer that is frozen at `make_private`, so that its gradients are not clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.late = linear(), linear()
        self.late.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(x) + self.late(x)
        return total


class Growing(nn.Module):
    """A model that gets a second layer in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([linear()])

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = sum((layer(x) for layer in self.layers), torch.zeros(len(x), 1))
        return total


class Mixing(nn.Module):
    """A layer whose input is mixed over the records of the batch; the last column of a record weights its output."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.mix = linear(), mix
        self.first = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.first.weight)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(self.mix(self.first(x[:, :4]))) * x[:, 4:]
        return total


class Positions(nn.Module):
    """A table of positions, which are a second input with as many rows as a batch may have records."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(PUBLIC_SIZE, 1)
        nn.init.zeros_(self.table.weight)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        total: Tensor = (x[..., None] * self.table(positions)).sum((1, 2))
        return total


class Sequences(nn.Module):
    """A linear layer on every position of a sequence."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inside, outside, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


def _momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=1.0, momentum=0.9)


def _turning(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The gradient of a record changes its sign in each step, as that of a fitted record may."""
    return plain_loss(model, x, step) * (-1.0) ** step


def _viewed(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return plain_loss(model, x.repeat_interleave(4, 0), step)


def own_stations() -> tuple[Station, ...]:
    """The library's own stations of that kind; see `privet.audit.stations.path_stations` for all."""
    root2 = math.sqrt(0.5)
    return (
        Training("one step", "too little noise, or a record that counts more than once", linear, short(), one()),
        Training(
            "biases",
            "parameters that the norm leaves out",
            lambda: linear(bias=True),
            short(),
            torch.zeros(4),
            loss=lambda model, x, step: LOUD * model(x).sum(),
        ),
        Training(
            "two steps",
            "noise that is drawn again in the next step",
            linear,
            short(),
            one(),
            _turning,
            root2,
            steps=2,
        ),
        Training("layers of one shape", "noise that two layers share", Twins, short(), one()),
        Training(
            "views",
            "views of a record that are clipped one by one",
            linear,
            short(),
            one(),
            _viewed,
            settings={"views": 4},
        ),
        Training(
            "a user's examples",
            "examples of a user that are clipped one by one",
            linear,
            short(),
            one().expand(6, 4),
            users=True,
        ),
        Training(
            "a sampled user",
            "a user who is drawn once for each of their examples",
            linear,
            short(),
            one(1.0).expand(6, 4),
            users=True,
            rate=0.5,
        ),
        Training(
            "physical batches",
            "noise or clipping that depends on how a step is divided",
            linear,
            short(),
            one(),
            settings={"performance": Performance(physical_batch_size=1)},
        ),
        Training(
            "moved clipping norm",
            "noise for another clipping norm than the one that clipped",
            linear,
            short(),
            one(),
            noise=root2,
            steps=2,
            settings={"clipping": AdaptiveClipping(1.0, quantile=0.1, rate=2.0, share=0.05)},
        ),
        Training(
            "scheduled clipping norm",
            "a clipping norm of another step",
            linear,
            short(),
            one(),
            noise=root2,
            steps=2,
            settings={"max_grad_norm": Schedule.of([1.0, 0.25])},
        ),
        Training(
            "size of the data",
            "a rate or a divisor that follows the number of records",
            linear,
            one().expand(4, 4),
            one(-LOUD),
            noise=1.4,
            rate=0.5,
            steps=5,
        ),
        Training("sampled step", "a sampling rate that is not the stated one", linear, short(), one(), rate=0.5),
        Training(
            "padding row",
            "rows of an embedding that the norm leaves out",
            Padded,
            torch.tensor([[1.0, 0.2]]),
            torch.tensor([0.0, LOUD]),
        ),
        Training(
            "embedding",
            "rows of an embedding that are added after their norms",
            Padded,
            torch.tensor([[2.0, 2.0, 0.2]]),
            torch.tensor([1.0, 1.0, LOUD]),
        ),
        Training("buffers", "running statistics of the records", lambda: WithBuffer(counting=False), short(), one()),
        Training(
            "optimizer state",
            "momentum or moments of gradients without noise",
            linear,
            short(),
            one(),
            noise=root2,
            steps=2,
            optimizer=_momentum,
        ),
        Training(
            "empty batches",
            "an empty batch that releases nothing",
            linear,
            torch.zeros(0, 4),
            one(),
            noise=2.0,
            rate=0.5,
            steps=4,
        ),
        Training("ledger", "steps that are not recorded", linear, short(), one(), noise=1.0, steps=4),
        Training(
            "a record that is not finite",
            "a run that raises because of one record",
            linear,
            torch.zeros(0, 4),
            one(float("nan")),
            effort=0.25,
        ),
        HeldOut(),
    )


@dataclass(frozen=True)
class HeldOut:
    """The split of a private file: another record must not move any record into or out of the training part."""

    name: str = "the split of a file"
    looks_for: str = "a split that another record changes"
    effort: float = 0.05

    def claimed(self) -> Claimable:
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
        return Seen(faults=(f"another record moved {moved} of 60 records",) if moved else ())


def _training_part(file: Split) -> set[tuple[float, ...]]:
    divided = with_test_records(Dataset("file", ("a", "b"), {"train": file}), "file")
    return {tuple(row) for row in divided.train.inputs.tolist()}


# --- records that are mixed, in a model or around it ------------------------------------------------------------------

_NEAR, _ALIKE = 0.2 * torch.ones(6, 4), LOUD * F.one_hot(torch.zeros(6, dtype=torch.int64), 4).float()
"""Records that are below the clipping norm after mixing, and records far above it."""
_AGAINST, _ALL, _ABOVE = [-LOUD, 0.0, 0.0, 0.0, -1.0], [-LOUD] * 4 + [1.0], [LOUD] * 4 + [1.0]
"""The canary: against the others in one direction, against them in all directions, and above them."""

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
"""Operations that mix the records of a batch inside a model, and records on which this shows."""


def mixed_inside() -> tuple[Station, ...]:
    return tuple(
        Training(
            f"records mixed by {words}",
            "records that change the gradients of others",
            partial(Mixing, mix),
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
    return plain_loss(model, x[:, :4] - x[:, :4].mean(0), step)


def _mixup(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return plain_loss(model, 0.5 * x[:, :4] + 0.5 * x[:, :4].roll(1, 0), step)


def mixed_outside() -> tuple[Station, ...]:
    """In these losses and loops the model keeps records apart, and the user's code does not."""
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
            linear,
            others,
            canary,
            loss,
            effort=0.5,
        )
        for words, loss, others, canary in losses
    )


# --- all stations -----------------------------------------------------------------------------------------------------


def _masked(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The mean over the positions that count; each record decides how many of its positions count."""
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
        layers.append(linear())
        optimizer.add_param_group({"params": list(layers[1].parameters())})


def _unfreeze(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    late = model.get_submodule("late").requires_grad_(True)
    if len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": list(late.parameters())})


def _second_optimizer(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Another optimizer steps on the gradients that the last backward pass left."""
    layer = model.get_submodule("late").requires_grad_(True)
    if not hasattr(optimizer, "companion"):
        optimizer.companion = SGD(layer.parameters(), lr=1.0)  # type: ignore[attr-defined]
        optimizer.register_step_post_hook(lambda *_: optimizer.companion.step())  # type: ignore[attr-defined]


def _train_mode(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    model.train()


def model_stations() -> tuple[Station, ...]:
    """Models, losses and loops that a user may write: a sound library handles them correctly or refuses them."""
    cancels = canceling()
    width = cancels.shape[1] // 2
    counted = torch.zeros(1, 8, 5)
    counted[:, 0] = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])
    every = torch.zeros(8, 5)
    every[:] = torch.tensor([LOUD, 0.0, 0.0, 0.0, 1.0])
    return (
        Training(
            "norms that cancel",
            "clipping that fails for near-constant inputs whose gradients cancel",
            lambda: Sequences(width, width),
            torch.zeros(1, *cancels.shape),
            cancels,
            lambda model, x, step: (model(x[..., :width]) * x[..., width:]).sum(),
            effort=0.5,
        ),
        Training(
            "tiny inputs, huge gradients",
            "norms whose squares leave the range of floats",
            linear,
            torch.zeros(1, 5),
            torch.tensor([1e-25, 0.0, 0.0, 0.0, 1e26]),
            lambda model, x, step: (model(x[:, :4]) * x[:, 4:]).sum(),
        ),
        Training(
            "elliptical clipping, a huge gradient",
            "weights that are not finite after one record",
            linear,
            torch.zeros(1, 5),
            torch.tensor([1.0, 0.0, 0.0, 0.0, 1e19]),
            lambda model, x, step: (model(x[:, :4]) * x[:, 4:]).sum(),
            settings={"clipping": EllipticalClipping({"weight": torch.full((1, 4), 3.0)})},
            effort=0.5,
        ),
        Training(
            "a layer unfrozen in the loop",
            "a parameter that is trained on raw gradients",
            Late,
            short(),
            one(),
            in_loop=_unfreeze,
            effort=0.5,
        ),
        Training(
            "a layer appended in the loop",
            "a parameter that is trained on raw gradients",
            Growing,
            short(),
            one(),
            in_loop=_append,
            effort=0.5,
        ),
        Training(
            "a second optimizer",
            "a parameter that is trained on raw gradients",
            Late,
            short(),
            one(),
            in_loop=_second_optimizer,
            effort=0.5,
        ),
        Training(
            "public loss",
            "a loss without records that is added once for each physical batch, and reveals how many there are",
            linear,
            torch.zeros(0, 4),
            one(),
            noise=1.0,
            rate=0.5,
            settings={"performance": Performance(physical_batch_size=1)},
            public_loss=lambda model: 10 * model(torch.eye(4)[1:2]).sum(),
        ),
        Training(
            "batch statistics in a buffer",
            "a buffer into which the model writes batch statistics",
            lambda: WithBuffer(counting=True),
            short(),
            one(),
            effort=0.5,
        ),
        Training(
            "batch normalization turned on in the loop",
            "running statistics of the records",
            Normalized,
            short(),
            one(),
            in_loop=_train_mode,
            effort=0.5,
        ),
        *mixed_inside(),
        *mixed_outside(),
        Training(
            "a mean over what counts",
            "a divisor of the loss that depends on records",
            linear,
            counted.repeat(6, 1, 1),
            every,
            _masked,
            settings={"loss_reduction": "auto"},
            effort=0.5,
        ),
        Training(
            "labels that are ignored",
            "a divisor of the loss that depends on records",
            lambda: Sequences(4, 2),
            counted.repeat(6, 1, 1),
            every,
            _ignoring,
            settings={"loss_reduction": "mean"},
            effort=0.5,
        ),
        Training(
            "a coincidence of sizes",
            "a table with as many rows as the batch has records",
            Positions,
            torch.zeros(PUBLIC_SIZE - 1, PUBLIC_SIZE),
            LOUD * torch.ones(PUBLIC_SIZE),
            lambda model, x, step: model(x, torch.arange(PUBLIC_SIZE)).sum(),
            effort=0.5,
        ),
    )


_added: dict[str, Station] = {}


def add_stations(*stations: Station) -> None:
    """Let the laboratory visit these stations, too; one with the name of an added station replaces it."""
    _added.update({station.name: station for station in stations})


def stations() -> tuple[Station, ...]:
    """Every station: the library's own path and the added ones first, then models, losses and loops of users."""
    return (*path_stations(), *model_stations())


def path_stations() -> tuple[Station, ...]:
    """The stations where a sound library releases something and is not refuted."""
    return (*own_stations(), *_added.values())
