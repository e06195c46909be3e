"""ExtractNewRecordState: Debezium's transform that makes the row of a change.

It changes values whose schema is an envelope, by its name and fields; everything else stays as it
is. What happens to deletions has one setting, and two that Debezium calls deprecated and still
takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from streamlog.connect.header_values import header_bytes
from streamlog.connect.row_schema import Field, Schema, fields_of
from streamlog.connect.schema_record import SchemaRecord, with_schemas
from streamlog.connect.transforms.field_transforms import ExtractField, InsertField
from streamlog.connect.transforms.key_or_value import struct_of_fields
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

WholeRecord = SchemaRecord[object, object]
ENVELOPE: Final = ".Envelope"
DELETED: Final = "__deleted"
_OF_ENVELOPE: Final = frozenset({"op", "ts_ms", "ts_us", "ts_ns"})
_OF_TRANSACTION: Final = frozenset({"id", "data_collection_order", "total_order"})
_REFERENCE: Final = re.compile(r"(?:(\w+)\.)?(\w+)(?::(\w+))?")
_AFTER: Final = ExtractField(field="after")
_BEFORE: Final = ExtractField(field="before")


@dataclass(frozen=True, slots=True)
class FieldReference:
    """A field of an envelope that goes into the row or a header."""

    struct: str | None
    """The struct of the envelope that has it; None for the envelope itself."""
    field: str
    new_name: str

    @classmethod
    def parse(cls, text: str, prefix: str) -> FieldReference:
        """Return what `op`, `source.lsn` or `lsn:position` means.

        Raises:
            ConfigError: the text is none of these.
        """
        found = _REFERENCE.fullmatch(text)
        if found is None:
            raise ConfigError(f"{text!r} is no field: write op, source.lsn, or lsn:position")
        struct, field, named = found.groups()
        own = named or (field if struct is None else f"{struct}_{field}")
        if struct is None and field not in _OF_ENVELOPE:
            struct = "transaction" if field in _OF_TRANSACTION else "source"
        return cls(struct, field, f"{prefix}{own}")

    def schema(self, envelope: Schema) -> Schema | None:
        """Return the schema of the field, which may be null; None: the envelope has none."""
        inner = envelope.field(self.struct) if self.struct is not None else None
        around = envelope if self.struct is None else None if inner is None else inner.schema
        found = None if around is None else around.field(self.field)
        found = found or envelope.field(self.field)
        return None if found is None else replace(found.schema, optional=True)

    def value(self, envelope: Mapping[str, object]) -> object:
        """Return the value of the field."""
        inner = envelope if self.struct is None else envelope.get(self.struct)
        if inner is None:
            return None
        row = fields_of(inner)
        return row[self.field] if self.field in row else envelope.get(self.field)


class ExtractNewRecordState(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the row of a change (Debezium's `io.debezium.transforms.ExtractNewRecordState`).

    Attributes:
        delete_tombstone_handling_mode: what becomes of a deletion and of the tombstone behind it:
            "drop" leaves both out; "tombstone" makes a null of the deletion and leaves the
            tombstone out; "rewrite" makes the row before of the deletion, with `__deleted`;
            "rewrite-with-tombstone" keeps the tombstone as well.
        drop_tombstones: deprecated: whether tombstones are left out.
        delete_handling_mode: deprecated: "drop" leaves deletions out, "none" makes nulls of them,
            "rewrite" makes rows of them.
        add_fields: fields of the envelope that the row gets: "op,source.lsn,table:origin".
        add_fields_prefix: what stands before their names.
        add_headers: fields of the envelope that become headers.
        add_headers_prefix: what stands before their names.
        route_by_field: the field of the row that names the topic.
        drop_fields_header_name: not supported.
        drop_fields_from_key: not supported.
        drop_fields_keep_schema_compatible: accepted, as no fields are dropped.
    """

    delete_tombstone_handling_mode: (
        Literal["drop", "tombstone", "rewrite", "rewrite-with-tombstone"] | None
    ) = None
    drop_tombstones: bool = True
    delete_handling_mode: Literal["drop", "none", "rewrite"] = "drop"
    add_fields: tuple[str, ...] = ()
    add_fields_prefix: str = "__"
    add_headers: tuple[str, ...] = ()
    add_headers_prefix: str = "__"
    route_by_field: str = ""
    drop_fields_header_name: str = ""
    drop_fields_from_key: bool = False
    drop_fields_keep_schema_compatible: bool = True

    def check(self) -> None:
        """Refuse what is not supported.

        Raises:
            ConfigError: the message names the setting.
        """
        self._references(self.add_fields, "")
        self._references(self.add_headers, "")
        for name, is_set in (
            ("drop.fields.header.name", bool(self.drop_fields_header_name)),
            ("drop.fields.from.key", self.drop_fields_from_key),
        ):
            if is_set:
                raise ConfigError(f"{name} is not supported: use ReplaceField with exclude")

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the row; None for what the settings leave out."""
        whole = with_schemas(record)
        envelope = whole.value_schema
        if whole.value is None:
            return self._tombstone(whole)
        is_envelope = (
            envelope is not None
            and (envelope.name or "").endswith(ENVELOPE)
            and envelope.field("after") is not None
        )
        if envelope is None or not is_envelope:
            return record
        value = fields_of(whole.value)
        # Debezium's own test of a deletion, so TRUNCATE, which has neither row, counts as one.
        row = value.get("after")
        is_deletion = row is None
        changed = self._with_headers(whole, envelope, value)
        if self.route_by_field:
            row = value.get("before") if is_deletion else row
            topic = None if row is None else fields_of(row).get(self.route_by_field)
            changed = replace(changed, topic=str(topic)) if topic else changed
        return self._row(changed, envelope, value, is_deletion=is_deletion)

    def _row(
        self,
        record: WholeRecord,
        envelope: Schema,
        value: Mapping[str, object],
        *,
        is_deletion: bool,
    ) -> AnyRecord | None:
        mode = self._mode
        if is_deletion and mode == "drop":
            return None
        # All rows have `__deleted`, and in those that stand for a deletion it is true.
        rewrites = mode.startswith("rewrite")
        made = (_BEFORE if is_deletion and rewrites else _AFTER)(record)
        if made is None or made.value is None:
            return made
        if rewrites:
            text = "true" if is_deletion else "false"
            made = InsertField(static_field=DELETED, static_value=text)(made) or made
        return self._with_fields(with_schemas(made), envelope, value)

    @property
    def _mode(self) -> str:
        if self.delete_tombstone_handling_mode is not None:
            return self.delete_tombstone_handling_mode
        return "tombstone" if self.delete_handling_mode == "none" else self.delete_handling_mode

    def _tombstone(self, record: WholeRecord) -> AnyRecord | None:
        mode = self.delete_tombstone_handling_mode
        is_kept = not self.drop_tombstones if mode is None else mode == "rewrite-with-tombstone"
        if not is_kept:
            return None
        # Nothing but the operation is known of a record that has no envelope.
        references = self._references(self.add_headers, self.add_headers_prefix)
        added = [(each.new_name, b"d") for each in references if each.field == "op"]
        return replace(record, headers=(*record.headers, *added))

    def _with_headers(
        self, record: WholeRecord, envelope: Schema, value: Mapping[str, object]
    ) -> WholeRecord:
        added = [
            (each.new_name, header_bytes(each.value(value), schema))
            for each in self._references(self.add_headers, self.add_headers_prefix)
            if (schema := each.schema(envelope)) is not None
        ]
        return replace(record, headers=(*record.headers, *added)) if added else record

    def _with_fields(
        self, record: WholeRecord, envelope: Schema, value: Mapping[str, object]
    ) -> WholeRecord:
        schema = record.value_schema
        if schema is None:
            return record
        # Without fields to add as well: Debezium's row is not optional, unlike `after`.
        row, fields = {**fields_of(record.value)}, [*schema.fields]
        for each in self._references(self.add_fields, self.add_fields_prefix):
            if (added := each.schema(envelope)) is not None:
                fields.append(Field(each.new_name, added))
                row[each.new_name] = each.value(value)
        return replace(record, value=row, value_schema=struct_of_fields(schema, fields))

    def _references(self, names: Sequence[str], prefix: str) -> list[FieldReference]:
        return [FieldReference.parse(each, prefix) for each in names]
