"""A coordinator that has been replaced without knowing it, and that clients still reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from simulation import cluster
from simulation.loop import SimulatedLoop, live
from simulation.network import Network
from simulation.node import PORT, SimulatedClock
from streamlog.broker.coordinator.pending_requests import CoordinatorRules, Proofs
from streamlog.client.admin import Admin
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.client.cluster import Cluster
from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import classic_groups as wire
from streamlog.protocol.messages.transaction_messages import EndTxnRequest, EndTxnResponse
from streamlog.transport.client_connection import TcpTransport

GROUP, TRANSACTIONS = 0, 1
NAMES = [f"name-{number}" for number in range(20)]
REFUSED = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
OLD = 1
"""The offset that the group commits before its coordinator is replaced."""


class Answers(NamedTuple):
    """What the old coordinator answers about changes after its replacement."""

    position: tuple[int, int | None]
    """Error code and offset."""
    end: int
    """The error of a producer that the next coordinator knows."""


class Client:
    """Asks one broker after another until an answer makes sense."""

    def __init__(self, network: Network, loop: SimulatedLoop) -> None:
        machine = network.machine("client")
        self.brokers = [f"b{each}" for each in cluster.BROKERS]
        self._clock = SimulatedClock(loop, machine)
        self.network = network

    def connected(self, *brokers: str) -> Cluster:
        connect = partial(TcpTransport.connect, client_id="c", timeout_ms=5_000)
        addresses = [(name, PORT) for name in brokers or self.brokers]
        return Cluster(lambda: addresses, connect, self._clock, request_timeout_ms=20_000)

    async def run(self) -> Answers:
        """Replace the coordinator, and ask the old one."""
        cluster_ = self.connected()
        await patiently(lambda: self._create(cluster_))
        group, name, old = await patiently(lambda: self._one_coordinator(cluster_))
        assert await patiently(lambda: self._commit(cluster_, old, group, OLD)) == 0
        first = await patiently(lambda: self._init(cluster_, old, name))
        others = [each for each in self.brokers if each != f"b{old}"]
        for each in others:
            self.network.block((f"b{old}", each), (each, f"b{old}"))
        elsewhere = self.connected(*others)
        of_group = await patiently(lambda: self._another(elsewhere, group, GROUP, old))
        await patiently(lambda: self._commit(elsewhere, of_group, group, OLD + 1))
        of_name = await patiently(lambda: self._another(elsewhere, name, TRANSACTIONS, old))
        second = await patiently(lambda: self._init(elsewhere, of_name, name))
        assert (second.producer_id, second.producer_epoch) > (
            first.producer_id,
            first.producer_epoch,
        )
        ending = EndTxnRequest(
            transactional_id=name,
            producer_id=second.producer_id,
            producer_epoch=second.producer_epoch,
            committed=True,
        )
        position, ended = await asyncio.gather(
            self._position(cluster_, old, group),
            cluster_.call(old, ending, EndTxnResponse),
        )
        return Answers(position, ended.error_code)

    async def _create(self, cluster_: Cluster) -> None:
        await Admin(cluster_).create_topics([NewTopic("t", 1, 3, {})])

    async def _one_coordinator(self, cluster_: Cluster) -> tuple[str, str, int]:
        """Find a group and a transactional id that one broker coordinates."""
        group = NAMES[0]
        old = await cluster_.coordinator(group)
        for name in NAMES:
            if await cluster_.coordinator(name, key_type=TRANSACTIONS) == old:
                return group, name, old
        raise AssertionError("no transactional id has the group's coordinator")

    async def _another(self, cluster_: Cluster, key: str, key_type: int, old: int) -> int:
        found = await cluster_.coordinator(key, key_type=key_type)
        if found == old:
            raise StreamlogError("not replaced yet")
        return found

    async def _commit(self, cluster_: Cluster, node_id: int, group: str, offset: int) -> int:
        partition = wire.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topic = wire.OffsetCommitRequestTopic(name="t", partitions=[partition])
        request = wire.OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=-1, topics=[topic]
        )
        response = await cluster_.call(node_id, request, wire.OffsetCommitResponse)
        return checked(response.topics[0].partitions[0].error_code)

    async def _init(
        self, cluster_: Cluster, node_id: int, name: str
    ) -> wire.InitProducerIdResponse:
        request = wire.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000)
        response = await cluster_.call(node_id, request, wire.InitProducerIdResponse)
        checked(response.error_code)
        return response

    async def _position(
        self, cluster_: Cluster, node_id: int, group: str
    ) -> tuple[int, int | None]:
        topic = wire.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        group_request = wire.OffsetFetchRequestGroup(group_id=group, topics=[topic])
        request = wire.OffsetFetchRequest(groups=[group_request])
        (found,) = (await cluster_.call(node_id, request, wire.OffsetFetchResponse)).groups
        if found.error_code:
            return found.error_code, None
        return 0, found.topics[0].partitions[0].committed_offset


def checked(code: int) -> int:
    if code:
        raise StreamlogError(f"refused: {code}")
    return code


async def patiently(attempt: Any) -> Any:
    """Repeat an attempt until it is not refused."""
    while True:
        try:
            return await attempt()
        except StreamlogError:
            await asyncio.sleep(0.2)


def ask_old_coordinator() -> Answers:
    async def story(loop: SimulatedLoop) -> Answers:
        network = Network(loop, latencies_s=(0.0005,))
        for node in cluster.SETTING.nodes(network):
            node.start()
        client = Client(network, loop)
        task = network.machines["client"].start(client.run()).task
        assert task is not None
        await asyncio.wait([task])
        result: Answers = task.result()
        return result

    return live(story, 0, until_s=120.0).result


@pytest.fixture
def _from_memory() -> Iterator[None]:
    with patch.object(Proofs, "rules", CoordinatorRules(tells_from_memory=True)):
        yield


def test_an_old_coordinator_reveals_neither_old_offsets_nor_fencing() -> None:
    (code, offset), end = ask_old_coordinator()
    assert (code, offset) == (ErrorCode.NOT_COORDINATOR, None)
    assert end in REFUSED


@pytest.mark.usefixtures("_from_memory")
def test_a_coordinator_that_answers_from_memory_is_found() -> None:
    assert ask_old_coordinator() == ((0, OLD), ErrorCode.PRODUCER_FENCED)
