"""Avro encoding: rows with a schema of Connect as Avro's bytes.

A writer is compiled for a pair: the schema of the rows, and the Avro schema to write. Usually that
was made of the former; with `use.latest.version` it is another one, whose fields have their
defaults where rows lack them, and whose wider numbers take narrower ones, as Avro resolves schemas.

Rules:
- a union's branch follows from the schemas, never from a value;
- a value of another type is refused: nothing is rounded, cut or made a text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import (
    AVRO_KINDS,
    AvroForm,
    is_union,
    scrub,
)
from streamlog.connect.converters.connect_avro.schemas_from_avro import entry_of, is_null
from streamlog.connect.converters.json_converter import default_of
from streamlog.connect.converters.json_schemas import to_base
from streamlog.connect.java_values import INTEGER_BITS, kind_of
from streamlog.connect.row_schema import Field, Kind, Schema, fields_of, part_of
from streamlog.schemas.avro_schemas.avro_types import (
    NAMED,
    NO_DEFAULT,
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroRecord,
    AvroType,
    AvroUnion,
)
from streamlog.serdes.erased_types import JsonValue

WriteAvro = Callable[[bytearray, object], None]
"""Adds the bytes of a value; raises BadRecord if it does not fit."""
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_LAST_SEVEN: Final = 0x7F
_CONTINUES: Final = 0x80
"""The bit of a byte after which a number continues."""
ANY_KINDS: Final = ("boolean", "bytes", "double", "float", "int", "long", "string", "array", "map")
"""The fields of a value without a schema, in order: one of them has it."""
_TAKEN: Final[Mapping[Kind, tuple[str, ...]]] = {
    "int8": ("int", "long", "float", "double"),
    "int16": ("int", "long", "float", "double"),
    "int32": ("int", "long", "float", "double"),
    "int64": ("long", "float", "double"),
    "float32": ("float", "double"),
    "float64": ("double",),
    "boolean": ("boolean",),
    "string": ("string", "enum"),
    "bytes": ("bytes", "fixed"),
    "array": ("array",),
    "map": ("map", "array"),
    "struct": ("record",),
}
"""The types of Avro that take a kind, the closest first."""
"""Reads the defaults of fields, which are JSON."""


def avro_writer(schema: Schema | None, node: AvroType, form: AvroForm) -> WriteAvro:
    """Return what writes values of a schema as an Avro type.

    Raises:
        BadRecord: the Avro type can't hold them.
    """
    return _write_anything if schema is None else _Compiling(form).writer(schema, node)


class _Compiling:
    """The writers of one schema."""

    def __init__(self, form: AvroForm) -> None:
        self._form = form

    def writer(self, schema: Schema, node: AvroType) -> WriteAvro:
        """Return the writer of a schema, null included if it is optional."""
        if isinstance(node, AvroUnion):
            return self._union(schema, node)
        write = self._value(schema, node)
        kind = schema.logical or schema.kind

        def write_required(out: bytearray, value: object) -> None:
            if value is None:
                raise BadRecord(f"null for a {kind} that is required")
            write(out, value)

        return write_required

    def _union(self, schema: Schema, node: AvroUnion) -> WriteAvro:
        nulls = [long_bytes(at) for at, each in enumerate(node.branches) if is_null(each)]
        # Known now, so a record costs no search for the branch of null.
        null = nulls[0] if nulls and schema.optional else None
        write = self._members(schema, node) if is_union(schema) else self._branch(schema, node)

        def write_optional(out: bytearray, value: object) -> None:
            if value is not None:
                write(out, value)
            elif null is not None:
                out += null
            else:
                raise BadRecord("null for a value that is required")

        return write_optional

    def _branch(self, schema: Schema, node: AvroUnion) -> WriteAvro:
        at = _closest(schema, node)
        head, write = long_bytes(at), self._value(schema, node.branches[at])

        def write_branch(out: bytearray, value: object) -> None:
            out += head
            write(out, value)

        return write_branch

    def _members(self, schema: Schema, node: AvroUnion) -> WriteAvro:
        """Return the writer of a struct that stands for a union."""
        members = [(each.name, self._member(each, node)) for each in schema.fields]
        nulls = [long_bytes(at) for at, each in enumerate(node.branches) if is_null(each)]

        def write_member(out: bytearray, value: object) -> None:
            row = fields_of(value)
            # The first field with a value is the union's: Confluent's converter looks no further.
            for name, write in members:
                if (found := row.get(name)) is not None:
                    write(out, found)
                    return
            if not nulls or not schema.optional:
                raise BadRecord("no field of a union has a value")
            out += nulls[0]

        return write_member

    def _member(self, field: Field, node: AvroUnion) -> WriteAvro:
        for at, branch in enumerate(node.branches):
            full = branch.name if isinstance(branch, NAMED) else branch.kind
            if field.name in (full, full.rpartition(".")[2]):
                head, write = long_bytes(at), self._value(field.schema, branch)

                def write_branch(out: bytearray, value: object) -> None:
                    out += head  # noqa: B023 - returned at once
                    write(out, value)  # noqa: B023 - the same

                return write_branch
        raise BadRecord(f"the union of the Avro schema has no type {field.name}")

    def _value(self, schema: Schema, node: AvroType) -> WriteAvro:
        """Return the writer of values that are not null."""
        # Refused when the writer is made: once for a schema, not for each of its records.
        if node.kind not in _TAKEN[schema.kind]:
            raise BadRecord(f"a {schema.kind} is no {node.kind} of Avro")
        write = self._base(schema, node)
        if schema.logical is None:
            return write

        def write_logical(out: bytearray, value: object) -> None:
            write(out, to_base(schema, value))

        return write_logical

    def _base(self, schema: Schema, node: AvroType) -> WriteAvro:
        match node:
            case AvroRecord():
                found = self._record(schema, node)
            case AvroArray() if schema.kind == "map":
                found = self._entries(schema, node)
            case AvroArray():
                found = blocks_writer(self.writer(part_of(schema.items), node.items))
            case AvroMap():
                found = text_map_writer(self.writer(part_of(schema.items), node.values))
            case AvroEnum():
                found = enum_writer(node)
            case AvroFixed():
                found = fixed_writer(node, is_number=schema.logical == "Decimal")
            case _:
                found = scalar_writer(schema.kind, node.kind)
        return found

    def _entries(self, schema: Schema, node: AvroArray) -> WriteAvro:
        entry = entry_of(node.items)
        if entry is None:
            raise BadRecord("a map is no array of Avro, unless its items are entries of a map")
        write_key = self.writer(part_of(schema.keys), entry[0])
        write_item = self.writer(part_of(schema.items), entry[1])

        def write(out: bytearray, value: object) -> None:
            for key, each in mapping_of(value).items():
                write_key(out, key)
                write_item(out, each)

        return counted_writer(write, mapping_of)

    def _record(self, schema: Schema, node: AvroRecord) -> WriteAvro:
        scrubs = self._form.scrubs_names
        fields = {scrub(each.name) if scrubs else each.name: each for each in schema.fields}
        # In the order of the Avro schema, whatever the order of the fields in rows.
        steps = [self._field(fields.get(each.name), each) for each in node.fields]

        def write(out: bytearray, value: object) -> None:
            row = fields_of(value)
            name = ""
            try:
                for name, default, write_field in steps:
                    found = row.get(name)
                    write_field(out, default if found is None else found)
            # The path is put together on the way out, so a sound record does not pay for it.
            except BadRecord as error:
                raise BadRecord(f"field {name}: {error}") from None

        return write

    def _field(self, field: Field | None, node: AvroField) -> tuple[str, object, WriteAvro]:
        """Return the name of a field, the value for null, and its writer."""
        if field is None:
            return node.name, None, self._absent(node)
        # Java's converters write the default for null in an optional field, unless told not to.
        keeps_null = self._form.ignores_default and field.schema.optional
        default: object = None
        if field.default is not None and not keeps_null:
            default = default_of(field)
        try:
            return field.name, default, self.writer(field.schema, node.type)
        except BadRecord as error:
            raise BadRecord(f"field {field.name}: {error}") from None

    def _absent(self, node: AvroField) -> WriteAvro:
        """Return the writer of a field of Avro that the rows do not have."""
        if node.default is NO_DEFAULT:
            raise BadRecord(
                f"the Avro schema has the field {node.name} without a default, which the rows lack"
            )
        # Made once: it is the same for each record.
        found = default_bytes(node.type, node.default)

        def write(out: bytearray, _value: object) -> None:
            out += found

        return write


def _closest(schema: Schema, node: AvroUnion) -> int:
    """Return the branch of a union that takes a schema."""
    names = (schema.name, (schema.name or "").rpartition(".")[2])
    by_name = [
        at
        for at, each in enumerate(node.branches)
        if isinstance(each, AvroRecord) and schema.kind == "struct" and each.name in names
    ]
    # A union may have several records: the name decides, with its namespace or without.
    for kind in _TAKEN[schema.kind]:
        found = [at for at, each in enumerate(node.branches) if each.kind == kind]
        if found:
            return (by_name or found)[0]
    kinds = ", ".join(each.kind for each in node.branches)
    raise BadRecord(f"a {schema.kind} is none of the Avro types {kinds}")


# ------------------------------------------------------------------------------ single values


def long_bytes(number: int) -> bytes:
    """Return a whole number as Avro writes it: zigzag, 7 bits in a byte, the lowest first."""
    left = (number << 1) ^ -(number < 0)
    if left <= _LAST_SEVEN:
        return bytes((left,))
    found = bytearray()
    while left > _LAST_SEVEN:
        found.append(left & _LAST_SEVEN | _CONTINUES)
        left >>= 7
    found.append(left)
    return bytes(found)


def mapping_of(value: object) -> Mapping[object, object]:
    """Return a value as a mapping; raises BadRecord if it is none."""
    if not isinstance(value, Mapping):
        raise _no("map", value)
    return value


def _listed(value: object) -> list[object] | tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise _no("array", value)
    return value


def counted_writer(write: WriteAvro, of: Callable[[object], Mapping[object, object]]) -> WriteAvro:
    """Return a writer that puts the number of entries before them, and their end behind them."""

    def write_all(out: bytearray, value: object) -> None:
        if found := of(value):
            out += long_bytes(len(found))
            write(out, found)
        out += b"\0"

    return write_all


def blocks_writer(write_item: WriteAvro) -> WriteAvro:
    """Return the writer of arrays: their number of items, the items, and the end."""

    def write(out: bytearray, value: object) -> None:
        if found := _listed(value):
            out += long_bytes(len(found))
            for each in found:
                write_item(out, each)
        out += b"\0"

    return write


def text_map_writer(write_item: WriteAvro) -> WriteAvro:
    """Return the writer of maps whose keys are texts."""

    def write(out: bytearray, value: object) -> None:
        for key, each in mapping_of(value).items():
            write_text(out, key)
            write_item(out, each)

    return counted_writer(write, mapping_of)


def enum_writer(node: AvroEnum) -> WriteAvro:
    """Return the writer of an enum's symbols."""
    symbols = {symbol: long_bytes(at) for at, symbol in enumerate(node.symbols)}

    def write(out: bytearray, value: object) -> None:
        found = symbols.get(value) if isinstance(value, str) else None
        if found is None:
            raise BadRecord(f"{str(value)[:40]!r} is no symbol of the enum {node.name}")
        out += found

    return write


