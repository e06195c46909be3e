"""The lag of groups equals what reading the partition says, whatever has happened to its log."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.broker import Broker
from streamlog.broker.lag.lag_rounds import STEPS_PER_LOOK, LoopSlices
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.records.batch import encode_batch
from streamlog.records.compression import Compression
from streamlog.records.control_batches import ABORT, COMMIT, Marker
from tests.broker.coordinator.driving import commit
from tests.broker.lag.lag_stories import (
    Inline,
    commit_as,
    compact,
    expected_seconds,
    lag_of,
    metrics_of,
    read_all,
)
from tests.broker.node import Node, create, delete, produce

KINDS = ("classic", "consumer")
NOW_MS = 1_700_000_000_000
PRODUCER = (7, 0)
IN_TRANSACTION = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
SMALL_SEGMENTS = {"segment_bytes": "1024", "index_interval_bytes": "128"}

Step = tuple[str, list[tuple[int, int]], Compression]


def run(story: object, node: Node | None = None) -> None:
    node = node or Node()

    async def main() -> None:
        async with Broker.open(
            "data",
            config=node.config,
            clock=node.clock,
            files=node.files,
            threads=lambda _: Inline(),
        ) as broker:
            await story(broker, node)  # type: ignore[operator]

    asyncio.run(main())


async def append(
    broker: Broker,
    records: list[tuple[int, int]],
    codec: Compression,
    *,
    kind: str,
    sequence: int = 0,
) -> None:
    """Append records (key, timestamp) as one batch, alone or as a transaction."""
    partition = broker._partitions.get("t", 0)
    data = encode_batch(
        [(timestamp_ms, b"%d" % key, b"v" * 20, ()) for key, timestamp_ms in records],
        codec=codec,
        **({} if kind == "plain" else IN_TRANSACTION | {"base_sequence": sequence}),
    )
    origin = AppendOrigin.CLIENT if kind == "plain" else AppendOrigin.TRANSACTION
    partition.append(data, now_ms=0, origin=origin)
    if kind != "plain":
        marker = Marker(COMMIT if kind == "committed" else ABORT, 0)
        partition.end_transaction(*PRODUCER, marker, now_ms=0, wall_ms=NOW_MS)
    while partition.high_watermark < partition.log.log_end_offset:  # noqa: ASYNC110 - as `until`
        await asyncio.sleep(0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["plain", "plain", "committed", "aborted"]),
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(NOW_MS - 10_000_000, NOW_MS + 5_000_000)),
            min_size=1,
            max_size=20,
        ),
        st.sampled_from([Compression.NONE, Compression.GZIP]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(
    steps=steps,
    compacts=st.booleans(),
    deleted=st.floats(0, 1),
    committed=st.floats(0, 1.1),
    append_time=st.booleans(),
    kind=st.sampled_from(KINDS),
    later=steps,
)
def test_lag_seconds_is_the_age_of_the_next_record(
    *,
    steps: list[Step],
    compacts: bool,
    deleted: float,
    committed: float,
    append_time: bool,
    kind: str,
    later: list[Step],
) -> None:
    async def story(broker: Broker, node: Node) -> None:
        create(
            broker,
            cleanup_policy="compact,delete",
            retention_ms="-1",
            min_cleanable_dirty_ratio="0.0",
            message_timestamp_type="LogAppendTime" if append_time else "CreateTime",
            **SMALL_SEGMENTS,
        )
        sequence = 0
        partition = broker._partitions.get("t", 0)
        for when, more in enumerate((steps, later)):
            for each_kind, records, codec in more:
                await append(broker, records, codec, kind=each_kind, sequence=sequence)
                sequence += len(records) if each_kind != "plain" else 0
                node.clock.advance(7)
            if compacts and len(partition.log._segments) > 1:
                await compact(broker, node)
            end = partition.high_watermark
            if when == 0:
                offset = min(int(end * committed), end)
                group = await commit_as(broker, kind, offset)
            else:
                partition.delete_before(int(end * deleted * 0.9))
            # Twice: read from disk, then remembered.
            for _ in range(2):
                seconds = await lag_of(broker, node, "lag_seconds", group)
                assert seconds == await expected_seconds(broker, node, offset)
                assert await lag_of(broker, node, "lag", group) == max(end - offset, 0)

    run(story)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_1000_records_behind_has_the_age_of_its_next_record(kind: str) -> None:
    async def story(broker: Broker, node: Node) -> None:
        create(broker, **SMALL_SEGMENTS)
        for number in range(120):
            data = encode_batch(
                [(NOW_MS - 5_000_000 + 1_000 * number + i, None, b"x" * 9, ()) for i in range(10)]
            )
            await produce(broker, data)
        group = await commit_as(broker, kind, 200)
        seconds = await lag_of(broker, node, "lag_seconds", group)
        records, _, end = await read_all(broker)
        next_ms = next(timestamp_ms for offset, timestamp_ms in records if offset >= 200)
        assert await lag_of(broker, node, "lag", group) == end - 200 == 1_000
        assert seconds == (NOW_MS + 1_000 - next_ms) / 1_000 == 4_981.0

    run(story)


def test_deleted_records_are_lost_and_age_counts_from_the_log_start() -> None:
    async def story(broker: Broker, node: Node) -> None:
        create(broker)
        for number in range(100):
            await produce(broker, encode_batch([(NOW_MS - 1_000 * number, None, b"x", ())]))
        group = await commit_as(broker, "classic", 10)
        broker._partitions.get("t", 0).delete_before(40)
        node.clock.advance(1_000)
        found = await metrics_of(broker)
        assert found["kafka_consumergroup_group_lag", group, "t", "0"] == 90
        assert found["streamlog_consumergroup_group_lost_records", group, "", ""] == 30
        assert found["kafka_consumergroup_group_lag_seconds", group, "t", "0"] == 41.0
        broker._partitions.get("t", 0).delete_before(100)
        assert await lag_of(broker, node, "lag_seconds", group) == 0

    run(story)


def test_only_markers_ahead_are_no_lag_in_time() -> None:
    async def story(broker: Broker, node: Node) -> None:
        create(broker)
        await append(broker, [(1, NOW_MS - 9_000)], Compression.NONE, kind="committed")
        group = await commit_as(broker, "classic", 1)
        assert await lag_of(broker, node, "lag", group) == 1
        assert await lag_of(broker, node, "lag_seconds", group) == 0
        await append(broker, [(1, NOW_MS - 4_000)], Compression.NONE, kind="plain")
        seconds = await lag_of(broker, node, "lag_seconds", group)
        assert seconds == await expected_seconds(broker, node, 1) == 7.0

    run(story)


def test_an_empty_partition_and_a_deleted_topic() -> None:
    async def story(broker: Broker, node: Node) -> None:
        create(broker)
        create(broker, "u")
        group = await commit_as(broker, "classic", 0)
        assert await commit(broker, 0, topic="u", group_id=group) == 0
        assert await lag_of(broker, node, "lag_seconds", group) == 0
        delete(broker, "u")
        assert await lag_of(broker, node, "lag_seconds", group, "u") is None

    run(story)


def test_a_record_without_a_timestamp_has_no_age() -> None:
    async def story(broker: Broker, node: Node) -> None:
        create(broker)
        await produce(broker, encode_batch([(-1, None, b"x", ())]))
        group = await commit_as(broker, "classic", 0)
        assert await lag_of(broker, node, "lag", group) == 1
        assert await lag_of(broker, node, "lag_seconds", group) is None

    run(story)


def test_catch_up_follows_from_both_rates() -> None:
    async def story(broker: Broker, node: Node) -> None:
        create(broker)
        key = ("streamlog_consumergroup_group_catch_up_seconds", "of-classic", "", "")
        ten = encode_batch([(NOW_MS, None, b"x", ())] * 10)
        for _ in range(10):
            await produce(broker, ten)
        await commit_as(broker, "classic", 0)
        assert key not in await metrics_of(broker)
        # In ten seconds the group reads 60 records, and 10 are written: 50 are left, 5 gained a
        # second.
        node.clock.advance(10_000)
        await commit_as(broker, "classic", 60)
        await produce(broker, ten)
        found = await metrics_of(broker)
        assert found[key] == pytest.approx(10)
        rate = ("streamlog_consumergroup_group_consume_rate", "of-classic", "", "")
        assert found[rate] == pytest.approx(6)
        node.clock.advance(5_000)
        for _ in range(10):
            await produce(broker, ten)
        assert (await metrics_of(broker))[key] == float("inf")
        await commit_as(broker, "classic", 210)
        node.clock.advance(5_000)
        assert (await metrics_of(broker))[key] == 0

    run(story)


def test_a_round_lets_others_run_when_its_slice_is_used_up() -> None:
    now_s = [0.0]
    ran = []

    async def main() -> None:
        slices = LoopSlices(lambda: now_s[0])
        asyncio.get_running_loop().call_soon(ran.append, "other")
        for _ in range(1_000):
            await slices.step()
        assert ran == []  # No time has passed.
        now_s[0] += 0.003
        for _ in range(STEPS_PER_LOOK):
            await slices.step()
        assert ran == ["other"]

    asyncio.run(main())
