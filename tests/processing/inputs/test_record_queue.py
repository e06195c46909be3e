from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import ProcessingError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.inputs.record_queue import RUN_RECORDS_MAX, Input, RecordQueue
from streamlog.records.batch import LogRecord
from streamlog.records.control_batches import TimeMark
from streamlog.serdes import serde_for


def spec(name: str, **settings: object) -> TopicSpec:
    return TopicSpec(name, serde_for(str), serde_for(int), **settings)  # type: ignore[arg-type]


def raw(offset: int, timestamp_ms: int, value: bytes | None = None) -> LogRecord:
    return LogRecord(offset, timestamp_ms, b"k", value or offset.to_bytes(8, "big"))


def take_all(queue: RecordQueue) -> list[tuple[str, int]]:
    taken = []
    while (run := queue.next_run()) is not None:
        entry, batch = run
        if isinstance(batch, TimeMark):
            taken.append((entry.topic.name, batch.offset))
            continue
        taken += [(entry.topic.name, offset) for offset in batch.origin.offsets]
    return taken


partitions = st.lists(st.lists(st.integers(0, 40), max_size=15), min_size=1, max_size=3)


@given(partitions, st.integers(0, 10_000))
def test_records_are_taken_in_sorted_order_however_they_arrive(
    timestamps: list[list[int]], seed: int
) -> None:
    rng = Random(seed)
    inputs = [Input(spec(f"t{rank}"), 0, rank) for rank in range(len(timestamps))]
    queue = RecordQueue(inputs, record_at_a_time=rng.random() < 0.3)
    for entry, times in zip(inputs, timestamps, strict=True):
        entry.learn_end(len(times), now_ms=0, took=False)
    waiting = [[raw(n, ms) for n, ms in enumerate(times)] for times in timestamps]
    taken = take_all(queue)
    while any(waiting):
        rank = rng.choice([rank for rank, records in enumerate(waiting) if records])
        count = rng.randint(1, 4)
        inputs[rank].arrive(waiting[rank][:count])
        del waiting[rank][:count]
        taken += take_all(queue)
    order = sorted(
        (max(times[: at + 1]), rank, at)
        for rank, times in enumerate(timestamps)
        for at in range(len(times))
    )
    assert taken == [(f"t{rank}", at) for _, rank, at in order]


def test_the_queue_waits_for_an_input_behind_but_not_one_at_its_end() -> None:
    fast, slow = Input(spec("fast"), 0, 0), Input(spec("slow"), 0, 1)
    queue = RecordQueue([fast, slow], record_at_a_time=False)
    fast.arrive([raw(0, 5), raw(1, 50)])
    assert take_all(queue) == []  # The end of the slow input is unknown.
    slow.learn_end(2, now_ms=0, took=False)
    assert take_all(queue) == []
    slow.arrive([raw(0, 10)])
    assert take_all(queue) == [("fast", 0), ("slow", 0)]
    slow.start_at(2)  # Its last record was not for this task.
    assert take_all(queue) == [("fast", 1)]


def test_records_before_the_position_are_skipped() -> None:
    entry = Input(spec("t"), 0, 0)
    entry.start_at(2)
    assert entry.position == 2
    entry.arrive([raw(1, 5), raw(2, 6)])
    assert take_all(RecordQueue([entry], record_at_a_time=False)) == [("t", 2)]
    entry.arrive([raw(2, 6)])
    assert len(entry) == 0
    assert entry.position == 3


def test_quiet_time_starts_when_the_end_is_reached() -> None:
    entry = Input(spec("t"), 0, 0)
    entry.learn_end(0, now_ms=100, took=False)
    entry.learn_end(0, now_ms=130, took=False)
    assert entry.quiet_ms == 30
    entry.arrive([raw(0, 5)])
    entry.learn_end(1, now_ms=140, took=False)
    assert entry.quiet_ms == 0
    take_all(RecordQueue([entry], record_at_a_time=False))
    entry.learn_end(1, now_ms=150, took=True)
    entry.learn_end(1, now_ms=190, took=False)
    assert entry.quiet_ms == 40


