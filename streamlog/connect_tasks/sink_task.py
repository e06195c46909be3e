"""Sink task: the calls of one sink task, from the records of the log to the target's commit.

`SinkRunner` takes records, and commits them when a flush is due: `begin`, `write` for each
partition, `commit`. What it does by the sink's effect:

- transactional: `recover` says where the target is, and the group's offsets follow the target.
- repeatable: the range is committed to the group, the offset unchanged and `until` in the metadata;
  then the target; then the offset. After a crash exactly that range is written again.
- appending: the target, then the group's offset.

After a broken connection everything is aborted, and the flush is repeated after a back-off, without
end. An error that names records (`BadRecords`) gives them to the error policy. One of `write` or
`commit` that names none is found by halves (`connect/sink_progress`); one of `begin`, and any
`ConfigError`, fails the task, since no record is at fault. `Fenced` says that another task has the
partitions, so the runner drops them.

Rule: calls of a `SinkTask` never overlap, and everything that is not committed can be read again.
Not done here: the consumer and its group (the owner).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from streamlog import repeated
from streamlog.connect.connector_errors import (
    BadRecords,
    ConnectError,
    Fenced,
    Retriable,
    is_of_connection,
    reason,
)
from streamlog.connect.retries import Backoff, RecordRetry
from streamlog.connect.row_schema import Schema
from streamlog.connect.sink import Batch, Sink, SinkTask
from streamlog.connect.sink_progress import FlushChunk, SinkProgress, WriteRange
from streamlog.connect.sink_rows import SinkRow, SinkRows, schema_runs
from streamlog.connect_tasks.carried import CarriedRead, SinkCarrier
from streamlog.connect_tasks.contexts import ConnectorContext, TaskClock
from streamlog.connect_tasks.task_figures import SinkFigures
from streamlog.errors import ConfigError, ProcessingError, StreamlogError
from streamlog.processing.outbox import SinkBatch
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns

logger = repeated.logger(__name__)

AnySink: TypeAlias = Sink[Any, Any]
"""A sink whose types only its topics know."""
AnySinkTask: TypeAlias = SinkTask[Any, Any]
"""A task of such a sink."""
FOLLOW_MS: Final = 200
"""How long the group's offsets may stay behind those that a transactional target has."""
FLUSHES_HELD_MAX: Final = 4
"""The flushes that may be in memory before a slow target makes the log wait."""
CLOSE_WAIT_MS: Final = 30_000
"""How long a connector may take to close."""
CONFIG_CHARACTERS: Final = 8
"""The length of the name of a configuration in a range."""


class SinkLog(Protocol):
    """Port: the group of a sink, and the topic of its dead letters."""

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets with metadata to the group.

        Raises:
            Fenced: the group has given the partitions to another member.
        """

    async def with_offsets(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions for which the group has an offset now.

        Raises:
            Fenced: the group does not know this member.
        """

    async def write_letters(self, letters: Sequence[SinkBatch]) -> None:
        """Write dead letters, and wait until the log has acknowledged them."""


OnStep = Callable[[str], None]
"""Called by name at each point where a crash can interrupt a flush, in this order: `begin`,
`write`, `range` (the log has the range), `target committed`, `group committed`."""


def config_of(sink: AnySink) -> str:
    """Return the name of a sink's settings; equal settings have equal names.

    Incidental settings do not belong to them, such as when to flush: that says where a range ends,
    and a range that was begun has its end already. Secrets do not, either: a password may change.
    """
    fields: dict[str, object] = {
        name: getattr(sink, name) for name in sink.__struct_fields__ if name not in sink.incidental
    }
    # The class belongs to it: another class may name its files otherwise under equal settings.
    kind = type(sink)
    named = [f"{kind.__module__}.{kind.__qualname__}", fields]
    try:
        data = msgspec.json.encode(named, order="sorted", enc_hook=_setting_text)
    except TypeError:
        # JSON has no keys but text. Only then: ranges in the log have the names from above.
        data = msgspec.json.encode(_pairs(named), order="sorted", enc_hook=_setting_text)
    return hashlib.sha256(data).hexdigest()[:CONFIG_CHARACTERS]


