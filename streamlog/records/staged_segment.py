"""Staged segments: files of whole record batches that wait to be appended to a log.

When they are staged, neither their offsets nor their producer is known. A batch's checksum does not
cover the offset, but covers the producer: `adopt_batches` sets the producer and recomputes the
checksum, at about the speed of memory.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from streamlog.records.batch import split_batches

_CRC_AT = 17
_ATTRIBUTES_AT = 21
_PRODUCER_AT = 43
_TRANSACTIONAL = 0x10
_INT16 = struct.Struct(">h")
_UINT32 = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
_NO_SEQUENCE = -1


class StagedSegment(NamedTuple):
    """A staged file of records for one partition."""

    topic: str
    partition: int
    name: str
    """The file's name, unique within its job."""
    size_bytes: int
    record_count: int
    crc32c: int
    """CRC-32C of the whole file."""


class AdoptedBatches(NamedTuple):
    """Batches with their producer set."""

    data: bytearray
    """Whole batches, without a partial one at the end."""
    record_count: int


def adopt_batches(
    data: bytes | bytearray | memoryview, producer_id: int, producer_epoch: int
) -> AdoptedBatches:
    """Return the whole batches in `data` as part of a producer's transaction.

    Raises:
        CorruptData: a batch is damaged.
    """
    own = bytearray(data)
    position = record_count = 0
    with memoryview(own) as view:
        for batch in split_batches(view):
            batch.check_crc()  # First: the new checksum below would hide any damage.
            attributes = batch.attributes | _TRANSACTIONAL
            end = position + batch.size_bytes
            _INT16.pack_into(own, position + _ATTRIBUTES_AT, attributes)
            _PRODUCER.pack_into(
                own, position + _PRODUCER_AT, producer_id, producer_epoch, _NO_SEQUENCE
            )
            # The CRC covers the attributes and all behind them, so it is computed last.
            with view[position + _ATTRIBUTES_AT : end] as sealed:
                _UINT32.pack_into(own, position + _CRC_AT, crc32c(sealed))
            record_count += batch.record_count
            position = end
            # The batch holds a view of `own`, which can't be shortened below while views exist.
            del batch
    del own[position:]
    return AdoptedBatches(own, record_count)
