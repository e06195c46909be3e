"""Schemas of Connect from `.proto` files and back, by what Confluent documents of its converter."""

from __future__ import annotations

from typing import Any

import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.row_schema import Field, Schema
from streamlog.replace import replace
from tests.connect.converters.connect_protobuf.test_protobuf_converter import (
    COLOR,
    ENUM,
    ONEOF,
    OPTIONAL,
    PAID,
    PLAIN,
    TAG,
    TYPE,
    WRAPPERS,
    one,
    read,
    registered,
    written,
)
from tests.connect.converters.random_rows import LOGICAL

PROTO = """
syntax = "proto3";
package shop;
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import "google/type/date.proto";
import "google/protobuf/wrappers.proto";
message Row {
  int32 plain = 1;
  sint32 signed = 2;
  fixed32 wide = 3;
  string text = 4;
  repeated int64 many = 5;
  map<string, bool> unit_flags = 6;
  In first = 7;
  In second = 8;
  Hue hue = 9;
  google.type.Date day = 10;
  google.protobuf.Int64Value wrapped = 11;
  oneof paid { string card = 12; int64 cents = 13; }
  optional bool marked = 14;
  int32 small = 15 [(confluent.field_meta) = {params: [{key: "connect.type", value: "int8"}]}];
  int64 large = 16 [(confluent.field_meta) = {params: [{key: "connect.type", value: "int8"}]}];
  message In { int32 x = 1; }
  enum Hue { NO = 0; RED = 7; }
}
"""


def tagged(schema: Schema, number: int, *, optional: bool) -> Schema:
    parameters = (*schema.parameters, (TAG, str(number)))
    return replace(schema, optional=optional, parameters=parameters)


def expected(*, scalars: bool, marked: bool, wrapped: Schema) -> dict[str, Schema]:
    """Return the schemas of the fields; `scalars` says whether unmarked ones are optional."""
    inner = Schema(
        "struct", name="In", fields=(Field("x", tagged(Schema("int32"), 1, optional=scalars)),)
    )
    hue = ((ENUM, "Hue"), (f"{ENUM}.NO", "0"), (f"{ENUM}.RED", "7"))
    members = (
        Field("card", tagged(Schema("string"), 12, optional=scalars)),
        Field("cents", tagged(Schema("int64"), 13, optional=scalars)),
    )
    flags = Schema(
        "map", name="unit_flags",
        keys=tagged(Schema("string"), 1, optional=scalars),
        items=tagged(Schema("boolean"), 2, optional=scalars),
    )  # fmt: skip
    return {
        "paid_0": Schema("struct", name=f"{ONEOF}.paid", fields=members, optional=True),
        "plain": tagged(Schema("int32"), 1, optional=scalars),
        "signed": tagged(Schema("int32", parameters=((TYPE, "sint32"),)), 2, optional=scalars),
        "wide": tagged(Schema("int64", parameters=((TYPE, "fixed32"),)), 3, optional=scalars),
        "text": tagged(Schema("string"), 4, optional=scalars),
        "many": tagged(Schema("array", items=Schema("int64", optional=True)), 5, optional=True),
        "unit_flags": tagged(flags, 6, optional=True),
        "first": tagged(inner, 7, optional=True),
        "second": tagged(inner, 8, optional=True),
        "hue": tagged(Schema("string", name="Hue", parameters=hue), 9, optional=True),
        "day": tagged(LOGICAL[2], 10, optional=True),
        "wrapped": tagged(wrapped, 11, optional=True),
        "marked": tagged(Schema("boolean"), 14, optional=marked),
        "small": tagged(Schema("int8"), 15, optional=scalars),
        "large": tagged(Schema("int64"), 16, optional=scalars),
    }


def struct_of_wrapper(*, optional: bool) -> Schema:
    value = Field("value", tagged(Schema("int64"), 1, optional=optional))
    return Schema("struct", name="Int64Value", fields=(value,))


