"""Readers: the generator of one part of a source, from its offset on, for as long as it is wanted.

A reader asks its generator for a Read only when there is room, encodes it, and holds it until the
owner takes it into a transaction. An async generator runs on the event loop, a plain one in a
thread of its own, as it may block.

After a broken connection (`Retriable`, or an error that the source names as transient) the
generator is closed, and after a back-off a new one begins behind the last Read. Any other error
ends the reader. Not done here: transactions and offsets (the owner), and which parts there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from streamlog import repeated
from streamlog.connect.connector_errors import BadRecord, Retriable, is_of_connection, reason
from streamlog.connect.parts import part_id
from streamlog.connect.retries import Backoff, RecordRetry
from streamlog.connect.source import Source, SourceOffset, SourcePartition
from streamlog.connect.source_progress import HeldRead, SourceProgress
from streamlog.connect_tasks.carried import AnyRead, CarriedRead, SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext, TaskClock, TaskThread
from streamlog.connect_tasks.task_figures import ReaderFigures
from streamlog.durations import moment
from streamlog.errors import ConfigError, ProcessingError, StreamlogError

logger = repeated.logger(__name__)

CLOSE_WAIT_MS: Final = 30_000
"""How long the end of a reader waits for its generator's `finally`."""
REFUSED_MAX: Final = 100
"""The bad records in a row that a reader may refuse without an offset behind any of them."""
STANDS_STILL: Final = (
    "it can't read past this record: raise BadRecord(..., offset=...) with the offset behind it"
)
READS_ON: Final = "reads again behind what it has"
"""What a reader does after a broken connection."""
BUDGET_BYTES: Final = 256 * 1024 * 1024
"""The bytes that all readers of a process hold together."""

AnySource: TypeAlias = Source[Any, Any]
"""A source whose types only its topic knows."""
_NO_MORE: Final = object()


