"""Sink progress: which records of a topic a sink writes together, and how far the target has them.

The records of a partition that are not committed yet lie in *chunks*. The last one is open and
grows. A chunk is closed where something demands a commit of exactly its offsets: a range that a
crash has interrupted, a cut of stream time, or a half of a flush that has failed. Closed chunks are
committed one by one, in order; open chunks of all partitions are committed together, when a flush
is due.

A failed chunk is split in two, each with its own commit, until the record at fault is alone: at
most 2·log2(n) more commits for each bad record of n, and offsets stay a prefix.

Rule: pure. If a sink takes batches as they come, its chunks are not kept in memory; they are read
again from the log after an abort, and closed at the planned offsets. Not done here: the calls of
the connector (`connect_tasks/sink_task`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streamlog.connect.sink import Flush
from streamlog.connect.sink_rows import SinkRow, SinkRows
from streamlog.durations import duration_ms
from streamlog.record import TopicPartition

OPEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of one partition that wait in memory for a flush; more start one early."""
_RANGE: Final = re.compile(r"streamlog:until=(\d{1,18}),config=([0-9a-f]{1,64})")


class WriteRange(NamedTuple):
    """The end of a range that a repeatable sink is about to commit, as the group's metadata has it.

    The range begins at the group's offset, which the metadata belongs to.
    """

    until: int
    """The offset behind the range."""
    config: str
    """Names the settings under which the range was begun."""

    def encode(self) -> str:
        """Return the metadata of the group's offset."""
        return f"streamlog:until={self.until},config={self.config}"

    @classmethod
    def decode(cls, metadata: str) -> WriteRange | None:
        """Return the range that the metadata of an offset names; None if it names none."""
        found = _RANGE.fullmatch(metadata)
        return None if found is None else cls(int(found[1]), found[2])


@dataclass(slots=True)
class FlushChunk:
    """Records of one partition that are committed by one commit."""

    partition: TopicPartition
    start: int
    """The offset from which the commit counts: everything before it is committed."""
    end: int
    """The offset behind the chunk; gaps and transaction markers are in it."""
    rows: SinkRows = field(init=False)
    """Its records, except those that a sink has taken already (`SinkProgress.streams`)."""
    records: int = 0
    """The number of its records, those that a sink has taken already included."""
    size_bytes: int = 0
    first_ms: int | None = None
    """When its first record came, monotonic time; without any, when its end first moved."""
    first_row: SinkRow | None = None
    """Its first record."""

    def __post_init__(self) -> None:
        self.rows = SinkRows(self.partition)

    def add(self, rows: SinkRows, end: int, now_ms: int) -> None:
        """Add the records that follow, and move the end."""
        # Of markers alone, the age is theirs, until a record comes.
        if (self.first_ms is None and end > self.end) or (len(rows) and not self.records):
            self.first_ms = now_ms
        self.end = end
        if len(rows):
            self.rows = self.rows.with_more(rows)
            self.records += len(rows)
            self.size_bytes += rows.size_bytes
            if self.first_row is None:
                self.first_row = rows.row(0)


class StreamCut:
    """Finds where stream time passes a multiple of an interval, by records and marks alone."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._time_ms: int | None = None

    def passes(self, time_ms: int) -> bool:
        """Note a record's time; returns whether it is the first one beyond the present interval."""
        before_ms = self._time_ms
        # A record of an earlier hour that comes late belongs to the present cut: going back would
        # close the file of the present hour at each such record.
        self._time_ms = time_ms if before_ms is None else max(before_ms, time_ms)
        return before_ms is not None and self._of(self._time_ms) > self._of(before_ms)

    def passes_by(self, elapsed_ms: int) -> bool:
        """Note that time has passed without a record; returns the same as `passes`."""
        return self._time_ms is not None and self.passes(self._time_ms + elapsed_ms)

    def restart(self) -> None:
        """Forget the time: the next record begins a chunk."""
        self._time_ms = None

    def _of(self, time_ms: int) -> int:
        return time_ms // self._every_ms


