"""GroupCopier: copies the committed offsets of a link's groups into the groups of this broker.

Each broker copies the groups that it coordinates, so that it sees at once which members they have,
and no commit crosses the network. Every second it asks each broker of the source for its groups and
their offsets, and the leaders here for the ends of mirror partitions that it has no replica of. A
broker that does not answer delays only its own groups.

Rules of this module: only what has changed is committed. What
keeps groups from being copied is a notice of the link.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from streamlog import repeated
from streamlog.broker.config.link import LinkConfig, apps_of, patterns_of
from streamlog.broker.mirroring.group_copy import (
    GroupCopy,
    GroupHere,
    GroupRules,
    MirrorEnds,
    Position,
    PositionChanges,
    Where,
)
from streamlog.broker.mirroring.link_notices import LinkNotices, listed
from streamlog.broker.mirroring.source_groups import SourceGroups, portions
from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.broker.quorum.metadata.mirror_topics import MirrorLink
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitValue,
)
from streamlog.protocol.messages.consumer_groups import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

if TYPE_CHECKING:
    from streamlog.broker.mirroring.readable_ends import ReadableEnds
    from streamlog.broker.mirroring.source_cluster import SourceCluster
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

POSITIONS_PER_REQUEST = 2_000
"""Positions asked for at once, so that decoding the answer holds the event loop only briefly."""
POSITIONS_EXPECTED = 100
"""How many positions a group is taken to have before it was asked."""
POSITIONS_PER_COMMIT = 1_000
"""Positions committed at once: with the longest metadata, a quarter of the largest batch."""
POSITIONS_MAX = 500_000
"""The positions of a link that a broker keeps; further groups are not copied."""
COMMIT_VERSION = 9
"""The last OffsetCommit version that names topics."""
NOT_HERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
GROUP_KEY_TYPE = 0
LASTING = ("source", "members", "bound")
"""What notices are about, if not about one broker."""
EMPTY = "Empty"
"""The state of a group without members."""

_log = repeated.logger(__name__)

Here = Callable[["Message", int], Awaitable["Message | None"]]
"""Has a request, in a version, answered by this broker."""


class CoordinatedGroup(Protocol):
    """Port: a group in short."""

    @property
    def state(self) -> str:
        """`Empty` without members."""
        ...


class GroupShard(Protocol):
    """Port: the coordinator of some groups on this broker."""

    def summary(self, group_id: str) -> CoordinatedGroup | None:
        """Return a group in short; None if there is none."""
        ...

    def committed(self, group_id: str) -> Mapping[Where, OffsetCommitValue]:
        """Return its committed offsets, those of deleted topics included."""
        ...

    def is_current(self, topic: str, position: OffsetCommitValue) -> bool:
        """Whether the topic is the one that an offset was committed for."""
        ...


class GroupsHere(Protocol):
    """Port: the groups that this broker coordinates."""

    def groups_of(self, group_id: str) -> GroupShard:
        """Return the shard of a group. Raises LogError if it is not here."""
        ...


def group_rules_of(config: LinkConfig) -> GroupRules:
    """Return which groups a link with these settings copies."""
    of_apps = (re.compile(re.escape(each)) for each in apps_of(config))
    return GroupRules(
        groups=(*patterns_of("groups", config.groups), *of_apps),
        excluded=patterns_of("groups.exclude", config.groups_exclude),
        follows_deletions=config.sync_group_deletions_enabled,
    )


class GroupCopier:
    """Copies groups of one link.

    Args:
        link: the link.
        config: its settings.
        source: the cluster that it leads to; only this object uses it.
        metadata: the committed metadata here.
        groups: the groups of this broker.
        ends: what consumers can read of mirrors.
        here: has requests answered by this broker.
        clock: the time.
    """

    def __init__(
        self,
        link: MirrorLink,
        config: LinkConfig,
        source: SourceCluster,
        *,
        metadata: ClusterMetadata,
        groups: GroupsHere,
        ends: ReadableEnds,
        here: Here,
        clock: Clock,
    ) -> None:
        self._link = link
        self._interval_s = config.sync_group_offsets_interval_ms / 1000
        self._rules = group_rules_of(config)
        self._source = source
        self._metadata = metadata
        self._groups = groups
        self._ends = ends
        self._here = here
        self._clock = clock
        self.copied_ms: int | None = None
        """When the last but one whole round began: what was committed at the source before is here.

        Not the last one: it may hold a position back, because it asks for the ends of partitions
        on other brokers side by side with the positions."""
        self._whole_ms: int | None = None
        self._began_ms = clock.now_ms()
        self._has_failed = True
        """Whether something of this round has failed; also before the first one."""
        self._sources: dict[int, SourceGroups] = {}
        self._jobs: dict[object, asyncio.Task[None]] = {}
        self._copies: dict[str, GroupCopy] = {}
        self._counts: dict[str, int] = {}
        """The positions of each group that was copied, as the source has sent them last."""
        self._homes: dict[str, int] = {}
        """The broker of the source that was last known to coordinate each of them."""
        self._mirrored_now: Mapping[str, str] = {}
        self._mirrored_at = -1
        """The offset of the metadata that `_mirrored_now` was found in."""
        self._busy: set[str] = set()
        """Groups with members here."""
        self.notices = LinkNotices(f"link {link.name}, groups")
        """What keeps groups from being copied."""

    async def run(self) -> None:
        """Copy until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._begin_round(group)
                    await asyncio.sleep(self._interval_s)
        finally:
            for each in self._sources.values():
                await each.close()
            await self._source.close()

    def _note_round(self) -> None:
        """Note the end of a round, which lasts until all of its jobs are done."""
        if not all(each.done() for each in self._jobs.values()):
            return
        if not self._has_failed:
            self.copied_ms, self._whole_ms = self._whole_ms, self._began_ms
        # Without a broker of the source known, a round has asked for no groups at all.
        self._has_failed = not self._source.broker_ids
        self._began_ms = self._clock.now_ms()

    def _begin_round(self, group: asyncio.TaskGroup) -> None:
        self._note_round()
        self._begin(group, "source", self._source.refresh([]))
        # Leaders here and brokers there are asked side by side: an end that is a round old only
        # holds a position back for a round.
        far = self._ends.far(self._mirrored())
        for leader, partitions in far.items():
            self._begin(group, ("leader", leader), self._ends.ask(leader, partitions))
        brokers = self._source.broker_ids
        for node_id in brokers:
            self._begin(group, node_id, self._copy_from(node_id))
        # A broker that has left, on either side, needs no notice any more.
        asked = {*brokers, *(("leader", leader) for leader in far), *LASTING}
        self.notices.keep(asked)

    def _begin(self, group: asyncio.TaskGroup, key: object, job: Coroutine[Any, Any, None]) -> None:
        """Begin a job, unless the one before still runs."""
        running = self._jobs.get(key)
        if running is not None and not running.done():
            job.close()
        else:
            self._jobs[key] = group.create_task(self._guarded(key, job))

    async def _guarded(self, key: object, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
            self.notices.note(key, "")
        except (StreamlogError, OSError) as error:
            # A source that is down for a day is found again.
            self.notices.note(key, str(error))
            self._has_failed = True

    # The source.

    async def _copy_from(self, node_id: int) -> None:
        """Copy the groups that a broker of the source coordinates."""
        if not self._mirrored():
            return
        source = self._sources.setdefault(node_id, SourceGroups(node_id, self._source))
        listed = {each for each in await source.ids() if self._rules.copies(each)}
        # Those that are not listed any more, too: they may be deleted, or have moved. Their last
        # coordinator answers NOT_COORDINATOR in the second case, and nothing at all in the first.
        asked = dict.fromkeys(listed)
        asked.update(dict.fromkeys(each for each, home in self._homes.items() if home == node_id))
        await self._create_coordinators(asked)
        counts = self._within_bound(each for each in asked if self._shard(each) is not None)
        names, ends = self._topic_names(), self._ends.known(self._mirrored())
        for portion in portions(counts, POSITIONS_PER_REQUEST):
            found = await source.positions(portion, names)
            for group_id in found.keys() & listed:
                self._homes[group_id] = node_id
            # A group that has moved meanwhile is another broker's to answer for.
            current = [each for each in found if self._homes.get(each) == node_id]
            # Side by side: each commit waits for the followers, and a thousand waits in a row would
            # take longer than the interval.
            async with asyncio.TaskGroup() as together:
                for each in current:
                    together.create_task(self._copy(each, found[each], ends))
        self._tell_busy()

    async def _copy(
        self,
        group_id: str,
        positions: Mapping[Where, Position],
        ends: Mapping[Where, MirrorEnds],
    ) -> None:
        shard = self._shard(group_id)
        if shard is None:
            return
        copy = self._copies.get(group_id)
        if copy is None:
            copy = GroupCopy(follows_deletions=self._rules.follows_deletions)
            self._copies[group_id] = copy
        self._counts[group_id] = len(positions)
        here = _group_here(group_id, shard)
        # Between this look and the commit a member may join. The coordinator then refuses the
        # commit, as that of a consumer outside the group.
        (self._busy.add if here.has_members else self._busy.discard)(group_id)
        change = copy.plan(positions, self._mirrored(), ends, here)
        if not positions and not here.positions:
            # Deleted there, and gone here or never copied.
            self._forget(group_id)
        await self._commit(group_id, copy, change)

    def _within_bound(self, group_ids: Iterable[str]) -> dict[str, int]:
        """Return the groups to copy with their expected positions; tell of those beyond."""
        known = sum(self._counts.values())
        counts: dict[str, int] = {}
        beyond = 0
        for group_id in group_ids:
            count = self._counts.get(group_id)
            if count is None:
                count = POSITIONS_EXPECTED
                if known + count > POSITIONS_MAX:
                    beyond += 1
                    continue
                known += count
            counts[group_id] = count
        self.notices.note(
            "bound",
            f"{beyond} groups are not copied: a broker keeps {POSITIONS_MAX} positions of a link;"
            " name fewer groups in its setting groups"
            if beyond
            else "",
        )
        return counts

    # This cluster.

    def _shard(self, group_id: str) -> GroupShard | None:
        """Return the coordinator of a group, if it is on this broker; else forget the group."""
        try:
            return self._groups.groups_of(group_id)
        except LogError as error:
            # Another broker copies it from now on, or this one does once it has loaded the group.
            if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._has_failed = True
            self._forget(group_id)
            return None

    def _forget(self, group_id: str) -> None:
        for each in (self._copies, self._counts, self._homes):
            each.pop(group_id, None)
        self._busy.discard(group_id)

    async def _create_coordinators(self, group_ids: Iterable[str]) -> None:
        """Have the topic of committed offsets created; a standby may have no group of its own."""
        first = next(iter(group_ids), None)
        if first is None:
            return
        try:
            self._groups.groups_of(first)
        except LogError as error:
            if error.code in NOT_HERE:
                return
            version = FindCoordinatorRequest.__versions__.last
            asked = FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, coordinator_keys=[first])
            await self._here(asked, version)

    def _mirrored(self) -> Mapping[str, str]:
        """Return the source's topics by the names of their active mirrors, by the metadata of now.

        What is committed is checked against it without an await in between: once this broker knows
        that a mirror is paused or promoted, its positions are not touched any more.
        """
        if self._mirrored_at != self._metadata.offset:
            self._mirrored_at = self._metadata.offset
            self._mirrored_now = self._find_mirrored()
        return self._mirrored_now

    def _find_mirrored(self) -> Mapping[str, str]:
        topics = self._metadata.topics
        return {
            topics[topic_id].name: mirror.source_topic
            for topic_id, mirror in self._metadata.mirrors.items()
            if mirror.link_id == self._link.link_id
            and mirror.copies
            and topic_id in topics
            # No group reads these, so that their ends are not asked for every second.
            and not topics[topic_id].name.startswith(MIRRORED_LOGS)
        }

    def _topic_names(self) -> dict[bytes, str]:
        return {
            each.source_topic_id: each.source_topic
            for each in self._metadata.mirrors.values()
            if each.link_id == self._link.link_id
        }

    async def _commit(self, group_id: str, copy: GroupCopy, change: PositionChanges) -> None:
        """Make a change of a group, in portions."""
        commits = [*change.commits.items()]
        for begin in range(0, len(commits), POSITIONS_PER_COMMIT):
            portion = commits[begin : begin + POSITIONS_PER_COMMIT]
            if begin:
                # A mirror may have been paused while the portion before was committed.
                portion = [each for each in portion if each[0][0] in self._mirrored()]
            answer = await self._ask_here(_commit_request(group_id, portion), COMMIT_VERSION)
            done = _committed(answer)
            for where, position in portion:
                if where in done:
                    copy.on_committed(where, position.offset)
                else:
                    self._has_failed = True
                    copy.on_failed(where)
        if change.deletions:
            answer = await self._ask_here(_delete_request(group_id, change.deletions), 0)
            done = _deleted(answer)
            for where in change.deletions:
                (copy.on_deleted if where in done else copy.on_failed)(where)

    async def _ask_here(self, request: Message, version: int) -> Message | None:
        try:
            return await self._here(request, version)
        except StreamlogError as error:
            _log.warning("link %s: a commit has failed: %s", self._link.name, error)
            return None

    # Notices.

    def _tell_busy(self) -> None:
        names = self._busy
        self.notices.note(
            "members",
            f"groups with members in this cluster are not copied: {listed(names)}" if names else "",
        )


