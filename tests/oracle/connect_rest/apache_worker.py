"""Apache's own Connect worker in a process, over a broker of ours.

Its connectors are `Numbers` and `Listed`, which do in Java what those of
`tests/connect_service/outside.py` do here. Libraries come from Maven.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from conformance.kafka import MEMORY, Unavailable, fetched

VERSION: Final = "4.4.0"
LOG4J: Final = "2.25.3"
HERE: Final = Path(__file__).parent
START_S: Final = 240
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
_LOGGING: Final = """
status = error
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c %m%n
"""


def libraries() -> str:
    """Return the class path of a worker, fetched if it is not there yet.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """
    connect = fetched(
        f"connect-{VERSION}", ("connect-transforms", "connect-json", "connect-runtime"), VERSION
    )
    logging = fetched(
        f"log4j-{LOG4J}",
        ("log4j-core", "log4j-slf4j-impl"),
        LOG4J,
        group="org.apache.logging.log4j",
    )
    return f"{connect}/*:{logging}/*"


def compiled(folder: Path, *sources: str) -> str:
    """Compile sources that are beside this file; returns a class path with them.

    Raises:
        Unavailable: they can't be compiled.
    """
    path = libraries()
    command = ["javac", "-nowarn", "-cp", path, "-d", str(folder)]
    files = [str(HERE / each) for each in sources]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{', '.join(sources)} can't be compiled: {done.stderr}")
    return f"{folder}:{path}"


@contextmanager
def apache_worker(bootstrap: str, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a worker; yields the URL of its REST API.

    Args:
        bootstrap: the broker.
        settings: further settings of the worker, or others than those of this function.

    Raises:
        Unavailable: it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="streamlog-connect-") as name:
        folder = Path(name)
        path = compiled(folder, "Numbers.java", "Listed.java")
        port = _free_port()
        whole = {
            "bootstrap.servers": bootstrap,
            "group.id": "apache",
            "key.converter": JSON,
            "value.converter": JSON,
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "config.storage.topic": "apache-configs",
            "offset.storage.topic": "apache-offsets",
            "status.storage.topic": "apache-status",
            "config.storage.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "offset.storage.partitions": "3",
            "status.storage.partitions": "1",
            "offset.flush.interval.ms": "200",
            "scheduled.rebalance.max.delay.ms": "0",
            "exactly.once.source.support": "enabled",
            "plugin.discovery": "only_scan",
            "listeners": f"http://127.0.0.1:{port}",
            **(settings or {}),
        }
        file = folder / "worker.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in whole.items()))
        log = folder / "worker.log"
        (folder / "log4j2.properties").write_text(_LOGGING.format(path=log))
        command = [
            "java", MEMORY, "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={folder}/log4j2.properties", "-cp", path,
            "org.apache.kafka.connect.cli.ConnectDistributed", str(file),
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        ) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                _wait(url, process, log)
                yield url
            finally:
                process.terminate()
                process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310 - http
                if json.load(answer)["status"] == "healthy":
                    return
        except (urllib.error.URLError, OSError, ValueError):
            time.sleep(0.2)
    said = log.read_text()[-4000:] if log.exists() else ""
    raise Unavailable(f"Apache's worker does not start: {said}")
