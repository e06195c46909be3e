"""Field transforms: fields that are added, renamed, taken out, nested or flattened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.json_converter import with_default, with_defaults
from streamlog.connect.java_values import kind_of, moment_ms
from streamlog.connect.row_schema import Field, Schema, fields_of
from streamlog.connect.schema_record import SchemaRecord, with_schemas
from streamlog.connect.transforms.key_or_value import (
    FieldSyntax,
    KeyOrValue,
    Row,
    require_row,
    require_row_or_none,
    split_path,
    struct_of_fields,
)
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

_TEXT: Final = Schema("string")
_TIMESTAMP: Final = Schema("int64", logical="Timestamp")
AnySchemaRecord = SchemaRecord[object, object]


class ExtractField(KeyOrValue, frozen=True, kw_only=True):
    """Replaces a row by one of its fields.

    Attributes:
        field: the name of the field.
        field_syntax_version: V2 lets dots lead into structs.
        replace_null_with_default: whether null becomes the default of the field.
    """

    field: str
    field_syntax_version: FieldSyntax = "V1"
    replace_null_with_default: bool = True

    def change(self, schema: Schema | None, value: object) -> tuple[Schema | None, object]:
        """Return the field."""
        steps = split_path(self.field, self.field_syntax_version)
        row = require_row_or_none(schema, value, "field extraction")
        if schema is None:
            return None, _value_at(row, steps)
        field = _field_at(schema, steps)
        if field is None:
            raise BadRecord(f"Unknown field: {self.field}")
        found = _value_at(row, steps)
        # A null at the end of the path takes the default; a null on the way there does as well,
        # since Kafka asks the struct that it did not find.
        if found is None and row is not None and self.replace_null_with_default:
            found = with_default(field, {})
        return field.schema, found


class HoistField(KeyOrValue, frozen=True, kw_only=True):
    """Makes a row of one field out of the whole.

    Attributes:
        field: the name of the field.
    """

    field: str

    def change(self, schema: Schema | None, value: object) -> tuple[Schema | None, object]:
        """Return the row."""
        if schema is None:
            return None, {self.field: value}
        return Schema("struct", fields=(Field(self.field, schema),)), {self.field: value}


class InsertField(KeyOrValue, frozen=True, kw_only=True):
    """Adds fields with where and when the record was written, or with a text.

    A name may end with `!` for a field that is required, or with `?` for one that is not.

    Attributes:
        topic_field: the field for the topic's name.
        partition_field: the field for the partition's number.
        offset_field: the field for the offset; of sinks only.
        timestamp_field: the field for the record's time.
        static_field: the field for a text.
        static_value: the text.
        replace_null_with_default: whether null becomes the default of a field that is there.
    """

    topic_field: str | None = None
    partition_field: str | None = None
    offset_field: str | None = None
    timestamp_field: str | None = None
    static_field: str | None = None
    static_value: str | None = None
    replace_null_with_default: bool = True

    def check(self) -> None:
        """Raise ConfigError if nothing is inserted, or the text is missing."""
        fields = (self.topic_field, self.partition_field, self.offset_field, self.timestamp_field)
        if all(each is None for each in (*fields, self.static_field)):
            raise ConfigError("No field insertion configured")
        if self.static_field is not None and self.static_value is None:
            raise ConfigError("static.value: No value specified for static field")

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with its new fields."""
        whole = with_schemas(record)
        schema, value = self.operand(whole)
        if value is None:
            return record
        added = list(self._added(whole, has_schema=schema is not None))
        row = dict(require_row(schema, value, "field insertion"))
        if schema is not None and self.replace_null_with_default:
            row = with_defaults(schema.fields, row)
        row.update((_name(spec), what) for spec, _, what in added if what is not None)
        if schema is None:
            return self.with_operand(whole, None, row)
        new = [
            Field(_name(spec), replace(kind, optional=not spec.endswith("!")))
            for spec, kind, _ in added
        ]
        # A field that is there already would be written twice, and Kafka's builder refuses that; in
        # a row without a schema the new value replaces the old one.
        fields = {each.name: each for each in (*schema.fields, *new)}
        if len(fields) < len(schema.fields) + len(new):
            raise BadRecord("Cannot create field because of field name duplication")
        return self.with_operand(whole, struct_of_fields(schema, list(fields.values())), row)

    def _added(
        self, record: AnySchemaRecord, *, has_schema: bool
    ) -> Iterator[tuple[str, Schema, object]]:
        """Yield the name, as the setting has it, the schema and the value of each field."""
        if self.topic_field is not None:
            yield self.topic_field, _TEXT, record.topic
        if self.partition_field is not None:
            number = record.partition if record.partition >= 0 else None
            yield self.partition_field, Schema("int32"), number
        if self.offset_field is not None:
            if record.offset < 0:
                raise BadRecord("Offset insertion is only supported for sink connectors")
            yield self.offset_field, Schema("int64"), record.offset
        if self.timestamp_field is not None:
            # A row without a schema has no type for times: JSON would not know how to write one.
            when = record.timestamp if has_schema else moment_ms(record.timestamp)
            yield self.timestamp_field, _TIMESTAMP, when
        if self.static_field is not None:
            yield self.static_field, _TEXT, self.static_value


