"""Encoding of the metadata log's entries and snapshots as Kafka's record batches.

An entry's payload is a whole batch that contains its base offset and epoch, so that the same bytes
are on disk, on the wire and in tools that read logs. A leader's first entry of its epoch is a
control batch (KIP-595), and so are the header and the footer of a snapshot (KIP-630).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from streamlog.broker.quorum.raft.raft_messages import Entry
from streamlog.errors import CorruptData
from streamlog.protocol.codec import encode
from streamlog.protocol.messages.quorum_messages import (
    LeaderChangeMessage,
    QuorumVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
)
from streamlog.records.batch import RecordBatch, set_offset_and_epoch, split_batches
from streamlog.records.builder import encode_batch
from streamlog.records.control_batches import (
    LEADER_CHANGE,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    control_kind,
    encode_control,
)
from streamlog.replace import replace

SNAPSHOT_BATCH_RECORDS = 500
"""Records in one batch of a snapshot."""


def encode_entry(values: Sequence[bytes], *, base_offset: int, epoch: int, wall_ms: int) -> Entry:
    """Return an entry with one record per value, without keys, at the time `wall_ms`.

    Raises:
        MessageTooLarge: the values do not fit into one batch.
    """
    batch = encode_batch([(wall_ms, None, value, ()) for value in values])
    return Entry(
        base_offset=base_offset,
        count=len(values),
        epoch=epoch,
        payload=_with_offset_and_epoch(batch, base_offset, epoch),
    )


def encode_leader_change(
    entry: Entry, *, leader_id: int, voters: Iterable[int], wall_ms: int
) -> Entry:
    """Return a control entry of the leader with its payload, a LeaderChangeMessage."""
    members = [QuorumVoter(voter_id=each) for each in voters]
    message = LeaderChangeMessage(leader_id=leader_id, voters=members)
    batch = encode_control(LEADER_CHANGE, encode(message, 0), timestamp_ms=wall_ms)
    return replace(entry, payload=_with_offset_and_epoch(batch, entry.base_offset, entry.epoch))


def entry_of(batch: RecordBatch) -> Entry:
    """Return the entry whose payload is this batch.

    Raises:
        CorruptData: the batch's CRC is wrong.
    """
    batch.check_crc()
    return Entry(
        base_offset=batch.base_offset,
        count=batch.last_offset_delta + 1,
        epoch=batch.leader_epoch,
        payload=bytes(batch.data),
        is_control=batch.is_control,
    )


def entries_of(data: bytes | bytearray | memoryview) -> list[Entry]:
    """Return the entries in the record batches of a fetch response.

    Raises:
        CorruptData: a batch is damaged or cut off.
    """
    return [entry_of(batch) for batch in split_batches(data)]


def records_of(entry: Entry) -> Iterator[tuple[int, bytes]]:
    """Iterate over offset and value of an entry's records; a control entry has none.

    Raises:
        CorruptData: a record is malformed, or has no value.
    """
    if entry.is_control:
        return
    for offset, record in enumerate(RecordBatch(entry.payload).records(), entry.base_offset):
        if record.value is None:
            raise CorruptData(f"the metadata record at offset {offset} has no value")
        yield offset, record.value


def encode_snapshot(values: Iterable[bytes], *, epoch: int, wall_ms: int) -> Iterator[bytes]:
    """Iterate over the batches of a snapshot: the header, the records, the footer.

    `epoch` and `wall_ms` are the epoch and the time of the last record that the snapshot covers.
    """
    header = SnapshotHeaderRecord(last_contained_log_timestamp=wall_ms)
    batch = encode_control(SNAPSHOT_HEADER, encode(header, 0), timestamp_ms=wall_ms)
    yield _with_offset_and_epoch(batch, 0, epoch)
    offset = 1  # The header has offset 0.
    pending: list[bytes] = []
    for value in values:
        pending.append(value)
        if len(pending) == SNAPSHOT_BATCH_RECORDS:
            yield encode_entry(pending, base_offset=offset, epoch=epoch, wall_ms=wall_ms).payload
            offset += len(pending)
            pending = []
    if pending:
        yield encode_entry(pending, base_offset=offset, epoch=epoch, wall_ms=wall_ms).payload
        offset += len(pending)
    footer = encode(SnapshotFooterRecord(), 0)
    yield _with_offset_and_epoch(
        encode_control(SNAPSHOT_FOOTER, footer, timestamp_ms=wall_ms), offset, epoch
    )


def decode_snapshot(data: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """Iterate over the values in a snapshot.

    Raises:
        CorruptData: a batch is damaged, or the header or the footer is missing.
    """
    kinds: list[int | None] = []
    size_bytes = 0
    next_offset = 0
    for batch in split_batches(data):
        entry = entry_of(batch)
        if entry.base_offset != next_offset:
            raise CorruptData(
                f"a snapshot continues at offset {entry.base_offset} instead of {next_offset}"
            )
        next_offset = entry.next_offset
        size_bytes += batch.size_bytes
        kinds.append(control_kind(batch) if batch.is_control else None)
        yield from (value for _, value in records_of(entry))
    # A snapshot without its footer was cut off between two batches: each of them is sound.
    ends = kinds[:1] + kinds[-1:]
    if ends != [SNAPSHOT_HEADER, SNAPSHOT_FOOTER] or size_bytes != len(data):
        raise CorruptData(
            f"a snapshot of {len(data)} bytes is incomplete: only the first {size_bytes} bytes are"
            " whole batches, or its header or footer is missing"
        )


def _with_offset_and_epoch(batch: bytes, base_offset: int, epoch: int) -> bytes:
    # The CRC of a batch covers neither its base offset nor its leader epoch, so it stays valid.
    entry_batch = bytearray(batch)
    set_offset_and_epoch(entry_batch, base_offset, epoch)
    return bytes(entry_batch)
