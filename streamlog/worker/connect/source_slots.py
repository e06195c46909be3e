"""Source slots: the tasks of sources that this worker runs, and their part in its commits.

Records and offsets of a read are written by the worker's transaction, which the group's coordinator
takes only from a member of the present generation. So no part of a source has two readers that
count:

1. Worker a has part p. A round gives p to worker b.
2. a gives it up, with a last commit, in the round before. If a is suspended instead, the group
   removes it, and refuses its transactions from then on.
3. b reads the offset of p up to the end that the offsets topic has behind the round. A transaction
   of a that was accepted earlier has all its records before that end, and b waits until it ends.

Rule: nothing that was read under one round is committed under another, unless the task is kept as
it is and no round lies between. Not done here: which worker has which slot (`assignment/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import random
from typing import Final

import msgspec

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.connect.connector_errors import is_of_connection
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.connect.herding.configs import TASK_PARTS
from streamlog.connect.parts import OffsetBook, encode_offset
from streamlog.connect.source import SourcePartition
from streamlog.connect_tasks.carried import SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.part_reader import HeldBudget, ReaderDeps
from streamlog.connect_tasks.source_task import SourceTask
from streamlog.connect_tasks.task_figures import ReaderFigures, sum_figures
from streamlog.errors import ProcessingError
from streamlog.processing.outbox import SinkBatch
from streamlog.worker.connect.compacted_topic import CompactedTopic

logger = repeated.logger(__name__)

COMMIT_EARLY_BYTES: Final = 8 * 1024 * 1024
"""The held bytes of all readers that start a commit early."""

SlotKey = tuple[str, int]
"""A connector's name and the number of its task."""
_parts = msgspec.json.Decoder(list[dict[str, object]]).decode


class LoopClock:
    """The worker's clock with a sleep on the event loop; a `TaskClock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        """Return monotonic time."""
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        return self._clock.wall_ms()

    async def sleep_ms(self, time_ms: int) -> None:
        """Wait."""
        await asyncio.sleep(time_ms / 1000)


def decode_parts(task: Mapping[str, str]) -> list[SourcePartition]:
    """Return the parts that the settings of a task name; none if they are malformed."""
    try:
        return [part for part in _parts(task.get(TASK_PARTS, "[]")) if isinstance(part, dict)]  # type: ignore[misc]
    except (msgspec.MsgspecError, RecursionError):
        return []


@dataclass(slots=True)
class _RunningSlot:
    """A task of a source at work."""

    task: SourceTask
    running: asyncio.Task[None]


class SourceSlots:
    """The source tasks of this worker."""

    def __init__(
        self,
        connectors: Sequence[SourceConnector],
        *,
        clock: Clock,
        background: asyncio.TaskGroup,
        offsets: OffsetBook,
        offsets_topic: str,
        follower: CompactedTopic,
        count: Callable[[str, str, int], None],
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the slots of a worker; none of them runs yet.

        Args:
            connectors: the sources of the app.
            clock: the time.
            background: runs the tasks.
            offsets: the offsets of all parts, as `follower` keeps them.
            offsets_topic: the topic that they are in.
            follower: reads the offsets.
            count: counts a connector's own figures: its name, what, by how many.
            on_full: called when a reader waits for a commit.
        """
        self._on_full = on_full
        self._connectors = {each.name: each for each in connectors}
        self._clock = LoopClock(clock)
        self._background = background
        self._offsets, self._topic, self._follower = offsets, offsets_topic, follower
        self._count = count
        self._budget = HeldBudget()
        self._running: dict[SlotKey, _RunningSlot] = {}
        self.ended: dict[SlotKey, ReaderFigures] = {}
        """What tasks have done that ended here."""
        self._in_flight: list[SourceTask] = []

    @property
    def tasks(self) -> list[SourceTask]:
        """The tasks at work."""
        return [slot.task for slot in self._running.values()]

    @property
    def is_full(self) -> bool:
        """Whether a commit should not wait for its time."""
        if self._budget.held_bytes >= COMMIT_EARLY_BYTES:
            return True
        return any(task.is_full for task in self.tasks)

    async def start(
        self,
        wanted: Mapping[SlotKey, Sequence[SourcePartition]],
        *,
        paused: Collection[SlotKey] = (),
    ) -> list[SlotKey]:
        """Start the slots that are wanted and do not run, at the offsets that the log has.

        Args:
            wanted: the parts of each slot.
            paused: the slots that ask their source for nothing yet.

        Returns:
            The slots that were started.

        Raises:
            RequestTimedOut: the offsets could not be read.
        """
        # What runs already continues where it is: a round alone is no reason to read offsets again.
        new = {key: parts for key, parts in wanted.items() if key not in self._running}
        if not new:
            return []
        await self._follower.catch_up()
        for key, parts in new.items():
            self._start(key, parts)
            self.pause(key, is_paused=key in paused)
        return [*new]

    def pause(self, key: SlotKey, *, is_paused: bool) -> None:
        """Ask the source of a slot for no more, or again."""
        slot = self._running.get(key)
        if slot is not None:
            slot.task.pause(is_paused=is_paused)

    def running(self, keys: Iterable[SlotKey]) -> list[SlotKey]:
        """Return those of the slots that run."""
        return [key for key in keys if key in self._running]

    async def end(self, keys: Sequence[SlotKey]) -> None:
        """End tasks, and keep what they hold for a commit; `stop` removes them behind it."""
        await self._end([self._running[key] for key in keys])

    async def stop(self, keys: Iterable[SlotKey]) -> None:
        """End tasks, and drop what they hold; what does not run is passed over."""
        found = {key: self._running.pop(key) for key in self.running(keys)}
        await self._end([*found.values()])
        for key, slot in found.items():
            slot.task.drop()
            before = [self.ended[key]] if key in self.ended else []
            self.ended[key] = sum_figures(slot.task.figures(), before)
            self.ended[key].waits_for = ""
            if slot.task in self._in_flight:
                self._in_flight.remove(slot.task)

    async def stop_all(self) -> None:
        """End all tasks, and drop what they hold."""
        await self.stop([*self._running])

    async def finish(self) -> None:
        """End all tasks, and keep what they hold for a last commit."""
        await self._end([*self._running.values()])

    def take(self) -> tuple[list[SinkBatch], list[SinkBatch]]:
        """Return everything that is held, for one commit: the records, and the offsets."""
        records: list[SinkBatch] = []
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        for slot in self._running.values():
            taken = slot.task.take()
            if taken:
                self._in_flight.append(slot.task)
            # Records first, then the offset behind them; in a transaction their order is free, and
            # outside of one the offsets are written once the records are acknowledged.
            for reader, reads in taken:
                for read in reads:
                    records += read.records.batches
                # The last one counts: compaction would leave it alone anyway.
                keys.append(self._offsets.key(slot.task.name, reader.part))
                values.append(encode_offset(reads[-1].offset))
        if not keys:
            return records, []
        times = [self._clock.wall_ms()] * len(keys)
        return records, [SinkBatch(self._topic, None, times, keys, values)]

    def count(self) -> None:
        """Note that the commit with what was taken has succeeded.

        Raises:
            ProcessingError: a `committed` of a source raised.
        """
        # A task that was stopped meanwhile is not in it: its reads were dropped with it.
        in_flight, self._in_flight = self._in_flight, []
        for task in in_flight:
            task.count()

    def _start(self, key: SlotKey, parts: Sequence[SourcePartition]) -> None:
        name, number = key
        connector = self._connectors[name]

        def count(what: str, by: int) -> None:
            self._count(name, what, by)

        deps = ReaderDeps(
            name=name,
            source=connector.source,
            context=ConnectorContext(name, number, self._clock, count=count),
            carrier=SourceCarrier(connector),
            clock=self._clock,
            chance=random,
            budget=self._budget,
            on_full=self._on_full,
        )
        task = SourceTask(
            deps, number, [(part, self._offsets.offset(name, part)) for part in parts]
        )
        running = self._background.create_task(task.run(), name=f"source {name} {number}")
        self._running[key] = _RunningSlot(task, running)

    async def _end(self, slots: Sequence[_RunningSlot]) -> None:
        # All are cancelled before one is waited for: each may take its time to close.
        for slot in slots:
            slot.running.cancel()
        if slots:
            # `wait`, and not `await`: an error of a task belongs to the background group.
            await asyncio.wait([slot.running for slot in slots])


