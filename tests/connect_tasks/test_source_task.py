"""The readers of a source: kills and undone commits, broken connections, back-pressure, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any, ClassVar

import pytest

from streamlog.connect import (
    BadRecord,
    Read,
    Retriable,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
    source_progress,
)
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.connect.retries import RecordRetries
from streamlog.connect_tasks.carried import SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.part_reader import REFUSED_MAX, HeldBudget, ReaderDeps
from streamlog.connect_tasks.source_task import SourceTask
from streamlog.errors import ProcessingError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.serdes import serde_for
from streamlog.serdes.erased_types import AnyRecord

BYTES = TopicSpec("t", serde_for(str), serde_for(bytes))
TEXT = TopicSpec("t", serde_for(str), serde_for(str))


class Clock:
    """Time that sleepers move."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms

    async def sleep_ms(self, time_ms: int) -> None:
        self.ms += time_ms
        await asyncio.sleep(0)


class Lines(Source[None, bytes], frozen=True, kw_only=True):
    """Numbered lines in portions, with trouble at any of them."""

    count: int = 100
    trouble: ClassVar[Callable[[], None]] = lambda: None
    closed: ClassVar[list[int]] = []

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        at = 0 if offset is None else int(str(offset["at"]))
        if offset is None:
            yield Read([], {"at": 0})
        try:
            while at < self.count:
                type(self).trouble()
                end = min(at + 1 + at % 3, self.count)
                yield Read.raw([b"%d" % n for n in range(at, end)], {"at": end})
                at = end
        finally:
            self.closed.append(at)


class Blocking(Lines, frozen=True, kw_only=True):
    """The same as a plain generator."""

    threads: ClassVar[set[int]] = set()

    def read(  # type: ignore[override]
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> Iterator[Read[None, bytes]]:
        at = 0 if offset is None else int(str(offset["at"]))
        try:
            while at < self.count:
                self.threads.add(threading.get_ident())
                type(self).trouble()
                yield Read.raw([b"%d" % at], {"at": at + 1})
                at += 1
        finally:
            self.closed.append(at)


def task_of(
    source: Source[Any, Any],
    offset: SourceOffset | None = None,
    *,
    policy: ErrorPolicy = on_error.FAIL,
    clock: Clock | None = None,
    spec: TopicSpec = BYTES,
    budget: HeldBudget | None = None,
    parts: int = 1,
    **more: Any,
) -> SourceTask:
    clock = clock or Clock()
    connector = SourceConnector(
        name="s", source=source, topics={"": spec}, policy=policy.named("app"), **more
    )
    deps = ReaderDeps(
        name="s",
        source=source,
        context=ConnectorContext("s", 0, clock),
        carrier=SourceCarrier(connector),
        clock=clock,
        chance=lambda: 0.0,
        budget=budget or HeldBudget(),
    )
    return SourceTask(deps, 0, [({"n": number}, offset) for number in range(parts)])


def commit(task: SourceTask) -> list[bytes | None]:
    """Commit what is held; returns the values."""
    values = [
        value
        for _, reads in task.take()
        for read in reads
        for batch in read.records.batches
        for value in batch.values
    ]
    task.count()
    return values


@pytest.mark.parametrize("kind", [Lines, Blocking])
@pytest.mark.parametrize("seed", range(5))
def test_every_line_counts_once_over_lives_and_broken_connections(
    kind: type[Lines], seed: int
) -> None:
    async def story() -> list[bytes | None]:
        random = Random(seed)

        def trouble() -> None:
            if random.random() < 0.1:
                raise random.choice([Retriable("later", after="1s"), OSError("gone")])

        kind.trouble = trouble  # type: ignore[assignment]
        log: list[bytes | None] = []
        offset: SourceOffset | None = None
        for _ in range(400):
            task = task_of(kind(), offset)
            running = asyncio.create_task(task.run())
            for _ in range(random.randint(0, 20)):
                await asyncio.sleep(0.0005 if kind is Blocking else 0)
                if random.random() < 0.5:
                    log += commit(task)
                    offset = task.readers[0].progress.counted
            if random.random() < 0.3:
                task.take()  # In flight, and then undone.
            running.cancel()
            await asyncio.wait([running])
            task.drop()
            if offset == {"at": 100}:
                break
        return log

    try:
        assert asyncio.run(story()) == [b"%d" % number for number in range(100)]
    finally:
        kind.trouble = staticmethod(lambda: None)  # type: ignore[assignment]


def test_where_a_source_begins_is_committed_before_anything_is_read() -> None:
    async def story() -> None:
        task = task_of(Lines())
        running = asyncio.create_task(task.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert task.held_records == 0
        assert task.readers[0].progress.last == {"at": 0}
        commit(task)
        await running
        assert task.held_records == 100

    asyncio.run(story())


def test_a_reader_waits_while_it_holds_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_progress, "HELD_RECORDS_MAX", 30)

    async def story() -> None:
        task = task_of(Lines(), {"at": 0})
        running = asyncio.create_task(task.run())
        total = waits = 0
        while not running.done():
            for _ in range(100):
                await asyncio.sleep(0)
            waits += task.is_full
            assert task.held_records <= 30 + 2
            total += len(commit(task))
        assert (waits, total + len(commit(task))) == (3, 100)

    asyncio.run(story())


def test_a_full_reader_reads_on_while_what_it_held_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_progress, "HELD_RECORDS_MAX", 30)

    async def story() -> None:
        task = task_of(Lines(), {"at": 0})
        running = asyncio.create_task(task.run())
        for _ in range(100):
            await asyncio.sleep(0)
        held = task.held_records
        task.take()
        for _ in range(100):
            await asyncio.sleep(0)
        # As much again, but not more before the commit has ended.
        assert 30 <= held < 2 * 30 <= task.held_records <= held + 30 + 2
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(story())


