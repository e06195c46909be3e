"""Substitute: a worker of an app in this process, for when nobody else runs one."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from streamlog.clock import Clock
from streamlog.errors import UsageError
from streamlog.transport.security import Security
from streamlog.worker.program import Program
from streamlog.worker.worker import Worker

ALONE_MS: Final = 2_000
"""After so long without another worker one is run here."""


class Substitute:
    """A worker that is run when it is needed. A context manager."""

    def __init__(
        self, program: Program, log_url: str, security: Security | None, clock: Clock
    ) -> None:
        self._program = program
        self._log_url = log_url
        self._security = security
        self._clock = clock
        self._stop = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._work: asyncio.Task[Exception | None] | None = None
        self._alone_since_ms: int | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        await self._group.__aexit__(None, None, None)

    async def help_if(self, *, is_alone: bool) -> None:
        """Run if nobody else has for a while.

        Raises:
            Exception: what the worker has failed on.
        """
        now_ms = self._clock.now_ms()
        if self._work is not None:
            if self._work.done():
                raise self._work.result() or UsageError(
                    f"the worker of {self._program.app_id!r} has ended by itself: repeat this"
                )
        elif not is_alone:
            self._alone_since_ms = None
        elif self._alone_since_ms is None:
            self._alone_since_ms = now_ms
        elif now_ms - self._alone_since_ms >= ALONE_MS:
            self._work = self._group.create_task(self._run(), name="worker of the version")

    async def rest(self) -> None:
        """Stop, and leave the group.

        Raises:
            Exception: as `help_if`.
        """
        self._stop.set()
        work, self._work, self._alone_since_ms = self._work, None, None
        if work is not None and (failure := await work) is not None:
            raise failure
        self._stop.clear()

    async def _run(self) -> Exception | None:
        worker = Worker(
            self._program,
            log_url=self._log_url,
            announce=lambda _start: None,
            clock=self._clock,
            security=self._security,
        )
        try:
            await worker.run(self._stop)
        except Exception as error:  # noqa: BLE001 - raised where it is asked for
            return error
        return None