class HeldBudget:
    """The bytes that the readers of one process hold, and the limit for all of them together."""

    def __init__(self, limit_bytes: int = BUDGET_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether readers that hold something have to wait."""
        return self.held_bytes > self.limit_bytes


@dataclass(frozen=True, slots=True)
class ReaderDeps:
    """What the readers of a source have in common."""

    name: str
    source: AnySource
    context: ConnectorContext
    carrier: SourceCarrier
    clock: TaskClock
    chance: Callable[[], float]
    budget: HeldBudget
    on_read: Callable[[], None] = lambda: None
    """Called when a reader holds something new, or waits for a commit."""
    on_full: Callable[[], None] = lambda: None
    """Called when a reader waits for a commit, so that it need not wait for its time."""


class PartReader:
    """Reads one part of a source."""

    def __init__(
        self, deps: ReaderDeps, part: SourcePartition, offset: SourceOffset | None
    ) -> None:
        """Create a reader that begins at `offset`; None: the part was never read."""
        self.part = part
        self.progress: SourceProgress[CarriedRead] = SourceProgress(offset)
        self.figures = ReaderFigures()
        self.is_finished = False
        """Whether the part is read to its end for good."""
        self._deps = deps
        self._record_retry = RecordRetry(deps.carrier.retries)
        self._room = asyncio.Event()
        self._thread = TaskThread(f"streamlog-connect-{deps.name}-converter")
        """The thread of conversions that may block; it starts with the first of them."""
        self._paused = False

    async def run(self) -> None:
        """Read until the source ends; cancel it to stop.

        Raises:
            ProcessingError: the connector failed, or a record did and the policy is `FAIL`.
        """
        try:
            await self._read_in_turns()
        finally:
            self._thread.close()

    async def _read_in_turns(self) -> None:
        """Read by one generator after another, until one ends."""
        backoff = Backoff(wait_ms_max=self._deps.carrier.retries.wait_ms_max)
        refused: set[str] = set()
        refused_at: object = _NO_MORE
        while True:
            steps = _Steps(self._deps, self.part, self.progress.last)
            try:
                await self._read_on(steps, backoff)
            except BadRecord as error:
                # Without an offset behind the record, the new generator begins where this one did.
                # What it refuses there may be the next record: a queue has given the first one
                # away. If it is the same one, or there is no end of them, the source gives no way
                # around it, and would write its dead letter for ever.
                passes = error.offset is not None and error.offset != self.progress.last
                if passes or refused_at != self.progress.last:
                    refused.clear()
                if f"{error}" in refused or len(refused) >= REFUSED_MAX:
                    raise self._failure(error, STANDS_STILL) from error
                refused.add(f"{error}")
                self._hold_refused(error)
                refused_at = self.progress.last
            except (ConfigError, ProcessingError):
                raise
            except Exception as error:  # noqa: BLE001 - the connector's: `_retry_after_ms` decides
                after_ms = self._retry_after_ms(error)
                await self._wait_to_retry(
                    error, backoff.fail(self._deps.chance(), at_least_ms=after_ms)
                )
            else:
                self.is_finished = True
                return
            finally:
                await steps.close()

    def take(self) -> list[HeldRead[CarriedRead]]:
        """Return what is held, for a transaction; the reader reads on while it is committed."""
        taken = self.progress.take()
        self._room.set()
        return taken

    def count(self) -> None:
        """Note that the transaction with what was taken is committed, and tell the source.

        Raises:
            ProcessingError: a `committed` of the source raised.
        """
        before = self.progress.held_bytes
        counted = self.progress.count()
        self._deps.budget.held_bytes -= before - self.progress.held_bytes
        self.figures.commits += bool(counted)
        for read in counted:
            self.figures.written += read.count
            if read.committed is not None:
                self._acknowledge(read.committed)
        self._room.set()

    def drop(self) -> None:
        """Drop everything that does not count; the reader has ended."""
        # The budget is of the process: what a reader drops makes room for the others.
        self._deps.budget.held_bytes -= self.progress.held_bytes
        self.progress.undo()

    def pause(self, *, is_paused: bool) -> None:
        """Ask the source for no more, or again."""
        self._paused = is_paused
        self._room.set()

    def _acknowledge(self, committed: Callable[[], object]) -> None:
        try:
            committed()
        except Exception as error:
            raise self._failure(error, "its `committed` raised") from error

    async def _read_on(self, steps: _Steps, backoff: Backoff) -> None:
        was_never_read = self.progress.counted is None
        while True:
            await self._have_room()
            read = await steps.next()
            if read is None:
                return
            # A source that waits for its next record does not see a pause. What it then brings is
            # kept back, as nothing may be written while the task is paused.
            while self._paused:
                self._room.clear()
                await self._room.wait()
            backoff.succeed()
            self._read_again()
            self.figures.polled += len(read)
            await self._hold(read)
            # Where a source begins may depend on the moment: "at the end of the file". 1. It says
            # so and reads 5 lines. 2. The process is killed before the commit. 3. The next one
            # would begin behind them. So the offset is committed before anything is read.
            if was_never_read and not len(read):
                await self._counted()
            was_never_read = False

    async def _have_room(self) -> None:
        progress, budget = self.progress, self._deps.budget
        while self._paused or progress.is_full or (budget.is_over and progress.held_bytes > 0):
            self._room.clear()
            self._deps.on_read()
            self._deps.on_full()
            await self._room.wait()

    async def _counted(self) -> None:
        while not self.progress.is_empty:
            self._room.clear()
            self._deps.on_read()
            self._deps.on_full()
            await self._room.wait()

    async def _hold(self, read: AnyRead) -> None:
        carried = await self._carry(read)
        self._read_again()
        self._add(carried, read.offset, read.committed)

    async def _carry(self, read: AnyRead) -> CarriedRead:
        """Return a Read as records; waits while a server or a record fails only for now.

        The Read stays here meanwhile: the source gave it away, and may not have it a second time.
        """
        deps, now = self._deps, moment(self._deps.clock.wall_ms())
        may_retry = deps.carrier.retries.timeout_ms != 0
        backoff = Backoff(wait_ms_max=deps.carrier.retries.wait_ms_max)
        while True:
            try:
                carried = await self._convert(read, now, may_retry=may_retry)
            except StreamlogError as error:
                may_retry = await self._outlast(error, backoff, may_retry=may_retry)
            else:
                self._record_retry.succeed()
                return carried

    async def _outlast(self, error: StreamlogError, backoff: Backoff, *, may_retry: bool) -> bool:
        """Wait until what may pass has passed; returns whether the record has time left."""
        deps = self._deps
        if may_retry and error.retriable and not isinstance(error, ProcessingError):
            left_ms = self._record_retry.fail(deps.clock.now_ms(), deps.chance())
            # If no time is left, the policy decides, also about the records behind it.
            if left_ms is not None:
                await self._wait_to_retry(error, left_ms, "the record is tried again")
            return left_ms is not None
        if not isinstance(error, Retriable):
            raise error
        # A serde's server is away. No record is at fault, so no policy ends the wait.
        self.figures.failures += 1
        wait_ms = backoff.fail(deps.chance(), at_least_ms=error.after_ms)
        await self._wait_to_retry(error, wait_ms, "converts the read again")
        return may_retry

    async def _convert(self, read: AnyRead, now: datetime, *, may_retry: bool) -> CarriedRead:
        def carry() -> CarriedRead:
            return self._deps.carrier.carry(read, now, may_retry=may_retry)

        return await self._thread.call(carry) if self._deps.carrier.may_block else carry()

    def _hold_refused(self, error: BadRecord) -> None:
        """Hold the dead letter of a record that the source refuses; raises under `FAIL`."""
        self.figures.fail(self._deps.clock.wall_ms())
        carried = self._deps.carrier.refuse(error, moment(self._deps.clock.wall_ms()))
        # Also before the part's first offset: the letter is in a transaction with "none yet".
        self._add(carried, self.progress.last if error.offset is None else error.offset, None)

    def _add(
        self,
        carried: CarriedRead,
        offset: SourceOffset | None,
        committed: Callable[[], object] | None,
    ) -> None:
        self.figures.leave_out(carried.drops, self._deps.clock.wall_ms())
        size_bytes = carried.size_bytes
        self._deps.budget.held_bytes += size_bytes
        self.progress.hold(
            HeldRead(
                carried, carried.count, size_bytes, offset, committed, self._deps.clock.now_ms()
            )
        )
        self._deps.on_read()

    def _retry_after_ms(self, error: Exception) -> int | None:
        """Return the wait that the other side has asked for.

        Raises:
            ProcessingError: the error is not one of a connection.
        """
        self.figures.fail(self._deps.clock.wall_ms())
        if not is_of_connection(error, self._deps.source.transient):
            raise self._failure(error) from error
        return error.after_ms if isinstance(error, Retriable) else None

    async def _wait_to_retry(self, error: Exception, wait_ms: int, then: str = READS_ON) -> None:
        self.figures.retries += 1
        self.figures.waits_for = reason(error)
        logger.warning(
            "source %r, part %s: %s; %s, with a growing pause",
            self._deps.name, part_id(self.part), reason(error), then,
        )  # fmt: skip
        await self._deps.clock.sleep_ms(wait_ms)

    def _read_again(self) -> None:
        """Note the end of an outage, which began with a warning in the log."""
        if self.figures.waits_for:
            logger.info("source %r, part %s: reads again", self._deps.name, part_id(self.part))
        self.figures.waits_for = ""

    def _failure(self, error: Exception, why: str = "") -> ProcessingError:
        reason = f": {why}" if why else ""
        return ProcessingError(
            f"source {self._deps.name!r}, part {part_id(self.part)}, failed behind offset "
            f"{self.progress.last}{reason}: {type(error).__name__}: {error}",
            node=self._deps.name,
        )


class _Steps:
    """One generator of a source, async or plain."""

    def __init__(
        self, deps: ReaderDeps, part: SourcePartition, offset: SourceOffset | None
    ) -> None:
        self._deps = deps
        self._made: AsyncIterator[AnyRead] | Iterator[AnyRead] | None = None
        self._part, self._offset = part, offset
        self._thread: TaskThread | None = None

    async def next(self) -> AnyRead | None:
        """Return the next Read; None at the end."""
        if self._made is None:
            deps = self._deps
            self._made = deps.source.read(self._part, self._offset, deps.context)
        if isinstance(self._made, AsyncIterator):
            return await anext(self._made, None)
        if self._thread is None:
            self._thread = TaskThread(f"streamlog-connect-{self._deps.name}")
        made = self._made
        return await self._thread.call(lambda: next(made, None))

    async def close(self) -> None:
        """Close the generator, so that its `finally` runs; waits for a limited time."""
        try:
            async with asyncio.timeout(CLOSE_WAIT_MS / 1000):
                await self._close()
        except TimeoutError:
            logger.warning(
                "source %r: its generator has not ended within %d s of its close",
                self._deps.name, CLOSE_WAIT_MS // 1000,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - cleaning up: the reader's own outcome counts
            logger.warning("source %r: error while it cleans up: %r", self._deps.name, error)
        if self._thread is not None:
            self._thread.close()

    async def _close(self) -> None:
        made = self._made
        if isinstance(made, AsyncGenerator):
            await made.aclose()
        elif isinstance(made, Generator) and self._thread is not None:
            # Behind the blocking `next` that may still run: the thread runs calls in order.
            close: Callable[[], None] = made.close
            await self._thread.call(close)
