"""What an engineer would write by hand: `python -m benchmarks.connect.by_hand JOB SETTINGS`.

Each prints records, wall time and CPU time of its work as JSON; connecting and importing come
before. Guarantees are those of the code: none of them could continue after a crash.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import msgspec
import psycopg

from benchmarks.connect.orders import SYSLOG_5424, Order, encoded

Settings = dict[str, Any]
BATCH = 5_000
"""The rows of a transaction, as of `SqlSink`."""
UPSERT = (
    "INSERT INTO {table} (id, customer, cents, paid, note) {rows} ON CONFLICT (id) DO UPDATE SET "
    "customer = EXCLUDED.customer, cents = EXCLUDED.cents, paid = EXCLUDED.paid, "
    "note = EXCLUDED.note"
)
CLIENTS_MAX = 10_000
BURST = 20
"""Datagrams that are sent before the sender looks at its clock."""
TIME_US = 1_738_360_800_005_000
TIME_TEXT = "2025-01-31T22:00:00.005000Z"


class PlacedOrder(Order, frozen=True):
    """An order with its coordinates in the log."""

    key: str
    timestamp: str
    offset: int


_decode = msgspec.json.Decoder(Order).decode


def _batches(settings: Settings) -> tuple[int, Iterator[list[bytes]]]:
    values = [*encoded(range(settings["records"]))]
    rest = iter(values)
    return len(values), iter(lambda: [*islice(rest, BATCH)], [])


def _row(value: bytes) -> tuple[object, ...]:
    found = _decode(value)
    return found.id, found.customer, found.cents, found.paid, found.note


def copy_upsert(settings: Settings) -> dict[str, float]:
    """Upsert JSON in memory into a table: COPY into a temporary table, then ON CONFLICT."""
    records, batches = _batches(settings)
    table = settings["table"]
    with psycopg.connect(settings["url"]) as connection:
        connection.execute(
            f"CREATE TEMPORARY TABLE staged ON COMMIT DELETE ROWS AS SELECT * FROM {table} "  # noqa: S608
            "WITH NO DATA"
        )
        connection.commit()
        merge = UPSERT.format(table=table, rows="SELECT * FROM staged").encode()
        began_s, began_cpu_s = perf_counter(), process_time()
        for batch in batches:
            with connection.cursor().copy("COPY staged FROM STDIN") as copy:
                for value in batch:
                    copy.write_row(_row(value))
            connection.execute(merge)
            connection.commit()
        return _told(records, began_s, began_cpu_s)


def executemany(settings: Settings) -> dict[str, float]:
    """Upsert JSON in memory into a table, a statement for each row, in a pipeline."""
    records, batches = _batches(settings)
    statement = UPSERT.format(table=settings["table"], rows="VALUES (%s, %s, %s, %s, %s)").encode()
    with psycopg.connect(settings["url"]) as connection, connection.cursor() as cursor:
        began_s, began_cpu_s = perf_counter(), process_time()
        for batch in batches:
            cursor.executemany(statement, map(_row, batch))
            connection.commit()
        return _told(records, began_s, began_cpu_s)


def fetch(settings: Settings) -> dict[str, float]:
    """Fetch all rows of a table, page by page by the key."""
    records, last = 0, -1
    statement = f"SELECT * FROM {settings['table']} WHERE id > %s ORDER BY id LIMIT 2000"  # noqa: S608
    with psycopg.connect(settings["url"]) as connection:
        began_s, began_cpu_s = perf_counter(), process_time()
        while rows := connection.execute(statement.encode(), (last,)).fetchall():
            records, last = records + len(rows), rows[-1][0]
        return _told(records, began_s, began_cpu_s)


def copy_to(settings: Settings) -> dict[str, float]:
    """Copy a table out, and count its bytes."""
    with psycopg.connect(settings["url"]) as connection:
        began_s, began_cpu_s = perf_counter(), process_time()
        with connection.cursor().copy(f"COPY {settings['table']} TO STDOUT".encode()) as copy:
            sum(map(len, copy))
        return _told(settings["records"], began_s, began_cpu_s)


def parquet(settings: Settings) -> dict[str, float]:
    """Write Parquet of a file of JSON lines, with pyarrow alone."""
    import pyarrow.json  # noqa: PLC0415 - the extra `objects`
    import pyarrow.parquet  # noqa: PLC0415

    began_s, began_cpu_s = perf_counter(), process_time()
    table = pyarrow.json.read_json(settings["path"])
    pyarrow.parquet.write_table(table, settings["into"])
    return _told(table.num_rows, began_s, began_cpu_s)


def parquet_of_bytes(settings: Settings) -> dict[str, float]:
    """Write Parquet of the lines of a file as they are, and of their coordinates, with pyarrow."""
    import pyarrow as pa  # noqa: PLC0415 - the extra `objects`
    import pyarrow.parquet  # noqa: PLC0415

    count = Path(settings["path"]).read_bytes().count(b"\n")
    # They come with the records, so making them is none of the work.
    keys, times = [b"%d" % at for at in range(count)], [TIME_US] * count
    pa.array(keys[:1])  # The first one imports pandas.
    began_s, began_cpu_s = perf_counter(), process_time()
    lines = Path(settings["path"]).read_bytes().splitlines()
    columns = {
        "value": pa.array(lines, pa.binary()),
        "_key": pa.array(keys, pa.binary()),
        "_timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
        "_offset": pa.array(range(count), pa.int64()),
    }
    table = pa.table(columns)
    pyarrow.parquet.write_table(table, settings["into"])
    return _told(table.num_rows, began_s, began_cpu_s)


def json_lines(settings: Settings) -> dict[str, float]:
    """Write a file of JSON lines with coordinates, of lines that are checked against a type."""
    began_s, began_cpu_s = perf_counter(), process_time()
    lines = Path(settings["path"]).read_bytes().splitlines()
    rows: list[PlacedOrder] = []
    for at, line in enumerate(lines):
        each = _decode(line)
        fields = each.id, each.customer, each.cents, each.paid, each.note
        rows.append(PlacedOrder(*fields, key=str(at), timestamp=TIME_TEXT, offset=at))
    Path(settings["into"]).write_bytes(msgspec.json.Encoder().encode_lines(rows))
    return _told(len(lines), began_s, began_cpu_s)


def starlette(settings: Settings) -> dict[str, float]:
    """Answer requests with Starlette and nothing behind it, until the input ends."""
    from starlette.applications import Starlette  # noqa: PLC0415 - the extra `http`
    from starlette.requests import Request  # noqa: PLC0415
    from starlette.responses import Response  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    from streamlog.http_server import listen, serve  # noqa: PLC0415

    async def receive(request: Request) -> Response:
        await request.body()
        return Response(status_code=200)

    async def work() -> None:
        app = Starlette(routes=[Route("/", receive, methods=["POST"])])
        with listen(settings["address"]) as listener:
            async with serve(app, listener, connections_max=CLIENTS_MAX):
                await asyncio.to_thread(sys.stdin.read)

    began_s, began_cpu_s = perf_counter(), process_time()
    asyncio.run(work())
    return _told(1, began_s, began_cpu_s)


def send_syslog(settings: Settings) -> dict[str, float]:
    """Send datagrams at a rate."""
    host, port = settings["address"].split(":")
    records, rate = settings["records"], settings["rate"]
    began_s, began_cpu_s = perf_counter(), process_time()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.connect((host, int(port)))
        for number in range(0, records, BURST):
            while number > (perf_counter() - began_s) * rate:
                sleep(0.0005)
            for _ in range(min(BURST, records - number)):
                sending.send(SYSLOG_5424)
    return _told(records, began_s, began_cpu_s)


def _told(records: int, began_s: float, began_cpu_s: float) -> dict[str, float]:
    return {
        "records": records,
        "wall_s": perf_counter() - began_s,
        "cpu_s": process_time() - began_cpu_s,
    }


JOBS = {
    "copy-upsert": copy_upsert,
    "executemany": executemany,
    "fetch": fetch,
    "copy-to": copy_to,
    "parquet": parquet,
    "parquet-of-bytes": parquet_of_bytes,
    "json-lines": json_lines,
    "starlette": starlette,
    "send-syslog": send_syslog,
}
if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](json.loads(sys.argv[2]))))