DISCOVERY_FAILED_MS: Final = 5_000
"""The pause before a source is asked for its parts again, when it could not be reached."""


class Discovery:
    """Asks sources for their parts, when the herder of the group's leader says so."""

    def __init__(
        self,
        connectors: Sequence[SourceConnector],
        clock: Clock,
        background: asyncio.TaskGroup,
        *,
        on_parts: Callable[[SourceConnector, Sequence[SourcePartition]], None],
        on_failure: Callable[[SourceConnector, Exception], bool],
    ) -> None:
        """Create a discovery that has asked nothing.

        Args:
            connectors: the sources of the app.
            clock: the time.
            background: runs the questions.
            on_parts: called with the parts of a source.
            on_failure: called when a source can't be reached; returns whether to ask again soon.
        """
        self._connectors = {each.name: each for each in connectors}
        self._clock, self._background = clock, background
        self._on_parts, self._on_failure = on_parts, on_failure
        self._asking: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str) -> None:
        """Ask a source, unless it is being asked."""
        if name not in self._asking:
            asking = self._ask(self._connectors[name])
            self._asking[name] = self._background.create_task(asking, name=f"parts of {name}")

    async def close(self) -> None:
        """End what is asked."""
        asking = [*self._asking.values()]
        for each in asking:
            each.cancel()
        if asking:
            await asyncio.wait(asking)

    async def _ask(self, connector: SourceConnector) -> None:
        clock = LoopClock(self._clock)
        context = ConnectorContext(connector.name, 0, clock)
        try:
            while True:
                found = await self._parts(connector, context)
                if not isinstance(found, Exception) or not self._on_failure(connector, found):
                    break
                # Sooner than usual: until then a new source reads nothing at all.
                await clock.sleep_ms(DISCOVERY_FAILED_MS)
        finally:
            context.close()
            del self._asking[connector.name]
        if not isinstance(found, Exception):
            self._on_parts(connector, found)

    async def _parts(
        self, connector: SourceConnector, context: ConnectorContext
    ) -> Sequence[SourcePartition] | Exception:
        """Return the parts of a source; the error if it can't be reached."""
        try:
            return await connector.source.partitions(context)
        except Exception as error:
            if not is_of_connection(error, connector.source.transient):
                raise ProcessingError(
                    f"source {connector.name!r} can't name its parts: {type(error).__name__}:"
                    f" {error}",
                    node=connector.name,
                ) from error
            logger.warning(
                "source %r can't be asked for its parts: %s: %s",
                connector.name, type(error).__name__, error,
            )  # fmt: skip
            return error
