"""Mirrors: all mirror partitions that this broker leads, dealt out to a reader for each link.

It follows the metadata: a partition that this broker begins to lead, a link that gets other
settings, a topic that is paused. Rule of this module: a link with settings that can't be used
stops its own topics only, and says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.config.link import FETCH_BYTES_MIN, LinkConfig
from streamlog.broker.config.settings import LONG_MAX
from streamlog.broker.mirroring.group_copier import GroupCopier, GroupsHere, Here
from streamlog.broker.mirroring.link_login import login_of
from streamlog.broker.mirroring.link_reader import LinkReader
from streamlog.broker.mirroring.link_runner import LinkRunner, runner_of
from streamlog.broker.mirroring.mirror_copy import LinkCounts, MirrorCopy
from streamlog.broker.mirroring.readable_ends import AskLeader, ReadableEnds
from streamlog.broker.mirroring.source_cluster import SourceCluster, source_of
from streamlog.broker.mirroring.source_fetcher import FetchSizes, Key
from streamlog.broker.quorum.metadata.mirror_topics import LogEra, MirrorLink, MirrorState
from streamlog.broker.replication.mirror_reader import AskAlone, AskCut, KeepRecords, RaiseEpoch
from streamlog.errors import ConfigError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterMirrorPartitionRequest,
    AlterMirrorPartitionResponse,
    AlterMirrorsRequest,
)
from streamlog.records.control_batches import ABORT, Marker

if TYPE_CHECKING:
    from streamlog.broker.config.security import SecurityConfig
    from streamlog.broker.mirroring.lost_and_found import LostAndFound
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message


FENCING_EPOCH_MAX = 2**15 - 1
"""The last producer epoch: the field has 16 bits."""
CUT_AGAIN_S = 1
"""The time between two attempts to cut a promoted partition, in seconds."""
LOOK_AGAIN_S = 10
"""The time between two looks at a link whose settings can't be used."""

_log = repeated.logger(__name__)

Ask = Callable[["Message"], Awaitable["Message"]]
"""Sends a request to the active controller. Raises StreamlogError if there is no answer."""


