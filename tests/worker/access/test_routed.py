"""Routed queries: the worker that gets a query, how often, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from streamlog import App
from streamlog.clock import SystemClock
from streamlog.errors import ConfigError, RequestTimedOut, UsageError
from streamlog.processing.table_rows import read_page, tables_of
from streamlog.processing.task import TaskId
from streamlog.records.murmur2 import partition_of_key
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import StoreSpec
from streamlog.worker.access.questions import (
    AppliedAnswer,
    AppliedQuery,
    NotHere,
    RowAnswer,
    RowQuery,
    ScanAnswer,
    ScanQuery,
    TaskQuery,
)
from streamlog.worker.access.routed_tables import RoutedTables, RoutingDeps
from streamlog.worker.assignment.streams_assignor import MemberDirectory, PeerInfo, WorkerPeers

PARTITIONS = 3
ME = "me"


@dataclass
class FakeWorker:
    """A worker's rows, by partition of the only table."""

    active: dict[int, MemoryStore] = field(default_factory=dict)
    standby: dict[int, MemoryStore] = field(default_factory=dict)
    age_ms: int = 1_500
    queries: int = 0
    is_suspended: bool = False
    passes_after: int = 0
    on_asked: Callable[[int], None] = lambda _asked: None

    def has(self, task_id: TaskId) -> bool:
        return task_id.partition in self.active

    def _store(self, asked: TaskQuery) -> tuple[MemoryStore, int | None]:
        self.queries += 1
        self.on_asked(self.queries)
        if asked.partition in self.active:
            return self.active[asked.partition], None
        if asked.stale_ok and asked.partition in self.standby:
            return self.standby[asked.partition], self.age_ms
        raise NotHere("not on this shelf")

    async def row(self, asked: RowQuery) -> RowAnswer:
        store, age_ms = self._store(asked)
        return RowAnswer(data=store.get(asked.key), age_ms=age_ms)

    async def rows(self, asked: ScanQuery) -> ScanAnswer:
        store, age_ms = self._store(asked)
        page = read_page(store.range, b"", asked.span, rows_max=asked.rows_max)
        return ScanAnswer(rows=page.rows, next_key=page.next_key, age_ms=age_ms)

    async def check_applied(self, asked: AppliedQuery) -> AppliedAnswer:
        self._store(asked)
        return AppliedAnswer(
            is_applied=self.queries > self.passes_after, is_suspended=self.is_suspended
        )


@dataclass
class Shop:
    """An app with one table, and its workers."""

    mine: FakeWorker
    others: dict[str, FakeWorker] = field(default_factory=dict)
    peers: WorkerPeers = field(default_factory=lambda: WorkerPeers(ME))
    sent: list[tuple[str, bytes | None, bytes | None]] = field(default_factory=list)

    def tables(self) -> RoutedTables:
        app = App("shop")
        source = app.topic("texts", key=str, value=str, partitions=PARTITIONS)
        app.table(source, name="texts").map_values(len, name="sizes")

        async def send(
            topic: str, value: bytes | None, *, key: bytes | None
        ) -> tuple[str, int, int, int]:
            self.sent.append((topic, value, key))
            return topic, partition_of_key(key or b"", PARTITIONS), 7, 0

        return RoutedTables(
            RoutingDeps(
                app_id="shop",
                tables=tables_of(app.topology()),
                counts={"texts": PARTITIONS},
                peers=self.peers,
                local=self.mine,
                remote=self.others.__getitem__,
                send=send,
                clock=SystemClock(),
            )
        )

    def direct(self, *peers: PeerInfo) -> None:
        self.peers.replace(MemberDirectory(peers=list(peers)))


def stores_of(*partitions: int, text: str = "x") -> dict[int, MemoryStore]:
    stores = {partition: MemoryStore() for partition in range(PARTITIONS)}
    for number in range(30):
        key = f"k{number:02}".encode()
        stores[partition_of_key(key, PARTITIONS)].put(key, f"{text}{number}".encode())
    return {partition: stores[partition] for partition in partitions}


