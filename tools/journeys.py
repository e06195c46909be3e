"""The generated parts of `docs/architecture.md`: its picture of the rooms, and five journeys.

A journey is the list of modules that one event calls, in the order of their first call: a Produce
request in the broker; a record from the poll to its sink; a commit; a rebalance; a backfill. Each
is run several times in a process of its own, and the journey is what all runs have in common, so a
timer that fires meanwhile does not count. Compiled modules are read as Python for this.

The picture shows the layers of the import contracts in `pyproject.toml`. In both parts, a module or
package has the first sentence of its docstring. `make architecture` writes them into the page, and
`tests/docs/test_architecture.py` makes them again. `tools/shape.py` counts the modules of Produce.

Not here: the order of calls within a module, and how long they take.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import functools
import json
import re
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlog.app import App
    from streamlog.worker.worker import Worker

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture.md"
PACKAGE = f"{ROOT / 'streamlog'}/"
MARKERS = "<!-- {} by `make architecture` -->\n", "<!-- end of {} -->\n"
CONTAINERS = ("streamlog", "streamlog.broker", "streamlog.worker")
RUNS = 4
DEADLINE_S = 60
PRODUCER = """
import asyncio, sys
from streamlog.log import Log
async def main():
    async with Log.open(sys.argv[1]) as log, log.producer(linger_ms=0) as producer:
        while sys.stdin.readline():
            await (await producer.send("walk", b"1", key=b"a key"))
            print("sent", flush=True)