@pytest.mark.parametrize(
    ("format_", "want"),
    [
        (PLAIN, expected(scalars=True, marked=True, wrapped=struct_of_wrapper(optional=True))),
        (OPTIONAL, expected(scalars=False, marked=True, wrapped=struct_of_wrapper(optional=False))),
        (WRAPPERS, expected(scalars=False, marked=False, wrapped=Schema("int64"))),
    ],
    ids=["plain", "optional", "wrappers"],
)  # fmt: skip
def test_the_fields_of_a_message_have_the_schemas_of_the_documentation(
    format_: Any, want: dict[str, Schema]
) -> None:
    schema = read(PROTO, b"\0", format_).schema
    assert {each.name: each.schema for each in schema.fields} == want
    assert [each.name for each in schema.fields] == [*want]
    assert (schema.name, schema.optional) == ("Row", False)


def test_fields_of_proto2_are_null_by_default() -> None:
    text = (
        'syntax = "proto2"; message T { optional int32 a = 1 [default = 4]; required int32 b = 2; }'
    )
    assert read(text, b"\0\x10\x05").value == {"a": None, "b": 5}


@pytest.mark.parametrize(
    ("noted", "scale", "precision"),
    [
        ('= {params: [{key: "scale", value: "3"}]}', "3", None),
        ('= {params: [{key: "precision", value: "007"}, {key: "scale", value: "-2"}]}', "-2", "7"),
        ('= {params: [{key: "scale", value: "x"}, {key: "precision", value: ""}]}', "0", None),
        ('.params = {key: "scale", value: "1"}', "1", None), ('.doc = "scale"', "0", None),
        ("= {}", "0", None), ("= {unknown: 1}", "0", None),
    ],
)  # fmt: skip
def test_a_decimal_has_the_scale_of_its_option(
    noted: str, scale: str, precision: str | None
) -> None:
    text = (
        'syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto"; '
        f"message T {{ confluent.type.Decimal f = 1 [(confluent.field_meta){noted}]; }}"
    )
    schema = read(text, b"\0").schema.fields[0].schema
    assert schema.parameter("scale") == scale
    assert schema.parameter("connect.decimal.precision") == precision


def lines(schema: Schema, format_: Any = PLAIN) -> list[str]:
    text: str = format_.described(schema)[0].text
    return [each.strip() for each in text.splitlines()]


def struct(*fields: Field, name: str = "T") -> Schema:
    return Schema("struct", name=name, fields=fields)


@pytest.mark.parametrize(
    ("name", "prefix"), [("shop.google.T", "."), ("google.shop.T", ""), ("a.b.google.T", ".")]
)
def test_a_package_may_be_named_as_that_of_an_import(name: str, prefix: str) -> None:
    schema = struct(Field("f", LOGICAL[2]), name=name)
    assert f"{prefix}google.type.Date f = 1;" in lines(schema)


def test_members_of_a_oneof_are_never_optional() -> None:
    members = (Field("a", Schema("int32", optional=True)), Field("b", Schema("string")))
    found = lines(struct(Field("f", replace(PAID, fields=members))), OPTIONAL)
    assert found[found.index("oneof paid {") + 1 :][:2] == ["int32 a = 1;", "string b = 2;"]


def test_structs_without_names_are_counted_with_the_maps() -> None:
    fields = (
        Field("m", Schema("map", items=Schema("int32"))), Field("a", Schema("struct")),
        Field("named", Schema("map", name="Own", items=Schema("int32"))),
        Field("b", struct(Field("x", Schema("int32")), name="")),
    )  # fmt: skip
    found = lines(struct(*fields))
    assert "ConnectDefault2 a = 2;" in found
    assert "ConnectDefault3 b = 4;" in found


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        (Schema("int32", parameters=((TYPE, "sfixed32"),)), "sfixed32"),
        (Schema("int32", parameters=((TYPE, "string"),)), "int32"),
        (Schema("int64", parameters=((TYPE, "nonsense64"),)), "int64"),
        (Schema("int64", parameters=((TYPE, "bool"),)), "int64"),
    ],
)  # fmt: skip
def test_a_number_has_the_type_of_its_parameter_if_that_is_a_number(
    schema: Schema, word: str
) -> None:
    assert f"{word} f = 1;" in lines(one(schema))