def run(story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(story())


def collect(found: AsyncIterator[Any]) -> list[Any]:
    async def all_of_it() -> list[Any]:
        return [each async for each in found]

    return asyncio.run(all_of_it())


def key_in(partition: int) -> str:
    keys = (f"k{number:02}" for number in range(30))
    return next(key for key in keys if partition_of_key(key.encode(), PARTITIONS) == partition)


def test_own_rows_are_read_locally_and_remote_rows_are_requested_once() -> None:
    shop = Shop(
        FakeWorker(stores_of(0)), {"a:1": FakeWorker(stores_of(1)), "b:1": FakeWorker(stores_of(2))}
    )
    shop.direct(
        PeerInfo(process=ME, active={0: [0]}),
        PeerInfo(process="a", endpoint="a:1", active={0: [1]}),
        PeerInfo(process="b", endpoint="b:1", active={0: [2]}),
    )
    tables = shop.tables()
    for partition in range(PARTITIONS):
        key = key_in(partition)
        assert run(lambda key=key: tables.fetch("texts", key, stale_ok=False)) == f"x{int(key[1:])}"
        assert run(lambda key=key: tables.fetch("sizes", key, stale_ok=False)) in {2, 3}
    assert (shop.mine.queries, shop.others["a:1"].queries, shop.others["b:1"].queries) == (2, 2, 2)
    walked = collect(tables.walk("texts", page_rows=2))
    assert sorted(found.key for found in walked) == [f"k{number:02}" for number in range(30)]
    assert {found.age_ms for found in walked} == {None}


def test_a_query_waits_for_a_moving_task() -> None:
    shop = Shop(FakeWorker(), {"a:1": FakeWorker()})
    shop.direct(PeerInfo(process=ME), PeerInfo(process="a", endpoint="a:1", active={0: [0, 1, 2]}))

    def arrive(asked: int) -> None:
        if asked == 2:
            shop.mine.active = stores_of(1)

    shop.others["a:1"].on_asked = arrive
    assert run(lambda: shop.tables().fetch("texts", key_in(1), stale_ok=False)).startswith("x")
    assert (shop.others["a:1"].queries, shop.mine.queries) == (2, 1)


def test_a_query_for_an_unassigned_task_times_out() -> None:
    shop = Shop(FakeWorker(), {"a:1": FakeWorker()})
    shop.direct(PeerInfo(process=ME, active={0: [0]}), PeerInfo(process="a", endpoint="a:1"))
    with pytest.raises(RequestTimedOut, match=r"task 0_1 .* within 20 ms: the task moves"):
        run(lambda: shop.tables().find("texts", key_in(1), wait_ms=20))
    assert shop.others["a:1"].queries == 0
    shop.direct(PeerInfo(process="a", endpoint="a:1", active={0: [1]}))
    with pytest.raises(RequestTimedOut, match="not on this shelf"):
        run(lambda: shop.tables().find("texts", key_in(1), wait_ms=20))


def test_a_standby_answers_stale_queries_and_reports_its_age() -> None:
    shop = Shop(
        FakeWorker(), {"a:1": FakeWorker(), "b:1": FakeWorker(standby=stores_of(1, text="old"))}
    )
    shop.direct(
        PeerInfo(process=ME),
        PeerInfo(process="a", endpoint="a:1", active={0: [1]}),
        PeerInfo(process="b", endpoint="b:1", standby={0: [1]}),
    )
    tables, key = shop.tables(), key_in(1)
    found = run(lambda: tables.find("texts", key, stale_ok=True))
    assert (found.value, found.age_ms) == (f"old{int(key[1:])}", 1_500)
    with pytest.raises(RequestTimedOut):
        run(lambda: tables.find("texts", key, wait_ms=20))
    shop.others["a:1"].active = stores_of(1)
    found = run(lambda: tables.find("texts", key, stale_ok=True))
    assert (found.value, found.age_ms) == (f"x{int(key[1:])}", None)
    shop.others.clear()
    shop.mine.standby = stores_of(1, text="mine")
    shop.direct(PeerInfo(process=ME, standby={0: [1]}))
    assert run(lambda: tables.find("texts", key, stale_ok=True)).value == f"mine{int(key[1:])}"


def test_a_worker_without_a_web_server_cannot_be_asked() -> None:
    shop = Shop(FakeWorker())
    shop.direct(PeerInfo(process=ME), PeerInfo(process="a", active={0: [1]}))
    with pytest.raises(ConfigError, match="start every worker with --web"):
        run(lambda: shop.tables().fetch("texts", key_in(1), stale_ok=False))


def test_all_workers_are_asked_while_the_owner_is_unknown() -> None:
    shop = Shop(FakeWorker(), {"a:1": FakeWorker(), "b:1": FakeWorker(stores_of(1))})
    shop.direct(
        PeerInfo(process=ME),
        PeerInfo(process="a", endpoint="a:1"),
        PeerInfo(process="b", endpoint="b:1"),
    )
    assert run(lambda: shop.tables().fetch("texts", key_in(1), stale_ok=False))


def test_a_write_waits_until_its_owner_has_committed_it() -> None:
    shop = Shop(FakeWorker(stores_of(0, 1, 2), passes_after=1))
    written = run(lambda: shop.tables().write("texts", "k01", "new"))
    assert (written.topic, written.offset, written.applied) == ("texts", 7, True)
    assert shop.mine.queries == 2
    assert shop.sent == [("texts", b"new", b"k01")]
    shop.mine.passes_after = 1_000
    with pytest.raises(RequestTimedOut, match="is written at offset 7 of texts"):
        run(lambda: shop.tables().write("texts", "k01", None, wait_ms=20))
    assert shop.sent[-1] == ("texts", None, b"k01")
    shop.mine.is_suspended = True
    assert not run(lambda: shop.tables().write("texts", "k01", "new")).applied
    with pytest.raises(UsageError, match="is computed"):
        run(lambda: shop.tables().put("sizes", "k01", 3))


def test_a_page_is_bounded_by_rows_bytes_and_skipped_rows() -> None:
    store = MemoryStore()
    prefix = StoreSpec("t").prefix
    for number in range(2_500):
        store.put(prefix + f"k{number:05}".encode(), b"x")
    rows = tables_of(_one_table())["t"]

    def pages(head: object, rows_max: int = 10_000) -> list[int]:
        whole = rows.span()
        span = whole._replace(head=rows.span(prefix=head).head) if head else whole
        sizes = []
        low: bytes | None = b""
        while low is not None:
            page = read_page(store.range, prefix, span._replace(low=low), rows_max=rows_max)
            sizes.append(len(page.rows))
            low = page.next_key
        return sizes

    assert pages(None) == [1_000, 1_000, 500]
    assert pages("k024") == [100]
    assert pages(None, rows_max=1_200) == [1_000, 1_000, 500]
    store.put(prefix + b"a", bytes(2 * 1024 * 1024))
    assert pages(None)[0] == 1


def _one_table() -> Any:
    app = App("one")
    app.table(app.topic("t", key=str, value=str))
    return app.topology()