def fixed_writer(node: AvroFixed, *, is_number: bool) -> WriteAvro:
    """Return the writer of bytes of a fixed size; a number is filled up to it."""

    def write(out: bytearray, value: object) -> None:
        found = bytes_of(value)
        if is_number:
            # The digits of a decimal keep their value with the sign in front.
            found = found.rjust(node.size, b"\xff" if found >= b"\x80" else b"\0")
        if len(found) != node.size:
            raise BadRecord(f"{node.name} has {node.size} bytes, not {len(found)}")
        out += found

    return write


def scalar_writer(kind: Kind, avro_kind: str) -> WriteAvro:
    """Return the writer of a scalar kind as one of Avro's types."""
    if kind in INTEGER_BITS:
        write = whole_writer(kind)
        return write if avro_kind in ("int", "long") else floating_writer(kind, avro_kind)
    if kind in ("float32", "float64"):
        return floating_writer(kind, avro_kind)
    return {"boolean": write_boolean, "bytes": write_bytes}.get(kind, write_text)


def whole_writer(kind: Kind) -> WriteAvro:
    """Return the writer of whole numbers in the range of a kind."""
    limit = 1 << INTEGER_BITS[kind] - 1

    def write(out: bytearray, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
            raise _no(kind, value)
        out += long_bytes(value)

    return write


def floating_writer(kind: Kind, avro_kind: str) -> WriteAvro:
    """Return the writer of numbers as Avro's float or double."""
    packed = _FLOAT if avro_kind == "float" else _DOUBLE

    def write(out: bytearray, value: object) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _no(kind, value)
        try:
            out += packed.pack(value)
        except OverflowError:
            raise _no(kind, value) from None

    return write


def write_boolean(out: bytearray, value: object) -> None:
    """Write a boolean."""
    if not isinstance(value, bool):
        raise _no("boolean", value)
    out += b"\1" if value else b"\0"


def write_text(out: bytearray, value: object) -> None:
    """Write a text."""
    if not isinstance(value, str):
        raise _no("string", value)
    try:
        found = value.encode()
    except UnicodeEncodeError:
        raise BadRecord("a text has half a surrogate pair, which UTF-8 can't hold") from None
    out += long_bytes(len(found))
    out += found


def write_bytes(out: bytearray, value: object) -> None:
    """Write bytes."""
    found = bytes_of(value)
    out += long_bytes(len(found))
    out += found


def bytes_of(value: object) -> bytes:
    """Return a value as bytes; raises BadRecord if it is none."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _no("bytes", value)
    return bytes(value)


def _no(kind: str, value: object) -> BadRecord:
    return BadRecord(f"{type(value).__name__} {str(value)[:40]!r} is no {kind}")


# ------------------------------------------------------------------------------ without a schema


def _write_anything(out: bytearray, value: object) -> None:
    """Write a value without a schema: a record whose fields are null, but for one."""
    if value is None:
        out += b"\0" * len(ANY_KINDS)
        return
    kind = kind_of(value)
    if kind is None:
        raise BadRecord(f"{type(value).__name__} has no corresponding schema type")
    at = ANY_KINDS.index(AVRO_KINDS[kind])
    # Branch 1, which is written as 2, is the one that is not null.
    out += b"\0" * at + b"\2"
    try:
        _ANY_WRITERS[kind](out, value)
    # How deep Python can go depends on the calls around this one, so nothing is counted.
    except RecursionError:
        raise BadRecord("a value without a schema is nested too deep") from None
    out += b"\0" * (len(ANY_KINDS) - at - 1)


def _write_any_entries(out: bytearray, value: object) -> None:
    for key, each in mapping_of(value).items():
        _write_anything(out, key)
        _write_anything(out, each)


_ANY_WRITERS: Final[Mapping[Kind, WriteAvro]] = {
    "boolean": write_boolean,
    "bytes": write_bytes,
    "float64": floating_writer("float64", "double"),
    "int64": whole_writer("int64"),
    "string": write_text,
    "array": blocks_writer(_write_anything),
    "map": counted_writer(_write_any_entries, mapping_of),
}


_DEFAULT_KINDS: Final[Mapping[str, Kind]] = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "boolean",
    "string": "string",
}


def default_bytes(node: AvroType, default: object) -> bytes:
    """Return a default, as a schema has it, as the bytes of its type.

    Raises:
        BadRecord: it does not fit its type.
    """
    out = bytearray()
    _write_default(out, node, default)
    return bytes(out)


def _write_default(out: bytearray, node: AvroType, default: object) -> None:
    match node:
        case AvroUnion():
            _write_default_of_union(out, node, default)
        case AvroRecord():
            _write_default_record(out, node, default)
        case AvroArray(items=items):
            blocks_writer(lambda inner, each: _write_default(inner, items, each))(out, default)
        case AvroMap(values=values):
            text_map_writer(lambda inner, each: _write_default(inner, values, each))(out, default)
        case AvroEnum():
            enum_writer(node)(out, default)
        case AvroFixed():
            fixed_writer(node, is_number=False)(out, _latin(default))
        case _:
            _write_default_scalar(out, node, default)


def _write_default_scalar(out: bytearray, node: AvroType, default: object) -> None:
    if node.kind in _DEFAULT_KINDS:
        scalar_writer(_DEFAULT_KINDS[node.kind], node.kind)(out, default)
    elif node.kind == "bytes":
        write_bytes(out, _latin(default))
    elif not is_null(node) or default is not None:
        raise BadRecord(f"the default {str(default)[:40]} is no {node.kind} of Avro")


def _write_default_record(out: bytearray, node: AvroRecord, default: object) -> None:
    given: dict[str, JsonValue] = default if isinstance(default, dict) else {}
    for each in node.fields:
        own = given.get(each.name, each.default)
        if own is NO_DEFAULT:
            raise BadRecord(f"the default of {node.name} lacks the field {each.name}")
        _write_default(out, each.type, own)


def _write_default_of_union(out: bytearray, node: AvroUnion, default: object) -> None:
    # Avro's rule: a default is of the first type; by newer versions, of any of them.
    for at, branch in enumerate(node.branches):
        try:
            found = default_bytes(branch, default)
        except BadRecord:
            continue
        out += long_bytes(at)
        out += found
        return
    raise BadRecord(f"the default {str(default)[:40]} is none of the types of its union")


def _latin(default: object) -> object:
    # A character of the text is a byte.
    return default.encode("latin-1", "replace") if isinstance(default, str) else default
