"""Data sets: read what users bring, get the well-known ones, split them. Nothing here is private yet."""

from privet.data.catalogue import CATALOGUE, Entry
from privet.data.dataset import Dataset, Split, as_float
from privet.data.download import Progress
from privet.data.fetch import get
from privet.data.load import load

__all__ = ["CATALOGUE", "Dataset", "Entry", "Progress", "Split", "as_float", "get", "load"]
