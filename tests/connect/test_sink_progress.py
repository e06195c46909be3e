"""Which records of a topic a sink writes together, against an independent account."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import sink_progress
from streamlog.connect.row_schema import Schema
from streamlog.connect.schema_record import SchemaRecord
from streamlog.connect.sink import Flush
from streamlog.connect.sink_progress import FlushChunk, SinkProgress, WriteRange
from streamlog.connect.sink_rows import SinkRow, SinkRows, schema_runs
from streamlog.record import Record, TopicPartition

PART = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


def row(offset: int, time_ms: int = 0, size: int = 1) -> SinkRow:
    record = Record(None, offset, datetime.fromtimestamp(time_ms / 1000, UTC), (), "t", 0, offset)
    return SinkRow(record, None, b"x" * size, time_ms)


def rows_of(*rows: SinkRow) -> SinkRows:
    return SinkRows.of(PART, rows)


def offsets(chunk: FlushChunk) -> list[int]:
    return [*chunk.rows.offsets]


def test_a_range_survives_its_metadata() -> None:
    written = WriteRange(220, "9f31c2aa")
    assert written.encode() == "streamlog:until=220,config=9f31c2aa"
    assert WriteRange.decode(written.encode()) == written
    for text in ("", "until=220", "streamlog:until=x,config=9f", f"{written.encode()} ", "ü"):
        assert WriteRange.decode(text) is None


def test_a_flush_is_due_by_records_bytes_or_age() -> None:
    flush = Flush(records=3, size_bytes=100, every="1s")
    progress = SinkProgress(flush)
    progress.assign(PART, 0)
    progress.assign(OTHER, 10)
    part = progress.parts[PART]
    part.take(rows_of(row(0)), 1, now_ms=5)
    assert progress.due(1_004) == []
    assert progress.due(1_005) == [part.open]
    progress.parts[OTHER].take(rows_of(row(10), row(11)), 12, now_ms=6)
    assert [chunk.partition for chunk in progress.due(7)] == [PART, OTHER], "together"
    by_size = SinkProgress(flush)
    by_size.assign(PART, 0)
    by_size.parts[PART].take(rows_of(row(0, size=100)), 1, now_ms=0)
    assert by_size.due(0)


def test_markers_alone_are_due_by_their_age_and_make_no_records_due() -> None:
    progress = SinkProgress(Flush(every="1s"))
    progress.assign(PART, 0)
    progress.assign(OTHER, 0)
    progress.parts[PART].take(rows_of(), 2, now_ms=5)
    assert progress.due(1_004) == []
    assert progress.due(1_005) == [progress.parts[PART].open]
    progress.parts[OTHER].take(rows_of(row(0)), 1, now_ms=900)
    assert progress.due(1_005) == [], "the record is 105 ms old"
    # A record behind markers is as old as itself.
    progress.parts[PART].take(rows_of(row(2)), 3, now_ms=1_800)
    assert progress.due(1_899) == []
    assert len(progress.due(1_900)) == 2


def test_an_interrupted_range_is_committed_alone_and_whole() -> None:
    progress = SinkProgress(Flush(records=1))
    progress.assign(PART, 5, WriteRange(8, "c"))
    part = progress.parts[PART]
    part.take(rows_of(row(5), row(6)), 7, now_ms=0)
    assert progress.due(10**9, at_once=True) == [], "a part of it may not be committed"
    part.take(rows_of(row(7), row(8), row(9)), 10, now_ms=0)
    (chunk,) = progress.due(0)
    assert (chunk.start, chunk.end, offsets(chunk)) == (5, 8, [5, 6, 7])
    part.commit(chunk)
    (rest,) = progress.due(0)
    assert (rest.start, rest.end, offsets(rest)) == (8, 10, [8, 9])


def test_a_range_that_ends_with_a_gap_is_whole_when_the_position_passes_it() -> None:
    progress = SinkProgress(Flush())
    progress.assign(PART, 5, WriteRange(8, "c"))
    part = progress.parts[PART]
    part.take(rows_of(row(5)), 6, now_ms=0)
    assert progress.due(0) == []
    part.take(rows_of(), 9, now_ms=0)
    (chunk,) = progress.due(0)
    assert (chunk.start, chunk.end) == (5, 8)
    assert part.open.start == 8


TIMES = st.lists(st.integers(0, 50), max_size=30)


@given(TIMES, st.data())
def test_cuts_of_stream_time_do_not_depend_on_the_portions(
    times: list[int], data: st.DataObject
) -> None:
    """However polls divide the records, chunks end where time first passes a multiple of 10."""
    rows = [row(number, time) for number, time in enumerate(times)]
    expected: list[list[int]] = [[]]
    latest: int | None = None
    for number, time in enumerate(times):
        if latest is not None and time // 10 > latest // 10:
            expected.append([])
            latest = time
        expected[-1].append(number)
        latest = time if latest is None else max(latest, time)
    progress = SinkProgress(Flush(stream_time="10ms"))
    progress.assign(PART, 0)
    part = progress.parts[PART]
    at = 0
    while at < len(rows):
        size = data.draw(st.integers(1, 7))
        part.take(rows_of(*rows[at : at + size]), min(at + size, len(rows)), now_ms=0)
        at += size
    assert [offsets(chunk) for chunk in (*part.closed, part.open)] == expected
    assert progress.due(10**9) == ([part.closed[0]] if part.closed else [])


def test_a_time_mark_closes_the_file_of_a_quiet_partition() -> None:
    progress = SinkProgress(Flush(stream_time="10ms"))
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(row(0, 3)), 1, now_ms=0)
    part.mark(1, 5)
    assert progress.due(10**9) == [], "time 8 is in the interval"
    part.mark(2, 5)
    (chunk,) = progress.due(0)
    assert (chunk.end, offsets(chunk)) == (3, [0])
    part.mark(3, 100)
    assert not part.open.records, "a file without records is not written"


@given(st.integers(1, 200), st.sets(st.integers(0, 199), max_size=4))
def test_bad_records_are_found_by_halves(count: int, bad: set[int]) -> None:
    """At most 2·log2(n) + 1 more commits for each, in order, and nothing else is left out."""
    bad = {each for each in bad if each < count}
    progress = SinkProgress(Flush(records=count))
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(*map(row, range(count))), count, now_ms=0)
    written: list[int] = []
    attempts = 0
    while chunks := progress.due(0, at_once=True):
        attempts += 1
        (chunk,) = chunks
        tried = [offset for offset in offsets(chunk) if offset not in part.left_out]
        if bad & {*tried}:
            if not part.split(chunk):
                part.left_out.add(tried[0])
            continue
        written += tried
        part.commit(chunk)
        assert part.committed == chunk.end
    assert written == [number for number in range(count) if number not in bad]
    assert part.committed == count
    depth = (count - 1).bit_length() + 1
    assert attempts <= 1 + len(bad) * (2 * depth + 1)


def test_a_streamed_chunk_is_read_again_with_planned_ends() -> None:
    progress = SinkProgress(Flush(records=100), streams=True)
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(*map(row, range(8))), 8, now_ms=0)
    part.open.rows = SinkRows(PART)  # They are with the sink.
    assert part.open.records == 8
    assert part.rewind([4, 8]) == 0
    part.take(rows_of(*map(row, range(10))), 10, now_ms=0)
    (first,) = progress.due(0)
    assert (first.start, first.end, first.records) == (0, 4, 4)
    part.commit(first)
    (second,) = progress.due(0)
    assert (second.start, second.end) == (4, 8)
    part.commit(second)
    assert offsets(part.open) == [8, 9]


ORDERS = [Schema("struct", name=f"shop.Order{version}") for version in range(2)]
SCHEMAS = st.sampled_from([None, *ORDERS])


@given(st.lists(st.tuples(st.booleans(), SCHEMAS, SCHEMAS), min_size=1, max_size=12))
def test_runs_of_one_schema_have_all_rows_in_order(given: list[Any]) -> None:
    rows = [
        SinkRow(
            SchemaRecord(
                None if key is None else "k", None if is_gone else {}, MOMENT, offset=at,
                key_schema=key, value_schema=None if is_gone else value,
            ),
            b"", b"", 0,
        )
        for at, (is_gone, key, value) in enumerate(given)
    ]  # fmt: skip
    runs = schema_runs(rows_of(*rows), (None, None))
    assert [each for some, _ in runs for each in some.records] == [each.record for each in rows]
    for some, (key, value) in runs:
        for record in some.records:
            assert record.key is None or record.key_schema == key
            assert record.value is None or record.value_schema == value
    # No two neighbours could have been one: each differs from a row of the next run.
    for (left, _), (right, _) in itertools.pairwise(runs):
        both: list[Any] = [*left.records, *right.records]
        keys = {each.key_schema for each in both if each.key is not None}
        values = {each.value_schema for each in both if each.value is not None}
        assert len(keys) > 1 or len(values) > 1


Item = tuple[str, int, int]
"""A record with its time and size, a mark with its elapsed time, or a commit of the open chunk."""
ITEMS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(0, 50), st.integers(0, 4)),
        st.tuples(st.just("mark"), st.integers(0, 15), st.just(0)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


class Account:
    """Chunks by their definition, a record at a time."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max, self._bytes_max = records_max, bytes_max
        self.chunks: list[tuple[int, int, list[int], int]] = []
        self.start = self.end = self.size_bytes = 0
        self.offsets: list[int] = []
        self._latest_ms: int | None = None

    def record(self, offset: int, time_ms: int, size: int) -> None:
        if self._passes(time_ms) and self.offsets:
            self._close(offset)
            self._latest_ms = time_ms
        self.offsets.append(offset)
        self.size_bytes += size
        self.end = offset + 1
        if len(self.offsets) == self._records_max or self.size_bytes >= self._bytes_max:
            self._close(self.end)

    def mark(self, offset: int, elapsed_ms: int) -> None:
        is_cut = self._latest_ms is not None and self._passes(self._latest_ms + elapsed_ms)
        self.end = offset + 1
        if is_cut and self.offsets:
            self._close(self.end)

    def commit(self) -> None:
        self.start, self.offsets, self.size_bytes = self.end, [], 0

    @property
    def open(self) -> tuple[int, int, list[int], int]:
        return self.start, self.end, self.offsets, self.size_bytes

    def _passes(self, time_ms: int) -> bool:
        before_ms, self._latest_ms = self._latest_ms, max(time_ms, self._latest_ms or 0)
        return before_ms is not None and time_ms // 10 > before_ms // 10

    def _close(self, end: int) -> None:
        self.chunks.append((self.start, end, self.offsets, self.size_bytes))
        self.start, self.end, self.offsets, self.size_bytes = end, end, [], 0
        self._latest_ms = None


