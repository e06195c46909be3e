"""Rows of sinks, of the runtime between a source and a sink, and of many idle connectors."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psycopg
import pyarrow.parquet

from benchmarks.connect.apps import WARM_UP
from benchmarks.connect.lab import COMMIT_MS, Lab, Trial, TrialFailed, by_hand, by_hand_command
from benchmarks.connect.orders import TABLE, encoded
from benchmarks.connect.report import cpu_ratio, ratio, told
from benchmarks.connect.source_rows import LONGER, PEERS, SHARE
from benchmarks.engine.environment import Environment
from benchmarks.harness import Reading, cpu_of
from streamlog.connect import Flush
from tests.servers.postgres import PostgresServer

FEW_CLIENTS = 200
SENDERS = 100
CLIENTS = 3_000
"""So many clients of a webhook wait at once."""


async def sql_sink(
    lab: Lab, records: int, server: PostgresServer, where: Environment
) -> AsyncIterator[Reading]:
    """Upserts into a table of PostgreSQL: ours, COPY by hand, executemany, Quix."""
    database = server.create_database()
    url = server.url(database)
    part = await lab.create_topic(lab.name("orders"))
    await lab.load(part, encoded(range(WARM_UP)))
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("ours", "copied", "single", "quix"):
            connection.execute(f"CREATE TABLE {table} ({TABLE})".encode())
        async with lab.worker("sql-sink", topic=part.topic, table="ours", url=url) as worker:
            await worker.until(_reached(connection, WARM_UP))

            total = records + Flush().records

            async def lay_out() -> None:
                await lab.load(part, encoded(range(total)))

            async def arrived() -> int:
                return _next_offset(connection) - WARM_UP

            ours = await worker.timed_in_stream(records, total - records, lay_out, arrived)
        if (found := _rows(connection, "ours")) != total:
            raise TrialFailed(f"the table has {found} rows, not {total}")
        copy = await by_hand("copy-upsert", table="copied", url=url, records=records)
        single = await by_hand("executemany", table="single", url=url, records=records)
        for name, trial in (("SqlSink", ours), ("COPY by hand", copy), ("executemany", single)):
            for reading in told(name, trial):
                yield reading
        yield ratio("SqlSink / COPY by hand", ours, copy, least=0.7)
        yield ratio("SqlSink / executemany", ours, single, least=1.5)
        if "Quix Streams" in where.missing:
            return
        share = records // SHARE
        few = await lab.create_topic(lab.name("orders"))
        await lab.load(few, encoded(range(share)))

        async def arrived() -> int:
            return _rows(connection, "quix")

        settings = {"PEER_TOPIC": few.topic, "PEER_TABLE": "quix", "PEER_DATABASE": database}
        command = (str(where.python), str(PEERS / "quix_table.py"))
        peer = await lab.peer(command, share, arrived, PEER_PORT=str(server.port), **settings)
        for reading in told("Quix Streams, a table", peer):
            yield reading
        yield ratio("SqlSink / Quix Streams", ours, peer, least=3)


def _reached(connection: psycopg.Connection, offset: int) -> Callable[[], Awaitable[bool]]:
    async def is_there() -> bool:
        return _next_offset(connection) >= offset

    return is_there


def _next_offset(connection: psycopg.Connection) -> int:
    """Return the next offset that the database has; 0 before the first commit."""
    if not connection.execute("SELECT to_regclass('streamlog_offsets')").fetchall()[0][0]:
        return 0
    rows = connection.execute("SELECT next_offset FROM streamlog_offsets").fetchall()
    return int(rows[0][0]) if rows else 0


def _rows(connection: psycopg.Connection, table: str) -> int:
    statement = f"SELECT count(*) FROM {table}"  # noqa: S608 - a name of ours
    found: int = connection.execute(statement.encode()).fetchall()[0][0]
    return found


async def objects(lab: Lab, records: int) -> AsyncIterator[Reading]:
    """Files of a topic beside what writes such a file by hand from a file of the same values.

    The bars are the design's: typed rows beside pyarrow's reader of JSON and its writer, which
    write five columns and ours eight; bytes beside pyarrow with the same four columns. The latter
    reads a file at once and checks nothing, where ours decodes and checks batches of the log. JSON
    lines have no bar; their peer decodes into the same class, and encodes.
    """
    path = lab.directory / "orders.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in encoded(range(records))))
    for name, job, by, least, settings in (
        ("Parquet", "parquet", "pyarrow", 0.7, {"format": "parquet", "raw": False}),
        (
            "Parquet of bytes",
            "parquet-of-bytes",
            "pyarrow",
            0.9,
            {"format": "parquet", "raw": True},
        ),
        ("JSON lines", "json-lines", "msgspec", None, {"format": "jsonl", "raw": False}),
    ):
        peer = await by_hand(job, path=str(path), into=str(lab.directory / job))
        ours = await _files(lab, records, **settings)
        for reading in (*told(f"{by} alone, {name}", peer), *told(f"Objects, {name}", ours)):
            yield reading
        yield cpu_ratio(f"Objects, {name} / {by}, CPU", ours, peer, least=least)
        yield ratio(f"Objects, {name} / {by}", ours, peer)


async def _files(lab: Lab, records: int, **settings: object) -> Trial:
    """Return what a worker needs to write a topic as one file."""
    part = await lab.create_topic(lab.name("orders"))
    # As many as are measured: both are one full file, and no flush waits for a clock.
    await lab.load(part, encoded(range(records)))
    into = lab.directory / lab.name("lake")
    into.mkdir()
    job = {"topic": part.topic, "url": str(into), "records": records, **settings}
    async with lab.worker("objects", **job) as worker:
        await worker.until(_has_files(into, 1))

        async def lay_out() -> None:
            await lab.load(part, encoded(range(records)))

        found = await worker.timed(records, lay_out, _has_files(into, 2))
    # Only now: counting the rows of JSON lines would cost more than the worker.
    if (rows := sum(map(_rows_of, into.rglob("orders*")))) != 2 * records:
        raise TrialFailed(f"the files have {rows} rows, not {2 * records}")
    return found


def _rows_of(file: Path) -> int:
    if file.suffix == ".jsonl":
        return file.read_bytes().count(b"\n")
    return 0 if file.is_dir() else int(pyarrow.parquet.read_metadata(file).num_rows)


def _has_files(directory: Path, count: int) -> Callable[[], Awaitable[bool]]:
    def files() -> int:
        # A file is there as a whole, or not; before that, its name begins with a dot.
        return sum(each.is_file() for each in directory.rglob("orders*"))

    async def is_there() -> bool:
        return files() >= count

    return is_there


async def runtime(lab: Lab, records: int) -> AsyncIterator[Reading]:
    """A source and a sink in memory beside `.to()`, which reads and writes as many records.

    What the sink keeps is memory that the process did not have before, and values that the garbage
    collector looks at again and again. `.to()` needs none of it, so the runtime is measured with a
    sink that keeps offsets alone; the difference to one that keeps all has a figure of its own.

    A difference of two figures needs more records than a figure: what each run pays once does not
    cancel out, since the one has two more connections and groups than the other.
    """
    records *= LONGER
    ours = await _through_memory(lab, records, keeps=True)
    dropped = await _through_memory(lab, records, keeps=False)
    entry = await lab.create_topic(lab.name("orders"))
    to = await lab.create_topic(lab.name("orders"))
    await lab.load(entry, encoded(range(WARM_UP)))
    async with lab.worker("forward", entry=entry.topic, topic=to.topic) as worker:
        await worker.until(lambda: lab.has(to, WARM_UP))

        async def lay_out() -> None:
            await lab.load(entry, encoded(range(records)))

        plain = await worker.timed(records, lay_out, lambda: lab.has(to, WARM_UP + records))
    for name, trial in (
        ("memory to log to memory", ours),
        ("memory to log, read and dropped", dropped),
        ("stream.to(topic)", plain),
    ):
        for reading in told(name, trial):
            yield reading
    alone_ns, kept_ns = dropped.cpu_ns - plain.cpu_ns, ours.cpu_ns - dropped.cpu_ns
    yield Reading("runtime alone", alone_ns, "ns a record", bar=300, digits=0)
    yield Reading("what the sink keeps", kept_ns, "ns a record", digits=0)


async def _through_memory(lab: Lab, records: int, *, keeps: bool) -> Trial:
    gate = lab.directory / lab.name("gate")
    part = await lab.create_topic(lab.name("orders"))
    settings = {"topic": part.topic, "gate": str(gate), "records": records, "keeps": keeps}
    async with lab.worker("memory", **settings) as worker:
        await worker.until(lambda: lab.has(part, WARM_UP))
        await asyncio.sleep(2)

        async def open_gate() -> None:
            gate.touch()

        return await worker.timed(records, open_gate, lambda: lab.has(part, WARM_UP + records))


async def webhook(lab: Lab) -> AsyncIterator[Reading]:
    """Requests of one record, and of a thousand: ours, and Starlette with an empty answer."""
    one = next(encoded(range(1)))
    many = b"\n".join(encoded(range(1_000)))
    # A request waits for its commit, so few clients tell the time, and many of them the rate.
    _, p50_ms = await _requests(lab, one, "json", clients=FEW_CLIENTS)
    ours, _ = await _requests(lab, one, "json", clients=CLIENTS)
    plain, _ = await _starlette(lab, one, clients=CLIENTS)
    yield Reading("Webhook, p50", p50_ms, "ms", bar=COMMIT_MS + 30)
    for reading in (*told("Webhook, requests", ours), *told("Starlette alone, requests", plain)):
        yield reading
    yield ratio("Webhook / Starlette", ours, plain, least=0.5)
    bodies, _ = await _requests(lab, many, "ndjson", clients=SENDERS)
    lines = Trial(bodies.records * 1_000, bodies.wall_s, bodies.cpu_s)
    for reading in told("Webhook, NDJSON", lines, least=200_000):
        yield reading


async def _requests(lab: Lab, body: bytes, how: str, *, clients: int) -> tuple[Trial, float]:
    address = lab.free_address()
    part = await lab.create_topic(lab.name("requests"))
    async with lab.worker("webhook", topic=part.topic, address=address, format=how) as worker:
        await worker.until(lambda: _answers(address))
        return await _load(lab, address, body, clients, worker.pid)


async def _starlette(lab: Lab, body: bytes, *, clients: int) -> tuple[Trial, float]:
    address = lab.free_address()
    command = by_hand_command("starlette", address=address)
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    try:
        while not await _answers(address):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
        return await _load(lab, address, body, clients, process.pid)
    finally:
        process.terminate()
        await process.wait()


async def _answers(address: str) -> bool:
    host, port = address.split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


async def _load(
    lab: Lab, address: str, body: bytes, clients: int, server: int
) -> tuple[Trial, float]:
    """Send requests with wrk for some seconds; the successful ones, and the middle latency in ms.

    The CPU time is that of the process `server`.
    """
    script = lab.directory / f"{lab.name('wrk')}.lua"
    (lab.directory / "body").write_bytes(body)
    script.write_text(WRK.format(path=lab.directory / "body"))
    cpu_s = cpu_of(server)
    process = await asyncio.create_subprocess_exec(
        *("wrk", "-t", "1", "-c", str(clients), "-d", "8s", "--timeout", "10s"),
        *("-s", str(script), f"http://{address}/"),
        stdout=subprocess.PIPE,
    )
    said, _ = await process.communicate()
    requests, failed, wall_s, p50_ms = map(float, said.decode().splitlines()[-1].split())
    if failed or not requests:
        raise TrialFailed(f"of {requests:.0f} requests {failed:.0f} failed")
    return Trial(int(requests), wall_s, cpu_of(server) - cpu_s), p50_ms


WRK = """
wrk.method = "POST"
local file = io.open("{path}", "rb")
wrk.body = file:read("*a")
file:close()
done = function(summary, latency)
  local failed = summary.errors.status + summary.errors.timeout
  print(summary.requests, failed, summary.duration / 1e6, latency:percentile(50) / 1000)
end
"""
