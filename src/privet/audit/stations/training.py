"""Stations that train a few steps by `make_private` and look at everything they release; their records and models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

import privet
from privet.audit.bounds import ClopperPearson, GaussianTradeOff, TwoSampleBound
from privet.audit.laboratory import Seen
from privet.audit.result import Claimed
from privet.privacy import Gaussian, Ledger, PoissonSampled
from privet.training import Private

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

    def claimed(self) -> Claimed:
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


def cancelling(positions: int = 16, width: int = 64) -> Tensor:
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
