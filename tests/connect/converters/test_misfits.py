"""What no type of Connect takes: every converter refuses it as a bad record, and nothing else.

Which value fits which schema stands in `is_value` and `is_json` by Connect's own definition of its
types. What fits comes back; what does not is a BadRecord, never a number cut short, a text made of
something else, or an error of Python's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.connector_settings import read_settings
from streamlog.connect.converters import JsonConverter
from streamlog.connect.converters.connect_avro.avro_converter import AvroConverter
from streamlog.connect.converters.connect_json_schema.json_schema_converter import (
    JsonSchemaConverter,
)
from streamlog.connect.converters.connect_protobuf.protobuf_converter import ProtobufConverter
from streamlog.connect.converters.json_schemas import schema_to_json
from streamlog.connect.row_schema import Field, Schema
from streamlog.serdes.registered.schema_source import RegisteredSchema

BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
FLOATS: Final = ("float32", "float64")
DECIMAL: Final = Schema("bytes", logical="Decimal", parameters=(("scale", "2"),))
DATE, TIME = Schema("int32", logical="Date"), Schema("int32", logical="Time")
TIMESTAMP, LOCAL = Schema("int64", logical="Timestamp"), Schema("int64", logical="LocalTimestamp")
DURATION, FREE = Schema("int64", logical="Duration"), Schema("string", logical="Decimal")
OWN: Final = (LOCAL, DURATION, FREE)
SCHEMAS: Final = (
    *map(Schema, (*BITS, *FLOATS, "boolean", "string", "bytes")),  # type: ignore[arg-type]
    *(DECIMAL, DATE, TIME, TIMESTAMP, LOCAL, DURATION, FREE),
    Schema("array", items=Schema("int32")),
    Schema("map", keys=Schema("string"), items=Schema("int32")),
    Schema("struct", name="shop.In", fields=(Field("a", Schema("int32")),)),
)
AT: Final = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
VALUES: Final = (
    *(
        None,
        True,
        False,
        0,
        5,
        -128,
        127,
        128,
        -129,
        32_767,
        32_768,
        2**31 - 1,
        2**31,
        -(2**31) - 1,
    ),
    *(2**63 - 1, 2**63, -(2**63) - 1, 0.25, math.inf, "x", "", b"\xff", bytearray(b"a")),
    *(memoryview(b"b"), Decimal("1.50"), Decimal("-0.01"), Decimal("1.5"), Decimal("NaN")),
    *(Decimal("Infinity"), date(2026, 1, 2), time(1, 2, 3), AT, AT.replace(tzinfo=None)),
    *(timedelta(1), [1], (1, 2), ["x"], {"a": 1}, {"a": "x"}, {}, [], {"b": 1}, {1, 2}, object()),
)


def is_value(  # noqa: C901, PLR0911, PLR0912 - a case for each type
    schema: Schema, value: Any
) -> bool | None:
    """Return whether a value is one of a schema; None: it may be, and need not come back."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    match schema:
        case Schema(logical="Decimal", kind="bytes"):
            return isinstance(value, Decimal) and value.as_tuple().exponent == -2
        case Schema(logical="Decimal"):
            return isinstance(value, Decimal) and value.is_finite()
        case Schema(logical="Date"):
            return type(value) is date
        case Schema(logical="Time"):
            return isinstance(value, time)
        case Schema(logical="Timestamp"):
            # Java has one class for all of them.
            return None if isinstance(value, date | time) else False
        case Schema(logical="LocalTimestamp"):
            is_one = isinstance(value, datetime)
            return (None if value.tzinfo else True) if is_one else _is_whole(value, 64) and None
        case Schema(logical="Duration"):
            return isinstance(value, timedelta) or (_is_whole(value, 64) and None)
        case Schema(kind="array"):
            return isinstance(value, list | tuple) and all(_is_whole(each, 32) for each in value)
        case Schema(kind="map"):
            return isinstance(value, dict) and all(_is_whole(each, 32) for each in value.values())
        case Schema(kind="struct"):
            return isinstance(value, dict) and _is_whole(value.get("a"), 32)
        case Schema(kind="boolean"):
            return isinstance(value, bool)
        case Schema(kind="string"):
            return isinstance(value, str)
        case Schema(kind="bytes"):
            return isinstance(value, bytes | bytearray | memoryview)
        case Schema(kind=kind) if kind in FLOATS:
            # Whole numbers above 2**24 are rounded, as everywhere.
            return isinstance(value, float) or (is_number and (abs(value) < 2**16 or None))
    return _is_whole(value, BITS[schema.kind])


def _is_whole(value: Any, bits: int) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and -(1 << bits - 1) <= value < 1 << bits - 1


Convert = Callable[[Any], Any]
"""Writes a value and reads it again."""


def json_converter(schema: Schema, decimal_format: Any = "BASE64") -> Convert:
    converter = JsonConverter(decimal_format=decimal_format)
    return lambda value: converter.decode(converter.encode(schema, value)).value


def numeric_json_converter(schema: Schema) -> Convert:
    return json_converter(schema, "NUMERIC")


