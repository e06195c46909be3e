"""KeyOrValue: a transform that works on the key or on the value, as its class's name says.

`$Key` and `$Value` behind the name of one of Kafka's classes are `on="key"` and `on="value"` here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.row_schema import Field, Schema, fields_of
from streamlog.connect.schema_record import SchemaRecord, with_schemas
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord, JsonValue

Row = Mapping[str, object]
FieldSyntax = Literal["V1", "V2"]
"""Whether a dot in the name of a field is part of it, or leads into a struct (KIP-821)."""


class KeyOrValue(msgspec.Struct, frozen=True, kw_only=True):
    """A transform of the key or of the value.

    Attributes:
        on: which of the two.
    """

    on: Literal["key", "value"] = "value"

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with the key or value that `change` makes."""
        whole = with_schemas(record)
        schema, value = self.operand(whole)
        changed_schema, changed = self.change(schema, value)
        return self.with_operand(whole, changed_schema, changed)

    def change(self, schema: Schema | None, value: object) -> tuple[Schema | None, object]:
        """Return the new schema and value; here, those that there are.

        Raises:
            BadRecord: the record can't be transformed.
        """
        return schema, value

    def operand(self, record: SchemaRecord[object, object]) -> tuple[Schema | None, object]:
        """Return the schema and value of what the transform works on."""
        if self.on == "key":
            return record.key_schema, record.key
        return record.value_schema, record.value

    def with_operand(
        self, record: SchemaRecord[object, object], schema: Schema | None, value: object
    ) -> SchemaRecord[object, object]:
        """Return the record with another key or value."""
        if self.on == "key":
            return replace(record, key=value, key_schema=schema)
        return replace(record, value=value, value_schema=schema)


def require_row(schema: Schema | None, value: object, purpose: str) -> Row:
    """Return a value that has to be a row.

    Args:
        schema: its schema, which has to be a struct if there is one.
        value: the value.
        purpose: what needs it, for the message.

    Raises:
        BadRecord: it is none.
    """
    if schema is None and not isinstance(value, Mapping):
        raise BadRecord(
            f"Only Map objects supported in absence of schema for [{purpose}], found:"
            f" {type(value).__name__}"
        )
    if value is None or (schema is not None and schema.kind != "struct"):
        raise BadRecord(
            f"Only Struct objects supported for [{purpose}], found: {type(value).__name__}"
        )
    return fields_of(value)


def require_row_or_none(schema: Schema | None, value: object, purpose: str) -> Row | None:
    """Return a value that has to be a row, or None if it is None."""
    return None if value is None else require_row(schema, value, purpose)


def struct_of_fields(like: Schema, fields: Sequence[Field], *, optional: bool = False) -> Schema:
    """Return a struct with other fields, and the name, version and parameters of another one."""
    # Kafka's transforms leave out whether the whole was optional, but for those that say otherwise.
    return replace(like, fields=tuple(fields), optional=optional)


def split_path(path: str, syntax: FieldSyntax) -> tuple[str, ...]:
    """Return the steps of the path to a field: one in V1; in V2 a step a dot, but for backticks.

    Raises:
        BadRecord: a backtick lacks its other half.
    """
    if syntax == "V1":
        return (path,)
    steps: list[str] = []
    at = 0
    while at < len(path):
        if path[at] != "`":
            dot = path.find(".", at)
            end = len(path) if dot < 0 else dot
            steps.append(path[at:end])
            at = end + 1
            continue
        step, at = _quoted(path, at)
        steps.append(step)
    if not path or path.endswith("."):
        steps.append("")
    return tuple(steps)


def _quoted(path: str, opening: int) -> tuple[str, int]:
    """Return a step in backticks, and where the next one begins."""
    step, start, at = "", opening + 1, opening + 1
    while True:
        at = path.find("`", at)
        is_escaped = path[:at].endswith("\\")
        is_last = at == len(path) - 1
        if at == -1 or (is_last and is_escaped):
            raise BadRecord(
                f"Incomplete backtick pair in path: [{path}], consider adding a backslash before"
                f" backtick at position {opening} to escape it"
            )
        if is_last:
            return step + path[start:at], len(path)
        # Only a backtick before a dot can be the closing one; others belong to the name.
        if path[at + 1] == "." and is_escaped:
            step += f"{path[start : at - 1]}`"
            start = at + 1
        elif path[at + 1] == ".":
            return step + path[start:at], at + 2
        at += 1


def default_as(value: object) -> JsonValue:
    """Return a value as the default of a field."""
    return value if isinstance(value, str | int | float | bool) else None
