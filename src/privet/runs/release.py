"""The release of synthetic data: the artificial examples, their card, and the ledger."""

from __future__ import annotations

import csv
import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from privet import data
from privet.attacks.pictures import draw_samples
from privet.data import Categorical, Numeric, Schema
from privet.data.idx import write_idx
from privet.errors import InputError
from privet.io import sync_folder, write_whole
from privet.io.names import ARRAYS, LEDGER, PICTURES, SCHEMA, TABLE
from privet.methods.synthetic import Synthetic
from privet.report import SyntheticSummary, write_card

FOLDER, STAGED = "release", ".release"
CARD = "README.md"
PICTURE = "samples.png"
SAMPLES = 8
"""Number of rows of a table that the page shows."""


def write_release(
    folder: Path,
    made: Synthetic,
    classes: int,
    schema: Schema | None,
) -> SyntheticSummary:
    """Write the files of ``folder/release``; they contain only post-processing of what the ledger accounts for.

    `publish_release` moves them there with the card, which is made from the run's record: a release is complete or absent.

    Images are written to `synthetic.npz` (images, labels and, if a teacher gave them, soft labels) and, as PNG files,
    to `train.zip`; gray ones also to two IDX files like those of MNIST. Rows of a table are written to `train.csv` with the
    original columns, beside the schema.
    """
    release = folder / STAGED
    shutil.rmtree(release, ignore_errors=True)
    release.mkdir(parents=True)
    if schema is not None:
        write_whole(release / TABLE, table(made, schema).encode(), mode=0o644)
        text = json.dumps(schema_content(schema), indent=1, ensure_ascii=False)
        write_whole(release / SCHEMA, f"{text}\n".encode(), mode=0o644)
        files = [TABLE, SCHEMA]
    else:
        files = _arrays(release, made)
    shutil.copyfile(folder / LEDGER, release / LEDGER)
    for file in release.iterdir():
        file.chmod(0o644)  # readable by everybody, whatever the umask of this process
    names = tuple(f"{FOLDER}/{name}" for name in (*files, LEDGER, CARD))
    counts = tuple(torch.bincount(made.labels, minlength=classes).tolist())
    if schema is not None:
        columns, *samples = csv.reader(io.StringIO(table(made, schema)))
        return SyntheticSummary(
            len(made.labels), names, "", tuple(columns), tuple(map(tuple, samples[:SAMPLES])), counts
        )
    picture = draw_samples(folder / PICTURE, made.inputs, made.labels) if made.inputs.ndim == 4 else None
    return SyntheticSummary(len(made.labels), names, picture.name if picture else "", counts=counts)


def publish_release(folder: Path) -> None:
    """Move a written release to its place, with its card; does nothing if there is none."""
    staged = folder / STAGED
    if staged.is_dir():
        said = write_card(folder).read_bytes()
        write_whole(staged / CARD, said, mode=0o644)
        staged.rename(folder / FOLDER)
        sync_folder(folder)


def read_release(folder: Path) -> Tensor:
    """The artificial inputs in a run folder, in the form that a network takes."""
    release = folder / FOLDER
    if (release / TABLE).exists():
        return data.load(f"csv:{release / TABLE}", schema=release / SCHEMA).train.tensors[0]
    try:
        with np.load(release / ARRAYS) as arrays:
            return data.as_float(torch.from_numpy(arrays["inputs"]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        raise InputError(f"{release / ARRAYS}: the artificial data cannot be read; run the command again.") from None


def _arrays(release: Path, made: Synthetic) -> list[str]:
    arrays = {"inputs": _pixels(made.inputs), "labels": made.labels.numpy()}
    if made.soft is not None:
        arrays["soft"] = made.soft.numpy().astype(np.float32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_whole(release / ARRAYS, buffer.getvalue(), mode=0o644)
    files = [ARRAYS]
    if made.inputs.ndim == 4 and made.inputs.shape[1] in (1, 3):
        write_whole(release / PICTURES, _zipped(arrays["inputs"], made.labels.tolist()), mode=0o644)
        files.append(PICTURES)
    if made.inputs.ndim == 4 and made.inputs.shape[1] == 1:
        write_idx(release / "train-images-idx3-ubyte", arrays["inputs"])
        write_idx(release / "train-labels-idx1-ubyte", made.labels.numpy().astype(np.uint8))
        files += ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]
    return files


def _zipped(images: NDArray[np.generic], labels: list[int]) -> bytes:
    """The images as PNG files, with their labels in `metadata.csv`; the same images always give the same bytes."""
    buffer, lines = io.BytesIO(), ["file_name,label"]
    with zipfile.ZipFile(buffer, "w") as archive:  # PNG files are compressed already

        def add(name: str, content: bytes) -> None:
            entry = zipfile.ZipInfo(name)  # of 1980, whenever it is made
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)

        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            drawn = io.BytesIO()
            Image.fromarray(image if image.ndim == 2 else np.moveaxis(image, 0, -1)).save(drawn, format="png")
            lines.append(f"{number}.png,{label}")
            add(f"{number}.png", drawn.getvalue())
        add("metadata.csv", "\n".join([*lines, ""]).encode())
    return buffer.getvalue()


def _pixels(inputs: Tensor) -> NDArray[np.generic]:
    """Images as bytes, without the channel axis if there is only one channel; vectors unchanged."""
    if inputs.ndim != 4:
        return inputs.numpy()
    whole = (inputs * 255).round().clamp(0, 255).byte().numpy()
    return whole[:, 0] if whole.shape[1] == 1 else whole


def table(made: Synthetic, schema: Schema) -> str:
    """The examples as CSV with the schema's columns in their order.

    Numbers are scaled back to their bounds, and rounded if the schema says that they are whole. A categorical column gets the
    likeliest category.
    """
    rows = made.inputs.flatten(1)
    columns: dict[str, list[str]] = {schema.label: [schema.classes[label] for label in made.labels.tolist()]}
    start = 0
    for column in schema.features:
        part = rows[:, start : start + len(column.inputs)]
        start += len(column.inputs)
        columns[column.name] = _cells(part, column)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = [column.name for column in schema.columns]
    writer.writerow(names)
    writer.writerows(zip(*(columns[name] for name in names), strict=True))
    return buffer.getvalue()


def _cells(part: Tensor, column: Numeric | Categorical) -> list[str]:
    if isinstance(column, Categorical):
        return [column.categories[code] for code in part.argmax(1).tolist()]
    values = column.low + part[:, 0].double().clamp(0, 1) * (column.high - column.low)
    return [str(round(value)) if column.whole else f"{value:.6g}" for value in values.tolist()]


def schema_content(schema: Schema) -> dict[str, object]:
    """The schema as `privet.data.read_schema` reads it; columns that were ignored are not in the release."""
    columns = {
        column.name: {"low": column.low, "high": column.high, "whole": column.whole}
        if isinstance(column, Numeric)
        else {"categories": list(column.categories)}
        for column in schema.columns
    }
    return {"label": schema.label, "columns": columns}
