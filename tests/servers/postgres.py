"""PostgreSQL, with logical replication switched on."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from itertools import count

import psycopg
from psycopg import sql

from tests.servers.server_process import ServerProcess, program

SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "50",
    "max_wal_senders": "50",
    "max_prepared_transactions": "10",
    # The machine does not lose power in a test; a killed server loses nothing by it.
    "fsync": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "listen_addresses": "127.0.0.1",
}


class PostgresServer(ServerProcess):
    """A PostgreSQL server; every test makes a database of its own by `create_database`."""

    name = "postgres"
    package = "postgresql"
    accounts = ("postgres", "nobody")

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = {**SETTINGS, **settings}
        self._databases = count()

    def prepare(self) -> None:
        initdb = str(program("initdb", self.package))
        data = str(self.directory / "data")
        options = ["--no-sync", "--no-instructions", "--auth=trust", "--username=postgres"]
        self.run([initdb, *options, "--encoding=UTF8", "--locale=C", "-D", data])

    def command(self) -> Sequence[str]:
        settings = {
            **self.settings,
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        return [str(self.program), "-D", str(self.directory / "data"), *options]

    def answers(self) -> bool:
        try:
            psycopg.connect(self.dsn("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def dsn(self, database: str) -> str:
        """Return libpq's connection string of a database."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def url(self, database: str) -> str:
        """Return the URL of a database, as libpq and SQLAlchemy take it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Create an empty database and return its name."""
        name = f"test_{next(self._databases)}"
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name

    def stop(self) -> None:
        """End the server by a fast shutdown: transactions roll back, replication is sent out."""
        self.end(signal.SIGINT)

    def kill(self) -> None:
        """End the server as a crash does: the next start recovers from the WAL.

        SIGQUIT is PostgreSQL's immediate shutdown. SIGKILL would leave its children behind, and
        with them the shared memory that keeps the next start from the directory.
        """
        self.end(signal.SIGQUIT)
