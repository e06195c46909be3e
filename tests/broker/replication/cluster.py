"""Brokers in one process that replicate topic `t`; the test elects leaders and stops brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Self, TypeVar

from streamlog.broker.apis.replica_fetch import ReplicaFetches
from streamlog.broker.broker import Broker
from streamlog.broker.config.cluster import ReplicationConfig
from streamlog.broker.quorum.metadata.metadata_records import encode_record
from streamlog.broker.replication.partition import Partition
from streamlog.broker.replication.replica_state import ReplicaState
from streamlog.broker.replication.replicas import Replicas
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.offload import os_thread
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.messages.broker_registration import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from streamlog.protocol.messages.metadata_log import ConfigRecord, PartitionRecord, TopicRecord
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    PartitionProduceResponse,
    ProduceResponse,
)
from streamlog.protocol.schema import Message
from streamlog.transport.client_connection import Outcome, PromptAnswer
from tests.broker.node import batch, context, produce_request

TOPIC_ID = bytes(range(16))
LAG_MS = 300
UNKNOWN_BROKER = 99
"""The id of a broker that does not exist."""
OTHER = 1
"""The topic's second partition, replicated only after `Cluster.lead_other`."""
T = TypeVar("T")


class HeldThread(Executor):
    """A thread that runs no work while `held` is set; `release` runs what was submitted."""

    def __init__(self, name: str) -> None:
        self.held = False
        self._thread = os_thread(name)
        self._waiting: list[tuple[Callable[[], Any], Future[Any]]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(fn(*args, **kwargs))

        if self.held:
            self._waiting.append((run, future))
        else:
            self._thread.submit(run)
        return future

    def release(self) -> None:
        self.held = False
        waiting, self._waiting = self._waiting, []
        for run, _ in waiting:
            self._thread.submit(run)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.release()
        self._thread.shutdown(wait=wait, cancel_futures=cancel_futures)


class ReplicatingNode:
    """One broker of the cluster."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.id = node_id
        self.files = MemoryFiles()
        self.up = False
        self._cluster = cluster
        self.life = 0
        self._silent_lives: set[int] = set()

    def start(self) -> None:
        self.life += 1
        self.threads: list[HeldThread] = []
        self.broker = Broker.open("data", files=self.files, threads=self._thread)
        if "t" not in self.broker.directory.topics:
            self._know_topic()
        self.replicas = Replicas(
            self.broker.directory,
            node=(self.id, self.life),
            clock=self.broker.clock,
            config=self._cluster.replication,
            topic_id=lambda _: TOPIC_ID,
            connect=partial(self._cluster.connect, self),
            submit=self._cluster.submit,
        )
        self.fetches = ReplicaFetches(
            self.replicas,
            self.broker._partitions,
            clock=self.broker.clock,
            alarm=self.broker._timer,
            turn=self.broker.turn,
        )
        self.broker._replica_fetches = self.fetches
        self.broker._is_open = True
        self.up = True
        self._task = asyncio.ensure_future(self.replicas.run())

    def _know_topic(self) -> None:
        """Write the topic to this broker's own metadata, with an unknown broker as its leader."""
        own = self.broker.directory.node_id
        configs = [
            ConfigRecord(resource_type=2, resource_name="t", name=name, value=value)
            for name, value in self._cluster.configs.items()
        ]
        records = (
            TopicRecord(name="t", topic_id=TOPIC_ID),
            *configs,
            *(
                PartitionRecord(
                    partition_id=number,
                    topic_id=TOPIC_ID,
                    replicas=[own, UNKNOWN_BROKER],
                    isr=[UNKNOWN_BROKER],
                    leader=UNKNOWN_BROKER,
                    leader_epoch=0,
                    partition_epoch=0,
                )
                for number in (0, OTHER)
            ),
        )
        self.broker._member.quorum.write(  # type: ignore[attr-defined]
            [encode_record(record) for record in records]
        )

    def _thread(self, name: str) -> HeldThread:
        thread = HeldThread(name)
        self.threads.append(thread)
        return thread

    def was_silent_in(self, life: int) -> bool:
        """Whether the broker's process number `life` ended without closing its connections."""
        return life in self._silent_lives

    async def stop(self, *, power_cut: bool = False) -> None:
        """End the process; a power cut loses unsynced data and closes no connection."""
        self.up = False
        if power_cut:
            self._silent_lives.add(self.life)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        gone = ConnectionLost("stopped")
        self.fetches.stop(gone)
        if not power_cut:
            self.broker.close()
            return
        self.files.crash()
        with contextlib.suppress(OSError, StreamlogError):
            self.broker.close()

    @property
    def partition(self) -> Partition:
        return self.broker._partitions.host("t", 0)

    @property
    def other(self) -> Partition:
        return self.broker._partitions.host("t", OTHER)

    def apply(self, state: ReplicaState, offset: int, number: int = 0) -> None:
        partition = self.broker._partitions.host("t", number)
        self.replicas.apply(partition, state, offset)
        if partition.is_leader:
            self.broker._partitions.lead("t", number)
        else:
            self.broker._partitions.resign("t", number)

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset

    def content(self) -> bytes:
        return bytes(self.partition.log.read(0, max_bytes=1 << 20)) if self.end else b""

    def produce(
        self, *values: bytes, acks: int = -1, number: int = 0
    ) -> asyncio.Future[PartitionProduceResponse]:
        request = produce_request(batch(*values), index=number, acks=acks)

        async def answered() -> PartitionProduceResponse:
            response = await self.broker.handle(request, context(request))
            assert isinstance(response, ProduceResponse)
            return response.responses[0].partition_responses[0]

        return asyncio.ensure_future(answered())


class _Wire:
    """A connection to a node."""

    def __init__(self, cluster: Cluster, ends: tuple[ReplicatingNode, ReplicatingNode]) -> None:
        self._cluster = cluster
        self._ends = ends
        self._life = ends[1].life
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def needs_renewal(self) -> bool:
        return self._cluster.must_renew

    async def renew(self, timeout_ms: int) -> None:
        self._cluster.must_renew = False

    def begin(self, request: Message, then: Callable[[Outcome], object]) -> PromptAnswer:
        assert isinstance(request, FetchRequest)
        assert not self.needs_renewal
        self._cluster.asked.append(request)
        answer = PromptAnswer(then)
        task = asyncio.ensure_future(self._pass_on(request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answer

    async def _pass_on(self, request: FetchRequest, answer: PromptAnswer) -> None:
        try:
            response = await self._answer(request)
            if self._ends[1].id not in self._cluster.silent:
                answer.pass_on(response)
        except ConnectionLost as lost:
            # A broker without power closes no connection: nothing is heard of it any more.
            if not self._ends[1].was_silent_in(self._life):
                answer.pass_on(lost)

    async def _answer(self, request: FetchRequest) -> Message:
        self._cluster.check(*self._ends)
        answer = self._ends[1].fetches.begin(request)
        if isinstance(answer, asyncio.Future):
            answer = await answer
        self._cluster.check(*self._ends)
        return answer

    async def call(
        self, request: Message, *, timeout_ms: int, version_max: int | None = None
    ) -> Message:
        raise NotImplementedError

    async def send(self, request: Message, *, version_max: int | None = None) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()

    def version(self, api_key: int) -> int:
        raise NotImplementedError

    def feature(self, name: str) -> int:
        raise NotImplementedError


class Cluster:
    """The nodes, and the leader and in-sync replicas that a controller has committed."""

    def __init__(
        self,
        *,
        min_insync: int = 2,
        count: int = 3,
        replication: ReplicationConfig | None = None,
        **configs: str,
    ) -> None:
        self.replication = replication or ReplicationConfig(lag_time_max_ms=LAG_MS)
        self.configs = {"min.insync.replicas": str(min_insync), **configs}
        self.nodes = [ReplicatingNode(self, node_id) for node_id in range(count)]
        self.isr = tuple(range(count))
        self.leader = 0
        self.epoch = 0
        self.partition_epoch = 0
        self.offset = 0
        self.cut_off: set[int] = set()
        self.silent: set[int] = set()
        """Nodes whose answers to followers get lost, on connections that stay open."""
        self.must_renew = False
        """Whether followers have to authenticate again before their next request."""
        self.connects = 0
        self.asked: list[FetchRequest] = []
        """The requests of all followers."""

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            self.start(node)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            if node.up:
                await node.stop()

    def start(self, node: ReplicatingNode) -> None:
        """Start a node's process, register it, and apply the committed state to it."""
        node.start()
        self.offset += 1
        node.replicas.register(100 * node.id + node.life, self.offset)
        self.commit()

    def elect(self, leader: int, isr: tuple[int, ...] | None = None) -> None:
        self.leader, self.epoch = leader, self.epoch + 1
        self.isr = self.isr if isr is None else isr
        self.commit()

    def commit(self) -> None:
        self.offset += 1
        self.partition_epoch += 1
        alive = {n.id: n.replicas.node.broker_epoch for n in self.nodes if n.up}
        state = ReplicaState(
            leader=self.leader,
            leader_epoch=self.epoch,
            partition_epoch=self.partition_epoch,
            replicas=tuple(range(len(self.nodes))),
            isr=self.isr,
        )
        for node in self.nodes:
            if node.up and node.id not in self.cut_off:
                node.replicas.set_brokers(alive)
                node.apply(state, self.offset)

    def lead_other(self, leader: int) -> None:
        """Replicate partition `OTHER` on all nodes, all in sync."""
        self.offset += 1
        numbers = tuple(range(len(self.nodes)))
        state = ReplicaState(
            leader=leader, leader_epoch=0, partition_epoch=0, replicas=numbers, isr=numbers
        )
        for node in self.nodes:
            node.apply(state, self.offset, OTHER)

    async def connect(self, source: ReplicatingNode, node_id: int) -> _Wire:
        self.connects += 1
        ends = (source, self.nodes[node_id])
        self.check(*ends)
        return _Wire(self, ends)

    def check(self, *ends: ReplicatingNode) -> None:
        for node in ends:
            if not node.up or node.id in self.cut_off:
                raise ConnectionLost(f"node {node.id} is out of reach")

    async def submit(self, request: Message) -> Message:
        assert isinstance(request, AlterPartitionRequest)
        if request.broker_id in self.cut_off:
            raise ConnectionLost("the controller is out of reach")
        (wanted,) = request.topics[0].partitions
        isr = tuple(each.broker_id for each in wanted.new_isr_with_epochs)
        fits = wanted.leader_epoch == self.epoch
        if fits and wanted.partition_epoch == self.partition_epoch:
            self.isr = isr
            self.commit()
        answer = AlteredPartition(
            partition_index=0,
            error_code=0,
            leader_id=self.leader,
            leader_epoch=self.epoch,
            isr=list(self.isr),
            partition_epoch=self.partition_epoch,
        )
        return AlterPartitionResponse(topics=[AlteredTopic(topic_id=TOPIC_ID, partitions=[answer])])

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds, at most 20 seconds."""
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - a broker's state has no event
                await asyncio.sleep(0.005)
