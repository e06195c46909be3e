"""Serdes: from the bytes of a key or value to the type that was declared for it, and back.

`serde_for` chooses a serde for a declared type (`choice`): text, bytes and numbers as Kafka's own
serializers write them (`plain`), `Windowed[K]` (`windowed_keys`), all other types as JSON
(`json_values`). Values without a declared type are MessagePack (`msgpack`). A user chooses Avro by
passing its serde (`avro`). A type that has changed reads older data through a migration
(`migrations`). `derived` makes schemas of declared types, and `registered` has the serdes whose
schemas a registry keeps. `erased_types` names what the engine
does not know of a user's types.

Rule: a serde never sees None, because a tombstone is a record without a value. Not done here:
requests to a registry, and reading pickled data.
"""

from __future__ import annotations

from streamlog.serdes.avro import AvroSerde
from streamlog.serdes.choice import from_json, from_text, serde_for
from streamlog.serdes.derived import Digits, FieldNumber
from streamlog.serdes.json_values import JsonSerde, ModelSerde, display_json, schema_of
from streamlog.serdes.migrations import MigratingSerde, migration
from streamlog.serdes.msgpack import PACKED, PackedSerde, msgpack_serde_of
from streamlog.serdes.plain import BytesSerde, FloatSerde, IntSerde, StrSerde, WideIntSerde
from streamlog.serdes.registered import TopicSchema
from streamlog.serdes.serde import SHOWN_BYTES, Serde, declared_by, form_of, type_name
from streamlog.serdes.windowed_keys import (
    END_AND_START,
    START_AND_END,
    Layout,
    StartOnly,
    WindowedSerde,
    span_of,
    window_bytes,
    windowed_bytes,
)

__all__ = [
    "END_AND_START",
    "PACKED",
    "SHOWN_BYTES",
    "START_AND_END",
    "AvroSerde",
    "BytesSerde",
    "Digits",
    "FieldNumber",
    "FloatSerde",
    "IntSerde",
    "JsonSerde",
    "Layout",
    "MigratingSerde",
    "ModelSerde",
    "PackedSerde",
    "Serde",
    "StartOnly",
    "StrSerde",
    "TopicSchema",
    "WideIntSerde",
    "WindowedSerde",
    "declared_by",
    "display_json",
    "form_of",
    "from_json",
    "from_text",
    "migration",
    "msgpack_serde_of",
    "schema_of",
    "serde_for",
    "span_of",
    "type_name",
    "window_bytes",
    "windowed_bytes",
]
