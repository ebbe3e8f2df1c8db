"""Data sets: read the user's own, get the well-known ones, and divide them."""

from typing import TYPE_CHECKING

from privet.data.cache import cache_root, compute_features
from privet.data.catalogue import CATALOGUE, CatalogEntry, get, is_cached
from privet.data.dataset import Dataset, Split, as_float
from privet.data.frames import from_frame
from privet.data.large import ArrowRecords, MappedTensors, ParquetRecords, TarRecords, divide_records
from privet.data.readers import DATA, load
from privet.data.schema import Categorical, Numeric, Schema, read_schema
from privet.data.sources import Progress
from privet.data.splits import divide, set_aside, with_test_records
from privet.data.texts import encode_texts, texts_of
from privet.io.moved import moved_names

__all__ = [
    "CATALOGUE",
    "DATA",
    "ArrowRecords",
    "CatalogEntry",
    "Categorical",
    "Dataset",
    "MappedTensors",
    "Numeric",
    "ParquetRecords",
    "Progress",
    "Schema",
    "Split",
    "TarRecords",
    "as_float",
    "cache_root",
    "compute_features",
    "divide",
    "divide_records",
    "encode_texts",
    "from_frame",
    "get",
    "is_cached",
    "load",
    "read_schema",
    "set_aside",
    "texts_of",
    "with_test_records",
]

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