@given(ITEMS, st.integers(1, 5), st.integers(1, 9), st.data())
def test_time_records_and_bytes_end_a_chunk_whatever_the_portions(
    items: list[Item], records_max: int, bytes_max: int, data: st.DataObject
) -> None:
    flush = Flush(stream_time="10ms", records=records_max, size_bytes=bytes_max)
    progress, account = SinkProgress(flush), Account(records_max, bytes_max)
    progress.assign(PART, 0)
    part, waiting, done = progress.parts[PART], list[SinkRow](), list[FlushChunk]()
    offset = 0

    def take_waiting() -> int:
        if waiting:
            # Behind the records, a poll may pass markers.
            account.end += data.draw(st.integers(0, 2), "markers")
            part.take(rows_of(*waiting), account.end, now_ms=0)
            waiting.clear()
        return max(offset, account.end)

    for kind, number, size in items:
        offset += data.draw(st.integers(0, 2), "gap")
        if kind == "record":
            account.record(offset, number, size)
            account.end = max(account.end, offset + 1)
            waiting.append(row(offset, number, size))
            offset += 1
            if data.draw(st.booleans(), "end of a poll"):
                offset = take_waiting()
            continue
        offset = take_waiting()
        if kind == "mark":
            account.mark(offset, number)
            part.mark(offset, number)
            part.mark(offset, number)  # A poll may bring it again.
            offset += 1
        elif not part.closed and part.open.records:
            done.append(part.open)
            account.chunks.append(account.open)
            account.commit()
            part.commit(part.open)
    take_waiting()
    chunks = [*done, *part.closed]
    assert sorted(map(summary, chunks)) == account.chunks
    assert summary(part.open) == account.open
    assert progress.due(10**9) == ([part.closed[0]] if part.closed else [])


