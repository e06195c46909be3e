"""pgbench for a minute, while worker and server are killed: the target's tables are the source's.

One app captures the tables of pgbench and writes them into a second server: accounts, tellers and
branches by upsert, the history as plain rows without a key, where a row that came twice would stay.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import psycopg
import pytest
from psycopg import sql

from tests.servers.postgres import PostgresServer
from tests.servers.server_process import program, wait_until
from tests.worker.commit_steps import IS_THOROUGH, write_program
from tests.worker.processes import STREAMLOG, Process, running

SECONDS = float(os.environ.get("PGBENCH_SECONDS", "60"))
RATE = os.environ.get("PGBENCH_RATE", "500")
"""Transactions in a second, so that the load leaves time for what it is about."""
SEED = int(os.environ.get("SEED", "1"))
CAUGHT_UP_S = 180
TABLES = {"pgbench_branches": "bid", "pgbench_tellers": "tid", "pgbench_accounts": "aid"}
HISTORY = "pgbench_history"
PROGRAM = """
import os
import sys

from mortal import run
from streamlog import App
from streamlog.connectors.postgres_cdc import PostgresCdc
from streamlog.connectors.sql import SqlSink

app = App("copy", state_dir="state", commit_interval="50ms")
keys = {"pgbench_accounts": "aid", "pgbench_tellers": "tid", "pgbench_branches": "bid"}
topics = {
    f"public.{name}": app.topic(name, key=int, value=dict, partitions=2)
    for name in (*keys, "pgbench_history")
}
source = PostgresCdc(
    url=os.environ["SOURCE"], tables=tuple(topics), status_interval="1s", publication="copy",
)
app.source(topics, source, name="cdc")
for name, key in keys.items():
    upsert = SqlSink(
        url=os.environ["TARGET"], table=name, insert_mode="upsert", pk_mode="record_key",
        pk_fields=(key,), delete_enabled=True,
    )
    app.sink(topics[f"public.{name}"], upsert, name=name)
history = SqlSink(url=os.environ["TARGET"], table="pgbench_history")
app.sink(topics["public.pgbench_history"], history, name="history")
# Static, so the worker that follows a killed one need not wait for its session.
run(app, sys.argv[1], "none", 0, "one")
"""
# TPC-B of pgbench, a third of it in a subtransaction; new accounts, accounts that go, keys that
# change, and transactions that roll back.
SCRIPT = r"""
\set aid random(1, 100000)
\set bid random(1, 1)
\set tid random(1, 10)
\set delta random(-5000, 5000)
\set dice random(1, 30)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
\if :dice < 10
SAVEPOINT s;
UPDATE pgbench_tellers SET tbalance = tbalance + 1 WHERE tid = :tid;
ROLLBACK TO s;
\endif
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, now());
\if :dice = 20
DELETE FROM pgbench_accounts WHERE aid = :aid;
\endif
\if :dice = 21
UPDATE pgbench_accounts SET aid = aid + 1000000 WHERE aid = :aid AND aid < 1000000;
\endif
\if :dice = 22
INSERT INTO pgbench_accounts VALUES (:aid, 1, :delta, '') ON CONFLICT DO NOTHING;
\endif
\if :dice = 23
ROLLBACK;
\else
COMMIT;
\endif
"""


def rows(url: str, table: str) -> Counter[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))
        return Counter(connection.execute(query).fetchall())


def create_target(source: str, target: str) -> None:
    """Make empty tables of the source's columns; the history has no key."""
    with psycopg.connect(source) as from_, psycopg.connect(target) as into:
        for table in (*TABLES, HISTORY):
            query = """
                SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
                WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
                ORDER BY attnum"""
            columns = ", ".join(row[0] for row in from_.execute(query, (table,)).fetchall())
            key = f", PRIMARY KEY ({TABLES[table]})" if table in TABLES else ""
            into.execute(f"CREATE TABLE {table} ({columns}{key})".encode())


