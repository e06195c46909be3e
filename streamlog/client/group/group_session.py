"""GroupSession: the I/O of a group member.

It sends the requests that the member's state machine returns (`classic_protocol`,
`consumer_protocol`), finds the coordinator, and commits and fetches the group's offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar
from uuid import uuid4

from streamlog import repeated
from streamlog.assignors import Assignor
from streamlog.client.cluster import RETRY_BACKOFF_MS, RETRY_TIMEOUT_MS, Cluster, Lane
from streamlog.client.group.classic_protocol import (
    Action,
    CountPartitions,
    GroupMember,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    MemberPhase,
    Sync,
    WaitForGroup,
)
from streamlog.client.group.consumer_protocol import Action as ConsumerAction
from streamlog.client.group.consumer_protocol import ConsumerMember, NameTopics, Tell
from streamlog.client.metrics.client_metrics import timed
from streamlog.client.metrics.consumer_metrics import GroupMetrics
from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata
from streamlog.errors import (
    ConnectionLost,
    RebalanceInProgress,
    RequestTimedOut,
    StreamlogError,
    UnknownMember,
)
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages import classic_groups as wire
from streamlog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition

M = TypeVar("M", bound=Message)


class CoordinatorLookup:
    """Finds the coordinator of one group, and sends requests to it."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.group_id = group_id
        self._cluster = cluster
        self._node_id: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the coordinator was found, and not forgotten since."""
        return self._node_id is not None

    async def find(self) -> None:
        """Look up the coordinator.

        Raises:
            LogError: there is none now; retriable.
        """
        self._node_id = await self._cluster.coordinator(self.group_id)

    def forget(self) -> None:
        """Forget the coordinator, so that it is looked up before the next request."""
        self._node_id = None

    async def ask(self, request: Message, answer: type[M]) -> M:
        """Send a request to the coordinator; look it up first if it is unknown.

        Raises:
            ConnectionLost, RequestTimedOut: retriable; a retry looks up the coordinator again.
        """
        if self._node_id is None:
            await self.find()
        try:
            return await self.call(request, answer)
        except (ConnectionLost, RequestTimedOut):
            self.forget()
            raise

    async def call(
        self,
        request: Message,
        answer: type[M],
        *,
        lane: Lane = Lane.GROUP,
        timeout_ms: int | None = None,
    ) -> M:
        """Send a request to the coordinator that was found last.

        Raises:
            ConnectionLost, RequestTimedOut: it does not answer, or was forgotten.
        """
        if self._node_id is None:
            raise ConnectionLost(f"the coordinator of group {self.group_id} is unknown")
        return await self._cluster.call(
            self._node_id, request, answer, lane=lane, timeout_ms=timeout_ms
        )


# Errors that a commit does not retry, though Kafka calls them retriable. A rebalance waits for this
# consumer to poll, so a commit that waited for the rebalance would wait for ever; and a topic that
# was deleted does not return.
_FINAL = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class CommittedOffsets:
    """Commits and fetches the offsets of one group."""

    def __init__(self, coordinator: CoordinatorLookup) -> None:
        self._coordinator = coordinator

    async def store(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], by: GroupMetadata
    ) -> None:
        """Commit offsets as the member `by`.

        Raises:
            RebalanceInProgress: the group rebalances, and the partitions may move to other members.
            UnknownMember: the group has removed this member.
        """
        request = wire.OffsetCommitRequest(
            group_id=by.group_id,
            generation_id_or_member_epoch=by.generation_id,
            member_id=by.member_id,
            group_instance_id=by.instance_id,
            topics=[
                wire.OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        wire.OffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=committed.offset,
                            committed_leader_epoch=committed.leader_epoch,
                            committed_metadata=committed.metadata,
                        )
                        for number in numbers
                        for committed in [offsets[TopicPartition(name, number)]]
                    ],
                )
                for name, numbers in _by_topic(offsets).items()
            ],
        )
        response = await self._coordinator.ask(request, wire.OffsetCommitResponse)
        for topic in response.topics:
            for each in topic.partitions:
                self._check(each.error_code, f"commit of {topic.name}-{each.partition_index}")

    async def fetch(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition; None where there is none."""
        numbers = _by_topic(partitions)
        group_id = self._coordinator.group_id
        request = wire.OffsetFetchRequest(
            group_id=group_id,
            # 1. A member sends its offsets in a transaction, and is killed before the answer.
            # 2. The transaction is committed; its partitions move to another member.
            # 3. Without `require_stable`, the other member might get the offsets from before the
            #    transaction, and process its records again (KIP-447).
            require_stable=True,
            topics=[
                wire.OffsetFetchRequestTopic(name=name, partition_indexes=many)
                for name, many in numbers.items()
            ],
            groups=[
                wire.OffsetFetchRequestGroup(
                    group_id=group_id,
                    topics=[
                        wire.OffsetFetchRequestTopics(name=name, partition_indexes=many)
                        for name, many in numbers.items()
                    ],
                )
            ],
        )
        # Version 8 has `groups` (KIP-709); older versions have one group's `topics`.
        response = await self._coordinator.ask(request, wire.OffsetFetchResponse)
        found = response.groups[0] if response.groups else response
        self._check(found.error_code, "committed offsets")
        committed: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions)
        for topic in found.topics:
            for each in topic.partitions:
                self._check(each.error_code, f"offset of {topic.name}-{each.partition_index}")
                if each.committed_offset >= 0:
                    partition = TopicPartition(topic.name, each.partition_index)
                    committed[partition] = OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch
                    )
        return committed

    def _check(self, error_code: int, where: str) -> None:
        if not error_code:
            return
        if error_code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            self._coordinator.forget()
        error = error_for(error_code, f"{where} in group {self._coordinator.group_id}")
        if error_code in _FINAL:
            error.retriable = False
        elif error_code == ErrorCode.STALE_MEMBER_EPOCH:
            error.retriable = True  # The next heartbeat brings the new epoch (KIP-848).
        raise error


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in partitions:
        numbers.setdefault(topic, []).append(partition)
    return numbers


