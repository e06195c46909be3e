"""check_sink: the conformance suite of sinks, over the calls that a worker makes.

Each life has a group of its own generation: kills before and behind every call of the connector and
at every step of a flush, broken connections, commits whose answer is lost, partitions that move
between two tasks, empty stretches of the log, and zombies: tasks that continue after their
partitions have gone to another one.

Rule: the log and the group are in memory, the connector and its target are real.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from streamlog.connect.connector_errors import Fenced
from streamlog.connect.declared_connectors import SinkConnector
from streamlog.connect.row_schema import Schema
from streamlog.connect.sink import SinkTask
from streamlog.connect.sink_rows import SinkRow, SinkRows
from streamlog.connect_tasks.carried import CarriedRead, SinkCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.sink_task import GroupPosition, SinkRunner
from streamlog.durations import moment
from streamlog.errors import ProcessingError, SerdeError
from streamlog.nodes.policies import on_error
from streamlog.processing.outbox import SinkBatch
from streamlog.random_source import Random
from streamlog.record import Record, TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.testing.connector_lives import (
    Killed,
    LifeClock,
    Outside,
    Steps,
    describe_rows,
    form_of,
)
from streamlog.testing.watched_sinks import HALF, AnySink, CallPlan, WatchedSink

TOPIC = "checked"
PARTITIONS = 2
TAKEN_MAX = 40
"""The most records that a task takes at once."""
NEW_MAX = 30
"""The most records that a partition gets in a life."""
GAP_RATE = 0.2
"""How likely offsets are missing before a record."""
RARELY = 0.3
"""How likely a choice falls on what has to happen now and then."""
FLUSHES_MAX = 200
"""The calls after which the last life counts as one that does not come to its end."""


async def check_sink(
    make: Callable[[], AnySink],
    outside: Outside,
    *,
    lives: int = 20,
    seed: int = 0,
    key: Callable[[int], object] = lambda number: f"key-{number}",
    value: Callable[[int], object] = lambda number: {"number": number},
) -> None:
    """Write records through a sink in many lives, and compare what is outside in the end.

    Rows have to be distinct for distinct records: the suite counts them. A `transactional` or
    `repeatable` sink has to write each once, an `appending` one at least once.

    Args:
        make: returns the sink, with the same settings each time.
        outside: the target; its `rows` has to return one row for each record.
        lives: the number of lives.
        seed: the seed of chance; equal seeds give equal lives.
        key: returns the key of a record, by its number.
        value: returns the value of a record, by its number.

    Raises:
        CheckFailed: rows are missing or too many, or a zombie moved the group's offsets.
    """
    world = _World(Random(seed), make, key, value, Steps(seed))
    await world.live_once(is_last=False, is_first=True)
    for _ in range(lives):
        await world.live_once(is_last=False)
    await world.live_once(is_last=True)
    world.compare(await outside.rows())
    await world.check_reset()


class _Group:
    """The offsets of the sink's group, with a generation that fences older tasks."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, tuple[int, str]] = {}
        self.owners: dict[TopicPartition, int] = {}


class _GroupMember:
    """`SinkLog` of one task."""

    def __init__(self, group: _Group, number: int) -> None:
        self._group, self._number = group, number

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets, unless another task has a partition by now."""
        if any(self._group.owners.get(at) != self._number for at in offsets):
            raise Fenced("the group has a newer generation")
        self._group.offsets.update(offsets)

    async def with_offsets(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions for which a task has committed an offset."""
        return self._group.offsets.keys() & {*partitions}

    async def write_letters(self, letters: Sequence[SinkBatch]) -> None:
        """Do nothing: no record of a suite is bad."""


class _Carrier(SinkCarrier):
    """Gives the runner the records of the suite, which have no serdes."""

    def __init__(
        self, sink: AnySink, records: Mapping[TopicPartition, Mapping[int, _Made]]
    ) -> None:
        connector = SinkConnector(name=TOPIC, sink=sink, topics=(), policy=on_error.FAIL)
        super().__init__(connector)
        self._records = records

    def carry(
        self, partition: TopicPartition, columns: RecordColumns, *, may_retry: bool = False
    ) -> tuple[SinkRows, CarriedRead]:
        del may_retry
        made = self._records[partition]
        rows = SinkRows.of(partition, [made[offset].row for offset in columns.offsets])
        return rows, CarriedRead()


@dataclass(frozen=True, slots=True)
class _Made:
    row: SinkRow
    log: LogRecord


@dataclass(slots=True)
class _Life:
    """One task of the sink with its partitions."""

    number: int
    runner: SinkRunner
    sink: WatchedSink
    plan: CallPlan
    partitions: list[TopicPartition]
    positions: dict[TopicPartition, int]
    flush: asyncio.Task[None] | None = None
    """The flush in which a zombie waits."""


