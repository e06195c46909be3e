"""Next records are read once, in a thread, and remembered while their log stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.lag import lag_rounds, next_records
from streamlog.broker.storage.log import record_search
from streamlog.records.batch import encode_batch
from streamlog.records.compression import Compression
from tests.broker.coordinator.driving import commit
from tests.broker.lag.lag_stories import Inline, lag_of
from tests.broker.lag.test_lag_rounds import NOW_MS, append
from tests.broker.node import Node, create, produce


class Held(Executor):
    """Runs jobs when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def release(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future, work in waiting:
            future.set_result(work())


def run(
    story: Callable[[Broker, Node], Any], executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a story on a broker that reads next records in this executor."""
    node = Node()

    def thread_of(name: str) -> Executor:
        return executor if name == next_records.THREAD else Inline()

    async def main() -> None:
        async with Broker.open(
            "data", config=node.config, clock=node.clock, files=node.files, threads=thread_of
        ) as broker:
            create(broker, segment_bytes="1024", index_interval_bytes="128")
            await story(broker, node)

    asyncio.run(main())


def test_a_second_look_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Inline()

    async def story(broker: Broker, node: Node) -> None:
        for n in range(50):
            await produce(broker, encode_batch([(NOW_MS + n, None, b"x" * 30, ())]))
        for n in range(20):
            await commit(broker, n, group_id=f"g{n}")
        assert await lag_of(broker, node, "lag_seconds", "g7") is not None
        jobs = thread.jobs
        assert jobs == 1
        for _ in range(3):
            assert await lag_of(broker, node, "lag_seconds", "g7") is not None
        assert thread.jobs == jobs
        await commit(broker, 30, group_id="g7")
        await lag_of(broker, node, "lag_seconds", "g7")
        assert thread.jobs == jobs + 1

    run(story, thread, monkeypatch)


def test_what_a_slow_disk_finds_too_late_counts_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread = Held()
    monkeypatch.setattr(lag_rounds, "BUDGET_MS", 1)

    async def story(broker: Broker, node: Node) -> None:
        await produce(broker, encode_batch([(NOW_MS, None, b"x", ())]))
        await commit(broker, 0)
        assert await lag_of(broker, node, "lag", "g") == 1
        assert await lag_of(broker, node, "lag_seconds", "g") is None
        thread.release()
        for _ in range(5):  # From the job to the loop, and from its future to who keeps it.
            await asyncio.sleep(0)
        assert await lag_of(broker, node, "lag_seconds", "g") == 3.0
        assert not thread.waiting

    run(story, thread, monkeypatch)


def test_a_search_passes_a_bounded_number_of_batches_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_search, "BATCHES_MAX", 3)

    async def story(broker: Broker, node: Node) -> None:
        partition = broker._partitions.get("t", 0)
        await append(broker, [(1, NOW_MS)], Compression.NONE, kind="plain")
        for n in range(20):
            partition.mark_time(now_ms=n)
        await append(broker, [(1, NOW_MS - 5_000)], Compression.NONE, kind="plain")
        end = partition.log.log_end_offset
        await commit(broker, 1)
        assert await lag_of(broker, node, "lag", "g") == end - 1
        assert await lag_of(broker, node, "lag_seconds", "g") == 7.0

    run(story, Inline(), monkeypatch)


def test_a_damaged_or_missing_file_leaves_the_age_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: Broker, node: Node) -> None:
        await produce(broker, encode_batch([(NOW_MS, None, b"x" * 30, ())]))
        await commit(broker, 0)
        search = broker._partitions.get("t", 0).log.search(0, 1)
        node.files.remove(search.path)
        assert await lag_of(broker, node, "lag", "g") == 1
        assert await lag_of(broker, node, "lag_seconds", "g") is None

    run(story, Inline(), monkeypatch)
