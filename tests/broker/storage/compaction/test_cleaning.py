"""A compacted log, compared with a model: a reader sees the last value of each key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.config.broker import CREATE_TIME, LOG_APPEND_TIME, TopicConfig
from streamlog.broker.storage.compaction.cleaning import Cleaning, CleaningResult, facts
from streamlog.broker.storage.compaction.survivors import Dirtiness, dirtiness
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log.producer_states import ProducerStates
from streamlog.broker.storage.validator import INVALID_RECORD, AppendOrigin
from streamlog.errors import CorruptData, LogError, UnknownTopicOrPartition
from streamlog.records.batch import LogRecord, encode_batch, split_batches
from streamlog.records.compression import Compression
from streamlog.records.control_batches import ABORT, COMMIT, Marker, TimeMark, time_mark_of
from streamlog.replace import replace
from tests.broker.storage.batches import (
    DIRECTORY,
    files_of,
    log_files,
    new_log,
    overwrite,
    read_batches,
    read_records,
    reopened,
)
from tests.broker.storage.log.test_transactions import committed

Pairs = list[tuple[str, str | None]]
RETENTION_MS = 1_000
COMPACTED = TopicConfig(
    segment_bytes=1024,
    index_interval_bytes=128,
    cleanup_policy="compact",
    delete_retention_ms=RETENTION_MS,
)
MEMORY_BYTES = 1 << 20


def flushed_dirtiness(log: PartitionLog, *, wall_ms: int = 0) -> Dirtiness:
    """Flush the log; return what there is to clean."""
    log.flush()
    sealed = log.sealed_segments(before_offset=log.log_end_offset)
    return dirtiness(
        [facts(segment) for segment in sealed],
        cleaned_offset=log.cleaned.read(),
        limit_offset=log.log_end_offset,
        config=log.config,
        wall_ms=wall_ms,
    )


def clean(
    log: PartitionLog, *, wall_ms: int = 0, memory_bytes: int = MEMORY_BYTES
) -> CleaningResult | None:
    """Compact the log, if there is anything to compact."""
    dirty = flushed_dirtiness(log, wall_ms=wall_ms)
    if not dirty.dirty_bytes:
        return None
    cleaning = Cleaning(log, dirty, memory_bytes=memory_bytes, wall_ms=wall_ms)
    for _ in cleaning.steps():
        pass
    return cleaning.result


def keyed(
    *pairs: tuple[str, str | None],
    timestamp_ms: int = 1,
    codec: Compression = Compression.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    records = [
        (timestamp_ms + number, key.encode(), None if value is None else value.encode(), ())
        for number, (key, value) in enumerate(pairs)
    ]
    return encode_batch(
        records,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )


def begun(log: PartitionLog, data: bytes) -> None:
    """Append in a transaction."""
    log.append(data, now_ms=0, origin=AppendOrigin.TRANSACTION)


def ended(log: PartitionLog, kind: int, producer_id: int, epoch: int = 0) -> None:
    """Append the marker that ends a transaction."""
    log.end_transaction(producer_id, epoch, Marker(kind, 0), now_ms=0, wall_ms=0)


def seen(log: PartitionLog) -> dict[bytes | None, bytes]:
    """Return the last value of each key, for a reader of the whole log."""
    values: dict[bytes | None, bytes] = {}
    for record in read_records(log):
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
    return values


def filled(config: TopicConfig = COMPACTED, *, batches: int = 40) -> PartitionLog:
    log = new_log(config=config)
    for number in range(batches):
        log.append(keyed((f"k{number % 5}", str(number)), ("x", "x" * 40)), now_ms=0)
    return log


def test_a_time_mark_keeps_its_offset() -> None:
    """A topic has time marks from the time before it was compacted."""
    log = filled(batches=1)
    log.mark_time(5_000, now_ms=0)
    for number in range(40):
        log.append(keyed(("k0", str(number)), ("x", "x" * 40)), now_ms=0)
    assert clean(log) is not None
    assert [time_mark_of(each) for each in read_batches(log) if each.is_control] == [
        TimeMark(2, 5_000)
    ]


# ---- a random history ----


class Model:
    """The same history without compaction."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.aborted: set[int] = set()
        self.met: dict[int, int] = {}
        """The time when a cleaning first saw a tombstone, by its offset."""

    def values(self, start_offset: int) -> dict[bytes | None, bytes]:
        values: dict[bytes | None, bytes] = {}
        for record in self.records:
            if record.offset in self.aborted or record.offset < start_offset:
                continue
            if record.value is None:
                values.pop(record.key, None)
            else:
                values[record.key] = record.value
        return values


