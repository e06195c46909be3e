"""Supervisor: processes of one kind on one machine, started, heard and ended together.

They are the workers of an app, or the brokers of a cluster that somebody tries out. Every process
is the same command once more (no fork: a process with threads and an event loop can't be), told by
an environment variable which slot it has. What one prints comes out here with its number in front.
One that was killed is replaced, see `slots`; one that fails ends all of them, with its exit code,
since the others would meet the same record. They end with the supervisor, however that ends: each
holds a pipe that tells it. Not done here: signals, exit codes and the embedded log, which outlives
the workers (`cli`).
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
"""How long workers may take to finish and commit; agents alone have 30 s."""
DRAIN_MS = 2_000
"""What a process has left in its pipes is printed for so long: its own children may hold them."""
CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 64 * 1024
"""A longer line comes out in pieces."""
LAST_WORDS = 20
"""Lines of a failed worker that are searched for its error."""

Write = Callable[[bytes], None]
"""Prints whole lines; called from threads, as a terminal may make it wait."""


def _none(_number: int) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process is started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    alive_fd: int
    """Read end of a pipe whose other end this process holds, and nobody else."""
    arguments: Callable[[int], Sequence[str]] = _none
    """What comes behind the command, by the number of the place."""
    noun: str = "worker"
    """What it is to people."""
    loss: str = "what it had not committed is done again next time"
    """What comes of killing it."""


class Supervisor:
    """Keeps so many processes running until it is told to stop."""

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
        """Keep them until `stop` is set; then let them end in order.

        Raises:
            WorkerFailed: one of them failed, or did not end in time.
        """
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(n + 1)) for n in range(self._count)]
                told = group.create_task(self._listen(stop))
                ending = group.create_task(self._end())
                await asyncio.wait(keepers)
                told.cancel()
                ending.cancel()
        finally:
            self.kill()
        if self._failure is not None:
            raise self._failure

    def kill(self) -> None:
        """End all processes at once; what they have not committed is done again."""
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.kill()

    async def _listen(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stop.set()

    async def _end(self) -> None:
        """Tell everybody to stop, and end who has not in time."""
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
        """One place, and who has it, until all stop."""
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
            if code > 0:
                self._fail(slot, code, words)
            elif not self._stop.is_set():
                delay_ms = vacancy.delay_ms(self._clock.now_ms() - since_ms)
                what = f"{self._launch.noun} {number}"
                logger.warning("%s %s: %s", what, _end_of(code), _replace(delay_ms))
                await self._pause(delay_ms)

    async def _pause(self, delay_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_ms / 1000):
                await self._stop.wait()

    def _fail(self, slot: Slot, code: int, words: Sequence[str]) -> None:
        """The first to fail ends them all."""
        if self._failure is None:
            why = next((f": {w}" for w in reversed(words) if w.startswith("error")), "")
            self._failure = WorkerFailed(
                f"{self._launch.noun} {slot.number} ended with code {code}{why}", exit_code=code
            )
            if not self._stop.is_set():
                what = f"{self._launch.noun} {slot.number}"
                logger.error("%s has failed: the others are stopped", what)
        self._stop.set()

    async def _work(self, slot: Slot) -> tuple[int, Sequence[str]]:
        """A process, from start to end; its exit code, and the last lines of its errors."""
        process = await asyncio.create_subprocess_exec(
            *self._launch.command,
            *self._launch.arguments(slot.number),
            env={**self._launch.environment, SLOT_VARIABLE: slot.encode()},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            pass_fds=(slot.alive_fd,),
            # Ctrl-C at the terminal is for the supervisor, which tells them itself.
            start_new_session=True,
        )
        self._running[slot.number] = process
        what = f"{self._launch.noun} {slot.number}"
        logger.info("%s runs as process %d", what, process.pid)
        words = deque[str](maxlen=LAST_WORDS)
        try:
            if self._stop.is_set():  # It was not there yet when the others were told.
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
    """Print what comes, by lines, with the worker's number in front of each."""
    mark, rest = f"{slot.number} | ".encode(), b""
    while stream is not None:
        chunk = await stream.read(CHUNK_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        if rest and (not chunk or len(rest) > LINE_BYTES_MAX):
            lines, rest = [*lines, rest], b""
        if words is not None:
            words.extend(line.decode(errors="replace") for line in lines)
        if lines:
            await asyncio.to_thread(write, b"".join(mark + line + b"\n" for line in lines))
        if not chunk:
            return


def _end_of(code: int) -> str:
    if code == 0:
        return "has stopped though nobody asked this supervisor"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _replace(delay_ms: int) -> str:
    after = f" in {delay_ms // 1000} s" if delay_ms else ""
    return f"another one takes its place{after}"
