"""Rows of sources: what comes in from files, tables, the WAL and the network."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from timeit import repeat

import psycopg

from benchmarks.connect.apps import WARM_UP
from benchmarks.connect.debezium import debezium
from benchmarks.connect.lab import COMMIT_MS, STALL_TIMEOUT_S, Lab, Trial, TrialFailed, by_hand
from benchmarks.connect.orders import SYSLOG_5424, TABLE, encoded
from benchmarks.connect.report import cpu_ratio, ratio, told
from benchmarks.engine.environment import Environment
from benchmarks.harness import Reading, cpu_of
from conformance.kafka import Unavailable
from streamlog.connect.source_progress import HELD_RECORDS_MAX
from streamlog.connectors.syslog.syslog_message import parse_syslog
from tests.servers.postgres import PostgresServer

PEERS = Path(__file__).parent / "peers"
SHARE = 2
"""Slow peers get one in so many of the records."""
SNAPSHOT = 3
"""How many times the records a snapshot gets."""
LONGER = 4
"""How many times the records `Tail` and the runtime get."""
SYSLOG_RATE = 40_000
SYSLOG_S = 5
SYSLOG_FORMS = {
    "RFC 5424 with structured data": SYSLOG_5424,
    "RFC 5424": b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - "
    b"'su root' failed for lonvick on /dev/pts/8",
    "RFC 3164": b"<34>Oct 11 22:14:15 mymachine su[12]: 'su root' failed for lonvick on /dev/pts/8",
}


async def tail(lab: Lab, records: int, where: Environment) -> AsyncIterator[Reading]:
    """Lines of a file: ours, kcat, Bytewax, Quix."""
    path = lab.directory / f"{lab.name('lines')}.log"
    path.write_bytes(_lines(range(WARM_UP)))
    part = await lab.create_topic(lab.name("lines"))
    async with lab.worker("tail", topic=part.topic, path=str(path)) as worker:
        await worker.until(lambda: lab.has(part, WARM_UP))

        # The given number takes it a quarter of a second, in which its first commit alone is much.
        long = LONGER * records
        total = long + HELD_RECORDS_MAX

        async def lay_out() -> None:
            with path.open("ab") as file:
                file.write(_lines(range(total)))

        async def arrived() -> int:
            return await lab.end(part) - WARM_UP

        ours = await worker.timed_in_stream(long, total - long, lay_out, arrived)
    await lab.check(part, WARM_UP + total)
    path.write_bytes(_lines(range(records)))
    kcat = await _kcat(lab, path, records)
    for reading in (*told("Tail", ours, bar_ns=900), *told("kcat -P -l", kcat)):
        yield reading
    yield ratio("Tail / kcat", ours, kcat, least=0.5)
    share = records // SHARE
    path.write_bytes(_lines(range(share)))
    peers = {
        "Bytewax": ((str(where.python), "-m", "bytewax.run", f"{PEERS / 'wax_file.py'}:flow"), 6),
        "Quix Streams": ((str(where.python), str(PEERS / "quix_file.py")), 20),
    }
    for name, (command, least) in peers.items():
        if name in where.missing:
            continue
        to = await lab.create_topic(lab.name("lines"))
        settings = {"PEER_PATH": str(path), "PEER_TOPIC": to.topic}
        peer = await lab.peer(command, share, lambda to=to: lab.end(to), **settings)  # type: ignore[misc]
        for reading in told(f"{name}, a file", peer):
            yield reading
        yield ratio(f"Tail / {name}", ours, peer, least=least)
        yield cpu_ratio(f"Tail / {name}, by CPU time", ours, peer)


def _lines(numbers: range) -> bytes:
    return b"".join(line + b"\n" for line in encoded(numbers))


async def _kcat(lab: Lab, path: Path, records: int) -> Trial:
    part = await lab.create_topic(lab.name("lines"))
    program = shutil.which("kcat")
    if program is None:
        raise TrialFailed("kcat is not installed (Debian: apt-get install kcat)")
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    address = lab.url.removeprefix("kafka://")
    process = await asyncio.create_subprocess_exec(
        program, "-P", "-b", address, "-t", part.topic, "-l", str(path)
    )
    await process.wait()
    wall_s, after = perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Trial(records, wall_s, cpu_s)


async def sql_source(lab: Lab, records: int, server: PostgresServer) -> AsyncIterator[Reading]:
    """Rows of a table of PostgreSQL: ours, and psycopg alone."""
    url = server.url(server.create_database())
    part = await lab.create_topic(lab.name("rows"))
    with psycopg.connect(url, autocommit=True) as connection:
        _fill(connection, "orders", range(WARM_UP))
        async with lab.worker("sql-source", topic=part.topic, table="orders", url=url) as worker:
            await worker.until(lambda: lab.has(part, WARM_UP))
            total = records + HELD_RECORDS_MAX

            async def lay_out() -> None:
                _fill(connection, "orders", range(WARM_UP, WARM_UP + total))

            async def arrived() -> int:
                return await lab.end(part) - WARM_UP

            ours = await worker.timed_in_stream(records, total - records, lay_out, arrived)
    await lab.check(part, WARM_UP + total)
    fetch = await by_hand("fetch", table="orders", url=url)
    for reading in (*told("SqlSource", ours), *told("psycopg, fetch alone", fetch)):
        yield reading
    yield ratio("SqlSource / fetch", ours, fetch, least=0.5)


async def cdc(lab: Lab, records: int, server: PostgresServer) -> AsyncIterator[Reading]:
    """Changes of a table of PostgreSQL: ours, pg_recvlogical, Debezium; a snapshot and COPY TO."""
    database = server.create_database()
    url = server.url(database)
    part = await lab.create_topic(lab.name("changes"))
    with psycopg.connect(url, autocommit=True) as connection:
        snapshot, copy = await _snapshot(lab, SNAPSHOT * records, connection, url)
        _fill(connection, "orders", range(records))
        async with lab.worker("cdc", topic=part.topic, table="orders", url=url) as worker:
            await worker.until(lambda: lab.has(part, records))
            await asyncio.sleep(1)
            connection.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
            end = await lab.end(part)

            async def lay_out() -> None:
                connection.execute("UPDATE orders SET cents = cents + 1")

            ours = await worker.timed(records, lay_out, lambda: lab.has(part, end + records))
        (row,) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        peer = await _recvlogical(server, database, records, str(row[0]))
    await lab.check(part, 2 * records)
    for name, trial in (
        ("PostgresCdc, changes", ours),
        ("pg_recvlogical", peer),
        ("PostgresCdc, snapshot", snapshot),
        ("COPY TO", copy),
    ):
        for reading in told(name, trial):
            yield reading
    yield ratio("PostgresCdc / pg_recvlogical", ours, peer, least=0.7)
    yield ratio("snapshot / COPY TO", snapshot, copy, least=0.5)
    try:
        engine = await debezium(lab, server, database, records)
    except Unavailable as error:
        print(f"Debezium is left out: {error}")
        return
    for reading in told("Debezium", engine):
        yield reading
    yield ratio("PostgresCdc / Debezium", ours, engine, least=1.5)


async def _snapshot(
    lab: Lab, records: int, connection: psycopg.Connection, url: str
) -> tuple[Trial, Trial]:
    """Return what a snapshot of so many rows needs, with more of them behind, and COPY TO."""
    total = records + HELD_RECORDS_MAX
    part = await lab.create_topic(lab.name("rows"))
    _fill(connection, "copied", range(total))
    async with lab.worker("cdc", topic=part.topic, table="copied", url=url) as worker:
        await worker.until(lambda: lab.has(part, 1))
        before, cpu_s, began_s = await lab.end(part), worker.cpu_s(), perf_counter()
        await worker.until(lambda: lab.has(part, records))
        wall_s, taken = perf_counter() - began_s, await lab.end(part) - before
        # The last commit waits for its interval, which says nothing about the rate.
        await worker.until(lambda: lab.has(part, total))
        await asyncio.sleep(1.5 * COMMIT_MS / 1_000)
        spent_s = (worker.cpu_s() - cpu_s) * taken / (total - before)
    await lab.check(part, total)
    copy = await by_hand("copy-to", table="copied", url=url, records=total)
    return Trial(taken, wall_s, spent_s), copy


def _fill(connection: psycopg.Connection, table: str, numbers: range) -> None:
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({TABLE})".encode())
    with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
        for number in numbers:
            copy.write_row((number, f"customer-{number % 1000:03}", number * 7, True, "x" * 120))
    connection.execute(f"ANALYZE {table}".encode())


async def _recvlogical(server: PostgresServer, database: str, records: int, lsn: str) -> Trial:
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    process = await asyncio.create_subprocess_exec(
        *("pg_recvlogical", "-d", server.dsn(database), "--slot", "peer", "--start"),
        *("-o", "proto_version=1", "-o", "publication_names=orders"),
        *("-f", os.devnull, "--endpos", lsn),
    )
    await process.wait()
    wall_s, after = perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Trial(records, wall_s, cpu_s)


async def syslog(lab: Lab) -> AsyncIterator[Reading]:
    """Syslog over UDP at a rate that a core has to bear; and its parser alone."""
    now = datetime.now(UTC)
    for name, message in SYSLOG_FORMS.items():
        number = 20_000
        parse = partial(parse_syslog, message, now=now)
        # CPU time, and the least of several: what else the machine does is none of it.
        took_s = min(repeat(parse, number=number, timer=process_time))
        yield Reading(f"parse, {name}", took_s / number * 1e6, "us", bar=3, digits=2)
    address = lab.free_address()
    part = await lab.create_topic(lab.name("syslog"))
    records = SYSLOG_RATE * SYSLOG_S
    async with lab.worker("syslog", topic=part.topic, address=address) as worker:
        # Datagrams before the socket is there are lost, so the first ones are repeated.
        while not await lab.has(part, 1):
            await by_hand("send-syslog", address=address, records=1, rate=1_000)
        await asyncio.sleep(2)
        before, cpu_s = await lab.count(part), worker.cpu_s()
        sent = await by_hand("send-syslog", address=address, records=records, rate=SYSLOG_RATE)
        await asyncio.sleep(3)
        cpu_s = worker.cpu_s() - cpu_s
        arrived = await lab.count(part) - before
    ours = Trial(arrived, sent.wall_s, cpu_s)
    yield Reading("Syslog, datagrams sent", sent.records_per_s, "a second", digits=0)
    yield Reading("Syslog, datagrams lost", records - arrived, "datagrams", bar=0, digits=0)
    yield Reading("Syslog, share of a core", 100 * cpu_s / sent.wall_s, "%", bar=100)
    peer = await _rsyslog(lab, records)
    for reading in (*told("Syslog", ours), *told("rsyslog to a file", peer)):
        yield reading


async def _rsyslog(lab: Lab, records: int) -> Trial:
    """Send the same datagrams to rsyslog, which writes them to a file."""
    program = shutil.which("rsyslogd")
    if program is None:
        raise TrialFailed("rsyslogd is not installed (Debian: apt-get install rsyslog)")
    address, name = lab.free_address(), lab.name("rsyslog")
    config, into = lab.directory / f"{name}.conf", lab.directory / f"{name}.log"
    port = address.rpartition(":")[2]
    config.write_text(RSYSLOG.format(port=port, into=into))
    process = await asyncio.create_subprocess_exec(
        *(program, "-n", "-f", str(config), "-i", str(lab.directory / f"{name}.pid"))
    )
    try:
        async with asyncio.timeout(STALL_TIMEOUT_S):
            while not _size(into):
                await by_hand("send-syslog", address=address, records=1, rate=1_000)
        size, cpu_s = _size(into), cpu_of(process.pid)
        sent = await by_hand("send-syslog", address=address, records=records, rate=SYSLOG_RATE)
        await asyncio.sleep(3)
        cpu_s = cpu_of(process.pid) - cpu_s
        line_bytes = len(into.read_bytes().splitlines()[0]) + 1
    finally:
        process.terminate()
        await process.wait()
    return Trial(max(1, (_size(into) - size) // line_bytes), sent.wall_s, cpu_s)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


RSYSLOG = """
module(load="imudp")
input(type="imudp" port="{port}" address="127.0.0.1")
action(type="omfile" file="{into}")
"""
