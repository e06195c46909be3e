"""A broker that starts on a full disk serves reads, refuses writes, and recovers by itself."""

from __future__ import annotations

import logging

import pytest

from streamlog.broker.broker import Broker
from streamlog.errors import LogDirectoryFull
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.broker.node import Node, ask, at, batch, create, fetch, produce, values

STARTS = 3


async def create_topic(broker: Broker, name: str) -> int:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
    return (await ask(broker, request, CreateTopicsResponse)).topics[0].error_code


async def stored_values(broker: Broker) -> list[bytes | None]:
    return values((await fetch(broker, at(0)))[0])


async def prepare(broker: Broker) -> None:
    create(broker, segment_bytes="1000000")
    for value in (b"a", b"b"):
        assert (await produce(broker, batch(value))).error_code == ErrorCode.NONE


async def serve_reads_only(broker: Broker) -> None:
    assert await stored_values(broker) == [b"a", b"b"]
    refused = await produce(broker, batch(b"x" * 1_000))
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert await create_topic(broker, "another") == ErrorCode.KAFKA_STORAGE_ERROR
    assert await stored_values(broker) == [b"a", b"b"]


@pytest.mark.parametrize("killed", [True, False])
def test_a_broker_on_a_full_disk_serves_reads_refuses_writes_and_recovers(
    node: Node, killed: bool
) -> None:
    async def recover(broker: Broker) -> None:
        await serve_reads_only(broker)
        node.files.capacity_bytes = None
        node.pass_time(broker, 10_000)
        assert (await produce(broker, batch(b"c"))).error_code == ErrorCode.NONE
        assert await create_topic(broker, "another") == ErrorCode.NONE
        assert await stored_values(broker) == [b"a", b"b", b"c"]

    async def look(broker: Broker) -> None:
        assert await stored_values(broker) == [b"a", b"b", b"c"]
        assert "another" in broker.directory.topics

    node.run(prepare)
    if killed:
        node.files.crash(keep_bytes=None)
    node.files.capacity_bytes = 0
    node.run(recover)
    node.run(look)


def test_every_start_on_a_full_disk_serves_reads(node: Node) -> None:
    node.run(prepare)
    node.files.crash(keep_bytes=None)
    node.files.capacity_bytes = 0
    for _ in range(STARTS):
        # The broker cannot write its clean-shutdown mark, and raises that.
        with pytest.raises(LogDirectoryFull):
            node.run(serve_reads_only)
        node.files.crash(keep_bytes=None)
    node.files.capacity_bytes = None

    async def recovered(broker: Broker) -> None:
        assert (await produce(broker, batch(b"c"))).error_code == ErrorCode.NONE
        assert await stored_values(broker) == [b"a", b"b", b"c"]

    node.run(recovered)


def test_a_disk_that_stays_full_is_logged_at_intervals(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait(broker: Broker) -> None:
        for _ in range(100):
            node.pass_time(broker, 200)

    node.run(prepare)
    node.files.capacity_bytes = 0
    with caplog.at_level(logging.INFO), pytest.raises(LogDirectoryFull):
        node.run(wait)
    reports = [each for each in caplog.messages if "takes no part in the quorum" in each]
    assert len(reports) == 1
    assert len(caplog.messages) < 15, caplog.messages[:15]
    assert not any("takes part in the quorum again" in each for each in caplog.messages)