def test_over_the_budget_of_all_readers_those_that_hold_something_wait() -> None:
    async def story() -> None:
        budget = HeldBudget(limit_bytes=50)
        task = task_of(Lines(), {"at": 0}, budget=budget, parts=3)
        running = asyncio.create_task(task.run())
        seen = 0
        while not running.done():
            for _ in range(20):
                await asyncio.sleep(0)
            assert budget.held_bytes <= 50 + 3 * 6
            seen += len(commit(task))
        seen += len(commit(task))
        assert (seen, budget.held_bytes) == (300, 0)

    asyncio.run(story())


class Bell(Source[None, bytes], frozen=True, kw_only=True):
    """A line for each ring."""

    rings: asyncio.Semaphore

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        while True:
            await self.rings.acquire()
            yield Read.raw([b"ring"], {"at": 1})


def test_what_a_waiting_source_brings_while_it_is_paused_is_written_behind_the_pause() -> None:
    async def story() -> None:
        rings = asyncio.Semaphore(0)
        task = task_of(Bell(rings=rings), {"at": 0})
        running = asyncio.create_task(task.run())

        async def written() -> list[bytes | None]:
            for _ in range(20):
                await asyncio.sleep(0)
            return commit(task)

        assert await written() == []
        task.pause(is_paused=True)
        rings.release()
        rings.release()
        assert await written() == []
        task.pause(is_paused=False)
        assert await written() == [b"ring", b"ring"]
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(story())


def test_generators_are_closed_and_plain_ones_run_in_threads() -> None:
    async def story() -> None:
        Blocking.closed.clear()
        task = task_of(Blocking(count=10**9), {"at": 0})
        running = asyncio.create_task(task.run())
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])
        assert len(Blocking.closed) == 1
        assert threading.get_ident() not in Blocking.threads

    asyncio.run(story())


def test_any_other_error_ends_the_task_with_its_coordinates() -> None:
    def trouble() -> None:
        raise ZeroDivisionError("no")

    class Failing(Lines, frozen=True, kw_only=True):
        pass

    Failing.trouble = staticmethod(trouble)  # type: ignore[assignment]
    with pytest.raises(
        ProcessingError, match=r"source 's', part {\"n\":0}, failed behind .*'at': 7"
    ):
        asyncio.run(task_of(Failing(), {"at": 7}).run())


class Mixed(Source[str, str], frozen=True, kw_only=True):
    """Texts, a value that is no text, and a record that can't be made at all."""

    refuses: bool = False

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, str]]:
        values: list[Any] = ["a", 7, "b"]
        yield Read([context.record(v, key="k", timestamp=9) for v in values], {"at": 3})
        if self.refuses:
            raise BadRecord("line 4 is torn")


def test_a_record_that_does_not_fit_its_topic_goes_to_the_policy() -> None:
    async def story(policy: ErrorPolicy) -> SourceTask:
        task = task_of(Mixed(), policy=policy, spec=TEXT)
        await task.run()
        return task

    task = asyncio.run(story(on_error.dlq()))
    batches = [
        batch for _, reads in task.take() for read in reads for batch in read.records.batches
    ]
    assert [(batch.topic, batch.values) for batch in batches] == [
        ("t", [b"a"]),
        ("app-dlq", [b"7"]),
        ("t", [b"b"]),
    ]
    assert task.figures().dead_letters == 1
    assert asyncio.run(story(on_error.skip())).figures().skipped == 1
    with pytest.raises(ProcessingError, match="'s' failed"):
        asyncio.run(story(on_error.FAIL))


def test_a_source_that_can_not_pass_a_bad_record_fails_instead_of_repeating_its_letter() -> None:
    task = task_of(Mixed(refuses=True), {"at": 0}, policy=on_error.dlq(), spec=TEXT)
    with pytest.raises(
        ProcessingError, match=r"can't read past this record: .*: BadRecord: line 4"
    ):
        asyncio.run(task.run())


