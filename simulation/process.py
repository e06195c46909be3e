"""Process and Machine: what runs in a simulated life, and may be stopped, killed or unplugged.

Everything that a program schedules on the loop carries its process in its context (`CURRENT`), and
so does all that comes of it. A process that has ended is never given a turn again: no `finally`
runs, as with kill -9. One that is paused (SIGSTOP, a long stall) gets its turns later, all at once
and in their order, while time goes on for everybody else.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.loop import SimulatedLoop

CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""Whose turn it is; None for the simulation itself."""


class ProcessEnded(BaseException):
    """The process was killed, or lost its power, in the middle of a system call."""


class Process:
    """One life of a program on a machine."""

    def __init__(self, loop: SimulatedLoop, machine: Machine) -> None:
        self.machine = machine
        self.alive = True
        self.paused = False
        self.waiting: list[asyncio.Handle] = []
        """Turns that came while it was paused."""
        self._loop = loop
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)
        self.task: asyncio.Task[Any] | None = None

    def run(self, program: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin the program; what it leads to belongs to the process."""
        self.task = self._loop.create_task(program, context=self.context.copy())
        return self.task

    def end(self) -> None:
        """It gets no turn any more."""
        self.alive = False
        self.waiting.clear()

    def pause(self) -> None:
        """It gets no turn until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """It gets the turns that it has missed."""
        self.paused = False
        waiting, self.waiting = self.waiting, []
        self._loop.give_turns(waiting)


class Machine:
    """A host of the network, with clocks of its own; one process runs on it at a time."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.up = True
        """Whether it has power: a machine without answers nobody, not even with a refusal."""
        self.process: Process | None = None
        self.wall_ahead_ms = 0
        """How far its wall clock is ahead of the true time."""
        self._loop = loop

    def start(self, program: Coroutine[Any, Any, Any]) -> Process:
        """Run a program; the one before has to have ended."""
        if self.process is not None and self.process.alive:
            raise RuntimeError(f"a process runs on {self.name} already")
        process = self.process = Process(self._loop, self)
        process.run(program)
        return process