class _World:
    """The log, the group, and the tasks of all lives."""

    def __init__(
        self,
        random: Random,
        make: Callable[[], AnySink],
        key: Callable[[int], object],
        value: Callable[[int], object],
        steps: Steps,
    ) -> None:
        self._random, self._make, self._steps = random, make, steps
        self._key, self._value = key, value
        self._clock, self._group = LifeClock(), _Group()
        self._partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        self._made: dict[TopicPartition, dict[int, _Made]] = {at: {} for at in self._partitions}
        self._ends = dict.fromkeys(self._partitions, 0)
        self._numbers = self._count = 0
        self._zombies: list[_Life] = []
        self._schemas = {TOPIC: (_schema_of(key(0)), _schema_of(value(0)))}

    async def live_once(self, *, is_last: bool, is_first: bool = False) -> None:
        """Let one or two tasks share the partitions until their life ends.

        Raises:
            CheckFailed: the last life does not come to its end, or a zombie moved offsets.
        """
        if not is_last:
            for at in self._partitions:
                self._write(at, self._random.randrange(NEW_MAX))
        shares = self._share(one=is_last or is_first)
        lives = [self._begin(share, is_quiet=is_last or is_first) for share in shares]
        for life in lives:
            try:
                await (self._finish(life) if is_last else self._live(life))
                await self._end(life, is_clean=is_last or self._random.random() < RARELY)
            except Killed:
                self._steps.note(f"task {life.number} is killed")
                await self._close(life)
            except Fenced:
                await self._close(life)
                raise self._steps.failure(
                    f"task {life.number} was fenced although it has the partitions"
                ) from None
        await self._wake_zombies()

    def compare(self, rows: Sequence[object]) -> None:
        """Compare the target's rows with the records.

        Raises:
            CheckFailed: rows are missing, or too many.
        """
        forms = Counter(map(form_of, rows))
        wanted = sum(map(len, self._made.values()))
        twice = Counter({row: number for row, number in forms.items() if number > 1})
        # Distinct records make distinct rows, so numbers suffice: no row needs to be understood.
        lost = wanted - len(forms)
        effect = self._make().effect
        if lost:
            what = f"lacks {lost}" if lost > 0 else f"has {-lost} too many"
            raise self._steps.failure(
                f"{wanted} records were written, and the target {what}; its rows have to be "
                f"distinct for distinct records, such as {next(iter(forms), 'none')}"
            )
        if twice and effect != "appending":
            raise self._steps.failure(
                f"the sink is {effect}, and the target has {describe_rows('twice', twice)}"
            )

    async def check_reset(self) -> None:
        """Set the target's offsets, if the sink can do that, and recover them.

        Raises:
            CheckFailed: the target's offset is not the one that was set.
        """
        sink = self._make()
        context = ConnectorContext(TOPIC, 0, self._clock)
        first, *others = self._partitions
        task = sink.open(context)
        if sink.effect != "transactional" or type(task).reset is SinkTask.reset:
            return
        # One partition is set, the others are forgotten: both forms of an operator's request.
        async with task:
            await task.reset({first: 7, **dict.fromkeys(others)})
            found = await task.recover(self._partitions)
        context.close()
        if dict(found) != {first: 7}:
            raise self._steps.failure(
                f"after reset({{{first}: 7, ...: None}}), recover returned {dict(found)}"
            )

    def _write(self, at: TopicPartition, count: int) -> None:
        for _ in range(count):
            # Gaps: transaction markers, and records that compaction has removed.
            offset = self._ends[at] + (
                self._random.randrange(4) if self._random.random() < GAP_RATE else 0
            )
            self._numbers += 1
            key, value = self._key(self._numbers), self._value(self._numbers)
            time_ms = self._clock.now_ms() + self._numbers
            raw = (_bytes_of(key), _bytes_of(value))
            record = Record(key, value, moment(time_ms), (), at.topic, at.partition, offset)
            log = LogRecord(offset, time_ms, *raw)
            self._made[at][offset] = _Made(SinkRow(record, *raw, time_ms), log)
            self._ends[at] = offset + 1
        if self._random.random() < RARELY:
            self._ends[at] += 1

    def _share(self, *, one: bool) -> list[list[TopicPartition]]:
        if one or self._random.random() < HALF:
            return [[*self._partitions]]
        return [[at] for at in self._random.sample(self._partitions, PARTITIONS)]

    def _begin(self, partitions: list[TopicPartition], *, is_quiet: bool) -> _Life:
        self._count += 1
        inner = self._make()
        plan = CallPlan(self._random, not is_quiet, not is_quiet, inner.transient)
        sink = WatchedSink(inner, plan)
        runner = SinkRunner(
            cast("AnySink", sink),
            ConnectorContext(TOPIC, 0, self._clock),
            _Carrier(inner, self._made),
            _GroupMember(self._group, self._count),
            self._clock,
            chance=self._random.random,
            schemas=self._schemas,
            on_step=lambda _step: plan.maybe_die(),
        )
        # From here on the group refuses the offsets of every earlier task.
        for at in partitions:
            self._group.owners[at] = self._count
        offsets = {at: GroupPosition(*self._group.offsets.get(at, (0, ""))) for at in partitions}
        runner.assign(offsets)
        positions = {at: position.offset for at, position in offsets.items()}
        self._steps.note(f"task {self._count} begins with {offsets}")
        return _Life(self._count, runner, sink, plan, partitions, positions)

    async def _live(self, life: _Life) -> None:
        for _ in range(self._random.randrange(2, 12)):
            await self._step(life, at_once=self._random.random() < RARELY)

    async def _finish(self, life: _Life) -> None:
        for _ in range(FLUSHES_MAX):
            await self._step(life, at_once=True)
            if all(life.runner.committed.get(at, -1) >= self._ends[at] for at in life.partitions):
                return
        raise self._steps.failure(
            f"the sink has not written everything after {FLUSHES_MAX} quiet calls: it has "
            f"{life.runner.committed} of {self._ends}"
        )

    async def _step(self, life: _Life, *, at_once: bool) -> None:
        await self._work(life, at_once=False)
        await self._take(life, at_once=at_once)
        self._clock.advance(self._random.randrange(2_000))
        await self._work(life, at_once=at_once)

    async def _take(self, life: _Life, *, at_once: bool) -> None:
        runner = life.runner
        for at in life.partitions:
            # While the target is behind, or has a range to repeat, an owner brings nothing.
            if not runner.wanted([at]) or (not at_once and self._random.random() < RARELY):
                continue
            start = life.positions[at]
            until = self._ends[at]
            if not at_once or self._random.random() < HALF:
                until = min(until, start + self._random.randrange(1, TAKEN_MAX))
            # As a consumer gives them: records have gaps, and the position is behind the gaps.
            offsets = [offset for offset in self._made[at] if start <= offset < until]
            columns = RecordColumns.of(self._made[at][offset].log for offset in offsets)
            await runner.take(at, columns, until)
            life.positions[at] = max(until, start)
            self._seek(life)

    async def _work(self, life: _Life, *, at_once: bool) -> None:
        try:
            await life.runner.work(at_once=at_once)
        except ProcessingError as error:
            raise self._steps.failure(f"task {life.number} failed: {error}") from error
        self._seek(life)
        self._steps.note(f"task {life.number} has {life.runner.committed}")

    def _seek(self, life: _Life) -> None:
        life.positions.update(life.runner.seeks)
        life.runner.seeks.clear()

    async def _end(self, life: _Life, *, is_clean: bool) -> None:
        if is_clean:
            self._steps.note(f"task {life.number} stops")
            await life.runner.revoke(life.partitions, is_lost=False)
            await self._close(life)
        elif not self._can_wake(life) or self._random.random() < HALF:
            self._steps.note(f"task {life.number} is killed between two calls")
            await self._close(life)
        else:
            self._steps.note(f"task {life.number} becomes a zombie")
            life.plan.may_die = life.plan.may_break = False
            await self._take(life, at_once=True)
            # A transaction that stays open would hold its locks. The others wait in their commit,
            # where a repeatable sink has its range in the log.
            if life.sink.effect != "transactional":
                await self._stop_in_commit(life)
            self._zombies.append(life)

    async def _stop_in_commit(self, life: _Life) -> None:
        stopped, loop = life.plan.stop_in_commit, asyncio.get_running_loop()
        stopped.is_wanted = True
        life.flush = loop.create_task(life.runner.work(at_once=True))
        life.flush.add_done_callback(lambda _: stopped.reached.set())
        await stopped.reached.wait()

    def _can_wake(self, life: _Life) -> bool:
        # A task that has not recovered is no zombie yet: what it does first fences the others.
        return bool(life.runner.committed)

    async def _close(self, life: _Life) -> None:
        life.plan.may_die = life.plan.may_break = False
        await life.runner.close()

    async def _wake_zombies(self) -> None:
        """Let tasks continue whose partitions have gone to another one."""
        kept: list[_Life] = []
        for life in self._zombies:
            owners = {self._group.owners[at] for at in life.partitions}
            # Its successor was killed before the group knew of it: still the owner, no zombie.
            if life.number in owners:
                kept.append(life)
                continue
            before = dict(self._group.offsets)
            life.plan.stop_in_commit.resumed.set()
            try:
                await (life.flush or life.runner.work(at_once=True))
            except Fenced:
                self._steps.note(f"zombie {life.number} is fenced")
            else:
                # It had nothing to write, or has learnt from the target that others wrote it.
                self._steps.note(f"zombie {life.number} wrote nothing")
            if before != self._group.offsets:
                raise self._steps.failure(f"zombie {life.number} moved the group's offsets")
            await self._close(life)
        self._zombies = kept


def _schema_of(value: object) -> Schema | None:
    if value is None or isinstance(value, bytes | dict):
        return None
    try:
        return Schema.of(type(value))
    except SerdeError:
        return None


def _bytes_of(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr)