class Spoiled(Source[None, bytes], frozen=True, kw_only=True):
    """Numbers, some of them bad; `is_queue`: what it has read is gone, as from a queue."""

    count: int = 0
    bad: frozenset[int] = frozenset()
    is_queue: bool = False
    taken: ClassVar[list[int]] = []

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        at = 0 if offset is None else int(str(offset["at"]))
        for number in range(max(at, len(self.taken) if self.is_queue else 0), self.count):
            self.taken.append(number)
            if number in self.bad:
                behind = None if self.is_queue else {"at": number + 1}
                raise BadRecord(f"number {number}", offset=behind)
            yield Read.raw([b"%d" % number], {"at": number + 1})


@pytest.mark.parametrize("is_queue", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_bad_records_in_a_row_are_set_aside_one_by_one(seed: int, is_queue: bool) -> None:
    random = Random(seed)
    bad = frozenset(n for n in range(60) if random.random() < 0.6)
    Spoiled.taken.clear()
    task = task_of(Spoiled(count=60, bad=bad, is_queue=is_queue), policy=on_error.dlq("bad"))
    asyncio.run(task.run())
    reads = [read for _, reads in task.take() for read in reads]
    batches = [batch for read in reads for batch in read.records.batches]
    good = [int(v or b"") for batch in batches if batch.topic == "t" for v in batch.values]
    letters = sum(len(batch.values) for batch in batches if batch.topic == "bad")
    assert good == [n for n in range(60) if n not in bad]
    assert letters == len(bad) == task.figures().dead_letters


def test_an_offset_that_does_not_pass_the_bad_record_fails_like_none() -> None:
    class Stuck(Source[None, bytes], frozen=True, kw_only=True):
        async def read(
            self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
        ) -> AsyncIterator[Read[None, bytes]]:
            yield Read([], offset or {"at": 0})
            raise BadRecord("the same one", offset={"at": 7})

    with pytest.raises(ProcessingError, match="offset behind it"):
        asyncio.run(task_of(Stuck(), {"at": 3}, policy=on_error.skip()).run())


def test_endless_refusals_at_one_offset_end_the_reader() -> None:
    class Endless(Source[None, bytes], frozen=True, kw_only=True):
        numbers: ClassVar[list[int]] = []

        async def read(
            self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
        ) -> AsyncIterator[Read[None, bytes]]:
            self.numbers.append(1)
            raise BadRecord(f"number {len(self.numbers)}")
            yield Read([], {})

    with pytest.raises(ProcessingError, match="can't read past"):
        asyncio.run(task_of(Endless(), policy=on_error.skip()).run())
    assert len(Endless.numbers) == REFUSED_MAX + 1


def test_transforms_change_and_leave_out_records() -> None:
    class Good(Source[str, str], frozen=True, kw_only=True):
        async def read(
            self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
        ) -> AsyncIterator[Read[str, str]]:
            yield Read([context.record(v, key="k") for v in "abc"], {"at": 3})

    task = task_of(
        Good(),
        spec=TEXT,
        transforms=[
            lambda record: None if record.value == "b" else record,
            lambda record: record.replace(value=record.value.upper()),
        ],
    )
    asyncio.run(task.run())
    assert commit(task) == [b"A", b"C"]


def test_committed_is_called_in_order_and_only_for_what_counts() -> None:
    called: list[int] = []

    class Acknowledging(Source[None, bytes], frozen=True, kw_only=True):
        async def read(
            self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
        ) -> AsyncIterator[Read[None, bytes]]:
            for n in range(3):
                yield Read.raw([b"x"], {"at": n}, committed=lambda n=n: called.append(n))

    task = task_of(Acknowledging(), {"at": 0})
    asyncio.run(task.run())
    task.take()
    assert called == []
    task.count()
    assert called == [0, 1, 2]


@pytest.mark.parametrize("failures", [3, 99])
def test_a_transform_that_fails_for_now_is_tried_again_until_the_time_is_over(
    failures: int,
) -> None:
    left, clock = [failures], Clock()

    def look_up(record: AnyRecord) -> AnyRecord:
        if record.value == b"7" and left[0]:
            left[0] -= 1
            raise Retriable("the registry does not answer")
        return record

    async def story() -> list[bytes | None]:
        task = task_of(
            Lines(count=20), policy=on_error.skip(), transforms=[look_up], clock=clock,
            retries=RecordRetries(timeout_ms=4_000),
        )  # fmt: skip
        found: list[bytes | None] = []
        async with asyncio.TaskGroup() as group:
            running = group.create_task(task.run())
            while not running.done():
                found += commit(task)
                await asyncio.sleep(0)
        return found + commit(task)

    Lines.trouble = lambda: None
    found = asyncio.run(story())
    lost = [] if failures == 3 else [7]
    assert found == [b"%d" % n for n in range(20) if n not in lost]
    # 300, 600, 1,200, and what is left of the time.
    assert clock.ms - 1_000 == (2_100 if failures == 3 else 4_000)
