"""Reads a table by COPY and by its slot, and never looks again at a socket that has nothing.

`python -m tests.connectors.postgres_cdc.tls_reader DSN` prints how many rows of COPY and how many
frames of inserts came. A process of its own, as psycopg chooses its libpq when it is imported.
"""

from __future__ import annotations

import asyncio
import sys

import psycopg
from psycopg import pq, sql

from streamlog.connectors.postgres_cdc import wal_stream
from streamlog.connectors.postgres_cdc.wal_stream import ReplicationStream, TableQueries
from tests.connectors.postgres_cdc.test_tls_records import ROWS, SLOT

INSERT_AT = 25
"""Where a frame of the stream tells its kind."""


def copied(dsn: str) -> int:
    queries, count = TableQueries(dsn), 0
    queries.connect()
    for most in range(1, ROWS + 1):
        query = sql.SQL("COPY (SELECT * FROM orders LIMIT {}) TO STDOUT").format(most)
        count += queries._copied(query)[0]
    queries.close()
    return count


async def streamed(dsn: str) -> int:
    stream, count = ReplicationStream(dsn), 0
    stream.connect(SLOT, SLOT, 0)
    with psycopg.connect(dsn, autocommit=True) as db:
        for most in range(1, ROWS + 1):
            db.execute("INSERT INTO copies SELECT * FROM orders LIMIT %s", (most,))
            until = count + most
            while count < until:
                frames = stream.frames(1_000, 1 << 24)
                count += sum(each[INSERT_AT : INSERT_AT + 1] == b"I" for each in frames)
                if not frames:
                    await stream.wait(3_600)
    stream.close()
    return count


if __name__ == "__main__":
    wal_stream.LOOK_AGAIN_MS = -1
    counts = pq.version(), copied(sys.argv[1]), asyncio.run(streamed(sys.argv[1]))
    sys.stdout.write("{} {} {}".format(*counts))