class History:
    """A log, its model, and the wall-clock time."""

    def __init__(self, config: TopicConfig) -> None:
        self.files = MemoryFiles()
        self.config = config
        self.log = new_log(self.files, config)
        self.model = Model()
        self.wall_ms = 10_000
        self.start_offset = 0
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.last: dict[int, tuple[bytes, int]] = {}
        """The last batch of each producer, and its offset."""
        self.open: dict[int, list[int]] = {}

    def append(self, pairs: Pairs, codec: Compression) -> None:
        self._append(pairs, keyed(*pairs, timestamp_ms=self.wall_ms, codec=codec))

    def append_numbered(self, pairs: Pairs, codec: Compression, producer_id: int) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(pairs)
        producer = (producer_id, 0, sequence)
        data = keyed(*pairs, timestamp_ms=self.wall_ms, codec=codec, producer=producer)
        self.last[producer_id] = (data, self._append(pairs, data))

    def append_again(self, producer_id: int) -> None:
        """Append a producer's last batch again: a duplicate, even if its records are gone."""
        if producer_id not in self.last:
            return
        data, offset = self.last[producer_id]
        if offset < self.start_offset:
            return  # The log may have forgotten it.
        end_offset = self.log.log_end_offset
        result = self.log.append(data, now_ms=0, wall_ms=self.wall_ms)
        assert (result.duplicate, result.base_offset) == (True, offset)
        assert self.log.log_end_offset == end_offset

    def delete(self, part: int) -> None:
        """Delete `part` twelfths of the records."""
        left = self.log.log_end_offset - self.start_offset
        self.log.advance_start(self.start_offset + left * part // 12)
        self._retire()

    def expire(self) -> None:
        end_offset = self.log.log_end_offset
        self.log.expire(wall_ms=self.wall_ms, now_ms=0, high_watermark=end_offset)
        self._retire()

    def _retire(self) -> None:
        self.start_offset = self.log.log_start_offset
        for path in self.log.retire():
            self.files.remove(path)

    def append_transactional(self, pairs: Pairs, codec: Compression, producer_id: int) -> None:
        first = self.log.log_end_offset
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(pairs)
        producer = (producer_id, self.epochs.get(producer_id, 0), sequence)
        data = keyed(
            *pairs,
            timestamp_ms=self.wall_ms,
            codec=codec,
            producer=producer,
            transactional=True,
        )
        begun(self.log, data)
        self._note(pairs, first, log_append_time=False)
        self.open.setdefault(producer_id, []).extend(range(first, self.log.log_end_offset))

    def end(self, producer_id: int, kind: int) -> None:
        offsets = self.open.pop(producer_id, [])
        if kind == ABORT:
            self.model.aborted.update(offsets)
            self.fence(producer_id, self.log.log_end_offset)
        ended(self.log, kind, producer_id, self.epochs.get(producer_id, 0))

    def fence(self, producer_id: int, offset: int) -> None:
        """Bump the epoch in every third abort, as a coordinator's abort does."""
        if offset % 3 == 0:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0

    def clean(self, memory_bytes: int) -> None:
        before = {record.offset: record for record in self.data()}
        log, end_offset = self.log, self.log.log_end_offset
        result = clean(log, wall_ms=self.wall_ms, memory_bytes=memory_bytes)
        assert log.log_end_offset == end_offset
        if result is None:
            return
        in_open = (offset for each in self.open.values() for offset in each)
        assert result.end_offset <= min(
            [end_offset, *(offset for offset in in_open if offset >= self.start_offset)]
        )
        after = {record.offset: record for record in self.data()}
        assert after.items() <= before.items()
        self._check_removed(before, after, result.end_offset)

    def clean_meanwhile(self, count: int, happens: Callable[[], None]) -> None:
        """Clean the log, and call `happens` after `count` steps."""
        dirty = flushed_dirtiness(self.log, wall_ms=self.wall_ms)
        steps = Cleaning(self.log, dirty, memory_bytes=MEMORY_BYTES, wall_ms=self.wall_ms).steps()
        for _ in islice(steps, count):
            pass
        happens()
        with suppress(UnknownTopicOrPartition):  # Its segment is gone.
            for _ in steps:
                pass

    def _check_removed(
        self, before: dict[int, LogRecord], after: dict[int, LogRecord], end_offset: int
    ) -> None:
        committed = [
            record
            for offset, record in before.items()
            if offset < end_offset and offset not in self.model.aborted
        ]
        newest = {record.key: record.offset for record in committed}
        for offset, record in before.items():
            if offset >= end_offset:
                assert offset in after
            elif offset in self.model.aborted or newest[record.key] > offset:
                continue
            elif record.value is None:
                met_ms = self.model.met.get(offset, self.wall_ms)
                assert offset in after or self.wall_ms >= met_ms + RETENTION_MS
                self.model.met.setdefault(offset, self.wall_ms)
            else:
                assert offset in after

    def data(self) -> list[LogRecord]:
        """Return all records but the markers."""
        batches = read_batches(self.log, self.start_offset)
        records = [r for batch in batches if not batch.is_control for r in batch.records()]
        return [record for record in records if record.offset >= self.start_offset]

    def reopen(self, *, kill: bool, remember: bool = True) -> None:
        """Reopen the log; without `remember`, its producer snapshots are removed."""
        if kill:
            self.files.crash(keep_bytes=None)
        else:
            self.log.close()
        for path in [] if remember else log_files(self.files, ".snapshot"):
            self.files.remove(path)
        self.log = PartitionLog.open(
            self.files,
            DIRECTORY,
            name="topic-0",
            config=self.config,
            clean=not kill,
            log_start_offset=self.start_offset,
        )

    def check(self) -> None:
        assert self.log.damage == ()
        batches = read_batches(self.log, self.start_offset)
        offset = batches[0].base_offset if batches else self.start_offset
        assert offset <= self.start_offset
        for batch in batches:
            assert batch.base_offset == offset
            offset = batch.next_offset
        assert offset == self.log.log_end_offset
        stable = min([offset, *(each[0] for each in self.open.values())])
        left = [record for record in self.data() if record.offset not in self.model.aborted]
        if stable >= self.start_offset:
            # Else a transaction has lost its first records, and a restart may still know the rest.
            seen = committed(self.log, self.start_offset)
            assert seen == [(r.offset, r.value or b"") for r in left if r.offset < stable]
        self.check_producers()
        stored = {record.offset: record for record in self.model.records}
        assert all(stored[record.offset] == record for record in left)
        values: dict[bytes | None, bytes] = {}
        for record in left:
            values.pop(record.key, None)
            if record.value is not None:
                values[record.key] = record.value
        assert values == self.model.values(self.start_offset)

    def check_producers(self) -> None:
        """Compare the producer states with a replay, if no records were deleted."""
        log = self.log
        if self.start_offset:
            return
        assert dict(log.producers.transactions) == {p: o[0] for p, o in self.open.items() if o}
        replayed = ProducerStates()
        for batch in read_batches(log):
            replayed.replay(batch, batch.base_offset)
        assert list(replayed.transactions) == list(log.producers.transactions)
        known = {p: (each.epoch, each.last_sequence) for p, each in log.producers}
        assert {p: (each.epoch, each.last_sequence) for p, each in replayed} == known

    def _append(self, pairs: Pairs, data: bytes) -> int:
        first = self.log.append(data, now_ms=0, wall_ms=self.wall_ms).base_offset
        stamped = self.config.message_timestamp_type == LOG_APPEND_TIME
        self._note(pairs, first, log_append_time=stamped)
        return first

    def _note(self, pairs: Pairs, first: int, *, log_append_time: bool) -> None:
        for number, (key, value) in enumerate(pairs):
            stored = None if value is None else value.encode()
            time_ms = self.wall_ms + (0 if log_append_time else number)
            record = LogRecord(first + number, time_ms, key.encode(), stored)
            self.model.records.append(record)


class Step(NamedTuple):
    kind: str
    pairs: Pairs
    number: int


KEYS = st.sampled_from("abcdefgh")
VALUES = st.one_of(st.none(), st.sampled_from(["1", "2", "y" * 50, "z" * 200]))
KINDS = [*["append"] * 4, *["numbered"] * 2, *["transaction"] * 2, "end", "end"]
MORE_KINDS = ["clean", "clean", "meanwhile", "wait", "reopen", "again", "delete", "expire"]
STEPS = st.builds(
    Step,
    st.sampled_from([*KINDS, *MORE_KINDS]),
    st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6),
    st.integers(0, 11),
)


