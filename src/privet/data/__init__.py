"""Data sets: read what users bring, get the well-known ones, divide them."""

from privet.data.cache import cache_root
from privet.data.catalogue import CATALOGUE, Entry
from privet.data.dataset import Dataset, Split, as_float
from privet.data.download import Progress
from privet.data.features import compute_features
from privet.data.fetch import get, is_cached
from privet.data.schema import Categorical, Numeric, Schema, read_schema
from privet.data.spec import load
from privet.data.splits import divide, set_aside, with_test_records

__all__ = [
    "CATALOGUE",
    "Categorical",
    "Dataset",
    "Entry",
    "Numeric",
    "Progress",
    "Schema",
    "Split",
    "as_float",
    "cache_root",
    "compute_features",
    "divide",
    "get",
    "is_cached",
    "load",
    "read_schema",
    "set_aside",
    "with_test_records",
]
