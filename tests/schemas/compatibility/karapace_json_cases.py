"""Pairs of JSON Schemas of which karapace's tests say whether the reader reads the writer.

The facts are those of its `test_jsonschema_compatibility.py`, by the names of its schemas.
"""

from __future__ import annotations

from typing import Any

from tests.schemas.compatibility.json_cases import (
    INTEGER,
    NUMBER,
    STRING,
    array,
    mapping,
    number,
    text,
)

DEFAULT_INT = {"type": "integer", "default": 0}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", **mapping(False, **properties)}


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", **mapping(**properties)}


def items(kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": kind}


def sized(kind: str, keyword: str, size: int) -> dict[str, Any]:
    return {"type": kind, keyword: size}


POSITIVE = {"type": "integer", "exclusiveMinimum": 0}
SCHEMAS: dict[str, Any] = {
    "not_empty": {"not": {}},
    "not_true": {"not": True},
    "false": False,
    "true": True,
    "empty": {},
    "boolean": {"type": "boolean"},
    "int": INTEGER,
    "number": NUMBER,
    "string": STRING,
    "object": {"type": "object"},
    "array": array(),
    "pattern": text(pattern="a*"),
    "pattern_strict": text(pattern="a+"),
    "tuple_int_int": array(INTEGER, INTEGER, additionalItems=False),
    "tuple_int": array(INTEGER, additionalItems=False),
    "tuple_int_more": array(INTEGER, additionalItems=INTEGER),
    "tuple_int_int_open": array(INTEGER, INTEGER),
    "tuple_int_open": array(INTEGER),
    "array_int": items(INTEGER),
    "array_number": items(NUMBER),
    "array_string": items(STRING),
    "enum_ab": {"enum": ["A", "B"]},
    "enum_abc": {"enum": ["A", "B", "C"]},
    "enum_bc": {"enum": ["B", "C"]},
    "one_string": {"oneOf": [STRING]},
    "one_string_int": {"oneOf": [STRING, INTEGER]},
    "one_int": {"oneOf": [INTEGER]},
    "one_number": {"oneOf": [NUMBER]},
    "types_string_int": {"type": ["string", "integer"]},
    "types_string": {"type": ["string"]},
    "types_string_null": {"type": ["string", "null"]},
    "types_int_bool": {"type": ["integer", "boolean"]},
    "types_string_null_bool": {"type": ["string", "null", "boolean"]},
    "closed": closed(),
    "a": opened(a={}),
    "a_string": opened(a=STRING),
    "a_string_or_null": opened(a={"type": ["string", "null"]}),
    "a_int_or_bool": opened(a={"type": ["integer", "boolean"]}),
    "a_int": closed(a=INTEGER),
    "a_dint": closed(a=DEFAULT_INT),
    "b_int": closed(b=INTEGER),
    "a_int_open": opened(a=INTEGER),
    "b_dint_open": opened(b=DEFAULT_INT),
    "a_int_b_int": closed(a=INTEGER, b=INTEGER),
    "a_dint_b_int": closed(a=DEFAULT_INT, b=INTEGER),
    "a_int_b_int_required": {**closed(a=INTEGER, b=INTEGER), "required": ["b"]},
    "a_int_b_dint": closed(a=INTEGER, b=DEFAULT_INT),
    "a_int_b_dint_required": {**closed(a=INTEGER, b=DEFAULT_INT), "required": ["b"]},
    "a_dint_b_dint": closed(a=DEFAULT_INT, b=DEFAULT_INT),
    "a_dint_b_num": closed(a=DEFAULT_INT, b=NUMBER),
    "a_dint_b_num_c_dint": closed(a=DEFAULT_INT, b=NUMBER, c=DEFAULT_INT),
    "b_num_c_dint_open": opened(b=NUMBER, c=DEFAULT_INT),
    "b_num_c_int": closed(b=NUMBER, c=INTEGER),
    "patterns": {"type": "object", "patternProperties": {"^a*": {}}},
    "names": {"type": "object", "propertyNames": {"pattern": "a*"}},
    "positive": items(POSITIVE),
    "positive_by_ref": {**items({"$ref": "#/$defs/p"}), "$defs": {"p": POSITIVE}},
    "one_array_a_dint_b_num": {"oneOf": [items(closed(a=DEFAULT_INT, b=NUMBER))]},
    "one_array_b_num_c_int": {"oneOf": [items(closed(b=NUMBER, c=INTEGER))]},
    "one_array_b_num_c_dint_open": {"oneOf": [items(opened(b=NUMBER, c=DEFAULT_INT))]},
    "unique": array(uniqueItems=True),
    "unique_false": array(uniqueItems=False),
    "multiple": number(multipleOf=5),
    "multiple_narrowed": number(multipleOf=10),
}
for _kind, _keyword, _low, _high in (
    ("string", "maxLength", 2, 3),
    ("string", "minLength", 5, 7),
    ("number", "maximum", 11, 13),
    ("number", "minimum", 17, 19),
    ("number", "exclusiveMaximum", 23, 29),
    ("number", "exclusiveMinimum", 31, 37),
    ("object", "maxProperties", 41, 43),
    ("object", "minProperties", 47, 53),
    ("array", "maxItems", 59, 61),
    ("array", "minItems", 67, 71),
):
    SCHEMAS[f"{_keyword}_low"] = sized(_kind, _keyword, _low)
    SCHEMAS[f"{_keyword}_high"] = sized(_kind, _keyword, _high)

READ = """
    object<a_dint true<a_dint empty<a_dint a_int_b_dint<a_int a_dint_b_int<a_int
    a_dint_b_dint<a_int a_dint_b_dint<closed true<false
    one_array_b_num_c_dint_open<one_array_a_dint_b_num b_num_c_dint_open<a_dint_b_num
    b_dint_open<a_int number<int array_number<array_int tuple_int_open<tuple_int
    tuple_int_more<tuple_int enum_abc<enum_ab one_string_int<one_string one_string_int<string
    a_int_open<a_int_b_int tuple_int_open<tuple_int_int_open tuple_int_open<tuple_int_int
    one_string<string string<one_string a_int<closed a_int_b_int<a_int not_true<not_empty
    empty<true
    string<maxLength_high maxLength_high<maxLength_low string<minLength_low
    minLength_low<minLength_high string<pattern number<maximum_high maximum_high<maximum_low
    number<minimum_low minimum_low<minimum_high number<exclusiveMaximum_high
    exclusiveMaximum_high<exclusiveMaximum_low number<exclusiveMinimum_low
    exclusiveMinimum_low<exclusiveMinimum_high object<maxProperties_high
    maxProperties_high<maxProperties_low object<minProperties_low
    minProperties_low<minProperties_high array<maxItems_high maxItems_high<maxItems_low
    array<minItems_low minItems_low<minItems_high
    a<patterns patterns<a object<a object<names names<a names<b_int
    string<types_string types_string_int<types_string types_string_null<string
    a_string_or_null<a_string types_int_bool<int types_string_null_bool<string
    positive<positive_by_ref positive_by_ref<positive array<unique unique_false<unique
    unique_false<array array<unique_false number<multiple
    true<object true<a_int true<closed true<names true<patterns
    object<patterns
"""
"""READER<WRITER, where the reader reads."""
NOT_READ = """
    not_true<a_int not_empty<a_int b_int<a_int b_num_c_int<a_dint_b_num
    b_num_c_int<a_dint_b_num_c_dint a_int_b_int_required<a_int b_num_c_int<b_num_c_dint_open
    one_array_b_num_c_int<one_array_a_dint_b_num tuple_int_open<array_int
    int<number array_int<array_number enum_ab<enum_abc enum_bc<enum_abc one_int<one_number
    one_string<one_string_int int<one_string_int boolean<int int<boolean string<boolean string<int
    array_int<array_string tuple_int_int<tuple_int_open tuple_int_int_open<tuple_int_open
    int<enum_ab enum_ab<int not_empty<true not_true<true a_int_b_int_required<true
    false<not_true false<not_empty
    maxLength_high<string maxLength_low<maxLength_high minLength_low<string
    minLength_high<minLength_low pattern<string pattern_strict<pattern maximum_high<int
    maximum_high<number maximum_low<maximum_high minimum_low<int minimum_low<number
    minimum_high<minimum_low exclusiveMaximum_high<int exclusiveMaximum_high<number
    exclusiveMaximum_low<exclusiveMaximum_high exclusiveMinimum_low<number
    exclusiveMinimum_low<int exclusiveMinimum_high<exclusiveMinimum_low maxProperties_high<object
    maxProperties_low<maxProperties_high minProperties_low<object
    minProperties_high<minProperties_low maxItems_high<array maxItems_low<maxItems_high
    minItems_low<array minItems_high<minItems_low
    a_int<patterns a_int<a_int_b_dint_required array_int<tuple_int_open
    a_int<object b_int<object types_string_null<boolean a_string_or_null<a_int_open
    a_int_or_bool<a_string unique<array unique<unique_false multiple<number
    multiple_narrowed<multiple
"""
"""READER<WRITER, where the reader does not read."""
OTHERWISE = {
    "false<true": (True, "karapace reads by false what true has written"),
    "a_int<false": (False, "nothing has been written with false, so anything reads it"),
    "not_true<false": (False, "nothing has been written with false, so anything reads it"),
    "not_empty<false": (False, "nothing has been written with false, so anything reads it"),
    "true<not_true": (False, "true reads everything"),
    "true<not_empty": (False, "true reads everything"),
    "true<int": (False, "true reads everything; karapace lets it read objects only"),
    "a<object": (False, "an empty schema allows what the open model has allowed"),
    "a<names": (False, "an empty schema allows what the open model has allowed"),
    "patterns<b_int": (False, "the pattern ^a* is found in any name, and allows anything"),
}
"""Pairs of which we say the opposite, as Confluent's registry does: karapace's verdict, and why."""