def summary(chunk: FlushChunk) -> tuple[int, int, list[int], int]:
    return chunk.start, chunk.end, offsets(chunk), chunk.size_bytes


POLLS = st.lists(
    st.tuples(st.sampled_from([PART, OTHER]), st.integers(0, 3), st.integers(0, 3), st.booleans()),
    max_size=20,
)


@given(POLLS, st.integers(1, 9), st.integers(1, 12), st.booleans())
def test_a_flush_is_due_by_what_is_not_committed(
    polls: list[tuple[TopicPartition, int, int, bool]],
    records_max: int,
    bytes_max: int,
    streams: bool,
) -> None:
    """By the sums over partitions; by age from the oldest record, of markers if there is none."""
    flush = Flush(records=records_max, size_bytes=bytes_max, every="20ms")
    progress = SinkProgress(flush, streams=streams)
    ends, counts, sizes = {PART: 0, OTHER: 0}, {PART: 0, OTHER: 0}, {PART: 0, OTHER: 0}
    begun: dict[TopicPartition, int] = {}
    moved: dict[TopicPartition, int] = {}
    for each in ends:
        progress.assign(each, 0)
    for now_ms, (at, count, size, has_marker) in enumerate(polls):
        first = ends[at]
        ends[at] += count + has_marker
        rows = [row(first + number, size=size) for number in range(count)]
        progress.parts[at].take(SinkRows.of(at, rows), ends[at], now_ms=10 * now_ms)
        counts[at] += count
        sizes[at] += count * size
        if count:
            begun.setdefault(at, 10 * now_ms)
        if ends[at] > progress.parts[at].committed:
            moved.setdefault(at, 10 * now_ms)
        oldest_ms = min((begun or moved).values(), default=None)
        is_old = oldest_ms is not None and 10 * now_ms - oldest_ms >= 20
        is_due = sum(counts.values()) >= records_max or sum(sizes.values()) >= bytes_max or is_old
        changed = [part.open for part in progress.parts.values() if part.partition in moved]
        assert progress.due(10 * now_ms) == (changed if is_due else [])
        assert progress.due(10 * now_ms, at_once=True) == changed
        if is_due:
            for chunk in changed:
                progress.parts[chunk.partition].commit(chunk)
                assert progress.parts[chunk.partition].committed == ends[chunk.partition]
            begun, moved = {}, {}
            counts, sizes = dict.fromkeys(counts, 0), dict.fromkeys(sizes, 0)


