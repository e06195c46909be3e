"""One server of each kind for a session of tests, started by the first test that asks for it.

Tests keep apart by names: databases, keys, topics, paths. A test that stops or kills a server
starts one of its own: `with PostgresServer() as server`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.mariadb import MariaDbServer
    from tests.servers.mosquitto import MosquittoServer
    from tests.servers.nginx import NginxServer
    from tests.servers.postgres import PostgresServer
    from tests.servers.redis_server import RedisServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Return a PostgreSQL server with logical replication."""
    from tests.servers.postgres import PostgresServer  # noqa: PLC0415 - only if asked for

    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """Return a MariaDB server."""
    from tests.servers.mariadb import MariaDbServer  # noqa: PLC0415 - only if asked for

    with MariaDbServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Return a Redis server."""
    from tests.servers.redis_server import RedisServer  # noqa: PLC0415 - only if asked for

    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[MosquittoServer]:
    """Return an MQTT broker."""
    from tests.servers.mosquitto import MosquittoServer  # noqa: PLC0415 - only if asked for

    with MosquittoServer() as server:
        yield server


@pytest.fixture(scope="session")
def nginx() -> Iterator[NginxServer]:
    """Return an nginx."""
    from tests.servers.nginx import NginxServer  # noqa: PLC0415 - only if asked for

    with NginxServer() as server:
        yield server
