"""Pairs of JSON Schemas with all their differences, as Confluent's registry finds them.

The facts are those of its `diff-schema-examples.json`, where later releases have not changed them.
"""

from __future__ import annotations

from typing import Any

Case = tuple[Any, Any, str]
"""The schema before, the schema after, and the differences with their paths."""


def text(**rest: Any) -> dict[str, Any]:
    return {"type": "string", **rest}


def number(**rest: Any) -> dict[str, Any]:
    return {"type": "number", **rest}


def array(*items: Any, **rest: Any) -> dict[str, Any]:
    return {"type": "array", **({"items": list(items)} if items else {}), **rest}


def mapping(rest: Any = True, /, **properties: Any) -> dict[str, Any]:
    """Return an object's schema with what it allows beside its properties."""
    allowed = {} if rest is True else {"additionalProperties": rest}
    return {"properties": properties, **allowed}


STRING, NUMBER, INTEGER, NULL = text(), number(), {"type": "integer"}, {"type": "null"}
OPTIONAL_TEXT = {"oneOf": [NULL, STRING]}
PATTERNS = {"additionalProperties": False, "patternProperties": {"^S_": STRING, "^I_": INTEGER}}
NUMBER_PATTERN = {"additionalProperties": False, "patternProperties": {"^I_": NUMBER}}
REFERENCE = {"$ref": "#/definitions/r", "definitions": {"r": STRING}}


