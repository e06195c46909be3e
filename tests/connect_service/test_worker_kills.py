"""Workers of a service as processes: killed, suspended, restarted in turn, with real connectors.

Lines of files go through the log into a table of SQLite and into files. Everything that should be
there is, once, compared as multisets. For `make chaos-connect-service`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from streamlog.log import Log
from tests.worker.processes import STREAMLOG, Process, read_whole

pytestmark = pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="minutes: with STREAMLOG_PROFILE=thorough (`make chaos-connect-service`)",
)
ROUNDS = int(os.environ.get("STREAMLOG_CONNECT_ROUNDS", "6"))
SESSION_MS = 4_000
FILES = 6
SETTLED_S = 120
TAIL = {"connector.class": "Tail", "topic": "lines", "tasks.max": "3"}
TEXT = "org.apache.kafka.connect.storage.StringConverter"
SINK = {
    "topics": "lines",
    "tasks.max": "2",
    "value.converter": TEXT,
    "key.converter": TEXT,
    "flush.every": "300ms",
}


class Writer:
    """Appends lines to files, and knows all of them."""

    def __init__(self, directory: Path) -> None:
        self.paths = [directory / f"{number}.log" for number in range(FILES)]
        self.lines: Counter[str] = Counter()
        self._next = 0

    def write(self, count: int) -> None:
        for path in self.paths:
            new = [f"{path.stem} {self._next + at}" for at in range(count)]
            with path.open("a") as file:
                file.writelines(f"{line}\n" for line in new)
            self.lines.update(new)
        self._next += count

    async def run(self) -> None:
        while True:
            self.write(20)
            await asyncio.sleep(0.1)


class Workers:
    """Processes of one group, at ports that stay theirs."""

    def __init__(self, directory: Path, log_url: str, ports: list[int]) -> None:
        self.directory, self.log_url, self.ports = directory, log_url, ports
        self.running: dict[int, Process] = {}
        self.settings = directory / "worker.properties"
        self.settings.write_text(
            f"offset.flush.interval.ms=100\nsession.timeout.ms={SESSION_MS}\n"
            "heartbeat.interval.ms=300\n"
        )

    def start(self, port: int) -> None:
        self.running[port] = Process(
            *(*STREAMLOG, "connect", str(self.settings), "--rest", f"127.0.0.1:{port}"),
            *("--log", self.log_url),
            cwd=self.directory,
        )

    def stop(self, port: int) -> None:
        """Let a worker commit and end; its exit code is checked."""
        process = self.running.pop(port)
        process.line(r"connect: \d+ connector")  # Before it, a signal ends the interpreter.
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.output
        process.kill()

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Ask any worker that answers, until one does."""
        async with asyncio.timeout(SETTLED_S):
            while True:
                for port in self.ports:
                    try:
                        return await asyncio.to_thread(self._ask, port, method, path, body)
                    except urllib.error.HTTPError as error:
                        if error.code not in (404, 409, 502, 503):  # 404: not yet read there.
                            raise AssertionError(error.read().decode()) from error
                    except OSError:
                        continue
                await asyncio.sleep(0.2)

    async def until_running(self, *names: str) -> None:
        """Wait until all tasks of connectors run on workers that live."""
        alive = {f"127.0.0.1:{port}" for port in self.running}
        async with asyncio.timeout(SETTLED_S):
            for name in names:
                while True:
                    _, body = await self.ask("GET", f"/connectors/{name}/status")
                    tasks = body["tasks"]
                    states = {task["state"] for task in tasks}
                    if states == {"RUNNING"} and {task["worker_id"] for task in tasks} <= alive:
                        break
                    await asyncio.sleep(0.2)

    @property
    def output(self) -> str:
        """The end of what each worker that runs has written."""
        return "\n".join(f"{port}:\n{each.output[-4000:]}" for port, each in self.running.items())

    def _ask(self, port: int, method: str, path: str, body: object) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        # A suspended worker accepts connections and answers nothing.
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            data = answer.read()
            return answer.status, json.loads(data) if data else None


@contextmanager
def workers_of(directory: Path, log: Log) -> Iterator[Workers]:
    assert log.address is not None
    host, port = log.address
    workers = Workers(directory, f"kafka://{host}:{port}", free_ports(3))
    try:
        for each in workers.ports:
            workers.start(each)
        yield workers
    finally:
        for process in workers.running.values():
            process.signal(signal.SIGCONT)
            process.kill()


