"""Row spans: the rows of a table, or other values, as the bytes of the log, in one buffer.

Rule: the bytes are those that the topic's serde writes, or there are none. Whatever takes more than
to write the values of the columns one after another (a class that checks its values, a serde of
another format, a value of another type than its field, NaN) is left to the serde.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any, Final, get_origin, is_typeddict

import msgspec

from streamlog.connect.arrow_columns.value_buffers import (
    ValueBuffers,
    contents,
    texts,
    whole_numbers,
)
from streamlog.connect.row_spans.copied_rows import CopiedRows
from streamlog.connect.row_spans.json_rows import JsonForm
from streamlog.records.arrow_rows import BinaryArray
from streamlog.records.byte_spans import ByteSpans, cut_lines
from streamlog.records.record_columns import all_of_type
from streamlog.serdes import IntSerde, JsonSerde, StrSerde
from streamlog.serdes.erased_types import AnySerde, UserValue
from streamlog.serdes.json_values import NULL, refuse_not_finite
from streamlog.serdes.named_columns import PLAIN, NamedColumns, plain_fields

_NUMBER_BYTES: Final = 8
_encoder = msgspec.json.Encoder()
_encode = _encoder.encode


class CopiedColumns(NamedColumns):
    """Rows of COPY with the names of their columns; they are made when they are asked for.

    Args:
        names: the names of the columns.
        copied: the rows.
    """

    __slots__ = ("_is_made", "copied")

    def __init__(self, names: Sequence[str], copied: CopiedRows) -> None:
        super().__init__(names, [])
        self.copied = copied
        self._is_made = False

    def __len__(self) -> int:
        return self.copied.count

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """The rows."""
        if not self._is_made:
            self._rows, self._is_made = self.copied.rows(), True
        return self._rows

    def column(self, name: str) -> list[object] | None:
        """Return the values of a column; None if there is no such column."""
        at = self.positions.get(name)
        return None if at is None else self.copied.column(at)


def row_spans(serde: AnySerde, rows: NamedColumns) -> ByteSpans | None:
    """Return rows as their serde writes them; None if it has to do so itself.

    Raises:
        Exception: a value can't be written; it does not say which one.
    """
    # By the exact class: a derived class may write something else.
    form = _form_of(serde, tuple(rows.names)) if type(serde) is JsonSerde else None
    if form is None:
        return None
    return form.copied(rows.copied) if isinstance(rows, CopiedColumns) else form.spans(rows.rows)


def column_spans(serde: AnySerde, column: Sequence[UserValue]) -> ByteSpans | None:
    """Return keys or values as their serde writes them; None if it has to do so itself.

    Raises:
        Exception: an entry can't be written; it does not say which one.
    """
    if isinstance(column, NamedColumns):
        return row_spans(serde, column)
    if type(serde) is IntSerde:
        made = whole_numbers(column)
        return None if made is None or made.null_count else _long_spans(made, len(column))
    if type(serde) is JsonSerde:
        return _json_spans(serde, column)
    made = texts(column) if type(serde) is StrSerde else None
    return None if made is None else _spans_of(made, len(column))


def _json_spans(serde: JsonSerde[Any], column: Sequence[UserValue]) -> ByteSpans | None:
    """Return values of the serde's classes as lines of JSON, written in one call."""
    # A null is a tombstone, and no JSON.
    if NoneType in serde.exact or not all_of_type(column, serde.exact):
        return None
    data = _encoder.encode_lines(column)
    # As `JsonSerde.dumps`: NaN and infinities are written as null, or as text where they are keys.
    if serde.has_floats and (NULL in data or not serde.is_exact(())):
        for value in column:
            refuse_not_finite(type(value).__name__, value)
    spans = cut_lines(data, len(data), len(data))
    # JSON has no line end but between its parts; a `msgspec.Raw` may have more, or a return at the
    # end. So there are as many lines as values, and only line ends are left out, or it is the
    # serde's.
    if spans is None or len(spans) != len(column):
        return None
    return spans if spans.content_bytes + len(column) == len(data) else None


def spans_of_contents(column: Sequence[bytes | None]) -> ByteSpans | None:
    """Return contents as one buffer; None if there is too much."""
    made = contents(column)
    return None if made is None else _spans_of(made, len(column))


def _spans_of(made: ValueBuffers, count: int) -> ByteSpans:
    data = bytes(made.data)
    return ByteSpans(data, BinaryArray(0, count, made.ends, data, made.valid))


def _long_spans(made: ValueBuffers, count: int) -> ByteSpans:
    numbers = array("q", bytes(made.data))
    if sys.byteorder == "little":
        numbers.byteswap()
    data = numbers.tobytes()
    return ByteSpans(data, BinaryArray(0, count, _number_ends(count.bit_length()), data))


# Sixteen lengths: up to 32,768 keys of a Read.
@lru_cache(maxsize=16)
def _number_ends(bits: int) -> bytes:
    """Return the start of the first and the end of each of 2^bits numbers of 64 bits."""
    return array("i", range(0, (_NUMBER_BYTES << bits) + 1, _NUMBER_BYTES)).tobytes()


# The tables whose form of rows is remembered.
@lru_cache(maxsize=256)
def _form_of(serde: JsonSerde[Any], names: tuple[str, ...]) -> JsonForm | None:
    """Return how a serde writes rows with these columns; None if it has to do so itself."""
    positions = NamedColumns(names, []).positions
    fields = _written_fields(serde, positions)
    if fields is None or not fields or not fields.keys() <= positions.keys():
        return None
    heads = [b"," + _encode(name) + b":" for name in fields]
    heads[0] = b"{" + heads[0][1:]
    return JsonForm(heads, [positions[name] for name in fields], [*fields.values()], _written)


def _written_fields(
    serde: JsonSerde[Any], positions: Mapping[str, int]
) -> Mapping[str, frozenset[type] | None] | None:
    """Return the classes of each field's values by its name in JSON; None for all classes."""
    declared: Any = serde.declared
    fields = plain_fields(declared)
    if fields is not None:
        config = declared.__struct_config__
        # A class that checks what it is made of has to be made.
        is_as_it_is = not (config.omit_defaults or config.array_like)
        is_as_it_is = is_as_it_is and not hasattr(declared, "__post_init__")
        return dict(fields) if is_as_it_is else None
    kind: Any = get_origin(declared) or declared
    return dict.fromkeys(positions) if kind is Any or kind is dict or is_typeddict(kind) else None


def _written(value: UserValue) -> bytes:
    """Return a value as JSON.

    Raises:
        SerdeError: it contains NaN or an infinity, which JSON lacks.
    """
    # A plain value has none within, and those that are none themselves do not get here.
    if type(value) not in PLAIN:
        refuse_not_finite(type(value).__name__, value)
    return _encode(value)