def items_reference(kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": "#/definitions/r"}, "definitions": {"r": kind}}


def limits(keyword: str, **rest: Any) -> list[Case]:
    """Return the four changes of a limit, of which two are compatible."""
    name = "".join(f"_{each}" if each.isupper() else each for each in keyword).upper()
    none, low, high = rest, {keyword: 1, **rest}, {keyword: 2, **rest}
    return [
        (none, low, f"{name}_ADDED #/{keyword}"),
        (low, none, f"{name}_REMOVED #/{keyword}"),
        (low, high, f"{name}_INCREASED #/{keyword}"),
        (high, low, f"{name}_DECREASED #/{keyword}"),
    ]


CASES: list[Case] = [
    (mapping(), {}, ""),
    ({"id": "one"}, {"id": "two"}, "ID_CHANGED #/"),
    ({"title": "one"}, {"title": "two"}, "TITLE_CHANGED #/"),
    ({"description": "one"}, {"description": "two"}, "DESCRIPTION_CHANGED #/"),
    ({"type": "object"}, {"type": "array"}, "TYPE_CHANGED #/"),
    *limits("minLength", type="string"),
    *limits("maxLength", type="string"),
    *limits("minimum", type="number"),
    *limits("maximum", type="number"),
    *limits("exclusiveMinimum", type="number"),
    *limits("exclusiveMaximum", type="number"),
    *limits("minItems", type="array"),
    *limits("maxItems", type="array"),
    *limits("minProperties", type="object"),
    *limits("maxProperties", type="object"),
    (text(pattern="a"), text(), "PATTERN_REMOVED #/pattern"),
    (text(), text(pattern="a"), "PATTERN_ADDED #/pattern"),
    (text(pattern="a"), text(pattern="b"), "PATTERN_CHANGED #/pattern"),
    (number(multipleOf=10), NUMBER, "MULTIPLE_OF_REMOVED #/multipleOf"),
    (number(multipleOf=10), number(multipleOf=2), "MULTIPLE_OF_REDUCED #/multipleOf"),
    (number(multipleOf=2), number(multipleOf=10), "MULTIPLE_OF_EXPANDED #/multipleOf"),
    (number(multipleOf=10), number(multipleOf=11), "MULTIPLE_OF_CHANGED #/multipleOf"),
    (number(multipleOf=0.5), number(multipleOf=0.25), "MULTIPLE_OF_REDUCED #/multipleOf"),
    (NUMBER, INTEGER, "TYPE_NARROWED #/"),
    (INTEGER, NUMBER, "TYPE_EXTENDED #/"),
    ({"not": NUMBER}, {"not": INTEGER}, "NOT_TYPE_NARROWED #/not"),
    ({"not": INTEGER}, {"not": NUMBER}, "NOT_TYPE_EXTENDED #/not"),
    (text(enum=["red"]), STRING, "PRODUCT_TYPE_NARROWED #/"),
    ({"enum": [1]}, {"enum": [1.0, 2]}, "ENUM_ARRAY_EXTENDED #/enum"),
    ({"enum": [1, 2]}, {"enum": [1]}, "ENUM_ARRAY_NARROWED #/enum"),
    ({"enum": [1, 2]}, {"enum": [1, 3]}, "ENUM_ARRAY_CHANGED #/enum"),
    ({"const": 1}, {"enum": [1, 2]}, "ENUM_ARRAY_EXTENDED #/enum"),
    (
        {"allOf": [STRING, {"enum": ["red"]}]},
        {"allOf": [STRING, {"enum": ["blue"]}]},
        "COMBINED_TYPE_SUBSCHEMAS_CHANGED #/",
    ),
    (
        {"allOf": [STRING, {"enum": ["red"]}]},
        {"allOf": [{"enum": ["red", "blue"]}, STRING]},
        "ENUM_ARRAY_EXTENDED #/allOf/1/enum",
    ),
    ({"type": ["object"]}, {"type": ["object", "array"]}, "SUM_TYPE_EXTENDED #/"),
    ({"oneOf": [STRING]}, {"oneOf": [NUMBER]}, "COMBINED_TYPE_SUBSCHEMAS_CHANGED #/"),
    ({"oneOf": [STRING]}, {"oneOf": [NUMBER, STRING]}, "SUM_TYPE_EXTENDED #/"),
    ({"oneOf": [STRING, NUMBER]}, {"oneOf": [NUMBER]}, "SUM_TYPE_NARROWED #/"),
    ({"allOf": [STRING]}, {"allOf": [STRING, text(maxLength=1)]}, "PRODUCT_TYPE_EXTENDED #/"),
    ({"oneOf": [STRING]}, {"allOf": [STRING]}, "COMBINED_TYPE_EXTENDED #/"),
    ({"oneOf": [STRING, NULL]}, {"allOf": [STRING, NULL]}, "COMBINED_TYPE_CHANGED #/"),
    ({"oneOf": [STRING, NULL]}, {"anyOf": [STRING, NULL]}, "COMBINED_TYPE_EXTENDED #/"),
    ({"anyOf": [STRING, NULL]}, {"oneOf": [STRING, NULL]}, "COMBINED_TYPE_CHANGED #/"),
    (
        {"oneOf": [mapping(f=STRING)]},
        {"oneOf": [mapping(f=NUMBER)]},
        "COMBINED_TYPE_SUBSCHEMAS_CHANGED #/",
    ),
    (STRING, {"oneOf": [NUMBER, STRING]}, "SUM_TYPE_EXTENDED #/"),
    (NULL, {"oneOf": [NUMBER, NULL]}, "SUM_TYPE_EXTENDED #/"),
    (
        text(maxLength=3),
        {"oneOf": [NUMBER, STRING]},
        "MAX_LENGTH_REMOVED #/maxLength, SUM_TYPE_EXTENDED #/",
    ),
    (STRING, {"allOf": [STRING]}, ""),
    ({"anyOf": [STRING]}, STRING, ""),
    (STRING, {"allOf": [STRING, NUMBER]}, "TYPE_CHANGED #/"),
    # Properties, by content model.
    (
        mapping(foo=STRING),
        mapping(bar=STRING),
        (
            "PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL #/properties/foo, "
            "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/bar"
        ),
    ),
    (mapping(foo=STRING), mapping(foo=NUMBER), "TYPE_CHANGED #/properties/foo"),
    (
        mapping(False, foo=STRING),
        mapping(False, foo=STRING, bar=NUMBER),
        "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/bar",
    ),
    (
        mapping(False),
        {**mapping(False, bar=NUMBER), "required": ["bar"]},
        "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/bar",
    ),
    (
        mapping(False),
        {**mapping(False, bar=number(default=1)), "required": ["bar"]},
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/bar",
    ),
    (
        mapping(),
        {**mapping(bar=NUMBER), "required": ["bar"]},
        "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/bar",
    ),
    (
        mapping(False, foo=STRING),
        mapping(False),
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/foo",
    ),
    (
        {**mapping(foo=STRING), **PATTERNS},
        {**mapping(foo=STRING, I_1=NUMBER), **PATTERNS},
        (
            "TYPE_EXTENDED #/properties/I_1, "
            "PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/I_1, "
            "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/I_1"
        ),
    ),
    (
        mapping(STRING),
        mapping(STRING, bar=STRING),
        (
            "PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/bar, "
            "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/bar"
        ),
    ),
    (
        mapping(STRING),
        mapping(STRING, bar=NUMBER),
        (
            "TYPE_CHANGED #/properties/bar, "
            "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/bar, "
            "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/bar"
        ),
    ),
    (
        {**mapping(I_1=INTEGER), "additionalProperties": False},
        {**mapping(), **NUMBER_PATTERN},
        (
            "TYPE_EXTENDED #/properties/I_1, "
            "PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/I_1"
        ),
    ),
    (
        mapping(False, bar=STRING),
        mapping(STRING),
        (
            "PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/bar, "
            "ADDITIONAL_PROPERTIES_ADDED #/additionalProperties"
        ),
    ),
    (
        mapping(False, bar=NUMBER),
        mapping(STRING),
        (
            "TYPE_CHANGED #/properties/bar, "
            "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/bar, "
            "ADDITIONAL_PROPERTIES_ADDED #/additionalProperties"
        ),
    ),
    (
        mapping(False, bar=OPTIONAL_TEXT),
        mapping(OPTIONAL_TEXT),
        (
            "PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/bar, "
            "ADDITIONAL_PROPERTIES_ADDED #/additionalProperties"
        ),
    ),
    (
        mapping(False, bar=STRING),
        mapping(OPTIONAL_TEXT),
        (
            "SUM_TYPE_EXTENDED #/properties/bar, "
            "PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/bar, "
            "ADDITIONAL_PROPERTIES_ADDED #/additionalProperties"
        ),
    ),
    (
        mapping(),
        mapping(foo=True),
        "PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL #/properties/foo",
    ),
    (
        mapping(foo=True),
        mapping(),
        "PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL #/properties/foo",
    ),
    (
        mapping(False),
        mapping(False, foo=False),
        "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/foo",
    ),
    (
        mapping(False, foo=False),
        mapping(False),
        "PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/foo",
    ),
    (mapping(False), mapping(), "ADDITIONAL_PROPERTIES_ADDED #/additionalProperties"),
    (mapping(), mapping(False), "ADDITIONAL_PROPERTIES_REMOVED #/additionalProperties"),
    (mapping(), mapping(NUMBER), "ADDITIONAL_PROPERTIES_NARROWED #/additionalProperties"),
    (mapping(NUMBER), mapping(), "ADDITIONAL_PROPERTIES_EXTENDED #/additionalProperties"),
    (mapping(STRING), mapping(NUMBER), "TYPE_CHANGED #/additionalProperties"),
    # What is required.
    (
        {**mapping(foo=STRING), "required": ["foo"]},
        mapping(foo=STRING),
        "REQUIRED_ATTRIBUTE_REMOVED #/required/foo",
    ),
    (
        mapping(foo=STRING),
        {**mapping(foo=STRING), "required": ["foo"]},
        "REQUIRED_ATTRIBUTE_ADDED #/required/foo",
    ),
    (
        {**mapping(foo=STRING), "required": ["foo"]},
        {**mapping(foo=STRING), "required": ["bar"]},
        "REQUIRED_ATTRIBUTE_REMOVED #/required/foo",
    ),
    (
        {**mapping(f=NUMBER), "dependencies": {"foo": ["bar"]}},
        {**mapping(f=NUMBER), "dependencies": {"bar": ["foo"]}},
        "DEPENDENCY_ARRAY_REMOVED #/dependencies/foo, DEPENDENCY_ARRAY_ADDED #/dependencies/bar",
    ),
    (
        {"dependencies": {"foo": STRING, "bar": STRING}},
        {"dependencies": {"foo": STRING}},
        "DEPENDENCY_SCHEMA_REMOVED #/dependencies/bar",
    ),
    (
        {"dependencies": {"foo": STRING}},
        {"dependencies": {"foo": NUMBER}},
        "TYPE_CHANGED #/dependencies/foo",
    ),
    (
        {"dependencies": {"foo": STRING}},
        {"dependencies": {"bar": STRING}},
        "DEPENDENCY_SCHEMA_REMOVED #/dependencies/foo, DEPENDENCY_SCHEMA_ADDED #/dependencies/bar",
    ),
    # Lists.
    (array(), {"type": "array", "items": STRING}, "SCHEMA_ADDED #/items"),
    ({"type": "array", "items": STRING}, array(), "SCHEMA_REMOVED #/items"),
    (
        array(STRING, NUMBER),
        array(),
        (
            "ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL #/items/0, "
            "ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL #/items/1"
        ),
    ),
    (
        array(STRING, additionalItems=STRING),
        array(STRING, STRING, additionalItems=STRING),
        "ITEM_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1",
    ),
    (
        array(STRING, additionalItems=STRING),
        array(STRING, NUMBER, additionalItems=STRING),
        "TYPE_CHANGED #/items/1, ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1",
    ),
    (
        array(STRING, OPTIONAL_TEXT, additionalItems=OPTIONAL_TEXT),
        array(STRING, additionalItems=OPTIONAL_TEXT),
        "ITEM_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1",
    ),
    (
        array(STRING, NUMBER, additionalItems=STRING),
        array(STRING, additionalItems=STRING),
        (
            "TYPE_CHANGED #/items/1, "
            "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1"
        ),
    ),
    (array(STRING), array(NUMBER), "TYPE_CHANGED #/items/0"),
    (array(uniqueItems=True), array(), "UNIQUE_ITEMS_REMOVED #/uniqueItems"),
    (array(), array(uniqueItems=True), "UNIQUE_ITEMS_ADDED #/uniqueItems"),
    (
        {"additionalItems": True},
        {"additionalItems": False},
        "ADDITIONAL_ITEMS_REMOVED #/additionalItems",
    ),
    (
        {"additionalItems": STRING},
        {"additionalItems": NUMBER},
        "TYPE_CHANGED #/additionalItems",
    ),
    (
        array(NUMBER),
        array(NUMBER, True),
        "ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL #/items/1",
    ),
    (array(NUMBER), array(NUMBER, NUMBER), "ITEM_ADDED_TO_OPEN_CONTENT_MODEL #/items/1"),
    (
        array(NUMBER, additionalItems=False),
        array(NUMBER, False, additionalItems=False),
        "ITEM_ADDED_TO_CLOSED_CONTENT_MODEL #/items/1",
    ),
    (
        array(NUMBER, False, additionalItems=False),
        array(NUMBER, additionalItems=False),
        "ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL #/items/1",
    ),
    (
        array(NUMBER, STRING, additionalItems=False),
        array(NUMBER, additionalItems=False),
        "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL #/items/1",
    ),
    (
        array(STRING, NUMBER, additionalItems=False),
        array(STRING, additionalItems=NUMBER),
        (
            "ITEM_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1, "
            "ADDITIONAL_ITEMS_ADDED #/additionalItems"
        ),
    ),
    (
        array(STRING, additionalItems=NUMBER),
        array(STRING, NUMBER),
        (
            "ITEM_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1, "
            "ADDITIONAL_ITEMS_EXTENDED #/additionalItems"
        ),
    ),
    # References.
    (items_reference(STRING), items_reference(NUMBER), "TYPE_CHANGED #/items"),
    (STRING, REFERENCE, ""),
    (REFERENCE, STRING, ""),
    # Keywords of later drafts.
    (
        {**mapping(), "unevaluatedProperties": False},
        mapping(),
        "UNEVALUATED_PROPERTIES_ADDED #/unevaluatedProperties",
    ),
    (
        mapping(),
        {**mapping(), "unevaluatedProperties": False},
        "UNEVALUATED_PROPERTIES_REMOVED #/unevaluatedProperties",
    ),
    (array(), array(unevaluatedItems=STRING), "UNEVALUATED_ITEMS_NARROWED #/unevaluatedItems"),
    *limits("minContains", type="array"),
    *limits("maxContains", type="array"),
]
