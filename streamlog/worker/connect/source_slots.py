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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import random
from typing import Final

import msgspec

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.connect.herding.configs import TASK_PARTS, ConnectConfigs
from streamlog.connect.parts import OffsetBook, encode_offset, part_id
from streamlog.connect.source import SourcePartition
from streamlog.connect_tasks.carried import SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.part_reader import HeldBudget, PartReader, ReaderDeps
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


def encode_parts(parts: Sequence[SourcePartition]) -> str:
    """Return the setting of a task that names its parts."""
    return msgspec.json.encode([dict(part) for part in parts]).decode()


def decode_parts(task: Mapping[str, str]) -> list[SourcePartition]:
    """Return the parts that the settings of a task name; none if they are malformed."""
    try:
        return [part for part in _parts(task.get(TASK_PARTS, "[]")) if isinstance(part, dict)]  # type: ignore[misc]
    except msgspec.MsgspecError:
        return []


@dataclass(slots=True)
class _RunningSlot:
    """A task of a source at work."""

    parts: list[str]
    """The names of its parts."""
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

    def others_than(self, wanted: Mapping[SlotKey, Sequence[SourcePartition]]) -> list[SlotKey]:
        """Return the slots at work that are not wanted, or not with the parts that they have."""
        return [
            key
            for key, slot in self._running.items()
            if key not in wanted or slot.parts != sorted(map(part_id, wanted[key]))
        ]

    async def start(self, wanted: Mapping[SlotKey, Sequence[SourcePartition]]) -> None:
        """Start the slots that are wanted and do not run, at the offsets that the log has.

        Raises:
            RequestTimedOut: the offsets could not be read.
        """
        # What runs already continues where it is: a round alone is no reason to read offsets again.
        new = {key: parts for key, parts in wanted.items() if key not in self._running}
        if not new:
            return
        await self._follower.catch_up()
        for key, parts in new.items():
            self._start(key, parts)

    async def stop(self, keys: Sequence[SlotKey]) -> None:
        """End tasks, and drop what they hold."""
        slots = [self._running.pop(key) for key in keys]
        await self._end(slots)
        for key, slot in zip(keys, slots, strict=True):
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

    def readers(self) -> list[tuple[SourceTask, PartReader]]:
        """Return all readers with their tasks."""
        return [(task, reader) for task in self.tasks for reader in task.readers]

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
        self._running[key] = _RunningSlot(sorted(map(part_id, parts)), task, running)

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
    """Asks the sources for their parts, on the group's leader."""

    def __init__(
        self,
        connectors: Sequence[SourceConnector],
        clock: Clock,
        background: asyncio.TaskGroup,
        on_parts: Callable[[SourceConnector, Sequence[SourcePartition]], None],
    ) -> None:
        """Create a discovery that has asked nothing; `on_parts` is called with the answers."""
        self._connectors = connectors
        self._clock, self._background, self._on_parts = clock, background, on_parts
        self._due_ms: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Ask the sources whose time has come."""
        now_ms = self._clock.now_ms()
        for connector in self._connectors:
            name = connector.name
            if name in self._asking or now_ms < self._due_ms.get(name, now_ms):
                continue
            asking = self._ask(connector)
            self._asking[name] = self._background.create_task(asking, name=f"parts of {name}")

    def forget(self) -> None:
        """Ask all of them anew when this worker leads again."""
        self._due_ms.clear()

    async def close(self) -> None:
        """End what is asked."""
        for asking in self._asking.values():
            asking.cancel()
        if self._asking:
            await asyncio.wait([*self._asking.values()])

    async def _ask(self, connector: SourceConnector) -> None:
        context = ConnectorContext(connector.name, 0, LoopClock(self._clock))
        try:
            parts = await connector.source.partitions(context)
        except Exception as error:
            if not isinstance(error, connector.source.transient):
                raise ProcessingError(
                    f"source {connector.name!r} can't name its parts: {type(error).__name__}:"
                    f" {error}",
                    node=connector.name,
                ) from error
            logger.warning(
                "source %r can't be asked for its parts: %s: %s",
                connector.name, type(error).__name__, error,
            )  # fmt: skip
            # Sooner than usual: until then a new source reads nothing at all.
            self._due_ms[connector.name] = self._clock.now_ms() + DISCOVERY_FAILED_MS
        else:
            self._due_ms[connector.name] = self._clock.now_ms() + connector.discover_every_ms
            self._on_parts(connector, parts)
        finally:
            context.close()
            del self._asking[connector.name]


def all_slots(configs: ConnectConfigs) -> dict[SlotKey, list[SourcePartition]]:
    """Return the slots of all sources, with the parts that the dealing has for them."""
    return slots_of({name: range(len(tasks)) for name, tasks in configs.tasks.items()}, configs)


def slots_of(
    given: Mapping[str, Sequence[int]], configs: ConnectConfigs
) -> dict[SlotKey, list[SourcePartition]]:
    """Return the slots of sources that a round gave, with the parts that the dealing has for them.

    A slot of a dealing that no longer has it is left out.
    """
    found: dict[SlotKey, list[SourcePartition]] = {}
    for name, numbers in given.items():
        tasks = configs.tasks.get(name, [])
        for number in numbers:
            if number < len(tasks):
                found[name, number] = decode_parts(tasks[number])
    return found
