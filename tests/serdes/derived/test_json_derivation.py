"""JSON Schemas of declared types: they describe what the JSON serdes write."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from streamlog.errors import SerdeError
from streamlog.serdes import serde_for
from streamlog.serdes.derived import json_schema_of
from tests.serdes.derived.typed_values import Typed, records


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclass
class Node:
    name: Annotated[str, msgspec.Meta(max_length=5, pattern="^a")]
    price: Decimal
    color: Color
    level: Level
    kind: Literal["x", "y"]
    children: list[Node] = field(default_factory=list)
    left: Node | None = None
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5
    both: int | str = 3


class Model(BaseModel):
    shop: str = Field(alias="shopName", min_length=1)
    data: bytes = b"x"


def test_a_record_is_closed_and_lists_its_fields() -> None:
    assert json_schema_of(Node) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Node",
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5, "pattern": "^a"},
            "price": {"type": "string", "format": "decimal"},
            "color": {"$ref": "#/definitions/Color"},
            "level": {"$ref": "#/definitions/Level"},
            "kind": {"type": "string", "enum": ["x", "y"]},
            "children": {"type": "array", "items": {"$ref": "#"}, "default": []},
            "left": {"oneOf": [{"$ref": "#"}, {"type": "null"}], "default": None},
            "share": {
                "type": "number",
                "minimum": 0,
                "exclusiveMaximum": 1,
                "default": 0.5,
            },
            "both": {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 3},
        },
        "required": ["name", "price", "color", "level", "kind"],
        "additionalProperties": False,
        "definitions": {
            "Color": {"title": "Color", "type": "string", "enum": ["red"]},
            "Level": {"title": "Level", "type": "integer", "enum": [1]},
        },
    }


def test_a_model_has_its_aliases_and_limits() -> None:
    found = json_schema_of(Model)
    assert found["properties"] == {
        "shopName": {"type": "string", "minLength": 1},
        "data": {"type": "string", "default": "x"},
    }
    jsonschema.validate(Model(shopName="ulm").model_dump(mode="json", by_alias=True), found)


def test_a_tag_is_a_constant() -> None:
    tagged = msgspec.defstruct("Tagged", [("a", int)], tag="t", tag_field="kind")
    assert json_schema_of(tagged)["properties"]["kind"] == {"const": "t"}


def test_an_array_like_struct_is_refused() -> None:
    with pytest.raises(SerdeError, match="P is written as an array"):
        json_schema_of(msgspec.defstruct("P", [("a", int)], array_like=True))


@given(typed=records(nests=True, unions=False), data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_values_of_random_types_are_valid_and_come_back(
    typed: Typed, data: st.DataObject
) -> None:
    declared: Any
    declared, values = typed
    value = data.draw(values)
    schema = json_schema_of(declared)
    jsonschema.Draft7Validator.check_schema(schema)
    serde = serde_for(declared)
    written = serde.dumps(value)
    jsonschema.Draft7Validator(schema).validate(json.loads(written))
    assert serde.loads(written) == value
