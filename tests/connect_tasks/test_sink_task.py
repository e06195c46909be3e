"""The calls of a sink task: kills at every step, zombies, broken connections, bad records."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

import pytest

from streamlog.connect import (
    BadRecords,
    Batch,
    ConnectError,
    Fenced,
    Flush,
    Retriable,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connect.declared_connectors import SinkConnector
from streamlog.connect.retries import RecordRetries
from streamlog.connect_tasks.carried import SinkCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.sink_task import FOLLOW_MS, GroupPosition, SinkRunner, config_of
from streamlog.errors import ConfigError, LogError, ProcessingError, StreamlogError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.error_handling import OFFSET
from streamlog.processing.outbox import SinkBatch
from streamlog.records.record_columns import RecordColumns
from streamlog.serdes import serde_for
from streamlog.serdes.erased_types import AnyRecord

SPEC = TopicSpec("t", serde_for(str), serde_for(int))
PARTS = [TopicPartition("t", 0), TopicPartition("t", 1)]
STEPS = ("begin", "write", "range", "target committed", "group committed")


class Killed(BaseException):
    """The process ends here."""


class Clock:
    """Time that moves when it is slept or told."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms

    async def sleep_ms(self, time_ms: int) -> None:
        self.ms += time_ms


class Group:
    """The sink's group and its log: gaps stand for transaction markers."""

    def __init__(self, random: Random, count: int, *, first: int = 100) -> None:
        self.rows = {part: self._fill(random, count, first) for part in PARTS}
        self.offsets: dict[TopicPartition, tuple[int, str]] = dict.fromkeys(PARTS, GroupPosition(0))
        self.owner: object = None
        self.letters: list[SinkBatch] = []
        self.failures: list[Exception] = []
        """What the next commits raise."""

    @staticmethod
    def _fill(random: Random, count: int, first: int) -> list[tuple[int, int]]:
        offset, rows = 0, []
        for number in range(count):
            offset += 1 + (random.random() < 0.1)
            rows.append((offset, first + number))
        return rows

    def end(self, part: TopicPartition) -> int:
        return self.rows[part][-1][0] + 2

    def read(self, part: TopicPartition, start: int, limit: int) -> tuple[RecordColumns, int]:
        """Columns from an offset on, and the position behind them."""
        left = [each for each in self.rows[part] if each[0] >= start]
        columns = RecordColumns()
        for offset, number in left[:limit]:
            columns.add(offset, offset, b"k", SPEC.value.dumps(number), None)
        return columns, left[limit][0] if len(left) > limit else self.end(part)


