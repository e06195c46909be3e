"""Named columns: the rows of a table, for which no dict is made where none is needed.

A driver gives rows as tuples, and the log wants JSON. The JSON is written straight from the tuples
where the topic's serde allows it (`streamlog.connect.row_spans`); else a value of the topic's class
is made from them if they have just the types of its fields. A dict for each row costs as much as
everything else that is done with it, so those are made for other readers only.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, overload
from uuid import UUID

import msgspec

from streamlog.serdes.erased_types import UserObject

RowDict: TypeAlias = dict[str, object]
PLAIN: Final = frozenset(
    {bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID}
)
"""Types whose values a field takes as they are."""
_CLASSES_MAX: Final = 256
"""How many classes are remembered with their fields."""


class NamedColumns(Sequence[RowDict]):
    """Rows as tuples with the names of their columns; an entry is a row as a dict.

    Of two columns of one name, the last counts.

    Args:
        names: the names of the columns.
        rows: the rows, each with a value for every name.

    Attributes:
        positions: where each column's values stand in a row, by name, in the order of the names.
    """

    __slots__ = ("_rows", "names", "positions")

    def __init__(self, names: Sequence[str], rows: list[tuple[object, ...]]) -> None:
        self.names = names
        self._rows = rows
        self.positions = {name: at for at, name in enumerate(names)}

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """The rows."""
        return self._rows

    @classmethod
    def of_columns(cls, columns: Mapping[str, Sequence[object]]) -> NamedColumns:
        """Return the rows of columns that have one length."""
        return NamedColumns((*columns,), [*zip(*columns.values(), strict=True)])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RowDict]:
        names = self.names
        # Not strict: a row has as many values as there are names, and this is done for each.
        return (dict(zip(names, row)) for row in self.rows)  # noqa: B905

    @overload
    def __getitem__(self, at: int) -> RowDict: ...
    @overload
    def __getitem__(self, at: slice) -> NamedColumns: ...
    def __getitem__(self, at: int | slice) -> RowDict | NamedColumns:
        if isinstance(at, slice):
            return NamedColumns(self.names, self.rows[at])
        return dict(zip(self.names, self.rows[at], strict=True))

    def column(self, name: str) -> list[object] | None:
        """Return the values of a column; None if there is no such column."""
        at = self.positions.get(name)
        return None if at is None else [row[at] for row in self.rows]

    def replaced(self, columns: Mapping[str, Sequence[object]]) -> NamedColumns:
        """Return the rows with other values in some columns."""
        kept = {name: self.column(name) or () for name in self.positions}
        return NamedColumns.of_columns({**kept, **columns})

    def structs(self, declared: object) -> list[UserObject] | None:
        """Return the rows as values of a class, equal to what `msgspec.convert` makes of the dicts.

        None if that takes more than to call the class: it is no Struct of plain fields, a field has
        no column, or a value has another type than its field.
        """
        fields = plain_fields(declared)
        if fields is None or not callable(declared):
            return None
        columns: list[Sequence[object]] = []
        for name, kinds in fields:
            column = self.column(name)
            if column is None or not {*map(type, column)} <= kinds:
                return None
            columns.append(column)
        return [*map(declared, *columns)]


@lru_cache(maxsize=_CLASSES_MAX)
def plain_fields(declared: object) -> tuple[tuple[str, frozenset[type]], ...] | None:
    """Return the names of a Struct's fields and the types that each takes as they are.

    In the order in which the class takes them. None for a class that checks or changes anything.
    """
    if not isinstance(declared, type) or not issubclass(declared, msgspec.Struct):
        return None
    config = declared.__struct_config__
    if config.tag is not None or config.forbid_unknown_fields:
        return None
    parameters = inspect.signature(declared).parameters.values()
    if any(each.kind is not each.POSITIONAL_OR_KEYWORD for each in parameters):
        return None
    fields = [
        (each.encode_name, _plain_types(each.type)) for each in msgspec.structs.fields(declared)
    ]
    # No fields: nothing to go by for how many values there are.
    if not fields or any(not kinds for _, kinds in fields):
        return None
    return tuple(fields)


def _plain_types(declared: Any) -> frozenset[type]:  # noqa: ANN401 - a form of a type
    """Return the types of a field's values; none unless the field is plain, or plain or None."""
    is_union = get_origin(declared) in {Union, UnionType}
    found = frozenset(get_args(declared) if is_union else (declared,))
    return found if len(found - {NoneType}) == 1 and found <= PLAIN | {NoneType} else frozenset()
