"""How operations move the records inside a tensor: one follower for each kind of operation that keeps records apart.

Deny by default: an operation that is not listed here is unknown, and its result is not followed. A follower returns where
the records are in the operation's result: a stride (see `layout`), `SUM` or `MEAN` where the records were joined by a sum
or a mean over all of them, or `UNKNOWN` where it cannot tell or where records would meet.

Each module lists its operations with `registry.follows`; importing the package registers them.
"""

from privet.gradients.following import (
    elementwise,
    indexing,
    joining,
    layers,
    losses,
    matrices,
    products,
    reductions,
    shapes,
    tables,
)
from privet.gradients.following.losses import joined_shape
from privet.gradients.following.moved import Moved, aligned
from privet.gradients.following.registry import dim_beside_records, follow, follower, is_known, takes_entries

__all__ = [
    "Moved",
    "aligned",
    "dim_beside_records",
    "elementwise",
    "follow",
    "follower",
    "indexing",
    "is_known",
    "joined_shape",
    "joining",
    "layers",
    "losses",
    "matrices",
    "products",
    "reductions",
    "shapes",
    "tables",
    "takes_entries",
]
