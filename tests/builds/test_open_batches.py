"""One source, two builds: the short way of a record, and how a batch completes its receipts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.producer.sender import RecordMetadata
from streamlog.random_source import Random
from tests.builds.sources import MISSING, REASON, both, same

pytestmark = pytest.mark.skipif(bool(MISSING), reason=REASON)
BATCHES = both("streamlog.client.producer.open_batches")
PARTITIONS = 3
BATCH_BYTES, BUFFER_BYTES = 200, 500

content = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=3), content), max_size=2)
record = st.tuples(st.none() | st.integers(-(2**65), 2**65), content, content, headers)
joins = st.tuples(
    st.just("join"),
    st.sampled_from(["t", "own", "unknown"]),
    st.none() | st.integers(-1, PARTITIONS) | st.just(2**70),
    record,
)
events = st.sampled_from(
    ["begin", "close", "drain", "wait", "wait no more", "forget", "learn", "die", "stick", "turn"]
)
steps = st.lists(joins | st.tuples(events, st.integers(0, PARTITIONS - 1)), max_size=60)


class CountedRun:
    """Receipts that are numbers."""

    def __init__(self, numbers: Iterator[int], start: int) -> None:
        self.numbers = numbers
        self.start = start
        self.added: list[int] = []

    def add(self) -> int:
        self.added.append(next(self.numbers))
        return self.added[-1]

    def receipts(self) -> list[tuple[int, int, int]]:
        return [(at, at, number) for at, number in enumerate(self.added, self.start)]


class Driven:
    """The batches of one build, and what happens to them besides joins."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.used = module.UsedBytes()
        self.sticky = module.StickyPartitions(Random(1))
        self.newest: dict[str, object] = {}
        numbers = itertools.count()
        self.batches = module.OpenBatches(
            self.used,
            self.sticky,
            self.newest,
            batch_bytes=BATCH_BYTES,
            buffer_bytes=BUFFER_BYTES,
            new_run=lambda _, start: CountedRun(numbers, start),
            wall_ms=lambda: 7,
        )
        self.batches.is_open = True
        self.batches.own_partitioners = frozenset({"own"})
        self.queues = [[module.OpenBatch()] for _ in range(PARTITIONS)]
        self.happen("learn", 0)

    def happen(self, what: str, partition: int) -> None:
        queue = self.queues[partition]
        if what == "begin":
            queue.append(self.module.OpenBatch())
        elif what == "drain":
            self.used.value -= sum(each.size_bytes for each in queue)
            queue.clear()
        elif what == "turn":
            self.sticky.turn("t", partition, PARTITIONS)
        elif what == "stick" and queue:
            self.sticky.begin("t", queue[-1])
        elif what == "close" and queue:
            queue[-1].closed = True
        else:
            self.change(what)

    def change(self, what: str) -> None:
        if what in {"wait", "wait no more"}:
            self.batches.waiting_callers = what == "wait"
        elif what == "forget":
            self.newest.clear()
        elif what == "die":
            self.batches.is_open = not self.batches.is_open
        elif what == "learn":
            for topic in ("t", "own"):
                self.newest[topic] = known = object()
                for number, waiting in enumerate(self.queues):
                    self.batches.admit(topic, known, PARTITIONS, number, waiting)

    def contents(self) -> list[object]:
        return [
            (list(batch.columns), batch.receipts, batch.size_bytes, batch.closed)
            for queue in self.queues
            for batch in queue
        ]


@given(steps)
def test_records_join_equal_batches_in_both_builds(steps: list[tuple[object, ...]]) -> None:
    def act(module: ModuleType) -> object:
        driven, joined = Driven(module), []
        for what, *arguments in steps:
            if what == "join":
                joined.append(driven.batches.join(*arguments))
            else:
                driven.happen(str(what), int(str(arguments[0])))
        assert driven.used.value <= BUFFER_BYTES, "more than the buffer holds"
        assert all(batch.size_bytes < BATCH_BYTES for queue in driven.queues for batch in queue)
        return joined, driven.contents(), driven.used.value

    same(BATCHES, act)


def test_a_partition_that_does_not_exist_is_not_admitted() -> None:
    def act(module: ModuleType) -> None:
        driven = Driven(module)
        driven.batches.admit("t", None, PARTITIONS, PARTITIONS, [])

    assert same(BATCHES, act) == (IndexError, "topic 't' has no partition 3 of 3")


class Receipt:
    """Takes an outcome, unless it was given up."""

    def __init__(self, *, given_up: bool) -> None:
        self.given_up = given_up
        self.outcomes: list[object] = []

    def done(self) -> bool:
        return self.given_up

    def set_result(self, result: object) -> None:
        self.outcomes.append((type(result), result))


@given(
    st.lists(st.booleans(), max_size=6), st.integers(-1, 2**62), st.integers(-2, 5), st.booleans()
)
def test_receipts_get_equal_places_in_both_builds(
    given_up: list[bool], base_offset: int, time_ms: int, packed: bool
) -> None:
    def act(module: ModuleType) -> list[object]:
        batch = module.OpenBatch()
        for at, each in enumerate(given_up):
            if not packed:
                batch.columns.append(100 + at, None, None, ())
            batch.cover(at, at, Receipt(given_up=each))
        module.deliver(batch, RecordMetadata("t", 1, base_offset, time_ms))
        return [receipt.outcomes for *_, receipt in batch.receipts]

    outcomes = same(BATCHES, act)
    assert outcomes == [
        []
        if each
        else [
            (
                RecordMetadata,
                RecordMetadata(
                    "t",
                    1,
                    base_offset + at if base_offset >= 0 else -1,
                    time_ms if packed or time_ms >= 0 else 100 + at,
                ),
            )
        ]
        for at, each in enumerate(given_up)
    ]