class Load:
    """pgbench, started again when the server has gone away under it."""

    def __init__(self, server: PostgresServer, database: str, script: Path) -> None:
        bench = program("pgbench", server.package)
        address = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"]
        self.initialize = [str(bench), "-i", "-q", "-s", "1", *address, database]
        self._command = [
            str(bench), "-n", "-c", "4", "-j", "1", "-R", RATE, "-T", str(int(SECONDS) + 60),
            "--max-tries=10", "-f", str(script), *address, database,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Let it run."""
        if self._process is None or self._process.poll() is not None:
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Copy:
    """The two servers, the broker between them, and the worker that copies."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.server, self.other = (stack.enter_context(PostgresServer()) for _ in range(2))
        name = self.server.create_database()
        self.source = self.server.url(name)
        self.target = self.other.url(self.other.create_database())
        self.load = Load(self.server, name, directory / "load.sql")
        stack.callback(self.load.stop)
        subprocess.run(self.load.initialize, check=True, capture_output=True)
        with psycopg.connect(self.source) as connection:
            # A snapshot goes by the primary key, which pgbench gives to the other tables alone.
            connection.execute(b"ALTER TABLE pgbench_history ADD id BIGSERIAL PRIMARY KEY")
        create_target(self.source, self.target)
        listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
        broker = stack.enter_context(running(*STREAMLOG, *listen, cwd=directory))
        self._log = "kafka://" + broker.line(r"listening on (\S+)").group(1)
        self._directory, self._stack = directory, stack
        self.worker = self._start()

    def _start(self) -> Process:
        command = (sys.executable, "copy_tables.py", self._log)
        process = running(*command, cwd=self._directory, SOURCE=self.source, TARGET=self.target)
        return self._stack.enter_context(process)

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker = self._start()

    def is_whole(self) -> bool:
        """Whether the tables are equal; of the history, whether nothing is missing."""
        # The cheapest first: this is asked again and again beside the worker.
        if rows(self.source, HISTORY) - rows(self.target, HISTORY):
            return False
        return all(rows(self.source, table) == rows(self.target, table) for table in TABLES)

    def catch_up(self, done: Counter[str]) -> None:
        try:
            wait_until(self.is_whole, "the copy", CAUGHT_UP_S)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; {done}; {self.differences()}:\n{self.worker.output[-4_000:]}"
            ) from None

    def differences(self) -> str:
        """Say of each table how many rows are missing, and how many are there that must not be."""
        found = []
        for table in (*TABLES, HISTORY):
            here, there = rows(self.source, table), rows(self.target, table)
            missing, more = here - there, there - here
            found.append(f"{table}: {missing.total()} missing, {more.total()} too many")
            found += [f"  {each}" for each in (*[*missing][:3], *[*more][:3])]
        return "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not IS_THOROUGH, reason="pgbench for a minute")
def test_the_target_is_the_source_after_pgbench_with_kills(tmp_path: Path) -> None:
    chance, done = Random(SEED), Counter[str]()
    write_program(tmp_path, "copy_tables.py", PROGRAM)
    (tmp_path / "load.sql").write_text(SCRIPT)
    with ExitStack() as stack:
        copy = Copy(tmp_path, stack)
        copy.catch_up(done)
        faults: dict[str, Callable[[], None]] = {
            "worker killed": copy.kill_worker,
            "source killed": copy.server.kill_and_restart,
            "source restarted": copy.server.restart,
            "target killed": copy.other.kill_and_restart,
            "target restarted": copy.other.restart,
        }
        end_s = time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            copy.load.keep()
            time.sleep(chance.uniform(0.5, 4))
            fault = chance.choice(["worker killed", *faults])
            faults[fault]()
            done[fault] += 1
        copy.load.stop()
        copy.catch_up(done)
        assert copy.worker.stop() == 0, copy.worker.output
        # As a multiset: a change that came twice would be a row more.
        found = rows(copy.source, HISTORY)
        assert found == rows(copy.target, HISTORY)
        assert found.total() > 100, done
