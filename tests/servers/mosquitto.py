"""Mosquitto, an MQTT broker that keeps its sessions over a restart."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.servers.server_process import ServerProcess


class MosquittoServer(ServerProcess):
    """An MQTT 3.1.1 and 5 broker that takes anonymous clients."""

    name = "mosquitto"
    package = "mosquitto"

    def command(self) -> Sequence[str]:
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {self.directory}/",
            "autosave_interval 1",
            "max_queued_messages 0",
        ]
        if os.geteuid() == 0:
            # Else it becomes its own account, which can't write here.
            lines.append("user root")
        config = self.directory / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        return [str(self.program), "-c", str(config)]

    def answers(self) -> bool:
        return self.accepts()
