"""AppHistory from batches: the transactions and positions that mirrors of a source's logs hold.

Three kinds of logs tell of a transaction: the partitions that it has written to, the source's
`__transaction_state` with the names of these partitions, and its `__consumer_offsets` with the
positions that it commits. Their records have Kafka's form, so the source may be Apache Kafka.

Each reader takes the batches of one partition in their order, and keeps only what a cut needs:
batches older than the last mark (`app_marks`) take no memory.

Pure. Not done here: the cut (`app_cut`), and fetching the batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from streamlog.broker.mirroring.apps.app_cut import (
    LoggedTransaction,
    PartitionScan,
    Positions,
    Span,
    TransactionName,
    Where,
)
from streamlog.protocol.codec import decode_versioned
from streamlog.protocol.messages.classic_groups import OffsetCommitKey, OffsetCommitValue
from streamlog.protocol.messages.metadata_log import MarkedPartition
from streamlog.protocol.messages.transaction_messages import TransactionLogKey, TransactionLogValue
from streamlog.records.batch import LogRecord, RecordBatch
from streamlog.records.control_batches import COMMIT, MARKERS, marker_of

PREPARE_COMMIT, PREPARE_ABORT = 2, 3
"""The states in which a record of `__transaction_state` names an ended transaction's partitions."""
OFFSET_KEY_VERSION = 1
"""Keys of later versions are of groups, not of positions."""


class SpanReader:
    """Reads the transactions in a partition.

    Args:
        names_matter: whether a cut may be before one of them, see `PartitionScan`.
    """

    def __init__(self, *, names_matter: bool = True) -> None:
        self._scan = PartitionScan(names_matter=names_matter)

    def add(self, batch: RecordBatch) -> None:
        """Read a batch.

        Raises:
            LogError: a producer commits several transactions in one epoch.
            CorruptData: a marker is malformed.
        """
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if batch.is_control:
            marker = marker_of(batch)
            if marker is not None and marker.kind in MARKERS:
                commits = marker.kind == COMMIT
                self._scan.on_marker(producer_id, epoch, batch.base_offset, commits=commits)
        elif batch.is_transactional:
            self._scan.on_records(producer_id, epoch, batch.base_offset)

    def spans(self) -> tuple[Span, ...]:
        """Return the transactions that were found, those that are still open last."""
        return self._scan.spans()

    def check_names(self) -> None:
        """Check after the fact that transactions have names.

        Raises:
            LogError: a producer commits several transactions in one epoch.
        """
        if self._scan.nameless is not None:
            raise self._scan.nameless


def spans_in(batches: Iterable[RecordBatch]) -> tuple[Span, ...]:
    """Return the transactions in a partition's batches, see `SpanReader`."""
    reader = SpanReader()
    for batch in batches:
        reader.add(batch)
    return reader.spans()


class TransactionLog:
    """Reads a partition of the log of transactions, from its start.

    Args:
        mark: that of the partition; without one, all transactions are kept.
        app: an app, whose topics are looked for.
    """

    def __init__(self, mark: MarkedPartition | None = None, app: str = "") -> None:
        self._mark = mark or MarkedPartition()
        self._ids = f"{app}-"
        self.written: set[str] = set()
        """The topics that producers of the app have written, also before the mark."""
        self.producers: set[int] = set()
        """The producers of the app."""
        self._due: int | None = None
        self._kept: dict[TransactionName, LoggedTransaction] = {}
        self._ending: dict[bytes, tuple[TransactionName, LoggedTransaction]] = {}
        self._has_gap = False

    def add(self, batch: RecordBatch) -> None:
        """Read a batch.

        Raises:
            CorruptData: a record is malformed.
        """
        self._note_gap(batch)
        for record in () if batch.is_control else batch.records():
            self._add(record)

    def _note_gap(self, batch: RecordBatch) -> None:
        due = batch.base_offset if self._due is None else self._due
        self._due = batch.next_offset
        is_whole = due == batch.base_offset and batch.record_count == batch.last_offset_delta + 1
        mark = self._mark
        if not is_whole and due < mark.whole_below and batch.next_offset > mark.scan_from:
            self._has_gap = True

    def _add(self, record: LogRecord) -> None:
        key = record.key or b""
        value = (
            None if record.value is None else decode_versioned(TransactionLogValue, record.value)
        )
        is_of_app = value is not None and _is_of(key, self._ids)
        if value is not None and is_of_app:
            self.producers.add(value.producer_id)
        if value is None or value.transaction_status not in (PREPARE_COMMIT, PREPARE_ABORT):
            # It has ended everywhere. After the mark's later look that says nothing of the mirrors.
            if record.offset < self._mark.settled_below:
                self._ending.pop(key, None)
            return
        # The record of the completion has no partitions any more.
        partitions = frozenset(
            (each.topic, number)
            for each in value.transaction_partitions or ()
            for number in each.partition_ids
        )
        if is_of_app:
            self.written.update(topic for topic, _ in partitions)
        name = value.producer_id, value.producer_epoch
        logged = LoggedTransaction(partitions, commits=value.transaction_status == PREPARE_COMMIT)
        if record.offset < self._mark.scan_from:
            self._ending[key] = name, logged
        else:
            self._kept[name] = logged

    @property
    def has_gap(self) -> bool:
        """Whether compaction may have removed decisions of the mark's time before their copy."""
        mark = self._mark
        is_short = (self._due or 0) < mark.whole_below and mark.scan_from < mark.whole_below
        return self._has_gap or is_short

    @property
    def unsettled(self) -> list[TransactionName]:
        """The transactions that were decided before the mark and had not ended by then."""
        return [name for name, _ in self._ending.values()]

    def transactions(self) -> dict[TransactionName, LoggedTransaction]:
        """Return the decided transactions, without those that had ended before the mark."""
        return {**dict(self._ending.values()), **self._kept}


