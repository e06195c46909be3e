"""Control batches: transaction markers and time marks; and the batches of aborted transactions.

A reader of committed records skips a producer's batches between the first offset of an aborted
transaction and its marker (KIP-98).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch, encode_batch

ABORT = 0
"""Type of a control record: the producer's transaction was aborted."""
COMMIT = 1
LEADER_CHANGE = 2
"""The first entry of a quorum leader in its epoch (KIP-595)."""
SNAPSHOT_HEADER = 3
SNAPSHOT_FOOTER = 4
MARKERS = frozenset({ABORT, COMMIT})
TIME_MARK = 0x534C
"""Our own type, far from the types of Kafka: "SL" in ASCII."""

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_ELAPSED = struct.Struct(">hq")
_CLOCKS_VERSION = 1
_COUNT = struct.Struct(">H")
_CLOCK_TIME = struct.Struct(">Hq")
CLOCKS_MAX = 64
"""The most clocks in one mark."""
CLOCK_BYTES_MAX = 300
"""The most bytes of a clock's name, which is a group's id and a digest."""
_CONTROL = 0x20
_TRANSACTIONAL_CONTROL = 0x30


class Marker(NamedTuple):
    """The content of a control record."""

    kind: int
    """ABORT, COMMIT, or the type of another control record."""
    coordinator_epoch: int
    """The epoch of the coordinator that wrote it; -1 for other control records."""
    raises_epoch: bool = False
    """Whether its producer epoch is the one after the transaction's (KIP-890); not stored."""


class ClockTime(NamedTuple):
    """The event time to which a mark moves the readers that share one clock."""

    clock: str
    """The name of the readers' clock, see `clock_of`."""
    time_ms: int


def clock_of(group: str, digest: str) -> str:
    """Return the name of an app's clock; `digest` identifies how it reads event time."""
    return f"{group}:{digest}"


def group_of(clock: str) -> str:
    """Return the group whose readers use this clock."""
    return clock.rpartition(":")[0]


class TimeMark(NamedTuple):
    """A mark that nothing was appended for some time, and that event time has passed meanwhile.

    A reader whose event time was t before the mark may expect no record older than
    t + `elapsed_ms`. So its effect depends only on what is before it in the log.
    """

    offset: int
    """The offset of the mark."""
    elapsed_ms: int
    """Milliseconds since the last append before the mark, which may be another mark."""
    clock_times: tuple[ClockTime, ...] = ()
    """Least event times of readers, by clock: the time that an application had reached in the other
    partitions of the topic while this one was quiet or empty."""

    def time_behind(self, time_ms: int, clock: str) -> int:
        """Return a reader's event time after this mark.

        Args:
            time_ms: its event time before the mark; -1 if it has none, which stays so unless the
                mark names the reader's clock.
            clock: the reader's clock.
        """
        # Both only move time forward: a clock's time that is behind the reader's changes nothing.
        clock_ms = max(
            (each.time_ms for each in self.clock_times if each.clock == clock), default=-1
        )
        return max(time_ms + self.elapsed_ms if time_ms >= 0 else time_ms, clock_ms)


def encode_marker(marker: Marker, producer: tuple[int, int], *, timestamp_ms: int) -> bytes:
    """Encode the marker that ends a transaction of a producer (id, epoch), with base offset 0."""
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
    return _sealed(batch, _TRANSACTIONAL_CONTROL)


def encode_time_mark(
    elapsed_ms: int, timestamp_ms: int, reached: Sequence[ClockTime] = ()
) -> bytes:
    """Encode a time mark, with base offset 0."""
    key = _KEY.pack(_VERSION, TIME_MARK)
    value = _ELAPSED.pack(_CLOCKS_VERSION if reached else _VERSION, elapsed_ms)
    if reached:
        value += _COUNT.pack(len(reached))
        for clock, time_ms in reached:
            name = clock.encode()
            value += _CLOCK_TIME.pack(len(name), time_ms) + name
    return _sealed(bytearray(encode_batch([(timestamp_ms, key, value, ())])), _CONTROL)


def encode_control(kind: int, value: bytes, *, timestamp_ms: int) -> bytes:
    """Encode a control batch of the quorum, with base offset 0 and no producer."""
    key = _KEY.pack(_VERSION, kind)
    return _sealed(bytearray(encode_batch([(timestamp_ms, key, value, ())])), _CONTROL)


def control_kind(batch: RecordBatch) -> int | None:
    """Return the type of a control batch; None if compaction has removed its record.

    Raises:
        CorruptData: the batch is malformed.
    """
    found = _record(batch)
    return None if found is None else found[0]


def _sealed(batch: bytearray, attributes: int) -> bytes:
    # `encode_batch` can't set the control attribute; the CRC covers it, and is computed anew.
    struct.pack_into(">h", batch, _ATTRIBUTES_AT, attributes)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(batch[_ATTRIBUTES_AT:]))
    return bytes(batch)


