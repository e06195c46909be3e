"""AvroJava: pairs of schemas, read and compared by Apache Avro.

One process of Java runs pair after pair (`PairRunner.java`). Its libraries come from Maven.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from conformance.kafka import MEMORY, Unavailable, fetched

VERSION: Final = "1.12.0"
SOURCE: Final = Path(__file__).parent / "PairRunner.java"


class AvroJava:
    """Compares pairs one after another.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        libraries = fetched(f"avro-{VERSION}", ("avro",), VERSION, group="org.apache.avro")
        self._folder = tempfile.TemporaryDirectory(prefix="streamlog-avro-")
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

    def answer(self, reader: str, writer: str) -> dict[str, Any]:
        """Return what Avro says of two schemas, given as texts.

        `reader` and `writer` are their texts as Avro writes them, None for one that it refuses;
        `found` lists kinds, paths and details; `error` is there if the comparison ends with one.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{json.dumps({'reader': reader, 'writer': writer})}\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise ConnectionError(f"Java ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found
