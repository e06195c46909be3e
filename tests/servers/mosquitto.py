"""Mosquitto, an MQTT broker that keeps its sessions over a restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from tests.servers.server_process import ServerProcess, wait_until


class MosquittoServer(ServerProcess):
    """An MQTT 3.1.1 and 5 broker that takes anonymous clients.

    It writes sessions and retained messages to disk when it is stopped, or asked to (`save`).

    Args:
        options: more options, or other values of those below, by their names in mosquitto.conf.
    """

    name = "mosquitto"
    package = "mosquitto"

    def __init__(self, **options: str) -> None:
        super().__init__()
        self.options = options

    def command(self) -> Sequence[str]:
        options = {
            "listener": f"{self.port} 127.0.0.1",
            "allow_anonymous": "true",
            "persistence": "true",
            "persistence_location": f"{self.directory}/",
            "autosave_interval": "0",
            "max_queued_messages": "0",
            **self.options,
        }
        if os.geteuid() == 0:
            # Else it becomes its own account, which can't write here.
            options["user"] = "root"
        config = self.directory / "mosquitto.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        return [str(self.program), "-c", str(config)]

    def answers(self) -> bool:
        return self.accepts()

    def save(self) -> None:
        """Write sessions and messages to disk, so that a kill keeps them."""
        before = self._saved()
        self.signal(signal.SIGUSR1)
        wait_until(lambda: self._saved() != before, "the write to disk")

    def _saved(self) -> int | None:
        # It writes another file, and renames it.
        path = self.directory / "mosquitto.db"
        return path.stat().st_mtime_ns if path.exists() else None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"
