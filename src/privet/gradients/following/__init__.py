"""How operations move the records inside a tensor: one follower for each kind of operation that keeps records apart.

Deny by default: an operation that is not listed here is unknown, and its result is not followed. A follower returns where the
records are in the operation's result: a stride (see `marks`), `SUM` or `MEAN` if the records were combined by a sum or a mean
over all of them, or `UNKNOWN` if it cannot tell or if records would be mixed.

Each module lists its operations with `moved.follows`; importing the package registers them.
"""

from privet.gradients.following import entries, places, products, shapes
from privet.gradients.following.entries import is_entrywise, joined_shape
from privet.gradients.following.moved import (
    Moved,
    aligned,
    dim_beside_records,
    follow,
    follower,
    is_known,
    takes_entries,
)
from privet.gradients.following.shapes import is_rearranging

__all__ = [
    "Moved",
    "aligned",
    "dim_beside_records",
    "entries",
    "follow",
    "follower",
    "is_entrywise",
    "is_known",
    "is_rearranging",
    "joined_shape",
    "places",
    "products",
    "shapes",
    "takes_entries",
]
