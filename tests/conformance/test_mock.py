"""Differences of librdkafka's mock cluster from Kafka, shown with raw requests.

Each reason in `conformance.mock.BEYOND` has a test here: when the mock improves, a test fails, and
the excluded features are tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TypeVar

import confluent_kafka
import pytest

from conformance.features import FEATURES
from conformance.mock import BEYOND, EVERY_CLIENT, MockCluster
from conformance.program import CLIENTS
from conformance.witness import Witness
from streamlog.errors import CorruptData
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from streamlog.protocol.messages.produce_and_fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from streamlog.protocol.schema import Message
from streamlog.transport.client_connection import TcpTransport

PATIENCE_MS = 60_000
SESSION_MS = 3_000
"""The mock's rebalances last one second less."""
FIRST_JOIN_MS = 1_500
PATIENCE_S = 60

M = TypeVar("M", bound=Message)


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        Witness(cluster.address).make_topic("t")
        yield cluster


class Member:
    """A connection, and the member that uses it."""

    def __init__(self, transport: TcpTransport) -> None:
        self._transport = transport
        self.member_id = ""
        self.generation_id = -1

    async def ask(self, request: Message, answer: type[M]) -> M:
        found = await self._transport.call(request, timeout_ms=PATIENCE_MS)
        assert isinstance(found, answer)
        return found

    async def join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        response = await self.ask(request, JoinGroupResponse)
        self.member_id, self.generation_id = response.member_id, response.generation_id
        return response

    async def sync(self, shares: dict[str, bytes]) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.generation_id,
            member_id=self.member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=share)
                for member, share in shares.items()
            ],
        )
        return await self.ask(request, SyncGroupResponse)

    async def commit(self, generation_id: int) -> int:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=generation_id,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        response = await self.ask(request, OffsetCommitResponse)
        return response.topics[0].partitions[0].error_code


def with_members(
    mock: MockCluster, count: int, test: Callable[..., Coroutine[object, object, None]]
) -> None:
    """Run a test with this many connections."""
    host, _, port = mock.address.partition(":")

    async def main() -> None:
        transports = [
            await TcpTransport.connect(host, int(port), client_id="raw", timeout_ms=PATIENCE_MS)
            for _ in range(count)
        ]
        try:
            await test(*map(Member, transports))
        finally:
            for transport in transports:
                await transport.close()

    asyncio.run(main())


def test_the_mock_refuses_a_member_that_syncs_after_its_leader(mock: MockCluster) -> None:
    async def test(one: Member, two: Member) -> None:
        joined = await asyncio.gather(one.join(), two.join())
        if joined[0].leader != one.member_id:
            one, two = two, one
        shares = {one.member_id: b"one", two.member_id: b"two"}
        assert (await one.sync(shares)).assignment == b"one"
        late = await two.sync({})
        assert late.error_code == ErrorCode.INVALID_REQUEST
        assert late.assignment == b""

    # Both are in the first generation only if the group waits for the second of them.
    mock.delay_first_join(FIRST_JOIN_MS)
    with_members(mock, 2, test)


def test_the_mock_refuses_commits_during_a_rebalance(mock: MockCluster) -> None:
    async def test(one: Member, two: Member) -> None:
        await one.join()
        await one.sync({one.member_id: b"one"})
        generation_id = one.generation_id
        assert await one.commit(generation_id) == 0
        joining = asyncio.gather(two.join())
        codes = set()
        while not joining.done() and codes != {ErrorCode.REBALANCE_IN_PROGRESS}:
            codes = {await one.commit(generation_id)}
        assert codes == {ErrorCode.REBALANCE_IN_PROGRESS}
        await joining

    with_members(mock, 2, test)


def test_the_mock_refuses_commits_of_non_members(mock: MockCluster) -> None:
    async def test(one: Member) -> None:
        await one.join()
        await one.sync({one.member_id: b"one"})
        one.member_id = ""
        assert await one.commit(-1) == ErrorCode.UNKNOWN_MEMBER_ID

    with_members(mock, 1, test)


def test_the_mock_finds_no_offsets_by_timestamp(mock: MockCluster) -> None:
    producer(mock).produce("t", b"1", partition=0, timestamp=1_700_000_000_000)

    async def test(one: Member) -> None:
        partition = ListOffsetsPartition(partition_index=0, timestamp=1_700_000_000_000)
        wanted = ListOffsetsTopic(name="t", partitions=[partition])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[wanted])
        response = await one.ask(request, ListOffsetsResponse)
        assert response.topics[0].partitions[0].offset == -1

    with_members(mock, 1, test)


def producer(mock: MockCluster, transactional_id: str = "") -> confluent_kafka.Producer:
    settings = {"bootstrap.servers": mock.address}
    if transactional_id:
        settings["transactional.id"] = transactional_id
    created = confluent_kafka.Producer(settings)
    if transactional_id:
        created.init_transactions(PATIENCE_S)
    return created


def consumer(mock: MockCluster) -> confluent_kafka.Consumer:
    settings = {
        "bootstrap.servers": mock.address,
        "group.id": "g",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    return confluent_kafka.Consumer(settings)


def test_the_mock_writes_markers_without_crc_and_shows_aborted_records(mock: MockCluster) -> None:
    writer = producer(mock, "x")
    writer.begin_transaction()
    writer.produce("t", b"lost", partition=0)
    writer.flush(PATIENCE_S)
    writer.abort_transaction(PATIENCE_S)
    data, marker = Witness(mock.address).batches("t", 0)
    data.check_crc()
    assert marker.is_control
    with pytest.raises(CorruptData, match="its header says 0x00000000"):
        marker.check_crc()
    reader = consumer(mock)
    reader.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    (seen,) = reader.consume(1, PATIENCE_S)
    assert seen.value() == b"lost"
    reader.close()


def test_the_mock_forgets_offsets_committed_in_a_transaction(mock: MockCluster) -> None:
    writer, reader = producer(mock, "x"), consumer(mock)
    topic_partition = confluent_kafka.TopicPartition("t", 0, 4)
    writer.begin_transaction()
    writer.send_offsets_to_transaction(
        [topic_partition], reader.consumer_group_metadata(), PATIENCE_S
    )
    writer.commit_transaction(PATIENCE_S)
    (found,) = reader.committed([topic_partition], PATIENCE_S)
    assert found.offset == confluent_kafka.OFFSET_INVALID
    reader.close()


def test_the_mock_fences_no_older_producer(mock: MockCluster) -> None:
    first = producer(mock, "x")
    first.begin_transaction()
    first.produce("t", b"early", partition=0)
    first.flush(PATIENCE_S)
    second = producer(mock, "x")
    second.begin_transaction()
    second.produce("t", b"late", partition=0)
    second.commit_transaction(PATIENCE_S)
    first.commit_transaction(PATIENCE_S)  # Kafka answers that the producer is fenced.


def test_reasons_name_existing_features_and_clients() -> None:
    assert set(BEYOND) <= {feature.name for feature in FEATURES}
    names = {client.name for client in CLIENTS}
    for reasons in BEYOND.values():
        assert set(reasons) <= names | {EVERY_CLIENT}