def of_registry(made: type[Any], schema: Schema) -> Convert:
    found = read_settings(made, {"schema.registry.url": "http://none"}).format()
    row = Schema("struct", name="shop.Row", fields=(Field("f", schema),))
    registered = RegisteredSchema(1, None, found.described(row)[0])
    write, read = found.writer(row, registered), found.reader(registered)
    return lambda value: read(write({"f": value}), 0).value["f"]


CONVERTERS: Final[dict[str, Callable[[Schema], Convert]]] = {
    "JsonConverter": json_converter,
    "JsonConverter with numbers": numeric_json_converter,
    "AvroConverter": partial(of_registry, AvroConverter),
    "JsonSchemaConverter": partial(of_registry, JsonSchemaConverter),
    "ProtobufConverter": partial(of_registry, ProtobufConverter),
}
WITHOUT_NULL: Final = ("JsonSchemaConverter", "ProtobufConverter")
"""What is required and null is left out there, as in Java."""
WITH_ANY_SCALE: Final = ("JsonConverter with numbers", "ProtobufConverter")


def expectation(name: str, schema: Schema, value: Any) -> bool | None:
    """Return whether a value comes back from a converter; None: it may be refused or another."""
    is_decimal = isinstance(value, Decimal) and value.is_finite()
    if schema is DECIMAL and is_decimal and name in WITH_ANY_SCALE:
        return True
    if name in WITHOUT_NULL and (value is None or (isinstance(value, dict) and "a" not in value)):
        return None
    fits = is_value(schema, value)
    # To Protobuf our own logical types are plain texts and numbers.
    return None if fits and name == "ProtobufConverter" and schema in OWN else fits


def normal(value: Any) -> Any:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.logical or schema.kind)
@pytest.mark.parametrize("name", CONVERTERS)
def test_a_value_comes_back_or_is_refused(name: str, schema: Schema) -> None:
    convert = CONVERTERS[name](schema)
    for value in VALUES:
        expected = expectation(name, schema, value)
        if expected is False:
            with pytest.raises(BadRecord):
                convert(value)
        elif expected:
            assert normal(convert(value)) == normal(value), value


# ------------------------------------------------------------------------------ JSON

TEXTS: Final = (
    *("null", "true", "0", "5", "-1", "86399999", "86400000", "4294967296", "1.5", "1e400"),
    *('"x"', '"AA=="', '"A A=="', '"é"', '""', '"NaN"', '"-Infinity"', "[1]", "[[1,2]]", "[]"),
    *('{"a":1}', '{"a":"x"}', '{"b":1}', "{}", '["x"]', "[[1,2,3]]", '[{"a":1}]', "99999999999999"),
)
ENTRIES: Final = Schema("map", keys=Schema("int32"), items=Schema("int32"))
KEYS: Final = Schema("map", keys=Schema("array", items=Schema("int32")), items=Schema("int32"))


def is_json(  # noqa: C901, PLR0911, PLR0912 - a case for each type
    schema: Schema, found: Any
) -> bool:
    """Return whether parsed JSON is a payload of a schema."""
    is_whole = isinstance(found, int) and not isinstance(found, bool)
    match schema:
        case Schema(logical="Decimal", kind="bytes"):
            return is_whole or isinstance(found, float) or _is_base64(found)
        case Schema(logical="Decimal"):
            return False
        case Schema(logical="Time"):
            return is_whole and 0 <= found % 2**32 < 86_400_000
        case Schema(logical="Date"):
            # Too large a number keeps its low bits, as in Java; years end in 9999.
            return is_whole and found % 2**32 in (0, 5, 2**32 - 1)
        case Schema(logical="Timestamp"):
            return is_whole
        case Schema(kind="array"):
            return isinstance(found, list) and all(isinstance(each, int) for each in found)
        case Schema(kind="map") if schema is KEYS:
            return found == []
        case Schema(kind="map") if schema is ENTRIES:
            return found in ([[1, 2]], [])
        case Schema(kind="map"):
            return isinstance(found, dict) and "x" not in found.values()
        case Schema(kind="struct"):
            return found == {"a": 1}
        case Schema(kind="boolean" | "string" as kind):
            return isinstance(found, bool if kind == "boolean" else str)
        case Schema(kind="bytes"):
            return _is_base64(found)
        case Schema(kind=kind) if kind in FLOATS:
            return is_whole or isinstance(found, float) or found in ("NaN", "-Infinity")
    return is_whole


def _is_base64(found: Any) -> bool:
    return isinstance(found, str) and found in ("AA==", "")


@pytest.mark.parametrize(
    "schema", [*SCHEMAS, ENTRIES, KEYS], ids=lambda schema: schema.logical or schema.kind
)
def test_json_that_is_no_payload_of_its_schema_is_refused(schema: Schema) -> None:
    described = json.dumps(schema_to_json(schema))
    for text in TEXTS:
        data = f'{{"schema":{described},"payload":{text}}}'.encode()
        if is_json(schema, json.loads(text)):
            assert JsonConverter().decode(data).schema == schema
        else:
            with pytest.raises(BadRecord):
                JsonConverter().decode(data)
