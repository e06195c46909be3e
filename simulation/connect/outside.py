"""Outside: what the connectors of a life read from and write to, and what must hold there.

It survives every process. A call takes a moment before it has its effect and a moment after, so a
process that is killed or paused may have done it without knowing, or do it late.

`Origin` is like a replication slot: it forgets the rows that a reader says are committed. A reader
that asks for them again has lost them, and `violations` says so.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final

from streamlog.connect import (
    Batch,
    Effect,
    Fenced,
    Flush,
    Read,
    Retriable,
    Sink,
    SinkContext,
    SinkTask,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
    TopicPartition,
)

BORN_S: Final = (0.0, 0.0, 5.0, 7.0, 15.0)
"""When each part begins to exist, so that parts are dealt again while rows are read."""
ROWS: Final = (300, 600, 100, 400, 200)
"""The rows of each part. Once all of them are committed it exists no more, so that parts that are
read move from one task to another."""
READ_ROWS_MAX: Final = 6
REFUSED_SHARE: Final = 0.03
"""Of the calls of a target fail for a moment."""
CALL_S: Final = (0.0001, 0.002, 0.03, 0.4)


def row_of(part: int, number: int) -> str:
    """Return a row of the origin."""
    return f"{part}/{number}"


class Outside:
    """The origin of the rows, and three targets."""

    def __init__(self, chance: random.Random, time_s: Callable[[], float]) -> None:
        self.chance = chance
        self.time_s = time_s
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.forgotten = [0] * len(ROWS)
        """The rows of each part that the origin no longer has."""
        self.table: list[str] = []
        self.table_offsets: dict[TopicPartition, int] = {}
        self.epochs: Counter[TopicPartition] = Counter()
        self.files: dict[str, list[str]] = {}
        self.lines: list[str] = []
        self._expected = Counter(
            row_of(part, number) for part, rows in enumerate(ROWS) for number in range(rows)
        )
        self._is_healed = False

    def __repr__(self) -> str:
        # It stands in the settings of sinks, and so in the configuration of their ranges.
        return "Outside()"

    @property
    def expected(self) -> Counter[str]:
        """Every row, once."""
        return self._expected

    @property
    def is_complete(self) -> bool:
        """Whether every target has every row at least once."""
        total = len(self._expected)
        return all(
            len(found) >= total and len({*found}) >= total
            for found in (self.table, self.file_rows, self.lines)
        )

    @property
    def file_rows(self) -> list[str]:
        """The rows of all files."""
        return [row for rows in self.files.values() for row in rows]

    def verdict(self, topic: Sequence[str]) -> list[str]:
        """Return what is wrong in the end; `topic` are the committed rows of the log."""
        found = [
            *self.violations,
            *self._differences("the topic", topic),
            *self._differences("the table", self.table),
            *self._differences("the files", self.file_rows),
        ]
        if missing := self.expected.keys() - {*self.lines}:
            found.append(f"lost: the lines lack {len(missing)} rows, as {min(missing)}")
        return found

    def _differences(self, where: str, rows: Sequence[str]) -> list[str]:
        counted, found = Counter(rows), []
        if missing := self.expected - counted:
            found.append(f"lost: {where} lacks {len(missing)} rows, as {min(missing)}")
        if more := counted - self.expected:
            found.append(f"twice: {where} has {len(more)} rows too often, as {min(more)}")
        return found

    def heal(self) -> None:
        """From now on, calls are quick and none is refused: what is left to carry comes soon."""
        self._is_healed = True

    async def call(self) -> None:
        """The way to the outside, or back."""
        await asyncio.sleep(CALL_S[0] if self._is_healed else self.chance.choice(CALL_S))

    async def try_to_call(self) -> None:
        """The way there; now and then it is refused."""
        await self.call()
        if not self._is_healed and self.chance.random() < REFUSED_SHARE:
            self.counts["refused by a target"] += 1
            raise Retriable("the target refuses for a moment")


class Origin(Source[str, str], frozen=True, kw_only=True):
    """Rows of several parts."""

    outside: Outside

    async def partitions(self, context: SourceContext) -> list[SourcePartition]:
        """See `Source`."""
        outside = self.outside
        await outside.call()
        return [
            {"part": part}
            for part, (born_s, rows) in enumerate(zip(BORN_S, ROWS, strict=True))
            if born_s <= outside.time_s() and outside.forgotten[part] < rows
        ]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, str]]:
        """See `Source`."""
        outside, part = self.outside, int(str(partition["part"]))
        at = 0 if offset is None else int(str(offset["at"]))
        outside.counts["parts begun"] += 1
        await outside.call()
        if at < outside.forgotten[part]:
            outside.violations.append(
                f"lost: part {part} is read from {at}, and is forgotten up to "
                f"{outside.forgotten[part]}"
            )
        while at < ROWS[part]:
            end = min(at + outside.chance.randint(1, READ_ROWS_MAX), ROWS[part])
            rows = [row_of(part, number) for number in range(at, end)]
            yield Read(
                [context.record(row, key=row) for row in rows],
                {"at": end},
                committed=self._forgetting(part, end),
            )
            at = end
            await context.sleep(f"{outside.chance.randint(1, 120)}ms")
        while True:
            await context.sleep("1h")

    def _forgetting(self, part: int, end: int) -> Callable[[], None]:
        def forget() -> None:
            self.outside.forgotten[part] = max(self.outside.forgotten[part], end)

        return forget


class Table(Sink[str, str], frozen=True, kw_only=True):
    """A table that has rows and offsets."""

    effect: ClassVar[Effect] = "transactional"

    outside: Outside

    def open(self, context: SinkContext) -> SinkTask[str, str]:
        """See `Sink`."""
        return TableTask(self.outside)


class TableTask(SinkTask[str, str]):
    """One transaction at a time."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._epochs: dict[TopicPartition, int] = {}
        self._rows: list[str] = []

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See `SinkTask`."""
        outside = self._outside
        await outside.try_to_call()
        for part in partitions:
            outside.epochs[part] += 1
            self._epochs[part] = outside.epochs[part]
        found = {
            part: outside.table_offsets[part]
            for part in partitions
            if part in outside.table_offsets
        }
        await outside.call()
        return found

    async def write(self, batch: Batch[str, str]) -> None:
        """See `SinkTask`."""
        await self._outside.try_to_call()
        self._rows += batch.values

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `SinkTask`."""
        outside = self._outside
        await outside.try_to_call()
        for part in offsets:
            if self._epochs.get(part) != outside.epochs[part]:
                outside.counts["fenced"] += 1
                raise Fenced(f"another task has {part}")
        outside.table += self._rows
        outside.table_offsets.update(offsets)
        self._rows = []
        await outside.call()

    async def abort(self) -> None:
        """See `SinkTask`."""
        self._rows = []