def test_a_record_that_fails_alone_is_repeated_alone_and_is_as_old_as_before() -> None:
    progress = SinkProgress(Flush())
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(row(0), row(1)), 2, now_ms=7)
    assert part.split(part.open)
    assert [chunk.first_ms for chunk in part.closed] == [7, 7]
    (first,) = progress.due(7)
    assert not part.split(first)
    part.commit(first)
    part.commit(progress.due(7)[0])
    part.take(rows_of(row(2)), 3, now_ms=8)
    alone = part.open
    assert not part.split(alone)
    part.take(rows_of(row(3)), 4, now_ms=8)
    assert progress.due(8) == [alone], "the next record is in another chunk"


def test_a_mark_that_is_read_twice_counts_once() -> None:
    progress = SinkProgress(Flush(stream_time="10ms"))
    progress.assign(PART, 0)
    part = progress.parts[PART]
    for _ in range(2):
        part.take(rows_of(row(0, 5)), 1, now_ms=0)
        part.mark(1, 3)
        assert (part.open.end, offsets(part.open)) == (2, [0]), "time is 8"
        assert part.rewind() == 0


@pytest.mark.parametrize(
    ("flush", "portions"),
    [
        (Flush(stream_time="1h", records=3), [3, 3, 3, 1]),
        (Flush(stream_time="1h", records=1), [1] * 10),
        (Flush(stream_time="1h", size_bytes=4), [2, 2, 2, 2, 2]),
        (Flush(stream_time="1h", size_bytes=5), [3, 3, 3, 1]),
    ],
)
def test_one_poll_may_have_several_flushes_of_a_file(flush: Flush, portions: list[int]) -> None:
    progress = SinkProgress(flush)
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(*(row(offset, size=2) for offset in range(10))), 10, now_ms=0)
    assert [len(chunk.rows) for chunk in (*part.closed, part.open) if len(chunk.rows)] == portions
    assert [offset for chunk in (*part.closed, part.open) for offset in offsets(chunk)] == [
        *range(10)
    ]