CONFIGS = st.builds(
    partial(replace, COMPACTED),
    min_compaction_lag_ms=st.sampled_from([0, 0, 500]),
    max_compaction_lag_ms=st.sampled_from([2**63 - 1, 300]),
    segment_bytes=st.sampled_from([1024, 3000]),
    message_timestamp_type=st.sampled_from([CREATE_TIME, CREATE_TIME, LOG_APPEND_TIME]),
    cleanup_policy=st.sampled_from(["compact", "compact", "compact,delete"]),
    retention_ms=st.sampled_from([1_500, -1]),
    retention_bytes=st.sampled_from([-1, 4_000]),
)


@given(steps=st.lists(STEPS, min_size=10, max_size=80), config=CONFIGS)
@settings(max_examples=150, deadline=None)
def test_a_reader_sees_the_last_value_of_every_key(steps: list[Step], config: TopicConfig) -> None:
    history = History(config)
    for step in steps:
        run_step(history, step)
        history.wall_ms += 1
    history.clean(MEMORY_BYTES)
    history.reopen(kill=True)
    history.check()
    for producer_id in range(3):
        history.append_again(producer_id)


def run_step(history: History, step: Step) -> None:
    kind, pairs, number = step
    codec, producer_id = Compression(number % 5), number % 3
    match kind:
        case "append":
            history.append(pairs, codec)
        case "numbered":
            history.append_numbered(pairs, codec, producer_id)
        case "again":
            history.append_again(producer_id)
        case "transaction":
            history.append_transactional(pairs, codec, 100 + producer_id)
        case "end":
            history.end(100 + producer_id, ABORT if number % 2 else COMMIT)
        case "wait":
            history.wall_ms += 100 * number
        case "reopen":
            history.reopen(kill=number % 2 == 0, remember=number % 4 < 2)
        case _:
            tidy_up(history, step)
            history.check()