def test_an_enum_with_two_names_for_a_number_says_so() -> None:
    assert "option allow_alias = true;" not in lines(one(COLOR))
    both = replace(COLOR, parameters=(*COLOR.parameters, (f"{ENUM}.ROSE", "1")))
    found = lines(one(both))
    assert "option allow_alias = true;" in found
    assert {"NO = 0;", "RED = 1;", "ROSE = 1;"} <= {*found}
    text, data = written(one(both), {"f": "ROSE"})
    assert read(text, data).value == {"f": "RED"}


def test_a_type_is_one_whatever_its_fields_say_of_it() -> None:
    inner = struct(Field("x", Schema("int32")), name="In")
    fields = (
        Field("a", replace(inner, parameters=((TAG, "4"),))),
        Field("b", replace(inner, parameters=((TAG, "2"),), optional=True, doc="it", version=3)),
    )
    found = lines(struct(*fields))
    assert {"In a = 4;", "In b = 2;"} <= {*found}
    assert found.count("message In {") == 1
    for changed in (replace(inner, fields=()), replace(inner, parameters=(("p", "1"),))):
        with pytest.raises(BadRecord, match="field b: two types of one message have the name In"):
            lines(struct(fields[0], Field("b", changed)))


def test_numbers_within_a_oneof_are_taken() -> None:
    members = (Field("x", Schema("int32", parameters=((TAG, "1"),))), Field("y", Schema("int32")))
    fields = (Field("a", Schema("int32")), Field("o", replace(PAID, fields=members)))
    found = lines(struct(*fields, Field("b", Schema("int32", parameters=((TAG, "3"),)))))
    assert {"int32 a = 2;", "int32 x = 1;", "int32 y = 4;", "int32 b = 3;"} <= {*found}


def test_a_decimal_is_noted_with_its_digits() -> None:
    found = " ".join(lines(struct(Field("a", LOGICAL[1]), Field("b", LOGICAL[0]))))
    a, _, b = found.partition(" a = 1 ")[2].partition(" b = 2 ")
    assert '"precision" , value : "9"' in a
    assert '"scale" , value : "0"' in a
    assert "precision" not in b
    assert '"scale" , value : "2"' in b
    own = lines(one(Schema("string", logical="Decimal")))
    assert "string f = 1;" in own
    assert "bytes f = 1;" in lines(one(Schema("bytes", parameters=(("scale", "2"),))))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (PAID, "stands alone"), (one(replace(PAID, fields=())), "field f: a oneof has no fields"),
        (one(replace(PAID, fields=(Field("l", Schema("array")),))), "a oneof has a list or a map"),
        (one(replace(PAID, fields=(Field("m", Schema("map")),))), "a oneof has a list or a map"),
        (one(Schema("array", items=PAID)), "a oneof in a list or map"),
        (one(Schema("map", items=PAID)), "a oneof in a list or map"),
        (one(Schema("map", items=Schema("map"))), "an map in a list or map"),
        (one(replace(COLOR, parameters=((ENUM, "E"), (f"{ENUM}.A", "x")))), "is a number, not 'x'"),
        (one(Schema("int32", parameters=((TAG, "-x"),))), "is a number, not '-x'"),
    ],
)  # fmt: skip
def test_what_protobuf_has_no_place_for_is_refused(schema: Schema, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        PLAIN.described(schema)


@pytest.mark.parametrize(("nanos", "micros"), [(0, 0), (999_999_999, 999_000), (1_000_000, 1_000)])
def test_a_timestamp_has_milliseconds(nanos: int, micros: int) -> None:
    assert stamp(nanos).value["f"].microsecond == micros


@pytest.mark.parametrize("nanos", [1_000_000_000, -1, -(2**31)])
def test_nanoseconds_are_those_of_a_second(nanos: int) -> None:
    with pytest.raises(BadRecord, match=f"a Timestamp has {nanos} ns beside its seconds"):
        stamp(nanos)


def stamp(nanos: int) -> Any:
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        "message T { google.protobuf.Timestamp f = 1; }"
    )
    left, inner = nanos % 2**64, b"\x10"
    while left > 127:
        inner, left = inner + bytes((left & 127 | 128,)), left >> 7
    inner += bytes((left,))
    return PLAIN.reader(registered(text))(b"\0\x0a" + bytes((len(inner),)) + inner, 0)
