"""Parsing: from the text of a schema and its references to a ParsedSchema of its format.

Rule: references are put in order here, so that a format reads each schema after those that it
depends on; a circle of references has no such order and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.errors import InvalidSchema, quantity
from streamlog.schemas.avro_schemas.avro_schema import parse_avro
from streamlog.schemas.json_schema.json_parsing import parse_json_schema
from streamlog.schemas.protobuf.protobuf_schema import parse_protobuf
from streamlog.schemas.schema import (
    DEFAULT_LIMITS,
    ParsedSchema,
    Schema,
    SchemaLimits,
    SchemaType,
)

_NO_SCHEMAS: Mapping[str, Schema] = {}


def parse_schema(
    schema: Schema,
    referenced: Mapping[str, Schema] = _NO_SCHEMAS,
    *,
    limits: SchemaLimits = DEFAULT_LIMITS,
    is_new: bool = True,
) -> ParsedSchema:
    """Parse a schema.

    Args:
        schema: the schema.
        referenced: the schemas that it refers to, directly or through others, by reference name.
        limits: the limits on the schema and on each that it refers to.
        is_new: whether the schema is about to be registered. A schema that is registered already
            may have an Avro default that does not fit its type, as in Confluent's registry.

    Raises:
        InvalidSchema: it is no schema of its type, refers to one that is absent from `referenced`,
            refers to itself through others, or exceeds a limit.
        ConfigError: it is a Protobuf schema, and protobuf is not installed.
    """
    dependencies = order_references(schema, referenced, limits)
    match schema.type:
        case SchemaType.AVRO:
            return parse_avro(schema, dependencies, limits, is_new=is_new)
        case SchemaType.JSON:
            return parse_json_schema(schema, dependencies, limits)
        case SchemaType.PROTOBUF:
            return parse_protobuf(schema, dependencies, limits)


def order_references(
    schema: Schema, referenced: Mapping[str, Schema], limits: SchemaLimits = DEFAULT_LIMITS
) -> dict[str, Schema]:
    """Return the schemas that one refers to, each after those that it refers to itself.

    Raises:
        InvalidSchema: a reference is absent, has another format, or is part of a circle, or there
            are too many.
    """
    if len(schema.references) > limits.references or len(referenced) > limits.references:
        raise InvalidSchema(
            f"The schema has more than {quantity(limits.references, 'reference')}, the limit"
        )
    ordered: dict[str, Schema] = {}
    open_names: list[str] = []
    # A path of references is followed by hand: it may be as long as their number.
    waiting = [(schema, iter(schema.references))]
    while waiting:
        current, references = waiting[len(waiting) - 1]
        reference = next(references, None)
        if reference is None:
            waiting.pop()
            # The schema itself has no name here: it is the last one, and not among its references.
            if open_names:
                ordered[open_names.pop()] = current
            continue
        name = reference.name
        if name in open_names:
            # Named from where the circle is entered: what leads to it is not part of it.
            circle = " -> ".join([*open_names[open_names.index(name) :], name])
            raise InvalidSchema(f"The references form a circle: {circle}")
        # Two schemas may refer to a third: it is read once.
        if name in ordered:
            continue
        found = referenced.get(name)
        if found is None:
            raise InvalidSchema(
                f"The schema refers to '{name}' (subject {reference.subject}, version "
                f"{reference.version}), which is unknown"
            )
        if found.type is not schema.type:
            raise InvalidSchema(
                f"The schema is {schema.type}, but it refers to '{name}', which is {found.type}"
            )
        open_names.append(name)
        waiting.append((found, iter(found.references)))
    return ordered
