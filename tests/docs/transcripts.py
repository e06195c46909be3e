"""Documents whose commands run in one shell, and whose output is what the commands print.

`python -m tests.docs.transcripts docs/tutorial.md` runs a document and writes the output into it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"`([\w.-]+\.(?:txt|json|toml))`")
LOG_LINE = re.compile(
    r"^(\d+ \| )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|^\[\d+\]|^bash: line \d+: +\d+ (Killed|Terminated)"
)
"""Lines that the document leaves out: those of logs, and bash's messages about jobs."""
PATIENCE_S = 120
PORTS = ("8080", "9092", "9093", "9094")
UNSTABLE = [
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"cluster [\w-]{22}"), "cluster ID"),
    (re.compile(r'"timestamp_ms": 1[89]\d{11}'), '"timestamp_ms": NOW'),
    (re.compile(r'"offset": \d+'), '"offset": N'),  # Ends of transactions have offsets, too.
    (re.compile(r"\b\d+\.\d+ ?m?s\b"), "TIME"),
]
"""What differs from run to run, with what stands for it in a comparison."""


@dataclass
class Step:
    """A file to be written or a command to be run, with the output that the document shows."""

    text: str
    file: str = ""
    shown: list[str] = field(default_factory=list)


def steps(document: str) -> Iterator[Step]:
    """Return the files and commands of a document in their order; blocks of `sh` are not run."""
    waiting: list[str] = []
    end = 0
    for match in BLOCK.finditer(document):
        language, body = match.groups()
        waiting += NAMED.findall(document[end : match.start()])
        end = match.end()
        if language == "python":
            first, _, rest = body.partition("\n")
            yield Step(rest, file=first.removeprefix("# "))
        elif language == "text":
            yield Step(body, file=waiting.pop(0))
        elif not language:
            waiting.clear()
            yield from _commands(body)


def _commands(body: str) -> Iterator[Step]:
    for command in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, *shown = command.splitlines()
        yield Step(line, shown=shown)


class Shell:
    """A bash in a directory of its own, in which commands see each other's jobs and variables."""

    def __init__(self, directory: Path) -> None:
        tools = str(Path(sys.executable).parent)
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
        }
        self.directory = directory
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )

    def run(self, command: str) -> list[str]:
        """Run a command to its end; return its lines without log lines and messages of jobs."""
        for shown, used in self.ports.items():
            command = re.sub(rf"(?<=:){shown}\b", used, command)
        assert self._bash.stdin
        assert self._bash.stdout
        late = threading.Timer(PATIENCE_S, self._end)
        late.start()
        self._bash.stdin.write(f"{command}\nprintf '\\n=%s=\\n' $?\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        while not re.fullmatch(r"=\d+=\n", line := self._bash.stdout.readline()):
            assert line, f"{command}: not done in {PATIENCE_S} s:\n" + "\n".join(
                [*lines, *self._logs()]
            )
            lines.append(self._as_shown(line.rstrip()))
        late.cancel()
        while lines and not lines[-1]:
            lines.pop()
        return [line for line in lines if not LOG_LINE.match(line)]

    def _logs(self) -> Iterator[str]:
        """Return the ends of what jobs have written."""
        for path in sorted(self.directory.glob("*.log")):
            yield from [f"{path.name}:", *path.read_text().splitlines()[-20:]]

    def _as_shown(self, line: str) -> str:
        for shown, used in self.ports.items():
            line = re.sub(rf"(?<=:){used}\b", shown, line)
        return line

    def close(self) -> None:
        """End the shell and what it has started."""
        self._end()
        self._bash.communicate()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)


def _free_ports(count: int) -> list[str]:
    """Return ports in a row that are free now.

    They lie below the range from which systems take the ports of outgoing connections: a server
    that is killed and started again finds its port free.
    """
    while True:
        first = secrets.choice(range(10_000, 32_000))
        if all(_is_free(first + number) for number in range(count)):
            return [str(first + number) for number in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def stable(lines: list[str]) -> list[str]:
    """Return lines without what differs from run to run."""
    for pattern, stand_in in UNSTABLE:
        lines = [pattern.sub(stand_in, line) for line in lines]
    return lines


def agree(step: Step, printed: list[str]) -> bool:
    """Return whether a command printed what is shown: `...` stands for anything.

    Partitions are read side by side, so records may come in any order.
    """
    shown, printed = stable(step.shown), stable(printed)
    if " consume " in step.text:
        return sorted(shown) == sorted(printed)
    pattern = re.escape("\n".join(shown)).replace(re.escape("..."), "(?s:.*)")
    return re.fullmatch(pattern, "\n".join(printed)) is not None


def run(step: Step, shell: Shell) -> list[str]:
    """Write the file or run the command of a step."""
    if not step.file:
        return shell.run(step.text)
    (shell.directory / step.file).write_text(step.text)
    return []


def main() -> None:
    """Run a document and write what its commands print into it; `...` keeps its place."""
    path = Path(sys.argv[1])
    text = path.read_text()
    directory = Path(tempfile.mkdtemp())
    shell = Shell(directory)
    try:
        for step in steps(text):
            printed = run(step, shell)
            if not step.file and not agree(step, printed):
                old = "\n".join([f"$ {step.text}", *step.shown])
                new = "\n".join([f"$ {step.text}", *printed])
                print(new, flush=True)  # noqa: T201
                text = text.replace(f"{old}\n", f"{new}\n", 1)
                path.write_text(text)
    finally:
        shell.close()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
