"""A broker in a process of its own, to be killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

LISTENING = re.compile(r"listening on ([^ ]+):(\d+)")


class BrokerProcess:
    """`streamlog broker` over a directory. Entering waits until it listens."""

    def __init__(self, data: Path, *, port: int = 0, flush: str = "always") -> None:
        self._data = data
        self._flush = flush
        self.port = port
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        listen = f"127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "streamlog",
                "broker",
                "--data",
                str(self._data),
                "--listen",
                listen,
                "--flush",
                self._flush,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            found = LISTENING.search(line)
            if found is not None:
                self.port = int(found[2])
                return self
        self._process.wait()
        raise AssertionError(f"the broker did not start: {said}")

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        """No chance to write anything."""
        self.end(signal.SIGKILL)

    def kill_and_restart(self) -> None:
        """The next one takes the same port, so clients find it again."""
        self.kill()
        self.__enter__()

    def end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.communicate(timeout=60)
