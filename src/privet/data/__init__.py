"""Data sets: read the user's own, get the well-known ones, and divide them."""

from privet.data.cache import cache_root, compute_features
from privet.data.catalogue import CATALOGUE, Entry, get, is_cached
from privet.data.dataset import Dataset, Split, as_float
from privet.data.readers import DATA, load
from privet.data.schema import Categorical, Numeric, Schema, read_schema
from privet.data.sources import Progress
from privet.data.splits import divide, set_aside, with_test_records

__all__ = [
    "CATALOGUE",
    "DATA",
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