def marker_of(batch: RecordBatch) -> Marker | None:
    """Return the content of a control batch; None if compaction has removed its record.

    Raises:
        CorruptData: the batch is malformed.
    """
    found = _record(batch)
    if found is None:
        return None
    kind, value = found
    if kind not in MARKERS:
        return Marker(kind, -1)
    if value is None or len(value) < _VALUE.size:
        raise CorruptData(
            f"the marker at offset {batch.base_offset} has a malformed value: {value!r}"
        )
    return Marker(kind, _VALUE.unpack_from(value)[1])


def time_mark_of(batch: RecordBatch) -> TimeMark | None:
    """Return the time mark in a control batch; None if the batch holds something else.

    Raises:
        CorruptData: the batch is malformed.
    """
    found = _record(batch)
    if found is None or found[0] != TIME_MARK:
        return None
    value = found[1] or b""
    try:
        # Newer versions may have more behind these fields, which is ignored.
        version, elapsed_ms = _ELAPSED.unpack_from(value)
        clock_times = tuple(_clock_times(value)) if version >= _CLOCKS_VERSION else ()
    # Short values and negative times are one error, with the value in its message.
    except (struct.error, UnicodeDecodeError):
        elapsed_ms, clock_times = -1, ()
    if elapsed_ms < 0:
        raise CorruptData(
            f"the time mark at offset {batch.base_offset} has a malformed value: {value!r}"
        )
    return TimeMark(batch.base_offset, elapsed_ms, clock_times)


def _clock_times(value: bytes) -> Iterator[ClockTime]:
    (count,) = _COUNT.unpack_from(value, _ELAPSED.size)
    at = _ELAPSED.size + _COUNT.size
    for _ in range(count):
        length, time_ms = _CLOCK_TIME.unpack_from(value, at)
        at += _CLOCK_TIME.size
        yield ClockTime(value[at : at + length].decode(), time_ms)
        at += length


def _record(batch: RecordBatch) -> tuple[int, bytes | None] | None:
    """Return type and value of the record in a control batch; None if it has no record."""
    records = batch.records()
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptData(
            f"the control record at offset {batch.base_offset} has a malformed key: {key!r}"
        )
    kind: int = _KEY.unpack_from(key)[1]
    return kind, value


UNTIL_MARKER: Final = 2**63 - 1
"""The last offset of a transaction whose marker has not been read yet."""

MarkerOf: TypeAlias = Callable[[RecordBatch], Marker | None]
"""Reads the marker of a control batch; raises CorruptData if it is malformed."""


class AbortedRange(NamedTuple):
    """The offsets of an aborted transaction, whose batches readers skip."""

    producer_id: int
    first_offset: int
    last_offset: int = UNTIL_MARKER
    """The offset of the transaction's marker."""


class AbortedBatches:
    """Finds the batches of aborted transactions in a partition."""

    __slots__ = ("_marker_of", "_ranges")

    def __init__(
        self, ranges: Iterable[AbortedRange] = (), *, marker_of: MarkerOf = marker_of
    ) -> None:
        self._marker_of = marker_of
        self._ranges: dict[int, list[AbortedRange]] = {}  # by producer, in order of offset
        for each in sorted(ranges, key=_first_offset):
            self.add(each)

    def add(self, aborted: AbortedRange) -> None:
        """Add a transaction, which must begin after the known ones of its producer."""
        self._ranges.setdefault(aborted.producer_id, []).append(aborted)

    def hides(self, batch: RecordBatch) -> bool:
        """Whether readers of committed records skip a batch of an aborted transaction.

        If the last offsets of transactions are unknown, call it for every batch in order, control
        batches included: their markers end the transactions.

        Raises:
            CorruptData: a control batch that may end a transaction is malformed.
        """
        if not self._ranges:
            return False
        ranges = self._ranges.get(batch.producer_id)
        if ranges is None:
            return False
        index = bisect_right(ranges, batch.last_offset, key=_first_offset) - 1
        if index < 0 or ranges[index].last_offset < batch.base_offset:
            return False
        # A producer id may also write outside of transactions; such batches are never aborted.
        if not batch.is_control:
            return batch.is_transactional
        # A Fetch answer names aborted transactions without their ends:
        # 1. It names producer 7 from offset 10 on. The batches of producer 7 are hidden.
        # 2. Its ABORT marker at offset 20 ends the range.
        # 3. Its batch at offset 25 is of the next transaction, and is not hidden.
        if ranges[index].last_offset == UNTIL_MARKER:
            marker = self._marker_of(batch)
            if marker is not None and marker.kind == ABORT:
                ranges[index] = ranges[index]._replace(last_offset=batch.base_offset)
        return False


def _first_offset(aborted: AbortedRange) -> int:
    return aborted.first_offset
