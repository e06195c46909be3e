"""Mirrors that are compared with their source, with faults that were planted in the target."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.connect import Batch, TopicPartition
from streamlog.connectors.kafka.mirror_positions import Compared, compare_mirror, known_positions
from streamlog.durations import moment
from streamlog.log import Log
from streamlog.record import Record
from streamlog.records.batch import LogRecord
from tests.connectors.kafka.other_cluster import GaveUp, OtherCluster, other_cluster
from tests.connectors.kafka.test_kafka_mirror import PLACE, mirror
from tests.connectors.runs import RealContext, on_loop, writing

THERE = TopicPartition("eu.orders", 0)
PER_FLUSH = 4
LAST = 13
"""The offset of the last record, of 12; two offsets are those of an aborted one and its marker."""
Records = list[LogRecord]


class Pair:
    """A source with records, and a mirror of them in another cluster."""

    def __init__(self, own: Log, cluster: OtherCluster) -> None:
        self.own, self.cluster = own, cluster

    async def fill(self) -> None:
        await self.own.admin().create_topics([NewTopic("orders", 1)])
        source = OtherCluster(self.own, "")
        await source.write("orders", 0, *(b"%d" % number for number in range(6)))
        async with self.own.producer(transactional_id="aborted") as producer:
            with suppress(GaveUp):
                async with producer.transaction():
                    await producer.send_batch("orders", 0, [(1, None, b"aborted", ())])
                    await producer.flush()
                    raise GaveUp
        await source.write("orders", 0, *(b"%d" % number for number in range(6, 12)))

    async def mirror(self, change: Callable[[Records], Records], between: Sequence[bytes]) -> None:
        """Mirror what a faulty mirror would make of the records, in flushes of some."""
        records = change([*await self.own.read_range(PLACE)])
        async with writing(mirror(self.cluster)) as task:
            await task.recover([PLACE])
            for first in range(0, len(records), PER_FLUSH):
                part = [_as_read(each) for each in records[first : first + PER_FLUSH]]
                end = LAST + 1 if first + PER_FLUSH >= len(records) else part[-1].offset + 1
                await task.begin()
                await task.write(Batch(PLACE, part, next_offset=end))
                await task.commit({PLACE: end})
                if first == 0 and between:
                    await self.cluster.write(THERE.topic, 0, *between)

    async def compared(self, *, is_compacted: bool = False) -> Compared:
        sink, log = mirror(self.cluster), self.cluster.log
        id_ = sink.id_of(RealContext().name)
        known = await known_positions(log, sink.names.positions, id_, [PLACE])
        return await compare_mirror(
            (self.own, PLACE),
            (log, THERE),
            known[PLACE],
            is_compacted=is_compacted,
            on_progress=lambda _: None,
        )


def _as_read(record: LogRecord) -> Record[object, object]:
    time = moment(record.timestamp_ms)
    return Record(record.key, record.value, time, tuple(record.headers), *PLACE, record.offset)


@asynccontextmanager
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with (
        Log.open(f"embedded:{tmp_path / 'own'}") as own,
        other_cluster(tmp_path / "other") as cluster,
    ):
        found = Pair(own, cluster)
        await found.fill()
        yield found


def whole(records: Records) -> Records:
    return records


def without_one(records: Records) -> Records:
    return records[:5] + records[6:]


def changed(records: Records) -> Records:
    return [*records[:5], records[5]._replace(value=b"changed"), *records[6:]]


def swapped(records: Records) -> Records:
    first, second = records[4:6]
    values = first._replace(value=second.value), second._replace(value=first.value)
    return [*records[:4], *values, *records[6:]]


@pytest.mark.parametrize(
    ("change", "between", "parts_at"),
    [
        (whole, [], None),
        (without_one, [], 5),
        (changed, [], 5),
        (swapped, [], 4),
        # Another writer to the target, between the first flush and the second one.
        (whole, [b"surplus"], 4),
        (lambda records: records[:-1], [], LAST),
    ],
)
@on_loop
async def test_the_first_difference_is_found(
    tmp_path: Path,
    change: Callable[[Records], Records],
    between: Sequence[bytes],
    parts_at: int | None,
) -> None:
    async with pair(tmp_path) as each:
        await each.mirror(change, between)
        assert await each.compared() == (0, LAST + 1, parts_at)


@pytest.mark.parametrize("is_target", [False, True])
@on_loop
async def test_logs_that_have_lost_their_heads_are_compared_from_a_stored_pair(
    tmp_path: Path, is_target: bool
) -> None:
    async with pair(tmp_path) as each:
        await each.mirror(whole, [])
        log, where = (each.cluster.log, THERE) if is_target else (each.own, PLACE)
        # Of the first flush, two records are left; in the target they have equal offsets.
        await log.admin().delete_records({where: 2})
        assert await each.compared() == (2, LAST + 1, None)


@pytest.mark.parametrize(("change", "parts_at"), [(without_one, None), (changed, 5)])
@on_loop
async def test_sides_that_are_compacted_each_for_itself_are_compared_where_both_have_a_record(
    tmp_path: Path, change: Callable[[Records], Records], parts_at: int | None
) -> None:
    async with pair(tmp_path) as each:
        await each.mirror(change, [])
        assert await each.compared(is_compacted=True) == (0, LAST + 1, parts_at)
