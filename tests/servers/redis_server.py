"""Redis, with its append-only file."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from tests.servers.server_process import ServerProcess


class RedisServer(ServerProcess):
    """A Redis server; its databases 0 to 199 keep tests apart.

    Args:
        options: more options, or other values of those below, by their names in redis.conf.
    """

    name = "redis-server"
    package = "redis-server"

    def __init__(self, **options: str) -> None:
        super().__init__()
        self.options = {name.replace("_", "-"): value for name, value in options.items()}

    def command(self) -> Sequence[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "databases": "200",
            **self.options,
        }
        return [str(self.program), *(part for k, v in options.items() for part in (f"--{k}", v))]

    def answers(self) -> bool:
        try:
            with redis.Redis(port=self.port) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False
        except redis.ResponseError:
            return True

    def client(self, database: int = 0) -> redis.Redis:
        """Return a client, which its user closes."""
        return redis.Redis(port=self.port, db=database)

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"