def tidy_up(history: History, step: Step) -> None:
    kind, pairs, number = step
    match kind:
        case "clean":
            history.clean(MEMORY_BYTES if number % 4 else 24 * 16)
        case "delete":
            history.delete(number % 4)
        case "expire":
            history.expire()
        case "meanwhile":
            others: list[Callable[[], None]] = [
                partial(history.delete, 11),
                partial(history.append, pairs, Compression(number % 5)),
                history.expire,
            ]
            history.clean_meanwhile(3 * number, others[number % 3])


# ---- one by one ----


def test_a_clean_log_has_each_key_once_at_its_offset() -> None:
    log = filled()
    before = {record.offset: record for record in read_records(log)}
    end_offset, values = log.log_end_offset, seen(log)
    result = clean(log)
    assert result is not None
    left = [record for record in read_records(log) if record.offset < result.end_offset]
    assert len({record.key for record in left}) == len(left) == result.keys
    assert all(before[record.offset] == record for record in left)
    assert seen(log) == values
    assert log.log_end_offset == end_offset
    assert result.after_bytes < result.before_bytes / 3


def test_small_segments_are_merged() -> None:
    log = filled(batches=80)
    files = log_files(files_of(log))
    clean(log)
    for number in range(40):
        log.append(keyed((f"k{number % 5}", "2" * 50)), now_ms=0)
    clean(log)
    assert len(files) > 5
    merged = log_files(files_of(log))[1]
    assert merged > files[5]


def test_a_clean_log_is_not_due() -> None:
    log = filled()
    clean(log)
    dirty = flushed_dirtiness(log)
    assert (dirty.dirty_bytes, dirty.first_dirty_offset) == (0, dirty.end_offset)
    assert not dirty.due(COMPACTED)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_keeps_its_codec_offsets_and_sequence(codec: Compression) -> None:
    log = new_log(config=COMPACTED)
    pairs = [(f"k{number}", "v" * 10) for number in range(20)]
    log.append(keyed(*pairs, timestamp_ms=50, codec=codec, producer=(7, 0, 0)), now_ms=0)
    log.append(keyed(*pairs[:10], *pairs[15:], timestamp_ms=500), now_ms=0)
    while len(log_files(files_of(log))) < 2:
        log.append(keyed(("other", "v" * 100)), now_ms=0)
    clean(log)
    first = read_batches(log)[0]
    assert (first.base_offset, first.last_offset, first.codec) == (0, 19, codec)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (7, 0, 0)
    assert [record.offset for record in first.records()] == list(range(10, 15))
    assert (first.record_count, first.max_timestamp_ms) == (5, 64)