def free_ports(count: int) -> list[int]:
    # Bound together, so that they differ; a worker that is started again needs the port it had.
    with ExitStack() as stack:
        bound = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in bound]


def in_table(path: Path) -> Counter[str]:
    with closing(sqlite3.connect(path)) as db:
        return Counter(value for (value,) in db.execute("select value from lines"))


def in_files(directory: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in directory.rglob("*.jsonl"):
        found.update(json.loads(line)["value"] for line in path.read_text().splitlines())
    return found


async def create(workers: Workers, directory: Path) -> None:
    tail = {**TAIL, "path": str(directory / "in" / "*.log")}
    table = {
        **SINK, "connector.class": "SqlSink", "url": f"sqlite:///{directory}/out.db",
        "table": "lines", "auto.create": "true",
    }  # fmt: skip
    files = {**SINK, "connector.class": "Objects", "url": str(directory / "out"), "format": "jsonl"}
    for name, config in (("tail", tail), ("table", table), ("files", files)):
        await workers.ask("PUT", f"/connectors/{name}/config", config)
    await workers.until_running("tail", "table", "files")


async def compare(writer: Writer, workers: Workers, log: Log, directory: Path) -> None:
    """Wait until everything has arrived everywhere; too much of anything fails at once."""

    def text(value: bytes | None) -> str:
        return (value or b"").decode()

    arrived, deadline = -1, monotonic() + SETTLED_S
    while True:
        found = {
            "log": Counter(text(record.value) for _, record in await read_whole(log, "lines")),
            # In threads: the broker of this log needs the event loop meanwhile.
            "table": await asyncio.to_thread(in_table, directory / "out.db"),
            "files": await asyncio.to_thread(in_files, directory / "out"),
        }
        for where, rows in found.items():
            assert not rows - writer.lines, f"{where}: {(rows - writer.lines).most_common(3)}"
        if all(rows == writer.lines for rows in found.values()):
            return
        counts = {where: rows.total() for where, rows in found.items()}
        # Counted anew while rows arrive: on a crowded machine there are many to catch up with.
        if sum(counts.values()) > arrived:
            arrived, deadline = sum(counts.values()), monotonic() + SETTLED_S
        assert monotonic() < deadline, f"of {writer.lines.total()} only {counts}\n{workers.output}"
        await asyncio.sleep(2)


class Events:
    """What happens to the workers, drawn by a seed."""

    def __init__(self, workers: Workers, seed: int) -> None:
        self._workers, self._random = workers, Random(seed)

    async def round(self, number: int) -> None:
        """Let one thing happen; the first rounds go through all of them."""
        events = [self.kill, self.suspend, self.roll, self.change]
        chosen = events[number] if number < len(events) else self._random.choice(events)
        await chosen()
        await asyncio.sleep(self._random.random())

    async def kill(self) -> None:
        workers, port = self._workers, self._random.choice(self._workers.ports)
        workers.running[port].kill()
        if self._random.random() < 0.5:
            workers.start(port)  # Before its session ends.
            return
        del workers.running[port]
        await workers.until_running("tail", "table", "files")
        workers.start(port)

    async def suspend(self) -> None:
        process = self._workers.running[self._random.choice(self._workers.ports)]
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(self._random.choice((1, SESSION_MS / 1000 + 3)))
        process.signal(signal.SIGCONT)

    async def roll(self) -> None:
        for port in self._workers.ports:
            await asyncio.to_thread(self._workers.stop, port)
            self._workers.start(port)
            await self._workers.until_running("tail", "table", "files")

    async def change(self) -> None:
        ask, tasks = self._workers.ask, str(self._random.choice((1, 2, 3, 5)))
        await ask("PATCH", "/connectors/tail/config", {"tasks.max": tasks})
        await ask("PUT", "/connectors/files/pause")
        await ask("PUT", "/connectors/files/resume")


@pytest.mark.parametrize("seed", range(2))
def test_workers_are_killed_suspended_and_restarted(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        (tmp_path / "in").mkdir()
        writer = Writer(tmp_path / "in")
        writer.write(1)
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(Log.open(f"embedded:{tmp_path}/log"))
            workers = stack.enter_context(workers_of(tmp_path, log))
            group = await stack.enter_async_context(asyncio.TaskGroup())
            await create(workers, tmp_path)
            writing = group.create_task(writer.run())
            events = Events(workers, seed)
            for number in range(ROUNDS):
                await events.round(number)
            writing.cancel()
            await workers.until_running("tail", "table", "files")
            await compare(writer, workers, log, tmp_path)

    asyncio.run(main())
