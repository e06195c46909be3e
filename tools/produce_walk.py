"""The modules that one Produce request walks through in the broker, traced while it is served.

An embedded log runs in this process and a producer in another. Each record is a window, in which
every call of the package is noted; the walk is what all windows have in common, so timers that
happen to fetch the processor meanwhile don't count. Compiled modules are read as Python for this.

Not here: the client's part, and the life of the records after the response.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parent.parent
PACKAGE = f"{ROOT / 'streamlog'}/"
RECORDS = 5
PRODUCER = """
import asyncio, sys
from streamlog.log import Log
async def main():
    async with Log.open(sys.argv[1]) as log, log.producer(linger_ms=0) as producer:
        while sys.stdin.readline():
            await (await producer.send("walk", b"a value"))
            print("sent", flush=True)
asyncio.run(main())
"""


def _read_sources(path: str) -> FileFinder:
    """Find modules of the package as source files alone."""
    if not f"{path}/".startswith(PACKAGE):
        raise ImportError
    return FileFinder(path, (SourceFileLoader, [".py"]))


class Trace:
    """The files of the package whose functions are called."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; the interpreter calls this at every event."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.files.add(frame.f_code.co_filename)

    def take(self) -> set[str]:
        """Return what was noted, and forget it."""
        files, self.files = self.files, set()
        return files


async def _run_producer(url: str, take: Callable[[], set[str]]) -> list[set[str]]:
    """Send records from another process; return the files noted during each."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PRODUCER, url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    windows = []
    for _ in range(1 + RECORDS):
        await asyncio.sleep(0.2)  # What the record before has left behind comes to its end.
        take()
        child.stdin.write(b"\n")
        if not await child.stdout.readline():
            raise RuntimeError("the producer has ended without sending: see its traceback above")
        windows.append(take())
    child.stdin.close()
    await child.wait()
    return windows[1:]


async def trace_produce(directory: str, trace: Trace) -> list[str]:
    """Serve Produce requests of another process; return the modules that all of them walk."""
    from streamlog.client.admin import NewTopic  # noqa: PLC0415
    from streamlog.log import Log  # noqa: PLC0415 - after the hook that reads sources

    async with Log.open(f"embedded:{directory}") as log:
        async with log.admin() as admin:
            await admin.create_topics([NewTopic("walk", 1)])
        assert log.address is not None
        host, port = log.address
        windows = await _run_producer(f"kafka://{host}:{port}", trace.take)
    walk = set.intersection(*windows)
    return sorted(Path(each).relative_to(ROOT).as_posix() for each in walk)


def main() -> int:
    """Print the files of the walk, one a line."""
    sys.path_hooks.insert(0, _read_sources)
    sys.path_importer_cache.clear()
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    with tempfile.TemporaryDirectory() as directory:
        print(*asyncio.run(trace_produce(directory, trace)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
