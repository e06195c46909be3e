"""The Connect service with many idle connectors: its start, memory, CPU, and a killed worker.

Half of the connectors are sources (`Tail` of a file each), half are sinks (`Objects`, of a topic
each); nothing is read or written. The broker is a process of its own. Measured are a worker that
starts over all of them, its memory and CPU while nothing happens, and three workers of which one is
killed. Then a worker has a thousand tasks, and one of them is paused, resumed, changed and
restarted while another one carries a line every 20 ms: measured is how long that takes, and how
long the other one goes without a commit. On a machine that does other work, the times say little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final, Self

import msgspec

from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.serdes.erased_types import JsonValue

CONNECTORS: Final = 100
TASKS: Final = 1_000
TASKS_EACH: Final = 100
"""The tasks of a connector that has many."""
LINE_S: Final = 0.02
IDLE_S: Final = 30
PATIENCE_S: Final = 300
BARS: Final = {
    "start_s": 15.0,
    "resident_mib": 300.0,
    "cpu_percent": 5.0,
    "kill_s": 25.0,
    "pause_s": 2.0,
    "resume_s": 2.0,
    "change_s": 2.0,
    "restart_s": 2.0,
    "others_gap_s": 2.0,
}
"""The largest value of each figure (design of the service)."""


class TaskState(msgspec.Struct):
    """A task as the REST API shows it."""

    state: str
    worker_id: str


class _State(msgspec.Struct):
    state: str


class _Status(msgspec.Struct):
    tasks: list[TaskState]


class _Expanded(msgspec.Struct):
    status: _Status | None = None


class Service:
    """Workers of one service, as processes."""

    def __init__(self, directory: Path, log_url: str) -> None:
        self._directory, self._log_url = directory, log_url
        self.workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, port: int) -> None:
        """Start a worker; its output goes into a file."""
        command = [sys.executable, "-m", "streamlog", "connect", "--rest", f"127.0.0.1:{port}"]
        with (self._directory / f"worker-{port}.log").open("ab") as out:
            self.workers[port] = subprocess.Popen(
                [*command, "--log", self._log_url], stdout=out, stderr=out
            )

    def stop_all(self) -> None:
        """Let all workers commit and end."""
        for worker in self.workers.values():
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers.values():
            worker.wait(PATIENCE_S)
        self.workers.clear()

    def ask(self, method: str, path: str, body: object = None) -> JsonValue:
        """Ask a worker that lives, until one answers."""
        deadline = monotonic() + PATIENCE_S
        while True:
            for port in self.workers:
                try:
                    return _answer(port, method, path, body)
                except OSError:  # Also an answer that is an error: the worker may be starting.
                    if monotonic() > deadline:
                        raise
            sleep(0.05)

    def tasks(self) -> list[TaskState]:
        """Return the tasks of all connectors."""
        found = self.ask("GET", "/connectors?expand=status")
        shown = msgspec.convert(found, dict[str, _Expanded])
        return [task for each in shown.values() if each.status for task in each.status.tasks]

    def until_running(self, *, connectors: int) -> float:
        """Return the seconds until all connectors and tasks run on workers that live."""
        begun = monotonic()
        while True:
            alive = {f"127.0.0.1:{port}" for port in self.workers}
            running = [task for task in self.tasks() if task.state == "RUNNING"]
            if len([task for task in running if task.worker_id in alive]) >= connectors:
                return monotonic() - begun
            if monotonic() - begun > PATIENCE_S:
                raise TimeoutError(f"{len(running)} of {connectors} tasks run")
            sleep(0.1)


def _answer(port: int, method: str, path: str, body: object) -> JsonValue:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        data = answer.read()
        return json.loads(data) if data else None


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in bound]


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """Run a broker; yields the URL of its log."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "streamlog", "broker", "--data", str(directory)]
    process = subprocess.Popen(
        [*command, "--listen", f"127.0.0.1:{port}", "--flush", "os"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"kafka://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no VmRSS")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def create(service: Service, directory: Path, connectors: int) -> None:
    (directory / "in").mkdir()
    for number in range(connectors // 2):
        path = directory / "in" / f"{number}.log"
        path.touch()
        topic = f"topic-{number}"
        tail = {"connector.class": "Tail", "path": str(path), "topic": topic}
        files = {"connector.class": "Objects", "topics": topic, "url": f"{directory}/out-{number}"}
        service.ask("PUT", f"/connectors/in-{number}/config", tail)
        service.ask("PUT", f"/connectors/out-{number}/config", files)


def seconds(act: Callable[[], object], holds: Callable[[], bool]) -> float:
    """Return how long it takes from a request until what it asks for is so."""
    begun = monotonic()
    act()
    while not holds():
        if monotonic() - begun > PATIENCE_S:
            raise TimeoutError("a change took no effect")
        sleep(0.02)
    return monotonic() - begun


def changes(service: Service, log_url: str) -> dict[str, float]:
    """Return how long it takes to pause, change and restart one of the connectors."""
    path = "/connectors/in-0"
    figures: dict[str, float] = {}
    with Statuses(log_url) as statuses:
        for name, state, method, target, body in (
            ("pause_s", "PAUSED", "PUT", "pause", None),
            ("resume_s", "RUNNING", "PUT", "resume", None),
            ("change_s", "RUNNING", "PATCH", "config", {"poll": "1s"}),
            ("restart_s", "RUNNING", "POST", "tasks/0/restart", None),
        ):
            before = statuses.count(state)

            def is_so(before: int = before, state: str = state) -> bool:
                return statuses.count(state) > before

            figures[name] = seconds(partial(service.ask, method, f"{path}/{target}", body), is_so)
    return figures


class Carried:
    """A file that gets lines, and when readers of its topic get them."""

    def __init__(self, path: Path, log_url: str, topic: str) -> None:
        self._path, self._log_url, self._topic = path, log_url, topic
        self._stop = Event()
        self._arrived_s: list[float] = []

    def __enter__(self) -> Self:
        self._threads = [
            Thread(target=self._write),
            Thread(target=asyncio.run, args=[self._read()]),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until_first(self) -> None:
        """Wait until a line has arrived."""
        deadline = monotonic() + PATIENCE_S
        while not self._arrived_s:
            if monotonic() > deadline:
                raise TimeoutError("no line arrives")
            sleep(LINE_S)

    def gap_s(self, since_s: float) -> float:
        """Return the longest time without a new line from a moment until now."""
        times = [since_s, *(each for each in self._arrived_s if each > since_s), monotonic()]
        return max(after - before for before, after in pairwise(times))

    def _write(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            while not self._stop.wait(LINE_S):
                file.write(b"a line\n")

    async def _read(self) -> None:
        async with (
            Log.open(self._log_url) as log,
            log.consumer(
                auto_offset_reset="earliest", isolation_level="read_committed"
            ) as consumer,
        ):
            consumer.assign([TopicPartition(self._topic, 0)])
            while not self._stop.is_set():
                if await consumer.poll(timeout_ms=100):
                    self._arrived_s.append(monotonic())


def measure_many(tasks: int) -> dict[str, float]:
    """Return how long changes of one of many tasks take, and what the others notice."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log_url = stack.enter_context(broker(directory / "log"))
        service = Service(directory, log_url)
        stack.callback(service.stop_all)
        (port,) = free_ports(1)
        service.start(port)
        for name, count in _shares(tasks):
            (directory / name).mkdir()
            for number in range(count):
                (directory / name / f"{number}.log").touch()
            settings = {
                "connector.class": "Tail",
                "path": f"{directory}/{name}/*.log",
                "topic": f"lines-{name}",
                "tasks.max": str(count),
            }
            service.ask("PUT", f"/connectors/{name}/config", settings)
        asyncio.run(_create_topic(log_url, "lines-busy"))
        service.until_running(connectors=tasks)
        path = directory / "busy" / "0.log"
        with Carried(path, log_url, "lines-busy") as carried:
            carried.until_first()
            begun = monotonic()
            figures = changes(service, log_url)
            figures["others_gap_s"] = carried.gap_s(begun)
    return {f"many_{name}": value for name, value in figures.items()}


async def _create_topic(log_url: str, name: str) -> None:
    # A source creates its topic with its first line, and a reader of a missing one fails.
    async with Log.open(log_url) as log, log.admin() as admin:
        await admin.create_topics([NewTopic(name, 1)])


def _shares(tasks: int) -> list[tuple[str, int]]:
    """Return connectors with their tasks: one that is changed, one that is busy, and the rest."""
    rest = tasks - 2
    many = [min(TASKS_EACH, rest - begin) for begin in range(0, rest, TASKS_EACH)]
    return [("in-0", 1), ("busy", 1), *((f"many-{at}", count) for at, count in enumerate(many))]


class Statuses:
    """How often the task has come into each state: what the REST API shows may be the past."""

    def __init__(self, log_url: str) -> None:
        self._log_url = log_url
        self._runner, self._stack = asyncio.Runner(), AsyncExitStack()
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._consumer = self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def count(self, state: str) -> int:
        """Return how often the task has come into a state until now."""
        self._runner.run(self._read())
        return self._counts[state]

    async def _open(self) -> Consumer:
        log = await self._stack.enter_async_context(Log.open(self._log_url))
        consumer = log.consumer(auto_offset_reset="earliest")
        await self._stack.enter_async_context(consumer)
        count = await consumer.partitions("connect-status")
        consumer.assign([TopicPartition("connect-status", number) for number in range(count)])
        return consumer

    async def _read(self) -> None:
        ends = await self._consumer.end_offsets([*self._consumer.assignment()])
        while any(self._consumer.positions().get(part, 0) < end for part, end in ends.items()):
            for records in (await self._consumer.poll(timeout_ms=100)).values():
                for record in records:
                    if record.key == b"status-task-in-0-0" and record.value:
                        self._counts[msgspec.json.decode(record.value, type=_State).state] += 1


def measure(connectors: int, idle_s: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log_url = stack.enter_context(broker(directory / "log"))
        service = Service(directory, log_url)
        stack.callback(service.stop_all)
        # The statuses of the first one name its address, so that they pass for no other's.
        first, *ports = free_ports(4)
        service.start(first)
        create(service, directory, connectors)
        service.until_running(connectors=connectors)
        service.stop_all()
        begun = monotonic()
        service.start(ports[0])
        service.until_running(connectors=connectors)
        figures["start_s"] = monotonic() - begun
        pid = service.workers[ports[0]].pid
        sleep(5)
        before = cpu_s(pid)
        sleep(idle_s)
        figures["cpu_percent"] = 100 * (cpu_s(pid) - before) / idle_s
        figures["resident_mib"] = resident_mib(pid)
        figures |= changes(service, log_url)
        for port in ports[1:]:
            service.start(port)
        _until_shared(service, ports)
        killed = service.workers.pop(ports[1])
        killed.kill()
        killed.wait()
        figures["kill_s"] = service.until_running(connectors=connectors)
    return figures


def _until_shared(service: Service, ports: list[int]) -> None:
    """Wait until each worker has about a third of the tasks."""
    deadline = monotonic() + PATIENCE_S
    while monotonic() < deadline:
        owners = [task.worker_id for task in service.tasks()]
        shares = [owners.count(f"127.0.0.1:{port}") for port in ports]
        if min(shares) >= len(owners) // len(ports):
            return
        sleep(0.2)
    raise TimeoutError("the workers do not share the tasks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--connectors", type=int, default=CONNECTORS, help="0: leave these rows out"
    )
    parser.add_argument("--tasks", type=int, default=TASKS, help="0: leave these rows out")
    parser.add_argument("--idle", type=float, default=IDLE_S, metavar="SECONDS")
    given = parser.parse_args()
    figures = measure(given.connectors, given.idle) if given.connectors else {}
    if given.tasks:
        figures |= measure_many(given.tasks)
    bars = {name: BARS[name.removeprefix("many_")] for name in figures}
    for name, value in figures.items():
        verdict = "ok" if value <= bars[name] else "MISSED"
        print(f"{name:<18} {value:8.2f}   at most {bars[name]:6.1f}   {verdict}")
    sys.exit(any(value > bars[name] for name, value in figures.items()))


if __name__ == "__main__":
    main()
