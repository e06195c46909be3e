"""MariaDB, without its system tables: everything is allowed, and a start takes half a second.

With them, which takes some seconds more, users and their rights count.

It never waits for the disk, which a killed process needs for nothing, and stops as if it crashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pymysql

from tests.servers.server_process import ServerProcess, program


class MariaDbServer(ServerProcess):
    """A MariaDB server; every test makes a database of its own by `create_database`.

    Args:
        has_users: whether it has users with passwords and rights; `root` has no password.
    """

    name = "mariadbd"
    package = "mariadb-server"
    accounts = ("mysql", "nobody")

    def __init__(self, *, has_users: bool = False) -> None:
        super().__init__()
        self.has_users = has_users
        self._databases = count()

    def prepare(self) -> None:
        data = str(self.directory / "data")
        if not self.has_users:
            self.run(["mkdir", data])
            return
        install = str(program("mariadb-install-db", self.package))
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        self.run([install, "--no-defaults", f"--datadir={data}", *options])

    def command(self) -> Sequence[str]:
        return [
            str(self.program),
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            f"--socket={self.directory / 'socket'}",
            f"--pid-file={self.directory / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            *([] if self.has_users else ["--skip-grant-tables"]),
            "--innodb-log-file-size=8M",
            "--innodb-buffer-pool-size=16M",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-method=nosync",
            "--innodb-doublewrite=0",
            "--innodb-fast-shutdown=2",
            "--loose-sync-frm=0",
        ]

    def answers(self) -> bool:
        try:
            self.connect(None).close()
        except pymysql.OperationalError:
            return False
        return True

    def connect(self, database: str | None) -> pymysql.Connection:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, connect_timeout=2
        )

    def url(self, database: str) -> str:
        """Return the URL of a database, as SQLAlchemy takes it."""
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Create an empty database and return its name."""
        name = f"test_{next(self._databases)}"
        connection = self.connect(None)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        connection.close()
        return name