JOIN_MARGIN_MS = 5_000
"""How long the coordinator may take to answer a join, beyond the rebalance timeout."""
LEAVE_TIMEOUT_MS = 2_000
"""How long `leave` waits. If the request is lost, the session timeout removes the member."""

log = repeated.logger(__name__)
Member: TypeAlias = GroupMember | ConsumerMember


class GroupSession:
    """One consumer's membership in its group. `run` is a task of the consumer."""

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        assignor: Assignor,
        *,
        metrics: GroupMetrics,
        tell: Callable[[], None],
    ) -> None:
        """Run a membership; call `tell` when the assignment is about to change."""
        self.member: Member | None = None
        """None until `subscribe`: the caller assigns partitions itself."""
        self._cluster = cluster
        self._settings = settings
        self._assignor = assignor
        self._metrics = metrics
        self._tell = tell
        self._coordinator = CoordinatorLookup(cluster, settings.group_id)
        self._offsets = CommittedOffsets(self._coordinator)
        self._look = asyncio.Event()
        self._troubled_since_ms: int | None = None
        self._staying = 0
        """The number of `staying` blocks that run."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Become a member, or change the topics of the member."""
        if self.member is None:
            self.member = self._new_member(topics)
        else:
            self.member.on_subscription(topics)
        self._look.set()

    def on_request(self) -> None:
        """Request a rebalance (KIP-568)."""
        if self.member is not None:
            self.member.on_request()
        self._look.set()

    @contextmanager
    def staying(self) -> Iterator[bool]:
        """Stay in this generation; the value is whether the group accepts commits now.

        Blocks may overlap: the member stays until the last of them ends. One that begins while the
        group wants to rebalance gets False, so that overlapping blocks don't hold it for ever.
        """
        member = self.member
        if not isinstance(member, GroupMember):
            yield self.may_commit()
            return
        self._staying += 1
        member.is_held = True
        try:
            yield member.may_commit and member.is_known
        finally:
            self._staying -= 1
            member.is_held = self._staying > 0
            self._look.set()

    def on_counts(self, partitions: Mapping[str, int]) -> None:
        """Note the present partition counts of the group's topics."""
        if self.member is not None:
            self.member.on_counts(partitions)
        self._look.set()

    def on_poll(self, *, waits: bool) -> None:
        """Note a poll: the interval to the next one begins, or with `waits` is suspended."""
        if self.member is None:
            return
        was_away = self.member.phase is MemberPhase.AWAY
        self.member.on_poll(self._cluster.clock.now_ms(), waits=waits)
        if was_away:
            self._look.set()

    def on_assigned(self) -> frozenset[TopicPartition]:
        """Take over the offered assignment; return the partitions that are new in it."""
        if self.member is None:
            return frozenset()
        now_ms = self._cluster.clock.now_ms()
        added = self.member.on_assigned(now_ms)
        if isinstance(self.member, ConsumerMember):
            self._metrics.end_rebalance(now_ms)
        self._look.set()
        return added

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Give up partitions: the caller has finished with them."""
        if self.member is not None:
            self.member.on_revoked(partitions, self._cluster.clock.now_ms())
        self._look.set()

    def may_read(self) -> bool:
        """Whether the assignment is certainly still valid."""
        member = self.member
        return member is None or member.is_current(self._cluster.clock.now_ms())

    def may_commit(self) -> bool:
        """Whether the group accepts commits now, which it does not between two generations."""
        member = self.member
        return member is None or member.may_commit

    async def run(self) -> None:
        """Be a member whenever the caller is subscribed, until cancelled.

        Raises:
            StreamlogError: the group can't be joined, or no coordinator answers for
                `RETRY_TIMEOUT_MS`.
        """
        while True:
            member = self.member
            if member is None:
                self._look.clear()
                await self._look.wait()
                continue
            try:
                await self._step(member)
            except StreamlogError as error:
                self._on_error(member, error)
                await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
            if member.phase is MemberPhase.REVOKING or member.offered is not None:
                self._tell()

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int | None
    ) -> None:
        """Commit offsets that were read in `generation`; does not retry.

        Raises:
            RebalanceInProgress: the group rebalances, or has assigned the partitions to another
                member since `generation`.
            UnknownMember: the group has removed this member.
        """
        if not offsets:
            return
        member = self.member
        if member is not None and not member.absence and not self.may_commit():
            raise RebalanceInProgress(
                f"{member} can't commit now: its group rebalances; poll, then commit again",
                retriable=False,
            )
        known = None if member is None else member.generation_id
        if known != generation and (member is None or not offsets.keys() <= member.assignment):
            # 1. A commit of t-0 is queued in generation 7, and retried while the coordinator moves.
            # 2. The group rebalances: generation 8 gives t-0 to another member, which commits 90.
            # 3. The retry, sent with generation 8, would move t-0 back to an older offset.
            raise RebalanceInProgress(
                f"group {self._settings.group_id}: offsets of generation {generation} can't be "
                "committed any more, since partitions were assigned to other members",
                retriable=False,
            )
        with timed(self._metrics.commits, self._cluster.clock):
            await self._offsets.store(offsets, self.metadata())

    def metadata(self) -> GroupMetadata:
        """Return the member id and generation by which the group knows this consumer.

        Raises:
            UnknownMember: the group has removed the member, or does not know it yet.
        """
        member = self.member
        if member is None:
            return GroupMetadata(group_id=self._settings.group_id)
        if member.absence or not member.is_known or member.is_lost:
            # Metadata without a member id would pass for a consumer that assigns partitions itself,
            # and the coordinator would not check its generation.
            reason = member.absence or "it is not a member of the group now"
            raise UnknownMember(f"{member} can't commit: {reason}")
        return GroupMetadata(
            group_id=self._settings.group_id,
            generation_id=member.generation_id,
            member_id=member.member_id,
            instance_id=self._settings.instance_id,
        )

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition, None where there is none; retries."""
        return await self._cluster.retrying(lambda: self._offsets.fetch(partitions))

    async def leave(self, *, for_good: bool = False) -> None:
        """Leave the group, if it can be reached within `LEAVE_TIMEOUT_MS`."""
        request = None if self.member is None else self.member.leave(for_good=for_good)
        await self._leave(request)

    async def unsubscribe(self) -> None:
        """Leave the group, so that the caller may subscribe again."""
        await self.leave()
        self.member = None
        self._look.set()

    def _new_member(self, topics: Sequence[str]) -> Member:
        if self._settings.protocol == "consumer":
            return ConsumerMember(self._settings, topics, member_id=str(uuid4()))
        return GroupMember(self._settings, self._assignor, topics)

    async def _leave(self, request: Message | None) -> None:
        if request is None or not self._coordinator.is_known:
            return
        try:
            await self._coordinator.call(
                request,
                api_of(type(request)).response,
                # On the main connection: on the group lane it would wait behind a join.
                lane=Lane.MAIN,
                timeout_ms=LEAVE_TIMEOUT_MS,
            )
        except StreamlogError as error:
            log.info("could not leave group %s: %s", self._settings.group_id, error)

    async def _step(self, member: Member) -> None:
        """Carry out the member's next action."""
        if member.coordinator_lost or not self._coordinator.is_known:
            await self._coordinator.find()
            member.on_coordinator_found()
        self._look.clear()
        now_ms = self._cluster.clock.now_ms()
        was_current = member.is_current(now_ms)
        action = (
            await self._classic_step(member, member.next(now_ms))
            if isinstance(member, GroupMember)
            else await self._consumer_step(member, member.next(now_ms))
        )
        match action:
            case Leave(request):
                log.warning(
                    "group %s: the consumer leaves: %s", self._settings.group_id, member.absence
                )
                await self._leave(request)
            case WaitForGroup(until_ms):
                await self._wait(None if until_ms is None else until_ms - now_ms)
        # The session was in doubt, and the caller read nothing: now it may again.
        if not was_current and member.is_current(self._cluster.clock.now_ms()):
            self._tell()

    async def _classic_step(
        self, member: GroupMember, action: Action
    ) -> Leave | WaitForGroup | None:
        """Carry out an action of the classic protocol; return one that both protocols share."""
        clock = self._cluster.clock
        match action:
            case Join(request):
                patience_ms = self._settings.rebalance_timeout_ms + JOIN_MARGIN_MS
                self._metrics.begin_rebalance(clock.now_ms())
                with timed(self._metrics.joins, clock):
                    joined = await self._call(request, wire.JoinGroupResponse, patience_ms)
                self._note_failure(joined.error_code)
                member.on_join(joined, clock.now_ms())
            case CountPartitions(topics):
                await self._count_partitions(member, topics)
            case Sync(request):
                patience_ms = self._settings.rebalance_timeout_ms + JOIN_MARGIN_MS
                with timed(self._metrics.syncs, clock):
                    synced = await self._call(request, wire.SyncGroupResponse, patience_ms)
                self._note_failure(synced.error_code)
                if not synced.error_code:
                    self._metrics.end_rebalance(clock.now_ms())
                member.on_sync(synced, clock.now_ms())
            case Heartbeat(request):
                sent_ms = clock.now_ms()
                beaten = await self._call(request, wire.HeartbeatResponse)
                self._metrics.on_heartbeat(sent_ms, clock.now_ms())
                member.on_heartbeat(beaten, clock.now_ms())
            case Leave() | WaitForGroup():
                return action
        return None

    async def _count_partitions(self, member: GroupMember, topics: Collection[str]) -> None:
        """Count the partitions that the group's leader assigns; log the topics without any."""
        hidden: set[str] = set()
        found = await self._cluster.survey(topics, hidden=hidden)
        counts = {name: len(topic.leaders) for name, topic in found.items()}
        member.on_partitions(counts, self._cluster.clock.now_ms())
        missing = member.missing(counts) if member.phase is MemberPhase.SYNCING else frozenset()
        for names, reason in (
            (missing - hidden, "does not exist"),
            (missing & hidden, "can't be assigned: this consumer may not describe it"),
        ):
            if names:
                joined = ", ".join(sorted(names))
                log.warning("group %s: topic %s %s", self._settings.group_id, joined, reason)

    def _note_failure(self, error_code: int) -> None:
        # With MEMBER_ID_REQUIRED the coordinator only names the member (KIP-394).
        if error_code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self._metrics.fail_rebalance()

    async def _consumer_step(
        self, member: ConsumerMember, action: ConsumerAction
    ) -> Leave | WaitForGroup | None:
        """Carry out an action of KIP-848's protocol; return one that both protocols share."""
        clock = self._cluster.clock
        match action:
            case Tell(request):
                sent_ms = clock.now_ms()
                response = await self._call(request, ConsumerGroupHeartbeatResponse)
                now_ms = clock.now_ms()
                self._metrics.on_heartbeat(sent_ms, now_ms)
                if response.assignment is not None:
                    # The coordinator has another assignment for this member (KIP-848); the
                    # rebalance ends when the caller has taken it over.
                    self._metrics.begin_rebalance(now_ms)
                member.on_heartbeat(response, now_ms)
            case NameTopics():
                found = await self._cluster.survey(member.topics)
                names = {topic.topic_id: name for name, topic in found.items()}
                member.on_names(names, clock.now_ms())
            case Leave() | WaitForGroup():
                return action
        return None

    async def _wait(self, for_ms: float | None) -> None:
        try:
            async with asyncio.timeout(None if for_ms is None else max(for_ms, 0) / 1000):
                await self._look.wait()
        except TimeoutError:
            return

    def _on_error(self, member: Member, error: StreamlogError) -> None:
        now_ms = self._cluster.clock.now_ms()
        self._metrics.fail_rebalance()
        if not error.retriable:
            raise error
        if self._troubled_since_ms is None:
            self._troubled_since_ms = now_ms
            log.warning(
                "group %s: a request failed and will be retried: %s",
                self._settings.group_id, error,
            )  # fmt: skip
        if now_ms - self._troubled_since_ms > RETRY_TIMEOUT_MS:
            raise error
        member.on_coordinator_lost(now_ms)

    async def _call(self, request: Message, answer: type[M], timeout_ms: int | None = None) -> M:
        response = await self._coordinator.call(request, answer, timeout_ms=timeout_ms)
        if self._troubled_since_ms is not None:
            lasted_s = (self._cluster.clock.now_ms() - self._troubled_since_ms) / 1000
            log.warning(
                "group %s: the coordinator is reachable again after %.1f s",
                self._settings.group_id, lasted_s,
            )  # fmt: skip
            self._troubled_since_ms = None
        return response
