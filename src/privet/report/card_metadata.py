"""The YAML at the top of a card: the metadata that the Hugging Face Hub reads of a model or of a data set."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]

from privet.report.record import RunRecord

HUB_NAMES = {"mnist": "ylecun/mnist", "fashion-mnist": "zalando-datasets/fashion_mnist", "cifar10": "uoft-cs/cifar10"}
"""Where the Hub keeps the data sets that `privet data get` fetches."""
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
TAGS = ["differential-privacy", "privet"]


def front_matter(record: RunRecord, card: dict[str, Any]) -> str:
    """The metadata of a card, as YAML."""
    facts = _data_set(record, card) if record.synthetic else _model(record, card)
    if record.stated.licence:
        facts = {"license": record.stated.licence} | facts
    facts["privacy"] = {
        name: card["privacy"][name]
        for name in (
            "statement",
            "epsilon",
            "delta",
            "relation",
            "unit",
            "sampling",
            "accountant",
            "guarantee",
            "conditions",
            "vacuous",
        )
    }
    text: str = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100)
    return text


def _tags(card: dict[str, Any]) -> list[str]:
    """What is not protected is not listed among what is."""
    return [tag for tag in TAGS if tag != "differential-privacy" or card["privacy"]["protects"]]


def _model(record: RunRecord, card: dict[str, Any]) -> dict[str, Any]:
    task = _task(record)
    source = HUB_NAMES.get(record.data.name) if record.data.public else None
    facts: dict[str, Any] = {"library_name": "pytorch", "pipeline_tag": task, "tags": _tags(card)}
    if source:
        facts["datasets"] = [source]
    if record.released_utility is None:
        return facts
    accuracy = {"type": "accuracy", "name": "Accuracy", "value": round(record.released_utility.accuracy, 6)}
    result = {
        "task": {"type": task, "name": task.replace("-", " ").capitalize()},
        "dataset": {
            "type": source or (record.data.name if record.data.public else "private"),
            "name": record.data.name,
            "split": "test",
        },
        "metrics": [accuracy],
    }
    return facts | {"metrics": ["accuracy"], "model-index": [{"name": card["title"], "results": [result]}]}


def _data_set(record: RunRecord, card: dict[str, Any]) -> dict[str, Any]:
    assert record.synthetic is not None
    size = sum(record.synthetic.rows >= 1000 * 10**power for power in range(len(SIZES) - 1))
    source = HUB_NAMES.get(record.data.name) if record.data.public else None
    facts: dict[str, Any] = {
        "pretty_name": card["title"],
        "annotations_creators": ["machine-generated"],
        "task_categories": [_task(record)],
        "size_categories": [SIZES[size]],
        "tags": [*_tags(card), "synthetic"],
    }
    return facts | ({"source_datasets": [source]} if source else {})


def _task(record: RunRecord) -> str:
    return "image-classification" if len(record.data.shape) == 3 else "tabular-classification"
