"""Workers that stand still beyond their session while they read a slot: every change comes once."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

import psycopg
import pytest

from streamlog.log import Log
from tests.servers.postgres import PostgresServer
from tests.servers.server_process import wait_until
from tests.worker.commit_steps import IS_THOROUGH, write_program
from tests.worker.processes import DEADLINE_S, STREAMLOG, Process, attached, read_whole, running

PROGRAM = """
import os
import sys

from mortal import run
from streamlog import App
from streamlog.connectors.postgres_cdc import PostgresCdc
from streamlog.worker import worker

worker.SESSION_TIMEOUT_MS, worker.HEARTBEAT_INTERVAL_MS = 2_000, 300
app = App("cdc", state_dir=os.environ["STATE"], commit_interval="50ms")
numbers = app.topic("numbers", key=int, value=dict, partitions=2)
# Without the copy, in which a row that is inserted meanwhile comes as a read and as a change.
source = PostgresCdc(
    url=os.environ["DATABASE"], tables=("public.numbers",), status_interval="1s", snapshot="never"
)
app.source({"public.numbers": numbers}, source, name="cdc")
run(app, sys.argv[1], "none", 0, None)
"""
ROUNDS = 6


class Writer:
    """Transactions of one to fifty rows; one in five rolls back."""

    def __init__(self, url: str) -> None:
        self.url, self.chance = url, Random(5)
        self.next = 0
        self.committed: Counter[int] = Counter()
        self.may_end = False

    def run(self) -> None:
        with psycopg.connect(self.url) as connection:
            while not self.may_end:
                ids = [*range(self.next, self.next + self.chance.randint(1, 50))]
                self.next = ids[-1] + 1
                with connection.cursor() as cursor:
                    cursor.executemany("INSERT INTO numbers VALUES (%s)", [(n,) for n in ids])
                if self.chance.random() < 0.2:
                    connection.rollback()
                    continue
                connection.commit()
                self.committed.update(ids)


def has_slot(url: str) -> bool:
    with psycopg.connect(url) as connection:
        query = "SELECT count(*) FROM pg_replication_slots WHERE active"
        return connection.execute(query).fetchone() == (1,)


@pytest.mark.skipif(not IS_THOROUGH, reason="waits for the sessions of three workers")
def test_every_change_comes_once_although_workers_stand_still(tmp_path: Path) -> None:
    write_program(tmp_path, "capture.py", PROGRAM)
    listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
    with (
        PostgresServer(wal_sender_timeout="2s") as postgres,
        running(*STREAMLOG, *listen, cwd=tmp_path) as broker,
        ExitStack() as stack,
    ):
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)
        database = postgres.url(postgres.create_database())
        with psycopg.connect(database) as connection:
            connection.execute("CREATE TABLE numbers (id bigint PRIMARY KEY)")
        writer = Writer(database)

        def worker(number: int) -> Process:
            command = (sys.executable, "capture.py", url)
            more = {"STATE": f"state-{number}", "DATABASE": database}
            return stack.enter_context(running(*command, cwd=tmp_path, **more))

        async def found(log: Log) -> Counter[int]:
            records = await read_whole(log, "numbers")
            return Counter(json.loads(record.value or b"")["id"] for _, record in records)

        async def until_beyond(log: Log, number: int, workers: list[Process]) -> None:
            """Wait until a change has come that was made after this moment."""
            try:
                async with asyncio.timeout(DEADLINE_S):
                    while max(await found(log), default=-1) < number:  # noqa: ASYNC110
                        await asyncio.sleep(0.2)
            except TimeoutError:
                said = "\n---\n".join(each.output[-2_000:] for each in workers)
                raise AssertionError(f"nothing comes after {number}:\n{said}") from None

        async def story(log: Log) -> None:
            workers = [worker(number) for number in range(3)]
            for each in workers:
                await asyncio.to_thread(each.line, "^up$")
            await asyncio.to_thread(wait_until, lambda: has_slot(database), "the slot")
            writing = asyncio.create_task(asyncio.to_thread(writer.run))
            await until_beyond(log, writer.next, workers)
            for number in range(ROUNDS):
                stopped = workers[number % 3]
                stopped.signal(signal.SIGSTOP)
                await asyncio.sleep(4)
                await until_beyond(log, writer.next, workers)
                stopped.signal(signal.SIGCONT)
                await until_beyond(log, writer.next, workers)
            writer.may_end = True
            await writing
            await until_beyond(log, max(writer.committed), workers)
            for each in workers:
                assert await asyncio.to_thread(each.stop) == 0, each.output
            assert await found(log) == writer.committed

        attached(url, story)