class Files(Sink[str, str], frozen=True, kw_only=True):
    """Files that are named by their first offset."""

    effect: ClassVar[Effect] = "repeatable"
    streams: ClassVar[bool] = True

    outside: Outside

    def open(self, context: SinkContext) -> SinkTask[str, str]:
        """See `Sink`."""
        return FilesTask(self.outside)


class FilesTask(SinkTask[str, str]):
    """One file for each partition at a time."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._open: dict[TopicPartition, tuple[str, list[str]]] = {}

    async def write(self, batch: Batch[str, str]) -> None:
        """See `SinkTask`."""
        await self._outside.try_to_call()
        topic, number = batch.partition
        name = f"{topic}-{number}-{batch.first_offset}"
        self._open.setdefault(batch.partition, (name, []))[1].extend(batch.values)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `SinkTask`."""
        await self._outside.try_to_call()
        for name, rows in [*self._open.values()]:
            self._outside.files[name] = rows
            await self._outside.call()
        self._open = {}

    async def abort(self) -> None:
        """See `SinkTask`."""
        self._open = {}


class Lines(Sink[str, str], frozen=True, kw_only=True):
    """Lines that are appended; some may come twice."""

    outside: Outside

    def open(self, context: SinkContext) -> SinkTask[str, str]:
        """See `Sink`."""
        return LinesTask(self.outside)


class LinesTask(SinkTask[str, str]):
    """Appends what it is given."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    async def write(self, batch: Batch[str, str]) -> None:
        """See `SinkTask`."""
        await self._outside.try_to_call()
        self._outside.lines += batch.values
        await self._outside.call()


def flush_of(chance: random.Random) -> Flush:
    """Return when a sink flushes in this life."""
    return Flush(records=chance.choice((5, 40, 500)), every=chance.choice(("50ms", "1s", "5s")))
