"""Serdes: the bytes of a key or value to the type that was declared for it, and back.

`serde_for(type)` chooses (`choice`): text, bytes and numbers as Kafka's own serializers (`plain`),
`Windowed[K]` (`windowed`), models of pydantic (`models`), and all other types as JSON by msgspec
(`json_values`); what no type was declared for is MessagePack (`packed`). Avro is for whoever asks
for it (`avro`). Types that have changed read what was written before by a function (`migrations`).
Rule of the room: `None` never comes here, as it is a tombstone, written as no bytes at all. Not
done here: registries, and reading what others pickled.
"""

from __future__ import annotations

from streamlog.serdes.avro import AvroSerde
from streamlog.serdes.choice import from_json, from_text, serde_for
from streamlog.serdes.json_values import JsonSerde, ModelSerde, display_json, schema_of
from streamlog.serdes.migrations import MigratingSerde, migration
from streamlog.serdes.msgpack import PACKED, PackedSerde, msgpack_serde_of
from streamlog.serdes.plain import BytesSerde, FloatSerde, IntSerde, StrSerde, WideIntSerde
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
