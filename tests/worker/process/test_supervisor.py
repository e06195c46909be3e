"""The supervisor, with processes that need no log."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from streamlog.errors import WorkerFailed
from streamlog.worker.process import supervisor as module
from streamlog.worker.process.supervisor import Launch, Supervisor

DEADLINE_S = 60
PRELUDE = """
import json, os, signal, sys, time
slot = json.loads(os.environ["STREAMLOG_WORKER_SLOT"])
def say(text): print(text, flush=True)
def until_told():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    say(f"here as {os.getpid()}, first: {slot['is_first']}")
    while True: time.sleep(60)
"""


class Output:
    """Collects the output, by whole lines."""

    def __init__(self) -> None:
        self.text = b""
        self._changed = threading.Condition()

    def write(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        with self._changed:
            self.text += data
            self._changed.notify_all()

    async def line(self, pattern: str, *, count: int = 1) -> re.Match[str]:
        """Wait for the `count`-th line that matches."""
        return await asyncio.to_thread(self._line, pattern, count)

    def _line(self, pattern: str, count: int) -> re.Match[str]:
        def found() -> list[re.Match[str]]:
            return list(re.finditer(pattern, self.text.decode(), re.MULTILINE))

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, DEADLINE_S), self.text
            return found()[count - 1]


@contextmanager
def pipe() -> Iterator[int]:
    ours, theirs = os.pipe()
    try:
        yield ours
    finally:
        os.close(ours)
        os.close(theirs)


def supervised(
    script: str, story: Callable[[asyncio.Event], Awaitable[None]], out: Output, count: int = 2
) -> None:
    """Run two processes with the script while the story runs."""

    async def main(alive_fd: int) -> None:
        launch = Launch([sys.executable, "-S", "-c", PRELUDE + script], {**os.environ}, alive_fd)
        supervisor = Supervisor(launch, processes=count, out=out.write, err=out.write)
        stop = asyncio.Event()
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            telling = group.create_task(_told(story, stop))
            try:
                await supervisor.run(stop)
            finally:
                telling.cancel()

    with pipe() as alive_fd:
        asyncio.run(main(alive_fd))


async def _told(story: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event) -> None:
    await story(stop)


async def watch(_: asyncio.Event) -> None:
    """Do nothing until cancelled."""
    await asyncio.Event().wait()


def failure(
    script: str, out: Output, story: Callable[[asyncio.Event], Awaitable[None]] = watch
) -> WorkerFailed:
    with pytest.raises(BaseExceptionGroup) as raised:
        supervised(script, story, out)
    (error,) = raised.value.exceptions
    assert isinstance(error, WorkerFailed)
    return error


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_output_lines_are_numbered_and_processes_stop_together() -> None:
    out = Output()

    async def story(stop: asyncio.Event) -> None:
        for number in (1, 2):
            await out.line(rf"^{number} \| .*here as")
        stop.set()

    supervised(
        "sys.stdout.write('no newline'); sys.stderr.write('oh\\n')\nuntil_told()", story, out
    )
    assert min(out.text.decode().splitlines()).startswith("1 | ")
    assert out.text.count(b" | oh\n") == 2


def test_a_killed_process_is_replaced_in_its_slot() -> None:
    out = Output()

    async def story(stop: asyncio.Event) -> None:
        await out.line(r"^1 \| here as \d+, first: True")
        killed = await out.line(r"^2 \| here as (\d+), first: True")
        os.kill(int(killed[1]), signal.SIGKILL)
        await out.line(r"^2 \| here as (\d+), first: False")
        stop.set()

    supervised("until_told()", story, out)
    assert out.text.count(b"1 | here") == 1


def test_a_failing_process_stops_all_with_its_exit_code_and_message() -> None:
    out = Output()
    script = """
if slot["number"] == 2:
    print("error: value 7 is bad\\nmore of it", file=sys.stderr)
    sys.exit(7)
until_told()
"""
    failed = failure(script, out)
    assert failed.exit_code == 7
    assert str(failed) == "worker 2 ended with code 7: error: value 7 is bad"
    for found in re.findall(rb"here as (\d+)", out.text):
        assert not is_alive(int(found))


def test_a_process_that_ignores_the_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_MS", 200)
    out = Output()
    script = """
if slot["number"] == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(f"deaf as {os.getpid()}")
    while True: time.sleep(60)
until_told()
"""

    async def story(stop: asyncio.Event) -> None:
        await out.line(r"^1 \| deaf")
        await out.line(r"^2 \| here")
        stop.set()

    late = failure(script, out, story)
    assert re.match(r"worker 1 did not stop within .* and was killed", str(late))
    assert late.exit_code == 1
    assert not is_alive(int((re.findall(rb"deaf as (\d+)", out.text))[0]))


def test_a_cancelled_supervisor_leaves_no_process() -> None:
    out = Output()

    class Enough(Exception):
        pass

    async def story(_: asyncio.Event) -> None:
        await out.line(r"here as", count=2)
        raise Enough

    with pytest.raises(BaseExceptionGroup) as raised:
        supervised("until_told()", story, out)
    assert raised.group_contains(Enough)
    pids = re.findall(rb"here as (\d+)", out.text)
    assert len(pids) == 2
    assert not any(is_alive(int(pid)) for pid in pids)


def test_a_long_line_is_forwarded_in_pieces() -> None:
    out = Output()

    async def story(stop: asyncio.Event) -> None:
        await out.line(r"^1 \| end$")
        stop.set()

    supervised(
        "say('x' * 300_000); sys.stdout.write('end'); sys.stdout.flush(); os.close(1)\n"
        "signal.pause()",
        story,
        out,
        1,
    )
    lines = out.text.decode().splitlines()
    assert sum(line.count("x") for line in lines) == 300_000
    assert max(map(len, lines)) < 300_000