class ReplaceField(KeyOrValue, frozen=True, kw_only=True):
    """Leaves fields out, and renames them.

    Attributes:
        exclude: the fields to leave out; they win over `include`.
        include: the fields to keep; all if there are none.
        renames: pairs of an old and a new name: "a:b,c:d".
        blacklist: the old name of `exclude`.
        whitelist: the old name of `include`.
        replace_null_with_default: whether null becomes the default of the field.
    """

    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    renames: tuple[str, ...] = ()
    blacklist: tuple[str, ...] = ()
    whitelist: tuple[str, ...] = ()
    replace_null_with_default: bool = True

    def check(self) -> None:
        """Raise ConfigError if a rename is no pair."""
        for pair in self.renames:
            if len([part for part in pair.split(":") if part]) != 2:  # noqa: PLR2004 - a pair
                raise ConfigError(f"renames: {pair!r} is no pair OLD:NEW")

    def change(self, schema: Schema | None, value: object) -> tuple[Schema | None, object]:
        """Return the row with the fields that stay, by their new names."""
        if value is None:
            return schema, None
        row = require_row(schema, value, "field replacement")
        if schema is None:
            return None, {self._renamed(name): row[name] for name in row if self._stays(name)}
        kept = [each for each in schema.fields if self._stays(each.name)]
        changed: dict[str, object] = {}
        for each in kept:
            found = row.get(each.name)
            if found is None and self.replace_null_with_default:
                found = with_default(each, row)
            changed[self._renamed(each.name)] = found
        fields = [replace(each, name=self._renamed(each.name)) for each in kept]
        if len(changed) < len(fields):
            raise BadRecord("Cannot create field because of field name duplication")
        return struct_of_fields(schema, fields), changed

    def _stays(self, name: str) -> bool:
        include = self.include or self.whitelist
        return name not in (self.exclude or self.blacklist) and (not include or name in include)

    def _renamed(self, name: str) -> str:
        return dict(pair.split(":", 1) for pair in self.renames).get(name, name)


