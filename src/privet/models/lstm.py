"""Recurrent networks for text, on torch's own LSTM: a record is one sequence of tokens."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class LSTMClassifier(nn.Module):
    """One score per class for each sequence ``[records, length]``, from the mean of the LSTM's outputs.

    The mean hears every step; the last output alone hears little of a long sequence, and under noise less.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        embedding: int = 32,
        hidden: int = 64,
        layers: int = 1,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=padding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        if self.padding is None:
            return cast(Tensor, self.head(outputs.mean(1)))
        present = (tokens != self.padding).unsqueeze(2).to(outputs.dtype)
        return cast(Tensor, self.head((outputs * present).sum(1) / present.sum(1).clamp(min=1)))


class LSTMLanguageModel(nn.Module):
    """For each place of a sequence ``[records, length]``, the scores of the next token: ``[records, length, vocabulary]``.

    Its loss: ``cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())``.
    """

    def __init__(self, vocabulary: int, embedding: int = 32, hidden: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        return cast(Tensor, self.head(outputs))
