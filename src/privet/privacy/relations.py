"""Which two data sets a guarantee cannot tell apart."""

from __future__ import annotations

from enum import StrEnum

from privet.errors import InputError


class Relation(StrEnum):
    """The neighbouring relation of an (epsilon, delta) statement.

    A contribution of norm at most C moves a sum by at most C when a record is added or removed and by at most 2C
    when it is replaced; events state their noise relative to C, accountants apply the factor.
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    def describe(self, unit: str = "record") -> str:
        return f"{'add/remove' if self is Relation.ADD_REMOVE else 'replace'} one {unit}"

    @property
    def factor(self) -> float:
        """How many contributions a sum moves by: 1 or 2."""
        return 1.0 if self is Relation.ADD_REMOVE else 2.0

    @classmethod
    def of(cls, relation: Relation | str) -> Relation:
        try:
            return cls(relation)
        except ValueError:
            known = ", ".join(item.value for item in cls)
            raise InputError(f"There is no relation {relation!r}; the relations are {known}.") from None