def _is_of(key: bytes, ids: str) -> bool:
    return decode_versioned(TransactionLogKey, key).transactional_id.startswith(ids)


def logged_transactions(
    batches: Iterable[RecordBatch],
) -> dict[TransactionName, LoggedTransaction]:
    """Return the ended transactions in batches of `__transaction_state`.

    Raises:
        CorruptData: a record is malformed.
    """
    log = TransactionLog()
    for batch in batches:
        log.add(batch)
    return log.transactions()


class Committed(NamedTuple):
    """A committed position as it was written."""

    offset: int
    metadata: str


class PositionLog:
    """Reads a partition of committed offsets, from its start.

    Args:
        where: the partition.
        scan_from: transactions with a marker below were whole at the last mark.
        group: the only group that counts; None for all.
    """

    def __init__(self, where: Where, scan_from: int = 0, group: str | None = None) -> None:
        self._where = where
        self._scan_from = scan_from
        self._group = group
        self._open: dict[int, dict[tuple[str, Where], Committed | None]] = {}
        self.by_transaction: dict[TransactionName, list[Positions]] = {}
        self.texts: dict[tuple[TransactionName, tuple[str, Where]], str] = {}
        """The metadata of the positions."""
        self.before: dict[tuple[str, Where], Committed] = {}
        """Where each group stood at the last mark; and what was committed without a transaction."""

    def add(self, batch: RecordBatch) -> None:
        """Read a batch.

        Raises:
            CorruptData: a record is malformed.
        """
        if batch.is_control:
            found = self._open.pop(batch.producer_id, {})
            marker = marker_of(batch)
            if marker is not None and marker.kind == COMMIT:
                self._commit((batch.producer_id, batch.producer_epoch), batch.base_offset, found)
        elif batch.is_transactional:
            self._open.setdefault(batch.producer_id, {}).update(self._positions(batch))
        else:
            self._settle(dict(self._positions(batch)))

    def _positions(
        self, batch: RecordBatch
    ) -> Iterator[tuple[tuple[str, Where], Committed | None]]:
        for record in batch.records():
            # A key begins with its version, as a 16-bit integer.
            key = record.key or b""
            if int.from_bytes(key[:2], signed=True) > OFFSET_KEY_VERSION:
                continue
            named = decode_versioned(OffsetCommitKey, key)
            if self._group not in (None, named.group):
                continue
            about = named.group, (named.topic, named.partition)
            if record.value is None:
                yield about, None
            else:
                value = decode_versioned(OffsetCommitValue, record.value)
                yield about, Committed(value.offset, value.metadata)

    def _commit(
        self,
        name: TransactionName,
        offset: int,
        found: dict[tuple[str, Where], Committed | None],
    ) -> None:
        if offset < self._scan_from:
            self._settle(found)
            return
        groups: dict[str, dict[Where, int]] = {}
        for (group, where), position in found.items():
            if position is not None:
                groups.setdefault(group, {})[where] = position.offset
                self.texts[name, (group, where)] = position.metadata
        self.by_transaction[name] = [
            Positions(group, self._where, offsets) for group, offsets in groups.items()
        ]

    def _settle(self, found: dict[tuple[str, Where], Committed | None]) -> None:
        for about, position in found.items():
            if position is None:
                self.before.pop(about, None)
            else:
                self.before[about] = position


def committed_positions(
    where: Where, batches: Iterable[RecordBatch]
) -> dict[TransactionName, list[Positions]]:
    """Return the positions that transactions have committed in a partition of committed offsets.

    Raises:
        CorruptData: a record is malformed.
    """
    log = PositionLog(where)
    for batch in batches:
        log.add(batch)
    return log.by_transaction