def test_every_offset_and_timestamp_is_found_after_compaction() -> None:
    log = filled(batches=80)
    clean(log)
    for each in (log, reopened(files_of(log), config=COMPACTED)):
        records = read_records(each)
        for offset in range(each.log_end_offset):
            found = next(split_batches(each.read(offset, max_bytes=1)))
            assert found.base_offset <= offset <= found.last_offset
            rest = [record for record in records if record.offset >= offset]
            assert read_records(each, offset) == rest
        for record in records:
            found_at = each.offset_for_timestamp(record.timestamp_ms)
            assert found_at is not None
            at_least = [r for r in records if r.timestamp_ms >= record.timestamp_ms]
            assert found_at == (at_least[0].offset, at_least[0].timestamp_ms)


def test_max_timestamp_ignores_removed_records() -> None:
    log = new_log(config=COMPACTED)
    log.append(keyed(("a", "1"), timestamp_ms=9_000, producer=(7, 0, 0)), now_ms=0)
    for _ in range(30):
        log.append(keyed(("a", "2" * 50), ("b", "2"), timestamp_ms=10), now_ms=0)
    clean(log)
    assert [batch.record_count for batch in read_batches(log)][:2] == [0, 0]
    assert log.max_timestamp() is not None
    assert log.max_timestamp() == reopened(files_of(log), config=COMPACTED).max_timestamp()


def test_a_tombstone_stays_for_delete_retention_ms() -> None:
    log = new_log(config=COMPACTED)
    log.append(keyed(("a", "1"), ("b", "1")), now_ms=0)
    log.append(keyed(("a", None), timestamp_ms=77), now_ms=0)
    for number in range(60):
        log.append(keyed((f"c{number % 3}", "2" * 50)), now_ms=0)
    clean(log, wall_ms=50_000)
    (tombstone,) = [record for record in read_records(log) if record.key == b"a"]
    assert (tombstone.value, tombstone.timestamp_ms) == (None, 77)

    def again(wall_ms: int) -> bool:
        for number in range(40):
            log.append(keyed((f"c{number % 3}", "2" * 50)), now_ms=0)
        clean(log, wall_ms=wall_ms)
        return b"a" in {record.key for record in read_records(log)}

    assert again(50_000 + RETENTION_MS - 1)
    assert not again(50_000 + RETENTION_MS)


def test_a_producers_last_sequence_survives_compaction() -> None:
    log = new_log(config=COMPACTED)
    for sequence in range(4):
        log.append(keyed(("a", "1"), producer=(7, 2, sequence)), now_ms=0)
    for _ in range(40):
        log.append(keyed(("a", "2" * 50)), now_ms=0)
    clean(log)
    log.close()
    for path in log_files(files_of(log), ".snapshot"):
        files_of(log).remove(path)
    log = reopened(files_of(log), config=COMPACTED)
    kept = [batch for batch in read_batches(log) if batch.producer_id == 7]
    assert [(each.base_sequence, each.record_count) for each in kept] == [(3, 0)]
    duplicate = log.append(keyed(("a", "1"), producer=(7, 2, 3)), now_ms=0)
    assert (duplicate.duplicate, duplicate.base_offset) == (True, 3)
    assert not log.append(keyed(("a", "1"), producer=(7, 2, 4)), now_ms=0).duplicate


def test_records_younger_than_the_lag_stay() -> None:
    config = replace(COMPACTED, min_compaction_lag_ms=100)
    log = new_log(config=config)
    for number in range(60):
        log.append(keyed(("a", "2" * 50), timestamp_ms=1_000 + number), now_ms=0)
    assert clean(log, wall_ms=1_000) is None
    result = clean(log, wall_ms=1_130)
    assert result is not None
    young = [record for record in read_records(log) if record.timestamp_ms > 1_030]
    assert [record.timestamp_ms for record in young] == list(range(1_031, 1_060))
    assert 0 < result.end_offset <= 31


def test_a_log_past_its_maximum_lag_is_due() -> None:
    config = replace(COMPACTED, max_compaction_lag_ms=500, min_cleanable_dirty_ratio=1.0)
    log = filled(config)
    assert not flushed_dirtiness(log, wall_ms=400).due(config)
    assert flushed_dirtiness(log, wall_ms=600).due(config)


