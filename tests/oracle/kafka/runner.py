"""KafkaStreams: cases in the vocabulary of `tests/golden`, run by Kafka Streams' test driver.

One process of Java runs case after case (`CaseRunner.java`). Its libraries come from Maven.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from conformance.kafka import MEMORY, Unavailable, fetched
from tests.golden.compare import Case, Row

VERSION: Final = "4.4.0"
SOURCE: Final = Path(__file__).parent / "CaseRunner.java"


class Refused(Exception):
    """Kafka Streams refuses the topology or fails on the case; the message is its own."""


class KafkaStreams:
    """Runs cases one after another.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        libraries = fetched(f"kafka-streams-{VERSION}", ("kafka-streams-test-utils",), VERSION)
        self._folder = tempfile.TemporaryDirectory(prefix="streamlog-streams-")
        classes, path = self._folder.name, f"{libraries}/*"
        compiled = subprocess.run(
            ["javac", "-nowarn", "-cp", path, "-d", classes, str(SOURCE)],
            capture_output=True,
            text=True,
            check=False,
        )
        if compiled.returncode:
            raise Unavailable(f"{SOURCE.name} can't be compiled: {compiled.stderr}")
        options = (MEMORY, f"-Djava.io.tmpdir={classes}", "-cp", f"{classes}:{path}")
        self._process = subprocess.Popen(
            ["java", *options, SOURCE.stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def rows(self, case: Case) -> list[Row]:
        """Return the rows that Kafka Streams writes.

        Raises:
            Refused: Kafka Streams returns an error.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{json.dumps(case)}\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise ConnectionError(f"Kafka Streams ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return _rows(answer["rows"])


def _rows(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        Row(
            each["topic"],
            each["key"],
            None if each["window"] is None else (each["window"][0], each["window"][1]),
            each["value"],
            each["ts"],
            each["after"],
        )
        for each in found
    ]