def _setting_text(value: object) -> str:
    """Return a setting as text that is equal in the next process; a function's has its address."""
    name = getattr(value, "__qualname__", "") if callable(value) else ""
    return f"{value.__module__}.{name}" if name and not isinstance(value, type) else str(value)


def _pairs(value: object) -> object:
    """Return a setting with each dict as its sorted pairs, whatever type its keys have."""
    if isinstance(value, Mapping):
        pairs = [[type(key).__name__, _pairs(key), _pairs(each)] for key, each in value.items()]
        return sorted(pairs, key=lambda pair: msgspec.json.encode(pair, enc_hook=_setting_text))
    if isinstance(value, list | tuple):
        return [_pairs(each) for each in value]
    if isinstance(value, set | frozenset):
        each_of = map(_pairs, value)
        return sorted(each_of, key=lambda each: msgspec.json.encode(each, enc_hook=_setting_text))
    if isinstance(value, msgspec.Struct):
        return _pairs({name: getattr(value, name) for name in value.__struct_fields__})
    return value


class GroupPosition(NamedTuple):
    """Where the group of a sink is in a partition."""

    offset: int
    """The offset from which the group continues."""
    metadata: str = ""
    """What the group has committed with it."""
    is_committed: bool = True
    """Whether the group has committed it, in the topic as it is now. False for a partition that is
    new to the group, and for a topic that was deleted and created again."""
    begins_anew: bool = False
    """Whether the task forgets what the target has of a former topic of this name."""


