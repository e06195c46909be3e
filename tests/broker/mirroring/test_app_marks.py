"""When a look at the source is taken, and what becomes a mark of how far apps are whole."""

from __future__ import annotations

from streamlog.broker.mirroring.apps.app_history import TransactionLog
from streamlog.broker.mirroring.apps.app_marks import (
    LOOK_MS_MAX,
    PAUSE_MS,
    AppMarks,
    SourceEnds,
    Where,
)
from streamlog.broker.mirroring.link_plan import TRANSACTION_LOG
from streamlog.protocol.codec import encode_versioned
from streamlog.protocol.messages.metadata_log import MarkedPartition
from streamlog.protocol.messages.transaction_messages import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from streamlog.records.batch import RecordBatch, encode_batch, set_offset_and_epoch

A: Where = ("a", 0)
TOLD: Where = (TRANSACTION_LOG, 0)
TOPICS = {"a", TRANSACTION_LOG}
PREPARE, COMPLETE = 2, 4


def look(stable: int, before: int, end: int, after: int) -> SourceEnds:
    return SourceEnds(
        stable={A: stable}, decided_before={0: before}, ends={A: end}, decided={0: after}
    )


def test_a_mark_joins_two_looks_once_the_mirrors_have_come_to_the_later_one() -> None:
    marks = AppMarks(0)
    assert marks.is_due({}, 0)
    marks.on_look(look(3, 10, 5, 11), 0)
    # Not before the log of transactions is here up to what the first one has seen.
    assert not marks.is_due({TOLD: 10}, 1)
    assert marks.is_due({TOLD: 11}, 2)
    marks.on_look(look(6, 20, 9, 21), 2)
    assert not marks.is_due({TOLD: 99}, 3)
    assert marks.take({A: 9, TOLD: 20}, TOPICS, 3) == []
    assert marks.take({A: 8, TOLD: 21}, TOPICS, 3) == []
    assert marks.take({A: 9, TOLD: 21}, TOPICS, 3) == [
        MarkedPartition(
            topic=TRANSACTION_LOG, partition=0, scan_from=11, whole_below=21, settled_below=20
        ),
        MarkedPartition(topic="a", partition=0, scan_from=3, whole_below=9),
    ]
    # The later look is the earlier one of the next mark, after a pause.
    assert not marks.is_due({TOLD: 21}, 3)
    assert marks.is_due({TOLD: 21}, 3 + PAUSE_MS)


def test_a_topic_that_is_not_mirrored_holds_no_mark_up_and_an_old_look_is_taken_anew() -> None:
    marks = AppMarks(0)
    marks.on_look(look(3, 10, 5, 11), 0)
    marks.on_look(look(6, 20, 9, 21), 0)
    assert marks.is_due({TOLD: 11}, LOOK_MS_MAX)
    assert [each.topic for each in marks.take({TOLD: 21}, {TRANSACTION_LOG}, 0)] == [
        TRANSACTION_LOG
    ]


def entry(offset: int, name: str, status: int) -> RecordBatch:
    """Return a record of the log of transactions."""
    part = PartitionsSchema(topic="a", partition_ids=[0])
    value = TransactionLogValue(
        producer_id=len(name),
        producer_epoch=offset,
        transaction_status=status,
        transaction_partitions=[part] if status == PREPARE else None,
    )
    key = encode_versioned(TransactionLogKey(transactional_id=name), 0)
    data = bytearray(encode_batch([(1_000, key, encode_versioned(value, 0), ())]))
    set_offset_and_epoch(data, offset, 0)
    return RecordBatch(bytes(data))


def read(*entries: RecordBatch) -> TransactionLog:
    mark = MarkedPartition(
        topic=TRANSACTION_LOG, partition=0, scan_from=4, whole_below=8, settled_below=6
    )
    log = TransactionLog(mark, "p")
    for each in entries:
        log.add(each)
    return log


def test_what_had_ended_before_a_mark_takes_no_room_and_what_had_not_is_named() -> None:
    log = read(
        entry(0, "p-1", PREPARE),
        entry(1, "p-22", PREPARE),
        entry(2, "p-333", PREPARE),
        entry(3, "p-1", COMPLETE),
        entry(4, "q-4444", PREPARE),
        entry(5, "p-22", COMPLETE),
        # After the later look: its markers may be beyond what was noted there.
        entry(6, "p-333", COMPLETE),
        entry(7, "q-4444", COMPLETE),
    )
    assert log.unsettled == [(5, 2)]
    assert {*log.transactions()} == {(5, 2), (6, 4)}
    assert log.producers == {3, 4, 5}
    assert log.written == {"a"}
    assert not log.has_gap


def test_decisions_that_compaction_took_before_they_were_copied_make_a_gap() -> None:
    every = [entry(n, "p-1", PREPARE if n % 2 else COMPLETE) for n in range(8)]
    assert not read(*every).has_gap
    assert not read(*every[2:]).has_gap
    assert read(*every[:5], *every[6:]).has_gap
    assert read(*every[:7]).has_gap
