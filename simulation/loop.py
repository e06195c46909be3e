"""SimulatedLoop: an asyncio event loop without threads, sockets and wall clock.

Rule of the file: what happens is a function of the seed. Time is a number that jumps to the next
timer where nobody has anything to do, and goes on a little with every turn and every look at a
clock, so that whoever works for some milliseconds comes to an end of it. Sets of tasks and futures
are in the order in which these were made, not in that of their addresses; what the system would
give as chance (`os.urandom`) is drawn from the seed (`entropy`).
The parts of asyncio that stand on a loop (streams, timeouts, groups of tasks) run unchanged.
"""

# mypy: disable-error-code="override,attr-defined"
# It stands in for what asyncio has inside.
from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import heapq
import os
import random
import sys
import warnings
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from unittest.mock import patch

from simulation.process import CURRENT, Process, ProcessEnded

if TYPE_CHECKING:
    from simulation.network import Network

TURN_NS = 5_000
"""What a turn of the loop costs, and a look at a clock."""
TOLD_MAX = 200
"""Of what has happened, the last lines are kept to be read."""
CLOSES_MAX = 20
BUSY_TURNS_MAX = 2_000_000
"""So many turns without a timer: somebody spins."""
T = TypeVar("T")


class SimulatedTask(asyncio.Task[T]):
    """A task that knows when it was made: the place of one in a set does not hang on memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedFuture(asyncio.Future[T]):
    """The same for a future, which knows whose it is as well."""

    number = 0
    process: Process | None = None

    def __hash__(self) -> int:
        return self.number


def _run_for(process: Process | None, run: Callable[[], None], handle: asyncio.Handle) -> None:
    """Give a turn, if its process is there to take it."""
    if process is None:
        run()
    elif not process.alive:
        return
    elif process.paused:
        process.waiting.append(handle)
    else:
        run()


class _Handle(events.Handle):
    __slots__ = ("process",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimulatedLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(callback, args, loop, context)
        self.process = _process_of(context)

    def _run(self) -> None:
        _run_for(self.process, super()._run, self)


class _TimerHandle(events.TimerHandle):
    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimulatedLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.process = _process_of(context)

    def _run(self) -> None:
        _run_for(self.process, super()._run, self)


def _process_of(context: contextvars.Context | None) -> Process | None:
    return CURRENT.get() if context is None else context.get(CURRENT)


class _Selector:
    """Stands where the loop would wait for sockets: time passes at once."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise RuntimeError("nobody has anything to do any more, and there is no timer")
        self._loop.pass_time(round(timeout * 1e9))
        return []

    def close(self) -> None:
        """Nothing is open."""


