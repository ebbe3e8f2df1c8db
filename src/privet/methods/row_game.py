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
from privet.models.dense_gan import DenseGenerator, SpanGenerator, dense_discriminator
from privet.training import Average

Maker = DenseGenerator | SpanGenerator


@dataclass(frozen=True, eq=False)
class Layout:
    """What is in a row: an embedding and a label, of which the second has `share` of the squared norm.

    Formal guarantees: `protected` has a norm of at most 1, whatever the record.
    """

    embedding: nn.Module
    classes: int
    share: float
    labels_are_public: bool

    def protected(self, x: Tensor, labels: Tensor) -> Tensor:
        """The columns under noise: the embedding, with the label where it is protected."""
        short = self.embedding(x).flatten(1)
        bound = 1.0 if self.labels_are_public else math.sqrt(1 - self.share)
        short = short * (bound / short.norm(dim=1, keepdim=True).clamp(min=bound))
        return short if self.labels_are_public else torch.cat([short, self._label(labels)], dim=1)

    def public(self, labels: Tensor) -> Tensor | None:
        """The columns that come as they are, if any."""
        return self._label(labels) if self.labels_are_public else None

    def made(self, plan: NoisyRows, x: Tensor, labels: Tensor) -> Tensor:
        """The rows of made examples."""
        rows, known = plan.imitate(self.protected(x, labels)), self.public(labels)
        return rows if known is None else torch.cat([rows, known], dim=1)

    def _label(self, labels: Tensor) -> Tensor:
        return math.sqrt(self.share) * F.one_hot(labels, self.classes).float()


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

        A row may come again, since it was paid for once.
        """
        judge, frequencies = dense_discriminator(released.shape[1], self.width), self.frequencies(released)
        optimizers = [
            torch.optim.Adam(each.parameters(), lr=self.learning_rate, betas=(0.5, 0.99)) for each in (judge, maker)
        ]
        average = Average(maker, self.averaging)
        for step in range(1, steps + 1):
            rows = released[torch.randint(len(released), (self.rows,))]
            labels = draw_labels(frequencies, self.rows)
            made = self.layout.made(self.plan, (maker(torch.randn(self.rows, maker.latent), labels) + 1) / 2, labels)
            optimizers[0].zero_grad()
            (called_real(judge(rows)) + called_made(judge(made.detach()))).backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            called_real(judge(made)).backward()
            optimizers[1].step()
            average.update()
            if on_step is not None:
                on_step({"what": "Training the GAN", "step": step, "steps": steps})
        average.keep()
        return frequencies

    def frequencies(self, released: Tensor) -> Tensor:
        """Of the classes, from the label columns of the rows, whose noise has mean 0; none is taken as quite empty."""
        classes = self.layout.classes
        found = released[:, -classes:].mean(0) / (self.plan.filled * math.sqrt(self.layout.share))
        return found.clamp(min=0.01 / classes)