class PartProgress:
    """The chunks of one partition."""

    def __init__(
        self, partition: TopicPartition, committed: int, cut: StreamCut | None, flush: Flush
    ) -> None:
        """Create the progress of a partition; with `cut`, records alone decide where chunks end."""
        self.partition = partition
        self.committed = committed
        """The offset before which the target has everything."""
        self.closed: deque[FlushChunk] = deque()
        self.open = FlushChunk(partition, committed, committed)
        self.ends: deque[int] = deque()
        """The offsets at which chunks have to end, ascending."""
        self.left_out: set[int] = set()
        """The offsets of bad records, which are not written when their chunk is repeated."""
        self._cut = cut
        self._records_max, self._bytes_max = flush.records, flush.size_bytes

    @property
    def next_offset(self) -> int:
        """The offset behind everything that was taken."""
        return self.open.end

    @property
    def size_bytes(self) -> int:
        """The bytes of the rows in memory."""
        return sum(chunk.size_bytes for chunk in (*self.closed, self.open) if len(chunk.rows))

    def take(self, rows: SinkRows, next_offset: int, now_ms: int) -> None:
        """Take the records that follow, up to `next_offset`, where no record may be."""
        # A poll may bring again what came before a seek.
        if known := rows.position(self.open.end):
            rows = rows[known:]
        while self.ends and self.ends[0] <= next_offset:
            end = self.ends.popleft()
            index = rows.position(end)
            self._take(rows[:index], end, now_ms)
            rows = rows[index:]
            self.close()
        self._take(rows, max(next_offset, self.open.end), now_ms)

    def mark(self, offset: int, elapsed_ms: int) -> None:
        """Note a time mark of the log: this time has passed since the record or mark before it."""
        if self._cut is None or offset < self.open.end:
            return
        is_cut = self._cut.passes_by(elapsed_ms)
        self.open.end = offset + 1
        if is_cut and self.open.records:
            self.close()

    def close(self) -> None:
        """Close the open chunk, unless nothing is in it."""
        if self.open.end > self.open.start:
            self.closed.append(self.open)
            self.open = FlushChunk(self.partition, self.open.end, self.open.end)
        if self._cut is not None:
            self._cut.restart()

    def commit(self, chunk: FlushChunk) -> None:
        """Note that the target has a chunk, the first one."""
        if self.closed and self.closed[0] is chunk:
            self.closed.popleft()
        elif chunk is self.open:
            self.open = FlushChunk(self.partition, chunk.end, chunk.end)
        self.committed = chunk.end
        # What lies before is never written again, so its bad records need no memory.
        self.left_out = {offset for offset in self.left_out if offset >= chunk.end}

    def split(self, chunk: FlushChunk) -> bool:
        """Divide a chunk in memory, the first one, in two; returns False for a single record."""
        offsets = [offset for offset in chunk.rows.offsets if offset not in self.left_out]
        if len(offsets) <= 1:
            self.isolate(chunk)
            return False
        middle = offsets[len(offsets) // 2]
        index = chunk.rows.position(middle)
        halves = [
            FlushChunk(self.partition, chunk.start, middle),
            FlushChunk(self.partition, middle, middle),
        ]
        halves[0].add(chunk.rows[:index], middle, chunk.first_ms or 0)
        halves[1].add(chunk.rows[index:], chunk.end, chunk.first_ms or 0)
        self.isolate(chunk)
        self.closed.popleft()
        self.closed.extendleft(reversed(halves))
        return True

    def rewind(self, ends: Iterable[int] = ()) -> int:
        """Drop all chunks; returns the offset from which the log has to be read again.

        Args:
            ends: offsets at which chunks have to end, besides those that are planned already.
        """
        # Those of closed chunks, too: an interrupted range stays one range when it is read again.
        planned = {*ends, *self.ends, *(chunk.end for chunk in self.closed)}
        self.ends = deque(sorted(end for end in planned if end > self.committed))
        self.closed.clear()
        self.open = FlushChunk(self.partition, self.committed, self.committed)
        if self._cut is not None:
            self._cut.restart()
        return self.committed

    def isolate(self, chunk: FlushChunk) -> None:
        """Make the open chunk a closed one, so that it is repeated as it is."""
        if chunk is self.open:
            self.close()

    def _take(self, rows: SinkRows, end: int, now_ms: int) -> None:
        if self._cut is None:
            self.open.add(rows, end, now_ms)
            return
        # Record by record: a cut at the end of what a poll has brought would differ from run to
        # run. Rows from `first` on are not in the open chunk yet.
        first = size_bytes = 0
        for at, (offset, time_ms) in enumerate(zip(rows.offsets, rows.log.timestamps, strict=True)):
            if self._cut.passes(time_ms) and (self.open.records or at > first):
                self.open.add(rows[first:at], offset, now_ms)
                self.close()
                self._cut.passes(time_ms)
                first, size_bytes = at, 0
            size_bytes += len(rows.log.keys[at] or b"") + len(rows.log.values[at] or b"")
            records = self.open.records + at + 1 - first
            if records >= self._records_max or self.open.size_bytes + size_bytes >= self._bytes_max:
                self.open.add(rows[first : at + 1], offset + 1, now_ms)
                self.close()
                first, size_bytes = at + 1, 0
        if first < len(rows):
            self.open.add(rows[first:], end, now_ms)
        self.open.end = max(self.open.end, end)


class SinkProgress:
    """The partitions of one sink task, and when their chunks have to be committed."""

    def __init__(self, flush: Flush, *, streams: bool = False) -> None:
        """Create the progress of a task without partitions.

        Args:
            flush: when chunks are committed.
            streams: whether the sink takes records as they come, so that none is kept.
        """
        self.parts: dict[TopicPartition, PartProgress] = {}
        self.stream_ms = None if flush.stream_time is None else duration_ms(flush.stream_time)
        # Cuts of stream time depend on their partition's records alone. A sink that is given
        # records as they come has one unit of work for all partitions, so here they wait in memory.
        self.streams = streams and self.stream_ms is None
        self._flush = flush
        every_ms = duration_ms(flush.every)
        # The default interval would close every file of an hour after half a second.
        is_default = flush.every == Flush().every
        self._every_ms = None if self.stream_ms is not None and is_default else every_ms

    def assign(
        self, partition: TopicPartition, committed: int, interrupted: WriteRange | None = None
    ) -> None:
        """Add a partition that continues at `committed`.

        Args:
            partition: the partition.
            committed: the offset before which the target has everything.
            interrupted: a range from `committed` on that has to be committed as a whole.
        """
        cut = None if self.stream_ms is None else StreamCut(self.stream_ms)
        part = self.parts[partition] = PartProgress(partition, committed, cut, self._flush)
        if interrupted is not None and interrupted.until > committed:
            part.ends.append(interrupted.until)

    def resume(self, partition: TopicPartition, committed: int) -> None:
        """Continue a partition at the target's own offset; what is planned and left out stays.

        Args:
            partition: the partition.
            committed: the offset before which the target has everything.
        """
        # 1. A commit fails for a record, and names none: the flush is to be written in halves.
        # 2. The commit may count nevertheless, so the target is asked first. 3. Without the plan,
        # the whole flush would be written and fail again, for ever.
        former = self.parts[partition]
        former.rewind()
        self.assign(partition, committed)
        part = self.parts[partition]
        part.ends.extend(end for end in former.ends if end > committed)
        part.left_out = {offset for offset in former.left_out if offset >= committed}

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Drop partitions, with what is not committed of them."""
        for partition in partitions:
            self.parts.pop(partition, None)

    @property
    def size_bytes(self) -> int:
        """The bytes of all rows in memory."""
        return sum(part.size_bytes for part in self.parts.values())

    @property
    def repeating(self) -> PartProgress | None:
        """The partition whose closed or planned chunk comes next, before anything else; or None.

        One at a time: the sink's unit of work may hold that chunk alone.
        """
        return next((part for part in self.parts.values() if part.closed or part.ends), None)

    def due(self, now_ms: int, *, at_once: bool = False) -> list[FlushChunk]:
        """Return the chunks to commit now by one commit; none if no flush is due.

        Args:
            now_ms: monotonic time.
            at_once: whether open chunks are due, whatever their size and age; a range that has to
                be repeated as a whole is still not due before all of it was read.
        """
        if (repeating := self.repeating) is not None:
            # An open chunk of a range that a crash has interrupted may not be committed in part.
            return [repeating.closed[0]] if repeating.closed else []
        chunks = [part.open for part in self.parts.values() if part.open.end > part.open.start]
        if self.stream_ms is not None and not at_once:
            return next(([chunk] for chunk in chunks if self._is_due([chunk], now_ms)), [])
        return chunks if at_once or self._is_due(chunks, now_ms) else []

    def _is_due(self, chunks: Sequence[FlushChunk], now_ms: int) -> bool:
        if sum(chunk.records for chunk in chunks) >= self._flush.records:
            return True
        sizes = [chunk.size_bytes for chunk in chunks]
        if sum(sizes) >= self._flush.size_bytes:
            return True
        if not self.streams and max(sizes, default=0) >= OPEN_BYTES_MAX:
            return True
        # Markers alone are committed as well, so that a quiet sink has no lag, but they never make
        # the records of another partition due.
        with_records = [chunk for chunk in chunks if chunk.records]
        begun = [chunk.first_ms for chunk in with_records or chunks if chunk.first_ms is not None]
        return self._every_ms is not None and bool(begun) and now_ms - min(begun) >= self._every_ms