class Member:
    """A member of the group, by which a zombie is refused."""

    def __init__(self, group: Group) -> None:
        self.group = group
        group.owner = self

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        if self.group.owner is not self:
            raise Fenced("the group has another owner")
        if self.group.failures:
            raise self.group.failures.pop()
        self.group.offsets.update(offsets)

    async def with_offsets(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        return self.group.offsets.keys() & {*partitions}

    async def write_letters(self, letters: Sequence[SinkBatch]) -> None:
        self.group.letters += letters


class Target:
    """What is outside: rows, files by name, offsets with their epochs."""

    def __init__(self) -> None:
        self.rows: list[tuple[TopicPartition, int]] = []
        self.files: dict[str, list[tuple[TopicPartition, int]]] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.epochs: Counter[TopicPartition] = Counter()
        self.trouble: Callable[[str], None] = lambda _call: None
        self.gate: asyncio.Event | None = None
        self.waiting = asyncio.Event()

    @property
    def all_rows(self) -> Counter[tuple[TopicPartition, int]]:
        return Counter([*self.rows, *(row for many in self.files.values() for row in many)])


class Table(Sink[str, int], frozen=True, kw_only=True):
    """Rows and offsets in one step."""

    effect = "transactional"
    target: ClassVar[Target]

    def open(self, context: SinkContext) -> SinkTask[str, int]:
        return TableTask(self.target)


class TableTask(SinkTask[str, int]):
    def __init__(self, target: Target) -> None:
        self.target = target
        self.epochs: dict[TopicPartition, int] = {}
        self.open: list[tuple[TopicPartition, int]] | None = None

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.target.trouble("recover")
        for part in partitions:
            self.target.epochs[part] += 1
            self.epochs[part] = self.target.epochs[part]
        return {p: self.target.offsets[p] for p in partitions if p in self.target.offsets}

    async def begin(self) -> None:
        assert self.open is None
        self.target.trouble("begin")
        self.open = []

    async def write(self, batch: Batch[str, int]) -> None:
        assert self.open is not None
        self.target.trouble("write")
        bad = {at: "negative" for at, value in enumerate(batch.values) if value < 0}
        if bad:
            raise BadRecords(bad)
        if 13 in batch.values:
            raise ValueError("numeric field overflow")
        self.open += [(batch.partition, record.offset) for record in batch.records]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert self.open is not None
        self.target.trouble("commit")
        if any(self.epochs[part] != self.target.epochs[part] for part in offsets):
            raise Fenced("another epoch")
        self.target.rows += self.open
        self.target.offsets.update(offsets)
        self.open = None
        self.target.trouble("committed")

    async def abort(self) -> None:
        self.open = None

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        for part in offsets:
            self.target.offsets.pop(part, None)


class LateTable(Table, frozen=True, kw_only=True):
    """A table that looks at its rows when they are committed, as deferred constraints do."""

    def open(self, context: SinkContext) -> SinkTask[str, int]:
        return LateTask(self.target)


class LateTask(TableTask):
    async def begin(self) -> None:
        await super().begin()
        self.has_bad = False

    async def write(self, batch: Batch[str, int]) -> None:
        assert self.open is not None
        self.has_bad |= 13 in batch.values
        self.open += [(batch.partition, record.offset) for record in batch.records]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.has_bad:
            raise ValueError("numeric field overflow")
        await super().commit(offsets)


class Files(Sink[str, int], frozen=True, kw_only=True):
    """Files named by their first offset, which appear at the commit."""

    effect = "repeatable"
    target: ClassVar[Target]
    directory: str = "/out"

    def open(self, context: SinkContext) -> SinkTask[str, int]:
        return FilesTask(self.target)


class FilesTask(SinkTask[str, int]):
    def __init__(self, target: Target) -> None:
        self.target = target
        self.open: dict[str, list[tuple[TopicPartition, int]]] = {}
        self.names: dict[TopicPartition, str] = {}

    async def begin(self) -> None:
        self.target.trouble("begin")

    async def write(self, batch: Batch[str, int]) -> None:
        self.target.trouble("write")
        if 13 in batch.values:
            raise ValueError("no such number")
        name = self.names.setdefault(batch.partition, f"{batch.partition}+{batch.first_offset}")
        rows = [(batch.partition, record.offset) for record in batch.records]
        self.open[name] = [*self.open.get(name, []), *rows]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.target.gate is not None:
            gate, self.target.gate = self.target.gate, None
            self.target.waiting.set()
            await gate.wait()
        for name, rows in self.open.items():
            self.target.trouble("commit")
            self.target.files[name] = rows
        self.open, self.names = {}, {}
        self.target.trouble("committed")

    async def abort(self) -> None:
        self.open, self.names = {}, {}


class Stream(Files, frozen=True, kw_only=True):
    """The same, given records as they come."""

    streams = True


class Printer(Files, frozen=True, kw_only=True):
    """Rows that come twice when they are written twice."""

    effect = "appending"

    def open(self, context: SinkContext) -> SinkTask[str, int]:
        return PrinterTask(self.target)


class PrinterTask(FilesTask):
    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.target.rows += [row for rows in self.open.values() for row in rows]
        self.open, self.names = {}, {}


def make(
    kind: type[Sink[str, int]],
    target: Target,
    group: Group,
    clock: Clock,
    *,
    policy: ErrorPolicy = on_error.FAIL,
    on_step: Callable[[str], None] = lambda _: None,
    records: int = 7,
    **more: Any,
) -> SinkRunner:
    kind.target = target  # type: ignore[attr-defined]
    sink = kind(flush=Flush(records=records, every="1h"))
    connector = SinkConnector(
        name="s", sink=sink, topics=[SPEC], policy=policy.named("app"), **more
    )
    return SinkRunner(
        sink,
        ConnectorContext("s", 0, clock),
        SinkCarrier(connector),
        Member(group),
        clock,
        chance=lambda: 0.0,
        on_step=on_step,
    )


async def live(
    runner: SinkRunner, group: Group, random: Random, *, until_done: bool = False
) -> None:
    """One life: bring records in portions, until all of them are committed or the life ends."""
    runner.assign({part: GroupPosition(*group.offsets[part]) for part in PARTS})
    at: dict[TopicPartition, int] = {}
    for _ in range(2_000):
        await runner.work()
        if runner.retry_in_ms is not None:
            await runner._clock.sleep_ms(runner.retry_in_ms)
        at |= runner.seeks
        runner.seeks.clear()
        for part in PARTS:
            if part in at and runner.wanted([part]):
                columns, at[part] = group.read(part, at[part], random.randint(1, 9))
                await runner.take(part, columns, at[part])
        if all(at.get(part) == group.end(part) for part in PARTS):
            await runner.work(at_once=True)
            if all(runner.committed.get(part) == group.end(part) for part in PARTS):
                return
    assert not until_done


def expected(group: Group) -> Counter[tuple[TopicPartition, int]]:
    return Counter((part, offset) for part, rows in group.rows.items() for offset, _ in rows)


class Lives:
    """Lives that end at a step of a flush or inside of a call, and zombies that continue."""

    def __init__(self, kind: type[Sink[str, int]], seed: int) -> None:
        self.kind, self.random = kind, Random(seed)
        self.group, self.target = Group(self.random, 150), Target()
        self.clock = Clock()
        self.zombies: list[SinkRunner] = []
        self.kills = 0
        self._step, self._left = "", 0

    async def end_one(self) -> None:
        """One life that ends somewhere, unless it gets through."""
        steps = [each for each in STEPS if each != "range" or issubclass(self.kind, Files)]
        steps = [each for each in steps if each != "range" or self.kind is not Printer]
        self._step, self._left = self.random.choice(steps), self.random.randint(0, 3)
        self.target.trouble = self._trouble
        runner = make(
            self.kind,
            self.target,
            self.group,
            self.clock,
            on_step=self._on_step,
            records=self.random.randint(3, 30),
        )
        try:
            await live(runner, self.group, self.random)
        except Killed:
            self.zombies.append(runner)

    async def wake_one(self) -> None:
        """A zombie continues, while another member has its partitions."""
        Member(self.group)
        zombie = self.zombies.pop()
        zombie._on_step = lambda _: None
        self.target.trouble = lambda _call: None
        if self.kind is Table:
            await TableTask(self.target).recover(PARTS)
        with suppress(Fenced, ProcessingError):
            await zombie.work(at_once=True)

    def _on_step(self, name: str) -> None:
        self._left -= name == self._step
        if self._left < 0:
            self.kills += 1
            raise Killed

    def _trouble(self, _call: str) -> None:
        if self.random.random() < 0.03:
            raise self.random.choice([Retriable("later"), OSError("gone"), Killed()])


@pytest.mark.parametrize("kind", [Table, Files, Stream, Printer])
@pytest.mark.parametrize("seed", range(8))
def test_every_record_arrives_once_over_kills_and_zombies(
    kind: type[Sink[str, int]], seed: int
) -> None:
    async def story() -> Lives:
        lives = Lives(kind, seed)
        for _ in range(40):
            await lives.end_one()
            if lives.zombies and lives.random.random() < 0.3:
                await lives.wake_one()
        lives.target.trouble = lambda _call: None
        last = make(kind, lives.target, lives.group, lives.clock)
        await live(last, lives.group, lives.random, until_done=True)
        return lives

    lives = asyncio.run(story())
    if kind is Printer:
        assert not expected(lives.group) - lives.target.all_rows, "none is lost"
    else:
        assert lives.target.all_rows == expected(lives.group)
    assert lives.kills


@pytest.mark.parametrize("kind", [Files, Stream])
def test_a_zombie_can_only_finish_the_range_that_its_successor_repeats(
    kind: type[Sink[str, int]],
) -> None:
    """It stands still between its range and its files, and wakes when all is written."""

    async def story() -> None:
        random, clock, target = Random(4), Clock(), Target()
        group = Group(random, 100)
        target.gate = gate = asyncio.Event()
        zombie = make(kind, target, group, clock, records=20)
        suspended = asyncio.create_task(live(zombie, group, random))
        await target.waiting.wait()
        assert any(metadata for _, metadata in group.offsets.values())
        # The successor flushes at other sizes, and polls other portions.
        successor = make(kind, target, group, clock, records=13)
        await live(successor, group, Random(5), until_done=True)
        assert target.all_rows == expected(group)
        gate.set()
        with pytest.raises(Fenced):
            await suspended
        assert target.all_rows == expected(group)

    asyncio.run(story())


@pytest.mark.parametrize("kind", [Table, LateTable, Files, Stream])
def test_a_bad_record_is_found_and_set_aside(kind: type[Sink[str, int]]) -> None:
    """One record of a flush can't be written, and the error does not say which one."""

    async def story() -> None:
        random, clock, target = Random(1), Clock(), Target()
        group = Group(random, 60, first=0)
        runner = make(kind, target, group, clock, policy=on_error.dlq("bad"), records=100)
        await live(runner, group, random, until_done=True)
        bad = {(part, offset) for part, rows in group.rows.items() for offset, n in rows if n == 13}
        assert target.all_rows == expected(group) - Counter(bad)
        letters = [
            int(dict(headers)[OFFSET]) for batch in group.letters for headers in batch.headers or ()
        ]
        assert sorted(letters) == sorted(offset for _, offset in bad)
        assert runner.figures.dead_letters == 2
        assert {batch.topic for batch in group.letters} == {"bad"}

    asyncio.run(story())


@pytest.mark.parametrize("kind", [Table, Files, Stream, Printer])
@pytest.mark.parametrize("call", ["begin", "write"])
def test_a_target_that_refuses_everything_blames_no_record(
    kind: type[Sink[str, int]], call: str
) -> None:
    """`begin` has seen no record; for `write`, the class of the error says it."""
    wrong: StreamlogError = ConfigError("wrong password")
    said = "wrong password"
    if call == "begin":
        wrong, said = (
            ConnectError("wrong password"),
            "sink 's' failed: ConnectError: wrong password",
        )

    async def story() -> None:
        random, clock, target = Random(1), Clock(), Target()
        group = Group(random, 40)

        def trouble(at: str) -> None:
            if at == call and target.all_rows:
                raise wrong

        target.trouble = trouble
        runner = make(kind, target, group, clock, policy=on_error.dlq("bad"))
        with pytest.raises(StreamlogError) as caught:
            await live(runner, group, random, until_done=True)
        assert str(caught.value) == said
        assert group.letters == []

    asyncio.run(story())


def test_records_that_the_sink_names_go_to_the_policy_without_halving() -> None:
    async def story() -> None:
        random, clock, target = Random(1), Clock(), Target()
        group = Group(random, 10)
        group.rows[PARTS[0]][3] = (group.rows[PARTS[0]][3][0], -1)
        runner = make(Table, target, group, clock, policy=on_error.skip(), records=100)
        await live(runner, group, random, until_done=True)
        assert runner.figures.skipped == 1
        assert runner.figures.commits == 1
        assert sum(target.all_rows.values()) == 19

    asyncio.run(story())


def test_under_fail_the_error_names_the_offsets() -> None:
    async def story() -> None:
        random, clock, target = Random(1), Clock(), Target()
        group = Group(random, 20, first=0)
        with pytest.raises(ProcessingError, match=r"sink 's' failed with offsets \d+ to \d+ of t-"):
            await live(make(Table, target, group, clock), group, random)

    asyncio.run(story())


def test_a_policy_with_retries_tries_the_record_again_first() -> None:
    async def story() -> None:
        random, clock, target = Random(1), Clock(), Target()
        group = Group(random, 20, first=0)
        policy = on_error.retry(3, backoff="1s", then=on_error.skip())
        runner = make(Table, target, group, clock, policy=policy, records=100)
        started_ms = clock.now_ms()
        await live(runner, group, random, until_done=True)
        assert runner.figures.skipped == 2
        assert clock.now_ms() - started_ms >= 6_000

    asyncio.run(story())


def test_a_broken_connection_opens_a_new_task_and_waits_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        random, clock, target = Random(1), Clock(), Target()
        group = Group(random, 5)
        failures = 0

        def trouble(call: str) -> None:
            nonlocal failures
            if call == "begin" and failures < 4:
                failures += 1
                raise ConnectionResetError("gone")

        target.trouble = trouble
        runner = make(Table, target, group, clock)
        started_ms = clock.now_ms()
        await live(runner, group, random, until_done=True)
        assert clock.now_ms() - started_ms == 300 + 600 + 1_200 + 2_400
        assert target.epochs[PARTS[0]] == 5, "it recovers in every new task"
        assert target.all_rows == expected(group)

    with caplog.at_level("INFO"):
        asyncio.run(story())
    messages = [each.getMessage() for each in caplog.records]
    assert any("ConnectionResetError: gone; " in each for each in messages)
    assert sum("writes again" in each for each in messages) == 1


def test_a_commit_whose_answer_is_lost_is_not_made_twice() -> None:
    async def story() -> None:
        random, clock, target = Random(3), Clock(), Target()
        group = Group(random, 30)
        lost = 0

        def trouble(call: str) -> None:
            nonlocal lost
            if call == "committed" and random.random() < 0.5:
                lost += 1
                raise random.choice([Retriable("no answer"), TimeoutError("no answer")])

        target.trouble = trouble
        await live(make(Table, target, group, clock), group, random, until_done=True)
        assert lost
        assert target.all_rows == expected(group)

    asyncio.run(story())


def test_a_range_of_other_settings_is_refused_with_both_ways_out() -> None:
    clock, target = Clock(), Target()
    group = Group(Random(0), 5)
    runner = make(Files, target, group, clock)
    with pytest.raises(
        ConnectError, match=r"put the former settings back.* --forget-range --execute"
    ):
        runner.assign({PARTS[0]: GroupPosition(3, "streamlog:until=9,config=00000000")})
    assert config_of(Files(flush=Flush(records=3))) == config_of(Files())
    assert config_of(Files(directory="/b")) != config_of(Files())


def test_an_unreadable_record_is_a_dead_letter_before_the_commit_passes_it() -> None:
    async def story() -> None:
        clock, target = Clock(), Target()
        group = Group(Random(0), 3)
        runner = make(Table, target, group, clock, policy=on_error.dlq("bad"))
        runner.assign(dict.fromkeys(PARTS, GroupPosition(0)))
        await runner.work()
        runner.seeks.clear()
        columns = RecordColumns()
        for offset, value in enumerate((SPEC.value.dumps(1), b"bad", SPEC.value.dumps(3))):
            columns.add(offset, 0, b"k", value, None)
        await runner.take(PARTS[0], columns, 3)
        assert [batch.values for batch in group.letters] == [[b"bad"]]
        await runner.work(at_once=True)
        assert [offset for _, offset in target.rows] == [0, 2]
        assert group.offsets[PARTS[0]] == (3, "")

    asyncio.run(story())


@pytest.mark.parametrize(("failures", "letters"), [(3, 0), (99, 1)])
def test_a_transform_that_fails_for_now_is_tried_again_until_the_time_is_over(
    failures: int, letters: int
) -> None:
    async def story() -> None:
        clock, target, group = Clock(), Target(), Group(Random(1), 40)
        wanted = expected(group)
        left, begun_ms = [failures], clock.now_ms()

        def look_up(record: AnyRecord) -> AnyRecord:
            if record.partition == 0 and record.offset == 5 and left[0]:
                left[0] -= 1
                raise Retriable("the registry does not answer")
            return record

        runner = make(
            Table, target, group, clock, policy=on_error.dlq("bad"), transforms=[look_up],
            retries=RecordRetries(timeout_ms=4_000),
        )  # fmt: skip
        await live(runner, group, Random(2), until_done=True)
        assert sum(len(batch.values) for batch in group.letters) == letters
        assert Counter(target.rows) + Counter({(PARTS[0], 5): letters}) == wanted
        assert runner.figures.retries == (3 if failures == 3 else 4)
        # 300, 600, 1,200, and what is left of the time.
        waited_ms = 2_100 if failures == 3 else 4_000
        assert clock.now_ms() - begun_ms >= waited_ms
        assert runner.figures.dead_letters == letters

    asyncio.run(story())


def test_without_a_time_for_retries_the_policy_decides_at_once() -> None:
    async def story() -> None:
        clock, target, group = Clock(), Target(), Group(Random(1), 40)

        def fail(record: AnyRecord) -> AnyRecord:
            raise Retriable("the registry does not answer")

        runner = make(Table, target, group, clock, policy=on_error.dlq("bad"), transforms=[fail])
        await live(runner, group, Random(2), until_done=True)
        assert not target.rows
        assert runner.figures.retries == 0
        assert runner.figures.dead_letters == sum(expected(group).values())

    asyncio.run(story())


def test_offsets_without_records_are_passed_without_a_commit_of_the_target() -> None:
    async def story() -> None:
        clock, target = Clock(), Target()
        group = Group(Random(0), 3)
        runner = make(Files, target, group, clock)
        runner.assign(dict.fromkeys(PARTS, GroupPosition(0)))
        await runner.work()
        runner.seeks.clear()
        await runner.take(PARTS[0], RecordColumns(), 9)
        await runner.work(at_once=True)
        assert group.offsets[PARTS[0]] == (9, "")
        assert runner.figures.commits == 0

    asyncio.run(story())


def test_offsets_of_a_former_topic_are_not_believed() -> None:
    async def story() -> None:
        clock, target = Clock(), Target()
        group = Group(Random(0), 3)
        target.offsets[PARTS[0]] = 2
        del group.offsets[PARTS[0]]
        runner = make(Table, target, group, clock)
        runner.assign({PARTS[0]: GroupPosition(0, is_committed=False)})
        with pytest.raises(ProcessingError, match="deleted and created again") as raised:
            await runner.work()
        assert "up to offset 2" in str(raised.value)
        allowed = make(Table, target, group, clock)
        allowed.assign({PARTS[0]: GroupPosition(0, is_committed=False, begins_anew=True)})
        await allowed.work()
        assert allowed.seeks == {PARTS[0]: 0}
        assert PARTS[0] not in target.offsets
        assert group.offsets[PARTS[0]] == (0, ""), "from here on the target is believed"

    asyncio.run(story())


@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_task_that_stood_still_before_it_began_leaves_the_rows_of_its_successor(
    begins_anew: bool,
) -> None:
    async def story() -> None:
        clock, target = Clock(), Target()
        group = Group(Random(0), 3)
        del group.offsets[PARTS[0]]
        late = make(Table, target, group, clock)
        late.assign({PARTS[0]: GroupPosition(0, is_committed=False, begins_anew=begins_anew)})
        # Its session ends here: another task gets the partition, and carries all rows.
        successor = make(Table, target, group, clock)
        successor.assign({PARTS[0]: GroupPosition(0, is_committed=False)})
        await successor.work()
        successor.seeks.clear()
        await successor.take(PARTS[0], *group.read(PARTS[0], 0, 3))
        await successor.work(at_once=True)
        rows, offsets = [*target.rows], dict(target.offsets)
        assert len(rows) == 3
        with pytest.raises(Fenced, match=f"another task has begun {PARTS[0].topic}-"):
            await late.work()
        assert target.rows == rows
        assert target.offsets == offsets

    asyncio.run(story())


def test_what_is_read_is_progress_until_a_flush_is_due() -> None:
    async def story() -> None:
        clock, target = Clock(), Target()
        group = Group(Random(0), 3)
        runner = make(Table, target, group, clock, records=3)
        runner.assign(dict.fromkeys(PARTS, GroupPosition(0)))
        await runner.work()
        runner.seeks.clear()
        for end, reached in ((1, 1), (2, 2), (3, 0)):
            columns, _ = group.read(PARTS[0], end - 1, 1)
            await runner.take(PARTS[0], columns, end)
            assert runner.reached[PARTS[0]] == reached
        await runner.work()
        assert runner.reached[PARTS[0]] == runner.committed[PARTS[0]] == 3

    asyncio.run(story())


async def flushed(runner: SinkRunner, group: Group, part: TopicPartition, count: int) -> None:
    """Read the next records of a partition, and let them be committed."""
    columns, position = group.read(part, runner.committed[part], count)
    await runner.take(part, columns, position)
    await runner.work()
    assert runner.committed[part] == position


@pytest.mark.parametrize("kind", [Table, Files])
def test_the_group_follows_a_transactional_target_at_intervals(kind: type[Sink[str, int]]) -> None:
    async def story() -> None:
        clock, target, steps = Clock(), Target(), list[str]()
        group = Group(Random(0), 20)
        runner = make(kind, target, group, clock, records=1, on_step=steps.append)
        runner.assign(dict.fromkeys(PARTS, GroupPosition(0)))
        await runner.work()
        runner.seeks.clear()

        def moved() -> int:
            return steps.count("group committed")

        for part in (PARTS[0], PARTS[0], PARTS[1]):
            await flushed(runner, group, part, 2)
        if kind is Files:
            assert moved() == 3, "its offsets are in the group, and count"
            return
        assert moved() == 1, "the first at once"
        assert not runner.is_idle, "the owner comes back before long"
        clock.ms += FOLLOW_MS - 1
        await runner.work()
        assert moved() == 1
        clock.ms += 1
        await runner.work()
        assert moved() == 2
        assert {at: offset for at, (offset, _) in group.offsets.items()} == runner.committed
        assert runner.is_idle
        # Markers alone are passed at once, and what is behind does not take that back.
        await flushed(runner, group, PARTS[0], 2)
        end = runner.committed[PARTS[0]] + 1
        await runner.take(PARTS[0], RecordColumns(), end)
        await runner.work(at_once=True)
        assert group.offsets[PARTS[0]] == (end, "")
        # What is left is committed at the end, and what others have by then is not.
        for part in PARTS:
            await flushed(runner, group, part, 2)
        await runner.revoke(PARTS[:1], is_lost=True)
        await runner.revoke(PARTS[1:], is_lost=False)
        assert group.offsets[PARTS[0]] == (end, "")
        assert group.offsets[PARTS[1]][0] == target.offsets[PARTS[1]]

    asyncio.run(story())


@pytest.mark.parametrize("failure", [Retriable("away"), LogError("away")])
def test_what_the_group_does_not_take_is_committed_without_another_flush(
    failure: Exception,
) -> None:
    async def story() -> None:
        clock, target = Clock(), Target()
        group = Group(Random(0), 20)
        runner = make(Table, target, group, clock, records=1)
        runner.assign(dict.fromkeys(PARTS, GroupPosition(0)))
        await runner.work()
        runner.seeks.clear()
        for _ in range(2):
            await flushed(runner, group, PARTS[0], 2)
        clock.ms += FOLLOW_MS
        group.failures.append(failure)
        with suppress(LogError):
            await runner.work()
        assert not group.failures
        assert not runner.is_idle, "the owner comes back before long"
        # Not in each round: a group that is away would be asked all the time.
        await runner.work()
        assert group.offsets[PARTS[0]][0] < target.offsets[PARTS[0]]
        clock.ms += FOLLOW_MS
        await runner.work()
        assert group.offsets[PARTS[0]][0] == target.offsets[PARTS[0]]

    asyncio.run(story())


def test_a_fenced_task_leaves_the_group_where_its_successor_has_put_it() -> None:
    async def story() -> None:
        clock, target = Clock(), Target()
        group = Group(Random(0), 20)
        runner = make(Table, target, group, clock, records=1)
        runner.assign(dict.fromkeys(PARTS, GroupPosition(0)))
        await runner.work()
        runner.seeks.clear()
        for _ in range(2):
            await flushed(runner, group, PARTS[0], 2)
        await TableTask(target).recover(PARTS)
        columns, position = group.read(PARTS[0], runner.committed[PARTS[0]], 2)
        await runner.take(PARTS[0], columns, position)
        with pytest.raises(Fenced):
            await runner.work()
        group.offsets[PARTS[0]] = (position + 9, "")
        clock.ms += FOLLOW_MS
        await runner.work(at_once=True)
        assert group.offsets[PARTS[0]] == (position + 9, "")

    asyncio.run(story())


def test_revoked_partitions_are_committed_first() -> None:
    async def story() -> None:
        clock, target = Clock(), Target()
        group = Group(Random(0), 3)
        runner = make(Table, target, group, clock)
        runner.assign(dict.fromkeys(PARTS, GroupPosition(0)))
        await runner.work()
        runner.seeks.clear()
        for part in PARTS:
            columns, position = group.read(part, 0, 2)
            await runner.take(part, columns, position)
        await runner.revoke(PARTS[:1], is_lost=False)
        assert len(target.rows) == 4
        assert [*runner.committed] == PARTS[1:]
        await runner.close()

    asyncio.run(story())


class Keyed(Sink[str, int], frozen=True, kw_only=True):
    """Settings of any type."""

    by: Any = None


@pytest.mark.parametrize(
    ("one", "same", "another"),
    [
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}, {1: "b", 2: "a"}),
        ({1: "a"}, {1: "a"}, {"1": "a"}),
        ({1: "a", "1": "b"}, {"1": "b", 1: "a"}, {1: "b", "1": "a"}),
        ({None: 1, True: 2}, {True: 2, None: 1}, {None: 2, True: 1}),
        ({(1, "x"): {2: {3}}}, {(1, "x"): {2: {3}}}, {(1, "y"): {2: {3}}}),
        ({b"k": Flush()}, {b"k": Flush()}, {b"k": Flush(records=1)}),
    ],
)
def test_settings_have_a_name_whatever_their_keys_are(
    one: object, same: object, another: object
) -> None:
    assert config_of(Keyed(by=one)) == config_of(Keyed(by=same))
    assert config_of(Keyed(by=one)) != config_of(Keyed(by=another))


def test_settings_with_functions_have_the_same_name_in_every_process() -> None:
    """An interrupted range would be refused after a restart, if the name had an address in it."""
    code = (
        "from tests.connect_tasks.test_sink_task import Keyed, config_of, make;"
        "print(config_of(Keyed(by={1: make})), config_of(Keyed(by=[make])))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    }
    assert found == {f"{config_of(Keyed(by={1: make}))} {config_of(Keyed(by=[make]))}\n"}


def test_the_names_of_settings_in_existing_logs_hold() -> None:
    """A range that a former version has begun has this name."""
    assert config_of(Files(flush=Flush(records=3))) == "1ebce546"