@pytest.mark.parametrize("stream_time", [None, "1h"])
@pytest.mark.parametrize("streams", [False, True])
def test_what_waits_in_memory_is_bounded_whatever_the_flush_says(
    monkeypatch: pytest.MonkeyPatch, stream_time: str | None, *, streams: bool
) -> None:
    """A sink that takes records as they come has none in memory, unless stream time cuts them."""
    monkeypatch.setattr(sink_progress, "OPEN_BYTES_MAX", 10)
    flush = Flush(size_bytes=10**9, every="1h", stream_time=stream_time)
    progress = SinkProgress(flush, streams=streams)
    assert progress.streams is (streams and stream_time is None)
    progress.assign(PART, 0)
    progress.assign(OTHER, 0)
    for each, size in ((PART, 9), (OTHER, 9)):
        progress.parts[each].take(SinkRows.of(each, [row(0, size=size)]), 1, now_ms=0)
    assert progress.due(0) == [], "18 bytes together, 9 of each partition"
    assert (progress.size_bytes, progress.parts[PART].size_bytes) == (18, 9)
    progress.parts[PART].take(rows_of(row(1, size=1)), 2, now_ms=0)
    found = [chunk.partition for chunk in progress.due(0)]
    assert found == ([] if progress.streams else [PART] if stream_time else [PART, OTHER])


def test_64_mib_of_a_partition_are_flushed_early() -> None:
    progress = SinkProgress(Flush(size_bytes=10**9, every="1h"))
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(row(0)), 1, now_ms=0)
    part.open.size_bytes = 67_108_863
    assert progress.due(0) == []
    part.open.size_bytes = 67_108_864
    assert progress.due(0) == [part.open]


def test_the_default_age_ends_no_file_of_stream_time() -> None:
    for flush, due_ms in (
        (Flush(), 500),
        (Flush(every="1h"), 3_600_000),
        (Flush(stream_time="1h"), None),
        (Flush(stream_time="1h", every="500ms"), None),
        (Flush(stream_time="1h", every="2s"), 2_000),
    ):
        progress = SinkProgress(flush)
        progress.assign(PART, 0)
        progress.parts[PART].take(rows_of(row(0)), 1, now_ms=0)
        assert progress.due((due_ms or 10**12) - 1) == []
        assert len(progress.due(due_ms or 10**12)) == (due_ms is not None)
        assert len(progress.due(0, at_once=True)) == 1


