"""Avro defaults: the default of a field in an Avro schema as Avro's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_scalars import (
    blocks_writer,
    enum_writer,
    fixed_writer,
    long_bytes,
    scalar_writer,
    text_map_writer,
    write_bytes,
)
from streamlog.connect.converters.connect_avro.schemas_from_avro import is_null
from streamlog.connect.row_schema import Kind
from streamlog.schemas.avro_schemas.avro_types import (
    NO_DEFAULT,
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroRecord,
    AvroType,
    AvroUnion,
)
from streamlog.serdes.erased_types import JsonValue

_KINDS: Final[Mapping[str, Kind]] = {
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
    _write(out, node, default)
    return bytes(out)


def _write(out: bytearray, node: AvroType, default: object) -> None:
    match node:
        case AvroUnion():
            _write_of_union(out, node, default)
        case AvroRecord():
            _write_record(out, node, default)
        case AvroArray(items=items):
            blocks_writer(lambda inner, each: _write(inner, items, each))(out, default)
        case AvroMap(values=values):
            text_map_writer(lambda inner, each: _write(inner, values, each))(out, default)
        case AvroEnum():
            enum_writer(node)(out, default)
        case AvroFixed():
            fixed_writer(node, is_number=False)(out, _latin(default))
        case _:
            _write_scalar(out, node, default)


def _write_scalar(out: bytearray, node: AvroType, default: object) -> None:
    if node.kind in _KINDS:
        scalar_writer(_KINDS[node.kind], node.kind)(out, default)
    elif node.kind == "bytes":
        write_bytes(out, _latin(default))
    elif not is_null(node) or default is not None:
        raise BadRecord(f"the default {str(default)[:40]} is no {node.kind} of Avro")


def _write_record(out: bytearray, node: AvroRecord, default: object) -> None:
    given: dict[str, JsonValue] = default if isinstance(default, dict) else {}
    for each in node.fields:
        own = given.get(each.name, each.default)
        if own is NO_DEFAULT:
            raise BadRecord(f"the default of {node.name} lacks the field {each.name}")
        _write(out, each.type, own)


def _write_of_union(out: bytearray, node: AvroUnion, default: object) -> None:
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