@pytest.mark.parametrize(
    ("settings", "record", "text"),
    [
        ({}, raw(7, 5, b"short"), "at offset 7 of t-3: value: not int"),
        ({}, raw(7, -5), "at offset 7 of t-3: the timestamp is -5 ms, before 1970"),
        ({"timestamp": lambda v: v.at}, raw(7, 5), "'timestamp of t' failed at offset 7 of t-3"),
        ({"timestamp": lambda _: "noon"}, raw(7, 5), "'noon' is not a time"),
        ({"timestamp": lambda _: -1}, raw(7, 5), "the timestamp is -1 ms"),
    ],
)
def test_an_unreadable_record_is_named_with_its_offset(
    settings: dict[str, object], record: LogRecord, text: str
) -> None:
    entry = Input(spec("t", **settings), 3, 0)
    entry.arrive([record])
    with pytest.raises(ProcessingError) as error:
        entry.head()
    assert text in str(error.value)
    assert (error.value.topic, error.value.partition, error.value.offset) == ("t", 3, 7)


def test_a_deletion_keeps_its_own_timestamp() -> None:
    entry = Input(spec("t", timestamp=lambda _: 99), 0, 0)
    entry.arrive([LogRecord(0, 5, b"k", None), raw(1, 6)])
    _, batch = RecordQueue([entry], record_at_a_time=False).next_run() or (None, None)
    assert batch is not None
    assert list(batch.timestamps) == [5, 99]


def test_many_records_are_taken_in_bounded_batches() -> None:
    entry = Input(spec("t"), 0, 0)
    count = 2 * RUN_RECORDS_MAX + 7
    entry.arrive([raw(at, at) for at in range(count)])
    assert len(entry) == count
    queue = RecordQueue([entry], record_at_a_time=False)
    sizes = []
    offsets: list[int] = []
    while (run := queue.next_run()) is not None:
        sizes.append(len(run[1]))
        offsets += run[1].origin.offsets
        entry.learn_end(count, now_ms=0, took=True)
    assert sizes == [RUN_RECORDS_MAX, RUN_RECORDS_MAX, 7]
    assert offsets == list(range(count))
    assert (entry.position, len(entry), entry.is_at_end()) == (count, 0, True)


def test_an_unreadable_record_fails_only_at_its_turn() -> None:
    entry = Input(spec("t"), 0, 0)
    entry.arrive([*(raw(at, at) for at in range(RUN_RECORDS_MAX)), raw(RUN_RECORDS_MAX, 9, b"?")])
    queue = RecordQueue([entry], record_at_a_time=False)
    _, batch = queue.next_run() or (None, None)
    assert batch is not None
    assert len(batch) == RUN_RECORDS_MAX
    with pytest.raises(ProcessingError, match=f"at offset {RUN_RECORDS_MAX} of t-0"):
        queue.next_run()


@pytest.mark.parametrize("keys", [[b"a", None, b"c"], [b"a", "\u00e4".encode(), b"c"]])
def test_keys_are_decoded_on_demand(keys: list[bytes | None]) -> None:
    entry = Input(spec("t"), 0, 0)
    entry.arrive([raw(at, at)._replace(key=key) for at, key in enumerate(keys)])
    _, batch = RecordQueue([entry], record_at_a_time=False).next_run() or (None, None)
    assert batch is not None
    texts = [None if key is None else key.decode() for key in keys]
    kept = batch.where([True, False, True])
    changed = kept.with_values([b"x", b"y"])
    assert list(changed.keys) == [texts[0], texts[2]]
    assert list(changed.raw_keys(entry.topic.key, "n")) == [keys[0], keys[2]]
    assert list(kept.raw_keys(serde_for(str), "n")) == [keys[0], keys[2]]
    assert batch.has_null_keys is (None in keys)
    assert list(batch.keys) == texts
    assert list(batch.where([False, True, False]).keys) == texts[1:2]


def test_an_invalid_text_key_is_refused_even_if_unused() -> None:
    entry = Input(spec("t"), 0, 0)
    entry.arrive([raw(0, 0), raw(1, 1)._replace(key=b"\xff")])
    with pytest.raises(ProcessingError, match="at offset 1 of t-0: key"):
        entry.head()
