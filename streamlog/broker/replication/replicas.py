"""Replicas: all replicas of this broker, their fetchers, and their AlterPartition requests.

Committed metadata arrives by `apply`, registrations by `register`. Leaders answer followers
(`replica_fetch`), and followers have one fetcher per broker that leads some of them. Leaders
propose in-sync sets to the controller (AlterPartition, KIP-497): one request is in flight at a
time, with all proposals that are due.

Rules of this module: everything runs in `run`, which the broker owns. Once `run` has ended, no
replica fetches, and no follower is removed for its lag. A proposal without an answer may have been
granted, so it is sent again unchanged until there is an answer or metadata has overtaken it.
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
from streamlog.broker.turn import Turn
from streamlog.errors import StreamlogError
from streamlog.metrics.registry import ITEMS_PER_STEP, Look
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
"""The pause between two attempts in seconds, while a controller is elected, for example."""

Submit = Callable[["Message"], Awaitable["Message"]]
"""Sends a request to the active controller. Raises StreamlogError if there is no answer."""

_log = repeated.logger(__name__)


class AlterPartitionRequests:
    """The AlterPartition requests of the leaders on this broker; the broker runs `run`."""

    def __init__(self, submit: Submit, *, topic_id: Callable[[str], bytes | None]) -> None:
        self._submit = submit
        self._topic_id = topic_id
        self._due: dict[PartitionReplica, ProposeIsr] = {}
        self._wake = asyncio.Event()

    def propose(self, replica: PartitionReplica, proposal: ProposeIsr) -> None:
        """Send this proposal with the next request, in place of an earlier one."""
        self._due[replica] = proposal
        self._wake.set()

    async def run(self, broker: Callable[[], tuple[int, int]]) -> None:
        """Send proposals until cancelled; `broker` returns this broker's id and its epoch."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._ask_for_due(broker())

    async def _ask_for_due(self, broker: tuple[int, int]) -> None:
        """Send all proposals that are still valid, and keep those that were not settled.

        Not part of `run`: a variable of that endless loop would keep the last replica, and its
        log, in memory.
        """
        due, self._due = self._due, {}
        sent = {
            (replica.topic, replica.index): (replica, proposal)
            for replica, proposal in due.items()
            # Metadata may have overtaken the proposal since it was made.
            if replica.proposal() is proposal
        }
        if sent and not await self._ask(broker, sent):
            await asyncio.sleep(RETRY_S)
        for replica, proposal in sent.values():
            # A proposal without an answer may have been granted: it is repeated unchanged, unless
            # the replica has made another one in the meantime.
            if replica.proposal() is proposal and replica not in self._due:
                self.propose(replica, proposal)

    async def _ask(
        self,
        broker: tuple[int, int],
        sent: dict[tuple[str, int], tuple[PartitionReplica, ProposeIsr]],
    ) -> bool:
        """Send a request; return whether every answer settles its proposal."""
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
        # Without an answer everything stays due: `_ask_for_due` proposes it again.
        try:
            response = await self._submit(request)
        except StreamlogError as error:
            _log.info("the controller did not answer AlterPartition, trying again: %s", error)
            return False
        if not isinstance(response, AlterPartitionResponse) or response.error_code:
            return False
        settled = True
        for topic_answer in response.topics:
            for each in topic_answer.partitions:
                key = (names.get(topic_answer.topic_id, ""), each.partition_index)
                if key in sent:
                    settled = _apply_answer(*sent[key], each) and settled
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


def _apply_answer(
    replica: PartitionReplica, proposal: ProposeIsr, answer: AlteredPartition
) -> bool:
    """Pass an answer to its leader; return whether it settles the proposal.

    After an error other than INELIGIBLE_REPLICA the proposal stays until metadata arrives.
    """
    replica.on_isr_answer(
        proposal.number,
        answer.error_code,
        (answer.leader_epoch, answer.partition_epoch),
        frozenset(answer.isr),
    )
    return answer.error_code in (ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA)


OnProgress = Callable[[str, int], None]


def _ignore(_topic: str, _index: int) -> None:
    """Do nothing: no fetch waits."""


