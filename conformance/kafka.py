"""Apache Kafka itself: one broker that is its own controller, from Maven's central repository.

It is the reference: what a program says there is right. Its tools, of the same version, are there
for suites that call them. Fetching takes a Maven and the network, running it a Java of 17 or more.
`python -m conformance.kafka COMMAND...` runs a command beside such a broker.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from conformance.client import PATIENCE_S
from conformance.witness import served

VERSION = "4.1.0"
NEWEST = "4.4.0"
"""The newest broker that Maven Central has."""
CACHE = Path(__file__).parent.parent / ".conformance" / f"kafka-{VERSION}"
FETCH_S = 900
PAUSE_S = 0.2
MEMORY = "-Xmx512m"
CLUSTER_ID = "c3RyZWFtbG9nLWthZmthLQ"
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
log.dirs={folder}/data
num.partitions=4
auto.create.topics.enable=true
log.initial.task.delay.ms=86400000
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.heartbeat.interval.ms=100
group.consumer.min.heartbeat.interval.ms=100
group.consumer.session.timeout.ms=6000
group.consumer.min.session.timeout.ms=6000
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
"""The same number of partitions for a topic that is made on the way as ours. Where the coordinator
assigns, members are heard of often, as our client's tests have it, and one that is killed is soon
given up. Records of 1970 stay: nothing is cleaned up for a day. The rest is for one broker."""

_PROJECT = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>streamlog</groupId>
  <artifactId>conformance</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
    "<version>{version}</version></dependency>"
)
_TOOL = '#!/bin/sh\nexec java {memory} -cp "{libraries}/*" {main} "$@"\n'
_TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}


class Unavailable(Exception):
    """Apache Kafka can't be had on this machine; the message says why."""


def home() -> Path:
    """A directory with `lib` and `bin`, fetched if it is not there yet.

    Raises:
        Unavailable: a tool is missing, or there is no network.
    """
    fetched(CACHE.name, ("kafka_2.13", "kafka-tools"), VERSION)
    if not (CACHE / "bin").exists():
        (CACHE / "bin").mkdir()
        for name, main in _TOOLS.items():
            tool = CACHE / "bin" / name
            tool.write_text(_TOOL.format(memory=MEMORY, libraries=CACHE / "lib", main=main))
            tool.chmod(0o755)
    return CACHE


def fetched(
    name: str, artifacts: Sequence[str], version: str, *, group: str = "org.apache.kafka"
) -> Path:
    """The directory with some artifacts of a group, and all that they need, as jars.

    Raises:
        Unavailable: a tool is missing, or there is no network.
    """
    if missing := [tool for tool in ("java", "mvn") if shutil.which(tool) is None]:
        raise Unavailable(f"{name} can't be run here, there is no {', '.join(missing)}")
    folder = CACHE.parent / name
    if not (folder / "fetched").exists():
        folder.mkdir(parents=True, exist_ok=True)
        needs = "".join(
            _DEPENDENCY.format(group=group, name=each, version=version) for each in artifacts
        )
        (folder / "pom.xml").write_text(_PROJECT.format(dependencies=needs))
        _do(folder, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib")
        (folder / "fetched").touch()
    return folder / "lib"


def java(*arguments: str, libraries: Path | None = None) -> list[str]:
    """The command that runs something with Kafka's libraries."""
    return ["java", MEMORY, "-cp", f"{libraries or home() / 'lib'}/*", *arguments]


def release(version: str) -> Path:
    """The directory of the broker and the tools of a version, as jars.

    Raises:
        Unavailable: a tool is missing, or there is no network.
    """
    return fetched(f"kafka-{version}", ("kafka_2.13", "kafka-tools"), version)


class ApacheKafka:
    """A broker over one directory, through all its lives; a context manager, which ends it.

    Args:
        folder: an empty directory.
        ports: of the broker and its controller.
        libraries: where its jars are; those of `VERSION` without.
        settings: lines behind those of `SETTINGS`.
        memory: options of its JVM.

    Raises:
        Unavailable: it can't be had on this machine.
    """

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        *,
        libraries: Path | None = None,
        settings: str = "",
        memory: Sequence[str] = (MEMORY,),
    ) -> None:
        broker, controller = ports
        self.address = f"127.0.0.1:{broker}"
        self._folder = folder
        self._libraries = libraries
        self._memory = memory
        self._settings = folder / "server.properties"
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        given = SETTINGS.format(broker=broker, controller=controller, folder=folder).lstrip()
        self._settings.write_text(given + settings)
        storage = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID)
        _do(folder, *java(*storage, "-c", str(self._settings), libraries=libraries))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process.

        Raises:
            ProcessLookupError: it does not run.
        """
        if self._process is None:
            raise ProcessLookupError(f"no Apache Kafka runs at {self.address}")
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            ConnectionError: it does not.
        """
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                java(*self._memory, "kafka.Kafka", str(self._settings), libraries=self._libraries),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        try:
            _wait(self._process, self.address, self._log)
        except ConnectionError:
            self.kill()
            raise

    def stop(self) -> None:
        """End it in order."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """End it at once."""
        self._end(subprocess.Popen.kill)

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, self._process = self._process, None
        if process is not None:
            how(process)
            process.wait(PATIENCE_S)


@contextmanager
def apache_kafka() -> Iterator[str]:
    """Run a broker over an empty directory; its address."""
    with (
        tempfile.TemporaryDirectory(prefix="streamlog-kafka-") as folder,
        ApacheKafka(Path(folder), free_ports(2)) as broker,
    ):
        try:
            yield broker.address
        finally:
            broker.stop()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and process.poll() is None:
        try:
            served(address)
        except OSError:
            time.sleep(PAUSE_S)
        else:
            return
    last = "\n".join(log.read_text().splitlines()[-5:])
    raise ConnectionError(f"Apache Kafka does not start at {address}: {last}")


def free_ports(count: int) -> list[int]:
    """Taken by nobody a moment ago: the controller's is told to others before it is bound."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _do(folder: Path, *command: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Apache Kafka can't be had: {error}") from error
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-3:])
        raise Unavailable(f"Apache Kafka can't be had: {command[0]}: {last}")


def main() -> int:
    """Run a command while there is a broker; it finds the address in STREAMLOG_KAFKA."""
    with apache_kafka() as address:
        environment = {**os.environ, "STREAMLOG_KAFKA": address}
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
