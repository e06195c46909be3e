"""LogWatch: looks at the log again and again, so that a page never waits for a look.

Rule of the module: the broker pays for each look. So a pause of at least `PAUSE_SHARE` times its
duration follows it, and a longer one while no page is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final

from streamlog import repeated
from streamlog.adviser import advise
from streamlog.adviser.log_look import LogLook
from streamlog.clock import Clock
from streamlog.console.log_sight import LagHistory, LogSight
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.log import Log
from streamlog.replace import replace

WATCHED_MS: Final = 2_000
"""Between two looks while a page is open."""
IDLE_MS: Final = 30_000
"""Between two looks while none is: the history of lags must not begin with the first page."""
PAUSE_SHARE: Final = 9
"""A look takes at most a tenth of the time."""
MIRRORS_S: Final = 2.0
AGAIN_S: Final = 1.0
"""The pause after the log could not be opened."""

logger = repeated.logger(__name__)


class LogWatch:
    """Looks at one log. `run` does so until it is cancelled."""

    def __init__(
        self,
        open_log: Callable[[], AbstractAsyncContextManager[Log]],
        *,
        url: Callable[[], str],
        clock: Clock,
        idle_ms: int | None = IDLE_MS,
    ) -> None:
        """Prepare to look.

        Args:
            open_log: opens the log.
            url: returns what commands on the pages name as the log.
            clock: the time.
            idle_ms: the time between two looks while no page is open; None: there are none.
        """
        self._open, self._url, self._clock = open_log, url, clock
        self._idle_ms = idle_ms
        self._log: Log | None = None
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._watchers = 0
        self.stopped = asyncio.Event()
        """Set when the process ends: what follows the log on a page's behalf ends then."""
        self.sight = LogSight()
        """The newest look."""
        self.history = LagHistory()
        self.mirror_history = LagHistory()

    @property
    def log(self) -> Log:
        """The log.

        Raises:
            ConnectionLost: it is not open at present.
        """
        if self._log is None:
            raise ConnectionLost(
                f"the log is not open yet: {self.sight.error or 'the broker has just started'}"
            )
        return self._log

    async def run(self) -> None:
        """Open the log and look at it, until cancelled."""
        while True:
            try:
                async with self._open() as log:
                    self._log = log
                    await self._look_on(log)
            except StreamlogError as error:
                self._fail(error)
            # Pages that ask the log directly get an error now, instead of waiting for a closed one.
            finally:
                self._log = None
            await asyncio.sleep(AGAIN_S)

    async def _look_on(self, log: Log) -> None:
        look = LogLook(log, url=self._url(), clock=self._clock)
        if self._idle_ms is None:
            await self._wanted.wait()
        while True:
            began_ms = self._clock.now_ms()
            try:
                await self._look(log, look)
            # A broker that does not answer is what the page has to show, and no reason to end.
            except StreamlogError as error:
                self._fail(error)
            took_ms = self._clock.now_ms() - began_ms
            await self._pause(took_ms * PAUSE_SHARE)

    async def _look(self, log: Log, look: LogLook) -> None:
        began_ms = self._clock.now_ms()
        # A broker that has just started to listen has another address than at the first look.
        view = replace(await look.next_view(), url=self._url())
        at_ms = self._clock.wall_ms()
        # Before the sight: a page that is woken by it draws the newest point.
        self.history.add(view.groups, at_ms)
        self._show(
            LogSight(
                view=view,
                findings=tuple(advise(view)),
                at_ms=at_ms,
                took_ms=self._clock.now_ms() - began_ms,
                cluster_id=log.cluster_id,
            )
        )

        await self._look_at_mirrors(log, at_ms)

    async def _look_at_mirrors(self, log: Log, at_ms: int) -> None:
        try:
            # After the sight, and not for long: a silent broker must not hold up the pages.
            async with asyncio.timeout(MIRRORS_S):
                found = await log.admin().describe_mirrors()
        # Apache Kafka has no mirrors, and not every user may look at them.
        except (StreamlogError, TimeoutError):
            return
        lags = {each.name: (each.lag_records, each.lag_ms) for each in found.mirrors}
        self.mirror_history.add_lags(lags, at_ms)

    def _fail(self, error: StreamlogError) -> None:
        logger.warning("the console can't look at the log: %s", error)
        # The old view stays, with its age: in a failure, old figures are better than none.
        self._show(replace(self.sight, error=str(error)))

    def _show(self, sight: LogSight) -> None:
        self.sight = sight
        # A new event for those who begin to wait now; those who have waited see the new sight.
        # Taken before the sight is read: a look that ends in between is not missed.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _pause(self, least_ms: int) -> None:
        """Wait at least some time; longer while no page is open, until one is."""
        # Also for an open page: a cluster with many partitions is not worked harder by its readers.
        await asyncio.sleep(max(least_ms, WATCHED_MS) / 1_000)
        if self._watchers:
            return
        # A page that opens from here on sets it again, so that its first update comes at once.
        self._wanted.clear()
        try:
            async with asyncio.timeout(None if self._idle_ms is None else self._idle_ms / 1_000):
                await self._wanted.wait()
        except TimeoutError:
            return

    def want(self) -> None:
        """Ask for a look, which a page shows that is loaded without updates."""
        self._wanted.set()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look often in the block."""
        self._watchers += 1
        self.want()
        try:
            yield
        finally:
            self._watchers -= 1

    def stop(self) -> None:
        """End `sights`."""
        self.stopped.set()
        self._changed.set()

    async def sights(self, quiet_ms: int | None = None) -> AsyncIterator[LogSight]:
        """Yield the present sight, and each new one, until `stop`.

        Args:
            quiet_ms: how long to wait for a new one before the present one is yielded again; None:
                for ever.
        """
        quiet_s = None if quiet_ms is None else quiet_ms / 1_000
        while not self.stopped.is_set():
            changed = self._changed
            yield self.sight
            with suppress(TimeoutError):
                async with asyncio.timeout(quiet_s):
                    await changed.wait()