class Replicas:
    """The replicas of one broker; for each of them, it is the port `OtherReplicas`."""

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
        turn: Turn | None = None,
    ) -> None:
        """Make the replicas of a broker, which has none before `apply`.

        Args:
            directory: the broker's logs.
            node: this broker's id, and a number that no earlier start of it had.
            clock: the time.
            config: the settings of replication.
            topic_id: the id of a topic; None if there is none of that name.
            connect: opens a connection to a broker.
            submit: sends a request to the active controller.
            strict: whether only synced records count (`flush=always`).
            turn: the broker's, at whose end syncs begin.
        """
        self.node = ReplicaNode(
            broker_id=node[0],
            incarnation=node[1],
            neighbours=self,
            lag_max_ms=config.lag_time_max_ms,
            strict=strict,
            sends_readers_near=config.sends_readers_near,
        )
        self.on_fetch_progress: OnProgress = _ignore
        """Called with a partition whose waiting fetches can be answered."""
        self.on_commit: OnProgress = _ignore
        """Called with a partition whose high watermark has risen."""
        self.on_applied: OnProgress = _ignore
        """Called with a partition whose committed state, or in-sync set, may be another one."""
        self.leader_quota = ReplicationQuota(config.leader_throttled_rate)
        """The quota of what leaders here send to throttled followers."""
        self.follower_quota = ReplicationQuota(config.follower_throttled_rate)
        """The quota of what throttled followers here fetch."""
        self._directory = directory
        self._clock = clock
        self._config = config
        self._topic_id = topic_id
        self._connect = connect
        self._turn = Turn() if turn is None else turn
        self._isr_changes = AlterPartitionRequests(submit, topic_id=topic_id)
        self._replicas: dict[tuple[str, int], PartitionReplica] = {}
        self._dropped = 0
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def turnover(self) -> tuple[int, int]:
        """How many replicas there are, and how many were dropped so far."""
        return len(self._replicas), self._dropped

    def get(self, topic: str, index: int) -> PartitionReplica | None:
        """Return the replica of a partition; None if this broker has none."""
        return self._replicas.get((topic, index))

    def follower_lag(self) -> Look[Mapping[int, int]]:
        """Return each follower's largest lag over all partitions led here, in records."""
        most: dict[int, int] = {}
        for number, replica in enumerate([*self._replicas.values()], 1):
            if number % ITEMS_PER_STEP == 0:
                yield
            leader = replica.machine.leader
            for broker, lag in ({} if leader is None else leader.follower_lag()).items():
                most[broker] = max(most.get(broker, 0), lag)
        return most

    def register(self, broker_epoch: int, metadata_offset: int) -> None:
        """Note this broker's registration by the record at `metadata_offset`.

        The caller then applies the state of every partition, as of this offset or later.
        """
        self.node.broker_epoch, self.node.registered_offset = broker_epoch, metadata_offset

    def limit(self, config: ReplicationConfig) -> None:
        """Apply other rates of throttled replicas from now on (KIP-73)."""
        now_ms = self._clock.now_ms()
        self.leader_quota.limit(config.leader_throttled_rate, now_ms)
        self.follower_quota.limit(config.follower_throttled_rate, now_ms)

    def throttled_rates(self) -> tuple[float, float]:
        """Return throttled replication in bytes per second: sent by leaders, fetched."""
        now_ms = self._clock.now_ms()
        return self.leader_quota.rate(now_ms), self.follower_quota.rate(now_ms)

    def configure(self) -> None:
        """Apply changed settings of topics or of the broker to all replicas."""
        for replica in list(self._replicas.values()):
            replica.configure()

    def set_brokers(self, alive: Mapping[int, int], racks: Mapping[int, str] | None = None) -> None:
        """Note the live brokers with their epochs and racks, as committed."""
        # In place: the state machines of all replicas read this dict.
        self.node.brokers.clear()
        self.node.brokers.update(alive)
        self.node.racks = dict(racks or {})
        for leader, fetcher in self._fetchers.items():
            if leader in alive:
                fetcher.on_registered(alive[leader])

    def apply(self, partition: Partition, state: ReplicaState, metadata_offset: int) -> None:
        """Apply the committed state of a partition that has a replica here.

        Call it in the order of the metadata log, and call `set_brokers` first.
        """
        key = (partition.topic, partition.index)
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = partition.replicate(self.node)
        before = self._fetcher_of(replica)
        replica.apply(state, metadata_offset=metadata_offset, now_ms=self._clock.now_ms())
        if before is not None and before is not self._fetcher_of(replica):
            before.forget(replica)
        self._look_again()
        self.on_applied(*key)
        partition.on_role()  # Last: it reads the role that the replica has now.

    def drop(self, topic: str, index: int) -> None:
        """End the replica of a partition that this broker no longer has."""
        replica = self._replicas.pop((topic, index), None)
        if replica is not None:
            self._dropped += 1
            fetcher = self._fetcher_of(replica)
            if fetcher is not None:
                fetcher.forget(replica)
            replica.close()
            self._look_again()
            self.on_fetch_progress(topic, index)

    def _fetcher_of(self, replica: PartitionReplica) -> ReplicaFetcher | None:
        """Return the fetcher that fetches for a follower; None for other replicas."""
        follower = replica.machine.follower
        return None if follower is None else self._fetchers.get(follower.leader)

    def _look_again(self) -> None:
        """Wake the fetchers: a replica may have left one that waits for its sync."""
        for fetcher in self._fetchers.values():
            fetcher.look_again()

    async def run(self) -> None:
        """Fetch, send proposals and check followers for lag, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for fetcher in self._fetchers.values():
                    group.create_task(fetcher.run())
                group.create_task(
                    self._isr_changes.run(lambda: (self.node.broker_id, self.node.broker_epoch))
                )
                await self._check_lag()
            finally:
                self._group = None

    async def _check_lag(self) -> None:
        while True:
            # Twice per `lag_max_ms`, as in Kafka: a lagging follower leaves the in-sync set after
            # 1 to 1.5 times `lag_max_ms`.
            await asyncio.sleep(self.node.lag_max_ms / 2000)
            self._tick()

    def _tick(self) -> None:
        for replica in list(self._replicas.values()):
            if replica.is_alone:
                continue
            replica.on_tick(self._clock.now_ms())
            if replica.renew_fetch():
                self.may_fetch(replica)

    # ---- the port of each replica ----

    def propose(self, replica: PartitionReplica, proposal: ProposeIsr) -> None:
        """See `OtherReplicas`."""
        self._isr_changes.propose(replica, proposal)

    def may_fetch(self, replica: PartitionReplica) -> None:
        """See `OtherReplicas`."""
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
                turn=self._turn,
            )
            if self._group is not None:
                self._group.create_task(fetcher.run())
        fetcher.add(replica)

    def on_progress(self, topic: str, partition: int) -> None:
        """See `OtherReplicas`."""
        self.on_fetch_progress(topic, partition)

    def on_committed(self, topic: str, partition: int) -> None:
        """See `OtherReplicas`."""
        self.on_commit(topic, partition)

    def keep_checkpoints(self) -> None:
        """See `OtherReplicas`."""
        self._directory.write_checkpoints()
