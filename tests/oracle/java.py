"""JavaProgram: a program of Java that answers one line of JSON with another.

It is compiled from one source file; its libraries come from Maven.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from conformance.kafka import MEMORY, Unavailable


class JavaProgram:
    """A running program.

    Raises:
        Unavailable: there is no JDK, or the source can't be compiled.
    """

    def __init__(self, source: Path, *libraries: Path) -> None:
        self._name = source.stem
        self._folder = tempfile.TemporaryDirectory(prefix="streamlog-java-")
        classes = self._folder.name
        path = compile_java(source, Path(classes), *libraries)
        options = (MEMORY, f"-Djava.io.tmpdir={classes}", "-cp", path)
        self._process = subprocess.Popen(
            ["java", *options, source.stem],
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

    def ask(self, question: object) -> dict[str, Any]:
        """Return the program's answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{json.dumps(question)}\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise ConnectionError(f"{self._name} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def compile_java(source: Path, folder: Path, *libraries: Path) -> str:
    """Compile a program into a folder, and return the class path that runs it.

    Raises:
        Unavailable: there is no JDK, or the source can't be compiled.
    """
    if shutil.which("javac") is None:
        raise Unavailable("there is no JDK: javac is missing")
    path = ":".join(f"{each}/*" for each in libraries)
    compiled = subprocess.run(
        ["javac", "-nowarn", "-cp", path, "-d", str(folder), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if compiled.returncode:
        raise Unavailable(f"{source.name} can't be compiled: {compiled.stderr}")
    return f"{folder}:{path}"
