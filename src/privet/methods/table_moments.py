"""Class moments of a table: the histogram of every column by class, and the correlations of the columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privet.data import Categorical, Numeric, Split
from privet.errors import InputError
from privet.methods.method import Context, Task, register
from privet.methods.statistics import private_second_moments, private_sums
from privet.methods.synthetic import Order, Synthetic, SyntheticMethod, check_classes
from privet.privacy import Budget, Gaussian, Ledger
from privet.randomness import Randomness, before_training

_FURTHEST = 3.0
"""Normal scores beyond this many standard deviations are moved to it; that affects only a few records."""


@register
@dataclass(frozen=True, kw_only=True)
class TableMoments(SyntheticMethod):
    """A Gaussian copula for each class: noisy histograms of the columns, then noisy correlations of their normal scores.

    A number's histogram has equal bins between its bounds, a category's one bin for each. The score of a cell is
    the normal quantile of its place in its class's histogram; categories are placed in the order of the schema.

    Formal guarantees: the records are used in two releases, both in the ledger: one of all histograms, to which a record
    adds 1 in each column, and one of the second moments of the scores. Each row is computed from these alone.

    Attributes:
        bins: number of bins for a column of numbers.
        histograms_share: the share of the budget for the histograms; the rest is for the correlations.
        pooling: the weight of all classes together in the correlations of each class.
    """

    bins: int = 32
    histograms_share: float = 0.6
    pooling: float = 0.5

    limits: ClassVar[dict[str, str]] = SyntheticMethod.limits | {
        "bins": "[1, inf)",
        "histograms_share": "(0, 1)",
        "pooling": "[0, 1]",
    }
    noise_path = "moments"
    noise_is = "histograms of the columns, and their correlations"
    proof = "proved"
    protects_users = True

    key: str = "table-moments"
    title: str = "One-shot class moments of a table"
    by_default: bool = False

    def why_not(self, task: Task) -> str:
        return super().why_not(task) or ("" if task.schema is not None else "it is for tables with a schema")

    def synthesize(self, records: Split, order: Order, context: Context) -> Synthetic:
        check_classes(order)
        if not order.columns:
            raise InputError("The moments of a table need its columns: give its schema.")
        randomness = before_training(order.seed)
        sigma = Budget(order.epsilon, order.delta, accountant="gdp").least(Gaussian)
        codes = _codes(records.inputs, order.columns, self.bins)
        widths = [self._bins(column) for column in order.columns]

        def release(ledger: Ledger) -> tuple[list[Tensor], Tensor]:
            histograms = self._histograms(codes, widths, records, order, sigma, ledger, randomness)
            return histograms, self._roots(codes, histograms, records, order, sigma, ledger, randomness)

        histograms, roots = context.releases.get("moments", release, randomness)
        counts = torch.stack([histogram.sum(1) for histogram in histograms]).mean(0)
        generator = torch.Generator()
        _ = generator.seed() if order.seed is None else generator.manual_seed(order.seed)
        labels = torch.multinomial(counts, order.size, replacement=True, generator=generator)
        draws = torch.randn(order.size, len(widths), 1, dtype=torch.float64, generator=generator)
        places = torch.special.ndtr((roots[labels] @ draws)[:, :, 0])
        blocks = [
            _cells(places[:, index], histogram[labels], column, generator)
            for index, (histogram, column) in enumerate(zip(histograms, order.columns, strict=True))
        ]
        told = {"Generator": f"histograms of {len(widths)} columns for each class, and the correlations of the columns"}
        return Synthetic(torch.cat(blocks, 1).float(), labels, None, context.ledger, told)

    def statistics(self) -> tuple[str, ...]:
        return "sums", "second-moments"

    def _bins(self, column: Numeric | Categorical) -> int:
        return self.bins if isinstance(column, Numeric) else len(column.categories)

    def _histograms(
        self,
        codes: Tensor,
        widths: list[int],
        records: Split,
        order: Order,
        sigma: float,
        ledger: Ledger,
        randomness: Randomness,
    ) -> list[Tensor]:
        """For each column ``(classes, bins)``: how many records, at least a little of each."""
        hot = torch.cat([torch.nn.functional.one_hot(codes[:, i], width) for i, width in enumerate(widths)], 1).float()
        noise = sigma / math.sqrt(self.histograms_share)
        released = private_sums(
            hot,
            records.labels,
            order.classes,
            bound=math.sqrt(len(widths)) * (1 + 1e-4),  # no record may be clipped by rounding
            noise_multiplier=noise,
            ledger=ledger,
            randomness=randomness,
            shares=records.shares,
        )
        level = 2 * noise * math.sqrt(len(widths))
        # Noise would be spread over all empty bins: counts below two standard deviations are set to 0.
        kept = torch.where(released > level, released, 0.0)
        return [part + 1e-3 * level / part.shape[1] for part in kept.split(widths, 1)]

    def _roots(
        self,
        codes: Tensor,
        histograms: list[Tensor],
        records: Split,
        order: Order,
        sigma: float,
        ledger: Ledger,
        randomness: Randomness,
    ) -> Tensor:
        """For each class a root of the correlations of the normal scores."""
        scores = torch.stack(
            [_scores(histogram)[records.labels, codes[:, i]] for i, histogram in enumerate(histograms)], 1
        ).float()
        moments = private_second_moments(
            scores,
            records.labels,
            order.classes,
            bound=1.3 * math.sqrt(len(histograms)),
            noise_multiplier=sigma / math.sqrt(1 - self.histograms_share),
            ledger=ledger,
            randomness=randomness,
            shares=records.shares,
        )
        counts = torch.stack([histogram.sum(1) for histogram in histograms]).mean(0)
        covariances = (1 - self.pooling) * moments / counts[:, None, None] + self.pooling * moments.sum(
            0
        ) / counts.sum()
        return torch.stack([_correlation_root(covariance) for covariance in covariances])


def _codes(inputs: Tensor, columns: tuple[Numeric | Categorical, ...], bins: int) -> Tensor:
    """Each record's bin in each column."""
    codes, start = [], 0
    for column in columns:
        part = inputs[:, start : start + len(column.inputs)]
        start += len(column.inputs)
        binned = (part[:, 0] * bins).long().clamp(0, bins - 1)
        codes.append(binned if isinstance(column, Numeric) else part.argmax(1))
    return torch.stack(codes, 1)


def _scores(histogram: Tensor) -> Tensor:
    """The normal quantile of the middle of each bin's place, by class."""
    shares = histogram / histogram.sum(1, keepdim=True)
    middle = shares.cumsum(1) - shares / 2
    scores: Tensor = torch.special.ndtri(middle.clamp(1e-6, 1 - 1e-6)).clamp(-_FURTHEST, _FURTHEST)
    return scores


def _correlation_root(covariance: Tensor) -> Tensor:
    """A root of the nearest correlations: negative eigenvalues, which only noise makes, are dropped."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=1e-6).sqrt()
    scaled: Tensor = root / root.norm(dim=1, keepdim=True)
    return scaled


def _cells(places: Tensor, histogram: Tensor, column: Numeric | Categorical, generator: torch.Generator) -> Tensor:
    """The encoded cells at these places of the histograms (one for each row)."""
    ends = (histogram / histogram.sum(1, keepdim=True)).cumsum(1)
    bins = (places[:, None] > ends[:, :-1]).sum(1)
    if isinstance(column, Categorical):
        return torch.nn.functional.one_hot(bins, len(column.categories))
    within = torch.rand(len(bins), generator=generator, dtype=places.dtype)
    return ((bins + within) / histogram.shape[1])[:, None]
