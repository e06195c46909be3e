"""Target: a broker in its own process, and a client that it must always serve."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from streamlog.protocol.api_table import Api, api_of
from streamlog.protocol.frame import decode_response, encode_request
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.schema import Message

LISTENING = re.compile(r"listening on ([^ ]+):(\d+) ")
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL)\s")
PATIENCE_S = 20.0
ASK_EVERY_S = 0.02
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Target:
    """`streamlog broker` over a directory. Entering waits until it listens."""

    def __init__(
        self,
        directory: Path,
        *,
        open_files: int = 4096,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.port = 0
        self.log_path = directory / "broker.log"
        self._directory = directory
        self._open_files = open_files
        self._settings = {"listeners": "PLAINTEXT://127.0.0.1:0", **(settings or {})}

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / "broker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        command = [sys.executable, "-m", "streamlog", "broker", "--config", str(file)]
        command += ["--data", str(self._directory / "data")]
        limit = min(self._open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        with self.log_path.open("w") as log:
            self._process = subprocess.Popen(
                ["prlimit", f"--nofile={limit}:{limit}", *command],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := LISTENING.search(line):
                self.port = int(found[2])
                return self
        raise AssertionError(f"the broker did not start: {self.log()}")

    def __exit__(self, *_: object) -> None:
        if self.is_alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def address(self) -> str:
        """The bootstrap address for clients."""
        return f"127.0.0.1:{self.port}"

    def log(self) -> str:
        """Return the whole log of the broker."""
        return self.log_path.read_text(errors="replace")

    def stray_lines(self) -> list[str]:
        """Return the lines of the log that do not begin like log lines."""
        return [line for line in self.log().split("\n") if line and not LOG_LINE.match(line)]

    def memory_bytes(self) -> int:
        """Return its resident memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0

    def cpu_s(self) -> float:
        """Return its processor time since the start."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)


def newest(api: Api) -> int:
    """Return the newest version of an API."""
    return api.max_version


def frame_of(request: Message, number: int = 0, *, client: str = "attacker") -> bytes:
    """Encode a request in its newest version."""
    api = api_of(type(request))
    return b"".join(encode_request(api, newest(api), number, client, request))


def ask(connection: socket.socket, request: Message) -> Message:
    """Send a request, and return the response."""
    connection.sendall(frame_of(request))
    (size,) = struct.unpack(">i", received(connection, 4))
    api = api_of(type(request))
    return decode_response(api, newest(api), received(connection, size))[1]


def received(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes. Raises ConnectionError if the other side hangs up."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("hung up")
        data += more
    return data


class Witness:
    """Another client, which sends ApiVersions continually while an attack runs."""

    def __init__(self, target: Target) -> None:
        self.latencies_s: list[float] = []
        self.lost = 0
        """The number of its connections that were closed."""
        self.outlived = False
        """Whether the broker survived the attack."""
        self._target = target
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._began_s, self._cpu_s = time.monotonic(), self._target.cpu_s()
        self._memory_bytes = self._target.memory_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.facts: dict[str, float] = {}
        self.outlived = self._target.is_alive
        if self.outlived:
            self.facts = {
                "cpu_s": round(self._target.cpu_s() - self._cpu_s, 2),
                "grown_mib": round((self._target.memory_bytes() - self._memory_bytes) / 2**20, 1),
            }
        self._stop.set()
        self._thread.join(PATIENCE_S)
        ordered = sorted(self.latencies_s) or [PATIENCE_S]
        self.facts |= {
            "took_s": round(time.monotonic() - self._began_s, 1),
            "asked": len(self.latencies_s),
            "lost": self.lost,
            "median_ms": round(statistics.median(ordered) * 1000, 1),
            "worst_ms": round(ordered[-1] * 1000, 1),
        }

    def _run(self) -> None:
        connection: socket.socket | None = None
        while not self._stop.is_set():
            try:
                if connection is None:
                    connection = self._target.connect()
                began_s = time.monotonic()
                ask(connection, ApiVersionsRequest())
                self.latencies_s.append(time.monotonic() - began_s)
            except OSError:
                self.lost += 1
                connection = None
            self._stop.wait(ASK_EVERY_S)
        if connection is not None:
            connection.close()