class Mirrors:
    """The mirror partitions of one broker.

    Args:
        metadata: the committed metadata.
        partitions: the partitions of this broker.
        ask: sends a request to the active controller.
        identity: returns this broker's id and its epoch.
        cluster_id: this cluster.
        clock: the time.
        security: which files and variables links may refer to on this broker.
        lost_and_found: keeps what is cut.
        groups: the groups that this broker coordinates.
        here: has requests answered by this broker.
        ask_leader: asks another broker.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        partitions: Partitions,
        *,
        ask: Ask,
        identity: Callable[[], tuple[int, int]],
        cluster_id: str,
        clock: Clock,
        security: SecurityConfig,
        lost_and_found: LostAndFound,
        groups: GroupsHere,
        here: Here,
        ask_leader: AskLeader,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._ask = ask
        self._identity = identity
        self._cluster_id = cluster_id
        self._clock = clock
        self._security = security
        self._lost_and_found = lost_and_found
        self._groups = groups
        self._here = here
        self._ask_leader = ask_leader
        self._copies: dict[tuple[str, int], MirrorCopy] = {}
        self._readers: dict[bytes, tuple[MirrorLink, LinkReader, asyncio.Task[None]]] = {}
        self._runners: dict[bytes, tuple[MirrorLink, LinkRunner, asyncio.Task[None]]] = {}
        self._unusable: dict[bytes, str] = {}
        """Why links can't be used, by link."""
        self._copiers: dict[bytes, tuple[MirrorLink, GroupCopier, asyncio.Task[None]]] = {}
        self._cutting: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.counts: dict[bytes, LinkCounts] = {}
        """What was copied over each link since this broker started."""

    def on_metadata(self) -> None:
        """Note that links, mirror topics or leaders have changed."""
        self._changed.set()

    def copies(self) -> Collection[MirrorCopy]:
        """Return the mirror partitions that this broker leads."""
        return self._copies.values()

    def links(self) -> Collection[bytes]:
        """Return the links from which this broker copies or has to copy."""
        return {*self._readers, *self._runners, *self._unusable}

    def troubles(self) -> dict[bytes, str]:
        """Return why links are of no use on this broker: bad settings, a source out of reach."""
        # All parts connect by themselves: the reader's trouble counts, since it stops the copies.
        found = {each: of.trouble for each, (_, of, _) in self._runners.items() if of.trouble}
        found |= {each: of.trouble for each, (_, of, _) in self._readers.items() if of.trouble}
        return {**found, **self._unusable}

    def notices(self) -> dict[bytes, list[str]]:
        """Return what links leave out on this broker, such as topics that exist already."""
        found: dict[bytes, list[str]] = {}
        for link_id, (_, runner, _) in self._runners.items():
            found.setdefault(link_id, []).extend(runner.notices.shown)
        for link_id, (_, reader, _) in self._readers.items():
            found.setdefault(link_id, []).extend(reader.notices.shown)
        for link_id, (_, copier, _) in self._copiers.items():
            found.setdefault(link_id, []).extend(copier.notices.shown)
        # All parts connect by themselves, so that a source which is down is a notice, too.
        troubles = self.troubles()
        return {
            link_id: [each for each in notices if each != troubles.get(link_id)]
            for link_id, notices in found.items()
        }

    def groups_ms(self) -> dict[bytes, int]:
        """Return for how long each link has had its groups copied, see `GroupCopier.copied_ms`."""
        return {
            link_id: self._clock.now_ms() - copier.copied_ms
            for link_id, (_, copier, _) in self._copiers.items()
            if copier.copied_ms is not None
        }

    async def run(self) -> None:
        """Copy until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wait()
                self._changed.clear()
                self._deal(group)
                self._deal_links(group)
                self._deal_groups(group)
                self._cut_promoted(group)
                self._abort_left_open()

    def _cut_promoted(self, group: asyncio.TaskGroup) -> None:
        """Cut the partitions that the promotion of an app has left to this broker, see `CutOf`."""
        self._cutting = {key: task for key, task in self._cutting.items() if not task.done()}
        metadata = self._metadata
        for topic_id, mirror in metadata.mirrors.items():
            topic = metadata.topics[topic_id]
            for number in mirror.cuts:
                partition = self._partitions.hosted(topic.name, number)
                key = topic.name, number
                if key in self._cutting or partition is None or _cut_due(partition) is None:
                    continue
                self._cutting[key] = group.create_task(self._cut(partition))

    async def _cut(self, partition: Partition) -> None:
        """Keep what is cut off, cut it, and lead; try again as long as the disk refuses."""
        while (offset := _cut_due(partition)) is not None:
            try:
                await self._lost_and_found.keep(partition, offset, "the cut of its app leaves out")
                partition.on_kept(offset, self._clock.now_ms())
            except StreamlogError as error:
                _log.warning(
                    "%s-%d is promoted, and has no leader until it is cut at offset %d: %s",
                    *(partition.topic, partition.index, offset, error),
                )
                await asyncio.sleep(CUT_AGAIN_S)
                continue
            if partition.is_leader:
                self._partitions.lead(partition.topic, partition.index)
        self._changed.set()  # What its transactions have left open is aborted now.

    def _abort_left_open(self) -> None:
        """Abort what sources had open in the topics that were promoted here."""
        metadata = self._metadata
        for topic_id, mirror in metadata.mirrors.items():
            era = mirror.eras[-1]
            if mirror.is_mirror or era.cluster_id != self._cluster_id:
                continue
            topic = metadata.topics[topic_id]
            for number in topic.partitions:
                partition = self._partitions.hosted(topic.name, number)
                if partition is not None and partition.is_leader:
                    self._abort_in(partition, era)

    def _abort_in(self, partition: Partition, era: LogEra) -> None:
        try:
            count = abort_left_open(partition, era, self._clock)
        except StreamlogError as error:
            # Tried again with the next change of metadata, such as replicas that are in sync again.
            _log.warning(
                "%s-%d: transactions that its source left open are not aborted yet: %s",
                *(partition.topic, partition.index, error),
            )
            return
        if count:
            _log.info(
                "%s-%d: aborted %d transactions that its source left open",
                *(partition.topic, partition.index, count),
            )

    async def _wait(self) -> None:
        """Wait for a change, or until links that could not be used are worth another look."""
        # Nothing tells when the missing file of a password appears.
        try:
            async with asyncio.timeout(LOOK_AGAIN_S if self._unusable else None):
                await self._changed.wait()
        except TimeoutError:
            return

    def _deal_links(self, group: asyncio.TaskGroup) -> None:
        """Run the links that fall to this broker."""
        links, own = self._metadata.links, self._identity()[0]
        self._unusable = {each: why for each, why in self._unusable.items() if each in links}
        brokers = [each.broker_id for each in self._metadata.brokers.values() if each.is_active]
        for link_id, (link, _, task) in [*self._runners.items()]:
            # Other settings are another source: a runner never changes its connection.
            if links.get(link_id) != link or runner_of(link_id, brokers) != own:
                task.cancel()
                del self._runners[link_id]
        for link_id, link in links.items():
            if link_id in self._runners or runner_of(link_id, brokers) != own:
                continue
            found = self._open(link)
            if found is not None:
                runner = LinkRunner(
                    link,
                    *found,
                    metadata=self._metadata,
                    cluster_id=self._cluster_id,
                    ask=self._ask,
                    ends=ReadableEnds(self._metadata, self._partitions, self._ask_leader),
                    clock=self._clock,
                )
                self._runners[link_id] = link, runner, group.create_task(runner.run())

    def _deal_groups(self, group: asyncio.TaskGroup) -> None:
        """Copy the groups of all links, each broker those that it coordinates."""
        links = self._metadata.links
        for link_id, (link, _, task) in [*self._copiers.items()]:
            if links.get(link_id) != link:
                task.cancel()
                del self._copiers[link_id]
        for link_id, link in links.items():
            copier = None if link_id in self._copiers else self._copier(link)
            if copier is not None:
                self._copiers[link_id] = link, copier, group.create_task(copier.run())

    def _copier(self, link: MirrorLink) -> GroupCopier | None:
        """Return what copies the groups of a link; None if it copies none."""
        found = self._open(link) if link.settings.keys() & {"groups", "apps"} else None
        if found is None:
            return None
        return GroupCopier(
            link,
            *found,
            metadata=self._metadata,
            groups=self._groups,
            ends=ReadableEnds(self._metadata, self._partitions, self._ask_leader),
            here=self._here,
            clock=self._clock,
        )

    def _deal(self, group: asyncio.TaskGroup) -> None:
        shares = self._shares()
        links = self._metadata.links
        for link_id, (link, _, task) in [*self._readers.items()]:
            if link_id not in shares or links.get(link_id) != link:
                task.cancel()
                del self._readers[link_id]
        for link_id, copies in shares.items():
            if link_id in links and link_id not in self._readers:
                self._begin(group, links[link_id])
            if link_id in self._readers:
                self._readers[link_id][1].assign(copies)

    def _begin(self, group: asyncio.TaskGroup, link: MirrorLink) -> None:
        """Read for a link, if its settings lead to a source."""
        reader = self._reader(link)
        if reader is not None:
            self._readers[link.link_id] = link, reader, group.create_task(reader.run())

    def _shares(self) -> dict[bytes, dict[Key, MirrorCopy]]:
        """Return the copies of each link, new ones for partitions in a new leader epoch."""
        kept: dict[tuple[str, int], MirrorCopy] = {}
        shares: dict[bytes, dict[Key, MirrorCopy]] = {}
        for partition in self._partitions.led():
            replica = partition.replica
            reader = None if replica is None else replica.machine.mirror
            state = None if replica is None else replica.machine.state
            source = None if state is None else state.mirror_of
            if reader is None or source is None:
                continue
            key = partition.topic, partition.index
            copy = self._copies.get(key)
            if copy is None or copy.reader is not reader:
                former, counts = copy, self.counts.setdefault(source.link_id, LinkCounts())
                copy = MirrorCopy(partition, reader, source, counts)
                if former is not None and former.source == source:
                    copy.take_over(former)
            kept[key] = copy
            topic = self._metadata.topic(partition.topic)
            mirror = None if topic is None else self._metadata.mirrors.get(topic.topic_id)
            if mirror is not None and mirror.copies:
                shares.setdefault(source.link_id, {})[copy.key] = copy
        self._copies = kept
        return shares

    def _open(self, link: MirrorLink) -> tuple[LinkConfig, SourceCluster] | None:
        """Return a link's settings and its source; None if the settings can't be used."""
        try:
            found = (
                LinkConfig.of(link.settings),
                source_of(link, login_of(link.settings, self._security)),
            )
        except ConfigError as error:
            _log.error("link %s can't be used: %s", link.name, error)
            self._unusable[link.link_id] = str(error)
            return None
        self._unusable.pop(link.link_id, None)
        return found

    def _reader(self, link: MirrorLink) -> LinkReader | None:
        found = self._open(link)
        if found is None:
            return None
        config, source = found
        return LinkReader(
            link.name,
            source,
            clock=self._clock,
            begin_epoch=self._begin_epoch,
            stop=self._stop,
            keep=self._keep,
            sizes=_sizes_of(config),
            bytes_per_s=config.bytes_per_second,
        )

    async def _keep(self, copy: MirrorCopy, wanted: KeepRecords) -> None:
        topic = self._metadata.topic(copy.partition.topic)
        mirror = None if topic is None else self._metadata.mirrors.get(topic.topic_id)
        # What was only ever copied goes here as it has gone there.
        if wanted.is_deleted and mirror is not None and not mirror.was_led_by(self._cluster_id):
            return
        await self._lost_and_found.keep(copy.partition, wanted.offset)

    async def _begin_epoch(self, copy: MirrorCopy, wanted: RaiseEpoch | AskCut | AskAlone) -> None:
        topic = self._metadata.topic(copy.partition.topic)
        replica = copy.partition.replica
        epoch = None if replica is None else replica.machine.leader_epoch
        if topic is None or epoch is None:
            return
        broker_id, broker_epoch = self._identity()
        answer = await self._ask(
            AlterMirrorPartitionRequest(
                broker_id=broker_id,
                broker_epoch=broker_epoch,
                topic_id=topic.topic_id,
                partition_index=copy.partition.index,
                leader_epoch=epoch,
                least_leader_epoch=wanted.epoch if isinstance(wanted, RaiseEpoch) else -1,
                cuts=isinstance(wanted, AskCut),
                is_alone=isinstance(wanted, AskAlone),
            )
        )
        code = getattr(answer, "error_code", ErrorCode.UNKNOWN_SERVER_ERROR)
        # After FENCED_LEADER_EPOCH, newer metadata is on its way.
        if not isinstance(answer, AlterMirrorPartitionResponse) or code not in (
            ErrorCode.NONE,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ):
            raise error_for(code, f"the controller begins no leader epoch for {copy.key}")

    async def _stop(self, copy: MirrorCopy, reason: str) -> None:
        asked = AlterableMirror(name=copy.partition.topic, state=MirrorState.STOPPED, reason=reason)
        _log.error("%s is not mirrored any more: %s", copy.partition.topic, reason)
        await self._ask(AlterMirrorsRequest(wall_ms=self._clock.wall_ms(), topics=[asked]))


def _sizes_of(config: LinkConfig) -> FetchSizes:
    # A fetch of 10 MiB at 100 kB/s would be followed by a pause of 100 s. Smaller fetches keep the
    # lag even; a batch that is larger comes whole all the same (KIP-74).
    most = max(config.bytes_per_second, FETCH_BYTES_MIN) if config.bytes_per_second else LONG_MAX
    return FetchSizes(
        partition_max_bytes=min(config.max_partition_fetch_bytes, most),
        response_max_bytes=min(config.fetch_max_bytes, most),
        max_wait_ms=config.fetch_max_wait_ms,
        timeout_ms=config.request_timeout_ms,
    )


def _cut_due(partition: Partition) -> int | None:
    return None if partition.replica is None else partition.replica.machine.cut_due


def left_open(log: PartitionLog, era: LogEra) -> list[int]:
    """Return the producers whose open transactions are the source's.

    Those began before the first record of this cluster's era. It follows from the log alone, so a
    leader that is elected meanwhile does the rest.
    """
    start = log.epochs.start_after(era.leader_epoch - 1)
    # Nothing is written in the era yet: all that is there is the source's.
    end_offset = log.log_end_offset if start is None else start
    return [producer_id for producer_id, first in log.producers.transactions if first < end_offset]


def abort_left_open(partition: Partition, era: LogEra, clock: Clock) -> int:
    """Abort what the source has left open in a promoted partition; return how many there were.

    The coordinator of these transactions is in the other cluster, and has no say here any more. The
    markers are those of a coordinator whose producers are silent: the next producer epoch fences
    them.

    Raises:
        LogError: this broker does not lead the partition any more, or too few replicas are in sync.
        LogDirectoryError: the disk refused.
    """
    producers = left_open(partition.log, era)
    if producers:
        partition.check_insync()
    for producer_id in producers:
        epoch, coordinator_epoch = _fence(partition.log, producer_id)
        marker = Marker(ABORT, coordinator_epoch)
        partition.end_transaction(
            producer_id, epoch, marker, now_ms=clock.now_ms(), wall_ms=clock.wall_ms()
        )
    return len(producers)


def _fence(log: PartitionLog, producer_id: int) -> tuple[int, int]:
    """Return the producer epoch and the coordinator epoch of the marker that fences a producer."""
    known = log.producers.state(producer_id)
    if known is None:
        return 0, 0
    # The last producer epoch can't be raised: KIP-360 gives such a producer another id.
    return min(known.epoch + 1, FENCING_EPOCH_MAX), max(known.coordinator_epoch, 0)
