"""A GAN that learns from released rows: no record is in reach here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.methods.adversarial import called_made, called_real, draw_labels
from privet.methods.noisy_rows import NoisyRows
from privet.methods.synthetic import OnStep
from privet.models.gans import DenseGenerator, SpanGenerator, dense_discriminator
from privet.training import Average, BudgetExhausted

Maker = DenseGenerator | SpanGenerator


@dataclass(frozen=True, eq=False)
class Layout:
    """What is in a row: an embedding and a label, of which the second has `share` of the squared norm.

    Formal guarantees: a row has a norm of at most 1, whatever the record.
    """

    embedding: nn.Module
    classes: int
    share: float

    def rows(self, x: Tensor, labels: Tensor) -> Tensor:
        """The row of each record or made example, without noise."""
        short, bound = self.embedding(x).flatten(1), math.sqrt(1 - self.share)
        short = short * (bound / short.norm(dim=1, keepdim=True).clamp(min=bound))
        label = math.sqrt(self.share) * F.one_hot(labels, self.classes).to(short.dtype)
        return torch.cat([short, label], dim=1)


@dataclass(frozen=True, eq=False)
class RowGame:
    """The game between a generator and a discriminator of rows.

    Formal guarantees: post-processing of the rows that it is given.
    """

    plan: NoisyRows
    layout: Layout
    learning_rate: float
    averaging: float
    width: int
    rows: int

    def play(self, maker: Maker, released: Tensor, steps: int, on_step: OnStep | None = None) -> Tensor:
        """Train `maker` for so many steps, on rows drawn from all that were released; returns the frequencies of the classes.

        A row may come again, since it was paid for once. `on_step` may end the game with `BudgetExhausted`.
        """
        judge, frequencies = dense_discriminator(released.shape[1], self.width), self.frequencies(released)
        optimizers = [
            torch.optim.Adam(each.parameters(), lr=self.learning_rate, betas=(0.5, 0.99)) for each in (judge, maker)
        ]
        average = Average(maker, self.averaging)
        try:
            for step in range(1, steps + 1):
                rows = released[torch.randint(len(released), (self.rows,))]
                labels = draw_labels(frequencies, self.rows)
                examples = (maker(torch.randn(self.rows, maker.latent), labels) + 1) / 2
                made = self.plan.imitate(self.layout.rows(examples, labels))
                optimizers[0].zero_grad()
                loss = called_real(judge(rows)) + called_made(judge(made.detach()))
                loss.backward()
                optimizers[0].step()
                optimizers[1].zero_grad()
                called_real(judge(made)).backward()
                optimizers[1].step()
                average.update()
                if on_step is not None:
                    seen = {"step": step, "steps": steps, "loss": float(loss.detach())}
                    on_step({"what": "Training the GAN", **seen})
        except BudgetExhausted:
            pass  # the generator is what was trained until here
        average.keep()
        return frequencies

    def frequencies(self, released: Tensor) -> Tensor:
        """Of the classes, from the label columns of the rows, whose noise has mean 0; none is taken as quite empty."""
        classes = self.layout.classes
        found = released[:, -classes:].mean(0) / (self.plan.filled * math.sqrt(self.layout.share))
        return found.clamp(min=0.01 / classes)