def test_halves_are_as_old_as_the_whole_from_the_first_moment_on() -> None:
    progress = SinkProgress(Flush())
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(row(0), row(1), row(2)), 5, now_ms=0)
    whole = part.open
    assert part.split(whole)
    assert [(each.start, each.end, offsets(each)) for each in part.closed] == [
        (0, 1, [0]),
        (1, 5, [1, 2]),
    ]
    assert [each.first_ms for each in part.closed] == [0, 0]
    assert [each.first_row for each in part.closed] == [row(0), row(1)]
    assert part.next_offset == 5


def test_a_target_that_has_more_than_the_log_says_is_believed() -> None:
    """What is planned behind its offset stays, and so do the bad records behind it."""
    progress = SinkProgress(Flush())
    progress.assign(PART, 0, WriteRange(4, "c"))
    part = progress.parts[PART]
    part.left_out |= {1, 2, 3, 6}
    part.take(rows_of(*map(row, range(9))), 9, now_ms=0)
    part.ends.append(12)
    progress.resume(PART, 3)
    part = progress.parts[PART]
    assert (part.committed, part.next_offset, [*part.ends]) == (3, 3, [4, 12])
    assert part.left_out == {3, 6}
    progress.resume(PART, 4)
    assert ([*progress.parts[PART].ends], progress.parts[PART].left_out) == ([12], {6})
    progress.assign(OTHER, 7, WriteRange(7, "c"))
    assert not progress.parts[OTHER].ends, "a range without records needs no repetition"
    progress.revoke([PART, TopicPartition("unknown", 0)])
    assert [*progress.parts] == [OTHER]


def test_a_range_is_whole_as_soon_as_its_last_record_is_there() -> None:
    progress = SinkProgress(Flush())
    progress.assign(PART, 5, WriteRange(8, "c"))
    part = progress.parts[PART]
    part.take(rows_of(row(5), row(7)), 8, now_ms=0)
    (chunk,) = progress.due(0)
    assert (chunk.start, chunk.end, offsets(chunk)) == (5, 8, [5, 7])
    assert (part.open.start, part.open.end) == (8, 8)


def test_what_is_read_again_is_dropped_first_and_ends_where_it_ended() -> None:
    progress = SinkProgress(Flush())
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(*map(row, range(6))), 6, now_ms=0)
    part.isolate(part.open)
    part.take(rows_of(row(6)), 7, now_ms=0)
    assert part.rewind([3, 0]) == 0
    assert ([*part.closed], [*part.ends], len(part.open.rows)) == ([], [3, 6], 0)
    assert progress.due(10**9, at_once=True) == [], "nothing of it is there"


def test_a_partition_on_which_nothing_has_come_is_no_chunk_and_has_no_age() -> None:
    progress = SinkProgress(Flush(every="1s"))
    progress.assign(PART, 5)
    part = progress.parts[PART]
    part.take(rows_of(), 5, now_ms=0)
    part.isolate(part.open)
    part.close()
    assert (progress.due(10**9, at_once=True), progress.repeating) == ([], None)
    part.take(rows_of(), 7, now_ms=900)
    assert progress.due(1_899) == [], "the markers came at 900"
    assert progress.due(1_900) == [part.open]


def test_bad_records_of_what_is_committed_are_forgotten() -> None:
    progress = SinkProgress(Flush())
    progress.assign(PART, 0)
    part = progress.parts[PART]
    part.take(rows_of(*map(row, range(4))), 4, now_ms=0)
    part.left_out |= {1, 3, 4, 9}
    part.commit(part.open)
    assert (part.left_out, part.committed) == ({4, 9}, 4)
    assert (part.open.start, part.open.end, len(part.open.rows)) == (4, 4, 0)
