"""What the server keeps for a slot is measured and told, and given up where the settings say so."""

from __future__ import annotations

import asyncio
import logging

import psycopg
import pytest

from streamlog.connect import ConnectError
from streamlog.connectors.postgres_cdc import slot_watch
from streamlog.errors import ConfigError
from tests.connectors.postgres_cdc.test_table_capture import (
    Log,
    Shop,
    live,
    read_on,
    reading_of,
    shop,
)
from tests.connectors.runs import on_loop
from tests.servers.postgres import PostgresServer
from tests.servers.server_process import wait_until
from tests.worker.commit_steps import IS_THOROUGH

__all__ = ["shop"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_watch, "LOOK_EVERY", "20ms")


def retained(shop: Shop) -> int:
    query = """
        SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)
        FROM pg_replication_slots WHERE slot_name = %s"""
    return int(shop.db.execute(query, (shop.name,)).fetchall()[0][0])


def has_slot(shop: Shop) -> bool:
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
    return shop.db.execute(query, (shop.name,)).fetchone() == (1,)


async def until(holds: object, what: str) -> None:
    await asyncio.to_thread(wait_until, holds, what)


@on_loop
async def test_a_slot_is_watched_while_its_reader_waits_for_the_log(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    source = shop.source(slot_lag_warn_bytes=2_000_000)
    async with reading_of(shop, source, log) as reading:
        log.take(await anext(reading))
        # From here on nothing is asked of the reader, as if its log were full.
        shop.run("CREATE TABLE other AS SELECT n, repeat('x', 300) FROM generate_series(1, 9000) n")
        await until(lambda: "wal_status reserved" in caplog.text, "the warning")
        least = retained(shop) - 2_000_000
        await until(lambda: log.context.gauges["slot_retained_bytes"] > least, "the measure")
        # It stands for as long as the limit is passed, and the server has no limit of its own.
        warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert shop.name in warnings[0].getMessage()
        assert "slot_safe_bytes" not in log.context.gauges


@pytest.mark.parametrize("is_asked", [True, False])
@on_loop
async def test_a_slot_that_keeps_too_much_is_given_up(shop: Shop, *, is_asked: bool) -> None:
    log, source = Log(), shop.source(slot_lag_stop_bytes=10_000_000)
    message = "slot_lag_stop_bytes is 10000000: the slot is given up and dropped"
    shop.run("INSERT INTO orders VALUES (1, 'a', 1)")
    async with reading_of(shop, source, log) as reading:
        while not log.table:
            log.take(await anext(reading))
        # An open transaction keeps the slot where it is, whatever the reader confirms.
        with psycopg.connect(shop.server.dsn(shop.name)) as writer:
            writer.execute("INSERT INTO orders VALUES (2, 'b', 1)")
            shop.run("CREATE TABLE other AS SELECT repeat('x', 900) FROM generate_series(1, 15000)")
            if not is_asked:
                await until(lambda: not has_slot(shop), "the end of the slot")
            with pytest.raises(ConfigError, match=message):
                await read_on(reading, log)
    assert not has_slot(shop)
    assert log.context.gauges["slot_retained_bytes"] == 0
    with pytest.raises(ConfigError, match="is gone; the log has changes up to"):
        await live(shop, source, log, until=None)
    # What `offsets --reset` does.
    anew = Log()
    await live(shop, shop.source(), anew, until=shop.rows())


@on_loop
async def test_a_slot_is_released_once_nobody_reads_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlog.connectors.postgres_cdc.server_checks.FREE_LOOKS", 2)
    source, log = shop.source(), Log()
    shop.insert(1, 2)
    async with reading_of(shop, source, log) as reading:
        while not log.table:
            log.take(await anext(reading))
        with pytest.raises(ConnectError, match=r"is read by process \d+ of the server"):
            await source.release(log.context)
    wait_until(shop.is_free, "the end of the reader")
    assert await source.release(log.context) == f"replication slot {shop.name} is dropped"
    assert not has_slot(shop)
    assert await source.release(log.context) == f"replication slot {shop.name} was gone already"


@pytest.mark.skipif(not IS_THOROUGH, reason="waits for checkpoints of a server of its own")
@on_loop
async def test_a_slot_that_the_server_invalidates(caplog: pytest.LogCaptureFixture) -> None:
    """What `max_slot_wal_keep_size` does is foreseen by a gauge and told, and mended by a reset."""
    limits = {"max_slot_wal_keep_size": "128MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with PostgresServer(**limits) as server:
        shop = Shop(server)
        shop.run("CREATE TABLE other (a text)")
        shop.insert(1, 2)
        log, source, safe = Log(), shop.source(), []
        async with reading_of(shop, source, log) as reading:
            while not log.table:
                log.take(await anext(reading))
            await until(lambda: "slot_safe_bytes" in log.context.gauges, "the gauge")
            with psycopg.connect(server.dsn(shop.name)) as writer:
                writer.execute("INSERT INTO orders VALUES (2, 'b', 1)")
                while "wal_status lost" not in caplog.text:
                    safe.append(log.context.gauges["slot_safe_bytes"])
                    shop.run(
                        "INSERT INTO other SELECT repeat('x', 900) FROM generate_series(1, 8000)"
                    )
                    shop.run("CHECKPOINT")
                    await until(lambda: log.context.gauges["slot_safe_bytes"] < safe[-1], "a look")
                    assert len(safe) < 100
        assert safe[0] > 64_000_000
        assert "wal_status extended" in caplog.text
        with pytest.raises(ConfigError, match="has lost its WAL"):
            await live(shop, source, log, until=None)
        anew = Log()
        await live(shop, source, anew, until=shop.rows())
        shop.db.close()
