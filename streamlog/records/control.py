"""Control records: the markers with which a log says how a transaction has ended (KIP-98).

A control batch holds one record that no client sees. Its key is a version and a type, 0 for
ABORT and 1 for COMMIT; other types belong to Kafka's own quorum and mean nothing here. The value
of a marker is a version and the epoch of the coordinator that has written it. Producer id and
epoch stand in the batch's header, as for data. A control batch without a record is what
compaction leaves of a marker that is no longer needed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch, encode_batch

ABORT = 0
"""Type of a control record: the producer's transaction was aborted."""
COMMIT = 1
MARKERS = frozenset({ABORT, COMMIT})

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_TRANSACTIONAL_CONTROL = 0x30


class Marker(NamedTuple):
    """What a control record says."""

    kind: int
    """ABORT, COMMIT, or a type that is none of a transaction's."""
    coordinator_epoch: int
    """Of the coordinator that has written it; -1 if it is no marker."""


def encode_marker(marker: Marker, producer: tuple[int, int], *, timestamp_ms: int) -> bytes:
    """A control batch that ends the transaction of a producer (id, epoch), with base offset 0."""
    key = _KEY.pack(_VERSION, marker.kind)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    batch = bytearray(
        encode_batch(
            [(timestamp_ms, key, value, ())],
            producer_id=producer[0],
            producer_epoch=producer[1],
            transactional=True,
        )
    )
    struct.pack_into(">h", batch, _ATTRIBUTES_AT, _TRANSACTIONAL_CONTROL)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(batch[_ATTRIBUTES_AT:]))
    return bytes(batch)


def marker_of(batch: RecordBatch) -> Marker | None:
    """The record of a control batch; None if compaction has left it none.

    Raises:
        CorruptData: it is malformed.
    """
    records = batch.records()
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptData(f"the control record at offset {batch.base_offset} has key {key!r}")
    kind: int = _KEY.unpack_from(key)[1]
    if kind not in MARKERS:
        return Marker(kind, -1)
    if value is None or len(value) < _VALUE.size:
        raise CorruptData(f"the marker at offset {batch.base_offset} has value {value!r}")
    return Marker(kind, _VALUE.unpack_from(value)[1])
