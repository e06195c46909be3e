"""Connect: the ports of connectors, which carry records into topics and out of them.

A connector is a class of its own settings. A `Source` reads from outside into a topic; a `Sink`
opens a `SinkTask`, which writes a topic to the outside. The runtime (worker, service or test
driver) keeps their offsets, retries, restarts them and applies the error policies, so a connector
has none of that. docs/connect.md shows how to write one.

Rule of the room: pure. No I/O, clock or chance, and no knowledge of the wire; what a connector
needs of its surroundings comes with its context.
"""

from streamlog.connect.connector_errors import (
    BadRecord,
    BadRecords,
    ConnectError,
    Fenced,
    Refused,
    Retriable,
)
from streamlog.connect.row_schema import Field, Kind, Schema, attributes_of, fields_of
from streamlog.connect.secrets import Secret
from streamlog.connect.sink import Batch, Effect, Flush, OwnLog, Sink, SinkContext, SinkTask
from streamlog.connect.source import (
    Guarantee,
    Json,
    Read,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
    Transform,
)
from streamlog.record import TopicPartition
from streamlog.records.byte_spans import ByteSpans, cut_lines

__all__ = [
    "BadRecord",
    "BadRecords",
    "Batch",
    "ByteSpans",
    "ConnectError",
    "Effect",
    "Fenced",
    "Field",
    "Flush",
    "Guarantee",
    "Json",
    "Kind",
    "OwnLog",
    "Read",
    "Refused",
    "Retriable",
    "Schema",
    "Secret",
    "Sink",
    "SinkContext",
    "SinkTask",
    "Source",
    "SourceContext",
    "SourceOffset",
    "SourcePartition",
    "TopicPartition",
    "Transform",
    "attributes_of",
    "cut_lines",
    "fields_of",
]