def test_a_small_key_map_takes_several_cleanings() -> None:
    log = new_log(config=COMPACTED)
    for number in range(120):
        log.append(keyed((f"key-{number % 40}", "2" * 30)), now_ms=0)
    values, ends = seen(log), [0]
    while result := clean(log, memory_bytes=24 * 16):
        ends.append(result.end_offset)
        assert seen(log) == values
    assert len(ends) > 4
    assert ends == sorted(set(ends))


def test_a_batch_with_more_keys_than_the_map_is_passed() -> None:
    log = new_log(config=replace(COMPACTED, segment_bytes=4096))
    for _ in range(3):
        log.append(keyed(*[(f"key-{number}", "v") for number in range(100)]), now_ms=0)
    log.append(keyed(("a", "b" * 3000)), now_ms=0)
    values = seen(log)
    while clean(log, memory_bytes=24 * 16):
        assert seen(log) == values
    assert log.cleaned.read() == 300


def test_a_marker_is_removed_after_its_data() -> None:
    log = new_log(config=COMPACTED)
    begun(log, keyed(("a", "1"), producer=(7, 0, 0), transactional=True))
    ended(log, COMMIT, 7)

    def markers(wall_ms: int) -> int:
        for _ in range(40):
            log.append(keyed(("b", "2" * 50)), now_ms=0)
        clean(log, wall_ms=wall_ms)
        return sum(batch.is_control for batch in read_batches(log))

    assert markers(0) == 1
    log.append(keyed(("a", "2")), now_ms=0)
    assert markers(10 * RETENTION_MS) == 1
    assert markers(11 * RETENTION_MS - 1) == 1
    assert markers(11 * RETENTION_MS) == 0


def test_compaction_stops_at_an_open_transaction() -> None:
    log = new_log(config=COMPACTED)
    log.append(keyed(("a", "0")), now_ms=0)
    log.append(keyed(("a", "1")), now_ms=0)
    begun(log, keyed(("a", "2"), producer=(7, 0, 0), transactional=True))
    for _ in range(40):
        log.append(keyed(("a", "3" * 50)), now_ms=0)
    result = clean(log)
    assert result is not None
    assert result.end_offset == 2
    assert [record.offset for record in read_records(log)][:3] == [1, 2, 3]


def test_a_damaged_segment_stays_unchanged() -> None:
    log = filled()
    path = log_files(files_of(log))[1]
    data = bytearray(read_file(files_of(log), path))
    data[100] ^= 1
    overwrite(files_of(log), path, bytes(data))
    with pytest.raises(CorruptData, match="damaged"):
        clean(log)
    assert read_file(files_of(log), path) == data
    assert log_files(files_of(log), ".cleaned") == []


def test_deleting_a_log_ends_its_cleaning() -> None:
    log = filled()
    steps = Cleaning(log, flushed_dirtiness(log), memory_bytes=MEMORY_BYTES, wall_ms=0).steps()
    next(steps)
    log.discard()
    with pytest.raises(UnknownTopicOrPartition):
        list(steps)


def test_an_abandoned_cleaning_leaves_no_files() -> None:
    log = filled()
    names = files_of(log).list("data/p-0")
    for count in range(1, 60, 7):
        steps = Cleaning(log, flushed_dirtiness(log), memory_bytes=MEMORY_BYTES, wall_ms=0).steps()
        for _ in range(count):
            next(steps, None)
        steps.close()
        if log.cleaned.read():
            break
        assert files_of(log).list("data/p-0") == names


def test_appends_during_a_cleaning_are_kept() -> None:
    log = filled()
    values = seen(log)
    for number, _ in enumerate(
        Cleaning(log, flushed_dirtiness(log), memory_bytes=MEMORY_BYTES, wall_ms=0).steps()
    ):
        log.append(keyed((f"new-{number}", "v" * 100)), now_ms=0)
        values[b"new-%d" % number] = b"v" * 100
    assert seen(log) == values
    assert seen(reopened(files_of(log), config=COMPACTED)) == values


def test_a_compacted_topic_refuses_records_without_a_key() -> None:
    data = encode_batch([(0, b"a", b"1", ()), (0, None, b"2", ())], codec=Compression.GZIP)
    log = new_log(config=COMPACTED)
    with pytest.raises(LogError, match="record 1 of a batch was refused: it has no key") as refused:
        log.append(data, now_ms=0)
    assert refused.value.code == INVALID_RECORD
    assert log.log_end_offset == 0
    assert new_log().append(data, now_ms=0).last_offset == 1
