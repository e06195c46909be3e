"""Transactional ids: who writes transactional batches names one in the Produce request.

A request without one that has such a batch is refused as a whole, as Kafka does it: before its
topics and its `acks` are looked at, and by the header of the first batch of each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamlog.errors import CorruptData
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.schema import one_buffer
from streamlog.records.batch import HEADER_BYTES, RecordBatch

if TYPE_CHECKING:
    from streamlog.errors import LogError
    from streamlog.protocol.messages.produce_and_fetch import ProduceRequest
    from streamlog.protocol.schema import Buffer

_ATTRIBUTES_LOW_AT: Final = 22
"""The second byte of a batch's attributes."""
_TRANSACTIONAL: Final = 0x10
"""The bit of it that says that a transaction has written the batch."""


def refusal_without_id(request: ProduceRequest) -> LogError | None:
    """Why a request is refused that has transactional batches and no transactional id."""
    if request.transactional_id is not None:
        return None
    pieces = (one_buffer(p.records) for t in request.topic_data for p in t.partition_data)
    return next(filter(None, map(refusal_of_transactional, pieces)), None)


def refusal_of_transactional(records: Buffer) -> LogError | None:
    """Why a request without a transactional id is refused: its first batch is transactional."""
    if len(records) < HEADER_BYTES or not records[_ATTRIBUTES_LOW_AT] & _TRANSACTIONAL:
        return None
    try:
        if not RecordBatch(records).is_transactional:
            return None
    except CorruptData:
        return None  # The log says what is wrong with it.
    return error_for(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "a transactional batch was sent in a request without a transactional id",
    )
