"""Transforms: Kafka Connect's single message transforms and predicates, and one of Debezium's.

Each is a Struct whose fields are its settings, and a function from a record to a record or None:
`MaskField(fields=("card",))` in code, `transforms.mask.type=...MaskField$Value` in a configuration
(`transform_chain`). They work on rows with a schema (`SchemaRecord`) and without.
"""

from streamlog.connect.transforms.field_transforms import (
    ExtractField,
    Flatten,
    HoistField,
    InsertField,
    ReplaceField,
    SetSchemaMetadata,
    ValueToKey,
)
from streamlog.connect.transforms.header_transforms import DropHeaders, HeaderFrom, InsertHeader
from streamlog.connect.transforms.new_record_state import ExtractNewRecordState
from streamlog.connect.transforms.predicates import FilterTransform as Filter
from streamlog.connect.transforms.predicates import (
    HasHeaderKey,
    RecordIsTombstone,
    TopicNameMatches,
)
from streamlog.connect.transforms.routing import RegexRouter, TimestampRouter
from streamlog.connect.transforms.timestamp_converter import TimestampConverter
from streamlog.connect.transforms.value_transforms import Cast, MaskField

__all__ = [
    "Cast",
    "DropHeaders",
    "ExtractField",
    "ExtractNewRecordState",
    "Filter",
    "Flatten",
    "HasHeaderKey",
    "HeaderFrom",
    "HoistField",
    "InsertField",
    "InsertHeader",
    "MaskField",
    "RecordIsTombstone",
    "RegexRouter",
    "ReplaceField",
    "SetSchemaMetadata",
    "TimestampConverter",
    "TimestampRouter",
    "TopicNameMatches",
    "ValueToKey",
]