def _group_here(group_id: str, shard: GroupShard) -> GroupHere:
    summary = shard.summary(group_id)
    return GroupHere(
        has_members=summary is not None and summary.state != EMPTY,
        positions={
            where: Position(value.offset, value.leader_epoch, value.metadata)
            for where, value in shard.committed(group_id).items()
            # The offset of a topic that was deleted says nothing of the one that has its name now.
            if shard.is_current(where[0], value)
        },
    )


def _commit_request(
    group_id: str, positions: Iterable[tuple[Where, Position]]
) -> OffsetCommitRequest:
    """Return a commit as of a consumer that is no member, refused while the group has any."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), position in positions:
        asked = OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=position.offset,
            committed_leader_epoch=position.leader_epoch,
            committed_metadata=position.metadata,
        )
        topics.setdefault(topic, []).append(asked)
    return OffsetCommitRequest(
        group_id=group_id,
        topics=[
            OffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()
        ],
    )


def _delete_request(group_id: str, wheres: Iterable[Where]) -> OffsetDeleteRequest:
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, partition in wheres:
        asked = OffsetDeleteRequestPartition(partition_index=partition)
        topics.setdefault(topic, []).append(asked)
    return OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(name=name, partitions=each) for name, each in topics.items()
        ],
    )


def _committed(answer: Message | None) -> set[Where]:
    """Return the positions that were committed."""
    if not isinstance(answer, OffsetCommitResponse):
        return set()
    return {
        (topic.name, each.partition_index)
        for topic in answer.topics
        for each in topic.partitions
        if not each.error_code
    }


def _deleted(answer: Message | None) -> set[Where]:
    """Return the positions that were deleted."""
    if not isinstance(answer, OffsetDeleteResponse) or answer.error_code:
        return set()
    return {
        (topic.name, each.partition_index)
        for topic in answer.topics
        for each in topic.partitions
        if not each.error_code
    }
