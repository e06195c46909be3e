"""Rows that can't be stored: the error of the commit names a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamlog import App, Emit, Stream, Table, Topic, count_window, session, sliding, tumbling
from streamlog.errors import ProcessingError
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource
from streamlog.processing.tables.aggregate import NOTED_BATCHES_MAX, LastRecords
from streamlog.testing import TestDriver


def kept(state: list[Any], value: int) -> list[Any]:
    return [*state, object() if value == 13 else value]


def both(first: list[Any], second: list[Any]) -> list[Any]:
    return [*first, *second]


KINDS: dict[str, Callable[[Stream[str, int]], Table[Any, Any]]] = {
    "keys": lambda s: s.group_by_key().emit(Emit.COMMIT).aggregate(list, kept, name="it"),
    "tumbling": lambda s: (
        s.group_by_key().windowed(tumbling("1h")).aggregate(list, kept, name="it")
    ),
    "session": lambda s: (
        s.group_by_key().windowed(session("1h")).aggregate(list, kept, merge=both, name="it")
    ),
    "sliding": lambda s: s.group_by_key().windowed(sliding("1h")).aggregate(list, kept, name="it"),
    "counted": lambda s: (
        s.group_by_key().windowed(count_window(9)).aggregate(list, kept, name="it")
    ),
}


def fail(t: TestDriver, topic: Topic[str, int]) -> None:
    t.input(topic).send(13, key="b", at=9)
    t.restart()


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_can_not_be_stored_is_reported_with_its_record(kind: str) -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=int, partitions=1)
    KINDS[kind](app.stream(topic))
    with app.test() as t:
        t.input(topic).send(1, key="a", at=0)
        t.input(topic).send(2, key="a", at=1)
        with pytest.raises(ProcessingError, match="'it' failed at offset 2 of in-0") as failed:
            fail(t, topic)
    error = failed.value
    assert (error.node, error.topic, error.partition, error.offset) == ("it", "in", 0, 2)


def test_only_the_newest_batches_are_remembered() -> None:
    last = LastRecords("it")
    feed = TimeSource(("in", 0))
    for number in range(NOTED_BATCHES_MAX + 1):
        origin = BatchOrigin.of_rows(feed, [number], [0])
        last.note(Batch(origin, range(1), ["k"], [0], [0]), [b"%d" % number])
    older = last.failure(b"0", ValueError("x"))
    assert "can't store its state for key b'0': x; its record is at this offset or" in str(older)
    assert older.offset == 0
    assert last.failure(b"7", ValueError("x")).offset == 7
    last.clear()
    assert last.failure(b"7", ValueError("x")).offset == -1
