"""Redis, with its append-only file."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from tests.servers.server_process import ServerProcess


class RedisServer(ServerProcess):
    """A Redis server; its databases 0 to 199 keep tests apart."""

    name = "redis-server"
    package = "redis-server"

    def command(self) -> Sequence[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "databases": "200",
        }
        return [str(self.program), *(part for k, v in options.items() for part in (f"--{k}", v))]

    def answers(self) -> bool:
        try:
            with redis.Redis(port=self.port) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"
