"""Checkpoints are written off the event loop: the broker answers while the disk is slow."""

from __future__ import annotations

from streamlog.broker.broker import Broker
from streamlog.broker.log_maintenance import CHECKPOINT_INTERVAL_MS
from streamlog.protocol.messages.topics_and_configs import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.broker.node import Node, at, batch, create, fetch, later, produce, values
from tests.broker.storage.test_checkpoints import SlowFiles, starts

REQUEST = DeleteRecordsRequest(
    topics=[
        DeleteRecordsTopic(
            name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)]
        )
    ]
)


def test_a_slow_checkpoint_blocks_no_request() -> None:
    files = SlowFiles()
    node = Node(files=files)

    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        files.reached.clear()
        files.proceed.clear()
        node.pass_time(broker, CHECKPOINT_INTERVAL_MS)
        assert files.reached.wait(60)
        assert (await produce(broker, batch(b"b"))).base_offset == 1
        (data,) = await fetch(broker, at(0))
        assert values(data) == [b"a", b"b"]
        files.proceed.set()

    node.run(story)


def test_delete_records_is_answered_once_its_checkpoint_is_written() -> None:
    files = SlowFiles()
    node = Node(files=files)

    async def story(broker: Broker) -> None:
        create(broker)
        for value in (b"a", b"b", b"c"):
            await produce(broker, batch(value))
        files.reached.clear()
        files.proceed.clear()
        answer = later(broker, REQUEST)
        assert files.reached.wait(60)
        (data,) = await fetch(broker, at(2))
        assert values(data) == [b"c"]
        assert not answer.done()
        assert starts(files) == []
        files.proceed.set()
        response = await answer
        assert isinstance(response, DeleteRecordsResponse)
        assert response.topics[0].partitions[0].low_watermark == 2
        assert starts(files) == [2]

    node.run(story)
