"""AppHistory from batches: the transactions and positions that mirrors of a source's logs hold.

Three kinds of logs tell of a transaction: the partitions that it has written to, the source's
`__transaction_state` with the names of these partitions, and its `__consumer_offsets` with the
positions that it commits. Their records are Kafka's, so the source may be Apache Kafka.

Pure. Not done here: the cut (`app_cut`), and where the batches come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlog.broker.mirroring.app_cut import (
    LoggedTransaction,
    PartitionScan,
    Positions,
    Span,
    TransactionName,
    Where,
)
from streamlog.protocol.codec import decode_versioned
from streamlog.protocol.messages.classic_groups import OffsetCommitKey, OffsetCommitValue
from streamlog.protocol.messages.transaction_messages import TransactionLogValue
from streamlog.records.batch import RecordBatch
from streamlog.records.control_batches import COMMIT, MARKERS, marker_of

PREPARE_COMMIT, PREPARE_ABORT = 2, 3
"""The states in which a record of `__transaction_state` names an ended transaction's partitions."""
OFFSET_KEY_VERSION = 1
"""Keys of later versions are of groups, not of positions."""


def spans_in(batches: Iterable[RecordBatch]) -> tuple[Span, ...]:
    """Return the transactions in a partition's batches, from its start.

    Raises:
        LogError: a producer commits several transactions in one epoch.
        CorruptData: a marker is malformed.
    """
    scan = PartitionScan()
    for batch in batches:
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if batch.is_control:
            marker = marker_of(batch)
            if marker is not None and marker.kind in MARKERS:
                commits = marker.kind == COMMIT
                scan.on_marker(producer_id, epoch, batch.base_offset, commits=commits)
        elif batch.is_transactional:
            scan.on_records(producer_id, epoch, batch.base_offset)
    return scan.spans()


def logged_transactions(
    batches: Iterable[RecordBatch],
) -> dict[TransactionName, LoggedTransaction]:
    """Return the ended transactions in batches of `__transaction_state`.

    Raises:
        CorruptData: a record is malformed.
    """
    found: dict[TransactionName, LoggedTransaction] = {}
    for batch in batches:
        for record in () if batch.is_control else batch.records():
            if record.value is None:
                continue
            value = decode_versioned(TransactionLogValue, record.value)
            # The record of the completion has no partitions any more.
            if value.transaction_status in (PREPARE_COMMIT, PREPARE_ABORT):
                partitions = frozenset(
                    (each.topic, number)
                    for each in value.transaction_partitions or ()
                    for number in each.partition_ids
                )
                found[value.producer_id, value.producer_epoch] = LoggedTransaction(
                    partitions, commits=value.transaction_status == PREPARE_COMMIT
                )
    return found


def committed_positions(
    where: Where, batches: Iterable[RecordBatch]
) -> dict[TransactionName, list[Positions]]:
    """Return the positions that transactions have committed in a partition of committed offsets.

    Raises:
        CorruptData: a record is malformed.
    """
    found: dict[TransactionName, list[Positions]] = {}
    written: dict[int, dict[str, dict[Where, int]]] = {}
    for batch in batches:
        if batch.is_control:
            groups = written.pop(batch.producer_id, {})
            marker = marker_of(batch)
            if marker is not None and marker.kind == COMMIT:
                found[batch.producer_id, batch.producer_epoch] = [
                    Positions(group, where, offsets) for group, offsets in groups.items()
                ]
        elif batch.is_transactional:
            groups = written.setdefault(batch.producer_id, {})
            for group, partition, offset in _positions(batch):
                groups.setdefault(group, {})[partition] = offset
    return found


def _positions(batch: RecordBatch) -> Iterator[tuple[str, Where, int]]:
    for record in batch.records():
        # A key begins with its version, as a 16-bit integer.
        key = record.key or b""
        if record.value is None or int.from_bytes(key[:2], signed=True) > OFFSET_KEY_VERSION:
            continue
        named = decode_versioned(OffsetCommitKey, key)
        offset = decode_versioned(OffsetCommitValue, record.value).offset
        yield named.group, (named.topic, named.partition), offset
