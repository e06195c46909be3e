"""Replicas: all replicas of this broker, their fetchers, and their AlterPartition requests.

Committed metadata arrives by `apply`, registrations by `register`. Leaders answer followers
(`replica_fetch`), and followers have one fetcher per broker that leads some of them. Leaders
propose in-sync sets to the controller (AlterPartition, KIP-497): one request is in flight at a
time, with all proposals that are due.

Rules of this module: everything runs in `run`, which the broker owns; once that has ended, no
replica fetches and none lags. A proposal without an answer may have been granted, so it is sent
again unchanged until there is an answer or metadata has overtaken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.replication.partition_replica import PartitionReplica, ReplicaNode
from streamlog.broker.replication.replica_fetcher import Connect, ReplicaFetcher
from streamlog.broker.replication.replica_state import NO_EPOCH
from streamlog.broker.replication.replication_quota import ReplicationQuota
from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ProposedPartition,
    ProposedTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamlog.broker.config.cluster import ReplicationConfig
    from streamlog.broker.replication.partition import Partition
    from streamlog.broker.replication.replica_state import ProposeIsr, ReplicaState
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message


RETRY_S = 0.1
"""Between two attempts: the controller is being elected, or we are being registered."""

Submit = Callable[["Message"], Awaitable["Message"]]
"""Sends a request to the active controller. Raises StreamlogError if there is no answer."""

_log = repeated.logger(__name__)


class AlterPartitionRequests:
    """What the leaders on this broker ask the controller for; `run` is a task of the broker's."""

    def __init__(self, submit: Submit, *, topic_id: Callable[[str], bytes | None]) -> None:
        self._submit = submit
        self._topic_id = topic_id
        self._due: dict[PartitionReplica, ProposeIsr] = {}
        self._wake = asyncio.Event()

    def propose(self, replica: PartitionReplica, proposal: ProposeIsr) -> None:
        """Ask for this."""
        self._due[replica] = proposal
        self._wake.set()

    async def run(self, broker: Callable[[], tuple[int, int]]) -> None:
        """Ask for what is due, for ever; `broker` is this one's number and present epoch."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._ask_for_due(broker())

    async def _ask_for_due(self, broker: tuple[int, int]) -> None:
        """Not in `run`, which would keep who asked last, with a log that may be gone by now."""
        due, self._due = self._due, {}
        sent = {
            (replica.topic, replica.index): (replica, proposal)
            for replica, proposal in due.items()
            if replica.proposal() is proposal
        }
        if sent and not await self._ask(broker, sent):
            await asyncio.sleep(RETRY_S)
        for replica, proposal in sent.values():
            if replica.proposal() is proposal and replica not in self._due:
                self.propose(replica, proposal)

    async def _ask(
        self,
        broker: tuple[int, int],
        sent: dict[tuple[str, int], tuple[PartitionReplica, ProposeIsr]],
    ) -> bool:
        """Send it; whether every partition has an answer that settles it."""
        names: dict[bytes, str] = {}
        topics: dict[bytes, list[ProposedPartition]] = {}
        for (topic, index), (_, proposal) in sent.items():
            topic_id = self._topic_id(topic)
            if topic_id is not None:
                names[topic_id] = topic
                topics.setdefault(topic_id, []).append(_proposed(index, proposal))
        request = AlterPartitionRequest(
            broker_id=broker[0],
            broker_epoch=broker[1],
            topics=[ProposedTopic(topic_id=each, partitions=of) for each, of in topics.items()],
        )
        try:
            response = await self._submit(request)
        except StreamlogError as error:
            _log.info("the controller was not reached for an in-sync set: %s", error)
            return False
        if not isinstance(response, AlterPartitionResponse) or response.error_code:
            return False
        settled = True
        for topic_answer in response.topics:
            for each in topic_answer.partitions:
                place = (names.get(topic_answer.topic_id, ""), each.partition_index)
                if place in sent:
                    settled = _tell(*sent[place], each) and settled
        return settled


def _proposed(index: int, proposal: ProposeIsr) -> ProposedPartition:
    return ProposedPartition(
        partition_index=index,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in proposal.isr
        ],
    )


def _tell(replica: PartitionReplica, proposal: ProposeIsr, answer: AlteredPartition) -> bool:
    """Whether the answer settles it: any error but two leaves it until metadata has come."""
    replica.on_isr_answer(
        proposal.number,
        answer.error_code,
        (answer.leader_epoch, answer.partition_epoch),
        frozenset(answer.isr),
    )
    return answer.error_code in (ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA)


OnProgress = Callable[[str, int], None]


def _ignore(_topic: str, _index: int) -> None:
    """Nobody waits."""


class Replicas:
    """The replicas of one broker. It is the `Neighbours` of each of them."""

    def __init__(
        self,
        directory: LogDirectory,
        *,
        node: tuple[int, int],
        clock: Clock,
        config: ReplicationConfig,
        topic_id: Callable[[str], bytes | None],
        connect: Connect,
        submit: Submit,
        strict: bool = True,
    ) -> None:
        """`node` is this broker's number, and one that no earlier life of it has had."""
        self.node = ReplicaNode(
            broker_id=node[0],
            incarnation=node[1],
            neighbours=self,
            lag_max_ms=config.lag_time_max_ms,
            strict=strict,
            sends_readers_near=config.sends_readers_near,
        )
        self.on_progress_told: OnProgress = _ignore
        """Told of partitions whose followers have something to be told."""
        self.leader_quota = ReplicationQuota(config.leader_throttled_rate)
        """Of followers that are out of sync, in partitions that say so."""
        self.follower_quota = ReplicationQuota(config.follower_throttled_rate)
        """Of this broker as such a follower."""
        self._directory = directory
        self._clock = clock
        self._config = config
        self._topic_id = topic_id
        self._connect = connect
        self._isr_changes = AlterPartitionRequests(submit, topic_id=topic_id)
        self._replicas: dict[tuple[str, int], PartitionReplica] = {}
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._group: asyncio.TaskGroup | None = None

    def get(self, topic: str, index: int) -> PartitionReplica | None:
        """The replica of a partition; None if there is none here."""
        return self._replicas.get((topic, index))

    def follower_lag(self) -> dict[int, int]:
        """By how many records a follower is behind, in the partition where it is so most."""
        most: dict[int, int] = {}
        for replica in self._replicas.values():
            leader = replica.machine.leader
            for broker, lag in ({} if leader is None else leader.follower_lag()).items():
                most[broker] = max(most.get(broker, 0), lag)
        return most

    def register(self, broker_epoch: int, metadata_offset: int) -> None:
        """This life of the broker was registered by the record at `metadata_offset`.

        Then the state of every partition is to be applied, as of there or later.
        """
        self.node.broker_epoch, self.node.registered_offset = broker_epoch, metadata_offset

    def limit(self, config: ReplicationConfig) -> None:
        """So much may be fetched of, and for, replicas that are throttled, from now on."""
        now_ms = self._clock.now_ms()
        self.leader_quota.limit(config.leader_throttled_rate, now_ms)
        self.follower_quota.limit(config.follower_throttled_rate, now_ms)

    def throttled_rates(self) -> tuple[float, float]:
        """Bytes a second of throttled replicas: sent to followers, and fetched from leaders."""
        now_ms = self._clock.now_ms()
        return self.leader_quota.rate(now_ms), self.follower_quota.rate(now_ms)

    def configure(self) -> None:
        """Settings of topics, or of the broker, have changed."""
        for replica in list(self._replicas.values()):
            replica.configure()

    def set_brokers(self, alive: Mapping[int, int], racks: Mapping[int, str] | None = None) -> None:
        """The brokers that are alive, their epochs, and where they stand, as committed."""
        self.node.brokers.clear()
        self.node.brokers.update(alive)
        self.node.racks = dict(racks or {})
        for leader, fetcher in self._fetchers.items():
            if leader in alive:
                fetcher.on_registered(alive[leader])

    def apply(self, partition: Partition, state: ReplicaState, metadata_offset: int) -> None:
        """The controller has committed this of a partition that has a replica here.

        Metadata is applied in its order, and `set_brokers` before what follows from it.
        """
        place = (partition.topic, partition.index)
        replica = self._replicas.get(place)
        if replica is None:
            replica = self._replicas[place] = partition.replicate(self.node)
        replica.apply(state, metadata_offset=metadata_offset, now_ms=self._clock.now_ms())
        self._look_again()
        partition.on_role()

    def drop(self, topic: str, index: int) -> None:
        """The partition is none of this broker's any more."""
        replica = self._replicas.pop((topic, index), None)
        if replica is not None:
            replica.close()
            self._look_again()
            self.on_progress_told(topic, index)

    def _look_again(self) -> None:
        """A replica may have left a fetcher that waits for it."""
        for fetcher in self._fetchers.values():
            fetcher.look_again()

    async def run(self) -> None:
        """Fetch, propose and look who lags, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for fetcher in self._fetchers.values():
                    group.create_task(fetcher.run())
                group.create_task(
                    self._isr_changes.run(lambda: (self.node.broker_id, self.node.broker_epoch))
                )
                await self._look_who_lags()
            finally:
                self._group = None

    async def _look_who_lags(self) -> None:
        while True:
            await asyncio.sleep(self.node.lag_max_ms / 2000)
            self._tick()

    def _tick(self) -> None:
        for replica in list(self._replicas.values()):
            if not replica.is_alone:
                replica.on_tick(self._clock.now_ms())

    # ---- what replicas need of each other ----

    def propose(self, replica: PartitionReplica, proposal: ProposeIsr) -> None:
        """See `Neighbours`."""
        self._isr_changes.propose(replica, proposal)

    def may_fetch(self, replica: PartitionReplica) -> None:
        """See `Neighbours`."""
        follower = replica.machine.follower
        if follower is None:
            return
        fetcher = self._fetchers.get(follower.leader)
        if fetcher is None:
            fetcher = self._fetchers[follower.leader] = ReplicaFetcher(
                follower.leader,
                self._connect,
                leader_broker_epoch=self.node.brokers.get(follower.leader, NO_EPOCH),
                config=self._config,
                clock=self._clock,
                topic_id=self._topic_id,
                quota=self.follower_quota,
            )
            if self._group is not None:
                self._group.create_task(fetcher.run())
        fetcher.add(replica)

    def on_progress(self, topic: str, partition: int) -> None:
        """See `Neighbours`."""
        self.on_progress_told(topic, partition)

    def keep_checkpoints(self) -> None:
        """See `Neighbours`."""
        self._directory.write_checkpoints()