class SimulatedLoop(base_events.BaseEventLoop):
    """The loop of one life.

    `chance` is where everything in the life draws from; `network` is set by who makes one.
    """

    network: Network

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.chance = random.Random(seed)
        self.entropy = random.Random(self.chance.random())
        """Apart from `chance`: how much programs draw does not change what happens to them."""
        self.turns = 0
        self.story: deque[str] = deque(maxlen=TOLD_MAX)
        self.errors: list[str] = []
        """What programs have left unhandled."""
        self._now_ns = 0
        self._numbers = 0
        self._busy = 0
        self._digest = hashlib.sha256()
        self._selector = _Selector(self)
        self._clock_resolution = 1e-9
        self.set_task_factory(_task)
        self.set_exception_handler(_on_error)

    # ---- time ----

    def time(self) -> float:
        """Seconds since the life began."""
        return self._now_ns / 1e9

    def now_ms(self) -> int:
        """Milliseconds since the life began, for who looks at a clock: that takes a moment."""
        self._now_ns += TURN_NS
        return self._now_ns // 1_000_000

    def pass_time(self, by_ns: int) -> None:
        """A turn is over, or nobody has anything to do for so long."""
        self.turns += 1
        self._busy = self._busy + 1 if by_ns <= 0 else 0
        if self._busy > BUSY_TURNS_MAX:
            raise RuntimeError("somebody keeps the loop busy and waits for nothing")
        self._now_ns += max(by_ns, 0) + TURN_NS

    # ---- what happens ----

    def tell(self, *what: object) -> None:
        """Something that is part of what this life is known by."""
        line = f"{self._now_ns / 1e6:.3f} {' '.join(map(str, what))}"
        self._digest.update(line.encode())
        self.story.append(line)

    def trace(self) -> str:
        """A digest of all that was told."""
        return self._digest.hexdigest()

    # ---- asyncio ----

    def next_number(self) -> int:
        """For who has to have one of the same order in every run."""
        self._numbers += 1
        return self._numbers

    def create_future(self) -> asyncio.Future[Any]:
        """See `SimulatedFuture`."""
        future: SimulatedFuture[Any] = SimulatedFuture(loop=self)
        future.number = self.next_number()
        future.process = CURRENT.get()
        return future

    def give_turns(self, handles: list[asyncio.Handle]) -> None:
        """After what is ready already."""
        self._ready.extend(handles)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        self._check_closed()
        timer = _TimerHandle(when, callback, args, self, context)
        self._schedule(timer)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """See asyncio; without an executor, one of the simulation's."""
        from simulation.threads import SimulatedThread  # noqa: PLC0415 - they know each other

        if executor is None:
            executor = SimulatedThread(self)
        elif not isinstance(executor, SimulatedThread):
            raise TypeError(f"{executor} is no thread of the simulation: it came in past `threads`")
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Names are addresses."""
        return [(2, 1, 6, "", (host, port))]

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Listen in the simulated network."""
        return self.network.listen(protocol_factory, int(port))

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Connect in the simulated network."""
        return await self.network.connect(protocol_factory, str(host), int(port))

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        """For the second socket of a connection (`network.SecondSocket`)."""
        fd.on_writable = (callback, args, contextvars.copy_context())

    def remove_writer(self, fd: Any) -> bool:
        """The same."""
        was, fd.on_writable = fd.on_writable, None
        return was is not None

    def _call_soon(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""

    def _schedule(self, timer: asyncio.TimerHandle) -> None:
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True


def _task(
    loop: asyncio.AbstractEventLoop,
    program: Coroutine[Any, Any, T] | Generator[Any, None, T],
    *,
    context: contextvars.Context | None = None,
) -> SimulatedTask[T]:
    task: SimulatedTask[T] = SimulatedTask(program, loop=loop, context=context)
    if isinstance(loop, SimulatedLoop):
        task.number = loop.next_number()
    return task


def _on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Somebody has left an error unhandled: a fault, unless it is of a process that was killed."""
    error, of = context.get("exception"), context.get("handle") or context.get("future")
    process = getattr(of, "process", None)
    ended = process is not None and not process.alive
    if isinstance(loop, SimulatedLoop) and not ended and not isinstance(error, ProcessEnded):
        loop.errors.append(f"{context['message']}: {error!r}")


@contextmanager
def _entropy_of(loop: SimulatedLoop) -> Iterator[None]:
    """What the system would give as chance comes of the seed; garbage is collected at the end."""
    state = random.getstate()
    random.seed(loop.entropy.random())
    gc_was_on = gc.isenabled()
    gc.disable()  # Finalizers would run at places that hang on what else is in memory.
    try:
        with (
            patch.object(os, "urandom", loop.entropy.randbytes),
            patch.object(random, "_urandom", loop.entropy.randbytes),
        ):
            yield
    finally:
        random.setstate(state)
        if gc_was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Lived(Generic[T]):
    """What is left of a life."""

    result: T
    seconds: float
    turns: int
    trace: str
    """A digest of all that has happened."""
    story: tuple[str, ...]
    """The last of it, to be read."""
    errors: tuple[str, ...]
    """What programs have left unhandled."""


def live(
    story: Callable[[SimulatedLoop], Coroutine[Any, Any, T]], seed: int, *, until_s: float = 3600.0
) -> Lived[T]:
    """One life: run a story to its end, at most for so many of its seconds.

    Raises:
        TimeoutError: it has come to no end.
    """
    with _unheard():
        return _lived(story, seed, until_s)


def _lived(
    story: Callable[[SimulatedLoop], Coroutine[Any, Any, T]], seed: int, until_s: float
) -> Lived[T]:
    loop = SimulatedLoop(seed)
    with _entropy_of(loop):
        try:
            result = loop.run_until_complete(asyncio.wait_for(story(loop), until_s))
            return Lived(
                result,
                loop.time(),
                loop.turns,
                loop.trace(),
                tuple(loop.story),
                tuple(loop.errors),
            )
        finally:
            _delete_group(loop)


def _delete_group(loop: SimulatedLoop) -> None:
    """What is left of the programs goes."""
    loop.set_exception_handler(lambda _, __: None)
    for task in sorted(asyncio.all_tasks(loop), key=hash):
        task._log_destroy_pending = False
        for _ in range(CLOSES_MAX):
            # Who waits for something while it is being closed has to be told again.
            with suppress(BaseException):
                task.get_coro().close()
                break
    loop._ready.clear()
    loop._scheduled.clear()
    loop.close()


@contextmanager
def _unheard() -> Iterator[None]:
    """What finalizers say about the programs of processes that were killed."""
    told, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            gc.collect()
    finally:
        sys.unraisablehook = told
