"""Schemas as Confluent's AvroConverter writes them, by the rules of its AvroData."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import AvroForm, scrub
from streamlog.connect.converters.connect_avro.avro_converter import AvroConverter, AvroFormat
from streamlog.connect.converters.connect_avro.schemas_from_avro import schema_from_avro
from streamlog.connect.converters.connect_avro.schemas_to_avro import avro_of
from streamlog.connect.row_schema import Field, Schema
from streamlog.replace import replace
from streamlog.schemas import AvroSchema, SchemaType, parse_schema
from streamlog.schemas import Schema as RegistrySchema
from streamlog.serdes.registered.schema_source import RegisteredSchema

DATA = "org.apache.kafka.connect.data."
DECIMAL = Schema(
    "bytes",
    logical="Decimal",
    parameters=(("scale", "2"), ("connect.decimal.precision", "64")),
)
AVRO_DECIMAL = {
    "type": "bytes", "scale": 2, "precision": 64, "connect.version": 1,
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "64"},
    "connect.name": f"{DATA}Decimal", "logicalType": "decimal",
}  # fmt: skip
PARAMETERS = (
    ("io.confluent.connect.avro.enum.doc.Hue", "its hue"),
    ("io.confluent.connect.avro.Enum", "shop.Hue"),
    ("io.confluent.connect.avro.Enum.RED", "RED"),
    ("io.confluent.connect.avro.Enum.BLUE", "BLUE"),
)
HUE = Schema("string", name="shop.Hue", parameters=PARAMETERS)


def node(schema: Schema, **form: bool) -> Any:
    return avro_of(schema, AvroForm(**form))


def connect(written: Any, **form: bool) -> Schema | None:
    parsed = parse_schema(RegistrySchema(SchemaType.AVRO, json.dumps(written)), is_new=False)
    assert isinstance(parsed, AvroSchema)
    return schema_from_avro(parsed.root, AvroForm(**form))


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        (Schema("boolean"), "boolean"),
        (Schema("int8"), {"type": "int", "connect.type": "int8"}),
        (Schema("int16"), {"type": "int", "connect.type": "int16"}),
        (Schema("int32", optional=True), ["null", "int"]),
        (Schema("int8", optional=True), ["null", {"type": "int", "connect.type": "int8"}]),
        (Schema("float32"), "float"),
        (Schema("float64"), "double"),
        (Schema("bytes"), "bytes"),
        (
            Schema("int32", doc="doc", version=12, name="s", parameters=(("foo", "bar"),)),
            {
                "type": "int", "connect.doc": "doc", "connect.version": 12,
                "connect.parameters": {"foo": "bar"}, "connect.name": "s",
            },
        ),
        (DECIMAL, AVRO_DECIMAL),
        (
            Schema("int32", logical="Date"),
            {
                "type": "int", "connect.version": 1, "connect.name": f"{DATA}Date",
                "logicalType": "date",
            },
        ),
        (
            Schema("int32", logical="Time", optional=True),
            ["null", {
                "type": "int", "connect.version": 1, "connect.name": f"{DATA}Time",
                "logicalType": "time-millis",
            }],
        ),
        (
            Schema("int64", logical="Timestamp"),
            {
                "type": "long", "connect.version": 1, "connect.name": f"{DATA}Timestamp",
                "logicalType": "timestamp-millis",
            },
        ),
        (Schema("array", items=Schema("int8")), {
            "type": "array", "items": {"type": "int", "connect.type": "int8"},
        }),
        (Schema("map", keys=Schema("string"), items=Schema("int32")), {
            "type": "map", "values": "int",
        }),
        (
            Schema("map", keys=Schema("int32"), items=Schema("int32")),
            {"type": "array", "items": {
                "type": "record", "name": "MapEntry", "namespace": "io.confluent.connect.avro",
                "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "int"}],
            }},
        ),
        (
            Schema("map", keys=Schema("int32"), items=Schema("int32"), name="foo.bar"),
            {
                "type": "array", "items": {
                    "type": "record", "name": "bar", "namespace": "foo",
                    "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "int"}],
                    "connect.internal.type": "MapEntry",
                },
                "connect.name": "foo.bar",
            },
        ),
        (
            Schema("struct", name="org.a.Foo", version=1, fields=(
                Field("int8", Schema("int8"), 2),
                Field("text", Schema("string", optional=True)),
                Field("kept", Schema("string", optional=True), "x"),
                Field("inner", Schema("struct", name="org.a.In", optional=True)),
                Field("again", Schema("struct", name="org.a.In")),
            )),
            {
                "type": "record", "name": "Foo", "namespace": "org.a", "fields": [
                    {"name": "int8", "type": {
                        "type": "int", "connect.default": 2, "connect.type": "int8",
                    }, "default": 2},
                    {"name": "text", "type": ["null", "string"], "default": None},
                    {"name": "kept", "type": [
                        {"type": "string", "connect.default": "x"}, "null",
                    ], "default": "x"},
                    {"name": "inner", "type": ["null", {
                        "type": "record", "name": "In", "fields": [], "connect.name": "org.a.In",
                    }], "default": None},
                    {"name": "again", "type": "In"},
                ],
                "connect.version": 1, "connect.name": "org.a.Foo",
            },
        ),
    ],
)  # fmt: skip
def test_schemas_of_connect_are_written_as_in_java(schema: Schema, written: object) -> None:
    # In this order: a registry knows a schema by its text.
    assert json.dumps(node(schema)) == json.dumps(written)
    assert connect(written) is not None


def test_a_struct_without_a_name_has_javas() -> None:
    found = node(Schema("struct", fields=(Field("a", Schema("struct")),)))
    assert (found["name"], found["namespace"]) == ("ConnectDefault", "io.confluent.connect.avro")
    assert found["fields"][0]["type"]["name"] == "ConnectDefault2"
    back = connect(found)
    assert back is not None
    assert back.name is back.fields[0].schema.name is None


def test_an_enum_is_a_text_that_remembers_its_symbols() -> None:
    enum = {
        "type": "enum", "name": "Hue", "namespace": "shop", "doc": "its hue",
        "symbols": ["RED", "BLUE"],
    }  # fmt: skip
    assert connect(enum) == HUE
    assert node(HUE)["type"] == "string"
    enhanced = node(HUE, is_enhanced=True)
    assert {key: enhanced[key] for key in enum} == enum
    assert connect(enhanced, is_enhanced=True) == HUE


def test_meta_data_may_be_left_out() -> None:
    schema = Schema("struct", name="a.B", doc="d", version=2, fields=(Field("x", DECIMAL),))
    assert node(schema, has_meta_data=False) == {
        "type": "record", "name": "B", "namespace": "a", "fields": [
            {"name": "x", "type": {
                "type": "bytes", "scale": 2, "precision": 64, "logicalType": "decimal",
            }},
        ],
    }  # fmt: skip


def test_documentation_of_avro_is_kept() -> None:
    written = {
        "type": "record", "name": "B", "namespace": "a", "doc": "of all", "fields": [
            {"name": "x", "type": "int", "doc": "of x", "default": 7},
        ],
    }  # fmt: skip
    schema = connect(written)
    assert schema is not None
    assert schema.parameter("io.confluent.connect.avro.record.doc") == "of all"
    assert schema.parameter("io.confluent.connect.avro.field.doc.x") == "of x"
    assert schema.fields[0].default == 7
    again = node(schema)
    assert {key: again[key] for key in ("type", "name", "namespace", "doc", "fields")} == written


def test_a_decimal_may_be_fixed() -> None:
    fixed = {
        "type": "fixed",
        "name": "D",
        "size": 4,
        "logicalType": "decimal",
        "scale": 1,
        "precision": 9,
    }
    schema = connect(fixed)
    assert schema is not None
    assert (schema.logical, schema.name) == ("Decimal", None)
    assert dict(schema.parameters) == {
        "scale": "1", "connect.decimal.precision": "9", "connect.fixed.size": "4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "scrubbed"),
    [
        ("plain", "plain"), ("a name", "a_name"), ("1a", "x1a"), ("a-b", "a_b"), ("é", "_C3_A9"),
        ("", ""), ("a.b", "a_b"), ("$x", "_24x"), ("a+b", "a_2Bb"),
    ],
)  # fmt: skip
def test_names_are_scrubbed_as_in_java(name: str, scrubbed: str) -> None:
    assert scrub(name) == scrubbed


def test_names_that_avro_refuses_are_refused_unless_they_are_scrubbed() -> None:
    schema = Schema("struct", name="my-shop.Row", fields=(Field("a b", Schema("int32")),))
    with pytest.raises(BadRecord, match=r"scrub\.invalid\.names"):
        AvroFormat(AvroForm()).described(schema)
    scrubs = AvroFormat(AvroForm(scrubs_names=True))
    described, name = scrubs.described(schema)
    assert name == "my_shop.Row"
    assert json.loads(described.text)["fields"][0]["name"] == "a_b"


def test_values_without_a_schema_have_the_schema_of_anything() -> None:
    assert connect(avro_of(None, AvroForm())) is None


def test_a_union_remembers_that_null_was_its_default() -> None:
    field = {"name": "u", "type": ["null", "int", "string"], "default": None}
    written = {"type": "record", "name": "shop.Row", "fields": [field]}
    schema = connect(written)
    assert schema is not None
    mark = (("io.confluent.connect.avro.field.default", "true"),)
    assert schema.fields[0].schema.parameters == mark
    assert node(schema)["fields"] == [field]


def test_a_decimal_without_a_scale_has_none_behind_the_point() -> None:
    schema = connect({"type": "bytes", "logicalType": "decimal", "precision": 4})
    assert schema is not None
    assert schema.parameter("scale") == "0"
    with pytest.raises(BadRecord, match="scale of a decimal"):
        connect({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": "2"})


@pytest.mark.parametrize(
    ("version", "kept"), [(3, 3), (True, None), ("3", None), (2.5, None), (None, None)]
)
def test_a_version_is_a_number(version: object, kept: int | None) -> None:
    schema = connect({"type": "int", "connect.version": version})
    assert schema is not None
    assert schema.version == kept
    date = connect({"type": "int", "logicalType": "date", "connect.version": version})
    assert date is not None
    assert date.version is None


def test_defaults_of_connect_are_not_taken_for_avros_own() -> None:
    mark = "io.confluent.connect.avro.field.default"
    own = {"type": "int", "connect.default": 7}
    fields = [
        {"name": "connects", "type": own, "default": 7},
        {"name": "avros", "type": "int", "default": 7},
        {"name": "alone", "type": own},
    ]  # fmt: skip
    schema = connect({"type": "record", "name": "R", "fields": fields})
    assert schema is not None
    assert [each.default for each in schema.fields] == [7, 7, 7]
    assert [each.schema.parameter(mark) for each in schema.fields] == [None, "true", None]


def test_parameters_of_others_are_kept_only_with_meta_data() -> None:
    written = {"type": "string", "connect.parameters": {"a": "1"}, "avro.java.string": "String"}
    for has_meta_data, kept in ((True, {"a": "1"}), (False, {})):
        schema = connect(written, has_meta_data=has_meta_data)
        assert schema is not None
        assert dict(schema.parameters) == {**kept, "avro.java.string": "String"}
        again = node(schema, has_meta_data=has_meta_data)
        assert again["avro.java.string"] == "String"
        assert "connect.parameters" not in again or has_meta_data


def test_bytes_in_the_default_of_a_struct_are_base64() -> None:
    inner = {
        "type": "record", "name": "In", "fields": [
            {"name": "b", "type": "bytes"},
            {"name": "l", "type": {"type": "array", "items": "bytes"}},
            {"name": "m", "type": {"type": "map", "values": "bytes"}},
        ],
    }  # fmt: skip
    default = {"b": "\u00ff", "l": ["a"], "m": {"k": "b"}, "other": 1}
    written = {
        "type": "record", "name": "R", "fields": [{"name": "f", "type": inner, "default": default}],
    }  # fmt: skip
    schema = connect(written)
    assert schema is not None
    assert schema.fields[0].default == {"b": "/w==", "l": ["YQ=="], "m": {"k": "Yg=="}, "other": 1}
    assert node(schema)["fields"][0]["default"] == default


def test_two_types_of_a_union_may_not_have_one_name_in_connect() -> None:
    records = [{"type": "record", "name": f"{space}.R", "fields": []} for space in "ab"]
    with pytest.raises(BadRecord, match="the same name in Connect"):
        connect(records)
    enhanced = connect(records, is_enhanced=True)
    assert enhanced is not None
    assert [each.name for each in enhanced.fields] == ["a.R", "b.R"]


def test_members_of_unions_have_the_names_of_connect() -> None:
    record = {"type": "record", "name": "my_shop.R", "connect.name": "my-shop.R", "fields": []}
    for scrubs, name in ((True, "my_shop.R"), (False, "my-shop.R")):
        schema = connect(["int", record], is_enhanced=True, scrubs_names=scrubs)
        assert schema is not None
        assert [each.name for each in schema.fields] == ["int", name]


def test_an_entry_of_a_map_has_a_key_and_a_value() -> None:
    entry = {
        "type": "record", "name": "io.confluent.connect.avro.MapEntry",
        "fields": [{"name": "key", "type": "int"}],
    }  # fmt: skip
    with pytest.raises(BadRecord, match="other fields than key and value"):
        connect({"type": "array", "items": entry})


def test_without_settings_a_converter_does_what_confluents_does() -> None:
    plain = AvroConverter(schema_registry_url="http://none").format()
    keys = Schema("string", optional=True)
    entries = Schema("map", keys=keys, items=Schema("int32"), name="shop.Entry")
    for form in (plain, AvroFormat(AvroForm())):
        # Optional keys need entries, names with other characters are refused, enums are texts.
        described, name = form.described(entries)
        assert json.loads(described.text)["type"] == "array"
        assert name is None
        assert json.loads(form.described(HUE)[0].text)["type"] == "string"
        with pytest.raises(BadRecord, match="is not a name"):
            form.described(Schema("struct", name="a-b"))
    row = Schema("struct", name="R", fields=(Field("a", Schema("int32", optional=True), 5),))
    found = RegisteredSchema(1, None, plain.described(row)[0])
    assert plain.writer(row, found)({"a": None}) == b"\0\x0a"
    allowing = AvroConverter(schema_registry_url="http://none", allow_optional_map_keys=True)
    described, _ = allowing.format().described(entries)
    assert json.loads(described.text)["type"] == "map"


def test_a_subject_is_named_by_the_record_whether_it_is_optional_or_not() -> None:
    form = AvroFormat(AvroForm(scrubs_names=True))
    row = Schema("struct", name="my-shop.R", optional=True)
    assert form.described(replace(row, optional=False))[1] == "my_shop.R"
    assert form.described(row)[1] == "my-shop.R"
    assert form.described(Schema("int32", name="shop.Number"))[1] is None
    assert form.described(None)[1] == "io.confluent.connect.avro.Anything"


def test_a_null_that_is_required_has_bytes_or_is_refused() -> None:
    form = AvroFormat(AvroForm())
    assert form.is_tombstone(None)
    assert form.is_tombstone(Schema("string", optional=True))
    assert not form.is_tombstone(Schema("string"))


def test_a_registered_schema_may_have_a_default_that_does_not_fit() -> None:
    # Confluent's registry has taken such schemas, and their topics are there.
    text = (
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]}'
    )
    found = RegisteredSchema(1, None, RegistrySchema(SchemaType.AVRO, text))
    assert AvroFormat(AvroForm()).reader(found)(b"\x02", 0).value == {"a": 1}


def test_a_schema_of_another_format_is_refused() -> None:
    found = RegisteredSchema(1, None, RegistrySchema(SchemaType.JSON, '{"type": "string"}'))
    with pytest.raises(BadRecord, match="AvroConverter reads Avro alone"):
        AvroFormat(AvroForm()).reader(found)


def test_an_entry_of_a_map_is_defined_once() -> None:
    entries = Schema("map", keys=Schema("int32"), items=Schema("int32"))
    for name, full in ((None, "io.confluent.connect.avro.MapEntry"), ("shop.E", "shop.E")):
        named = replace(entries, name=name)
        fields = (Field("a", named), Field("b", named))
        found = node(Schema("struct", name="R", fields=fields))["fields"][1]["type"]
        assert (found["items"], found["type"]) == (full, "array")
        other = Field("b", replace(named, items=Schema("string")))
        with pytest.raises(BadRecord, match=f"two different schemas have the name {full}"):
            node(Schema("struct", name="R", fields=(fields[0], other)))


def test_an_enum_keeps_its_default() -> None:
    enum = {"type": "enum", "name": "Hue", "symbols": ["RED", "BLUE"], "default": "BLUE"}
    schema = connect(enum)
    assert schema is not None
    assert schema.parameter("io.confluent.connect.avro.enum.default.Hue") == "BLUE"
    again = node(schema, is_enhanced=True)
    assert {key: again[key] for key in enum} == enum


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (Schema("bytes", name="F", parameters=(("connect.fixed.size", "x"),)), "size is a number"),
        (Schema("bytes", name="F", parameters=(("connect.fixed.size", ""),)), "size is a number"),
        (Schema("bytes", logical="Decimal"), "scale parameter not found"),
        (replace(DECIMAL, parameters=(("scale", "1"), ("connect.decimal.precision", "-1"))),
         "precision is a number, not '-1'"),
    ],
)  # fmt: skip
def test_parameters_that_are_no_numbers_are_refused(schema: Schema, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        node(schema)
