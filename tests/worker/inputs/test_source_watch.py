"""Keys in an unexpected partition are logged, with the partitioner to declare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamlog import App
from streamlog.clock import SystemClock
from streamlog.errors import TopologyError
from streamlog.record import TopicPartition
from streamlog.records.partitioners import Partitioner, partition_by
from streamlog.worker.inputs.source_watch import BATCHES_APART, FIRST_KEYS, KeyPartitionCheck

COUNT = 4
KEYS = [b"u%d" % number for number in range(100)]


def key_check(declared: Partitioner = "murmur2", *, table: bool = True) -> KeyPartitionCheck:
    app = App("shop")
    users = app.topic("users", key=str, value=str, partitioner=declared)
    if table:
        app.table(users, name="by-user")
    else:
        app.stream(users).to(app.topic("copy", key=str, value=str))
    return KeyPartitionCheck(app.topology(), {"users": COUNT, "copy": COUNT}, SystemClock())


def read(looking: KeyPartitionCheck, written: Partitioner) -> None:
    for number in range(COUNT):
        keys = [key for key in KEYS if partition_by(written, key, COUNT) == number]
        looking.look(TopicPartition("users", number), [None, *keys])


@pytest.mark.parametrize("written", ["murmur2", "crc32", "fnv1a"])
@pytest.mark.parametrize("declared", ["murmur2", "crc32", "fnv1a"])
def test_a_wrong_partitioner_is_logged_once_with_the_fix(
    declared: Partitioner, written: Partitioner, caplog: pytest.LogCaptureFixture
) -> None:
    looking = key_check(declared)
    for _ in range(2):
        read(looking, written)
    if declared == written:
        assert not caplog.records
        return
    (logged,) = caplog.records
    assert f"partitioner={written!r}" in logged.getMessage()
    assert "topic users" in logged.getMessage()


def test_keys_that_match_no_partitioner_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    read(key_check(), lambda key, count: len(key) % count)
    (logged,) = caplog.records
    assert "repartition" in logged.getMessage()


def test_a_source_without_key_lookups_is_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    read(key_check(table=False), "crc32")
    assert not caplog.records


def test_later_batches_are_sampled(caplog: pytest.LogCaptureFixture) -> None:
    looking, part = key_check(), TopicPartition("users", 0)
    right = [key for key in KEYS if partition_by("murmur2", key, COUNT) == 0]
    wrong = [key for key in KEYS if partition_by("murmur2", key, COUNT) != 0]
    looking.look(part, (right * FIRST_KEYS)[:FIRST_KEYS])
    for _ in range(BATCHES_APART - 1):
        looking.look(part, wrong)
    assert not caplog.records
    looking.look(part, wrong)
    assert caplog.records


def joined(one: Partitioner, other: Partitioner, *, again: bool = False) -> App:
    app = App("shop")
    orders = app.topic("orders", key=str, value=str, partitioner=one)
    users = app.topic("users", key=str, value=str, partitioner=other)
    stream = app.stream(orders)
    if again:
        stream = stream.repartition(name="again")
    stream.join(app.table(users), lambda order, user: order + user, name="with-user").to(
        app.topic("out", key=str, value=str)
    )
    return app


@pytest.mark.parametrize(("one", "other"), [("crc32", "murmur2"), ("murmur2", "fnv1a")])
def test_topics_with_different_partitioners_cannot_be_joined(
    one: Partitioner, other: Partitioner
) -> None:
    with pytest.raises(TopologyError, match="partitioned by") as raised:
        joined(one, other).topology()
    assert "'orders'" in str(raised.value)
    assert ".repartition(" in str(raised.value)


def test_topics_with_equal_partitioners_can_be_joined() -> None:
    joined("crc32", "crc32").topology()
    joined("crc32", "murmur2", again=True).topology()


def test_an_unknown_partitioner_is_refused() -> None:
    with pytest.raises(TopologyError, match="murmur2, crc32, fnv1a"):
        App("shop").topic("users", key=str, value=str, partitioner="md5")  # type: ignore[arg-type]


def upside_down(key: bytes, count: int) -> int:
    return len(key) % count


@pytest.mark.parametrize("partitioner", ["crc32", "fnv1a", upside_down])
def test_rows_are_found_with_a_custom_partitioner(
    partitioner: Callable[[bytes, int], int],
) -> None:
    app = App("shop")
    users = app.topic("users", key=str, value=str, partitioner=partitioner)
    by_user = app.table(users, name="by-user")

    async def rows() -> list[str | None]:
        return [await by_user.fetch(key.decode()) for key in KEYS]

    with app.test(partitions=COUNT) as t:
        for key in KEYS:
            t.input(users).send(key.decode(), key=key.decode())
        assert asyncio.run(rows()) == [key.decode() for key in KEYS]