class SinkRunner:
    """Runs one task of a sink. One owner uses it, from one coroutine."""

    def __init__(
        self,
        sink: AnySink,
        context: ConnectorContext,
        carrier: SinkCarrier,
        log: SinkLog,
        clock: TaskClock,
        *,
        chance: Callable[[], float],
        schemas: Mapping[str, tuple[Schema | None, Schema | None]] | None = None,
        on_step: OnStep = lambda _: None,
    ) -> None:
        """Create the runner of a task that is not connected yet.

        Args:
            sink: the connector.
            context: its context.
            carrier: decodes records, and has the error policy.
            log: the sink's group.
            clock: the time.
            chance: draws a number from 0 to 1.
            schemas: the schemas of keys and values, by topic.
            on_step: called with the steps of each flush; for tests that kill the process there.
        """
        self.figures = SinkFigures()
        self.seeks: dict[TopicPartition, int] = {}
        """Where the owner has to read on; it applies and empties them after each call."""
        self._sink, self._context, self._carrier = sink, context, carrier
        self._log, self._clock, self._chance = log, clock, chance
        self._schemas = schemas or {}
        self._on_step = on_step
        self._config = config_of(sink)
        self._progress = SinkProgress(sink.flush, streams=sink.streams)
        self._task: AnySinkTask | None = None
        self._begun = False
        retries = carrier.retries
        self._may_retry = retries.timeout_ms != 0
        self._record_retries: dict[TopicPartition, tuple[RecordRetry, int]] = {}
        """Of partitions with a record that fails for now, which lies before the offset."""
        self._backoff = Backoff(wait_ms_max=retries.wait_ms_max)
        self._retry_ms: int | None = None
        self._waits_to_carry = False
        """Whether a serde's server has not answered, so that records are read again later."""
        self._attempts: dict[tuple[TopicPartition, int], int] = {}
        self._new: dict[TopicPartition, GroupPosition] = {}
        """Partitions that wait for `recover`."""
        self._must_recover = False
        """Whether the known partitions have to be recovered again."""
        self._in_commit = False
        """Whether the target's commit, or the range before it, has begun."""
        self._behind: dict[TopicPartition, int] = {}
        """The offsets of the target that the group does not have yet."""
        self._followed_ms = clock.now_ms() - FOLLOW_MS
        """When the group's offsets were committed last."""

    def wanted(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return those of the partitions whose records the owner may bring now.

        None while the target does not answer or is behind; only one while that one has a range to
        repeat.
        """
        if self._retry_ms is not None or self._new or self._must_recover:
            return set()
        if (repeating := self._progress.repeating) is not None:
            # Without a limit: a range may be larger than a flush of the present settings.
            return {repeating.partition} & {*partitions}
        has_room = self._progress.size_bytes < FLUSHES_HELD_MAX * self._sink.flush.size_bytes
        return {*partitions} if has_room else set()

    @property
    def retry_in_ms(self) -> int | None:
        """The time until the next attempt; None if none is waited for."""
        return None if self._retry_ms is None else max(self._retry_ms - self._clock.now_ms(), 0)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is due before the owner brings records: no flush, attempt or recovery."""
        waits = self._retry_ms is not None or self._must_recover or bool(self._new or self._behind)
        return not (waits or self.held_records or self._progress.repeating is not None)

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The offset before which the target has everything, by partition."""
        return {at: part.committed for at, part in self._progress.parts.items()}

    @property
    def reached(self) -> dict[TopicPartition, int]:
        """The offset that shows progress, by partition, for the watchdog.

        What is read counts, since a flush may be due in an hour. What is committed counts while a
        flush is due.
        """
        is_due = bool(self._progress.due(self._clock.now_ms()))
        parts = self._progress.parts.items()
        return {at: part.committed if is_due else part.next_offset for at, part in parts}

    @property
    def held_records(self) -> int:
        """The records that are read and not committed yet."""
        parts = self._progress.parts.values()
        return sum(chunk.records for part in parts for chunk in (*part.closed, part.open))

    def assign(self, offsets: Mapping[TopicPartition, GroupPosition]) -> None:
        """Add partitions with the positions of the group; `work` recovers them.

        Raises:
            ConnectError: a range was begun with other settings.
        """
        for partition, position in offsets.items():
            begun = WriteRange.decode(position.metadata)
            is_ranged = self._sink.effect == "repeatable" and begun is not None
            if is_ranged and begun is not None and begun.config != self._config:
                topic, number = partition
                raise ConnectError(
                    f"sink {self._context.name!r} was interrupted while it wrote {topic}-{number}"
                    f" up to offset {begun.until} with other settings ({begun.config}, not"
                    f" {self._config}), and can repeat that range with those only: put the former"
                    " settings back until the range is written, or stop the connector and give it"
                    " up by `streamlog connectors offsets NAME --forget-range --execute`, after"
                    " which rows of the range may be in the target twice"
                )
        self._new.update(offsets)

    async def take(
        self,
        partition: TopicPartition,
        columns: RecordColumns,
        next_offset: int,
        marks: Sequence[TimeMark] = (),
    ) -> None:
        """Take the records of a partition that follow, up to `next_offset`.

        Raises:
            ProcessingError: a record can't be read, and the policy is `FAIL`.
        """
        part = self._progress.parts.get(partition)
        # What was polled before a seek would leave a gap.
        if part is None or partition in self.seeks or next_offset <= part.next_offset:
            return
        carried = await self._carry(partition, columns, next_offset)
        if carried is None:
            self.seeks[partition] = part.next_offset
            return
        rows, refused = carried
        # All of them count as read, those that a transform leaves out included.
        self.figures.read += len(columns)
        # Before any commit that passes them: a crash in between repeats a letter, and loses none.
        await self._write_letters(refused)
        # Marks lie between records: each ends the stretch of records before it.
        now_ms, start = self._clock.now_ms(), 0
        for mark in marks:
            stop = rows.position(mark.offset)
            part.take(rows[start:stop], max(part.next_offset, mark.offset), now_ms)
            part.mark(mark.offset, mark.elapsed_ms)
            start = stop
        # As they are: a slice copies every column.
        part.take(rows[start:] if start else rows, next_offset, now_ms)

    async def _carry(
        self, partition: TopicPartition, columns: RecordColumns, next_offset: int
    ) -> tuple[SinkRows, CarriedRead] | None:
        """Return the rows of records; None if they are read again after a wait."""
        # One question is enough: the other partitions of this round wait as well.
        if self._waits_to_carry:
            return None
        may_retry = self._may_retry
        while True:
            try:
                carried = await self._convert(partition, columns, may_retry=may_retry)
                break
            except StreamlogError as error:
                if await self._waits_for(error, partition, next_offset, may_retry=may_retry):
                    return None
                # No time is left: the policy decides, also about the records behind it.
                may_retry = False
        # A shorter read may end before the record that fails, whose time continues.
        if next_offset >= self._record_retries.get(partition, (None, 0))[1]:
            self._record_retries.pop(partition, None)
        return carried

    async def _waits_for(
        self, error: StreamlogError, partition: TopicPartition, next_offset: int, *, may_retry: bool
    ) -> bool:
        """Plan the next attempt after an error that may pass; False if no time is left for it."""
        if may_retry and error.retriable and not isinstance(error, ProcessingError):
            first = RecordRetry(self._carrier.retries), next_offset
            retry, _ = self._record_retries.setdefault(partition, first)
            wait_ms = retry.fail(self._clock.now_ms(), self._chance())
            if wait_ms is not None:
                self._wait(error, wait_ms, "the record is tried again")
            return wait_ms is not None
        if not isinstance(error, Retriable):
            raise error
        # A serde's server is away. No record is at fault, so no policy ends the wait.
        self.figures.failures += 1
        self._waits_to_carry = True
        await self._retry(error, "its records are read again")
        return True

    async def _convert(
        self, partition: TopicPartition, columns: RecordColumns, *, may_retry: bool
    ) -> tuple[SinkRows, CarriedRead]:
        def carry() -> tuple[SinkRows, CarriedRead]:
            return self._carrier.carry(partition, columns, may_retry=may_retry)

        return await self._context.in_thread(carry) if self._carrier.may_block else carry()

    async def work(self, *, at_once: bool = False) -> None:
        """Recover new partitions, and commit what is due; repeats what failed when it is time.

        Args:
            at_once: whether everything that was taken is due, as at the end.

        Raises:
            Fenced: another task has the partitions; this one drops them.
            ProcessingError: the connector failed, or a record did and the policy is `FAIL`.
        """
        if self._must_follow and not await self._attempt(self._follow):
            return
        if self._retry_ms is not None:
            if self._clock.now_ms() < self._retry_ms and not at_once:
                return
            self._retry_ms = None
        self._waits_to_carry = False
        if (self._new or self._must_recover) and not await self._attempt(self._recover):
            return
        if self._task is None:
            return
        is_done = False
        while not is_done:
            if self._progress.streams and not await self._write_streamed():
                return
            chunks = self._progress.due(self._clock.now_ms(), at_once=at_once)
            is_done = not chunks or not await self._flush(chunks)
        if at_once and self._behind:
            await self._attempt(self._follow)

    async def revoke(self, partitions: Collection[TopicPartition], *, is_lost: bool) -> None:
        """Give up partitions, with a last commit unless others have them already."""
        # A commit of lost partitions would be refused, and might fence the new owner.
        if not is_lost:
            await self.work(at_once=True)
        # What could not be committed goes with the partitions: their next owner reads it again. The
        # rest of an open unit of work is written again here.
        await self._abort()
        gone = self._progress.parts.keys() & {*partitions}
        self._progress.revoke(partitions)
        self._rewind()
        for partition in partitions:
            self._new.pop(partition, None)
            self._behind.pop(partition, None)
            self._record_retries.pop(partition, None)
            self.seeks.pop(partition, None)
        if self._task is not None and gone:
            await self._task.revoked(gone)

    async def close(self) -> None:
        """Close the connector; nothing is committed here (see `revoke`)."""
        await self._disconnect()
        self._context.close()

    async def _recover(self) -> None:
        """Connect, if it is not connected, and find out where the partitions continue."""
        if self._task is None:
            task = self._sink.open(self._context)
            await task.__aenter__()
            self._task = task
        # An open unit of work of a streaming sink would hide in it what `recover` does.
        await self._abort()
        self._rewind()
        known = self._progress.parts
        again = [*known] if self._must_recover else []
        found = {**await self._task.recover([*self._new, *again])}
        is_transactional = self._sink.effect == "transactional"
        if is_transactional:
            found |= await self._forget_former_topics(self._task, found)
        for partition, (offset, metadata, *_) in self._new.items():
            start = found.get(partition, offset) if is_transactional else offset
            begun = WriteRange.decode(metadata) if self._sink.effect == "repeatable" else None
            self._progress.assign(partition, start, begun)
            self.seeks[partition] = start
        # Before the target has anything: its offsets are later known to be of this topic.
        first = {at: position for at, position in self._new.items() if not position.is_committed}
        if first:
            await self._log.commit({at: (self.seeks[at], "") for at in first})
        for partition in again if is_transactional else ():
            # 1. The target's answer to a commit is lost. 2. It may have committed nevertheless.
            # 3. Its own offset says so: what is in memory counts only from there on.
            start = found.get(partition, known[partition].committed)
            self._progress.resume(partition, start)
            self.seeks[partition] = start
        self._new.clear()
        self._must_recover = False

    async def _forget_former_topics(
        self, task: AnySinkTask, found: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the offsets for partitions whose target has those of a former topic.

        Raises:
            ConnectError: there are such partitions, and the position does not say to begin anew.
            Fenced: another task has begun one of them since this one was told its position.
        """
        # 1. The target has rows up to offset 5, and the topic is deleted, with the group's offsets.
        # 2. It is created again and gets 8 records. 3. A task that believed the target would
        # continue at 5, and five records would be missing without a trace.
        former = [at for at, each in self._new.items() if not each.is_committed and at in found]
        # 1. The group has no offset yet, and this task is suspended. 2. Another one gets the
        # partition, commits where it begins, and rows up to offset 5. 3. This task wakes up, and
        # finds 5 in the target: of this topic, not of a former one.
        if former and (begun := await self._log.with_offsets(former)):
            names = ", ".join(f"{topic}-{number}" for topic, number in sorted(begun))
            raise Fenced(f"another task has begun {names}")
        for topic, number in (at for at in former if not self._new[at].begins_anew):
            offset = found[TopicPartition(topic, number)]
            raise ConnectError(
                f"sink {self._context.name!r}: its target has the records of {topic}-{number} up "
                f"to offset {offset}, but its group has no offset of this topic: the topic was "
                "deleted and created again, or the group's offsets have expired. To write the "
                "topic from its beginning, reset the connector's offsets: in an app by `worker "
                "--source-lost earliest`, in the service by `connectors offsets NAME --reset`; to "
                "continue where the target is, commit its offset to the group"
            )
        if not former:
            return {}
        await task.reset(dict.fromkeys(former))
        # Once more: what was reset has no owner in the target any more.
        if still := await task.recover(former):
            names = ", ".join(f"{topic}-{number}" for topic, number in still)
            raise ConnectError(
                f"sink {self._context.name!r}: its target still has offsets of {names} after "
                f"`reset`: {type(task).__name__} has to forget them there"
            )
        return {at: self._new[at].offset for at in former}

    async def _write_streamed(self) -> bool:
        """Give a sink that takes records as they come those that have come; False if it failed."""
        repeating = self._progress.repeating
        if repeating is None:
            chunks = [part.open for part in self._progress.parts.values()]
        else:
            # Alone: everything since `begin` is committed together.
            chunks = [repeating.closed[0] if repeating.closed else repeating.open]

        async def attempt() -> None:
            for chunk in chunks:
                if len(chunk.rows):
                    await self._begin()
                    await self._write(chunk, chunk.rows)
                    chunk.rows = SinkRows(chunk.partition)

        return await self._attempt(attempt, [chunk for chunk in chunks if chunk.records])

    async def _flush(self, chunks: Sequence[FlushChunk]) -> bool:
        """Commit chunks by one commit; returns whether that was successful."""
        # The target would get an empty unit of work: a file without rows, an idle transaction.
        if not any(chunk.records for chunk in chunks):
            await self._pass(chunks)
            return True

        async def attempt() -> None:
            await self._begin()
            if not self._progress.streams:
                for chunk in chunks:
                    await self._write(chunk, chunk.rows)
            await self._commit(chunks)

        return await self._attempt(attempt, chunks)

    async def _begin(self) -> None:
        if not self._begun and self._task is not None:
            await self._task.begin()
            self._begun = True
            self._on_step("begin")

    async def _write(self, chunk: FlushChunk, rows: SinkRows) -> None:
        part = self._progress.parts[chunk.partition]
        left = rows.without(part.left_out)
        if not len(left) or self._task is None:
            return
        first, last = rows.offsets[0], rows.offsets[-1]
        is_first = chunk.first_row is not None and first == chunk.first_row.offset
        # A repeatable sink names what it writes by the first offset: that of the range, which is in
        # the log, and not that of a record, which may be left out the next time.
        start = chunk.start if is_first else first
        end = chunk.end if last < chunk.end else last + 1
        declared = self._schemas.get(chunk.partition.topic, (None, None))
        runs = schema_runs(left, declared)
        for at, (some, (keys, values)) in enumerate(runs):
            batch: Batch[Any, Any] = Batch.of_rows(
                some,
                first_offset=some.offsets[0] if at else start,
                next_offset=runs[at + 1][0].offsets[0] if at + 1 < len(runs) else end,
                schema=values,
                key_schema=keys,
            )
            await self._write_batch(self._task, batch, some)

    async def _write_batch(self, task: AnySinkTask, batch: Batch[Any, Any], rows: SinkRows) -> None:
        started_ms = self._clock.now_ms()
        try:
            await task.write(batch)
        except BadRecords as error:
            bad = {rows.offsets[index]: (rows.row(index), why) for index, why in error.why.items()}
            raise _Bad(batch.partition, bad) from error
        finally:
            self.figures.put_ms_max = max(
                self.figures.put_ms_max, self._clock.now_ms() - started_ms
            )
        self._on_step("write")

    async def _commit(self, chunks: Sequence[FlushChunk]) -> None:
        if self._task is None:
            return
        offsets = {chunk.partition: chunk.end for chunk in chunks}
        self._in_commit = True
        if self._sink.effect == "repeatable":
            # 1. The range [100, 220) is in the log. 2. The target commits it. 3. A crash. 4. The
            # next owner writes [100, 220) again: the same names, the same rows. Without step 1 it
            # would write [100, 250), a second file with 120 rows of the first one.
            ranges = {
                chunk.partition: (chunk.start, WriteRange(chunk.end, self._config).encode())
                for chunk in chunks
            }
            await self._log.commit(ranges)
            self._on_step("range")
        started_ms = self._clock.now_ms()
        await self._task.commit(offsets)
        took_ms = self._clock.now_ms() - started_ms
        self._begun = self._in_commit = False
        self.figures.committed(took_ms)
        self._on_step("target committed")
        for chunk in chunks:
            part = self._progress.parts[chunk.partition]
            self.figures.sent += chunk.records - sum(
                chunk.start <= offset < chunk.end for offset in part.left_out
            )
            part.commit(chunk)
        self.figures.commits += 1
        # Not when a new connection is there: one that breaks at each flush has to wait longer, too.
        self._backoff.succeed()
        if self.figures.waits_for:
            logger.info("sink %r: writes again", self._context.name)
        self.figures.waits_for = ""
        self._attempts.clear()
        self._behind |= offsets
        # A transactional target has the offsets that count; the group's are for lag tools alone.
        # Committed behind each flush, they would cost a busy sink a tenth of its time.
        if self._sink.effect != "transactional" or self._must_follow:
            await self._follow()

    @property
    def _must_follow(self) -> bool:
        return bool(self._behind) and self._clock.now_ms() - self._followed_ms >= FOLLOW_MS

    async def _follow(self) -> None:
        """Commit the target's offsets to the group; what it does not take stays for next time."""
        # Before the commit: one that fails is tried again an interval later, not in each round.
        self._followed_ms = self._clock.now_ms()
        await self._log.commit({at: (offset, "") for at, offset in self._behind.items()})
        self._behind.clear()
        self._on_step("group committed")

    async def _pass(self, chunks: Sequence[FlushChunk]) -> None:
        """Let the group's offsets pass offsets that have no records for the target."""
        # Markers and left-out records alone: without this, lag tools would show them for ever.
        for chunk in chunks:
            self._progress.parts[chunk.partition].commit(chunk)
            self._behind.pop(chunk.partition, None)
        await self._log.commit({chunk.partition: (chunk.end, "") for chunk in chunks})

    async def _attempt(
        self, action: Callable[[], Awaitable[None]], chunks: Sequence[FlushChunk] = ()
    ) -> bool:
        """Await an action; settles its failure, and returns whether it was successful."""
        self._in_commit = False
        try:
            await action()
        except Fenced:
            # Nothing is kept: whatever comes from here on would be written by two tasks.
            await self._abort()
            self._progress.revoke([*self._progress.parts])
            self._new.clear()
            self._behind.clear()
            raise
        except (ConfigError, ProcessingError):
            await self._abort()
            raise
        except Exception as error:  # noqa: BLE001 - the connector's: `_settle` decides
            self.figures.fail(self._clock.wall_ms())
            # Before it has begun, the target has seen no record that could be at fault.
            seen = chunks if self._begun else ()
            await self._abort()
            await self._settle(error, seen)
            return False
        return True

    async def _settle(self, error: Exception, chunks: Sequence[FlushChunk]) -> None:
        """Prepare what follows a failure: a repetition, halves, or the end."""
        is_repeatable = self._sink.effect == "repeatable"
        # A range that is in the log is repeated as it is, since the target may have it.
        begun = chunks if is_repeatable and self._in_commit else ()
        if isinstance(error, _Bad):
            for row, why in error.rows.values():
                await self._give_up(error.partition, row, ConnectError(why))
        elif self._is_of_connection(error):
            await self._retry(error)
        elif isinstance(error, StreamlogError) and not isinstance(error, ConnectError):
            raise error  # The log's, not the target's.
        else:
            await self._find_bad(error, chunks)
            begun = ()
        if self._progress.streams:
            self._rewind({chunk.partition: [chunk.end] for chunk in begun})
        else:
            # The open chunk would grow until the next attempt, and its range with it.
            for chunk in begun:
                self._progress.parts[chunk.partition].isolate(chunk)
        # Also after `Retriable`: an answer that was lost looks like a refusal from here.
        if self._in_commit and self._sink.effect == "transactional":
            self._must_recover = True

    def _is_of_connection(self, error: Exception) -> bool:
        return is_of_connection(error, self._sink.transient)

    async def _abort(self) -> None:
        """Forget what the target has not committed; a failure of that is only logged."""
        if self._task is None or not self._begun:
            return
        # Before the call: an abort that fails is not repeated, as the task is replaced then.
        self._begun = False
        self.figures.aborts += 1
        try:
            await self._task.abort()
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - the error before it decides what follows
            logger.warning("sink %r: error while it aborts: %r", self._context.name, error)

    def _rewind(self, ends: Mapping[TopicPartition, Sequence[int]] | None = None) -> None:
        """Read again from the log what is no longer in memory."""
        if not self._progress.streams:
            return
        for partition, part in self._progress.parts.items():
            planned = (ends or {}).get(partition, ())
            if part.next_offset > part.committed or planned:
                self.seeks[partition] = part.rewind(planned)

    async def _retry(self, error: Exception, then: str = "the flush is repeated") -> None:
        """Plan the next attempt; after a broken connection it opens a new task."""
        at_least_ms = error.after_ms if isinstance(error, Retriable) else None
        wait_ms = self._backoff.fail(self._chance(), at_least_ms=at_least_ms)
        self._wait(error, wait_ms, then)
        if not isinstance(error, Retriable):
            await self._disconnect(error)
            self._must_recover = True

    def _wait(self, error: Exception, wait_ms: int, what: str) -> None:
        self._retry_ms = self._clock.now_ms() + wait_ms
        self.figures.retries += 1
        self.figures.waits_for = reason(error)
        logger.warning(
            "sink %r: %s; %s, with a growing pause", self._context.name, reason(error), what
        )

    async def _disconnect(self, error: Exception | None = None) -> None:
        """Close the connector's task; waits for a limited time."""
        task, self._task = self._task, None
        if task is None:
            return
        try:
            async with asyncio.timeout(CLOSE_WAIT_MS / 1000):
                kind = None if error is None else type(error)
                await task.__aexit__(kind, error, None if error is None else error.__traceback__)
        except TimeoutError:
            logger.warning("sink %r was not closed in time", self._context.name)
        except Exception as failure:  # noqa: BLE001 - the error before it decides what follows
            logger.warning("sink %r: error while it closes: %r", self._context.name, failure)

    async def _find_bad(self, error: Exception, chunks: Sequence[FlushChunk]) -> None:
        """Divide what has failed without a name of the record at fault, or give that record up."""
        if self._carrier.policy.action == "fail" or not chunks:
            raise self._failure(error, chunks) from error
        parts = self._progress.parts
        if len(chunks) > 1:
            # First by partition, as each of them can be committed by itself.
            for chunk in chunks:
                parts[chunk.partition].close()
            self._rewind({chunk.partition: [chunk.end] for chunk in chunks})
            return
        (chunk,) = chunks
        part = parts[chunk.partition]
        if self._progress.streams:
            if chunk.records > 1 and chunk.end - chunk.start > 1:
                self._rewind({chunk.partition: [(chunk.start + chunk.end) // 2, chunk.end]})
                return
        elif part.split(chunk):
            return
        left = chunk.rows.without(part.left_out)
        row = left.row(0) if len(left) else chunk.first_row
        if row is None:
            raise self._failure(error, chunks) from error
        await self._give_up(chunk.partition, row, error)
        self._rewind({chunk.partition: [chunk.end]})

    async def _give_up(self, partition: TopicPartition, row: SinkRow, error: Exception) -> None:
        """Try a record again, or leave it out, as the policy says."""
        at = partition, row.offset
        attempt = self._attempts[at] = self._attempts.get(at, 0) + 1
        # One wait for each attempt of `on_error.retry`, as operators of streams count them.
        waits = [each.backoff_ms for each in self._carrier.policy.chain for _ in range(each.times)]
        if attempt <= len(waits):
            self._retry_ms = self._clock.now_ms() + waits[attempt - 1]
            self.figures.retries += 1
            return
        refused = self._carrier.give_up(partition, row, error, attempt)
        await self._write_letters(refused)
        self._progress.parts[partition].left_out.add(row.offset)

    async def _write_letters(self, refused: CarriedRead) -> None:
        self.figures.leave_out(refused.drops, self._clock.wall_ms())
        for drop in refused.drops:
            if drop.message:
                logger.warning("sink %r: %s: %s", self._context.name, drop.reason, drop.message)
        if refused.batches:
            await self._log.write_letters(refused.batches)

    def _failure(self, error: Exception, chunks: Sequence[FlushChunk]) -> ProcessingError:
        where = ", ".join(
            f"offsets {chunk.start} to {chunk.end - 1} of {chunk.partition.topic}-"
            f"{chunk.partition.partition}"
            for chunk in chunks
        )
        first = chunks[0] if chunks else None
        return ProcessingError(
            f"sink {self._context.name!r} failed{' with ' + where if where else ''}: "
            f"{type(error).__name__}: {error}",
            topic=first.partition.topic if first else "",
            partition=first.partition.partition if first else -1,
            offset=first.start if first else -1,
            node=self._context.name,
        )


class _Bad(Exception):
    """Records of a batch that a sink has named as bad."""

    def __init__(self, partition: TopicPartition, rows: Mapping[int, tuple[SinkRow, str]]) -> None:
        super().__init__(f"{len(rows)} bad records")
        self.partition, self.rows = partition, rows
