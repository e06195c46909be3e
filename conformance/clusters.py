"""The two clusters: our broker as a process of its own, and librdkafka's mock cluster."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from conformance.client import PATIENCE_S
from conformance.mock import MockCluster

LISTENING = re.compile(r"listening on ([^ ]+:\d+)")


@contextmanager
def own_broker(settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """`streamlog broker` over an empty directory, with settings by their names; its address."""
    with tempfile.TemporaryDirectory(prefix="streamlog-conformance-") as folder:
        file = Path(folder) / "broker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in (settings or {}).items()))
        arguments = ["broker", "--data", f"{folder}/data", "--listen", "127.0.0.1:0"]
        arguments += ["--flush", "os", "--config", str(file)]
        command = [sys.executable, "-m", "streamlog", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield _address(process)
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=PATIENCE_S)


def _address(process: subprocess.Popen[str]) -> str:
    said = ""
    for line in process.stdout or ():
        said += line
        found = LISTENING.search(line)
        if found is not None:
            return found[1]
    raise ConnectionError(f"the broker did not start: {said}")


@contextmanager
def mock_cluster() -> Iterator[str]:
    """One broker, in memory."""
    with MockCluster() as cluster:
        yield cluster.address
