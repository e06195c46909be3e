"""Checks: the seven levels, in the cases of Confluent's AvroCompatibilityTest, and sentences."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamlog.schemas import (
    CompatibilityLevel,
    ParsedSchema,
    Schema,
    SchemaType,
    check,
    parse_schema,
)
from tests.schemas.compatibility.avro_cases import field, record

F1 = field("f1", "string")
SCHEMAS: dict[int, Any] = {
    1: record("r", F1),
    2: record("r", F1, field("f2", "string", default="foo")),
    3: record("r", F1, field("f2", "string")),
    4: record("r", field("f1_new", "string", aliases=["f1"])),
    6: record("r", field("f1", ["null", "string"])),
    7: record("r", field("f1", ["null", "string", "int"])),
    8: record("r", F1, field("f2", "string", default="foo"), field("f3", "string", default="bar")),
}


def parsed(number: int) -> ParsedSchema:
    return parse_schema(Schema(SchemaType.AVRO, json.dumps(SCHEMAS[number])))


@pytest.mark.parametrize(
    ("level", "new", "earlier", "fits"),
    [
        ("NONE", 3, (1,), True),
        ("BACKWARD", 2, (1,), True),
        ("BACKWARD", 3, (1,), False),
        ("BACKWARD", 4, (1,), True),
        ("BACKWARD", 6, (1,), True),
        ("BACKWARD", 1, (6,), False),
        ("BACKWARD", 7, (6,), True),
        ("BACKWARD", 6, (7,), False),
        ("BACKWARD", 3, (1, 2), True),
        ("BACKWARD_TRANSITIVE", 8, (1, 2), True),
        ("BACKWARD_TRANSITIVE", 3, (2,), True),
        ("BACKWARD_TRANSITIVE", 3, (2, 1), False),
        ("BACKWARD_TRANSITIVE", 3, (1, 2), False),
        ("FORWARD", 2, (1,), True),
        ("FORWARD", 3, (1,), True),
        ("FORWARD", 3, (2,), True),
        ("FORWARD", 2, (3,), True),
        ("FORWARD", 1, (3, 2), True),
        ("FORWARD_TRANSITIVE", 1, (8, 2), True),
        ("FORWARD_TRANSITIVE", 2, (3,), True),
        ("FORWARD_TRANSITIVE", 1, (2, 3), False),
        ("FULL", 2, (1,), True),
        ("FULL", 3, (1, 2), True),
        ("FULL", 1, (3, 2), True),
        ("FULL_TRANSITIVE", 8, (1, 2), True),
        ("FULL_TRANSITIVE", 1, (8, 2), True),
        ("FULL_TRANSITIVE", 3, (2, 1), False),
        ("FULL_TRANSITIVE", 1, (2, 3), False),
    ],
)
def test_levels_are_those_of_confluents_registry(
    level: str, new: int, earlier: tuple[int, ...], fits: bool
) -> None:
    found = check(parsed(new), [parsed(each) for each in earlier], CompatibilityLevel(level))
    assert found != fits


def test_the_newest_schema_that_does_not_fit_is_reported_with_its_index() -> None:
    found = check(parsed(3), [parsed(1), parsed(1), parsed(2)], CompatibilityLevel.FULL_TRANSITIVE)
    assert [each.earlier for each in found] == [1]
    assert str(found[0]) == (
        "The field 'f2' at path '/fields/1' in the new schema has no default value and is missing "
        "in the old schema"
    )
    assert found[0].confluent_text == (
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'f2' at path "
        "'/fields/1' in the new schema has no default value and is missing in the old schema', "
        "additionalInfo:'f2'}"
    )


def test_forward_sentences_name_the_old_schema_as_the_reader() -> None:
    [found] = check(parsed(1), [parsed(3)], CompatibilityLevel.FORWARD)
    assert "in the old schema has no default value and is missing in the new" in found.message


def test_a_schema_follows_none_of_another_format() -> None:
    other = parse_schema(Schema(SchemaType.AVRO, '"int"'))

    class Other:
        type = SchemaType.JSON

    [found] = check(other, [Other()], CompatibilityLevel.BACKWARD)  # type: ignore[list-item]
    assert found.kind == "SCHEMA_TYPE_CHANGED"
