"""Declared rows: makes values of a topic's declared type out of the rows that a source reads.

A source of a database yields rows as dicts, and a topic may declare a class for them. Every other
value is left to the serde, which refuses what it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_origin, is_typeddict

import msgspec

from streamlog.serdes.erased_types import AnySerde, UserValue
from streamlog.serdes.json_values import is_model
from streamlog.serdes.serde import declared_by


def declare_rows(serde: AnySerde, column: Sequence[UserValue]) -> Sequence[UserValue]:
    """Return the column with each dict as a value of the serde's type, if that is a class.

    Fields that the class lacks are left out, as they are when JSON is read.

    Raises:
        msgspec.ValidationError: a field is missing, or has another type; with its path.
        ValueError: a model of pydantic refuses the row.
    """
    convert = _converter(declared_by(serde))
    if convert is None:
        return column
    return [convert(value) if type(value) is dict else value for value in column]


def _converter(declared: object) -> Callable[[UserValue], UserValue] | None:
    """Return what makes a value of a declared type; None for types that a dict is a value of."""
    kind: Any = get_origin(declared) or declared
    if kind is None or kind is Any or is_typeddict(kind):
        return None
    if isinstance(kind, type) and (kind is object or issubclass(kind, Mapping | bytes | str)):
        return None
    if is_model(kind):
        return kind.model_validate  # type: ignore[no-any-return]
    # It takes a datetime, a Decimal or a UUID as it is, and a Decimal for a declared float.
    return lambda row: msgspec.convert(row, declared)