asyncio.run(main())
"""
BROKER = """
import asyncio, sys
from streamlog.client.admin import NewTopic
from streamlog.log import Log
async def main():
    async with Log.open(f"embedded:{sys.argv[1]}") as log:
        async with log.admin() as admin:
            await admin.create_topics([NewTopic("walk", 2), NewTopic("counts", 2)])
        print(*log.address, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""
LINKED = re.compile(r"^\d+\. \[`[^`]+`\]\(\.\./([^)]+)\)", re.MULTILINE)
"""An entry of a journey on the page; its group is the file."""

Window = list[str]
"""Files of the package, each once, in the order of their first call."""


class Trace:
    """Notes which files of the package are called, while a window is open."""

    def __init__(self) -> None:
        self._open: list[dict[str, None]] = []
        self._closed: dict[str, list[dict[str, None]]] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; the interpreter calls this at every event, in every thread."""
        if event == "call" and self._open and frame.f_code.co_filename.startswith(PACKAGE):
            self._open[-1][frame.f_code.co_filename] = None

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Note calls under this name; a window inside another takes its calls from it."""
        files: dict[str, None] = {}
        self._open.append(files)
        try:
            yield
        finally:
            self._open[:] = [each for each in self._open if each is not files]
            self._closed.setdefault(name, []).append(files)

    def take(self, name: str) -> Window:
        """Return the longest window of this name that is closed, and forget all."""
        closed, self._closed = self._closed.get(name, []), {}
        files = max(closed, key=len, default={})
        return [Path(each).relative_to(ROOT).as_posix() for each in files]


@asynccontextmanager
async def _child(code: str, argument: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, argument),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        yield child
    finally:
        if child.stdin is not None:
            child.stdin.close()
        await child.wait()


async def _line(child: asyncio.subprocess.Process) -> str:
    if child.stdout is None:
        raise RuntimeError("the child was started without a pipe")
    line = await asyncio.wait_for(child.stdout.readline(), DEADLINE_S)
    if not line:
        raise RuntimeError("the child has ended too soon: see its traceback above")
    return line.decode().strip()


async def _send(producer: asyncio.subprocess.Process) -> None:
    if producer.stdin is None:
        raise RuntimeError("the producer was started without a pipe")
    producer.stdin.write(b"\n")
    await _line(producer)


async def trace_produce(trace: Trace, directory: Path) -> list[Window]:
    """Serve Produce requests of another process."""
    from streamlog.client.admin import NewTopic  # noqa: PLC0415 - after the hook that reads sources
    from streamlog.log import Log  # noqa: PLC0415

    windows = []
    async with Log.open(f"embedded:{directory}") as log:
        async with log.admin() as admin:
            await admin.create_topics([NewTopic("walk", 1)])
        if log.address is None:
            raise RuntimeError("the embedded log has no address")
        host, port = log.address
        async with _child(PRODUCER, f"kafka://{host}:{port}") as producer:
            for _ in range(1 + RUNS):
                await asyncio.sleep(0.2)  # What the last record left behind comes to its end.
                with trace.window("produce"):
                    await _send(producer)
                windows.append(trace.take("produce"))
    return windows[1:]


def _app(url: str, directory: Path) -> App:
    from streamlog import App, Emit, Windowed, tumbling  # noqa: PLC0415

    app = App("walker", log=url, commit_interval="200ms", state_dir=str(directory / "state"))
    records = app.topic("walk", key=str, value=str, partitions=2)
    counts = app.topic("counts", key=Windowed[str], value=int, partitions=2)
    seen = app.stream(records).filter(lambda _, value: value != "").group_by_key()
    seen.windowed(tumbling("1m")).emit(Emit.UPDATE).count(name="seen").changes().to(counts)
    return app


def _wrap(trace: Trace, owner: type, method: str, window: str) -> None:
    """Open a window for as long as a coroutine method runs."""
    original: Callable[..., Awaitable[Any]] = getattr(owner, method)

    @functools.wraps(original)
    async def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with trace.window(window):
            return await original(*args, **kwargs)

    setattr(owner, method, run)


@asynccontextmanager
async def _broker(directory: Path) -> AsyncIterator[str]:
    async with _child(BROKER, str(directory / "log")) as broker:
        host, port = (await _line(broker)).split()
        yield f"kafka://{host}:{port}"


@asynccontextmanager
async def _worker(url: str, directory: Path) -> AsyncIterator[Worker]:
    from streamlog.worker.worker import Worker  # noqa: PLC0415

    stop = asyncio.Event()
    worker = Worker(_app(url, directory).program(), log_url=url, announce=lambda _: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run(stop))
        try:
            yield worker
        finally:
            stop.set()


async def _trace_rounds(trace: Trace, directory: Path, window: str) -> list[Window]:
    """Process records one by one in a worker of this process; its broker runs in another."""
    from streamlog.log import Log  # noqa: PLC0415
    from streamlog.record import TopicPartition  # noqa: PLC0415
    from streamlog.worker import worker  # noqa: PLC0415

    _wrap(trace, worker._WorkerLoop, "_round", "record")  # noqa: SLF001 - its steps are traced
    _wrap(trace, worker._WorkerLoop, "_commit", "commit")  # noqa: SLF001
    windows = []
    async with _broker(directory) as url, _worker(url, directory), Log.open(url) as log:
        reader = log.consumer(isolation_level="read_committed", auto_offset_reset="earliest")
        async with reader as consumer, _child(PRODUCER, url) as producer:
            consumer.assign([TopicPartition("counts", each) for each in range(2)])
            for _ in range(2 + RUNS):
                await _send(producer)
                async with asyncio.timeout(DEADLINE_S):
                    while not await consumer.poll(timeout_ms=100):
                        pass
                await asyncio.sleep(0.3)  # The commit that let the record out comes to its end.
                windows.append(trace.take(window))
    return windows[2:]


async def trace_record(trace: Trace, directory: Path) -> list[Window]:
    """Process records, without the commits."""
    return await _trace_rounds(trace, directory, "record")


async def trace_commit(trace: Trace, directory: Path) -> list[Window]:
    """Commit exactly once what was processed."""
    return await _trace_rounds(trace, directory, "commit")


async def trace_rebalance(trace: Trace, directory: Path) -> list[Window]:
    """Let a second worker join and leave the group of a first one."""
    windows = []
    async with _broker(directory) as url, _worker(url, directory) as first:
        shares = functools.partial(_workers_with_tasks, first)
        one, both = 1, 2
        await _until(lambda: shares() == one)
        for run in range(RUNS):
            with trace.window("rebalance"):
                async with _worker(url, directory / str(run)):
                    await _until(lambda: shares() == both)
                await _until(lambda: shares() == one)
            windows.append(trace.take("rebalance"))
    return windows


def _workers_with_tasks(worker: Worker) -> int:
    return sum(bool(peer.active) for peer in worker.exchange.peers.all)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - a worker's view has no event
            await asyncio.sleep(0.05)


async def trace_backfill(trace: Trace, directory: Path) -> list[Window]:
    """Run the history of an app, from its plan to the snapshot."""
    windows = []
    async with _broker(directory) as url, _child(PRODUCER, url) as producer:
        for _ in range(10):
            await _send(producer)
        app = _app(url, directory)
        for run in range(RUNS):
            job = app.backfill(directory=str(directory / f"snapshots{run}"), progress=False)
            with trace.window("backfill"):
                await asyncio.to_thread(job.run)
            windows.append(trace.take("backfill"))
    return windows


@dataclass(frozen=True)
class Journey:
    """One journey: how it is traced, and the rooms whose modules it shows."""

    title: str
    trace: Callable[[Trace, Path], Awaitable[list[Window]]]
    rooms: tuple[str, ...] = ("",)


JOURNEYS = {
    "produce": Journey("A Produce request in the broker", trace_produce),
    "record": Journey(
        "A record from the poll to its sink",
        trace_record,
        ("worker/", "processing/", "client/consumer", "tables/", "windows/", "serdes/"),
    ),
    "commit": Journey(
        "A commit, exactly once",
        trace_commit,
        ("worker/", "processing/", "client/producer", "client/trans", "client/group", "tables/"),
    ),
    "rebalance": Journey(
        "A rebalance: a second worker joins, and leaves",
        trace_rebalance,
        ("worker/", "client/group", "assignors.py", "tables/local_disk", "processing/task"),
    ),
    "backfill": Journey(
        "A backfill: from the plan to the snapshot",
        trace_backfill,
        ("history/", "snapshots/", "processing/task", "stored_log.py", "processing/inputs"),
    ),
}


def common(windows: list[Window], rooms: tuple[str, ...]) -> Window:
    """Return the files that all runs have called, in the order of the first run."""
    shared = set[str].intersection(*map(set, windows))
    starts = tuple(f"streamlog/{room}" for room in rooms)
    return [file for file in windows[0] if file in shared and file.startswith(starts)]


def read_sources(path: str) -> FileFinder:
    """Find modules of the package as source files alone."""
    if not f"{path}/".startswith(PACKAGE):
        raise ImportError
    return FileFinder(path, (SourceFileLoader, [".py"]))


def trace_here(name: str) -> Window:
    """Trace a journey in this process, whose modules of the package are not imported yet."""
    sys.path_hooks.insert(0, read_sources)
    sys.path_importer_cache.clear()
    trace, journey = Trace(), JOURNEYS[name]
    threading.setprofile(trace)
    sys.setprofile(trace)
    with tempfile.TemporaryDirectory() as directory:
        windows: list[Window] = asyncio.run(journey.trace(trace, Path(directory)))  # type: ignore[arg-type]
    sys.setprofile(None)
    return common(windows, journey.rooms)


def trace_apart(name: str) -> Window:
    """Trace a journey in a process of its own; returns its files."""
    command = [sys.executable, "-m", "tools.journeys", name]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    files: Window = json.loads(done.stdout)
    return files


def summary(file: str) -> str:
    """Return the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def layers_of(container: str) -> list[list[str]]:
    """Return the layers of a package by its import contract, top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract.get("containers") == [container]:
            return [layer.split(" | ") for layer in contract["layers"]]
    raise ValueError(f"no contract in pyproject.toml has the layers of {container}")


def rooms() -> str:
    """Return the picture of the rooms: a row for each module or package, a rule between layers."""
    lines = []
    for container in CONTAINERS:
        folder = container.replace(".", "/")
        names = [name for layer in layers_of(container) for name in layer]
        width = max(map(len, names)) + 1
        lines.append(f"{folder}/")
        for layer in layers_of(container):
            lines.append("  " + "─" * (width + 75))
            for name in layer:
                path = f"{folder}/{name}/__init__.py"
                is_package = (ROOT / path).exists()
                text = summary(path if is_package else f"{folder}/{name}.py")
                lines.append(f"  {name + '/' * is_package:{width}} {text}")
        lines.append("")
    return "```\n" + "\n".join(lines) + "```\n"


def journeys(page: str) -> str:
    """Return the five journeys as lists, traced now; one that the page has stays as it is there."""
    found = []
    for name in JOURNEYS:
        shown, traced = shown_on(page, name), trace_apart(name)
        # Coroutines take turns: another trace has another order, and a few modules more or less.
        is_kept = is_alike(shown, traced) and all((ROOT / file).exists() for file in shown)
        found.append(as_markdown(name, shown if is_kept else traced))
    return "\n".join(found)


def shown_on(page: str, name: str) -> Window:
    """Return the files of a journey on the page; none if the page lacks the journey."""
    part = part_of(page, "journeys")
    _, _, listed = part.partition(f"### {JOURNEYS[name].title}\n")
    return LINKED.findall(listed.partition("### ")[0])


def is_alike(shown: Window, traced: Window) -> bool:
    """Return whether two traces differ by no more than timing explains."""
    return max(len({*shown} - {*traced}), len({*traced} - {*shown})) <= len(shown) // 10


def part_of(page: str, part: str) -> str:
    """Return a generated part of the page."""
    begin, end = (marker.format(part) for marker in MARKERS)
    return page.partition(begin)[2].partition(end)[0].strip("\n") + "\n"


def replace_part(page: str, part: str, text: str) -> str:
    """Return the page with another text in a generated part.

    Raises:
        ValueError: the page has no such part.
    """
    begin, end = (marker.format(part) for marker in MARKERS)
    if begin not in page or end not in page:
        raise ValueError(f"{PAGE.name} lacks {begin.strip()} or {end.strip()}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def as_markdown(name: str, files: Window) -> str:
    """Return a journey as a numbered list, each module with a link."""
    lines = [f"### {JOURNEYS[name].title}\n"]
    for number, file in enumerate(files, 1):
        module = file.removeprefix("streamlog/").removesuffix(".py").removesuffix("/__init__")
        lines.append(f"{number}. [`{module}`](../{file}): {summary(file)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print one journey as JSON, or all as Markdown, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=JOURNEYS, help="print its files as JSON")
    parser.add_argument("--write", action="store_true", help=f"write all parts into {PAGE.name}")
    arguments = parser.parse_args()
    if arguments.name is not None:
        print(json.dumps(trace_here(arguments.name)))
        return 0
    page = PAGE.read_text()
    parts = {"rooms": rooms(), "journeys": journeys(page)}
    if not arguments.write:
        print(*parts.values(), sep="\n")
        return 0
    for part, text in parts.items():
        page = replace_part(page, part, text)
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
