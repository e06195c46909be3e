"""A broker in its own process, for tests that kill it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

LISTENING = re.compile(r"listening on ([^ ]+):(\d+) \((?:([A-Z_]+), )?")


class BrokerProcess:
    """A `streamlog broker` process on a directory; entering the context waits until it listens."""

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        flush: str = "always",
        settings: Mapping[str, str] | None = None,
        others: Sequence[Path] = (),
    ) -> None:
        self._data = data
        self._others = others
        self._flush = flush
        self._settings = settings
        self.port = port
        self.ports: dict[str, int] = {}
        """Ports by security protocol, if the settings name listeners."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "streamlog", "broker", "--data", str(self._data)]
        for other in self._others:
            command += ["--data", str(other)]
        command += ["--flush", self._flush]
        wanted = 1
        if self._settings is None:
            command += ["--listen", f"127.0.0.1:{self.port}"]
        else:
            file = self._data.parent / f"{self._data.name}.properties"
            file.write_text("".join(f"{k}={v}\n" for k, v in self._settings.items()))
            command += ["--config", str(file)]
            wanted = len(self._settings["listeners"].split(","))
        log = None if self._settings is None else self.log_path.open("a")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        if log is not None:
            log.close()
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            found = LISTENING.search(line)
            if found is not None:
                self.port = int(found[2])
                self.ports[found[3] or "PLAINTEXT"] = self.port
                wanted -= 1
                if not wanted:
                    return self
        self._process.wait()
        raise AssertionError(f"the broker did not start: {said}")

    @property
    def log_path(self) -> Path:
        """The log file of a broker with settings."""
        return self._data.parent / f"{self._data.name}.log"

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, with no chance to write anything."""
        self.end(signal.SIGKILL)

    def kill_and_restart(self) -> None:
        """Kill the process and start it again on its port, where clients find it."""
        self.kill()
        self.__enter__()

    def signal(self, which: signal.Signals) -> None:
        """Send the process a signal, such as SIGSTOP, which stops it until SIGCONT."""
        assert self._process is not None
        self._process.send_signal(which)

    def end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.communicate(timeout=60)
