"""TLS records of 16 KiB, as PostgreSQL 17 and proxies send them, leave nothing unread.

libpq takes less than such a record at once, and its socket does not tell of the rest. A proxy here
speaks TLS and joins what the server sends into records of that size.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from ctypes.util import find_library
from pathlib import Path

import psycopg
import pytest

from tests.broker.certificates import certificates
from tests.servers.postgres import PostgresServer

ROWS = 100
SLOT = "tls_records"
RECORD_BYTES = 16 * 1024
JOINED_S = 0.002
"""For how long a record waits for more of what the server sends."""
READS_S = 60
ROOT = Path(__file__).parents[3]


def serve(listener: socket.socket, port: int) -> None:
    """Carry each connection in a thread, until the listener is closed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates().broker)
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=carry, args=(context, client, port), daemon=True).start()


def carry(context: ssl.SSLContext, client: socket.socket, port: int) -> None:
    """Carry bytes between a client with TLS and a server without."""
    client.recv(8, socket.MSG_WAITALL)  # SSLRequest
    client.sendall(b"S")
    with (
        suppress(OSError),
        context.wrap_socket(client, server_side=True) as tls,
        closing(socket.create_connection(("127.0.0.1", port))) as server,
    ):
        while True:
            ready = [tls] if tls.pending() else select.select([tls, server], [], [])[0]
            if tls in ready:
                data = tls.recv(RECORD_BYTES)
                if not data:
                    return
                server.sendall(data)
            if server in ready:
                data = joined(server)
                if not data:
                    return
                tls.sendall(data)


def joined(server: socket.socket) -> bytes:
    """Return what comes at once, a record at most."""
    found = b""
    while len(found) < RECORD_BYTES and select.select([server], [], [], JOINED_S)[0]:
        more = server.recv(RECORD_BYTES - len(found))
        if not more:
            break
        found += more
    return found


@pytest.fixture
def tls_dsn(postgres: PostgresServer) -> Iterator[str]:
    """The connection string of a database with a table, a publication and a slot, over TLS."""
    database = postgres.create_database()
    with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
        db.execute("CREATE TABLE orders (id INT, item TEXT)")
        insert = (
            "INSERT INTO orders SELECT n, repeat('x', (n * 37) % 3000) FROM generate_series(1, "
        )
        db.execute(f"{insert}{ROWS}) n".encode())
        db.execute("CREATE TABLE copies (LIKE orders)")
        db.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE copies")
        db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            threading.Thread(target=serve, args=(listener, postgres.port), daemon=True).start()
            port = listener.getsockname()[1]
            yield f"host=127.0.0.1 port={port} user=postgres dbname={database} sslmode=require"
            # A thread that accepts keeps the socket open after `close`.
            listener.shutdown(socket.SHUT_RDWR)
        db.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))


@pytest.mark.parametrize("implementation", ["", "python"])
def test_everything_that_was_sent_is_read(tls_dsn: str, implementation: str) -> None:
    """By psycopg's own libpq, and by the machine's: releases before 18 leave something."""
    if implementation == "python" and find_library("pq") is None:
        pytest.skip("this machine has no libpq of its own (Debian: apt-get install libpq5)")
    command = [sys.executable, "-m", "tests.connectors.postgres_cdc.tls_reader", tls_dsn]
    chosen = {"PSYCOPG_IMPL": implementation} if implementation else {}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **chosen}
    ended = subprocess.run(
        command, env=env, cwd=ROOT, timeout=READS_S, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    every = ROWS * (ROWS + 1) // 2
    assert ended.stdout.split()[1:] == [b"%d" % every] * 2
