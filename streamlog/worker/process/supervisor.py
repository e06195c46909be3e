"""Supervisor: runs several processes of one kind on one machine, and ends them together.

The processes are the workers of an app, or the brokers of a trial cluster. Each is started with the
supervisor's own command (not by fork, which is unsafe with threads and an event loop) and gets its
slot in an environment variable. Its output is printed with the slot's number in front.

Rules: a killed process is replaced (`slots`). A process that fails ends all processes with its exit
code, because the others would fail on the same record. The processes end with the supervisor even
if it is killed, as each watches a pipe that closes then. Not done here: signals, exit codes and the
embedded log, which outlives the workers (`cli`).
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from streamlog import repeated
from streamlog.clock import Clock, SystemClock
from streamlog.errors import WorkerFailed
from streamlog.worker.process.slots import SLOT_VARIABLE, Slot, Vacancy

logger = repeated.logger(__name__)

STOP_MS = 60_000
"""How long workers may take to finish and commit; agents alone may take 30 s."""
DRAIN_MS = 2_000
"""How long the pipes of an ended process are read. Its child processes may keep them open."""
CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 64 * 1024
"""A longer line is printed in pieces."""
LAST_WORDS = 20
"""The number of a failed worker's last lines that are searched for its error."""

Write = Callable[[bytes], None]
"""Prints whole lines. It is called on threads, as a terminal may block it."""


def _none(_number: int) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Launch:
    """The way to start a process."""

    command: Sequence[str]
    environment: Mapping[str, str]
    alive_fd: int
    """The read end of a pipe whose write end only this process holds."""
    arguments: Callable[[int], Sequence[str]] = _none
    """Returns further arguments of the command for a slot's number."""
    noun: str = "worker"
    """The name of such a process in messages."""
    loss: str = "records since its last commit are processed again at the next start"
    """The consequence of killing it, for messages."""


class Supervisor:
    """Keeps a number of processes running until it is stopped."""

    def __init__(
        self,
        launch: Launch,
        *,
        processes: int,
        out: Write,
        err: Write,
        clock: Clock | None = None,
    ) -> None:
        self._launch = launch
        self._count = processes
        self._out = out
        self._err = err
        self._clock = clock or SystemClock()
        self._name = uuid4().hex
        self._running: dict[int, Process] = {}
        self._stop = asyncio.Event()
        self._failure: WorkerFailed | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the processes running until `stop` is set; then let them end in order.

        Raises:
            WorkerFailed: a process failed, or did not end within `STOP_MS`.
        """
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(n + 1)) for n in range(self._count)]
                listening = group.create_task(self._listen(stop))
                ending = group.create_task(self._end())
                await asyncio.wait(keepers)
                listening.cancel()
                ending.cancel()
        finally:
            self.kill()
        if self._failure is not None:
            raise self._failure

    def kill(self) -> None:
        """Kill all processes; workers process records since the last commit again."""
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.kill()

    async def _listen(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stop.set()

    async def _end(self) -> None:
        """Send SIGTERM to all processes, and kill those that do not end in time."""
        await self._stop.wait()
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        await asyncio.sleep(STOP_MS / 1000)
        late = ", ".join(str(number) for number in sorted(self._running))
        self._failure = self._failure or WorkerFailed(
            f"{self._launch.noun} {late} did not stop within {STOP_MS // 1000} s and was killed:"
            f" {self._launch.loss}"
        )
        self.kill()

    async def _keep(self, number: int) -> None:
        """Keep a process running in one slot until all stop."""
        vacancy, is_first = Vacancy(), True
        while not self._stop.is_set():
            slot = Slot(
                number=number,
                of=self._count,
                supervisor=self._name,
                is_first=is_first,
                alive_fd=self._launch.alive_fd,
            )
            since_ms, is_first = self._clock.now_ms(), False
            code, words = await self._work(slot)
            # A code above 0 is an error of its own; below 0 it is a signal that has killed the
            # process, and 0 an end without a request.
            if code > 0:
                self._fail(slot, code, words)
            elif not self._stop.is_set():
                delay_ms = vacancy.delay_ms(self._clock.now_ms() - since_ms)
                name = f"{self._launch.noun} {number}"
                logger.warning("%s %s: %s", name, _describe_end(code), _describe_delay(delay_ms))
                await self._pause(delay_ms)

    async def _pause(self, delay_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_ms / 1000):
                await self._stop.wait()

    def _fail(self, slot: Slot, code: int, words: Sequence[str]) -> None:
        """Stop all processes after the first one that failed; its error is the supervisor's."""
        if self._failure is None:
            reason = next((f": {w}" for w in reversed(words) if w.startswith("error")), "")
            self._failure = WorkerFailed(
                f"{self._launch.noun} {slot.number} ended with code {code}{reason}", exit_code=code
            )
            if not self._stop.is_set():
                name = f"{self._launch.noun} {slot.number}"
                logger.error("%s has failed: stopping the others", name)
        self._stop.set()

    async def _work(self, slot: Slot) -> tuple[int, Sequence[str]]:
        """Run a process to its end; returns its exit code and the last lines of its errors."""
        process = await asyncio.create_subprocess_exec(
            *self._launch.command,
            *self._launch.arguments(slot.number),
            env={**self._launch.environment, SLOT_VARIABLE: slot.encode()},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            # The pipe closes when the supervisor ends, however it ends; the process watches it.
            pass_fds=(slot.alive_fd,),
            # Ctrl-C at the terminal goes to the supervisor only, which signals the processes.
            start_new_session=True,
        )
        self._running[slot.number] = process
        name = f"{self._launch.noun} {slot.number}"
        logger.info("%s runs as process %d", name, process.pid)
        words = deque[str](maxlen=LAST_WORDS)
        try:
            if self._stop.is_set():  # It was started after `_end` had signalled the others.
                process.send_signal(signal.SIGTERM)
            async with asyncio.TaskGroup() as group:
                pumps = [
                    group.create_task(_forward(slot, process.stdout, self._out)),
                    group.create_task(_forward(slot, process.stderr, self._err, words)),
                ]
                code = await process.wait()
                _, stuck = await asyncio.wait(pumps, timeout=DRAIN_MS / 1000)
                for pump in stuck:
                    pump.cancel()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            self._running.pop(slot.number, None)
        return code, words


async def _forward(
    slot: Slot,
    stream: asyncio.StreamReader | None,
    write: Write,
    words: deque[str] | None = None,
) -> None:
    """Print the lines of a stream with the slot's number in front."""
    mark, rest = f"{slot.number} | ".encode(), b""
    while stream is not None:
        chunk = await stream.read(CHUNK_BYTES)
        # The last part has no line end yet: it waits for the next chunk.
        *lines, rest = (rest + chunk).split(b"\n")
        if rest and (not chunk or len(rest) > LINE_BYTES_MAX):
            lines, rest = [*lines, rest], b""
        if words is not None:
            words.extend(line.decode(errors="replace") for line in lines)
        if lines:
            await asyncio.to_thread(write, b"".join(mark + line + b"\n" for line in lines))
        if not chunk:
            return


def _describe_end(code: int) -> str:
    if code == 0:
        return "ended without a request to stop"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _describe_delay(delay_ms: int) -> str:
    after = f" in {delay_ms // 1000} s" if delay_ms else ""
    return f"it is replaced{after}"