class ValueToKey(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the key out of fields of the value.

    Attributes:
        fields: the names of the fields.
        replace_null_with_default: whether null becomes the default of the field.
    """

    fields: tuple[str, ...]
    replace_null_with_default: bool = True

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with its new key."""
        whole = with_schemas(record)
        schema = whole.value_schema
        row = require_row(schema, whole.value, "copying fields from value to key")
        if schema is None:
            return replace(
                whole, key={name: row.get(name) for name in self.fields}, key_schema=None
            )
        found = {name: schema.field(name) for name in self.fields}
        missing = next((name for name, field in found.items() if field is None), None)
        if missing is not None:
            raise BadRecord(f"Field does not exist: {missing}")
        fields = [field for field in found.values() if field is not None]
        key = {
            each.name: with_default(each, row)
            if self.replace_null_with_default
            else row.get(each.name)
            for each in fields
        }
        # A key's fields have no defaults: Kafka copies their schemas, which ours are without.
        return replace(whole, key=key, key_schema=Schema("struct", fields=tuple(fields)))


class Flatten(KeyOrValue, frozen=True, kw_only=True):
    """Makes the fields of structs inside a row fields of the row.

    Attributes:
        delimiter: what stands between the names.
    """

    delimiter: str = "."

    def change(self, schema: Schema | None, value: object) -> tuple[Schema | None, object]:
        """Return the flat row."""
        if value is None:
            return schema, None
        row = require_row(schema, value, "flattening")
        if schema is None:
            flat: dict[str, object] = {}
            self._flatten(row, "", flat)
            return None, flat
        fields = list(self._fields(schema, "", optional=schema.optional))
        if len({each.name for each in fields}) < len(fields):
            raise BadRecord("Cannot create field because of field name duplication")
        changed = dict(self._values(schema, row, ""))
        return struct_of_fields(schema, fields), changed

    def _flatten(self, row: Mapping[str, object], before: str, flat: dict[str, object]) -> None:
        for name, value in row.items():
            whole = self._joined(before, name)
            if value is None:
                flat[whole] = None
                continue
            kind = kind_of(value)
            if isinstance(value, Mapping):
                self._flatten(value, whole, flat)
            elif kind is None:
                raise BadRecord(
                    f"Flatten transformation does not support {type(value).__name__} for record"
                    f" without schemas (for field {whole})."
                )
            else:
                flat[whole] = value

    def _fields(self, schema: Schema, before: str, *, optional: bool) -> Iterator[Field]:
        for each in schema.fields:
            whole = self._joined(before, each.name)
            # 1. `address` may be null, and has `city`, which must not be. 2. In a flat row
            # `address.city` is null wherever there was no address. So it may be null.
            is_optional = optional or each.schema.optional
            if each.schema.kind == "struct":
                yield from self._fields(each.schema, whole, optional=is_optional)
            elif each.schema.kind == "map":
                raise BadRecord(
                    f"Flatten transformation does not support {each.schema.kind.upper()} for record"
                    f" with schemas (for field {whole})."
                )
            else:
                flat = replace(each.schema, optional=is_optional)
                yield Field(whole, flat, each.default)

    def _values(self, schema: Schema, row: Row | None, before: str) -> Iterator[tuple[str, object]]:
        for each in schema.fields:
            whole = self._joined(before, each.name)
            if each.schema.kind == "struct":
                inner = None if row is None else row.get(each.name)
                inside = require_row_or_none(each.schema, inner, "flattening")
                yield from self._values(each.schema, inside, whole)
            else:
                yield whole, None if row is None else with_default(each, row)

    def _joined(self, before: str, name: str) -> str:
        return f"{before}{self.delimiter}{name}" if before else name


class SetSchemaMetadata(KeyOrValue, frozen=True, kw_only=True):
    """Sets the name and version of a schema.

    Attributes:
        schema_name: the name.
        schema_version: the version.
        replace_null_with_default: whether null becomes the default of a field.
    """

    schema_name: str | None = None
    schema_version: int | None = None
    replace_null_with_default: bool = True

    def check(self) -> None:
        """Raise ConfigError if neither is given."""
        if self.schema_name is None and self.schema_version is None:
            raise ConfigError("Neither schema name nor version configured")

    def change(self, schema: Schema | None, value: object) -> tuple[Schema | None, object]:
        """Return the value with the changed schema."""
        if schema is None and value is None:
            return None, None
        if schema is None:
            raise BadRecord("Schema required for [updating schema metadata]")
        name = schema.name if self.schema_name is None else self.schema_name
        version = schema.version if self.schema_version is None else self.schema_version
        if self.replace_null_with_default and schema.kind == "struct" and value is not None:
            value = with_defaults(schema.fields, fields_of(value))
        return replace(schema, name=name, version=version), value


def _name(spec: str) -> str:
    return spec[:-1] if spec.endswith(("!", "?")) else spec


def _field_at(schema: Schema, steps: Sequence[str]) -> Field | None:
    field = schema.field(steps[0])
    for step in steps[1:]:
        field = None if field is None else field.schema.field(step)
    return field


def _value_at(row: Row | None, steps: Sequence[str]) -> object:
    found: object = row
    for step in steps:
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise BadRecord(
                f"Only Map objects supported in absence of schema for [nested field access],"
                f" found: {type(found).__name__}"
            )
        found = found.get(step)
    return found
